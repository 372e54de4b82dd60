//! Searches over documents that pass by: from every source and in chunks of any size they give, to
//! the bit, the ranking of documents that are all there.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use half::{bf16, f16};
use maxsim::format::{
    Element, ElementType, Format, Fp8, Int8, Int8Affine, Quantized, Scales, ScorableWith,
};
use maxsim::streaming::{Generated, Source, StreamOptions, TokenReader};
use maxsim::{Device, Pairing, Ranking, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::case::{Case, Pairs, elements, tokens};
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::strategy::cases;
use maxsim_tests::suite::{Suite, temporary_path};
use maxsim_tests::top_k::{Corpus, Empty, VALUES, check};
use maxsim_tests::values::Values;
use proptest::prelude::*;
use proptest::sample::select;

/// A search: the corpus, what it is compressed to, and how it passes by.
#[derive(Clone, Debug)]
pub struct Streamed {
    pub case: Case,
    pub k: usize,
    pub buffer_bytes: u64,
    pub threads: usize,
}

pub fn streamed(element: ElementType) -> impl Strategy<Value = Streamed> {
    let buffer_bytes = prop_oneof![3 => 1..4000u64, 3 => 4000..200_000u64, 1 => Just(1 << 30)];
    let k = prop_oneof![0..4usize, 4..60usize];
    (cases(element), k, buffer_bytes, 1..4usize).prop_map(|(case, k, buffer_bytes, threads)| {
        let case = Case { pairs: Pairs::Cross, document_splits: None, ..case };
        Streamed { case, k, buffer_bytes, threads }
    })
}

/// A file that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    /// A file of these bytes.
    fn new(bytes: &[u8]) -> Result<Temporary, String> {
        let file = Temporary(temporary_path("streamed"));
        fs::write(&file.0, bytes).map_err(|error| error.to_string())?;
        Ok(file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Bytes before the rows of a file.
const HEADER_BYTES: usize = 40;

/// Documents whose rows lie elsewhere.
struct Locked<'a, D: Format>(&'a [D::Stored], &'a Tokens<'a, D>);

impl<D: Format> Source<D> for Locked<'_, D> {
    fn layout(&self) -> &TokenLayout {
        self.1.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.1.mask()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        Source::scales(self.1)
    }

    fn in_memory(&self) -> Option<&[D::Stored]> {
        Some(self.0)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [D::Stored]) -> std::io::Result<()> {
        self.1.fill(rows, to)
    }
}

/// Calls `run` with each source of the documents: memory, page-locked memory, a program, a file.
pub fn from_every_source<D: Format>(
    device: &Device,
    documents: &Tokens<'_, D>,
    run: impl Fn(&str, &dyn Source<D>) -> Result<(), String>,
) -> Result<(), String> {
    run("memory", documents)?;
    let (layout, dim) = (documents.layout().clone(), documents.layout().dim());

    let mut locked = device.page_locked::<D>(documents.data().len()).map_err(text)?;
    locked.copy_from_slice(documents.data());
    run("page-locked memory", &Locked(&locked, documents))?;

    let fill = |rows: Range<usize>, to: &mut [D::Stored]| {
        to.copy_from_slice(&documents.data()[rows.start * dim..rows.end * dim]);
        Ok(())
    };
    let mut generated = Generated::<D, _>::new(layout.clone(), fill);
    if let Some(mask) = documents.mask() {
        generated = generated.with_mask(mask);
    }
    if let Some(scales) = Source::scales(documents) {
        generated = generated.with_scales(scales);
    }
    run("a program", &generated)?;

    let bytes = [&[0xA5; HEADER_BYTES], bytemuck::cast_slice(documents.data())].concat();
    let file = Temporary::new(&bytes)?;
    let first = HEADER_BYTES as u64;
    let buffered = TokenReader::<D>::open(&file.0, first, layout.clone());
    let mut readers = vec![("a file", buffered.map_err(|error| error.to_string())?)];
    // Not every file system reads past its cache.
    if let Ok(direct) = TokenReader::<D>::open_direct(&file.0, first, layout) {
        readers.push(("a file, past the cache", direct));
    }
    for (name, mut reader) in readers {
        if let Some(mask) = documents.mask() {
            reader = reader.with_mask(mask);
        }
        if let Some(scales) = Source::scales(documents) {
            reader = reader.with_scales(scales);
        }
        run(name, &reader)?;
    }
    Ok(())
}

/// Compares every source's search with what the device ranks of documents that are all there.
fn check_streamed<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    (queries, documents): (&Tokens<'_, Q>, &Tokens<'_, D>),
    streamed: &Streamed,
    buffer_bytes: u64,
) -> Result<(), String> {
    let Streamed { case, k, threads, .. } = streamed;
    let score = ScoreOptions::default().normalize(case.normalize);
    // As the one chunk of a search has them: without the rows before the first and behind the last.
    let all = documents.items(0..documents.layout().n_items()).map_err(text)?;
    let whole = device.top_k(queries, &all, &Pairing::cross(), &score, *k).map_err(text)?;
    let options =
        StreamOptions::default().score(score).buffer_bytes(buffer_bytes).threads(*threads);
    // No sum of codes rounds, so that pairs have the bits of all documents.
    let (all, n_queries) = (0..documents.layout().n_items() as u32, queries.layout().n_items());
    let lists = vec![all.rev().collect::<Vec<u32>>(); n_queries];
    let has_pairs = D::FORMAT.element().is_none();
    from_every_source(device, documents, |source, documents| {
        let at = |error: maxsim::Error| format!("{source}: {error}");
        let found = device.search_stream(queries, &documents, *k, &options).map_err(at)?;
        check(&whole, &found.rankings).map_err(|why| format!("{source}: {why}"))?;
        if has_pairs {
            let found = device.rank_candidates(queries, &documents, &lists, *k, &options);
            check(&whole, &found.map_err(at)?)
                .map_err(|why| format!("{source}, candidates: {why}"))?;
        }
        Ok(())
    })
}

