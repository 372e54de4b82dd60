//! Compressed tokens: codes, scores and bounds against the definitions, on every engine.

use half::{bf16, f16};
use maxsim::format::{
    ElementType, Fp8, Int8, Int8Affine, QuantizeReport, Quantized, ScaleType, Scales, ScorableWith,
};
use maxsim::search::{ErrorTerms, score_bounds};
use maxsim::{Device, Error, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::quantize::{e4m3, e4m3_value};
use maxsim_tests::case::{Case, Data, Pairs};
use maxsim_tests::engines::check_stream_and_graph;
use maxsim_tests::quantized::{
    Formats, QuantizedCase, check_embeddings, check_quantized_case, e4m3_numbers, nearest_e4m3,
    quantized_cases, special_row, with_token_scores_of_every_row,
};
use maxsim_tests::strategy::EDGE_DIMS;
use maxsim_tests::suite::{Suite, is_full};
use maxsim_tests::values::{Values, stored};

/// The same cases in every format, the element types in turns.
fn in_every_format(cases: Vec<Case>) -> Vec<QuantizedCase> {
    let mut elements = ElementType::ALL.into_iter().cycle();
    let of = |case: Case| {
        let elements = &mut elements;
        let formats = Formats::ALL.into_iter().map(move |formats| {
            let element = elements.find(|&element| formats.take(element)).expect("one of three");
            QuantizedCase { case: Case { element, ..case.clone() }, formats }
        });
        formats.collect::<Vec<_>>()
    };
    cases.into_iter().flat_map(of).collect()
}

fn run(name: &'static str, cases: Vec<Case>) {
    Suite::run(name, in_every_format(cases), check_quantized_case);
}

/// As [`run`], of a third of the cases unless all are wanted: every format meets a third of the
/// shapes, and every shape a third of the formats.
fn run_third(name: &'static str, cases: Vec<Case>) {
    let cases = in_every_format(cases).into_iter().enumerate();
    let third = cases.filter(|(i, _)| is_full() || is_of_third(*i)).map(|(_, case)| case);
    Suite::run(name, third, check_quantized_case);
}

/// Whether the case of a number, of those in every format, is of the third.
fn is_of_third(i: usize) -> bool {
    i % 3 == i / Formats::ALL.len() % 3
}

#[test]
fn random() {
    Suite::run_random("quantized_random", quantized_cases, check_quantized_case);
}

#[test]
fn pairings_and_layouts() {
    let case = Case { poison: true, ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9]) };
    let mut cases = case.in_every_layout_and_pairing();
    for ((i, case), values) in (0..).zip(&mut cases).zip(Values::ALL.into_iter().cycle()) {
        case.values = values;
        case.seed += i;
        case.upload = [i % 2 == 0, i % 3 == 0];
    }
    // Every format meets every layout and pairing, if not each with each mask.
    let cases = in_every_format(cases).into_iter().enumerate();
    let third = cases.filter(|(i, _)| is_of_third(*i)).map(|(_, case)| case);
    Suite::run("quantized_pairings_and_layouts", third, check_quantized_case);
}

#[test]
fn dims() {
    let shape = |dim| [Case::new(dim, &[17, 3], &[65, 1, 16]), Case::new(dim, &[65], &[129])];
    let mut cases: Vec<Case> = EDGE_DIMS.into_iter().flat_map(shape).collect();
    // Sums of integer products beyond 2²⁴, where f32 has gaps.
    for dim in [1040, 1041, 2500, 4096] {
        cases.push(Case { values: Values::Negative, ..Case::new(dim, &[9], &[30]) });
    }
    run_third("quantized_dims", cases);
}

#[test]
fn nothing_there() {
    let mut cases =
        Case::without_tokens(&[Pairs::Cross, Pairs::Own { k: 2 }, Pairs::List { n: 5 }]);
    cases.extend(Case::all_masked());
    run("quantized_nothing_there", cases);
}

