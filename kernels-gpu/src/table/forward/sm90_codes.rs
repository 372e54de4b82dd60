//! Kernels of codes for compute capability 9.0.

#[rustfmt::skip] // one line, one kernel
macro_rules! sm90_code_kernels {
    ($emit:ident) => { $emit! {

    sm90_tiles {
    // entry, operand, word [consumers, fragments, steps, stages, tail, rate]

    // Codes of one byte, twice as fast; dim 128 in one slab. Kernels that find winners serve
    // calls that do not ask for them, too, where there is no other. Four consumers
    // (`sm90::swap_ab`) hide what follows the products of long queries.
    maxsim_forward_sm90_e4m3_d128_q256          E4m3 swap_ab          [4 1 4 10 64 0.80]
    maxsim_forward_sm90_e4m3_d128_q256_stream_k E4m3 swap_ab_stream_k [4 1 4 10 64 0.80]
    maxsim_forward_sm90_e4m3_d128_q256_winners  E4m3 scaled_winners   [2 2 4 11 32 0.80]
    maxsim_forward_sm90_e4m3_d128_q128          E4m3 scaled           [2 1 4 12 32 0.55]
    maxsim_forward_sm90_e4m3_d128_q64           E4m3 scaled           [1 1 4  6 16 0.31]
    maxsim_forward_sm90_e4m3_d128_q64_winners   E4m3 scaled_winners   [1 1 4  6 32 0.31]
    maxsim_forward_sm90_e4m3_wide_q128_winners  E4m3 scaled_winners   [2 1 0  6 64 0.45]
    maxsim_forward_sm90_i8_d128_q256            I8   swap_ab          [4 1 4 10 64 0.80]
    maxsim_forward_sm90_i8_d128_q256_stream_k   I8   swap_ab_stream_k [4 1 4 10 64 0.80]
    maxsim_forward_sm90_i8_d128_q256_winners    I8   scaled_winners   [2 2 4 11 32 0.80]
    maxsim_forward_sm90_i8_d128_q128            I8   scaled           [2 1 4 12 32 0.55]
    maxsim_forward_sm90_i8_d128_q64             I8   scaled           [1 1 4  6 16 0.31]
    }
    sm90_contiguous {
    // entry, operand, word [rows, warps, stages, CTAs, rate]

    // The only consumer of 64 rows multiplies, folds and ends documents one after the
    // other, and of 32 query rows half are padding. Here eight warps of a multiprocessor
    // share that, and the memory waits for none: the rate is above that of elements.
    maxsim_forward_sm90_i8_d128_q32 I8 scaled_contiguous [32 4 3 3 0.163]
    }
    sm90_tiles {
    // entry, operand, word [consumers, fragments, steps, stages, tail, rate]

    maxsim_forward_sm90_i8_d128_q64_winners         I8       scaled_winners [1 1 4  6 32 0.31]
    maxsim_forward_sm90_i8_wide_q128_winners        I8       scaled_winners [2 1 0  6 64 0.45]
    maxsim_forward_sm90_i8_affine_d128_q128_winners I8Affine affine_winners [2 1 4 12 64 0.55]
    maxsim_forward_sm90_i8_affine_d128_q64_winners  I8Affine affine_winners [1 1 4  6 64 0.31]
    maxsim_forward_sm90_i8_affine_wide_q128_winners I8Affine affine_winners [2 1 0  6 64 0.45]
    }

    } };
}
pub(crate) use sm90_code_kernels;