/// Chunks have kernels of their own on a GPU: sums that round have the bits of documents that are
/// all there where they are one chunk, and sums that do not round wherever.
pub fn buffer_bytes(device: &Device, streamed: &Streamed) -> u64 {
    let rounds = streamed.case.values != Values::Integers || streamed.case.normalize;
    if rounds && device.ordinal().is_some() { 1 << 30 } else { streamed.buffer_bytes }
}

/// A check of a case's tokens, with buffers of a size.
pub type Check<T> = fn(
    &Device,
    (&Tokens<'_, T>, &Tokens<'_, T>),
    &Streamed,
    buffer_bytes: u64,
) -> Result<(), String>;

/// Checks a case's tokens on all devices.
pub fn on_all_devices<T: Element>(
    suite: &Suite,
    streamed: &Streamed,
    check: Check<T>,
) -> Result<(), String> {
    let case = &streamed.case;
    let data = case.data();
    let stored = [elements::<T>(&data.queries), elements::<T>(&data.documents)];
    let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
    for device in all_devices() {
        check(&device, (&queries, &documents), streamed, buffer_bytes(&device, streamed))
            .map_err(|why| format!("{device}: {why}"))?;
        suite.count(&device.to_string());
    }
    Ok(())
}

fn check_elements<T: Element>(suite: &Suite, streamed: &Streamed) -> Result<(), String> {
    on_all_devices::<T>(suite, streamed, check_streamed)
}

#[test]
fn f16_as_if_all_were_there() {
    Suite::run_random("streamed_f16", || streamed(ElementType::F16), check_elements::<f16>);
}

#[test]
fn bf16_as_if_all_were_there() {
    Suite::run_random("streamed_bf16", || streamed(ElementType::Bf16), check_elements::<bf16>);
}

#[test]
fn f32_as_if_all_were_there() {
    Suite::run_random("streamed_f32", || streamed(ElementType::F32), check_elements::<f32>);
}

/// The e4m3 codes of -3 to 3.
const FP8: [u8; 7] = [0xC4, 0xC0, 0xB8, 0x00, 0x38, 0x40, 0x44];

