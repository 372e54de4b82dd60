//! Gradients: the oracle is the derivative of the scores, and every strategy agrees with it.

use maxsim::format::ElementType;
use maxsim_tests::case::{Case, Data, Layout, Pairs};
use maxsim_tests::gradients::{self, check_case, grad_scores};
use maxsim_tests::oracle::{Answer, maxsim};
use maxsim_tests::strategy::{EDGE_DIMS, cases};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// The same cases for every element type. Their seeds differ, so that they take turns in what is
/// checked of some of them.
fn run(name: &'static str, mut cases: Vec<Case>) {
    (0..).zip(&mut cases).for_each(|(i, case)| case.seed += i);
    let of = |element| cases.iter().map(move |case| Case { element, ..case.clone() });
    Suite::run(name, ElementType::ALL.into_iter().flat_map(of), check_case);
}

fn answers(data: &Data) -> Vec<Answer> {
    data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect()
}

/// Σ g · score, in f64.
fn loss(answers: &[Answer], grad_scores: &[f32]) -> f64 {
    answers.iter().zip(grad_scores).map(|(a, &g)| f64::from(g) * a.score.exact).sum()
}

/// The oracle of gradients against central differences of `step` of the oracle of scores, for rows
/// `scale` times as long as generated. Says how many elements were compared, and how many were not
/// since a winner changed in between.
fn compare_with_differences(
    normalize: bool,
    scale: f32,
    step: f32,
    allowed: impl Fn(f64) -> f64,
) -> (usize, usize) {
    let (mut n_near_ties, mut n_checked) = (0, 0);
    for (i, case) in Case::new(3, &[2, 0, 3], &[2, 3, 0, 1])
        .in_every_layout_and_pairing()
        .into_iter()
        .enumerate()
    {
        let mut data = Case { seed: i as u64, ..case }.data();
        let mut change = |side: usize, change: &dyn Fn(&mut [f32])| {
            let matrix = [&mut data.queries, &mut data.documents];
            let [queries, documents] = matrix;
            let matrix = if side == 0 { queries } else { documents };
            change(&mut matrix.values);
            if normalize {
                *matrix = matrix.clone().normalized();
            }
            data.clone()
        };
        let scaled = |values: &mut [f32]| values.iter_mut().for_each(|x| *x *= scale);
        change(0, &scaled);
        let data = change(1, &scaled);
        let grad_scores = grad_scores(&data, i as u64);
        let winners = gradients::winners(&answers(&data));
        let expected = gradients::gradients(&data, &winners, &grad_scores);
        for side in 0..2 {
            let sums = [&expected.queries, &expected.documents][side];
            for (element, sum) in sums.iter().enumerate() {
                let middle = [&data.queries, &data.documents][side].values[element];
                let mut at = |x: f32| {
                    let answers = answers(&change(side, &|values| values[element] = x));
                    let same = gradients::winners(&answers) == winners;
                    (f64::from(x), loss(&answers, &grad_scores), same)
                };
                let ((x0, loss0, same0), (x1, loss1, same1)) =
                    (at(middle - step), at(middle + step));
                at(middle);
                if !(same0 && same1) {
                    n_near_ties += 1;
                    continue;
                }
                let difference = (loss1 - loss0) / (x1 - x0);
                assert!(
                    (difference - sum.exact).abs() <= allowed(sum.exact),
                    "case {i}, side {side}, element {element}: {difference}, not {sum:?}"
                );
                n_checked += 1;
            }
        }
    }
    (n_checked, n_near_ties)
}

/// As long as no winner changes, the loss is linear in each single element, so that the central
/// difference is the derivative but for the f64 rounding of the two losses, about 2⁻⁵² / 2⁻¹¹ of
/// them: far below the 10⁻⁹ allowed.
#[test]
fn oracle_is_the_derivative_of_the_scores() {
    let (n_checked, n_near_ties) = compare_with_differences(false, 1.0, 2f32.powi(-12), |_| 1e-9);
    assert!(n_checked > 10_000 && n_near_ties * 50 < n_checked, "{n_checked} and {n_near_ties}");
}

/// Rows of length 4: the difference errs by a sixth of the third derivative times 2⁻²⁴, of losses
/// that are sums of a few cosines. And rows of length 2⁻²⁴, which are all multiplied by 10⁶, where
/// the loss is linear again.
#[test]
fn oracle_is_the_derivative_of_normalized_scores() {
    for (scale, step, allowed) in
        [(4.0, 2f32.powi(-12), 1e-8), (2f32.powi(-24), 2f32.powi(-36), 1e-6)]
    {
        let allowed = |exact: f64| allowed * exact.abs().max(1.0);
        let (n_checked, n_near_ties) = compare_with_differences(true, scale, step, allowed);
        assert!(
            n_checked > 10_000 && n_near_ties * 50 < n_checked,
            "{n_checked} and {n_near_ties}"
        );
    }
}

#[test]
fn random_f16() {
    Suite::run_random("gradients_f16", || cases(ElementType::F16), check_case);
}

#[test]
fn random_bf16() {
    Suite::run_random("gradients_bf16", || cases(ElementType::Bf16), check_case);
}

#[test]
fn random_f32() {
    Suite::run_random("gradients_f32", || cases(ElementType::F32), check_case);
}

#[test]
fn pairings_and_layouts() {
    let mut case = Case::new(32, &[5, 0, 17, 1], &[16, 33, 0, 1, 9]);
    (case.values, case.poison) = (Values::Integers, true);
    run("gradients_pairings_and_layouts", case.in_every_layout_and_pairing());
}

/// Rows that are normalised, of lengths that differ and of none, with infinities and NaNs.
#[test]
fn normalized() {
    let case = Case::new(32, &[5, 0, 17, 1], &[16, 33, 0, 1, 9]);
    let mut cases: Vec<Case> = case.in_every_layout_and_pairing().into_iter().step_by(3).collect();
    cases.extend(EDGE_DIMS.into_iter().map(|dim| Case::new(dim, &[17, 3], &[65, 1, 16])));
    cases.extend([8, 128].map(|dim| Case::new(dim, &[130; 9], &[300, 0, 7, 1, 512])));
    let values = Values::ALL.into_iter().cycle();
    for (case, values) in cases.iter_mut().zip(values) {
        (case.normalize, case.values, case.poison) = (true, values, true);
    }
    run("gradients_normalized", cases);
}

#[test]
fn dims() {
    let shape = |dim| Case::new(dim, &[17, 3], &[65, 1, 16]);
    run("gradients_dims", EDGE_DIMS.into_iter().map(shape).collect());
}

#[test]
fn nothing_there() {
    let mut cases = Case::without_tokens(&Pairs::ALL);
    cases.extend(Case::all_masked());
    run("gradients_nothing_there", cases);
}

/// More winners of one document, and of one query, than are sorted at a time, and rows that
/// tens of thousands of query tokens chose.
#[test]
fn many_winners() {
    let many = vec![4; 33_000];
    let mut cases = Vec::new();
    for values in [Values::Integers, Values::Unit] {
        let case = Case { values, ..Case::new(2, &many, &[3]) };
        cases.push(Case { values, ..Case::new(2, &[4], &many) });
        // All items lie in one run of rows.
        let mut scattered = case.clone();
        scattered.queries.layout = Layout::Scattered;
        cases.extend([case, scattered]);
    }
    // A query longer than that.
    cases.push(Case::new(1, &[140_000, 3], &[1, 2]));
    // A document whose winners take four bytes on a GPU.
    cases.push(Case::new(8, &[9, 3], &[65_600]));
    run("gradients_many_winners", cases);
}
