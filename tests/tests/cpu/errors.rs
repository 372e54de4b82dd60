//! Every error that can be met without a GPU: its fields, and a message that says which
//! argument, what was expected and what was found.

use maxsim::format::{ElementType, Int8, RawRows, ScaleType, TokenFormat};
use maxsim::plan::Access;
use maxsim::plan::DeviceLimits;
use maxsim::plan::{Plan, Problem};
use maxsim::search::ErrorTerms;
use maxsim::stream::{DeviceScores, Stream};
use maxsim::{Device, DeviceTokens, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};

const DATA: [f32; 24] = [0.0; 24];

/// Asserts the variant, its fields and that the message shows each of `words`.
macro_rules! refused {
    ($result:expr, $variant:pat $(if $guard:expr)?, [$($word:expr),+]) => {{
        let error = $result.map(|_| ()).expect_err("must be refused");
        assert!(matches!(&error, $variant $(if $guard)?), "{error:?}");
        let message = error.to_string();
        $(assert!(message.contains(&$word.to_string()), "no {:?} in {message:?}", $word);)+
    }};
}

/// A [`Error::Shape`] with these fields, all of them in the message.
fn shape<T>(result: Result<T>, argument: &str, expected: &str, found: &str) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Shape { argument: a, expected: e, found: f } = &error else { panic!("{error:?}") };
    assert_eq!((*a, e.as_str(), f.as_str()), (argument, expected, found));
    assert_eq!(error.to_string(), format!("{argument}: expected {expected}, found {found}"));
}

/// A [`Error::Offset`] with these fields, all of them in the message.
fn offset<T>(result: Result<T>, argument: &str, index: usize, expected: &str, found: i128) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Offset { argument: a, index: i, expected: e, found: f } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((*a, *i, e.as_str(), *f), (argument, index, expected, found));
    assert_eq!(
        error.to_string(),
        format!("{argument}[{index}]: expected {expected}, found {found}")
    );
}

/// A [`Error::Id`] with these fields, all of them in the message.
fn id<T>(result: Result<T>, argument: &str, index: usize, found: i64, n_items: usize) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Id { argument: a, index: i, found: f, n_items: n } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((*a, *i, *f, *n), (argument, index, found, n_items));
    let message = error.to_string();
    for word in [argument, &found.to_string(), &n_items.to_string(), &format!("[{index}]")] {
        assert!(message.contains(word), "no {word:?} in {message:?}");
    }
}

/// Documents in one matrix of 6 rows of dim 4.
fn documents() -> TokenLayout {
    TokenLayout::packed(6, 4, &[0, 2, 6]).expect("two documents")
}

#[test]
fn dim() {
    for (dim, found) in [(0, "0"), (8193, "8193")] {
        shape(Tokens::padded(&DATA, 1, 1, dim), "dim", "1 to 8192", found);
        shape(Tokens::packed(&DATA, dim, &[0]), "dim", "1 to 8192", found);
        shape(Tokens::scattered(&DATA, dim, &[0], &[0]), "dim", "1 to 8192", found);
        shape(Tokens::<f32>::pack::<&[f32], f32>(&[], dim), "dim", "1 to 8192", found);
        shape(TokenLayout::padded(1, 1, dim), "dim", "1 to 8192", found);
        shape(TokenLayout::packed(1, dim, &[0]), "dim", "1 to 8192", found);
        shape(TokenLayout::scattered(1, dim, &[0], &[0]), "dim", "1 to 8192", found);
    }
    // Longer rows are hidden states, of which a projection makes tokens.
    let hidden = [0.0f32; 4097];
    let hidden = Tokens::padded(&hidden, 1, 1, 4097).expect("hidden states");
    let scores = Device::cpu().score(&hidden, &hidden, &Pairing::cross());
    shape(scores, "dim", "1 to 4096", "4097");
}

#[test]
fn data() {
    let expected = "20 elements (5 rows of 4)";
    shape(Tokens::padded(&DATA, 5, 1, 4), "data", expected, "24 elements");
    let expected = "28 elements (7 rows of 4)";
    shape(Tokens::padded(&DATA, 7, 1, 4), "data", expected, "24 elements");
    let whole = "whole rows of 7 elements";
    shape(Tokens::packed(&DATA, 7, &[0]), "data", whole, "24 elements");
    shape(Tokens::scattered(&DATA, 7, &[0], &[1]), "data", whole, "24 elements");
    shape(Tokens::pack(&[&DATA[..7], &DATA[..8]], 7), "matrices", whole, "8 elements in item 1");
}