#[test]
fn values() {
    let mut cases = Vec::new();
    for values in Values::ALL {
        for (dim, queries, documents) in
            [(1, vec![1], vec![1]), (7, vec![3, 70], vec![2, 140]), (128, vec![33], vec![1, 300])]
        {
            let mut case = Case { values, poison: true, ..Case::new(dim, &queries, &documents) };
            case.queries.spare_rows = 5;
            case.documents.spare_rows = 5;
            case.documents.valid_percent = Some(70);
            cases.push(case);
        }
    }
    run("quantized_values", cases);
}

/// Documents of many tiles, whose first ones may give all, some or no rows a positive maximum.
#[test]
fn long_documents() {
    let mut cases = Vec::new();
    for values in Values::ALL {
        for (dim, queries) in [(1, vec![70]), (3, vec![5, 40]), (128, vec![1, 90])] {
            cases.push(Case { values, ..Case::new(dim, &queries, &[256, 128, 385]) });
        }
    }
    run_third("quantized_long_documents", cases);
}

/// Rows of every special kind on either side, each kind alone among ordinary rows, and all at once.
#[test]
fn special_rows() {
    let mut cases = Vec::new();
    for dim in [1, 5, 128, 1100] {
        cases.extend((0..17).map(|kind| (kind, Case::new(dim, &[3, 2], &[4, 1, 7]))));
    }
    let cases = cases.into_iter().flat_map(|(kind, case)| {
        ElementType::ALL.into_iter().flat_map(move |element| {
            let case = Case { element, ..case.clone() };
            let formats = Formats::ALL.into_iter().filter(move |formats| formats.take(element));
            formats.map(move |formats| (kind, QuantizedCase { case: case.clone(), formats }))
        })
    });
    Suite::run("quantized_special_rows", cases, |suite, (kind, case)| {
        let mut data: Data = case.case.data();
        for side in [&mut data.queries, &mut data.documents] {
            for (i, row) in side.values.chunks_exact_mut(side.dim).enumerate() {
                match kind {
                    16 => special_row(i % 13, row),
                    kind if i % 2 == 1 => special_row(*kind, row),
                    _ => continue,
                }
                row.iter_mut().for_each(|x| *x = stored(case.case.element, *x));
            }
        }
        check_embeddings(suite, case, &data)
    });
}

/// Every f16 number, every bf16 number, and the numbers half way between e4m3 numbers with their
/// neighbours.
#[test]
fn e4m3_is_the_nearest_number() {
    let numbers = e4m3_numbers();
    assert_eq!((numbers.len(), numbers[1], numbers[126]), (127, 2f64.powi(-9), 448.0));
    for code in 0..=u8::MAX {
        let expected = numbers.get(usize::from(code & 0x7F)).map_or(f32::NAN, |&x| x as f32);
        let expected = if code & 0x80 == 0 { expected } else { -expected };
        assert!(same(e4m3_value(code), expected), "{code:#x}: {}", e4m3_value(code));
    }
    let halves = (0..=u16::MAX).map(f16::from_bits).map(f16::to_f32);
    let bf16s = (0..=u16::MAX).map(bf16::from_bits).map(bf16::to_f32);
    let middles = numbers.windows(2).map(|pair| ((pair[0] + pair[1]) / 2.0) as f32);
    let near = middles.chain(numbers.iter().map(|&x| x as f32));
    let near = near.flat_map(|x| [x, x.next_down(), x.next_up()]).flat_map(|x| [x, -x]);
    for x in halves.chain(bf16s).chain(near) {
        let (code, expected) = (e4m3(x), nearest_e4m3(x));
        assert!(same(e4m3_value(code), expected), "{x:e}: {code:#x}, not {expected}");
    }
}

fn same(a: f32, b: f32) -> bool {
    a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits()
}

