//! Tokens of one byte per element: the formulas of their codes, the same on every engine.
//!
//! ```text
//! INT8         scale = max(absmax, 10⁻⁸) / 127       code = rint(x / scale), -127 to 127
//! INT8 affine  scale = max(10⁻⁸, (max − min) / 255)  code = rint((x − min) / scale), 0 to 255
//! FP8 e4m3     scale = max(amax, 10⁻⁶) / 448         code = nearest e4m3 of x / scale, saturating
//! ```
//!
//! All in f32, rounded to nearest with ties to even, quotients as IEEE divides. Scales (and the
//! minimum) are rounded to what they are stored as *before* codes are made of them, so codes are
//! those of the numbers that they will be read with. An f16 scale is clamped to 2⁻²⁴ … 65504.
//!
//! What is no number must show in the score: a row of INT8 with a NaN or an infinity has the scale
//! NaN and codes 0. e4m3 has a NaN of its own, 0x7F, and no infinity: elements that are not finite
//! become that, and count for no scale.
//!
//! On a device, `maxsim_quantize_*` makes codes of rows that are there.

/// The largest code of INT8; the smallest is its negative.
pub const INT8_MAX: f32 = 127.0;

/// The largest code of INT8 affine; the smallest is 0.
pub const AFFINE_MAX: f32 = 255.0;

/// The largest number of e4m3.
pub const E4M3_MAX: f32 = 448.0;

/// e4m3's NaN, of the sign that quantisers give it.
pub const E4M3_NAN: u8 = 0x7F;

/// The least scale that f16 can store: its smallest number above 0, 2⁻²⁴.
pub const F16_SCALE_MIN: f32 = 5.960_464_5e-8;

/// The largest scale that f16 can store, and the largest minimum.
pub const F16_MAX: f32 = 65504.0;

/// The bits of +∞: those of a magnitude that is no finite number are not below.
const INFINITY_BITS: u32 = 0x7F80_0000;

/// The NaN of scales, so that equal rows have equal bits.
const NAN: f32 = f32::from_bits(0x7FC0_0000);

/// NaN as f16.
pub const F16_NAN: u32 = 0x7E00;

/// 1.5 · 2²³: f32 numbers of this size have no fraction, so a sum with it is rounded to a whole
/// number, to nearest with ties to even.
const WHOLE: f32 = 12_582_912.0;

/// The bits of |x|. Their order is that of the numbers, infinities and then NaN behind them, so a
/// row's largest may be found in any order.
#[inline(always)]
pub const fn magnitude_bits(x: f32) -> u32 {
    x.to_bits() & 0x7FFF_FFFF
}

/// Whether the magnitude of these bits is a finite number's.
#[inline(always)]
pub const fn is_finite(magnitude_bits: u32) -> bool {
    magnitude_bits < INFINITY_BITS
}

/// The scale of an INT8 row by its largest [`magnitude_bits`], before it is rounded to its storage.
#[inline(always)]
pub const fn int8_scale(largest: u32) -> f32 {
    if !is_finite(largest) {
        return NAN;
    }
    let largest = f32::from_bits(largest);
    (if largest > 1e-8 { largest } else { 1e-8 }) / INT8_MAX
}

/// The scale of an affine row by its least and largest element and the largest
/// [`magnitude_bits`], before it is rounded to its storage.
#[inline(always)]
pub const fn affine_scale(min: f32, max: f32, largest: u32) -> f32 {
    if !is_finite(largest) {
        return NAN;
    }
    let step = (max - min) / AFFINE_MAX;
    if step > 1e-8 { step } else { 1e-8 }
}

/// Number that an affine row's codes start from, before it is rounded to f16: its least element, of
/// zeros the positive one.
#[inline(always)]
pub const fn affine_min(min: f32, largest: u32) -> f32 {
    if !is_finite(largest) {
        return 0.0;
    }
    let min = if min < -F16_MAX { -F16_MAX } else { min };
    (if min > F16_MAX { F16_MAX } else { min }) + 0.0
}

