//! Which rows of the kernel table may run, and which one is chosen: no GPU needed.

use maxsim::format::ElementType;
use maxsim::layout::MAX_DIM;
use maxsim::plan::Access;
use maxsim::plan::DeviceLimits;
use maxsim::plan::{Plan, Problem};
use maxsim::{Pairing, ScoreOptions, TokenLayout};
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::FORWARD;
use maxsim_tests::strategy::EDGE_DIMS;

pub(super) const H200: DeviceLimits =
    DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };

/// Every capability from 8.0 on, with the least shared memory that any of them has.
pub(super) fn every_device() -> Vec<DeviceLimits> {
    let limits =
        |capability| DeviceLimits { capability, n_multiprocessors: 28, shared_bytes: 99 * 1024 };
    let mut devices: Vec<DeviceLimits> =
        [(8, 0), (8, 6), (8, 7), (8, 9), (10, 0), (12, 0)].map(limits).to_vec();
    devices.push(H200);
    devices
}

/// The name of the kernel for matrices with rows at these distances, or why there is none.
fn plan(
    element: ElementType,
    dim: usize,
    pitch_bytes: [u64; 2],
    limits: &DeviceLimits,
    winners: bool,
    kernel: Option<&str>,
) -> Result<&'static str, String> {
    plan_with(element, dim, pitch_bytes, limits, [winners, false], kernel)
}

/// The same, of calls that normalise or do not.
fn plan_with(
    element: ElementType,
    dim: usize,
    pitch_bytes: [u64; 2],
    limits: &DeviceLimits,
    [winners, normalize]: [bool; 2],
    kernel: Option<&str>,
) -> Result<&'static str, String> {
    let queries = TokenLayout::padded(3, 1024, dim).expect("queries");
    let documents = TokenLayout::padded(100, 1024, dim).expect("documents");
    let cross = Pairing::cross();
    let problem = Problem::new(&queries, &documents, &cross).expect("problem");
    let access = |pitch_bytes| Access { base: 1024, pitch_bytes, n_centroids: 0 };
    let kernel = kernel.map(str::to_string);
    let options =
        ScoreOptions::default().winners(winners).normalize(normalize).kernel(kernel.as_deref());
    Plan::choose(&problem, element, limits, pitch_bytes.map(access), &options)
        .map(|plan| plan.name())
        .map_err(|error| error.to_string())
}

fn uploaded(element: ElementType, dim: usize) -> [u64; 2] {
    [Access::uploaded(dim, element).pitch_bytes; 2]
}

#[test]
fn every_problem_has_a_kernel_on_every_device() {
    for limits in every_device() {
        for element in ElementType::ALL {
            for dim in (1..=520).chain([768, 1030, 2048, 4095, MAX_DIM]) {
                let tight = (dim * element.size_bytes()) as u64;
                for pitch_bytes in [uploaded(element, dim), [tight; 2]] {
                    for options in [[false; 2], [true, false], [false, true], [true; 2]] {
                        plan_with(element, dim, pitch_bytes, &limits, options, None)
                            .unwrap_or_else(|why| panic!("{element} {dim} {limits:?}: {why}"));
                    }
                }
            }
        }
    }
}

#[test]
fn rows_are_eligible_for_what_they_can_do_and_nothing_else() {
    for limits in every_device() {
        for row in FORWARD {
            for element in ElementType::ALL {
                for dim in EDGE_DIMS {
                    for [winners, normalize] in
                        [[false; 2], [true, false], [false, true], [true; 2]]
                    {
                        let found = plan_with(
                            element,
                            dim,
                            uploaded(element, dim),
                            &limits,
                            [winners, normalize],
                            Some(row.name),
                        );
                        let fits = row.shared_bytes(dim) <= limits.shared_bytes
                            && (row.arch == Arch::Sm80 || limits.capability == (9, 0));
                        // Products of split elements need some room for their error.
                        let dim_min = match row {
                            // Nothing may lie between rows.
                            row if row.schedule.is_contiguous() => row.dim_max,
                            row if row.splits() => 16,
                            _ => 1,
                        };
                        let expected = row.operand == element
                            // Rows that normalise and find winners do so wanted or not.
                            && (winners == row.winners || row.normalizes() && row.winners)
                            && normalize == row.normalizes()
                            && (dim_min..=row.dim_max).contains(&dim)
                            && fits
                            // Only where the call allows it.
                            && !row.tf32
                            // Whole documents are shares that are equal enough here.
                            && !(row.schedule.is_contiguous() && row.schedule.is_stream_k());
                        assert_eq!(found.is_ok(), expected, "{} dim {dim}: {found:?}", row.name);
                    }
                }
            }
        }
    }
}

