//! Every kernel that this CPU can run against plain sums.

use super::*;
use crate::linalg::gemm::{LANES, PANEL_LEN, TILE_LEN};

/// Small numbers whose products need rounding in f32.
fn value(i: usize) -> f32 {
    ((i * 2_654_435_761) % 1009) as f32 / 761.0 - 0.6
}

fn kernels() -> impl Iterator<Item = &'static Kernel> {
    TABLE.iter().filter(|kernel| {
        let is_available = kernel.set.is_available();
        if !is_available {
            println!("SKIPPED: this CPU has no {} for {:?}", kernel.set.name(), kernel.operand);
        }
        is_available
    })
}

/// Elements of a group, as numbers: rows may have no sign in bytes, panels do.
fn elements(operand: Operand, group: u32, is_row: bool) -> Vec<f64> {
    match operand {
        Operand::F32 => vec![f64::from(f32::from_bits(group))],
        Operand::Bf16 => {
            [group << 16, group & 0xFFFF_0000].map(|x| f64::from(f32::from_bits(x))).to_vec()
        }
        Operand::Words => [group as i16, (group >> 16) as i16].map(f64::from).to_vec(),
        Operand::Bytes if is_row => group.to_le_bytes().map(f64::from).to_vec(),
        Operand::Bytes | Operand::SignedBytes => {
            group.to_le_bytes().map(|x| f64::from(x as i8)).to_vec()
        }
    }
}

