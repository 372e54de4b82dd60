//! The training: a linear projection of every token, an in-batch contrastive loss, and Adam.

use anyhow::Result;
use maxsim::loss::PreparedLoss;
use maxsim::stream::{Queue, Stream};
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, Pairing, Ranked, ScoreOptions, Tokens, TopK};

use crate::sample::{Embeddings, Task};

/// What a run depends on, besides the task.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Elements of a projected token.
    pub dim: usize,
    /// Queries, and documents, of a step.
    pub batch: usize,
    pub temperature: f32,
    pub learning_rate: f32,
    /// Of the first weights, and of the order of the queries.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { dim: 64, batch: 32, temperature: 1.0, learning_rate: 1e-3, seed: 1 }
    }
}

/// A linear map of tokens: a row x becomes x · W.
pub struct Projection {
    /// W, `[dim of x, dim]`, row-major.
    pub weights: Vec<f32>,
    pub dim: usize,
}

impl Projection {
    /// Random weights that keep lengths on average.
    pub fn random(from_dim: usize, settings: &Settings) -> Projection {
        let mut random = Random(settings.seed);
        let bound = (3.0 / settings.dim as f32).sqrt();
        let weights = (0..from_dim * settings.dim).map(|_| bound * random.between_minus_1_and_1());
        Projection { weights: weights.collect(), dim: settings.dim }
    }

    /// The projected tokens.
    pub fn project(&self, embeddings: &Embeddings) -> Embeddings {
        let n_rows = embeddings.values.len() / embeddings.dim;
        let mut values = vec![0.0; n_rows * self.dim];
        let rows = embeddings.values.chunks(embeddings.dim);
        for (row, projected) in rows.zip(values.chunks_mut(self.dim)) {
            for (x, weights) in row.iter().zip(self.weights.chunks(self.dim)) {
                projected.iter_mut().zip(weights).for_each(|(y, w)| *y += x * w);
            }
        }
        Embeddings { values, dim: self.dim, offsets: embeddings.offsets.clone() }
    }

    /// Adds the gradients of the weights, Σ x ⊗ ∂(x · W), from those of the projected tokens.
    fn add_gradients(&self, embeddings: &Embeddings, of_tokens: &[f32], of_weights: &mut [f32]) {
        let rows = embeddings.values.chunks(embeddings.dim);
        for (row, gradient) in rows.zip(of_tokens.chunks(self.dim)) {
            // Most document tokens are no winner.
            if gradient.iter().all(|&g| g == 0.0) {
                continue;
            }
            for (x, sums) in row.iter().zip(of_weights.chunks_mut(self.dim)) {
                sums.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += x * g);
            }
        }
    }
}

/// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015).
pub struct Adam {
    means: Vec<f32>,
    squares: Vec<f32>,
    n_steps: i32,
}

impl Adam {
    pub const BETAS: [f32; 2] = [0.9, 0.999];
    pub const EPSILON: f32 = 1e-8;

    fn new(n_weights: usize) -> Adam {
        Adam { means: vec![0.0; n_weights], squares: vec![0.0; n_weights], n_steps: 0 }
    }

    fn step(&mut self, weights: &mut [f32], gradients: &[f32], learning_rate: f32) {
        self.n_steps += 1;
        let [mean_beta, square_beta] = Adam::BETAS;
        let [mean_bias, square_bias] = Adam::BETAS.map(|beta| 1.0 - beta.powi(self.n_steps));
        let moments = self.means.iter_mut().zip(&mut self.squares);
        for ((weight, gradient), (mean, square)) in weights.iter_mut().zip(gradients).zip(moments) {
            *mean = mean_beta * *mean + (1.0 - mean_beta) * gradient;
            *square = square_beta * *square + (1.0 - square_beta) * gradient * gradient;
            let size = (*square / square_bias).sqrt() + Adam::EPSILON;
            *weight -= learning_rate * (*mean / mean_bias) / size;
        }
    }
}

