//! Scores that do not depend on whether winners are asked for, to the bit.

use half::{bf16, f16};
use maxsim::format::Element;
use maxsim::{Device, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_kernels::table::forward::{FORWARD, RowOperation};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;

/// Numbers whose products and sums are rounded everywhere.
fn numbers<T: Element>(n: usize, seed: u32) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| T::from_f32(next())).collect()
}

/// Queries of these lengths and documents of a length.
fn check<T: Element>(
    device: &Device,
    lens: &[i64],
    (n, len, dim): (usize, usize, usize),
) -> Result<(), String> {
    let offsets: Vec<i64> = (0..=lens.len()).map(|i| lens[..i].iter().sum()).collect();
    let rows = offsets[lens.len()] as usize;
    let queries: Vec<T> = numbers(rows * dim, 1);
    let layout = TokenLayout::packed(rows, dim, &offsets).map_err(text)?;
    let queries = Tokens::from_layout(&queries, layout).map_err(text)?;
    let documents: Vec<T> = numbers(n * len * dim, 2);
    let documents = Tokens::padded(&documents, n, len, dim).map_err(text)?;
    for normalize in [false, true] {
        let plain = ScoreOptions::default().normalize(normalize).consistent(true);
        let cross = Pairing::cross();
        let scores = |options: &ScoreOptions| {
            device.score_with(&queries, &documents, &cross, options).map_err(text)
        };
        let (plain, found) = (scores(&plain)?, scores(&plain.clone().winners(true))?);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        if bits(plain.values()) != bits(found.values()) {
            return Err(format!("{device}, {lens:?} × {n} × {len} × {dim}: other bits"));
        }
    }
    Ok(())
}

#[test]
fn scores_have_the_bits_of_calls_with_winners() {
    for device in cuda_devices() {
        for lens in
            [&[32][..], &[32; 4], &[8, 8], &[1], &[17, 3, 60], &[64; 5], &[100, 300], &[48; 9]]
        {
            for shape in
                [(8, 128, 128), (1000, 300, 128), (3, 5000, 128), (100, 64, 96), (9, 33, 320)]
            {
                check::<f16>(device, lens, shape).unwrap();
                check::<bf16>(device, lens, shape).unwrap();
                check::<f32>(device, lens, shape).unwrap();
            }
        }
    }
}

/// The table says which kernels give a pair of rows the same bits.
#[test]
fn kernels_that_add_products_alike_agree() {
    fn check<T: Element>(device: &Device) {
        let (n, len, dim) = (40, 100, 128);
        let query: Vec<T> = numbers(dim, 3);
        let query = Tokens::padded(&query, 1, 1, dim).unwrap();
        let documents: Vec<T> = numbers(n * len * dim, 4);
        let documents = Tokens::padded(&documents, n, len, dim).unwrap();
        let (query, documents) =
            (device.upload(&query).unwrap(), device.upload(&documents).unwrap());
        let mut found: Vec<(&str, _, Vec<u32>)> = Vec::new();
        for row in FORWARD {
            let options = ScoreOptions::default().kernel(row.name).winners(row.winners);
            let options = options.normalize(row.normalizes()).allow_tf32(row.tf32);
            let pairing = Pairing::cross();
            // Kernels of other operands, or that cannot run these.
            let Ok(scores) = device.score_with(&query, &documents, &pairing, &options) else {
                continue;
            };
            let operation = match row.normalizes() {
                true => RowOperation::Normalized,
                false => row.row_operation,
            };
            let class = (row.products(), operation, row.tf32);
            let bits: Vec<u32> = scores.values().iter().map(|v| v.to_bits()).collect();
            match found.iter().find(|(_, other, _)| *other == class) {
                Some((name, _, expected)) => assert_eq!(&bits, expected, "{} and {name}", row.name),
                None => found.push((row.name, class, bits)),
            }
        }
        assert!(!found.is_empty(), "kernels of {} have run", T::TYPE);
    }
    for device in cuda_devices() {
        check::<f16>(device);
        check::<bf16>(device);
        check::<f32>(device);
    }
}
