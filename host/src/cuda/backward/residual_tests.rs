//! The kernels that sum the tables' gradients, emulated in plain Rust: whatever the codes and the
//! windows, every row and every bucket arrives once.

use std::ops::Range;
use std::sync::Arc;

use maxsim_kernels::abi::params::backward::residual::{TABLES_WARPS, UNIT_ROWS};
use maxsim_kernels::abi::residual_chunk::{CHUNK_LEN, arranged, place};

use super::residual::window_rows_max;
use crate::cuda::buffers::residual::units;
use crate::residual::by_code::ByCode;
use crate::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use crate::tokens::layout::TokenLayout;

/// Numbers that look random.
fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut x = seed;
    move |below| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % below.max(1) as u64) as usize
    }
}

/// `tables` for each window, with `grid` blocks, and `sum`.
fn codec_gradients(
    tokens: &ResidualTokens<'_>,
    grad: &[f32],
    windows: &[Range<u32>],
    grid: u32,
) -> [Vec<f32>; 2] {
    let codec = tokens.codec();
    let (dim, nbits) = (codec.dim(), codec.nbits());
    let by_code = ByCode::new(tokens.codes(), codec.n_centroids()).expect("sorted");
    let (rows, (units, firsts)) = (by_code.rows(), units(by_code.starts()));
    let (n_units, n_warps) = (units.len() - 1, grid * TABLES_WARPS);
    let mut centroid_parts = vec![0.0; n_units * dim];
    let mut weight_parts = vec![0.0; n_warps as usize * (1 << nbits)];
    for window in windows {
        for own in 0..n_warps as usize {
            let mut shared = vec![0.0; 1 << nbits];
            for unit in (own..n_units).step_by(n_warps as usize) {
                let (start, end) = (units[unit], units[unit + 1]);
                assert!(start < end && (end - start) as usize <= UNIT_ROWS);
                let first = lower_bound(rows, start, end, window.start);
                let last = lower_bound(rows, first, end, window.end);
                for &row in &rows[first as usize..last as usize] {
                    assert!(window.contains(&row));
                    for k in 0..dim {
                        let grad = grad[row as usize * dim + k];
                        centroid_parts[unit * dim + k] += grad;
                        shared[bucket(tokens, row as usize, k)] += grad;
                    }
                }
            }
            let parts = &mut weight_parts[own << nbits..(own + 1) << nbits];
            parts.iter_mut().zip(shared).for_each(|(part, sum)| *part += sum);
        }
    }
    [sum(&centroid_parts, &firsts, dim), sum(&weight_parts, &[0, n_warps], 1 << nbits)]
}

/// As the kernel finds it.
fn lower_bound(rows: &[u32], mut start: u32, end: u32, row: u32) -> u32 {
    let mut step = UNIT_ROWS as u32;
    while step > 0 {
        let place = start + step - 1;
        if place < end && rows[place as usize] < row {
            start += step;
        }
        step /= 2;
    }
    start
}

/// The bucket of an element, of a chunk that is arranged as it is on a device.
fn bucket(tokens: &ResidualTokens<'_>, row: usize, k: usize) -> usize {
    let (codec, nbits) = (tokens.codec(), tokens.codec().nbits());
    let stored = &tokens.residuals()[row * codec.row_bytes()..][..codec.row_bytes()];
    let chunk = stored.chunks(nbits as usize).nth(k / CHUNK_LEN).expect("a chunk");
    let chunk = (0..).zip(chunk).fold(0, |chunk, (at, &byte)| {
        chunk | arranged(nbits, tokens.order(), at)[usize::from(byte)]
    });
    let (e, [low, high]) = (k % CHUNK_LEN, [chunk as u32, (chunk >> 32) as u32]);
    let word = if nbits == 8 && e >= 4 { high } else { low };
    (word >> (place(nbits, e as u32) % 32) & ((1 << nbits) - 1)) as usize
}

/// `sum`.
fn sum(parts: &[f32], firsts: &[u32], dim: usize) -> Vec<f32> {
    let row = |two: &[u32]| {
        let parts = &parts[two[0] as usize * dim..two[1] as usize * dim];
        (0..dim).map(|k| parts.iter().skip(k).step_by(dim).sum()).collect::<Vec<f32>>()
    };
    firsts.windows(2).flat_map(row).collect()
}

#[test]
fn every_row_arrives_once_in_both_tables() {
    for (turn, nbits) in [1u32, 2, 4, 8, 2, 4].into_iter().enumerate() {
        let mut draw = draws(turn as u64 + 1);
        let (dim, n_rows) = ([9, 16, 3, 20, 1, 8][turn], [700, 40, 1, 300, 2000, 0][turn]);
        let n_centroids = [2, 30, 5, 1, 3, 4][turn];
        let weights = vec![0.0; 1 << nbits];
        let centroids = Centroids::F32(vec![0.0; n_centroids * dim].into());
        let codec = ResidualCodec::new(nbits, dim, centroids, &weights, false).expect("a codec");
        // The last code of several has no rows, as a rule.
        let codes: Vec<i32> =
            (0..n_rows).map(|_| draw(n_centroids - n_centroids / 3) as i32).collect();
        let bytes: Vec<u8> = (0..n_rows * codec.row_bytes()).map(|_| draw(256) as u8).collect();
        let layout = TokenLayout::packed(n_rows, dim, &[0, n_rows as i64]).expect("a layout");
        let order = BitOrder::ALL[turn % 2];
        let codec = Arc::new(codec);
        let tokens = ResidualTokens::new(codec, codes, bytes, order, layout).expect("tokens");
        // Small integers: sums of them are exact in any order.
        let grad: Vec<f32> = (0..n_rows * dim).map(|_| draw(9) as f32 - 4.0).collect();
        let expected = tokens.backward(&grad).expect("gradients");
        for window_rows in [1, 7, 256, 5000] {
            let starts = (0..n_rows as u32).step_by(window_rows as usize);
            let windows: Vec<Range<u32>> =
                starts.map(|start| start..(start + window_rows).min(n_rows as u32)).collect();
            for grid in [1, 3] {
                let [centroids, weights] = codec_gradients(&tokens, &grad, &windows, grid);
                assert_eq!(centroids, expected.centroids, "{nbits} bits, {window_rows} rows");
                assert_eq!(weights, expected.bucket_weights, "{nbits} bits, {window_rows} rows");
            }
        }
    }
}

#[test]
fn units_are_of_one_code_each() {
    let (units, firsts) = units(&[0, 3, 3, 260, 1000]);
    assert_eq!(units, [0, 3, 259, 260, 516, 772, 1000]);
    assert_eq!(firsts, [0, 1, 1, 3, 6]);
    assert_eq!(crate::cuda::buffers::residual::units(&[0, 0]), (vec![0], vec![0, 0]));
}

#[test]
fn windows_hold_rows_of_every_dim() {
    assert_eq!(window_rows_max(128), 1 << 18);
    assert_eq!(window_rows_max(4096), 1 << 13);
}