/// Trains the projection on a device, and gives `on_step` each batch's loss before its step.
pub fn train(
    device: &Device,
    task: &Task,
    settings: &Settings,
    projection: &mut Projection,
    n_steps: usize,
    mut on_step: impl FnMut(f32),
) -> Result<()> {
    let mut adam = Adam::new(projection.weights.len());
    let mut stream = device.stream()?;
    let n = settings.batch.min(task.queries.n_items());
    // The document of query 0 is document 0 of the batch, and so on.
    let positives = Vec::from_iter(0..n);
    let contrastive = device.prepare_contrastive(n, &positives, settings.temperature)?;
    for batch in batches(task.queries.n_items(), settings).take(n_steps) {
        let inputs = [&task.queries, &task.documents].map(|side| side.select(&batch, |rows| rows));
        let projected = [projection.project(&inputs[0]), projection.project(&inputs[1])];
        let (loss, gradients) = loss(&mut stream, &contrastive, &projected)?;
        on_step(loss);
        let mut of_weights = vec![0.0; projection.weights.len()];
        for (input, of_tokens) in inputs.iter().zip(&gradients) {
            projection.add_gradients(input, of_tokens, &mut of_weights);
        }
        adam.step(&mut projection.weights, &of_weights, settings.learning_rate);
    }
    Ok(())
}

/// The loss of projected queries and their documents, and its gradients with respect to their
/// tokens: between the upload and the results everything stays on the device.
fn loss(
    stream: &mut Stream,
    contrastive: &PreparedLoss,
    [queries, documents]: &[Embeddings; 2],
) -> Result<(f32, [Vec<f32>; 2])> {
    let device = stream.device().clone();
    let queries = device.upload(&tokens(queries)?)?;
    let documents = device.upload(&tokens(documents)?)?;
    // Every query meets every document: those of the others are its negatives.
    let options = ScoreOptions::default().winners(true);
    let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
    let backward =
        device.prepare_backward(&work, &BackwardOptions::default(), GradientType::F32)?;
    let mut scores = work.new_scores()?;
    let mut loss = contrastive.new_loss()?;
    let mut grad_scores = backward.new_grad_scores()?;
    let mut gradients = backward.new_gradients()?;
    stream.score_into(&queries, &documents, &work, &mut scores)?;
    stream.loss(contrastive, &scores, &mut grad_scores, &mut loss)?;
    stream.backward(
        &queries,
        &documents,
        &backward,
        scores.with_grad(&grad_scores),
        &mut gradients,
    )?;
    let gradients = gradients.read()?;
    Ok((loss.read()?, [gradients.queries, gradients.documents]))
}

/// Mean nDCG@10 of the queries that training does not see, whose only relevant document has their
/// own index.
pub fn held_out_ndcg(device: &Device, task: &Task, projection: &Projection) -> Result<f64> {
    let queries = projection.project(&task.held_out);
    let documents = projection.project(&task.all_documents);
    let scores = device.score(&tokens(&queries)?, &tokens(&documents)?, &Pairing::cross())?;
    let rows = scores.values().chunks(documents.n_items());
    let gains = (0..).zip(rows).map(|(query, row)| {
        let mut best = TopK::new(10);
        (0..).zip(row).for_each(|(id, &score)| best.push(Ranked { id, score, has_tokens: true }));
        let ranked = best.into_ranking().ranked;
        let rank = ranked.iter().position(|document| document.id == query);
        rank.map_or(0.0, |rank| 1.0 / (rank as f64 + 2.0).log2())
    });
    Ok(gains.sum::<f64>() / queries.n_items() as f64)
}

fn tokens(embeddings: &Embeddings) -> Result<Tokens<'_, f32>> {
    let offsets: Vec<i64> = embeddings.offsets.iter().map(|&offset| offset as i64).collect();
    Ok(Tokens::packed(&embeddings.values, embeddings.dim, &offsets)?)
}

/// What each step learns from, without end: in every round each query once, in a new order, less
/// those that fill no batch.
pub fn batches(n_queries: usize, settings: &Settings) -> impl Iterator<Item = Vec<usize>> {
    // Other numbers than those that become weights.
    let mut random = Random(!settings.seed);
    let mut order = Vec::from_iter(0..n_queries);
    let (batch, mut next) = (settings.batch.min(n_queries), n_queries);
    std::iter::from_fn(move || {
        if next + batch > n_queries {
            // Fisher's and Yates's shuffle.
            for i in (1..n_queries).rev() {
                order.swap(i, (random.next() % (i as u64 + 1)) as usize);
            }
            next = 0;
        }
        next += batch;
        Some(order[next - batch..next].to_vec())
    })
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014): a run is the same everywhere, and with every version of any crate.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn between_minus_1_and_1(&mut self) -> f32 {
        // 24 bits are what an f32 holds.
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
