//! Kernels of elements for compute capability 9.0.

#[rustfmt::skip] // one line, one kernel
macro_rules! sm90_kernels {
    ($emit:ident) => { $emit! {

    sm90_tiles {
    // entry, operand, word [consumers, fragments, steps, stages, tail, rate]

    // Two fragments per consumer: 256 resident query rows take 32 KB per slab, and the
    // ring of 16 KB slabs what is left of 227 KB. 224 registers for consumers. The last
    // tile's widths start at 16 columns for dim 128, where most models are. Points of dim 128 are
    // selected (Chamfer distances) by rows with three terms more.
    maxsim_forward_sm90_f16_d64_q256           F16  scores  [2 2  4 12 32 0.80]
    maxsim_forward_sm90_f16_d96_q256           F16  scores  [2 2  6 10 32 0.80]
    maxsim_forward_sm90_f16_d128_q256          F16  scores  [2 2  8 10 16 0.80]
    maxsim_forward_sm90_f16_d144_q256          F16  scores  [2 2  9  8 32 0.80]
    maxsim_forward_sm90_f16_d256_q256          F16  scores  [2 2 16  6 32 0.80]
    maxsim_forward_sm90_bf16_d64_q256          Bf16 scores  [2 2  4 12 32 0.80]
    maxsim_forward_sm90_bf16_d96_q256          Bf16 scores  [2 2  6 10 32 0.80]
    maxsim_forward_sm90_bf16_d128_q256         Bf16 scores  [2 2  8 10 16 0.80]
    maxsim_forward_sm90_bf16_d256_q256         Bf16 scores  [2 2 16  6 32 0.80]
    maxsim_forward_sm90_f16_d64_q256_winners   F16  winners [2 2  4 12 32 0.80]
    maxsim_forward_sm90_f16_d128_q256_winners  F16  winners [2 2  8 10 32 0.80]
    maxsim_forward_sm90_bf16_d64_q256_winners  Bf16 winners [2 2  4 12 32 0.80]
    maxsim_forward_sm90_bf16_d128_q256_winners Bf16 winners [2 2  8 10 32 0.80]

    // One fragment per consumer for up to 128 query rows: half the rows to multiply, and
    // the ring gets the query tile's room.
    maxsim_forward_sm90_f16_d128_q128  F16  scores [2 1 8 12 16 0.55]
    maxsim_forward_sm90_bf16_d128_q128 Bf16 scores [2 1 8 12 16 0.55]

    // The same for units that end within a document, where CTAs have few long ones.
    maxsim_forward_sm90_f16_d128_q128_stream_k  F16  stream_k [2 1 8 12 16 0.55]
    maxsim_forward_sm90_bf16_d128_q128_stream_k Bf16 stream_k [2 1 8 12 16 0.55]
    maxsim_forward_sm90_f16_d128_q256_stream_k  F16  stream_k [2 2 8 10 16 0.80]
    maxsim_forward_sm90_bf16_d128_q256_stream_k Bf16 stream_k [2 2 8 10 16 0.80]

    // One consumer of one fragment for up to 64 query rows, where reading the documents
    // takes longest: two such CTAs share a multiprocessor (113 KB each), so that one
    // loads while the other finishes a document.
    maxsim_forward_sm90_f16_d64_q64           F16  scores  [1 1  4 6 32 0.31]
    maxsim_forward_sm90_f16_d128_q64          F16  scores  [1 1  8 6 16 0.31]
    maxsim_forward_sm90_f16_d256_q64          F16  scores  [1 1 16 4 32 0.31]
    maxsim_forward_sm90_bf16_d64_q64          Bf16 scores  [1 1  4 6 32 0.31]
    maxsim_forward_sm90_bf16_d128_q64         Bf16 scores  [1 1  8 6 16 0.31]
    maxsim_forward_sm90_bf16_d256_q64         Bf16 scores  [1 1 16 4 32 0.31]
    maxsim_forward_sm90_f16_d64_q64_winners   F16  winners [1 1  4 6 32 0.31]
    maxsim_forward_sm90_f16_d128_q64_winners  F16  winners [1 1  8 5 32 0.31]
    maxsim_forward_sm90_f16_d256_q64_winners  F16  winners [1 1 16 4 32 0.31]
    maxsim_forward_sm90_bf16_d64_q64_winners  Bf16 winners [1 1  4 6 32 0.31]
    maxsim_forward_sm90_bf16_d128_q64_winners Bf16 winners [1 1  8 5 32 0.31]
    maxsim_forward_sm90_bf16_d256_q64_winners Bf16 winners [1 1 16 4 32 0.31]
    }
    sm90_contiguous {
    // entry, operand, word [rows, warps, stages, CTAs, rate]

    // Up to 32 query rows in the registers of every warp, where documents lie one behind
    // the other: nothing but products stands between a row and its maximum, so that calls
    // that read little start and end sooner. Chunks of 4 KB.
    maxsim_forward_sm90_f16_d128_q32  F16  contiguous [16 4 3 3 0.152]
    maxsim_forward_sm90_bf16_d128_q32 Bf16 contiguous [16 4 3 3 0.152]

    // The same in equal shares, for one query tile and documents of one length.
    maxsim_forward_sm90_f16_d128_q32_stream_k  F16  contiguous_stream_k [16 4 3 3 0.152]
    maxsim_forward_sm90_bf16_d128_q32_stream_k Bf16 contiguous_stream_k [16 4 3 3 0.152]

    // The same of rows that are normalised, whose r is found from what is multiplied: rows are
    // read once, where other kernels read them twice or r besides. So such calls prefer them at
    // any size.
    maxsim_forward_sm90_f16_d128_q32_normalized_scores
        NormalizedF16 normalized_contiguous [16 4 3 3 0.158]
    maxsim_forward_sm90_bf16_d128_q32_normalized_scores
        NormalizedBf16 normalized_contiguous [16 4 3 3 0.158]
    maxsim_forward_sm90_f16_d128_q32_stream_k_normalized_scores
        NormalizedF16 normalized_contiguous_stream_k [16 4 3 3 0.158]
    maxsim_forward_sm90_bf16_d128_q32_stream_k_normalized_scores
        NormalizedBf16 normalized_contiguous_stream_k [16 4 3 3 0.158]
    }
    sm90_tiles {
    // entry, operand, word [consumers, fragments, steps, stages, tail, rate]

    // Above dim 256 query slabs stream along: a stage holds a slab of both sides (48 KB
    // and 32 KB).
    maxsim_forward_sm90_f16_wide_q256          F16  scores  [2 2 0 4 32 0.70]
    maxsim_forward_sm90_f16_wide_q128          F16  scores  [2 1 0 7 32 0.45]
    maxsim_forward_sm90_bf16_wide_q256         Bf16 scores  [2 2 0 4 32 0.70]
    maxsim_forward_sm90_bf16_wide_q128         Bf16 scores  [2 1 0 7 32 0.45]
    maxsim_forward_sm90_f16_wide_q256_winners  F16  winners [2 2 0 4 32 0.70]
    maxsim_forward_sm90_bf16_wide_q256_winners Bf16 winners [2 2 0 4 32 0.70]

    // Rows that are normalised: short queries of dim 128, where most models are, and all
    // others. One fragment, beside which there is room for the factors of a tile's columns.
    maxsim_forward_sm90_f16_d128_q64_normalized   F16  normalized [1 1 8 5 32 0.31]
    maxsim_forward_sm90_f16_wide_q128_normalized  F16  normalized [2 1 0 7 64 0.45]
    maxsim_forward_sm90_bf16_d128_q64_normalized  Bf16 normalized [1 1 8 5 32 0.31]
    maxsim_forward_sm90_bf16_wide_q128_normalized Bf16 normalized [2 1 0 7 64 0.45]

    // The same without winners. Two warps find r of a tile's rows from the tile itself, so
    // that they are read once. The scales of a tile's columns take the room of a stage.
    maxsim_forward_sm90_f16_d128_q256_normalized_scores
        NormalizedF16 normalized_scores [2 2 8 9 16 0.78]
    maxsim_forward_sm90_f16_d128_q128_normalized_scores
        NormalizedF16 normalized_scores [2 1 8 11 16 0.55]
    maxsim_forward_sm90_f16_d128_q64_normalized_scores
        NormalizedF16 normalized_scores [1 1 8 5 16 0.311]
    maxsim_forward_sm90_bf16_d128_q256_normalized_scores
        NormalizedBf16 normalized_scores [2 2 8 9 16 0.78]
    maxsim_forward_sm90_bf16_d128_q128_normalized_scores
        NormalizedBf16 normalized_scores [2 1 8 11 16 0.55]
    maxsim_forward_sm90_bf16_d128_q64_normalized_scores
        NormalizedBf16 normalized_scores [1 1 8 5 16 0.311]

    // TF32 where the caller allows it: slabs of 32 elements, which TMA rounds.
    maxsim_forward_sm90_tf32_d128_q256         Tf32 scores  [2 2 16 6 32 0.80]
    maxsim_forward_sm90_tf32_wide_q256         Tf32 scores  [2 2  0 4 32 0.70]
    maxsim_forward_sm90_tf32_d128_q64          Tf32 scores  [1 1 16 4 32 0.31]
    maxsim_forward_sm90_tf32_wide_q256_winners Tf32 winners [2 2  0 4 32 0.70]

    // 3xTF32: a stage holds both parts of a slab of both sides (64 KB and 48 KB), and a
    // consumer the small products' sums besides the large ones', beside which there is no
    // room for a second fragment.
    maxsim_forward_sm90_f32_wide_q128         F32 scores  [2 1 0 3 64 0.45]
    maxsim_forward_sm90_f32_wide_q128_winners F32 winners [2 1 0 3 64 0.45]
    maxsim_forward_sm90_f32_wide_q64          F32 scores  [1 1 0 2 64 0.31]
    }

    } };
}
pub(crate) use sm90_kernels;
