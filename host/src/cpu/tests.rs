//! The engine against the definition, on small whole numbers: every sum is exact, so every
//! output must be equal to the bit, and ties are plenty.

use half::{bf16, f16};

use super::*;
use crate::problem::pairing::Pairing;
use crate::tokens::Tokens;
use crate::tokens::element::Element;

/// A small generator of small numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn matrix<T: Element>(&mut self, rows: usize, dim: usize) -> Vec<T> {
        (0..rows * dim).map(|_| T::from_f32(self.below(7) as f32 - 3.0)).collect()
    }

    fn mask(&mut self, rows: usize) -> Vec<u8> {
        (0..rows).map(|_| u8::from(self.below(3) > 0)).collect()
    }
}

fn everything() -> ScoreOptions {
    ScoreOptions { winners: true, token_scores: true, ..ScoreOptions::default() }
}

fn engine<T: Element>(q: &Tokens<'_, T>, d: &Tokens<'_, T>, pairing: &Pairing) -> Scores {
    let problem = Problem::new(q.layout(), d.layout(), pairing).unwrap();
    let (q, d) = (matrix(q), matrix(d));
    score(&problem, q, d, &everything()).unwrap()
}

fn matrix<'a, T: Element>(tokens: &'a Tokens<'_, T>) -> Matrix<'a, T> {
    let (mask, weights) = tokens.beside();
    Matrix { data: tokens.data(), scales: None, residuals: None, mask, weights }
}

/// The definition, in f64: exact for whole numbers, and with plain rules for NaN and ties.
fn definition<T: Element>(q: &Tokens<'_, T>, d: &Tokens<'_, T>, pairing: &Pairing) -> Scores {
    let problem = Problem::new(q.layout(), d.layout(), pairing).unwrap();
    let mut scores = Scores::new(&problem, &everything()).unwrap();
    let dim = problem.dim();
    let row = |t: &Tokens<'_, T>, r: usize| -> Vec<f64> {
        t.data()[r * dim..][..dim].iter().map(|x| f64::from(x.to_f32())).collect()
    };
    let valid = |t: &Tokens<'_, T>, r: usize| t.mask().is_none_or(|mask| mask[r] != 0);
    let offsets = problem.token_offsets();
    for p in 0..problem.shape().n_scores() {
        let (qi, di) = problem.pair(p);
        let mut sum = 0.0;
        for (r, at) in q.layout().item_rows(qi).zip(offsets.range(p)) {
            let query_row = row(q, r);
            let mut best: Option<(f64, usize)> = None;
            for (t, dr) in d.layout().item_rows(di).enumerate() {
                if !valid(q, r) || !valid(d, dr) {
                    continue;
                }
                let x: f64 = query_row.iter().zip(row(d, dr)).map(|(a, b)| a * b).sum();
                if best.is_none_or(|(b, _)| x > b || x.is_nan() && !b.is_nan()) {
                    best = Some((x, t));
                }
            }
            if let Some((best, winner)) = best {
                sum += best;
                scores.winners.as_mut().unwrap()[at] = winner as i32;
                scores.token_scores.as_mut().unwrap()[at] = best as f32;
            }
        }
        scores.values[p] = sum as f32;
    }
    scores
}

fn bits(values: &[f32]) -> Vec<u32> {
    // The sign of a zero and the bits of a NaN are free.
    let plain = |x: &f32| if x.is_nan() { f32::NAN } else { x + 0.0 };
    values.iter().map(|x| plain(x).to_bits()).collect()
}

fn assert_same(found: &Scores, expected: &Scores, what: &str) {
    assert_eq!(bits(found.values()), bits(expected.values()), "scores: {what}");
    assert_eq!(found.winners(), expected.winners(), "winners: {what}");
    let token_scores = |s: &Scores| bits(s.token_scores().unwrap());
    assert_eq!(token_scores(found), token_scores(expected), "token scores: {what}");
}

fn check<T: Element>(q: &Tokens<'_, T>, d: &Tokens<'_, T>, pairing: &Pairing, what: &str) {
    let what = format!("{} {what}", T::TYPE);
    assert_same(&engine(q, d, pairing), &definition(q, d, pairing), &what);
}