/// Compressed again, what codes stand for has the same codes: the largest is the end of the range.
#[test]
fn codes_survive_a_round_trip() {
    let case = Case::new(96, &[40], &[300]);
    let data = case.data();
    let tokens = Tokens::padded(&data.documents.values, 1, 300, 96).expect("tokens");
    for scales in [ScaleType::F16, ScaleType::F32] {
        let once = tokens.quantize::<Int8>(scales).expect("codes");
        let again = once.dequantize().and_then(|tokens| tokens.quantize::<Int8>(scales));
        let again = again.expect("codes");
        assert_eq!((once.data(), once.scales()), (again.data(), again.scales()));
    }
    let once = tokens.quantize::<Fp8>(ScaleType::F16).expect("codes");
    let again = once.dequantize().and_then(|tokens| tokens.quantize(ScaleType::F16));
    let again: Tokens<'_, Fp8> = again.expect("codes");
    assert_eq!((once.data(), once.scales()), (again.data(), again.scales()));
}

/// Scores and bounds worked out by hand.
#[test]
fn a_score_by_hand() {
    let layout = |len| TokenLayout::padded(1, len, 2).expect("a layout");
    let scales = |scales: &[f32]| Scales::F32(scales.to_vec().into());
    let queries = Tokens::<Int8>::from_codes(vec![1i8, -2], scales(&[0.5]), layout(1));
    // ⟨(1, -2), (3, 1)⟩ · 2 = 2, ⟨(1, -2), (0, -4)⟩ · 0.125 = 1.
    let documents =
        Tokens::<Int8>::from_codes(vec![3i8, 1, 0, -4], scales(&[2.0, 0.125]), layout(2));
    let (queries, documents) = (queries.expect("queries"), documents.expect("documents"));
    let options = ScoreOptions::default().winners(true).token_scores(true);
    let cross = Pairing::cross();
    let score = |d: &Tokens<'_, Int8>| Device::cpu().score_with(&queries, d, &cross, &options);
    let found = score(&documents).expect("scores");
    assert_eq!((found.values(), found.winners()), (&[1.0][..], Some(&[0][..])));

    // Half a step: u = (1, 1) and (1/16, 1/16) of the documents, (1/4, 1/4) of the query. In norms
    // of the rows (1/2, -1), (6, 2) and (0, -1/2): U∞ ‖q̂‖₁ + ‖d̂‖₁ u∞ + U₂ u₂.
    let terms = (ErrorTerms::new(&queries), ErrorTerms::new(&documents));
    let bound = score_bounds(&terms.0, &terms.1, &cross).expect("bounds")[0];
    let expected = 1.5 + (40f32.sqrt() * 0.125f32.sqrt()).min(8.0 * 0.25) + 0.5;
    assert!(bound >= expected && bound < expected * 1.01, "{bound}, not {expected}");

    // ⟨(1, -2), (3, 1)⟩ · 2 − 1 · 0.5 = 1.5.
    let affine = Scales::Affine {
        scales: vec![f16::from_f32(2.0)].into(),
        mins: vec![f16::from_f32(0.5)].into(),
    };
    let documents = Tokens::<Int8Affine>::from_codes(vec![3u8, 1], affine, layout(1));
    let found = Device::cpu().score(&queries, &documents.expect("documents"), &cross);
    assert_eq!(found.expect("scores").values(), [0.75]);
}