/// Codes of whole numbers whose scales are powers of two: no sum rounds.
fn check_codes(suite: &Suite, streamed: &Streamed) -> Result<(), String> {
    let streamed = &Streamed {
        case: Case {
            values: Values::Integers,
            normalize: false,
            poison: false,
            ..streamed.case.clone()
        },
        ..streamed.clone()
    };
    let case = &streamed.case;
    let data = case.data();
    let whole = [&data.queries, &data.documents]
        .map(|side| side.values.iter().map(|&x| x as i8).collect::<Vec<i8>>());
    let stored = [elements::<f16>(&data.queries), elements::<f16>(&data.documents)];
    let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
    let scale = |row: usize| [0.5f32, 1.0, 4.0][row % 3];
    let half = |x: f32| f16::from_f32(x);
    let rows = |tokens: &Tokens<'_, f16>| tokens.layout().rows();
    let narrow = |tokens| Scales::F16((0..rows(tokens)).map(|row| half(scale(row))).collect());
    let wide = |tokens| Scales::F32((0..rows(tokens)).map(scale).collect());
    let affine = Scales::Affine {
        scales: (0..rows(&documents)).map(|row| half(scale(row))).collect(),
        mins: (0..rows(&documents)).map(|row| half(-3.0 * scale(row))).collect(),
    };
    let int8 = |side: usize, tokens, scales| coded::<Int8>(tokens, whole[side].clone(), scales);
    let fp8 = |side: usize, tokens, scales| {
        let codes = whole[side].iter().map(|&x| FP8[(x + 3) as usize]).collect();
        coded::<Fp8>(tokens, codes, scales)
    };
    let shifted = whole[1].iter().map(|&x| (x + 3) as u8).collect();
    let affine = coded::<Int8Affine>(&documents, shifted, affine)?;
    let int8_queries = int8(0, &queries, narrow(&queries))?;
    let int8_documents = [narrow(&documents), wide(&documents)];
    let [int8_narrow, int8_wide] = int8_documents.map(|scales| int8(1, &documents, scales));
    let (int8_narrow, int8_wide) = (int8_narrow?, int8_wide?);
    let fp8_queries = fp8(0, &queries, Scales::Tensor(2.0))?;
    let fp8_documents = fp8(1, &documents, wide(&documents))?;
    let fp8_of_tensor = fp8(1, &documents, Scales::Tensor(0.25))?;
    for device in all_devices() {
        let at = |what: &str, found: Result<(), String>| {
            found.map_err(|why| format!("{device}, {what}: {why}"))
        };
        let buffer = streamed.buffer_bytes;
        let int8 = (&int8_queries, &int8_narrow);
        at("int8", check_streamed(&device, int8, streamed, buffer))?;
        let int8 = (&int8_queries, &int8_wide);
        at("int8, f32 scales", check_streamed(&device, int8, streamed, buffer))?;
        let half = (&queries, &affine);
        at("f16, affine", check_streamed(&device, half, streamed, buffer))?;
        let both = (&int8_queries, &affine);
        at("int8, affine", check_streamed(&device, both, streamed, buffer))?;
        let fp8 = (&fp8_queries, &fp8_documents);
        at("fp8", check_streamed(&device, fp8, streamed, buffer))?;
        let fp8 = (&fp8_queries, &fp8_of_tensor);
        at("fp8, one scale", check_streamed(&device, fp8, streamed, buffer))?;
        suite.count(&device.to_string());
    }
    Ok(())
}

/// Codes in the layout and with the mask of other tokens.
fn coded<F: Quantized>(
    like: &Tokens<'_, f16>,
    codes: Vec<F::Stored>,
    scales: Scales<'static>,
) -> Result<Tokens<'static, F>, String> {
    let layout = like.layout();
    let starts: Vec<u32> = layout.segments().iter().map(|[start, _]| *start).collect();
    let lengths: Vec<u32> = layout.segments().iter().map(|[_, len]| *len).collect();
    let layout = TokenLayout::scattered(layout.rows(), layout.dim(), &starts, &lengths);
    let coded = Tokens::<F>::from_codes(codes, scales, layout.map_err(text)?).map_err(text)?;
    match like.mask() {
        Some(mask) => coded.with_mask(mask.to_vec()).map_err(text),
        None => Ok(coded),
    }
}

#[test]
fn codes_as_if_all_were_there() {
    Suite::run_random_on_kernels("streamed_codes", || streamed(ElementType::F16), check_codes);
}

/// Rankings with ties, NaN, infinities and empty documents, over many chunks, of which most have
/// nothing to add.
#[test]
fn ties_and_nan_over_many_chunks() {
    let values = || (select(&VALUES[..]), select(vec![Empty::None, Empty::Third, Empty::Most]));
    let strategy = move || {
        let k = prop_oneof![Just(0usize), Just(1), 2..200usize, Just(4096)];
        (values(), 1..1500usize, 1..4usize, k, 1..600u64, any::<u64>())
    };
    Suite::run_random("streamed_ties", strategy, |suite, case| {
        let ((values, empty), n, n_queries, k, buffer_bytes, seed) = case;
        let corpus = Corpus::new(*values, *empty, *n, *n_queries, *seed);
        let [queries, documents] = corpus.tokens().map_err(text)?;
        for device in all_devices() {
            let (cross, score) = (Pairing::cross(), ScoreOptions::default());
            let whole = device.top_k(&queries, &documents, &cross, &score, *k).map_err(text)?;
            let options = StreamOptions::default().buffer_bytes(*buffer_bytes);
            let found = device.search_stream(&queries, &documents, *k, &options).map_err(text)?;
            check(&whole, &found.rankings).map_err(|why| format!("{device}: {why}"))?;
            check_first_nan(&device, [&queries, &documents], &whole, &options)?;
            suite.count(&device.to_string());
        }
        Ok(())
    });
}