#[test]
fn lengths() {
    let padded = || Tokens::padded(&DATA, 2, 3, 4).expect("well-formed");
    shape(padded().with_lengths(&[1]), "lengths", "2 entries (one per item)", "1 entries");
    offset(padded().with_lengths(&[3, -1]), "lengths", 1, "0 to 3", -1);
    offset(padded().with_lengths(&[4, 0]), "lengths", 0, "0 to 3", 4);
    offset(padded().with_lengths(&[0, i64::MIN]), "lengths", 1, "0 to 3", i64::MIN.into());
    offset(padded().with_lengths(&[0, 1i64 << 32]), "lengths", 1, "0 to 3", 1 << 32);

    let unmasked = "a padded layout, before its mask is set";
    let packed = Tokens::packed(&DATA, 4, &[0, 6]).expect("well-formed");
    shape(packed.with_lengths(&[1]), "lengths", unmasked, "Packed");
    let masked = padded().with_mask(&[1u8; 6][..]).expect("well-formed");
    shape(
        masked.with_lengths(&[1, 1]),
        "lengths",
        unmasked,
        "a layout with a mask; call with_lengths first",
    );
}

#[test]
fn offsets() {
    let packed = |offsets: &[i64]| Tokens::packed(&DATA, 4, offsets);
    shape(packed(&[]), "offsets", "number of items + 1 entries", "0 entries");
    offset(packed(&[-1, 2]), "offsets", 0, "0 to 6", -1);
    offset(packed(&[0, 7]), "offsets", 1, "0 to 6", 7);
    offset(packed(&[0, 4, 3]), "offsets", 2, "4 to 6", 3);
    offset(packed(&[0, 1i64 << 32]), "offsets", 1, "0 to 6", 1 << 32);
    offset(packed(&[7]), "offsets", 0, "0 to 6", 7);
    offset(Tokens::packed(&DATA, 4, &[0i32, -3]), "offsets", 1, "0 to 6", -3);
}

/// What a first program has: whatever integers its counts are, and the rows of an item in any form.
#[test]
fn integers_and_rows_of_first_programs() {
    let rows = |tokens: Result<Tokens<'_, f32>>| tokens.expect("whole rows").layout().clone();
    let expected = rows(Tokens::packed(&DATA, 4, &[0i64, 2, 6]));
    assert_eq!(rows(Tokens::packed(&DATA, 4, &[0usize, 2, 6])), expected);
    assert_eq!(rows(Tokens::packed(&DATA, 4, &Vec::from([0u64, 2, 6]))), expected);
    assert_eq!(rows(Tokens::packed(&DATA, 4, &[0u32, 2, 6])), expected);
    let huge = u64::MAX - 5;
    offset(Tokens::packed(&DATA, 4, &[0, 2, huge]), "offsets", 2, "2 to 6", huge.into());
    offset(Tokens::scattered(&DATA, 4, &[huge], &[1]), "starts", 0, "0 to 6", huge.into());
    let padded = Tokens::padded(&DATA, 2, 3, 4).expect("well-formed");
    let huge = usize::MAX;
    offset(padded.with_lengths(&[1, huge]), "lengths", 1, "0 to 3", huge as i128);
    let (huge, from_0) = (u64::MAX, "a number from 0 to 4294967295");
    offset(Pairing::pairs(&[0, huge], &[0, 0]), "query_ids", 1, from_0, huge.into());
    assert_eq!(Pairing::candidates(&[0usize, 1], 2).ok(), Pairing::candidates(&[0, 1], 2).ok());

    let row = |row: usize| [DATA[4 * row], DATA[4 * row + 1], DATA[4 * row + 2], DATA[4 * row + 3]];
    let arrays = [(0..2).map(row).collect::<Vec<_>>(), (2..6).map(row).collect()];
    let packed = Tokens::pack(&arrays, 4).expect("rows of 4");
    assert_eq!((packed.data(), packed.layout()), (&DATA[..], &expected));
    let vectors = arrays.clone().map(|item| item.iter().map(|row| row.to_vec()).collect());
    let mut vectors: Vec<Vec<Vec<f32>>> = vectors.to_vec();
    assert_eq!(Tokens::pack(&vectors, 4).expect("rows of 4").data(), DATA);
    let packed = Tokens::pack(&[&DATA[..8], &DATA[8..]], 4).expect("rows of 4");
    assert_eq!((packed.data(), packed.layout()), (&DATA[..], &expected));
    let matrices = |tokens, found| shape(tokens, "matrices", "rows of 4 elements", found);
    vectors[1][2].pop();
    matrices(Tokens::pack(&vectors, 4), "3 elements in row 2 of item 1");
    matrices(Tokens::pack(&[vec![[1.0f32; 8]]], 4), "8 elements in row 0 of item 0");
}