#[test]
fn hopper_runs_its_own_kernels_where_they_are_eligible() {
    for element in [ElementType::F16, ElementType::Bf16] {
        for winners in [false, true] {
            let name = |dim, pitch_bytes| plan(element, dim, pitch_bytes, &H200, winners, None);
            for (dim, class) in [
                (7, "d64"),
                (64, "d64"),
                // Winners have no row of their own there.
                (65, if winners { "d128" } else { "d96" }),
                (96, if winners { "d128" } else { "d96" }),
                (97, "d128"),
                (128, "d128"),
                (257, "wide"),
                (4096, "wide"),
            ] {
                let name = name(dim, uploaded(element, dim)).expect("a kernel");
                assert!(name.contains("sm90") && name.contains(class), "dim {dim}: {name}");
            }
            let widest = name(256, uploaded(element, 256)).expect("a kernel");
            assert!(widest.contains(if winners { "wide" } else { "d256" }), "{widest}");
            // TMA cannot take rows that are not 16-byte aligned, on either side.
            for pitch_bytes in [[256, 258], [258, 256]] {
                let name = name(128, pitch_bytes).expect("a kernel");
                assert!(name.contains("sm80"), "{pitch_bytes:?}: {name}");
            }
        }
    }
}

#[test]
fn f32_stays_exact_on_tensor_cores_unless_the_call_allows_less() {
    for winners in [false, true] {
        for dim in [16, 32, 100, 128, 768, MAX_DIM] {
            let choose = |query_len: usize, pitch_bytes: u64, allow_tf32: bool| {
                let queries = TokenLayout::padded(3, query_len, dim).expect("queries");
                let documents = TokenLayout::padded(100, 300, dim).expect("documents");
                let cross = Pairing::cross();
                let problem = Problem::new(&queries, &documents, &cross).expect("problem");
                let access = Access { base: 1024, pitch_bytes, n_centroids: 0 };
                let options = ScoreOptions::default().winners(winners).allow_tf32(allow_tf32);
                let f32 = ElementType::F32;
                let plan = Plan::choose(&problem, f32, &H200, [access, access], &options);
                plan.expect("a kernel").variant().expect("not the CPU")
            };
            let pitch_bytes = Access::uploaded(dim, ElementType::F32).pitch_bytes;
            for query_len in [1, 32, 300, 1024] {
                let row = choose(query_len, pitch_bytes, false);
                assert!(row.splits() && !row.tf32, "dim {dim}: {}", row.name);
                let row = choose(query_len, pitch_bytes + 4, false);
                assert!(row.arch == Arch::Sm80, "dim {dim}: {}", row.name);
                let row = choose(query_len, pitch_bytes, true);
                assert!(row.arch == Arch::Sm90a, "dim {dim}: {}", row.name);
            }
            assert!(choose(1024, pitch_bytes, true).tf32, "dim {dim}");
        }
    }
}

#[test]
fn the_tile_is_as_tall_as_the_queries_that_share_it() {
    let choose = |n_queries: usize, query_len: usize, pairing: &Pairing| {
        let n_documents = match pairing == &Pairing::cross() {
            true => 1024,
            false => n_queries * 100,
        };
        let queries = TokenLayout::padded(n_queries, query_len, 128).expect("queries");
        let documents = TokenLayout::padded(n_documents, 300, 128).expect("documents");
        let problem = Problem::new(&queries, &documents, pairing).expect("problem");
        let access = Access::uploaded(128, ElementType::F16);
        let options = ScoreOptions::default();
        let plan = Plan::choose(&problem, ElementType::F16, &H200, [access, access], &options);
        plan.expect("a kernel").variant().expect("not the CPU").query_tile
    };
    let cross = Pairing::cross();
    for (n_queries, query_len, tile) in [
        (1, 32, 32),
        (2, 16, 32),
        (2, 32, 64),
        (1, 33, 64),
        (1, 128, 128),
        (4, 32, 128),
        (1, 1024, 256),
        (32, 32, 256),
    ] {
        assert_eq!(choose(n_queries, query_len, &cross), tile, "{n_queries} × {query_len}");
    }
    // A query with documents of its own shares its tile with no other.
    assert_eq!(choose(32, 32, &Pairing::own_candidates(100)), 32);
    assert_eq!(choose(32, 33, &Pairing::own_candidates(100)), 64);
}

