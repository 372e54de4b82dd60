//! Which kernel runs for compressed tokens: no GPU needed.

use maxsim::ScoreOptions;
use maxsim::format::ElementType;
use maxsim::layout::MAX_DIM;
use maxsim::plan::{Access, DeviceLimits};
use maxsim_kernels::abi::element::Operand;

use super::plan::{H200, every_device, name_of};

#[test]
fn codes_run_in_the_tile_that_fits_the_queries_and_finds_what_is_asked_for() {
    for (operand, name) in [(Operand::I8, "i8"), (Operand::E4m3, "e4m3")] {
        for (query_len, dim, winners, row) in [
            (32, 128, false, if name == "i8" { "d128_q32" } else { "d128_q64" }),
            (33, 128, false, "d128_q64"),
            (32, 127, false, "d128_q64"),
            (32, 128, true, "d128_q64_winners"),
            (64, 128, true, "d128_q64_winners"),
            (65, 128, false, "d128_q128"),
            (128, 96, false, "d128_q128"),
            (65, 128, true, "wide_q128_winners"),
            (256, 128, false, "d128_q256"),
            (1024, 128, false, "d128_q256_stream_k"),
            (129, 128, true, "d128_q256_winners"),
            (1024, 128, true, "d128_q256_winners"),
            (1024, 129, false, "wide_q128_winners"),
        ] {
            let shape = [query_len, 1024, dim];
            let found = plan_of_codes(operand, &H200, shape, dim.next_multiple_of(16), winners);
            let expected = format!("maxsim_forward_sm90_{name}_{row}");
            assert_eq!(found, Ok(&*expected), "{query_len} dim {dim} winners {winners}");
        }
    }
}

/// However much there is to read, and however short documents are; of elements the largest calls
/// use the dynamic scheduler.
#[test]
fn short_queries_of_int8_read_runs_of_any_size() {
    let row = |queries, documents| {
        let access = Access { base: 0, pitch_bytes: 128, n_centroids: 0 };
        let (shape, options) = ((queries, documents, 128), ScoreOptions::default());
        name_of(Operand::I8, &H200, shape, (access, access), &options).expect("a kernel")
    };
    for documents in
        [[1, 1], [1000, 300], [10_000, 300], [10_000, 1024], [20_000, 101], [3_000_000, 1]]
    {
        for queries in [[1, 1], [1, 32], [2, 16], [2, 9]] {
            let name = row(queries, documents);
            assert!(name.ends_with("_i8_d128_q32"), "{queries:?} × {documents:?}: {name}");
        }
        // They would be read twice, and are not by a tile that all query tokens fit in.
        if documents[0] < 1000 {
            continue;
        }
        for queries in [[1, 33], [2, 32]] {
            let name = row(queries, documents);
            assert!(name.ends_with("_i8_d128_q64"), "{queries:?} × {documents:?}: {name}");
        }
    }
}

/// The name of the kernel for codes, of a query and documents of one length each.
fn plan_of_codes(
    operand: Operand,
    limits: &DeviceLimits,
    [query_len, document_len, dim]: [usize; 3],
    pitch_bytes: usize,
    winners: bool,
) -> Result<&'static str, String> {
    let access = Access { base: 0, pitch_bytes: pitch_bytes as u64, n_centroids: 0 };
    let options = ScoreOptions::default().winners(winners);
    let shape = ([1, query_len], [1000, document_len], dim);
    name_of(operand, limits, shape, (access, access), &options)
}

/// No two kernels of codes are known to agree in every bit.
#[test]
fn consistent_calls_of_codes_run_the_kernel_that_finds_winners() {
    let access = Access { base: 0, pitch_bytes: 128, n_centroids: 0 };
    for (operand, query_len) in
        [(Operand::I8, 32), (Operand::I8, 1024), (Operand::E4m3, 33), (Operand::E4m3, 128)]
    {
        let name = |options| {
            let shape = ([1, query_len], [1000, 1024], 128);
            name_of(operand, &H200, shape, (access, access), &options).expect("a kernel")
        };
        let (plain, winners) = (ScoreOptions::default(), ScoreOptions::default().winners(true));
        assert_ne!(name(plain.clone()), name(winners.clone()));
        assert_eq!(name(plain.consistent(true)), name(winners));
    }
}