#[test]
fn starts() {
    let scattered = |starts: &[i64], lengths: &[i64]| Tokens::scattered(&DATA, 4, starts, lengths);
    let expected = "2 entries (as many as starts)";
    shape(scattered(&[0, 1], &[1]), "lengths", expected, "1 entries");
    offset(scattered(&[0, -1], &[1, 1]), "starts", 1, "0 to 6", -1);
    offset(scattered(&[7], &[0]), "starts", 0, "0 to 6", 7);
    offset(scattered(&[0, 4], &[6, 3]), "lengths", 1, "0 to 2", 3);
    offset(scattered(&[0], &[-2]), "lengths", 0, "0 to 6", -2);
    offset(scattered(&[2], &[i64::MAX]), "lengths", 0, "0 to 4", i64::MAX.into());
}

#[test]
fn mask() {
    let tokens = Tokens::packed(&DATA, 4, &[0, 6]).expect("well-formed");
    let expected = "6 entries (one byte per row)";
    shape(tokens.with_mask(&[1u8; 5][..]), "mask", expected, "5 entries");
    let masked = documents().with_mask(&[1; 6]).expect("well-formed");
    let expected = "a layout without a mask";
    shape(Tokens::from_layout(&DATA[..], masked), "layout", expected, "a masked layout");
}

#[test]
fn pairing() {
    let expected = "a multiple of k = 2 entries";
    shape(Pairing::candidates(&[0, 1, 0], 2), "candidate ids", expected, "3 entries");
    let expected = "a multiple of k = 0 entries";
    shape(Pairing::candidates(&[0], 0), "candidate ids", expected, "1 entries");
    let expected = "2 entries (as many as query_ids)";
    shape(Pairing::pairs(&[0, 1], &[0]), "document_ids", expected, "1 entries");
    let from_0 = "a number from 0 to 4294967295";
    offset(Pairing::candidates(&[0, -1], 2), "candidate ids", 1, from_0, -1);
    offset(Pairing::candidates(&[1i64 << 32], 1), "candidate ids", 0, from_0, 1 << 32);
    offset(Pairing::pairs(&[0, -1], &[0, 0]), "query_ids", 1, from_0, -1);
    offset(Pairing::pairs(&[0, 0], &[-9, 0]), "document_ids", 0, from_0, -9);
}

#[test]
fn problem() {
    let (queries, documents) = (TokenLayout::padded(3, 2, 4).expect("queries"), documents());
    let problem = |pairing: Result<Pairing>| {
        let pairing = pairing.expect("well-formed by itself");
        Problem::new(&queries, &documents, &pairing).map(|_| ())
    };
    let wide = TokenLayout::padded(1, 1, 5).expect("dim 5");
    let cross = Pairing::cross();
    shape(Problem::new(&queries, &wide, &cross), "documents", "dim 4 like the queries", "dim 5");
    let own = |k| Ok(Pairing::own_candidates(k));
    shape(problem(own(1)), "documents", "3 queries × 1 own candidates", "2 documents");
    shape(problem(own(0)), "documents", "3 queries × 0 own candidates", "2 documents");
    let huge = format!("3 queries × {} own candidates", usize::MAX);
    shape(problem(own(usize::MAX)), "documents", &huge, "2 documents");
    let ids = Pairing::candidates(&[0, 1, 0, 1], 2);
    shape(problem(ids), "candidate ids", "3 queries × 2 ids", "4 ids");
    id(problem(Pairing::candidates(&[0, 1, 2], 1)), "candidate ids", 2, 2, 2);
    id(problem(Pairing::pairs(&[0, 3], &[0, 1])), "query_ids", 1, 3, 3);
    id(problem(Pairing::pairs(&[2, 2], &[2, 0])), "document_ids", 0, 2, 2);
    let last = i64::from(u32::MAX);
    id(problem(Pairing::pairs(&[0], &[last])), "document_ids", 0, last, 2);
}