#[test]
fn long_documents_of_few_for_each_block_are_cut_where_shares_end() {
    const SHORT: Option<&str> = Some("maxsim_forward_sm90_f16_d128_q128_stream_k");
    const LONG: Option<&str> = Some("maxsim_forward_sm90_f16_d128_q256_stream_k");
    let uploaded = Access::uploaded(128, ElementType::F16);
    let cross = Pairing::cross();
    let plan = |queries: &TokenLayout, documents: &TokenLayout, pairing: &Pairing, options| {
        let problem = Problem::new(queries, documents, pairing).expect("a problem");
        Plan::choose(&problem, ElementType::F16, &H200, [uploaded, uploaded], &options)
            .expect("a kernel")
    };
    let padded = |n, len| TokenLayout::padded(n, len, 128).expect("a layout");
    let default = ScoreOptions::default;
    for (n_queries, query_len, n_documents, len, row) in [
        (1, 128, 1000, 1024, SHORT),
        (2, 50, 300, 3000, SHORT),
        (1, 100, 150, 5000, SHORT),
        (1, 256, 150, 5000, LONG),
        (1, 512, 1000, 1024, LONG),
        (1, 1024, 1000, 1024, LONG),
        (8, 64, 1000, 1024, LONG),
        // Blocks end together as it is, or know their share sooner than it is worth.
        (1, 128, 10_000, 1024, None),
        (1, 1024, 10_000, 1024, None),
        (8, 1024, 128, 1024, None),
        (1, 128, 1000, 300, None),
        (1, 128, 40, 200, None),
        // Smaller tiles read as fast.
        (1, 64, 1000, 1024, None),
        // A document is many blocks' that one has to wait for.
        (1, 128, 8, 8192, None),
    ] {
        let (queries, documents) = (padded(n_queries, query_len), padded(n_documents, len));
        let found = plan(&queries, &documents, &cross, default());
        assert_eq!(
            Some(found.name()).filter(|name| name.ends_with("_stream_k")),
            row,
            "{n_queries} × {query_len} × {n_documents} × {len}: {found}"
        );
    }
    // All else is left to other rows, which says why.
    let (queries, documents) = (padded(1, 128), padded(1000, 1024));
    let refused = |plan: Plan, why: &str| {
        let (_, found) =
            plan.rejected().iter().find(|(name, _)| Some(*name) == SHORT).expect("another row");
        assert!(found.contains(why), "{found}");
    };
    let many = plan(&padded(1000, 32), &documents, &cross, default());
    refused(many, "a multiprocessor for each 128 query rows");
    refused(
        plan(&queries, &documents, &Pairing::own_candidates(1000), default()),
        "every document",
    );
    let mask = vec![1; 1_024_000];
    let masked = padded(1000, 1024).with_mask(&mask).expect("a mask");
    refused(plan(&queries, &masked, &cross, default()), "no mask");
    let token_scores = default().token_scores(true);
    refused(plan(&queries, &documents, &cross, token_scores), "no token scores");
    let splits = default().document_splits(2);
    refused(plan(&queries, &documents, &cross, splits), "no document splits");
}

#[test]
fn short_queries_read_documents_that_are_one_run_as_they_lie() {
    are_read_as_they_lie(ElementType::F16.into(), false, "maxsim_forward_sm90_f16_d128_q32");
    are_read_as_they_lie(ElementType::Bf16.into(), false, "maxsim_forward_sm90_bf16_d128_q32");
    are_read_as_they_lie(Operand::I8, false, "maxsim_forward_sm90_i8_d128_q32");
    for element in [ElementType::F16, ElementType::Bf16] {
        let name = format!("maxsim_forward_sm90_{element}_d128_q32_normalized_scores");
        are_read_as_they_lie(element.into(), true, &name);
    }
}