fn packed<'a, T: Element>(data: &'a [T], lens: &[usize], dim: usize) -> Tokens<'a, T> {
    let mut offsets = vec![0i64];
    offsets.extend(lens.iter().scan(0, |sum, &len| {
        *sum += len as i64;
        Some(*sum)
    }));
    Tokens::packed(data, dim, &offsets).unwrap()
}

#[test]
fn tile_and_panel_edges() {
    let mut random = Random(1);
    let document_lens = [0, 1, 2, 23, 24, 25, 47, 48, 49, 95, 96, 97, 1, 145, 0];
    let query_lens = [1, 0, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 300];
    for dim in [1, 2, 3, 4, 5, 16, 65] {
        let q: Vec<f32> = random.matrix(query_lens.iter().sum(), dim);
        let d: Vec<f32> = random.matrix(document_lens.iter().sum(), dim);
        let q = packed(&q, &query_lens, dim);
        check(&q, &packed(&d, &document_lens, dim), &Pairing::cross(), &format!("dim {dim}"));
        for len in document_lens {
            let d = packed(&d, &[len], dim);
            check(&q, &d, &Pairing::cross(), &format!("dim {dim}, one document of {len}"));
        }
    }
}

#[test]
fn long_rows_are_added_up_in_blocks() {
    let mut random = Random(2);
    for dim in [511, 512, 513, 1024, 1025, 4096] {
        let (q, d): (Vec<f16>, Vec<f16>) = (random.matrix(17, dim), random.matrix(52, dim));
        let (q, d) = (packed(&q, &[16, 1], dim), packed(&d, &[1, 51], dim));
        check(&q, &d, &Pairing::cross(), &format!("dim {dim}"));
    }
}

fn every_layout_and_pairing<T: Element>() {
    let mut random = Random(3);
    let (n_queries, n_documents, dim) = (3, 6, 20);
    let q: Vec<T> = random.matrix(n_queries * 70, dim);
    let d: Vec<T> = random.matrix(n_documents * 60, dim);
    let (q_mask, d_mask) = (random.mask(n_queries * 70), random.mask(n_documents * 60));
    let padded = |data, n, len, lens: &[i32]| {
        Tokens::<T>::padded(data, n, len, dim).unwrap().with_lengths(lens).unwrap()
    };
    let scattered = |data, starts: &[i32], lens: &[i32]| {
        Tokens::<T>::scattered(data, dim, starts, lens).unwrap()
    };
    let queries = [
        padded(&q, n_queries, 70, &[70, 0, 5]),
        packed(&q, &[140, 1, 69], dim),
        scattered(&q, &[100, 3, 3], &[33, 64, 5]),
    ];
    let documents = [
        padded(&d, n_documents, 60, &[60, 2, 0, 30, 59, 1]),
        packed(&d, &[100, 0, 48, 1, 90, 3], dim),
        scattered(&d, &[300, 10, 0, 200, 50, 0], &[60, 50, 0, 1, 150, 49]),
    ];
    let pairings = [
        Pairing::cross(),
        Pairing::own_candidates(2),
        Pairing::candidates(&[5, 0, 0, 3, 1, 4, 2, 2, 5], 3).unwrap(),
        Pairing::pairs(&[2, 2, 0, 1, 2, 0, 0], &[4, 3, 3, 5, 0, 1, 1]).unwrap(),
        Pairing::pairs::<i32>(&[], &[]).unwrap(),
    ];
    for q in &queries {
        for d in &documents {
            for pairing in &pairings {
                let what = format!("{:?}\n{:?}\n{pairing:?}", q.layout(), d.layout());
                let q_masked = q.clone().with_mask(&q_mask[..]).unwrap();
                let d_masked = d.clone().with_mask(&d_mask[..]).unwrap();
                check(q, d, pairing, &what);
                check(&q_masked, d, pairing, &what);
                check(q, &d_masked, pairing, &what);
                check(&q_masked, &d_masked, pairing, &what);
            }
        }
    }
}

#[test]
fn every_layout_and_pairing_f16() {
    every_layout_and_pairing::<f16>();
}

