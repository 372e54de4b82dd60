//! e4m3 numbers as f16, for tensor cores that multiply no e4m3 (compute capability below 8.9).
//!
//! Both have the same fields, f16 longer ones: four of its five bits of exponent and three of its
//! ten of fraction hold those of e4m3, subnormal numbers too. As the exponents' biases are 7 and
//! 15, such an f16 number is 2⁻⁸ of the e4m3 number, and a product of two [`PRODUCT`] of theirs:
//! all are powers of two, so sums of products are multiplied at their end and nothing is rounded.
//! The fifth bit of exponent is set for NaN, whose other four are all set already.
//!
//! A step of the kernels has 32 bytes of a row, two chunks of 16, of which `ldmatrix` gives a lane
//! four neighbouring bytes each. A product of f16 fragments takes 16 elements: here those of one
//! chunk, the even bytes of every four first. That is not their order, but that of both sides.

/// Factor of the sums of products of numbers of [`halves`]: 2¹⁶.
pub const PRODUCT: f32 = 65536.0;

/// The numbers of four codes times 2⁻⁸, as f16: of bytes 0 and 2, and of bytes 1 and 3.
#[inline(always)]
pub const fn halves(codes: u32) -> [u32; 2] {
    const SIGNS: u32 = 0x8000_8000;
    let magnitudes = codes & 0x7F7F_7F7F;
    // The largest magnitude is NaN: one more, and the byte's topmost bit is set.
    let marked = magnitudes | (magnitudes + 0x0101_0101) & 0x8080_8080;
    [
        (marked & 0x00FF_00FF) << 7 | (codes << 8) & SIGNS,
        (marked & 0xFF00_FF00) >> 1 | codes & SIGNS,
    ]
}

/// The fragments of 16 query rows for either chunk of a step, of what `ldmatrix` brings: rows 0 to
/// 7 and 8 to 15 of the first chunk, then of the second.
#[inline(always)]
pub const fn row_fragments(a: [u32; 4]) -> [[u32; 4]; 2] {
    let [top, bottom] = [halves(a[0]), halves(a[1])];
    let first = [top[0], bottom[0], top[1], bottom[1]];
    let [top, bottom] = [halves(a[2]), halves(a[3])];
    [first, [top[0], bottom[0], top[1], bottom[1]]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::quantize::e4m3_value;

    fn power_of_two(exponent: i32) -> f32 {
        f32::from_bits(((127 + exponent) as u32) << 23)
    }

    /// The number of f16 bits.
    fn f16_value(bits: u32) -> f32 {
        let (exponent, fraction) = (bits >> 10 & 31, (bits & 1023) as f32 / 1024.0);
        let value = match exponent {
            0 => fraction * power_of_two(-14),
            31 => f32::NAN,
            _ => (1.0 + fraction) * power_of_two(exponent as i32 - 15),
        };
        if bits & 0x8000 == 0 { value } else { -value }
    }

    #[test]
    fn every_code_keeps_its_number_in_every_byte() {
        for code in 0..=u8::MAX {
            // Neighbours that set, and clear, all bits around it.
            for other in [0x00, 0x7E, 0x7F, 0x80, 0xFF] {
                for byte in 0..4 {
                    let mut codes = [other; 4];
                    codes[byte] = code;
                    let halves = halves(u32::from_le_bytes(codes));
                    let found = f16_value(halves[byte % 2] >> (16 * (byte / 2)) & 0xFFFF) * 256.0;
                    let expected = e4m3_value(code);
                    let is_same = found.to_bits() == expected.to_bits();
                    assert!(is_same || found.is_nan() && expected.is_nan(), "{code:#x}: {found}");
                }
            }
        }
    }

    /// Register `register` of lane `lane` of matrices of 8 rows of 16 bytes, as `ldmatrix` brings
    /// them.
    fn load_matrix(rows: &[[u8; 32]; 16], lane: usize, matrices: [[usize; 2]; 4]) -> [u32; 4] {
        matrices.map(|[first_row, chunk]| {
            let row = &rows[first_row + lane / 4][16 * chunk + lane % 4 * 4..];
            u32::from_le_bytes([row[0], row[1], row[2], row[3]])
        })
    }

    /// The sum that a product of fragments has for row `row` and token `token` of 8, by the layout
    /// that the PTX ISA gives for `mma.m16n8k16` of f16.
    fn product(a: &[[u32; 4]; 32], b: &[[u32; 2]; 32], row: usize, token: usize) -> f32 {
        let half = |register: u32, i: usize| f16_value(register >> (16 * i) & 0xFFFF);
        (0..16)
            .map(|k| {
                let lane = k % 8 / 2;
                let of_row = a[row % 8 * 4 + lane][row / 8 + k / 8 * 2];
                half(of_row, k % 2) * half(b[token * 4 + lane][k / 8], k % 2)
            })
            .sum()
    }

    #[test]
    fn fragments_of_a_step_add_up_to_its_dot_products() {
        let code = |i: usize| (i * 89 % 127 + i / 7 % 2 * 128) as u8;
        let rows: [[u8; 32]; 16] =
            core::array::from_fn(|r| core::array::from_fn(|k| code(32 * r + k)));
        let tokens: [[u8; 32]; 16] =
            core::array::from_fn(|t| core::array::from_fn(|k| code(1000 + 37 * t + 3 * k)));
        // As the lane addresses of the kernels have them.
        let of_rows = |lane| load_matrix(&rows, lane, [[0, 0], [8, 0], [0, 1], [8, 1]]);
        let of_tokens = |lane| load_matrix(&tokens, lane, [[0, 0], [0, 1], [8, 0], [8, 1]]);
        let a: [[[u32; 4]; 2]; 32] = core::array::from_fn(|lane| row_fragments(of_rows(lane)));
        let b: [[[u32; 2]; 4]; 32] = core::array::from_fn(|lane| of_tokens(lane).map(halves));
        for (r, row) in rows.iter().enumerate() {
            for (t, token) in tokens.iter().enumerate() {
                let chunk = |i: usize| {
                    let (a, b) = (a.map(|a| a[i]), b.map(|b| b[t / 8 * 2 + i]));
                    product(&a, &b, r, t % 8)
                };
                let found = f64::from((chunk(0) + chunk(1)) * PRODUCT);
                let products = row.iter().zip(token);
                let products =
                    products.map(|(&q, &d)| f64::from(e4m3_value(q)) * f64::from(e4m3_value(d)));
                let (sum, size) = products.fold((0.0, 0.0), |(s, a), x| (s + x, a + x.abs()));
                assert!((found - sum).abs() <= 1e-6 * size, "{r}, {t}: {found}, not {sum}");
            }
        }
    }
}