fn are_read_as_they_lie(operand: Operand, normalize: bool, name: &str) {
    let row_bytes = (128 * operand.size_bytes()) as u64;
    let uploaded = Access { base: 0, pitch_bytes: row_bytes, n_centroids: 0 };
    let packed = TokenLayout::packed(10, 128, &[1, 4, 5, 9]).expect("packed");
    let padded = TokenLayout::padded(3, 4, 128).expect("padded");
    let queries = TokenLayout::padded(1, 32, 128).expect("queries");
    let cross = Pairing::cross();
    let plan = |queries: &TokenLayout,
                documents: &TokenLayout,
                pairing: &Pairing,
                access: [Access; 2],
                options: &ScoreOptions| {
        let problem = Problem::new(queries, documents, pairing).expect("a problem");
        let [of_queries, of_documents] = access;
        Plan::choose(&problem, operand, &H200, [of_queries, of_documents], options)
            .expect("a kernel")
    };
    let options = ScoreOptions::default().normalize(normalize);
    for documents in [&packed, &padded] {
        let pairings = [cross.clone(), Pairing::own_candidates(3)];
        for pairing in pairings {
            let plan = plan(&queries, documents, &pairing, [uploaded; 2], &options);
            assert_eq!(plan.name(), name);
        }
    }
    // All else is left to other rows, which says why.
    let refused = |plan: Plan, why: &str| {
        let (_, found) =
            plan.rejected().iter().find(|(row, _)| *row == name).expect("the row is not chosen");
        assert!(found.contains(why), "{found}");
    };
    let offset = Access { base: 8, ..uploaded };
    let wide = Access { pitch_bytes: row_bytes + 16, ..uploaded };
    for access in [[offset, uploaded], [uploaded, offset], [wide, uploaded], [uploaded, wide]] {
        refused(plan(&queries, &packed, &cross, access, &options), "nothing in between");
    }
    let narrow = |n, len| TokenLayout::padded(n, len, 120).expect("a layout");
    refused(plan(&narrow(1, 32), &narrow(3, 4), &cross, [uploaded; 2], &options), "128 elements");
    let gap = TokenLayout::scattered(20, 128, &[0, 5], &[4, 4]).expect("a layout");
    let back = TokenLayout::scattered(20, 128, &[4, 0], &[4, 4]).expect("a layout");
    let empty = TokenLayout::packed(10, 128, &[1, 4, 4, 9]).expect("a layout");
    let cut = TokenLayout::padded(3, 4, 128).expect("a layout").with_lengths(&[4, 3, 4]);
    for documents in [gap, back, empty, cut.expect("lengths")] {
        let why = "one behind the other";
        refused(plan(&queries, &documents, &cross, [uploaded; 2], &options), why);
    }
    let masked = packed.clone().with_mask(&[1; 10]).expect("a mask");
    refused(plan(&queries, &masked, &cross, [uploaded; 2], &options), "no mask");
    let ids = Pairing::candidates(&[2i64, 0], 2).expect("ids");
    refused(plan(&queries, &packed, &ids, [uploaded; 2], &options), "in their order");
    let splits = options.clone().document_splits(2);
    refused(plan(&queries, &packed, &cross, [uploaded; 2], &splits), "takes no document splits");
    let winners = options.clone().winners(true);
    refused(plan(&queries, &packed, &cross, [uploaded; 2], &winners), "finds no winners");
}

/// The name of the kernel for padded queries and documents, `[items, tokens]` of each, or why there
/// is none.
pub(super) fn name_of(
    operand: Operand,
    limits: &DeviceLimits,
    (queries, documents, dim): ([usize; 2], [usize; 2], usize),
    (of_queries, of_documents): (Access, Access),
    options: &ScoreOptions,
) -> Result<&'static str, String> {
    let layout = |[n, len]: [usize; 2]| TokenLayout::padded(n, len, dim).expect("a layout");
    let (queries, documents, cross) = (layout(queries), layout(documents), Pairing::cross());
    let problem = Problem::new(&queries, &documents, &cross).expect("problem");
    let plan = Plan::choose(&problem, operand, limits, [of_queries, of_documents], options);
    plan.map(|plan| plan.name()).map_err(|error| error.to_string())
}

#[test]
fn ampere_keeps_query_fragments_in_registers_where_they_fit() {
    let ampere =
        DeviceLimits { capability: (8, 0), n_multiprocessors: 108, shared_bytes: 163 * 1024 };
    for element in [ElementType::F16, ElementType::Bf16] {
        for winners in [false, true] {
            for (dim, class) in [
                (1, "d128_q256"),
                (64, "d128_q256"),
                (128, "d128_q256"),
                (129, "wide_q128"),
                (MAX_DIM, "wide_q128"),
            ] {
                let pitch = uploaded(element, dim);
                let name = plan(element, dim, pitch, &ampere, winners, None).expect("a kernel");
                assert!(name.contains(class), "dim {dim}: {name}");
            }
        }
    }
}

