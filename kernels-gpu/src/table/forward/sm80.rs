//! Kernels for compute capability 8.0 and later: of elements, codes, and codes with a minimum.

#[rustfmt::skip] // one line, one kernel
macro_rules! sm80_kernels {
    ($emit:ident) => { $emit! {

    sm80_tiles {
    // entry, operand, word [slabs, warps, fragments, tile, stages, CTAs, rate]

    // Query fragments stay in registers: 64 rows × 128 dims per warp take 128 of them. A
    // ring of 5 stages of 16 KB (64 tokens × 128 dims): two CTAs fit the 164 KB of
    // compute capability 8.0, one the 100 KB of 8.6, 8.9 and 12.x.
    maxsim_forward_sm80_f16_d128_q256          F16  scores  [2 4 4 64 5 2 0.85]
    maxsim_forward_sm80_f16_d128_q256_winners  F16  winners [2 4 4 64 5 2 0.85]
    maxsim_forward_sm80_bf16_d128_q256         Bf16 scores  [2 4 4 64 5 2 0.85]
    maxsim_forward_sm80_bf16_d128_q256_winners Bf16 winners [2 4 4 64 5 2 0.85]

    // 16 rows per warp for short queries.
    maxsim_forward_sm80_f16_d128_q64          F16  scores  [2 4 1 64 5 2 0.40]
    maxsim_forward_sm80_f16_d128_q64_winners  F16  winners [2 4 1 64 5 2 0.40]
    maxsim_forward_sm80_bf16_d128_q64         Bf16 scores  [2 4 1 64 5 2 0.40]
    maxsim_forward_sm80_bf16_d128_q64_winners Bf16 winners [2 4 1 64 5 2 0.40]

    // Any dim: slabs of both sides stream, and the sums of a whole tile are in registers.
    // 32 KB a stage.
    maxsim_forward_sm80_f16_wide_q128          F16  scores  [0 4 2 128 3 2 0.55]
    maxsim_forward_sm80_f16_wide_q128_winners  F16  winners [0 4 2 128 3 2 0.55]
    maxsim_forward_sm80_bf16_wide_q128         Bf16 scores  [0 4 2 128 3 2 0.55]
    maxsim_forward_sm80_bf16_wide_q128_winners Bf16 winners [0 4 2 128 3 2 0.55]

    // Exact f32: 8 rows × 16 tokens per thread with the tallest tile; 40, 24 and 16 KB a
    // stage. The winners' search has no registers left for it.
    maxsim_forward_sm80_f32_q256         F32 scores  [0 4 4 64 2 2 0.80]
    maxsim_forward_sm80_f32_q128_winners F32 winners [0 4 2 64 3 2 0.60]
    maxsim_forward_sm80_f32_q64          F32 scores  [0 2 2 64 3 4 0.60]
    maxsim_forward_sm80_f32_q64_winners  F32 winners [0 2 2 64 3 4 0.60]

    // Normalised: one kernel for any dim, and winners whether they are asked for or not, so
    // that few files do. The shorter tile of f32 has registers for the row scales.
    maxsim_forward_sm80_f16_wide_q128_normalized  F16  normalized [0 4 2 128 3 2 0.55]
    maxsim_forward_sm80_bf16_wide_q128_normalized Bf16 normalized [0 4 2 128 3 2 0.55]
    maxsim_forward_sm80_f32_q128_normalized       F32  normalized [0 4 2  64 3 2 0.60]

    // Codes of one byte, 128 to a slab, with winners for the same reason. What follows INT8
    // products (numbers, scales, winners) takes as long as they do at dim 128, or longer, however
    // tall the tile, so the shortest serves all queries there; a third CTA fills in. For any dim
    // 24 KB a stage: with tiles of 128 tokens e4m3 spills, and INT8 has a third more code.
    maxsim_forward_sm80_i8_d128_q64_winners    I8   scaled_winners [1 4 1 64 5 3 0.40]
    maxsim_forward_sm80_i8_wide_q128_winners   I8   scaled_winners [0 4 2 64 3 2 0.35]
    maxsim_forward_sm80_e4m3_wide_q128_winners E4m3 scaled_winners [0 4 2 64 3 2 0.30]

    // Codes with a minimum, which are widened between memory and shared memory where
    // queries are elements. A stage is read while no other is requested, so that the third
    // CTA counts; codes come through registers.
    maxsim_forward_sm80_i8_affine_wide_q128_winners   I8Affine   affine_winners [0 4 2 64 3 2 0.125]
    maxsim_forward_sm80_affine_f16_d128_q64_winners   AffineF16  affine_winners [2 4 1 64 3 3 0.30]
    maxsim_forward_sm80_affine_f16_wide_q128_winners  AffineF16  affine_winners [0 4 2 64 3 2 0.25]
    maxsim_forward_sm80_affine_bf16_d128_q64_winners  AffineBf16 affine_winners [2 4 1 64 3 3 0.30]
    maxsim_forward_sm80_affine_bf16_wide_q128_winners AffineBf16 affine_winners [0 4 2 64 3 2 0.25]
    }

    } };
}
pub(crate) use sm80_kernels;
