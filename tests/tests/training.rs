//! The example's training run, in f32 on every device, against the same run in f64.
//!
//! The reference shares the first weights, the batches and the numbers of the settings with the
//! example, and no arithmetic. Environment: MAXSIM_TRAINING_STEPS, the length of the run; by
//! default the example's own, 500, or 100 where there is no device.

use std::path::Path;

use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;

use sample::{Embeddings, Task};
use training::{Adam, Projection, Settings, batches, held_out_ndcg, train};

#[path = "../../host/examples/train_projection/sample.rs"]
mod sample;
#[path = "../../host/examples/train_projection/training.rs"]
mod training;

/// How far losses may be from those of the reference: each, and on average.
const TOLERANCES: [f64; 2] = [2e-3, 2e-4];

#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no current folder)")]
fn the_loss_curve_is_that_of_f64() {
    let n_steps = match std::env::var("MAXSIM_TRAINING_STEPS") {
        Ok(n) => n.parse().expect("MAXSIM_TRAINING_STEPS is a number"),
        Err(_) if cuda_devices().is_empty() => 100,
        Err(_) => 500,
    };
    let (task, settings) = (task(), Settings::default());
    let expected = Reference::new(&task, &settings).losses(n_steps);
    Suite::run("training", all_devices(), |suite, device| {
        let mut projection = Projection::random(task.queries.dim, &settings);
        let before = held_out_ndcg(device, &task, &projection).map_err(text)?;
        let mut found = Vec::new();
        train(device, &task, &settings, &mut projection, n_steps, |loss| found.push(loss))
            .map_err(text)?;
        let after = held_out_ndcg(device, &task, &projection).map_err(text)?;

        assert_eq!(found.len(), n_steps);
        let errors = found.iter().zip(&expected).map(|(&f, e)| (f64::from(f) - e).abs());
        let (largest, sum) = errors.fold((0.0, 0.0), |(most, sum), e| (e.max(most), sum + e));
        let mean = sum / n_steps as f64;
        suite.note(&format!(
            "{device}, {n_steps} steps: loss {:.4} to {:.4}, held-out nDCG@10 {before:.4} to \
             {after:.4}; from the f64 run at most {largest:.1e}, {mean:.1e} on average",
            expected[0],
            expected[n_steps - 1]
        ));
        // Written so that NaN fails.
        if !(largest <= TOLERANCES[0] && mean <= TOLERANCES[1]) {
            return Err(format!("the curve is {largest} away, {mean} on average"));
        }
        if after <= before {
            return Err(format!("nDCG@10 was {before} and is {after}"));
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

fn text(error: anyhow::Error) -> String {
    format!("{error:#}")
}

fn task() -> Task {
    Task::read(Path::new("../cli/examples/debian-packages")).expect("the sample")
}

/// The run in f64, written as the formulas are.
struct Reference<'a> {
    task: &'a Task,
    settings: &'a Settings,
    /// `[dim of the embeddings][dim]`, as are all that follow.
    weights: Vec<Vec<f64>>,
    gradients: Vec<Vec<f64>>,
    means: Vec<Vec<f64>>,
    squares: Vec<Vec<f64>>,
}

impl<'a> Reference<'a> {
    fn new(task: &'a Task, settings: &'a Settings) -> Reference<'a> {
        let rows = Projection::random(task.queries.dim, settings).weights;
        let rows = rows.chunks(settings.dim);
        let weights: Vec<_> =
            rows.map(|row| row.iter().copied().map(f64::from).collect()).collect();
        let zeros = vec![vec![0.0; settings.dim]; weights.len()];
        let (gradients, means, squares) = (zeros.clone(), zeros.clone(), zeros);
        Reference { task, settings, weights, gradients, means, squares }
    }

    fn losses(mut self, n_steps: usize) -> Vec<f64> {
        let all = batches(self.task.queries.n_items(), self.settings).take(n_steps);
        let step = |(step, batch): (i32, Vec<usize>)| {
            let loss = self.differentiate(&batch);
            self.adam(step);
            loss
        };
        (1..).zip(all).map(step).collect()
    }

    /// The mean over queries of −log softmax(scores / T) at their own documents, whose gradients
    /// are left in `gradients`.
    fn differentiate(&mut self, batch: &[usize]) -> f64 {
        let temperature = f64::from(self.settings.temperature);
        let queries: Vec<_> = batch.iter().map(|&i| self.project(&self.task.queries, i)).collect();
        let documents: Vec<_> =
            batch.iter().map(|&i| self.project(&self.task.documents, i)).collect();
        let zeros = |items: &[Vec<Vec<f64>>]| -> Vec<Vec<Vec<f64>>> {
            items.iter().map(|item| vec![vec![0.0; self.settings.dim]; item.len()]).collect()
        };
        // Of the projected tokens.
        let (mut of_queries, mut of_documents) = (zeros(&queries), zeros(&documents));
        let mut loss = 0.0;
        for (own, query) in queries.iter().enumerate() {
            let winners: Vec<Vec<(usize, f64)>> = documents
                .iter()
                .map(|document| query.iter().map(|token| winner(token, document)).collect())
                .collect();
            let logits: Vec<f64> = winners
                .iter()
                .map(|tokens| tokens.iter().map(|(_, best)| best).sum::<f64>() / temperature)
                .collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
            loss -= (logits[own] - max - sum.ln()) / batch.len() as f64;
            for (other, tokens) in winners.iter().enumerate() {
                let probability = (logits[other] - max).exp() / sum;
                let target = if other == own { 1.0 } else { 0.0 };
                let of_score = (probability - target) / (temperature * batch.len() as f64);
                for (s, &(t, _)) in tokens.iter().enumerate() {
                    add(&mut of_queries[own][s], of_score, &documents[other][t]);
                    add(&mut of_documents[other][t], of_score, &query[s]);
                }
            }
        }
        // Of x · W with respect to W.
        self.gradients.iter_mut().for_each(|row| row.fill(0.0));
        for (side, of_items) in
            [(&self.task.queries, of_queries), (&self.task.documents, of_documents)]
        {
            for (&item, of_tokens) in batch.iter().zip(&of_items) {
                for (token, gradient) in of_tokens.iter().enumerate() {
                    // Most document tokens are nobody's winner.
                    if gradient.iter().any(|&g| g != 0.0) {
                        let x = row(side, item, token);
                        for (sums, &x) in self.gradients.iter_mut().zip(x) {
                            add(sums, f64::from(x), gradient);
                        }
                    }
                }
            }
        }
        loss
    }

    /// The projected tokens of an item.
    fn project(&self, embeddings: &Embeddings, item: usize) -> Vec<Vec<f64>> {
        let project = |token| {
            let mut projected = vec![0.0; self.settings.dim];
            for (&x, weights) in row(embeddings, item, token).iter().zip(&self.weights) {
                add(&mut projected, f64::from(x), weights);
            }
            projected
        };
        (0..embeddings.rows(item).len()).map(project).collect()
    }

    fn adam(&mut self, step: i32) {
        let [beta1, beta2] = Adam::BETAS.map(f64::from);
        let (rate, epsilon) = (f64::from(self.settings.learning_rate), f64::from(Adam::EPSILON));
        for (j, row) in self.weights.iter_mut().enumerate() {
            for (k, weight) in row.iter_mut().enumerate() {
                let gradient = self.gradients[j][k];
                let (mean, square) = (&mut self.means[j][k], &mut self.squares[j][k]);
                *mean = beta1 * *mean + (1.0 - beta1) * gradient;
                *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
                let (m, v) = (*mean / (1.0 - beta1.powi(step)), *square / (1.0 - beta2.powi(step)));
                *weight -= rate * m / (v.sqrt() + epsilon);
            }
        }
    }
}

/// The first of the most similar tokens, and how similar it is.
fn winner(query: &[f64], document: &[Vec<f64>]) -> (usize, f64) {
    let mut best = (0, f64::NEG_INFINITY);
    for (t, token) in document.iter().enumerate() {
        let similarity = dot(query, token);
        if similarity > best.1 {
            best = (t, similarity);
        }
    }
    best
}

/// Σ x · y, in several sums: one would wait for each addition.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (x, y) in xs.iter().zip(ys) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    let rest: f64 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// sums += factor · x
fn add(sums: &mut [f64], factor: f64, x: &[f64]) {
    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
}

fn row(embeddings: &Embeddings, item: usize, token: usize) -> &[f32] {
    &embeddings.values[(embeddings.rows(item).start + token) * embeddings.dim..][..embeddings.dim]
}