/// The scale of FP8 rows by the largest [`magnitude_bits`] of their *finite* elements, before it is
/// rounded to its storage.
#[inline(always)]
pub const fn fp8_scale(largest: u32) -> f32 {
    let largest = f32::from_bits(largest);
    (if largest > 1e-6 { largest } else { 1e-6 }) / E4M3_MAX
}

/// A scale as f16 can store it once it is rounded; NaN stays.
#[inline(always)]
pub const fn clamped_to_f16(scale: f32) -> f32 {
    let scale = if scale < F16_SCALE_MIN { F16_SCALE_MIN } else { scale };
    if scale > F16_MAX { F16_MAX } else { scale }
}

/// `x` as a whole number of at most `most` in magnitude; 0 of NaN.
#[inline(always)]
const fn whole(x: f32, least: f32, most: f32) -> i32 {
    // Clamped first: the limits are whole numbers, so it is the same, and the sum stays small.
    let x = if x < least { least } else { x };
    let x = if x > most { most } else { x };
    // As the bits have it, and not by a conversion, which is slow for many at a time.
    let sum = x + WHOLE;
    if sum.is_nan() { 0 } else { sum.to_bits() as i32 - WHOLE.to_bits() as i32 }
}

/// The INT8 code of an element, with the scale as it is stored.
#[inline(always)]
pub const fn int8_code(x: f32, scale: f32) -> i8 {
    whole(x / scale, -INT8_MAX, INT8_MAX) as i8
}

/// The INT8 affine code of an element, with scale and minimum as they are stored.
#[inline(always)]
pub const fn affine_code(x: f32, scale: f32, min: f32) -> u8 {
    whole((x - min) / scale, 0.0, AFFINE_MAX) as u8
}

/// The FP8 code of an element, with the scale as it is stored.
#[inline(always)]
pub const fn fp8_code(x: f32, scale: f32) -> u8 {
    if !is_finite(magnitude_bits(x)) {
        return E4M3_NAN;
    }
    e4m3(x / scale)
}

/// The e4m3 number nearest to `x`, ties to even, saturating at ±448 (±∞ too); NaN of NaN.
///
/// e4m3 (OCP 8-bit floating point specification, 1.0): sign, 4 bits of exponent with bias 7, 3 of
/// fraction; subnormal numbers in steps of 2⁻⁹; no infinity, and 0x7F and 0xFF are NaN.
#[inline(always)]
pub const fn e4m3(x: f32) -> u8 {
    let magnitude = magnitude_bits(x);
    if magnitude > INFINITY_BITS {
        return E4M3_NAN;
    }
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let code = if magnitude < SMALLEST_NORMAL.to_bits() {
        // A whole number of steps of 2⁻⁹; eight of them are the smallest normal number's code.
        whole(f32::from_bits(magnitude) * 512.0, 0.0, 8.0) as u32
    } else {
        // Rounded at the third fraction bit; a carry moves into the exponent, as it should.
        let rounded = magnitude + 0x7_FFFF + ((magnitude >> 20) & 1);
        (rounded >> 20) - ((127 - 7) << 3)
    };
    sign | if code > 0x7E { 0x7E } else { code as u8 }
}

/// 2⁻⁶, the smallest normal number of e4m3.
const SMALLEST_NORMAL: f32 = 0.015_625;

/// The number that an e4m3 code stands for, exactly.
#[inline(always)]
pub const fn e4m3_value(code: u8) -> f32 {
    let magnitude = (code & 0x7F) as u32;
    let value = if magnitude == E4M3_NAN as u32 {
        NAN
    } else if magnitude < 8 {
        magnitude as f32 / 512.0
    } else {
        f32::from_bits((magnitude << 20) + ((127 - 7) << 23))
    };
    if code & 0x80 == 0 { value } else { -value }
}

/// The similarity of a query's codes and an affine row, by their dot product and the sum of the
/// query's: two products and a sum, each rounded. A query's own scale is for after the maximum.
#[inline(always)]
pub const fn affine_similarity(dot: f32, scale: f32, query_sum: f32, min: f32) -> f32 {
    dot * scale + query_sum * min
}