#[test]
fn the_same_checks_guard_every_call() {
    let wide = Tokens::padded(&DATA, 1, 3, 8).expect("dim 8");
    let narrow = Tokens::padded(&DATA, 2, 3, 4).expect("dim 4");
    let (device, cross) = (Device::cpu(), Pairing::cross());
    let expected = "dim 8 like the queries";
    shape(device.score(&wide, &narrow, &cross), "documents", expected, "dim 4");
    let options = ScoreOptions::default();
    shape(device.score_with(&wide, &narrow, &cross, &options), "documents", expected, "dim 4");
    shape(device.plan(&wide, &narrow, &cross, &options), "documents", expected, "dim 4");
    let uploaded = device.upload(&narrow).expect("room");
    shape(device.score(&wide, &uploaded, &cross), "documents", expected, "dim 4");
}

#[test]
fn too_large() {
    const LIMIT: u64 = (1 << 31) - 1;
    let rows = "rows of a token matrix";
    for (n, len) in [(1 << 20, 1 << 11), (1 << 31, 1), (usize::MAX, 2), (usize::MAX, usize::MAX)] {
        let found = n.saturating_mul(len) as u64;
        refused!(
            TokenLayout::padded(n, len, 8),
            Error::TooLarge { what, limit: LIMIT, found: f } if *what == rows && *f == found,
            [rows, LIMIT, found]
        );
    }
    refused!(
        TokenLayout::padded(1 << 31, 0, 8),
        Error::TooLarge { what: "number of items", limit: LIMIT, found: 2147483648 },
        ["number of items", LIMIT, 2147483648u32]
    );
    refused!(
        TokenLayout::packed(1 << 31, 8, &[0]),
        Error::TooLarge { what: "rows of a token matrix", .. },
        [rows]
    );
    refused!(
        TokenLayout::scattered(1 << 31, 8, &[0], &[0]),
        Error::TooLarge { what: "rows of a token matrix", .. },
        [rows]
    );
    // 2¹⁶ × 2¹⁵ pairs is one too many.
    let queries = TokenLayout::padded(1 << 16, 0, 8).expect("empty queries");
    let documents = TokenLayout::padded(1 << 15, 0, 8).expect("empty documents");
    refused!(
        Problem::new(&queries, &documents, &Pairing::cross()),
        Error::TooLarge { what: "number of pairs", limit: LIMIT, found: 2147483648 },
        ["number of pairs", LIMIT, 2147483648u32, "split"]
    );
}

#[test]
fn host_memory() {
    // 2²² pairs of 2²⁴ query tokens: 2⁴⁶ winners, more bytes than a process can address.
    let data = vec![half::f16::ZERO; 1 << 24];
    let queries = Tokens::scattered(&data, 1, &vec![0; 1 << 11], &vec![1 << 24; 1 << 11]);
    let documents = Tokens::padded(&data[..0], 1 << 11, 0, 1);
    let (queries, documents) = (queries.expect("queries"), documents.expect("documents"));
    for (winners, token_scores) in [(true, false), (false, true)] {
        let options = ScoreOptions::default().winners(winners).token_scores(token_scores);
        refused!(
            Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options),
            Error::HostMemory { requested_bytes: 281474976710656, .. },
            [281474976710656u64, "fewer"]
        );
    }
}