#[test]
fn few_long_documents_are_split_and_the_plan_says_so() {
    let plan = |n_documents: usize, document_splits: Option<usize>| {
        let queries = TokenLayout::padded(1, 64, 128).expect("queries");
        let documents = TokenLayout::padded(n_documents, 8192, 128).expect("documents");
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).expect("problem");
        let access = Access::uploaded(128, ElementType::F16);
        let options = ScoreOptions::default().document_splits(document_splits);
        Plan::choose(&problem, ElementType::F16, &H200, [access, access], &options)
    };
    let few = plan(8, None).expect("a kernel");
    assert_eq!(few.document_splits(), 32);
    assert!(few.to_string().contains("; 32 document splits of up to 256 tokens"), "{few}");
    for (n_documents, asked, found) in [(1000, None, 1), (8, Some(1), 1), (1000, Some(4), 4)] {
        let plan = plan(n_documents, asked).expect("a kernel");
        assert_eq!(plan.document_splits(), found, "{n_documents} documents, {asked:?}");
        assert_eq!(plan.to_string().contains("document splits of"), found > 1, "{plan}");
    }
    let why = plan(8, Some(0)).expect_err("no splits").to_string();
    assert!(why.contains("document_splits") && why.contains("1 or more"), "{why}");
}

#[test]
fn a_plan_tells_what_runs_and_why_not_the_others() {
    let layout = TokenLayout::padded(1, 32, 100).expect("layout");
    let cross = Pairing::cross();
    let problem = Problem::new(&layout, &layout, &cross).expect("problem");
    let access = Access::uploaded(100, ElementType::F16);
    let options = ScoreOptions::default();
    let plan = Plan::choose(&problem, ElementType::F16, &H200, [access, access], &options);
    let plan = plan.expect("a kernel");
    let variant = plan.variant().expect("not the CPU");
    assert_eq!(plan.name(), variant.name);
    assert_eq!(plan.rejected().len(), FORWARD.len() - 1);
    let text = plan.to_string();
    assert!(text.starts_with(variant.name), "{text}");
    for row in FORWARD.iter().filter(|row| row.name != variant.name) {
        assert!(text.contains(&format!("not {}:", row.name)), "{text}");
    }
}

/// Kernels whose parameters say where documents start cannot run these, nor can documents be split.
#[test]
fn documents_that_the_device_alone_knows_stay_whole() {
    let queries = TokenLayout::padded(1, 32, 128).unwrap();
    let cross = Pairing::cross();
    let access = [Access::uploaded(128, ElementType::F16); 2];
    for (n, len) in [(1, 8000), (8, 128), (1000, 300), (132, 4000)] {
        let documents = TokenLayout::unread(n * len, 128, n, len, len).unwrap();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        for options in [ScoreOptions::default(), ScoreOptions::default().winners(true)] {
            let plan = Plan::choose(&problem, ElementType::F16, &H200, access, &options).unwrap();
            let schedule = plan.variant().unwrap().schedule;
            assert!(!schedule.is_contiguous() && !schedule.is_stream_k(), "{plan}");
            assert_eq!(plan.document_splits(), 1);
        }
        let pairs = Pairing::pairs(&[0i64], &[0i64]).unwrap();
        assert!(Problem::new(&queries, &documents, &pairs).is_err());
        assert!(Problem::new(&documents, &queries, &cross).is_err());
        let data = vec![0f32; n * len * 128];
        assert!(maxsim::Tokens::from_layout(&data, documents.clone()).is_err());
        assert!(documents.items(0..1).is_err() && documents.with_mask(&vec![1; n * len]).is_err());
    }
    for (longest, planned) in [(7, 1), (3, 4)] {
        assert!(TokenLayout::unread(6, 128, 2, longest, planned).is_err());
    }
}

#[test]
fn consistent_calls_run_what_agrees_with_the_kernel_that_finds_winners() {
    let cross = Pairing::cross();
    let access = [Access::uploaded(128, ElementType::F16); 2];
    for ((n, len), shape, expected) in [
        ((1, 32), (1000, 300), "maxsim_forward_sm90_f16_d128_q64"),
        ((8, 32), (1000, 180), "maxsim_forward_sm90_f16_d128_q256"),
        ((1, 1024), (1000, 1024), "maxsim_forward_sm90_f16_d128_q256_stream_k"),
        // Three tiles of 128 rows, of which one has rows of two queries.
        ((2, 144), (1000, 180), "maxsim_forward_sm90_f16_d128_q256"),
    ] {
        let queries = TokenLayout::padded(n, len, 128).unwrap();
        let documents = TokenLayout::padded(shape.0, shape.1, 128).unwrap();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        let options = ScoreOptions::default().consistent(true);
        let plan = Plan::choose(&problem, ElementType::F16, &H200, access, &options).unwrap();
        assert_eq!(plan.name(), expected);
    }
}