/// Groups of an operand, with the largest numbers among them.
fn groups(operand: Operand, n: usize, seed: usize, is_row: bool) -> Vec<u32> {
    let random = |i: usize| ((i + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 29;
    let of = |i: usize| match operand {
        Operand::F32 => value(i + seed).to_bits(),
        Operand::Bf16 => {
            let [a, b] = [2 * i, 2 * i + 1].map(|i| value(i + seed).to_bits() >> 16);
            a | b << 16
        }
        // Sums of the largest bytes that kernels of words are given.
        Operand::Words => {
            let [a, b] = [random(i) as u8, (random(i) >> 8) as u8];
            let word = |x: u8| if is_row { i16::from(x) } else { i16::from(x as i8) } as u16;
            u32::from(word(a)) | u32::from(word(b)) << 16
        }
        Operand::Bytes | Operand::SignedBytes => random(i) as u32,
    };
    let extreme = if is_row && operand == Operand::Bytes { u32::MAX } else { 0x8080_8080 };
    let is_extreme = |i: usize| operand.group() == 4 && i.is_multiple_of(3);
    (0..n).map(|i| if is_extreme(i) { extreme } else { of(i) }).collect()
}

/// Runs a kernel over all of a tile's groups.
fn run(
    kernel: &Kernel,
    (panel, width): (&[u32], usize),
    (rows, groups): (&[u32], usize),
    plus: Plus<'_>,
    before: u32,
) -> Vec<u32> {
    let mut products = vec![before; rows.len() / groups * width];
    let ahead = bytemuck::cast_slice(rows);
    let (block, products_of) = (0..groups, &mut products[..]);
    kernel.multiply(Tile { panel, width, rows, groups, block, plus, ahead, products: products_of });
    products
}

#[test]
fn products_are_sums_of_products() {
    for kernel in kernels() {
        let operand = kernel.operand;
        for n_groups in [1, 2, 3, 4, 16, 17, 31, 32, 33, 128] {
            let n_groups = kernel.groups(n_groups * operand.group());
            for width in (LANES..=PANEL_LEN).step_by(LANES) {
                let panel = groups(operand, n_groups * width, 1, false);
                for n_rows in [1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 47, TILE_LEN] {
                    let rows = groups(operand, n_groups * n_rows, 77, true);
                    let sides = ((&panel[..], width), (&rows[..], n_groups));
                    let found = run(kernel, sides.0, sides.1, Plus::Nothing, 7);
                    for (i, &found) in found.iter().enumerate() {
                        let (t, s) = (i / width, i % width);
                        let terms = (0..n_groups).flat_map(|k| {
                            let a = elements(operand, panel[k * width + s], false);
                            let b = elements(operand, rows[t * n_groups + k], true);
                            a.into_iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>()
                        });
                        let (sum, size) = terms.fold((0.0, 0.0), |(a, b), x| (a + x, b + x.abs()));
                        let what = format!("{kernel:?}, {n_groups} × {width}, {n_rows} rows");
                        if operand.is_integer() {
                            assert_eq!(f64::from(found as i32), sum, "{what}");
                        } else {
                            let found = f64::from(f32::from_bits(found));
                            assert!((found - sum).abs() <= 2e-6 * size, "{what}: {found}, {sum}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sums_are_added_to_what_is_said() {
    for kernel in kernels() {
        let operand = kernel.operand;
        let (width, n_groups) = (48, 5);
        let number = |x: i32| if operand.is_integer() { x as u32 } else { (x as f32).to_bits() };
        let back = |x: u32| if operand.is_integer() { x as i32 as f32 } else { f32::from_bits(x) };
        let panel = groups(operand, n_groups * width, 3, false);
        for n_rows in [1, 7, 9, TILE_LEN] {
            let rows = groups(operand, n_groups * n_rows, 5, true);
            let sides = ((&panel[..], width), (&rows[..], n_groups));
            let plain = run(kernel, sides.0, sides.1, Plus::Nothing, 0);
            let columns: Vec<u32> = (0..width as i32).map(|s| number(100 * s)).collect();
            let more = run(kernel, sides.0, sides.1, Plus::Columns(&columns), 0);
            for (i, &plain) in plain.iter().enumerate() {
                let expected = back(plain) + (100 * (i % width)) as f32;
                assert_eq!(back(more[i]), expected, "{kernel:?}");
            }
            if kernel.at_once != ONE_BY_ONE {
                continue;
            }
            let again = run(kernel, sides.0, sides.1, Plus::Products, number(1000));
            for (again, &plain) in again.into_iter().zip(&plain) {
                assert_eq!(back(again), back(plain) + 1000.0, "{kernel:?}");
            }
        }
    }
}

/// Instruction sets with fused multiply-adds add f32 up alike.
#[test]
fn f32_has_the_same_bits_on_every_instruction_set() {
    let fused =
        |kernel: &&Kernel| kernel.operand == Operand::F32 && kernel.set != InstructionSet::Portable;
    let (width, dim) = (LANES, 131);
    let panel = groups(Operand::F32, dim * width, 3, false);
    let rows = groups(Operand::F32, dim * 9, 5, true);
    let expected: Vec<u32> = (0..9 * width)
        .map(|i| {
            let (t, s) = (i / width, i % width);
            let sum = (0..dim).fold(0.0f32, |sum, k| {
                f32::from_bits(panel[k * width + s]).mul_add(f32::from_bits(rows[t * dim + k]), sum)
            });
            sum.to_bits()
        })
        .collect();
    for kernel in kernels().filter(fused) {
        let found = run(kernel, (&panel, width), (&rows, dim), Plus::Nothing, 0);
        assert_eq!(found, expected, "{kernel:?}");
    }
}

#[test]
fn the_environment_limits_kernels_by_name() {
    assert_eq!(limit_of(None), Ok(InstructionSet::best()));
    assert_eq!(limit_of(Some("")), Ok(InstructionSet::best()));
    assert_eq!(limit_of(Some("portable")), Ok(InstructionSet::Portable));
    assert_eq!(limit_of(Some("sse9")), Err("sse9".into()));
    let portable = Kernels::new(InstructionSet::Portable);
    for kernel in [portable.f32, portable.signed, portable.unsigned] {
        assert_eq!(kernel.set, InstructionSet::Portable);
    }
    assert!(portable.bf16.is_none());
    for set in InstructionSet::available() {
        let kernels = Kernels::new(set);
        for kernel in [kernels.f32, kernels.signed, kernels.unsigned] {
            assert!(kernel.set <= set, "{kernel:?}");
        }
        assert_eq!(limit_of(Some(set.name())), Ok(set));
    }
}

/// Products of every kernel in turn, of shapes that differ, while another is held.
#[test]
fn kernels_that_are_held_take_turns() {
    let kernels: Vec<_> = kernels().collect();
    let mut holds = Vec::new();
    for round in 0..3 {
        for kernel in &kernels {
            let operand = kernel.operand;
            let n_groups = kernel.groups((5 + 40 * round) * operand.group());
            let (width, n_rows) = (LANES, 3 + 20 * round);
            let panel = groups(operand, n_groups * width, 3, false);
            let rows = groups(operand, n_groups * n_rows, 5, true);
            let sides = ((&panel[..], width), (&rows[..], n_groups));
            let alone = run(kernel, sides.0, sides.1, Plus::Nothing, 0);
            holds.push(kernel.hold());
            for _ in 0..2 {
                let held = run(kernel, sides.0, sides.1, Plus::Nothing, 0);
                assert_eq!(held, alone, "{kernel:?}");
            }
            holds.truncate(round);
        }
    }
}

/// Rows are as long as steps of equal length are.
#[test]
fn rows_are_padded_to_equal_steps() {
    for kernel in TABLE {
        let of = kernel.operand.group();
        for n_groups in [1, 15, 16, 17, 24, 32, 33, 37, 64, 1000] {
            for dim in [n_groups * of, n_groups * of - (of - 1)] {
                let padded = kernel.groups(dim);
                let steps = n_groups.div_ceil(kernel.at_once);
                assert!(padded.is_multiple_of(steps) && padded / steps <= kernel.at_once);
                assert!(n_groups <= padded && padded < n_groups + steps, "{kernel:?}, {dim}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "left == right")]
fn lengths_are_compared() {
    let (panel, rows) = (vec![0; 16 * 4], vec![0; 4 * 3]);
    let kernel = Kernels::new(InstructionSet::best()).f32;
    let mut products = [0; 16 * 2];
    let (panel, rows, products) = (&panel[..], &rows[..], &mut products[..]);
    let (width, groups, block, plus) = (16, 4, 0..4, Plus::Nothing);
    kernel.multiply(Tile { panel, width, rows, groups, block, plus, ahead: &[], products });
}