/// More documents of a query than a GPU selects, in chunks of all sizes.
#[test]
fn more_than_a_gpu_selects() {
    let (n, k) = (6000, 5000);
    let corpus = Corpus::new(VALUES[0], Empty::Third, n, 2, 7);
    let [queries, documents] = corpus.tokens().expect("tokens");
    for device in all_devices() {
        let (cross, score) = (Pairing::cross(), ScoreOptions::default());
        let whole = device.top_k(&queries, &documents, &cross, &score, k).expect("rankings");
        for buffer_bytes in [3000, 1 << 20] {
            let options = StreamOptions::default().buffer_bytes(buffer_bytes);
            let found = device.search_stream(&queries, &documents, k, &options);
            let found = found.expect("a search");
            check(&whole, &found.rankings).unwrap_or_else(|why| panic!("{device}: {why}"));
            assert_eq!(found.rankings[0].ranked.len(), k, "{device}");
        }
    }
}

/// The NaN that is named is the first of those that were counted.
fn check_first_nan(
    device: &Device,
    [queries, documents]: [&Tokens<'_, f32>; 2],
    whole: &[Ranking],
    options: &StreamOptions,
) -> Result<(), String> {
    let scores = device.score(queries, documents, &Pairing::cross()).map_err(text)?;
    let n = documents.layout().n_items();
    let nan = (0..scores.values().len()).filter(|&at| scores.values()[at].is_nan());
    let first = nan.map(|at| [at / n, at % n]).min_by_key(|&[query, document]| (document, query));
    let found = device.first_nan(queries, documents, options).map_err(text)?;
    let is_counted = whole.iter().any(|ranking| ranking.n_nan > 0);
    match found == first && found.is_some() == is_counted {
        true => Ok(()),
        false => Err(format!("{device}: the first NaN is {first:?}, not {found:?}")),
    }
}

/// Candidates that are read from a source have the ranking of the same pairs among documents that
/// are all there.
#[test]
fn candidates_are_read_and_ranked() {
    let strategy = || {
        let list = prop::collection::vec(any::<prop::sample::Index>(), 0..20);
        (streamed(ElementType::F32), prop::collection::vec(list, 1..50))
    };
    Suite::run_random("streamed_candidates", strategy, |suite, (streamed, lists)| {
        let case = &streamed.case;
        let data = case.data();
        let stored = [elements::<f32>(&data.queries), elements::<f32>(&data.documents)];
        let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
        let n = documents.layout().n_items();
        let list = |query: usize| -> Vec<u32> {
            let list = lists[query % lists.len()].iter().filter(|_| n > 0);
            list.map(|id| id.index(n.max(1)) as u32).collect()
        };
        let candidates: Vec<Vec<u32>> = (0..queries.layout().n_items()).map(list).collect();
        let pair = |(query, list): (u32, &Vec<u32>)| {
            list.iter().map(move |&id| [query, id]).collect::<Vec<_>>()
        };
        let pairs: Vec<[u32; 2]> = (0u32..).zip(&candidates).flat_map(pair).collect();
        let ids = |side: usize| pairs.iter().map(|pair| pair[side]).collect::<Vec<u32>>();
        let pairing = Pairing::pairs(&ids(0), &ids(1)).map_err(text)?;
        let score = ScoreOptions::default().normalize(case.normalize);
        for device in all_devices() {
            let at = |why: String| format!("{device}: {why}");
            let whole = device.top_k(&queries, &documents, &pairing, &score, streamed.k);
            let whole = whole.map_err(text)?;
            // Batches have kernels of their own on a GPU.
            if device.ordinal().is_some() && buffer_bytes(&device, streamed) == 1 << 30 {
                continue;
            }
            let options =
                StreamOptions::default().score(score.clone()).buffer_bytes(streamed.buffer_bytes);
            from_every_source(&device, &documents, |source, documents| {
                let found =
                    device.rank_candidates(&queries, &documents, &candidates, streamed.k, &options);
                check(&whole, &found.map_err(text)?).map_err(|why| format!("{source}: {why}"))
            })
            .map_err(at)?;
            let none = device.rank_candidates(&queries, &documents, &[], 1, &options);
            if none.is_ok() != candidates.is_empty() {
                return Err(at("lists of other queries".into()));
            }
            let mut wrong = candidates.clone();
            if let Some(list) = wrong.last_mut() {
                list.push(n as u32);
                let found = device.rank_candidates(&queries, &documents, &wrong, 1, &options);
                if !matches!(found, Err(maxsim::Error::Id { argument: "candidates", .. })) {
                    return Err(at("a candidate that there is not".into()));
                }
            }
            suite.count(&device.to_string());
        }
        Ok(())
    });
}
