//! Calls that select the best of each query: what they refuse, graphs, memory of the caller, and
//! documents whose lengths the device alone knows.

use std::sync::Arc;

use maxsim::format::RawRows;
use maxsim::stream::{DeviceTopK, Queue};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{memory, text};
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;
use maxsim_tests::top_k::{Corpus, Empty, Scored, Values, check};

fn argument_of(result: maxsim::Result<()>) -> &'static str {
    match result {
        Err(Error::Shape { argument, .. } | Error::WrongDevice { argument, .. }) => argument,
        Err(Error::TooLarge { .. }) => "too large",
        Err(Error::Unsupported { .. }) => "unsupported",
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    Suite::run("top_k_errors", all_devices(), |suite, device| {
        let cross = Pairing::cross();
        let corpus = Corpus::new(Values::Distinct, Empty::None, 20, 2, 1);
        let [queries, documents] = corpus.tokens().map_err(text)?;
        let scored = |k: usize| Scored::new(device, [&queries, &documents], &cross, k);
        let ten = scored(10).map_err(text)?;
        let five = scored(5).map_err(text)?;
        let fewer = corpus.documents(0, 19).map_err(text)?;
        let fewer = Scored::new(device, [&queries, &fewer], &cross, 10).map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        let mut best = ten.top_k.new_best().map_err(text)?;
        let mut five_best = five.top_k.new_best().map_err(text)?;

        let call = stream.top_k_into(&fewer.scores, &ten.top_k, &mut best);
        assert_eq!(argument_of(call), "scores");
        let call = stream.top_k_into(&ten.scores, &ten.top_k, &mut five_best);
        assert_eq!(argument_of(call), "best");
        assert_eq!(argument_of(stream.merge_top_k(&five_best, &mut best)), "other");
        let last = u32::MAX - 19;
        let call = stream.top_k_more(&ten.scores, &ten.top_k, last + 1, &mut best);
        assert_eq!(argument_of(call), "too large");
        assert_eq!(argument_of(scored(4097).map(drop)), "too large");
        let refused = device.prepare_top_k(&ten.work, &fewer.tokens[1], 1).map(drop);
        assert_eq!(argument_of(refused), "documents");
        // Nothing of that was enqueued.
        assert!(best.read().map_err(text)?.iter().all(|ranking| ranking.ranked.is_empty()));
        stream.top_k_more(&ten.scores, &ten.top_k, last, &mut best).map_err(text)?;
        let found = best.read().map_err(text)?;
        assert!(found[0].ranked.iter().all(|document| document.id >= last));

        let unknown = documents.layout().clone().with_unread_mask();
        if device.ordinal().is_some() {
            let rows = RawRows::new(ten.tokens[1].access().base, 16).mask(1 << 40);
            // SAFETY: no call reads it.
            let view = unsafe { DeviceTokens::<f32>::from_raw_unchecked(device, rows, unknown) };
            let (view, options) = (view.map_err(text)?, ScoreOptions::default());
            let work = device.prepare(&ten.tokens[0], &view, &cross, &options).map_err(text)?;
            let refused = device.prepare_top_k(&work, &view, 1).map(drop);
            assert_eq!(argument_of(refused), "unsupported");
            let other = &fewer.tokens[1];
            let refused = device.prepare_top_k_reading(&work, other, 1).map(drop);
            assert_eq!(argument_of(refused), "documents");
            let cpu = Device::cpu().prepare_top_k(&work, &view, 1).map(drop);
            assert_eq!(argument_of(cpu), "work");
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

/// Work that is found again may be of documents with another mask: which of them are empty is what
/// the documents say that are ranked.
#[test]
fn empty_documents_are_those_that_are_ranked() {
    Suite::run("top_k_masks", all_devices(), |suite, device| {
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let rows = [-1.0f32, -2.0, -3.0, -4.0];
        let query = device.upload(&Tokens::padded(&[1.0f32], 1, 1, 1).map_err(text)?);
        let query = query.map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        for (mask, ids) in [([1u8, 0, 1, 1], [0, 2, 3, 1]), ([0, 1, 1, 0], [1, 2, 0, 3])] {
            let documents = Tokens::padded(&rows, 4, 1, 1).map_err(text)?;
            let documents = documents.with_mask(&mask[..]).map_err(text)?;
            let documents = device.upload(&documents).map_err(text)?;
            let work = device.prepare_cached(&query, &documents, &cross, &options);
            let work = work.map_err(text)?;
            let top_k = device.prepare_top_k(&work, &documents, 4).map_err(text)?;
            let mut scores = work.new_scores().map_err(text)?;
            let mut best = top_k.new_best().map_err(text)?;
            stream.score_into(&query, &documents, &work, &mut scores).map_err(text)?;
            stream.top_k_into(&scores, &top_k, &mut best).map_err(text)?;
            let found = best.read().map_err(text)?;
            assert!(found[0].ranked.iter().map(|document| document.id).eq(ids), "{found:?}");
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

/// A graph that scores and selects gives the same as the calls; its launches replace what there
/// was, or add to it.
#[test]
fn graphs_select_and_merge() {
    let cases = all_devices().into_iter().flat_map(|device| {
        let lens: &[usize] = if device.ordinal().is_some() { &[300, 200_000] } else { &[300] };
        lens.iter().map(move |&n| (device.clone(), n)).collect::<Vec<_>>()
    });
    Suite::run("top_k_graphs", cases, |suite, (device, n)| {
        let cross = Pairing::cross();
        let corpus = Corpus::new(Values::Ties, Empty::Third, *n, 2, 9);
        let [queries, documents] = corpus.tokens().map_err(text)?;
        let scored = Scored::new(device, [&queries, &documents], &cross, 50).map_err(text)?;
        let expected = scored.expected(&cross, &[], 50).map_err(text)?;
        let Scored { tokens: [queries, documents], work, top_k, mut scores } = scored;
        let mut new =
            [top_k.new_best(), top_k.new_best(), top_k.new_best()].map(|best| best.expect("room"));
        let [best, running, merged] = &mut new;
        let graph = device.capture(|capture| {
            capture.score_into(&queries, &documents, &work, &mut scores)?;
            capture.top_k_into(&scores, &top_k, best)?;
            capture.top_k_more(&scores, &top_k, *n as u32, running)?;
            capture.merge_top_k(best, merged)
        });
        let mut graph = graph.map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        for round in 1..=3u64 {
            graph.launch(&mut stream).map_err(text)?;
            check(&expected, &best.read().map_err(text)?)?;
            for (found, first_id) in [(&*running, *n as u32), (&*merged, 0)] {
                let found = found.read().map_err(text)?;
                let counts = (expected[0].n_nan * round, expected[0].n_empty * round);
                assert_eq!((found[0].n_nan, found[0].n_empty), counts);
                // Every document as often as it was added.
                let id = |place: usize| expected[0].ranked[place / round as usize].id + first_id;
                let mut ids = found[0].ranked.iter().map(|document| document.id).enumerate();
                assert!(ids.all(|(place, found)| found == id(place)));
            }
        }
        // What the graph captured stays.
        drop((queries, documents, work, scores));
        graph.launch(&mut stream).map_err(text)?;
        check(&expected, &best.read().map_err(text)?)?;
        suite.count(&device.to_string());
        Ok(())
    });
}

#[test]
fn keys_in_memory_of_the_caller() {
    Suite::run_gpu("gpu_top_k_raw", |suite| {
        let cross = Pairing::cross();
        for device in cuda_devices() {
            for (n, k) in [(500, 20), (100_000, 300)] {
                let corpus = Corpus::new(Values::Special, Empty::Third, n, 3, 4);
                let [queries, documents] = corpus.tokens().map_err(text)?;
                let scored =
                    Scored::new(device, [&queries, &documents], &cross, k).map_err(text)?;
                let expected = scored.expected(&cross, &[], k).map_err(text)?;
                let [keys_bytes, counts_bytes] = scored.top_k.len_bytes();
                assert_eq!([keys_bytes, counts_bytes], [3 * k as u64 * 8, 48]);
                let keys = memory(device, &vec![0x55; keys_bytes as usize])?;
                let counts = memory(device, &vec![0x55; counts_bytes as usize])?;
                let workspace =
                    memory(device, &vec![0x55; scored.top_k.workspace_bytes() as usize])?;
                let at = [&keys, &counts].map(|memory| memory.access().base);
                let mut stream = device.stream().map_err(text)?;
                // SAFETY: the memory is there until the keys have been read, and nothing else uses
                // it.
                let mut best = unsafe {
                    let len_bytes = scored.top_k.workspace_bytes();
                    stream.set_workspace(workspace.access().base, len_bytes).map_err(text)?;
                    let odd = DeviceTopK::from_raw_unchecked(&scored.top_k, at[0] + 4, at[1]);
                    assert!(matches!(odd, Err(Error::ForeignPointer { .. })));
                    DeviceTopK::from_raw_parts(&scored.top_k, at[0], at[1]).map_err(text)?
                };
                assert_eq!(best.addresses(), Some(at));
                stream.top_k_into(&scored.scores, &scored.top_k, &mut best).map_err(text)?;
                check(&expected, &best.read().map_err(text)?)?;
                suite.count(&device.to_string());
                drop(best);
                for (memory, used) in [(&keys, keys_bytes), (&counts, counts_bytes)] {
                    let words = memory.download().map_err(text)?;
                    let rest = &words.data()[used as usize / 4..];
                    assert!(rest.iter().all(|word| word.is_nan()), "written behind the end");
                }
            }
        }
        Ok(cuda_devices().len() * 2)
    });
}

/// Documents that are empty by their lengths or by their masks alone, of which the host knows
/// neither: they come last, though they score 0 and others score less.
#[test]
fn documents_that_the_device_alone_knows() {
    Suite::run_gpu("gpu_top_k_unread", |suite| {
        const DIM: usize = 64;
        let (n, len) = (3000usize, 4usize);
        let number = |i: usize| ((i as u64 * 2_654_435_761) >> 7) % 9;
        let rows: Vec<f32> = (0..n * len * DIM)
            .map(|i| number(i) as f32 - if i % 3 == 0 { 4.0 } else { 7.0 })
            .collect();
        let lengths: Vec<i64> = (0..n).map(|i| (i % 5).min(len) as i64).collect();
        let mask: Vec<u8> = (0..n * len).map(|row| u8::from(row / len % 7 != 3)).collect();
        let query: Vec<f32> = (0..DIM).map(|i| if i < 3 { 1.0 } else { 0.0 }).collect();
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        for device in cuda_devices() {
            let query = device.upload(&Tokens::padded(&query, 1, 1, DIM).map_err(text)?);
            let query = query.map_err(text)?;
            let tokens = Tokens::padded(&rows, n, len, DIM).map_err(text)?;
            let tokens = tokens.with_lengths(&lengths).map_err(text)?;
            let known = tokens.with_mask(&mask[..]).map_err(text)?;
            let own = device.upload(&known).map_err(text)?;
            let expected = device.top_k(&query, &own, &cross, &options, 2500).map_err(text)?;
            assert!(expected[0].n_empty > 900);

            let mask_at = memory(device, &mask)?;
            let segments: Vec<u8> = (0..n)
                .flat_map(|i| [(i * len) as u32, lengths[i] as u32])
                .flat_map(u32::to_le_bytes)
                .collect();
            let segments_at = memory(device, &segments)?;
            let access = own.access();
            let raw = RawRows::new(access.base, access.pitch_bytes).mask(mask_at.access().base);
            let unread = TokenLayout::unread(n * len, DIM, n, len, len).map_err(text)?;
            let padded = TokenLayout::padded(n, len, DIM).map_err(text)?;
            let lengths = padded.with_lengths(&lengths).map_err(text)?;
            for (raw, layout) in [
                (raw.segments(segments_at.access().base), unread.with_unread_mask()),
                (raw, lengths.with_unread_mask()),
            ] {
                // SAFETY: the memory is there until the ranking has been read, which waits.
                let view = unsafe {
                    DeviceTokens::<f32>::from_raw_unchecked(device, raw, Arc::new(layout))
                };
                let view = view.map_err(text)?;
                let work = device.prepare(&query, &view, &cross, &options).map_err(text)?;
                let top_k = device.prepare_top_k_reading(&work, &view, 2500).map_err(text)?;
                let mut scores = work.new_scores().map_err(text)?;
                let mut best = top_k.new_best().map_err(text)?;
                let mut stream = device.stream().map_err(text)?;
                stream.score_into(&query, &view, &work, &mut scores).map_err(text)?;
                stream.top_k_into(&scores, &top_k, &mut best).map_err(text)?;
                check(&expected, &best.read().map_err(text)?)?;
                let found = device.top_k(&query, &view, &cross, &options, 2500).map_err(text)?;
                check(&expected, &found)?;
                suite.count(&device.to_string());
            }
        }
        Ok(cuda_devices().len() * 2)
    });
}