/// Similarities are whole numbers times their documents' scales to the bit, however large or small
/// those are, in every kernel of INT8.
#[test]
fn scales_of_any_size() {
    const DIM: usize = 128;
    const LENS: [usize; 2] = [70, 1153];
    let codes = |len: usize, seed: usize| -> Vec<i8> {
        let code = |i: usize| (((i + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i8;
        (0..len * DIM).map(|i| code(i).max(-127)).collect()
    };
    let [queries, documents] = [codes(LENS[0], 1), codes(LENS[1], 1 << 20)];
    let ones = Scales::F32(vec![1.0; LENS[0]].into());
    let layout = |len| TokenLayout::padded(1, len, DIM).expect("a layout");
    let query_tokens =
        Tokens::<Int8>::from_codes(&queries, ones, layout(LENS[0])).expect("queries");
    let sizes =
        [0.0, 1e-45, 1e-38, 2f32.powi(-41), 2f32.powi(-40), 1e-5, 2f32.powi(62), 5e18, 1e30];
    // Everywhere, in the first tile and the third, or in later ones alone, when maxima are those of
    // bits.
    let all: Vec<usize> = (0..LENS[1]).collect();
    let places: [&[usize]; 6] = [&all, &[7, 260], &[200], &[300], &[600, 1030], &[1151]];
    for (size, odd) in sizes.into_iter().chain([f32::NAN]).flat_map(|x| places.map(|odd| (x, odd)))
    {
        let is_odd = |t: usize| odd.contains(&t);
        let scales: Vec<f32> =
            (0..LENS[1]).map(|t| if is_odd(t) { size } else { 0.01 + t as f32 * 1e-4 }).collect();
        let similarity = |q: &[i8], (d, scale): (&[i8], &f32)| {
            let sum: i32 = q.iter().zip(d).map(|(&q, &d)| i32::from(q) * i32::from(d)).sum();
            sum as f32 * scale
        };
        let most = |q: &[i8]| {
            let all = documents.chunks_exact(DIM).zip(&scales).map(|d| similarity(q, d));
            all.reduce(|a, b| if a.is_nan() || a >= b { a } else { b }).expect("tokens")
        };
        let expected: Vec<f32> = queries.chunks_exact(DIM).map(most).collect();
        let document_scales = Scales::F32(scales.clone().into());
        let documents = Tokens::<Int8>::from_codes(&documents, document_scales, layout(LENS[1]));
        let documents = documents.expect("documents");
        with_token_scores_of_every_row(Operand::I8, &query_tokens, &documents, |row, found| {
            for (s, (&expected, &found)) in expected.iter().zip(found).enumerate() {
                assert!(
                    same(expected, found) || expected == found,
                    "{size:e} at {} tokens, {row:?}, token {s}: {expected:e}, not {found:e}",
                    odd.len()
                );
            }
        });
    }
}

/// Rows of which every element is off as far as it can be, in one direction, against a query of
/// ones: what scores lose is what bounds say, and little less.
#[test]
fn errors_that_add_up_are_what_bounds_say() {
    const DIM: usize = 128;
    // 2⁻²⁴, the least f16 scale, and one that is nearly rounded to twice it.
    let (least, nearly) = (2f32.powi(-24), 1.49 * 2f32.powi(-24));
    let row = |first: f32, x: f32| -> Vec<f32> {
        let mut row = vec![x; DIM];
        row[0] = first;
        row
    };
    fn check<Q: ScorableWith<D>, D: Quantized>(
        what: &str,
        (queries, of_queries): (&Tokens<'_, Q>, &ErrorTerms),
        row: &[f32],
    ) {
        let documents = Tokens::padded(row, 1, 1, DIM).expect("a row");
        let codes = documents.quantize::<D>(ScaleType::F16).expect("codes");
        let cross = Pairing::cross();
        let score = Device::cpu().score(queries, &codes, &cross).expect("a score").values()[0];
        let exact: f64 = row.iter().map(|&x| f64::from(x)).sum();
        let bounds = score_bounds(of_queries, &ErrorTerms::new(&codes), &cross).expect("bounds");
        let (off, bound) = ((f64::from(score) - exact).abs(), f64::from(bounds[0]));
        assert!(off <= bound && off > 0.7 * bound, "{what}: off by {off:e}, bound {bound:e}");
    }
    let ones = vec![1.0f32; DIM];
    let ones = Tokens::padded(&ones, 1, 1, DIM).expect("a row");
    let int8 = ones.quantize::<Int8>(ScaleType::F32).expect("codes");
    let fp8 = ones.quantize::<Fp8>(ScaleType::F32).expect("codes");
    let half = vec![f16::ONE; DIM];
    let half = Tokens::padded(&half, 1, 1, DIM).expect("a row");
    // Queries are off by next to nothing, and that is known.
    let int8 = (&int8, &ErrorTerms::measured(&int8, &ones).expect("terms"));
    let fp8 = (&fp8, &ErrorTerms::measured(&fp8, &ones).expect("terms"));
    let half = (&half, &ErrorTerms::new(&half));

    // Scale 1; half way between codes, above an even one.
    check::<Int8, Int8>("int8, half a step", int8, &row(127.0, 2.5));
    let mut from_0_to_255 = row(0.0, 2.5);
    from_0_to_255[1] = 255.0;
    check::<f16, Int8Affine>("affine, half a step", half, &from_0_to_255);
    check::<Fp8, Fp8>("fp8, half a step", fp8, &row(448.0, 272.0));
    // Beyond the largest code of a scale that was rounded down.
    check::<Int8, Int8>("int8, clamped", int8, &vec![127.0 * nearly; DIM]);
    check::<Fp8, Fp8>("fp8, clamped", fp8, &vec![448.0 * nearly; DIM]);
    check::<f16, Int8Affine>("affine, clamped", half, &row(0.0, 255.0 * nearly));
    // Below a minimum that was rounded up: f16 has 100.25 and 100.3125.
    check::<f16, Int8Affine>("affine, minimum", half, &vec![100.2815; DIM]);
    assert!(nearly < 1.5 * least);
}

#[test]
fn scales_that_do_not_fit_are_errors() {
    let layout = || TokenLayout::padded(1, 2, 2).expect("a layout");
    let argument = |result: Result<(), Error>| match result {
        Err(Error::Shape { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    let int8 = |codes: Vec<i8>, scales: Scales<'static>| {
        Tokens::<Int8>::from_codes(codes, scales, layout()).map(|_| ())
    };
    let f32s = |scales: &[f32]| Scales::F32(scales.to_vec().into());
    assert_eq!(argument(int8(vec![1; 3], f32s(&[1.0; 2]))), "codes");
    assert_eq!(argument(int8(vec![1; 4], f32s(&[1.0; 3]))), "scales");
    assert_eq!(argument(int8(vec![1; 4], Scales::Tensor(1.0))), "scales");
    let (one, two) = (vec![f16::ONE], vec![f16::ONE; 2]);
    let affine = |scales: &[f16], mins: &[f16]| {
        let (scales, mins) = (scales.to_vec().into(), mins.to_vec().into());
        let scales = Scales::Affine { scales, mins };
        Tokens::<Int8Affine>::from_codes(vec![1; 4], scales, layout()).map(|_| ())
    };
    assert_eq!(argument(affine(&one, &two)), "scales");
    assert_eq!(argument(affine(&two, &one)), "mins");
    let fp8 = Scales::Affine { scales: two.clone().into(), mins: two.into() };
    let fp8 = Tokens::<Fp8>::from_codes(vec![1; 4], fp8, layout()).map(|_| ());
    assert_eq!(argument(fp8), "scales");

    // What only the numbers show comes with the call; a masked row may hold anything.
    let device = Device::cpu();
    for wrong in [-1.0, f32::INFINITY] {
        let tokens = Tokens::<Int8>::from_codes(vec![1; 4], f32s(&[1.0, wrong]), layout());
        let tokens = tokens.expect("tokens");
        assert_eq!(argument(device.upload(&tokens).map(|_| ())), "scales");
        let score = device.score(&tokens, &tokens, &Pairing::cross()).map(|_| ());
        assert_eq!(argument(score), "scales");
        let masked = tokens.with_mask(vec![1u8, 0]).expect("a mask");
        let score = device.score(&masked, &masked, &Pairing::cross()).expect("a score");
        assert_eq!(score.values(), [2.0]);
    }
}

#[test]
fn what_there_is_not_is_unsupported() {
    let values = [1.0f32, 2.0, 3.0, 4.0];
    let tokens = Tokens::padded(&values, 1, 2, 2).expect("tokens");
    let unsupported = |result: Result<(), Error>, what: &str, why: &str| match result {
        Err(Error::Unsupported { what: found, why: reason }) => {
            assert!(found.contains(what), "{found}");
            assert!(reason.contains(why), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    let affine = tokens.quantize::<Int8Affine>(ScaleType::F32).map(|_| ());
    unsupported(affine, "int8-affine tokens with scales of type f32", "are f16");
    let int8 = tokens.quantize::<Int8>(ScaleType::Tensor).map(|_| ());
    unsupported(int8, "int8 tokens with scales of type tensor", "f16 or f32");

    let device = Device::cpu();
    let tokens = tokens.quantize::<Int8>(ScaleType::F16).expect("codes");
    let tokens = device.upload(&tokens).expect("a handle");
    let cross = Pairing::cross();
    let options = ScoreOptions::default().normalize(true);
    let normalized = device.score_with(&tokens, &tokens, &cross, &options).map(|_| ());
    unsupported(normalized, "`normalize` for int8", "before");
    let options = ScoreOptions::default().winners(true);
    let work = device.prepare(&tokens, &tokens, &cross, &options).expect("work");
    let backward = device
        .prepare_backward(&work, &Default::default(), maxsim::training::GradientType::F32)
        .map(|_| ());
    unsupported(backward, "gradients of int8", "f16, bf16 or f32");
}

/// Streams and graphs give what a synchronous call gives.
#[test]
fn streams_and_graphs() {
    let case = Case::new(128, &[7, 3], &[40, 1, 60]);
    let data = case.data();
    let half: Vec<f16> = data.queries.values.iter().map(|&x| f16::from_f32(x)).collect();
    let queries = Tokens::packed(&half, 128, &[0i64, 7, 10]).expect("queries");
    let documents = Tokens::packed(&data.documents.values, 128, &[0i64, 40, 41, 101]);
    let documents = documents.and_then(|d| d.quantize::<Int8Affine>(ScaleType::F16)).expect("d");
    let (device, cross) = (Device::cpu(), Pairing::cross());
    let options = ScoreOptions::default().token_scores(true);
    let expected = device.score_with(&queries, &documents, &cross, &options).expect("scores");
    let queries = device.upload(&queries).expect("queries");
    let documents = device.upload(&documents).expect("documents");
    check_stream_and_graph(&device, &queries, &documents, &options, &expected);
}

/// At dim 128: codes and scales against two bytes an element.
#[test]
fn sizes() {
    let values = vec![f16::ONE; 100 * 128];
    let tokens = Tokens::padded(&values, 10, 10, 128).expect("tokens");
    let plain = size_of_val(&values[..]) as f64;
    let ratio =
        |codes: usize, scales: &Scales<'_>| plain / (codes as f64 + scales.size_bytes() as f64);
    for (scales, least) in [(ScaleType::F16, 1.95), (ScaleType::F32, 1.93)] {
        let int8 = tokens.quantize::<Int8>(scales).expect("codes");
        assert!(ratio(int8.data().len(), int8.scales()) >= least);
        let fp8 = tokens.quantize::<Fp8>(scales).expect("codes");
        assert!(ratio(fp8.data().len(), fp8.scales()) >= least);
    }
    let fp8 = tokens.quantize::<Fp8>(ScaleType::Tensor).expect("codes");
    assert!(ratio(fp8.data().len(), fp8.scales()) > 1.999);
}

/// What conversions round is what they say, of valid tokens alone.
#[test]
fn conversions_say_what_they_round() {
    let values = [0.5, 0.1, 1e-9, -2e-9, 7e4, 1.0, f32::NAN, f32::INFINITY, 3e38, 1e-30];
    let tokens = Tokens::padded(&values, 5, 1, 2).expect("rows of 2");
    let (half, found) = tokens.convert::<f16>().expect("room for ten elements");
    let expected: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
    let bits: Vec<u16> = half.data().iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits, expected);
    assert_eq!((found.n_elements, found.n_changed), (10, 6));
    assert_eq!((found.n_overflowed, found.overflowed_row), (2, Some(2)));
    assert_eq!((found.n_vanished_rows, found.vanished_row), (1, Some(1)));
    assert_eq!(found.max_relative_error, 1.0);

    // Rows that are masked, and the rest of a longer matrix, count for nothing.
    let masked = tokens.with_mask(vec![1u8, 0, 0, 1, 0]).expect("a byte per row");
    let (half, found) = masked.convert::<f16>().expect("room for ten elements");
    assert_eq!(half.mask(), masked.mask());
    assert_eq!((found.n_elements, found.n_changed, found.n_overflowed), (4, 1, 0));
    let off = (f64::from(f16::from_f32(0.1).to_f32()) - f64::from(0.1f32)).abs();
    assert_eq!(found.max_relative_error, off / f64::from(0.1f32));
    let (wide, found) = half.convert::<f32>().expect("room for ten elements");
    assert!(found.is_exact() && wide.data()[1] == f16::from_f32(0.1).to_f32());
    let (_, found) = wide.convert::<bf16>().expect("room for ten elements");
    assert!(!found.is_exact() && found.max_relative_error <= 1.0 / 256.0);
}

/// Tokens that lost more than the rounding of codes takes are counted, and no others.
#[test]
fn reports_count_what_scales_have_no_room_for() {
    let values = [1.8e9f32, 1.0, 9e6, -1e5, 1e-7, 3e-8, 1e-9, 0.0, 0.0, 0.0, 0.7, -0.2];
    let tokens = Tokens::padded(&values, 6, 1, 2).expect("rows of 2");
    fn report<F: Quantized>(tokens: &Tokens<'_, f32>, scales: ScaleType) -> [u64; 4] {
        let codes = tokens.quantize::<F>(scales).expect("scales that the format has");
        let found = QuantizeReport::measured(&codes, tokens).expect("one size");
        assert_eq!(found.n_tokens, 6);
        [found.n_clipped_tokens, found.n_clipped, found.n_coarse_tokens, found.n_zeroed_tokens]
    }
    // INT8 ends at 127 · 65504; 9 · 10⁶ is beyond that, and 2⁻²⁴ is the least scale.
    assert_eq!(report::<Int8>(&tokens, ScaleType::F16), [2, 2, 2, 1]);
    assert_eq!(report::<Int8>(&tokens, ScaleType::F32), [0, 0, 0, 0]);
    assert_eq!(report::<Fp8>(&tokens, ScaleType::F16)[..2], [1, 1]);
    assert_eq!(report::<Fp8>(&tokens, ScaleType::F32)[..2], [0, 0]);
    // The minimum of the second is below -65504, by less than a step of its codes.
    assert_eq!(report::<Int8Affine>(&tokens, ScaleType::F16)[..2], [1, 1]);

    let other = Tokens::padded(&values, 3, 2, 2).expect("rows of 2");
    let codes = other.quantize::<Int8>(ScaleType::F16).expect("f16 scales");
    assert!(QuantizeReport::measured(&codes, &tokens).is_ok());
    let narrow = Tokens::padded(&values, 12, 1, 1).expect("rows of 1");
    let error = QuantizeReport::measured(&codes, &narrow).map(drop).expect_err("another size");
    assert!(matches!(error, Error::Shape { argument: "tokens", .. }), "{error}");
}