#[test]
fn kernels_that_cannot_run() {
    let tokens = Tokens::padded(&DATA, 2, 3, 4).expect("well-formed");
    let cross = Pairing::cross();
    let named = |name: &str| ScoreOptions::default().kernel(name);
    let name = "maxsim_forward_sm80_f32_q256";
    refused!(
        Device::cpu().score_with(&tokens, &tokens, &cross, &named(name)),
        Error::Unsupported { what, .. } if what.contains(name),
        [name, "CPU", "unset"]
    );

    let h200 =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };
    let plan = |dim, limits: &DeviceLimits, options: &ScoreOptions| {
        let layout = TokenLayout::padded(2, 3, dim).expect("well-formed");
        let problem = Problem::new(&layout, &layout, &cross).expect("fits");
        let access = Access::uploaded(dim, ElementType::F16);
        Plan::choose(&problem, ElementType::F16, limits, [access, access], options).map(|_| ())
    };
    let any = ScoreOptions::default();
    refused!(
        plan(4, &h200, &named("maxsim_forward_sm80_f64")),
        Error::Unsupported { .. },
        ["maxsim_forward_sm80_f64", "no such kernel"]
    );
    refused!(
        plan(4, &h200, &named(name)),
        Error::Unsupported { .. },
        ["f16", "works on f32", name]
    );
    refused!(
        plan(129, &h200, &named("maxsim_forward_sm80_f16_d128_q64")),
        Error::Unsupported { .. },
        ["dim", "at most 128"]
    );
    let old = DeviceLimits { capability: (7, 5), ..h200.clone() };
    refused!(plan(4, &old, &any), Error::Unsupported { .. }, ["sm_80", "7.5"]);
    let small = DeviceLimits { shared_bytes: 48 * 1024, capability: (8, 0), ..h200 };
    refused!(plan(512, &small, &any), Error::Unsupported { .. }, ["shared memory", 48 * 1024]);
}

#[test]
fn a_device_that_is_not_there() {
    let error = Device::cuda(1000).map(|_| ()).expect_err("no machine has so many");
    match &error {
        Error::NoDriver { why, source } => {
            let source = source.as_ref().expect("what the linker said");
            assert_eq!(source.to_string(), *why);
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        }
        Error::NoDevice { ordinal: 1000, n_devices } => {
            assert!(error.to_string().contains("1000"), "{error}");
            assert!(*n_devices == 0 || error.to_string().contains(&n_devices.to_string()));
        }
        Error::CudaNotBuilt if !cfg!(all(feature = "cuda", target_os = "linux")) => {}
        _ => panic!("{error:?}"),
    }
    // With or without a GPU there is a device that scores.
    let tokens = Tokens::padded(&DATA, 2, 3, 4).expect("well-formed");
    let scores = Device::best().score(&tokens, &tokens, &Pairing::cross()).expect("scores");
    assert_eq!(scores.values(), [0.0; 4]);
}

#[test]
fn foreign_memory_of_the_cpu() {
    let layout = TokenLayout::padded(1, 1, 4).expect("well-formed");
    // SAFETY: refused before the address is used.
    let handle = unsafe {
        DeviceTokens::<f32>::from_raw_parts(&Device::cpu(), RawRows::new(256, 16), layout)
    };
    let what = "memory of a CUDA device";
    refused!(
        handle,
        Error::Unsupported { what: w, .. } if w.contains(what),
        [what, "CPU", "Device::cuda"]
    );
    let tokens = Device::cpu().upload(&Tokens::padded(&DATA, 2, 3, 4).expect("tokens"));
    let tokens = tokens.expect("room");
    let options = ScoreOptions::default();
    let work = Device::cpu().prepare(&tokens, &tokens, &Pairing::cross(), &options);
    // SAFETY: as above.
    let scores = unsafe { DeviceScores::from_raw_parts(&work.expect("work"), 256, None, None) };
    refused!(
        scores,
        Error::Unsupported { what: w, .. } if w.contains(what),
        [what, "CPU", "Device::cuda"]
    );
    // SAFETY: as above.
    let stream = unsafe { Stream::from_raw(&Device::cpu(), 0) };
    let what = "a stream of a CUDA device";
    refused!(
        stream,
        Error::Unsupported { what: w, .. } if w.contains(what),
        [what, "CPU", "Device::cuda"]
    );
}

#[test]
fn no_driver_means_the_cpu() {
    if let Err(error) = Device::cuda(0) {
        assert!(!error.to_string().is_empty());
        assert_eq!(Device::best().to_string(), "cpu");
    }
}

