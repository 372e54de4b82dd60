//! Which kernel scores residual-compressed documents: decoded for each query tile, or once before.

use maxsim::format::ElementType;
use maxsim::plan::{Access, Plan, Problem};
use maxsim::{Pairing, ScoreOptions, TokenLayout};
use maxsim_kernels::abi::element::Operand;

use super::plan::{H200, every_device};

fn plan(
    queries: [usize; 2],
    documents: &TokenLayout,
    pairing: &Pairing,
    options: &ScoreOptions,
) -> maxsim::Result<Plan> {
    let [n, len] = queries;
    let queries = TokenLayout::padded(n, len, documents.dim())?;
    let problem = Problem::new(&queries, documents, pairing)?;
    let rows = Access::uploaded(documents.dim(), ElementType::F16);
    let buckets = Access { base: 0, pitch_bytes: 32, n_centroids: 0 };
    Plan::choose(&problem, Operand::Residual(ElementType::F16), &H200, [rows, buckets], options)
}

fn name(queries: [usize; 2], [n, len, dim]: [usize; 3]) -> &'static str {
    let documents = TokenLayout::padded(n, len, dim).expect("documents");
    let plan = plan(queries, &documents, &Pairing::cross(), &ScoreOptions::default());
    plan.expect("a kernel").name().trim_start_matches("maxsim_forward_")
}

#[test]
fn documents_are_decoded_once_for_many_query_rows() {
    for (queries, documents, expected) in [
        // Pages, as a chunk of a search has them and resident, and longer texts.
        ([1, 1024], [3640, 1024, 128], "sm90_residual_f16_d128_q256"),
        ([1, 1024], [20_000, 1024, 128], "sm90_residual_f16_d128_q256"),
        ([32, 32], [20_000, 300, 128], "sm90_residual_f16_d128_q256"),
        ([1, 1024], [20_000, 1024, 96], "sm90_residual_f16_d128_q256"),
        ([1, 1024], [20_000, 1024, 768], "sm90_residual_f16_wide_q128"),
        // Few rows are decoded as often without.
        ([1, 32], [20_000, 1024, 128], "sm80_residual_f16_d128_q32"),
        ([1, 64], [20_000, 1024, 128], "sm90_residual_f16_d128_q64"),
        ([4, 32], [20_000, 1024, 128], "sm90_residual_f16_d128_q64"),
        // Few documents do not pay for another launch.
        ([1, 1024], [20, 300, 128], "sm90_residual_f16_d128_q64"),
    ] {
        assert_eq!(name(queries, documents), expected, "{queries:?} × {documents:?}");
    }
}

#[test]
fn what_is_decoded_once_and_what_is_not() {
    let once = "maxsim_forward_sm90_residual_f16_d128_q256";
    let options = ScoreOptions::default();
    let asked = options.clone().kernel(once);
    let cross = Pairing::cross();
    let pages = TokenLayout::padded(2000, 1024, 128).expect("documents");
    let why = |documents: &TokenLayout, pairing: &Pairing, options: &ScoreOptions| {
        let chosen = plan([2, 1024], documents, pairing, options);
        assert_ne!(chosen.expect("a kernel").name(), once);
        let asked = options.clone().kernel(once);
        plan([2, 1024], documents, pairing, &asked).expect_err("not this one").to_string()
    };
    assert!(plan([1, 1], &pages, &cross, &asked).is_ok());
    assert_eq!(plan([2, 1024], &pages, &cross, &options).expect("a kernel").name(), once);
    let winners = options.clone().winners(true);
    assert!(why(&pages, &cross, &winners).contains("finds no winners"));
    assert!(why(&pages, &Pairing::own_candidates(1000), &options).contains("every query meets"));
    let split = options.clone().document_splits(2);
    assert!(why(&pages, &cross, &split).contains("no document splits"));
    // 128 MB are 524 288 rows.
    let long = |len: usize| TokenLayout::padded(3, len, 128).expect("documents");
    assert!(plan([2, 1024], &long(524_288), &cross, &asked).is_ok());
    assert!(why(&long(524_289), &cross, &options).contains("524288 rows at a time"));
    let unread = TokenLayout::unread(9_000_000, 128, 9000, 1000, 1000).expect("documents");
    assert!(why(&unread, &cross, &options).contains("the device alone knows"));
    // Masks and lengths are those of the documents.
    let lens = vec![900i64; 2000];
    let some = pages.clone().with_lengths(&lens).expect("lengths").with_mask(&vec![1; 2_048_000]);
    assert_eq!(plan([2, 1024], &some.expect("a mask"), &cross, &options).unwrap().name(), once);
    for limits in every_device() {
        let is_hopper = limits.capability == (9, 0);
        let queries = TokenLayout::padded(1, 1024, 128).expect("queries");
        let problem = Problem::new(&queries, &pages, &cross).expect("a problem");
        let access = [Access::uploaded(128, ElementType::F16); 2];
        let operand = Operand::Residual(ElementType::F16);
        let found = Plan::choose(&problem, operand, &limits, access, &asked);
        assert_eq!(found.is_ok(), is_hopper, "{limits:?}");
    }
}
