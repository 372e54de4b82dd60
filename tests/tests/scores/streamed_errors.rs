//! Searches over documents that pass by, and what ends them early: the error says what happened,
//! and the next call works.

use std::fs;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use maxsim::format::{Int8, Scales};
use maxsim::streaming::{Generated, Source, StreamOptions, StreamProgress, TokenReader};
use maxsim::{Device, Error, Interrupt, Ranking, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::temporary_path;

/// Documents of one token of one element: its number.
const N: usize = 1000;

/// Documents at a time: the third buffer is filled while the first is scored.
const BUFFER_BYTES: u64 = 100 * 4;

fn options() -> StreamOptions {
    StreamOptions::default().buffer_bytes(BUFFER_BYTES).threads(3)
}

fn layout() -> TokenLayout {
    TokenLayout::padded(N, 1, 1).expect("a layout")
}

/// A search that must work, whatever came before it.
fn search(device: &Device) -> Vec<Ranking> {
    let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
    let rows: Vec<f32> = (0..N).map(|row| row as f32).collect();
    let documents = Tokens::padded(&rows, N, 1, 1).expect("documents");
    let found = device.search_stream(&query, &documents, 3, &options()).expect("a search");
    assert!(found.rankings[0].ranked.iter().map(|found| found.id).eq([999, 998, 997]));
    found.rankings
}

/// What a search of one query gives for a source.
fn found(device: &Device, source: &dyn Source<f32>) -> maxsim::Result<Vec<Ranking>> {
    let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
    Ok(device.search_stream(&query, &source, 3, &options())?.rankings)
}

fn rising(rows: Range<usize>, to: &mut [f32]) -> io::Result<()> {
    rows.zip(to).for_each(|(row, x)| *x = row as f32);
    Ok(())
}

fn filled<T: Copy>(to: &mut [T], value: T) -> io::Result<()> {
    to.fill(value);
    Ok(())
}

#[test]
fn a_source_that_fails_is_named_with_its_rows() {
    for device in all_devices() {
        for wrong in [0, 450, N - 1] {
            let source = Generated::<f32, _>::new(layout(), |rows, to| {
                if rows.contains(&wrong) {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, "no such page"));
                }
                rising(rows, to)
            });
            match found(&device, &source) {
                Err(ref error @ Error::Source { first_row, n_rows, ref source }) => {
                    let rows = first_row as usize..(first_row + n_rows) as usize;
                    assert!(rows.contains(&wrong), "{device}: {error}");
                    assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
                    assert!(error.to_string().contains("no such page"), "{error}");
                    assert!(std::error::Error::source(error).is_some());
                }
                other => panic!("{device}: {other:?}"),
            }
            search(&device);
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (a panic ends the program)")]
fn a_source_that_panics_ends_the_search() {
    for device in all_devices() {
        let source = Generated::<f32, _>::new(layout(), |rows, to| {
            assert!(!rows.contains(&700), "as meant");
            rising(rows, to)
        });
        let panicked = catch_unwind(AssertUnwindSafe(|| found(&device, &source)));
        assert!(panicked.is_err(), "{device}");
        search(&device);
    }
}

#[test]
fn a_file_that_ends_early_is_named() {
    let path = temporary_path("truncated");
    let rows: Vec<f32> = (0..N).map(|row| row as f32).collect();
    for device in all_devices() {
        fs::write(&path, bytemuck::cast_slice(&rows)).expect("a file");
        let buffered = TokenReader::<f32>::open(&path, 0, layout()).expect("a reader");
        let direct = TokenReader::<f32>::open_direct(&path, 0, layout()).ok();
        for reader in direct.iter().chain([&buffered]) {
            assert_eq!(found(&device, reader).expect("a search"), search(&device));
        }
        let file = fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(2500).expect("a shorter file");
        for reader in direct.iter().chain([&buffered]) {
            match found(&device, reader) {
                Err(ref error @ Error::Source { ref source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof, "{error}");
                    assert!(error.to_string().contains("maxsim-truncated"), "{error}");
                }
                other => panic!("{device}: {other:?}"),
            }
            search(&device);
        }
    }
    fs::remove_file(&path).expect("the file");
}

#[test]
fn a_search_is_cancelled_on_every_device() {
    for device in all_devices() {
        let (interrupt, seen) = (Interrupt::default(), Arc::new(Mutex::new(Vec::new())));
        let (flag, log) = (interrupt.clone(), seen.clone());
        let report = move |progress: &StreamProgress| {
            log.lock().expect("the log").push(*progress);
            if progress.documents >= 300 {
                flag.raise();
            }
        };
        let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
        let source = Generated::<f32, _>::new(layout(), rising);
        let options = options().progress(report);
        let call = || device.search_stream(&query, &source, 3, &options);
        assert!(matches!(interrupt.heeded_by(call), Err(Error::Interrupted)), "{device}");
        // Rows of 4 bytes take 16 on a GPU.
        let step: u64 = if device.ordinal().is_some() { 25 } else { 100 };
        let expected: Vec<u64> = (step..=300).step_by(step as usize).collect();
        let done: Vec<u64> =
            seen.lock().expect("the log").iter().map(|seen| seen.documents).collect();
        assert_eq!(done, expected, "{device}");
        // Not even begun.
        assert!(matches!(interrupt.heeded_by(call), Err(Error::Interrupted)), "{device}");
        assert_eq!(seen.lock().expect("the log").len(), expected.len());
        let found = call().expect("a search");
        assert_eq!((found.n_chunks as u64, found.bytes), (1000 / step, 4000), "{device}");
        let last = *seen.lock().expect("the log").last().expect("progress");
        assert_eq!((last.documents, last.n_documents, last.bytes), (1000, 1000, 4000));
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let masked = |mask: Vec<u8>| Generated::<f32, _>::new(layout(), rising).with_mask(mask);
    for device in all_devices() {
        let shape = |found: maxsim::Result<_>, argument: &str, said: &str| match found {
            Err(ref error @ Error::Shape { argument: found, .. }) => {
                assert_eq!(found, argument, "{device}: {error}");
                assert!(error.to_string().contains(said), "{device}: {error}");
            }
            Err(other) => panic!("{device}: {other}"),
            Ok(()) => panic!("{device}: nothing refused"),
        };
        let search = |source: &dyn Source<f32>| found(&device, source).map(drop);
        shape(search(&masked(vec![1; N - 1])), "mask", "999");
        let unmasked = layout().with_mask(&[1; N]).expect("a layout");
        let unmasked = Generated::<f32, _>::new(unmasked, rising);
        shape(search(&unmasked), "documents", "mask");
        let wide = TokenLayout::padded(3, 1, 2).expect("a layout");
        let wide = Generated::<f32, _>::new(wide, |_, to| filled(to, 0.0));
        shape(search(&wide), "documents", "dim");

        let codes = || Generated::<Int8, _>::new(layout(), |_, to| filled(to, 1));
        let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
        let query = query.quantize::<Int8>(Default::default()).expect("codes");
        let search =
            |source: &dyn Source<Int8>| device.search_stream(&query, &source, 3, &options());
        shape(search(&codes()).map(drop), "documents", "scales");
        for n in [N - 1, N + 1] {
            let wrong = codes().with_scales(Scales::F32(vec![1.0; n].into()));
            shape(search(&wrong).map(drop), "scales", &n.to_string());
        }
        let tensor = codes().with_scales(Scales::Tensor(1.0));
        shape(search(&tensor).map(drop), "scales", "F32");
        for wrong in [-1.0, f32::INFINITY] {
            let mut scales = vec![1.0; N];
            scales[777] = wrong;
            let scales = || Scales::F32(scales.clone().into());
            let wrong = codes().with_scales(scales());
            shape(search(&wrong).map(drop), "scales", "777");
            // Of a row that is no token it does not matter.
            let mask: Vec<u8> = (0..N).map(|row| u8::from(row != 777)).collect();
            let masked = codes().with_scales(scales()).with_mask(mask);
            assert_eq!(search(&masked).expect("a search").rankings[0].n_empty, 1);
        }
        let normalized = options().score(ScoreOptions::default().normalize(true));
        let scaled = codes().with_scales(Scales::F32(vec![1.0; N].into()));
        let found = device.search_stream(&query, &scaled, 3, &normalized);
        assert!(matches!(found, Err(Error::Unsupported { .. })), "{device}");
        let named = options().score(ScoreOptions::default().kernel("no such kernel"));
        let found = device.search_stream(&query, &scaled, 3, &named);
        assert!(matches!(found, Err(Error::Unsupported { .. })), "{device}");
        self::search(&device);
    }
}

#[test]
fn corpora_without_documents_or_queries_are_searched() {
    for device in all_devices() {
        for (n_queries, n) in [(0, 0), (0, 5), (2, 0)] {
            let query = Tokens::padded(&[1.0f32; 2][..n_queries], n_queries, 1, 1);
            let rows = vec![1.0f32; n];
            let documents = Tokens::padded(&rows, n, 1, 1).expect("documents");
            let found = device
                .search_stream(&query.expect("queries"), &documents, 3, &options())
                .expect("a search");
            assert_eq!(found.rankings, vec![Ranking::default(); n_queries], "{device}");
        }
    }
}