/// Whether centroids are scored once, for queries of 32 tokens and documents of 100 by number, and
/// so many centroids.
fn scores_centroids(
    n_queries: usize,
    n_documents: usize,
    n_centroids: u32,
    kernel: Option<&str>,
) -> Result<bool, String> {
    let access = Access { base: 0, pitch_bytes: 256, n_centroids: 0 };
    let options = ScoreOptions::default().kernel(kernel);
    let shape = ([n_queries, 32], [n_documents, 100], 128);
    let accesses = (access, Access { n_centroids, ..access });
    let name = name_of(Operand::Residual(ElementType::F16), &H200, shape, accesses, &options)?;
    Ok(name.ends_with("_by_centroid"))
}

#[test]
fn centroids_are_scored_once_where_many_tokens_share_them() {
    assert_eq!(scores_centroids(1, 1_000_000, 1 << 17, None), Ok(true));
    assert_eq!(scores_centroids(1, 12_000, 1 << 14, None), Ok(false));
    let name = Some("maxsim_forward_sm80_residual_f16_d128_q32_by_centroid");
    assert_eq!(scores_centroids(1, 1, 1, name), Ok(true));
    // There is a table per 32 query tokens, and room for so many.
    assert_eq!(scores_centroids(4, 1, 1 << 17, name), Ok(true));
    // None that can be scored.
    assert_eq!(scores_centroids(1, 1_000_000, 0, None), Ok(false));
    let why = scores_centroids(1, 1, 0, name).expect_err("no plan");
    assert!(why.contains("buckets have at most 2 bits"), "{why}");
    let why = scores_centroids(5, 1, 1 << 17, name).expect_err("no plan");
    assert!(why.contains("the scores of centroids take"), "{why}");
}

#[test]
fn every_device_has_a_kernel_for_codes() {
    for limits in every_device() {
        let affine = [ElementType::F16, ElementType::Bf16].map(Operand::Affine);
        for operand in [Operand::I8, Operand::E4m3, Operand::I8Affine].into_iter().chain(affine) {
            for dim in (1..=260).chain([512, 1030, 4095, MAX_DIM]) {
                for pitch_bytes in [dim.next_multiple_of(16), dim] {
                    for winners in [false, true] {
                        let shape = [32, 300, dim];
                        plan_of_codes(operand, &limits, shape, pitch_bytes, winners)
                            .unwrap_or_else(|why| panic!("{operand} {dim} {limits:?}: {why}"));
                    }
                }
            }
        }
    }
}

#[test]
fn hopper_runs_its_own_kernels_of_codes_where_rows_are_aligned() {
    for operand in [Operand::I8, Operand::E4m3] {
        for query_len in [1, 16, 32, 64, 65, 128, 129, 300, 1024] {
            for document_len in (1..=260).chain([1000, 1024]) {
                for dim in [1, 64, 96, 128, 129, 512, MAX_DIM] {
                    for winners in [false, true] {
                        let shape = [query_len, document_len, dim];
                        let name = |pitch_bytes| {
                            plan_of_codes(operand, &H200, shape, pitch_bytes, winners)
                                .expect("a kernel")
                        };
                        let aligned = name(dim.next_multiple_of(16));
                        assert!(aligned.contains("sm90"), "{shape:?}: {aligned}");
                        let unaligned = name(dim.next_multiple_of(16) + 1);
                        assert!(unaligned.contains("sm80"), "{shape:?}: {unaligned}");
                    }
                }
            }
        }
    }
}

#[test]
fn ampere_scores_codes_of_both_kinds() {
    let ampere =
        DeviceLimits { capability: (8, 0), n_multiprocessors: 108, shared_bytes: 163 * 1024 };
    for (operand, dim, row) in [
        (Operand::I8, 1, "i8_d128_q64_winners"),
        (Operand::I8, 128, "i8_d128_q64_winners"),
        (Operand::I8, 129, "i8_wide_q128_winners"),
        (Operand::I8, MAX_DIM, "i8_wide_q128_winners"),
        (Operand::E4m3, 128, "e4m3_wide_q128_winners"),
        (Operand::E4m3, MAX_DIM, "e4m3_wide_q128_winners"),
    ] {
        for query_len in [1, 32, 128, 1024] {
            for winners in [false, true] {
                let shape = [query_len, 300, dim];
                let pitch_bytes = dim.next_multiple_of(16);
                let name = plan_of_codes(operand, &ampere, shape, pitch_bytes, winners);
                assert_eq!(name, Ok(&*format!("maxsim_forward_sm80_{row}")), "{shape:?}");
            }
        }
    }
}
