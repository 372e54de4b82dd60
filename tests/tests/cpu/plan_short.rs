//! Which kernels read the documents of short queries, by how much there is to read, and which
//! normalise rows.

use maxsim::format::ElementType;
use maxsim::plan::{Access, Plan, Problem};
use maxsim::{Pairing, ScoreOptions, TokenLayout};

use super::plan::H200;

/// The kernel of one f16 query of so many tokens.
fn chosen(query_len: usize, documents: &TokenLayout) -> &'static str {
    let queries = TokenLayout::padded(1, query_len, 128).expect("queries");
    let cross = Pairing::cross();
    let problem = Problem::new(&queries, documents, &cross).expect("a problem");
    let uploaded = Access::uploaded(128, ElementType::F16);
    let options = ScoreOptions::default();
    Plan::choose(&problem, ElementType::F16, &H200, [uploaded, uploaded], &options)
        .expect("a kernel")
        .name()
}

fn padded(n: usize, len: usize) -> TokenLayout {
    TokenLayout::padded(n, len, 128).expect("documents")
}

#[test]
fn long_documents_of_a_short_query_are_shared_where_they_lie() {
    const SHARES: &str = "maxsim_forward_sm90_f16_d128_q32_stream_k";
    for (n_documents, len) in
        [(550, 300), (20, 8000), (300, 3000), (60, 1024), (8, 8192), (1000, 300), (1000, 1024)]
    {
        assert_eq!(chosen(32, &padded(n_documents, len)), SHARES, "{n_documents} × {len}");
    }
    // Shares of whole documents are equal enough.
    for (n_documents, len) in [(1030, 300), (200, 1024), (10_000, 300)] {
        assert_ne!(chosen(32, &padded(n_documents, len)), SHARES, "{n_documents} × {len}");
    }
    // So many blocks have some of it that one is long in looking for theirs.
    assert_ne!(chosen(32, &padded(1, 200_000)), SHARES);
    assert_ne!(chosen(33, &padded(20, 8000)), SHARES);
}

#[test]
fn large_calls_read_documents_in_order() {
    const SWEEP: &str = "maxsim_forward_sm90_f16_d128_q64";
    for (n, len) in [(4500, 300), (10_000, 300), (2500, 1024), (10_000, 1024), (6000, 512)] {
        assert_eq!(chosen(32, &padded(n, len)), SWEEP, "{n} × {len}");
        assert_eq!(chosen(64, &padded(n, len)), SWEEP, "{n} × {len}");
    }
    // Too little for that, or a few long ones.
    for (n, len) in [(3000, 300), (1000, 1024), (200, 9000)] {
        assert_ne!(chosen(32, &padded(n, len)), SWEEP, "{n} × {len}");
    }
    // Many short documents of any length are read faster as one run of rows.
    let mut offsets = vec![0];
    offsets.extend((0..100_000).scan(0, |sum, i| {
        *sum += 40 + i * 7919 % 151;
        Some(*sum)
    }));
    let ragged = TokenLayout::packed(offsets[100_000] as usize, 128, &offsets).expect("documents");
    assert_eq!(chosen(32, &ragged), "maxsim_forward_sm90_f16_d128_q32");
}

/// What normalises short queries reads rows once, at any size; long ones have two fragments, and
/// what finds winners is as it was.
#[test]
fn rows_that_are_normalised_without_winners_have_kernels_of_their_own() {
    let cross = Pairing::cross();
    for ((n, len), (n_documents, document_len), winners, expected) in [
        ((1, 32), (1000, 300), false, "d128_q32_stream_k_normalized_scores"),
        ((1, 32), (10_000, 300), false, "d128_q32_normalized_scores"),
        ((1, 32), (100_000, 1024), false, "d128_q32_normalized_scores"),
        ((1, 7), (3, 20), false, "d128_q32_normalized_scores"),
        ((32, 32), (1024, 180), false, "d128_q256_normalized_scores"),
        ((1, 1024), (1000, 1024), false, "d128_q256_normalized_scores"),
        ((1, 48), (1000, 300), false, "d128_q64_normalized_scores"),
        ((4, 32), (1000, 300), false, "d128_q128_normalized_scores"),
        ((1, 32), (1000, 300), true, "d128_q64_normalized"),
        ((1, 1024), (1000, 1024), true, "wide_q128_normalized"),
    ] {
        let queries = TokenLayout::padded(n, len, 128).unwrap();
        let documents = TokenLayout::padded(n_documents, document_len, 128).unwrap();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        for angular in [false, true] {
            let options = ScoreOptions::default().normalize(true).angular(angular);
            let options = options.winners(winners);
            for element in [ElementType::F16, ElementType::Bf16] {
                let access = [Access::uploaded(128, element); 2];
                let plan = Plan::choose(&problem, element, &H200, access, &options).unwrap();
                assert_eq!(plan.name(), format!("maxsim_forward_sm90_{element}_{expected}"));
            }
        }
    }
}
