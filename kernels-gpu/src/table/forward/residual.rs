//! Kernels that decode residual-compressed documents.

#[rustfmt::skip] // one line, one kernel
macro_rules! residual_kernels {
    ($emit:ident) => { $emit! {

    sm80_decoded {
    // entry, operand, word [warps, CTAs, rate]

    // Documents decoded in registers, for up to 32 query rows: a centroid goes straight to
    // where `mma.sync` reads it. What counts is how many are in flight.
    maxsim_forward_sm80_residual_f16_d128_q32  ResidualF16  decoded [4 2 0.40]
    maxsim_forward_sm80_residual_bf16_d128_q32 ResidualBf16 decoded [4 2 0.40]

    // The same with the centroids' share out of a table, for documents of many more tokens
    // than there are centroids. Nothing but weights is decoded, and what a lane need not hold of
    // centroids makes room for a third CTA.
    maxsim_forward_sm80_residual_f16_d128_q32_by_centroid  ResidualF16  by_centroid [4 3 0.45]
    maxsim_forward_sm80_residual_bf16_d128_q32_by_centroid ResidualBf16 by_centroid [4 3 0.45]
    }
    sm90_decoded {
    // entry, operand, word [steps, stages, tail, rate]

    // Documents decoded into shared memory: what counts is how many centroids are in
    // flight, so two warpgroups decode, and the consumer has one fragment.
    maxsim_forward_sm90_residual_f16_d128_q64          ResidualF16  decoded         [8 5 16 0.31]
    maxsim_forward_sm90_residual_f16_d128_q64_winners  ResidualF16  decoded_winners [8 5 32 0.31]
    maxsim_forward_sm90_residual_f16_wide_q64_winners  ResidualF16  decoded_winners [0 4 64 0.31]
    maxsim_forward_sm90_residual_bf16_d128_q64         ResidualBf16 decoded         [8 5 16 0.31]
    maxsim_forward_sm90_residual_bf16_d128_q64_winners ResidualBf16 decoded_winners [8 5 32 0.31]
    maxsim_forward_sm90_residual_bf16_wide_q64_winners ResidualBf16 decoded_winners [0 4 64 0.31]
    }
    sm90_tiles {
    // entry, operand, word [consumers, fragments, steps, stages, tail, rate]

    // Documents decoded once, before, for queries of so many rows that they would be decoded
    // again and again. The scales of a tile's columns take the room of a stage.
    maxsim_forward_sm90_residual_f16_d128_q256  ResidualF16  decoded_once [2 2 8 9 16 0.78]
    maxsim_forward_sm90_residual_f16_wide_q128  ResidualF16  decoded_once [2 1 0 6 64 0.45]
    maxsim_forward_sm90_residual_bf16_d128_q256 ResidualBf16 decoded_once [2 2 8 9 16 0.78]
    maxsim_forward_sm90_residual_bf16_wide_q128 ResidualBf16 decoded_once [2 1 0 6 64 0.45]
    }

    } };
}
pub(crate) use residual_kernels;