#[test]
fn every_layout_and_pairing_bf16() {
    every_layout_and_pairing::<bf16>();
}

#[test]
fn every_layout_and_pairing_f32() {
    every_layout_and_pairing::<f32>();
}

/// Numbers that need rounding, the same for every row.
fn rounded_row(dim: usize) -> Vec<f32> {
    (0..dim).map(|k| ((k * 7919 + 13) % 1009) as f32 / 761.0 - 0.6).collect()
}

#[test]
fn identical_rows_tie_wherever_they_lie() {
    for dim in [1, 3, 4, 7, 64, 128, 129, 515] {
        let q: Vec<f32> = (0..50 * dim).map(|i| ((i * 31) % 257) as f32 / 99.0 - 1.1).collect();
        let d = rounded_row(dim).repeat(400);
        let q = packed(&q, &[1, 49], dim);
        let lens = [1, 2, 3, 47, 1, 48, 49, 100, 149];
        let scores = engine(&q, &packed(&d, &lens, dim), &Pairing::cross());
        assert!(scores.winners().unwrap().iter().all(|&w| w == 0), "dim {dim}");
        for query_scores in scores.values().chunks(lens.len()) {
            assert!(bits(query_scores).iter().all(|&b| b == query_scores[0].to_bits()));
        }
        // The same rows apart, so that they are copied, and beside a better one.
        let starts: Vec<i64> = (0..50).map(|i| i * 7).collect();
        let d = Tokens::scattered(&d, dim, &starts, &[3i64; 50]).unwrap();
        let apart = engine(&q, &d, &Pairing::cross());
        assert_eq!(apart.values()[0].to_bits(), scores.values()[0].to_bits());
        assert!(apart.winners().unwrap().iter().all(|&w| w == 0), "dim {dim}, apart");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut random = Random(4);
    let dim = 64;
    let lens: Vec<usize> = (0..300).map(|_| random.below(90)).collect();
    let value = |i: usize| ((i * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let q: Vec<f32> = (0..15 * 33 * dim).map(value).collect();
    let d: Vec<f32> = (0..lens.iter().sum::<usize>() * dim).map(|i| value(i + 77)).collect();
    let (q, d) = (packed(&q, &[33; 15], dim), packed(&d, &lens, dim));
    let ids: Vec<i32> = (0..15 * 40).map(|_| random.below(300) as i32).collect();
    for pairing in [Pairing::cross(), Pairing::candidates(&ids, 40).unwrap()] {
        let on = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| engine(&q, &d, &pairing))
        };
        let one = on(1);
        for n_threads in [1, 2, 3] {
            assert_same(&on(n_threads), &one, &format!("{n_threads} threads"));
        }
    }
}

#[test]
fn gradients_do_not_depend_on_the_number_of_threads() {
    let mut random = Random(5);
    let (dim, n_rows) = (40, 500);
    let value = |i: usize| ((i * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let q: Vec<f32> = (0..15 * 33 * dim).map(value).collect();
    let d: Vec<f32> = (0..n_rows * dim).map(|i| value(i + 77)).collect();
    // Documents overlap here and there: runs of one document and of several.
    let starts: Vec<i64> = (0..300).map(|_| random.below(n_rows - 4) as i64).collect();
    let lens: Vec<i64> = (0..300).map(|_| random.below(5) as i64).collect();
    let (q, d) = (packed(&q, &[33; 15], dim), Tokens::scattered(&d, dim, &starts, &lens).unwrap());
    let cross = Pairing::cross();
    let problem = Problem::new(q.layout(), d.layout(), &cross).unwrap();
    let scores = engine(&q, &d, &cross);
    let winners = scores.winners().unwrap();
    let grad_scores: Vec<f32> = (0..scores.values().len()).map(|p| value(p + 5)).collect();
    let on = |n_threads| {
        let mut gradients = [vec![0.0; q.data().len()], vec![0.0; d.data().len()]];
        let [of_queries, of_documents] = &mut gradients;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let outputs = [&mut of_queries[..], &mut of_documents[..], &mut []];
            let options = ScoreOptions::default();
            add_gradients(
                &problem,
                matrix(&q),
                matrix(&d),
                winners,
                &grad_scores,
                outputs,
                &options,
            )
        })
        .unwrap();
        gradients.map(|gradient| bits(&gradient))
    };
    let one = on(1);
    assert!(one.iter().all(|gradient| gradient.iter().any(|&x| x != 0)));
    for n_threads in [1, 2, 3, 8] {
        assert!(on(n_threads) == one, "{n_threads} threads");
    }
}

#[test]
fn scores_do_not_depend_on_the_pairing() {
    let value = |i: usize| ((i * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let (q, d): (Vec<f32>, Vec<f32>) =
        ((0..130 * 40).map(value).collect(), (0..500 * 40).map(|i| value(i + 9)).collect());
    let (q, d) = (packed(&q, &[100, 30], 40), packed(&d, &[3, 200, 1, 296], 40));
    let cross = engine(&q, &d, &Pairing::cross());
    for p in 0..8 {
        let pair = Pairing::pairs(&[p / 4], &[p % 4]).unwrap();
        let alone = engine(&q, &d, &pair);
        assert_eq!(alone.values()[0].to_bits(), cross.values()[p as usize].to_bits());
    }
}

#[test]
fn nan_shows_where_it_is_valid_and_nowhere_else() {
    let (dim, nan) = (8, f32::NAN);
    let mut random = Random(5);
    let q: Vec<f32> = random.matrix(20, dim);
    let mut d: Vec<f32> = random.matrix(120, dim);
    // Rows 0 and 119 belong to no document, 10 and 70 are masked, 60 counts.
    for row in [0, 119, 10, 70, 60] {
        d[row * dim + 3] = nan;
    }
    let mut mask = vec![1u8; 120];
    mask[10] = 0;
    mask[70] = 0;
    let d = Tokens::scattered(&d, dim, &[1, 51, 69], &[50, 18, 50]).unwrap();
    let d = d.with_mask(mask).unwrap();
    let mut q_with_nan = q.clone();
    q_with_nan[7 * dim] = nan;
    let mut q_mask = vec![1u8; 20];
    q_mask[7] = 0;
    let masked = packed(&q_with_nan, &[20], dim).with_mask(q_mask).unwrap();
    for q in [packed(&q, &[20], dim), masked] {
        let scores = engine(&q, &d, &Pairing::cross());
        assert_same(&scores, &definition(&q, &d, &Pairing::cross()), "NaN");
        assert!(!scores.values()[0].is_nan());
        assert!(scores.values()[1].is_nan());
        assert!(!scores.values()[2].is_nan());
        let valid = scores.winners().unwrap()[20..40].iter().filter(|&&w| w >= 0);
        assert!(valid.copied().all(|w| w == 9));
    }
    let q = packed(&q_with_nan, &[20], dim);
    let scores = engine(&q, &d, &Pairing::cross());
    assert!(scores.values().iter().all(|s| s.is_nan()));
}

#[test]
fn infinities_zeros_and_empty_items() {
    let (dim, inf) = (4, f32::INFINITY);
    let q = [1.0, 0.0, 0.0, 0.0f32];
    let row = |x: f32| [x, 1.0, 1.0, 1.0f32];
    let d = [-inf, -inf, -5.0, inf, -0.0, 0.0, -1.0].map(row).concat();
    let starts = [0, 0, 2, 4, 3, 3];
    let d = Tokens::scattered(&d, dim, &starts, &[2, 3, 2, 2, 0, 1]).unwrap();
    let q = packed(&q, &[1, 0], dim);
    let scores = engine(&q, &d, &Pairing::cross());
    assert_eq!(scores.values()[..6], [-inf, -5.0, inf, 0.0, 0.0, inf]);
    assert_eq!(scores.values()[6..], [0.0; 6]);
    assert_eq!(scores.winners().unwrap(), [0, 2, 1, 0, -1, 0]);
    let masked = packed(&[1.0f32; 8], &[2], dim).with_mask(vec![0, 0]).unwrap();
    let scores = engine(&q, &masked, &Pairing::cross());
    assert_eq!((scores.values(), scores.winners().unwrap()), (&[0.0, 0.0][..], &[-1][..]));
}