/// The messages of errors that only a GPU machine can bring about.
#[test]
fn messages_say_what_to_do() {
    let says = |error: Error, words: &[&str]| {
        let message = error.to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    let (expected, found) = ("cuda:0".into(), "cuda:1".into());
    let error = Error::WrongDevice { argument: "documents", expected, found };
    says(error, &["documents", "cuda:0", "cuda:1", "upload"]);
    let why = "not device memory".into();
    says(Error::ForeignPointer { address: 0xabc, why }, &["0xabc", "not device memory"]);
    let error = Error::DeviceMemory { requested_bytes: 10, free_bytes: Some(7) };
    says(error, &["10 bytes", "7 were free", "fewer"]);
    says(Error::DeviceMemory { requested_bytes: 10, free_bytes: None }, &["10 bytes", "fewer"]);
    says(Error::CudaNotBuilt, &["feature `cuda`"]);
    let error = Error::NoDriver { why: "libcuda.so.1: not found".into(), source: None };
    says(error, &["libcuda.so.1: not found", "install", "Device::cpu()"]);
    says(Error::NoDevice { ordinal: 2, n_devices: 2 }, &["device 2", "sees 2"]);
    says(Error::NoDevice { ordinal: 0, n_devices: 0 }, &["no device", "CUDA_VISIBLE_DEVICES"]);
    let error = Error::UnsupportedDevice { name: "Tesla T4".into(), capability: (7, 5) };
    says(error, &["Tesla T4", "7.5", "8.0", "Device::cpu()"]);
    let error = Error::PtxTooNew { kernel: "maxsim_x".into(), driver_version: 12020 };
    says(error, &["maxsim_x", "12.2", "update"]);
    says(
        Error::DeviceLost { call: "cuLaunchKernel", code: 700 },
        &["cuLaunchKernel", "700", "restart"],
    );
    let error = Error::Driver { call: "cuMemAlloc", code: 1, message: "invalid value".into() };
    says(error, &["cuMemAlloc", "1", "invalid value"]);
}

/// What a device is said to score is what calls of it can be compiled for.
#[test]
fn only_formats_that_go_together_can_be_scored() {
    let plain = ElementType::ALL.map(TokenFormat::from);
    let [f16, bf16, f32] = [ElementType::F16, ElementType::Bf16, ElementType::F32];
    let residual = [f16, bf16, f32].map(TokenFormat::Residual);
    let codes = [TokenFormat::Int8, TokenFormat::Int8Affine, TokenFormat::Fp8];
    let formats: Vec<TokenFormat> = plain.into_iter().chain(residual).chain(codes).collect();
    let goes = |queries, documents| match (queries, documents) {
        (TokenFormat::Element(a), TokenFormat::Element(b) | TokenFormat::Residual(b)) => a == b,
        (TokenFormat::Element(a), TokenFormat::Int8Affine) => a != ElementType::F32,
        (TokenFormat::Int8, TokenFormat::Int8 | TokenFormat::Int8Affine) => true,
        (TokenFormat::Fp8, TokenFormat::Fp8) => true,
        _ => false,
    };
    for &queries in &formats {
        for &documents in &formats {
            let can_score = Device::cpu().can_score(queries, documents);
            assert_eq!(can_score, goes(queries, documents), "{queries} against {documents}");
        }
    }
}

/// An error or a log that shows tokens does not show millions of numbers.
#[test]
fn what_is_printed_for_debugging_is_short() {
    let data = vec![0.5f32; 20_000];
    let tokens = Tokens::padded(&data, 5000, 1, 4).expect("tokens");
    let handle = Device::cpu().upload(&tokens).expect("handle");
    let codes = tokens.quantize::<Int8>(ScaleType::F16).expect("codes");
    let terms = ErrorTerms::new(&codes);
    for text in [
        format!("{tokens:?}"),
        format!("{handle:?}"),
        format!("{codes:?}"),
        format!("{terms:?}"),
        format!("{:?}", tokens.layout()),
    ] {
        assert!(text.len() < 300 && text.contains("n_items: 5000"), "{text}");
    }
}

#[test]
fn no_splits_at_all_are_refused_on_the_cpu() {
    let tokens = Tokens::padded(&DATA[..8], 1, 2, 4).expect("tokens");
    let options = ScoreOptions::default().document_splits(0);
    let scored = Device::cpu().score_with(&tokens, &tokens, &Pairing::cross(), &options);
    shape(scored, "document_splits", "1 or more, or None", "0");
}
