//! Device memory: what is written, what is read, what is freed, and what there is too little of.

use bytemuck::{cast_slice, pod_read_unaligned};
use half::{bf16, f16};
use maxsim::format::{Element, ElementType, RawRows};
use maxsim::stream::{DeviceScores, Queue};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::agree;
use maxsim_tests::case::{Case, Pairs, Side, elements};
use maxsim_tests::engines::{Engine, Problem, cuda_devices};
use maxsim_tests::gpu::{free_bytes, ragged_cases, same_bits, text};
use maxsim_tests::suite::Suite;

/// Device memory with known bytes all over, that can be read back.
struct Arena {
    tokens: DeviceTokens<f32>,
    bytes: Vec<u8>,
    /// The same memory as the scores of a work that never runs.
    all: DeviceScores,
}

impl Arena {
    fn new(device: &Device, n_floats: usize) -> Result<Arena, Error> {
        // Every bit set now and then, NaN among the floats, no period of a power of two.
        let words: Vec<u32> =
            (0..n_floats as u32).map(|i| (i % 8191).wrapping_mul(0x9e37_79b9)).collect();
        let poison: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
        let tokens = device.upload(&Tokens::padded(&poison, n_floats / 4, 1, 4)?)?;
        let zeros = vec![0.0f32; n_floats];
        let one = device.upload(&Tokens::padded(&zeros[..1], 1, 1, 1)?)?;
        let many = device.upload(&Tokens::padded(&zeros, n_floats, 1, 1)?)?;
        let work = device.prepare(&one, &many, &Pairing::cross(), &ScoreOptions::default())?;
        // SAFETY: the arena keeps `tokens`, which no call scores, for as long as this.
        let all = unsafe { DeviceScores::from_raw_parts(&work, tokens.access().base, None, None)? };
        Ok(Arena { tokens, bytes: cast_slice(&words).to_vec(), all })
    }

    fn address(&self) -> u64 {
        self.tokens.access().base
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        Ok(cast_slice(self.all.read()?.values()).to_vec())
    }
}

#[test]
fn outputs_are_written_and_nothing_beside_them() {
    fn on_every_engine<T: Element>(suite: &Suite) -> Result<usize, String> {
        // Without empty items nothing is filled before the kernel writes.
        let with_empty = [[1usize, 65, 0, 17, 129, 3], [64, 7, 0, 300, 1, 33]];
        let full = [[1usize, 65, 5, 17, 129, 3], [64, 7, 2, 300, 1, 33]];
        let mut n_cases = 0;
        for dim in [64, 100, 128, 256] {
            for (listed, lengths) in
                [(false, with_empty), (true, with_empty), (false, full), (true, full)]
            {
                let mut case =
                    Case { element: T::TYPE, ..Case::new(dim, &lengths[0], &lengths[1]) };
                if listed {
                    case.pairs = Pairs::List { n: 37 };
                }
                let problem = Problem::<T>::new(&case);
                for engine in Engine::all(T::TYPE) {
                    if engine.device.ordinal().is_none() {
                        continue;
                    }
                    for document_splits in [None, Some(2)] {
                        match guarded(&problem, &engine, document_splits) {
                            Ok(true) => suite.count(&engine.name()),
                            Ok(false) => {}
                            Err(why) => {
                                let name = engine.name();
                                return Err(format!(
                                    "{name}, {document_splits:?}: {why}\n{case:#?}"
                                ));
                            }
                        }
                    }
                }
                n_cases += 1;
            }
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_guard_bands", |suite| {
        Ok(on_every_engine::<f16>(suite)?
            + on_every_engine::<bf16>(suite)?
            + on_every_engine::<f32>(suite)?)
    });
}

/// Scores into the middle of an arena; `false` where the engine's row is not eligible.
fn guarded<T: Element>(
    problem: &Problem<'_, T>,
    engine: &Engine,
    document_splits: Option<usize>,
) -> Result<bool, String> {
    let device = &engine.device;
    let (queries, documents, pairing) = problem.inputs().map_err(text)?;
    let queries = device.upload(&queries).map_err(text)?;
    let documents = device.upload(&documents).map_err(text)?;
    let options = engine.options(true).document_splits(document_splits);
    let work = match device.prepare(&queries, &documents, &pairing, &options) {
        Err(Error::Unsupported { .. }) => return Ok(false),
        work => work.map_err(text)?,
    };
    let expected = device.score_with(&queries, &documents, &pairing, &options).map_err(text)?;
    let token_scores = expected.token_scores().ok_or("no token scores")?;

    let arena = Arena::new(device, 1 << 16).map_err(text)?;
    if arena.read().map_err(text)? != arena.bytes {
        return Err("the arena does not hold what was uploaded".into());
    }
    // Aligned to their elements and to no more; the bytes between them are the guards.
    let mut image = arena.bytes.clone();
    let mut end = 0;
    let mut place = |bytes: &[u8], element_bytes: usize| {
        let start = (end + 4096usize).next_multiple_of(16) + element_bytes;
        end = start + bytes.len();
        image[start..end].copy_from_slice(bytes);
        arena.address() + start as u64
    };
    // Two bytes per winner: no document here has 65 535 tokens.
    let narrow: Option<Vec<i16>> =
        expected.winners().map(|winners| winners.iter().map(|&winner| winner as i16).collect());
    let scores = place(cast_slice(expected.values()), 4);
    let winners = narrow.map(|winners| place(cast_slice(&winners), 2));
    let token_scores = place(cast_slice(token_scores), 4);
    // SAFETY: the addresses lie in the arena, apart from each other; nothing else uses it.
    let outputs =
        unsafe { DeviceScores::from_raw_parts(&work, scores, winners, Some(token_scores)) };
    let mut outputs = outputs.map_err(text)?;
    let mut stream = device.stream().map_err(text)?;
    stream.score_into(&queries, &documents, &work, &mut outputs).map_err(text)?;
    if !same_bits(&expected, &outputs.read().map_err(text)?) {
        return Err("other results than in memory of our own".into());
    }
    let found = arena.read().map_err(text)?;
    match found.iter().zip(&image).position(|(found, expected)| found != expected) {
        None => Ok(true),
        Some(at) => Err(format!(
            "byte {at} of the arena has changed (scores from {}, winners from {:?}, token scores \
             from {})",
            scores - arena.address(),
            winners.map(|address| address - arena.address()),
            token_scores - arena.address(),
        )),
    }
}

/// Rows at any distance from any address that suits the element: what TMA and `cp.async`
/// cannot take must run on a kernel that can.
#[test]
fn foreign_rows_need_element_alignment_only() {
    fn views<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for dim in [7usize, 64, 100, 128] {
            // First element, elements from row to row.
            for (first, pitch) in
                [(0, dim), (1, dim), (8, dim.next_multiple_of(8) + 8), (0, dim + 1), (3, 2 * dim)]
            {
                for masked in [false, true] {
                    view::<T>(suite, dim, first, pitch, masked).map_err(|why| {
                        format!("{} dim {dim} first {first} pitch {pitch}: {why}", T::TYPE)
                    })?;
                    n_cases += 1;
                }
            }
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_foreign_views", |suite| {
        Ok(views::<f16>(suite)? + views::<bf16>(suite)? + views::<f32>(suite)?)
    });
}

fn view<T: Element>(
    suite: &Suite,
    dim: usize,
    first: usize,
    pitch: usize,
    masked: bool,
) -> Result<(), String> {
    let case = Case { element: T::TYPE, ..Case::new(dim, &[70, 3], &[130, 1, 0, 64]) };
    let case =
        Case { documents: Side { valid_percent: masked.then_some(60), ..case.documents }, ..case };
    let problem = Problem::<T>::new(&case);
    let (rounded, normalized) = (problem.rounded_to_tf32(), problem.normalized());
    let (queries, documents, pairing) = problem.inputs().map_err(text)?;
    let layout = documents.layout().clone();
    let layout = TokenLayout::scattered(
        layout.rows(),
        dim,
        &layout.segments().iter().map(|s| i64::from(s[0])).collect::<Vec<_>>(),
        &layout.segments().iter().map(|s| i64::from(s[1])).collect::<Vec<_>>(),
    )
    .map_err(text)?;

    // The documents' rows, spread over a larger matrix of ones.
    let rows = layout.rows();
    let n = (first + rows * pitch).next_multiple_of(8);
    let mut spread = vec![T::from_f32(1.0); n];
    for (i, row) in elements::<T>(&problem.data.documents).chunks_exact(dim).enumerate() {
        spread[first + i * pitch..][..dim].copy_from_slice(row);
    }
    let mut mask = problem.data.documents.mask.clone().unwrap_or_default();
    mask.resize(mask.len().next_multiple_of(16), 0);
    let mask: Vec<f32> = mask.chunks_exact(4).map(pod_read_unaligned).collect();
    for device in cuda_devices() {
        let memory = device.upload(&Tokens::padded(&spread, n / 8, 1, 8).map_err(text)?);
        let memory = memory.map_err(text)?;
        let mask_memory =
            device.upload(&Tokens::padded(&mask, mask.len() / 4, 1, 4).map_err(text)?);
        let mask_memory = mask_memory.map_err(text)?;
        let element_bytes = size_of::<T>() as u64;
        // SAFETY: `memory` and `mask_memory` outlive the handle, and nothing writes to them.
        let documents = unsafe {
            DeviceTokens::<T>::from_raw_parts(
                device,
                RawRows::new(
                    memory.access().base + first as u64 * element_bytes,
                    pitch as u64 * element_bytes,
                )
                .mask(masked.then_some(mask_memory.access().base)),
                layout.clone(),
            )
        };
        let documents = documents.map_err(text)?;
        for engine in Engine::all(T::TYPE).iter().filter(|engine| same(&engine.device, device)) {
            let options = engine.options(true);
            let found = match device.score_with(&queries, &documents, &pairing, &options) {
                Err(Error::Unsupported { .. }) if engine.row.is_some() => continue,
                found => found.map_err(text)?,
            };
            let problem = match (engine.is_tf32(), engine.normalizes()) {
                (true, _) => &rounded,
                (_, true) => &normalized,
                _ => &problem,
            };
            agree::check(&problem.data, &problem.expected, &options, &found)
                .map_err(|why| format!("{}: {why}", engine.name()))?;
            suite.count(&engine.name());
        }
    }
    Ok(())
}

fn same(a: &Device, b: &Device) -> bool {
    a.ordinal() == b.ordinal()
}

#[test]
fn foreign_memory_is_checked_before_it_is_used() {
    Suite::run_gpu("gpu_foreign_pointers", |suite| {
        let host = [0.0f32; 64];
        let tokens = Tokens::padded(&host, 16, 1, 4).map_err(text)?;
        for device in cuda_devices() {
            let memory = device.upload(&tokens).map_err(text)?;
            let base = memory.access().base;
            let layout = |rows| TokenLayout::padded(1, rows, 4).expect("well-formed");
            let view = |address: u64, pitch_bytes: u64, layout: TokenLayout, mask| {
                // SAFETY: `memory` outlives the handle; other addresses must be refused.
                unsafe {
                    DeviceTokens::<f32>::from_raw_parts(
                        device,
                        RawRows::new(address, pitch_bytes).mask(mask),
                        layout,
                    )
                }
                .map(|_| ())
            };
            view(base, 16, layout(16), None).map_err(text)?;
            let on_host = host.as_ptr().addr() as u64;
            for (address, mask) in
                [(base + 2, None), (base + (1 << 40), None), (on_host, None), (base, Some(on_host))]
            {
                match view(address, 16, layout(8), mask) {
                    Err(error @ Error::ForeignPointer { .. }) => {
                        suite.note(&error.to_string());
                    }
                    other => return Err(format!("{address:#x} {mask:?}: {other:?}")),
                }
            }
            // An allocation may be larger than what was asked for, but not by 2³⁶ bytes.
            match view(base, 1 << 35, layout(3), None) {
                Err(Error::ForeignPointer { address, .. }) if address == base => {}
                other => return Err(format!("too long: {other:?}")),
            }
            for (pitch_bytes, layout, expected) in [
                (12, layout(16), "pitch_bytes"),
                (18, layout(16), "pitch_bytes"),
                (16, layout(16).with_mask(&[1; 16]).map_err(text)?, "layout"),
            ] {
                match view(base, pitch_bytes, layout, None) {
                    Err(Error::Shape { argument, .. }) if argument == expected => {}
                    other => return Err(format!("{expected}: {other:?}")),
                }
            }
            suite.count(&device.to_string());
        }
        Ok(8)
    });
}

/// Under compute-sanitizer this shows that nothing past the matrix is read.
#[test]
fn the_read_roof_takes_matrices_of_any_size() {
    Suite::run_gpu("gpu_read_roof", |suite| {
        for device in cuda_devices() {
            let mut stream = device.stream().map_err(text)?;
            // A grid reads 16 bytes × 512 × 132 at once, eight times over: 8.6 MB on an H200.
            for rows in [0, 1, 3, 1000, 33_791, 33_793, 70_001] {
                let data = vec![f16::ONE; rows * 128];
                let tokens = Tokens::padded(&data, rows, 1, 128).map_err(text)?;
                let tokens = device.upload(&tokens).map_err(text)?;
                for blocks_per_multiprocessor in [1, 2, 4] {
                    stream.read_roof(&tokens, blocks_per_multiprocessor).map_err(text)?;
                }
                stream.synchronize().map_err(text)?;
            }
            let memory = Arena::new(device, 64).map_err(text)?;
            let layout = TokenLayout::padded(1, 3, 4).map_err(text)?;
            // SAFETY: the arena outlives the handle and nothing writes to it.
            let shifted = unsafe {
                DeviceTokens::<f32>::from_raw_parts(
                    device,
                    RawRows::new(memory.address() + 4, 16),
                    layout,
                )
            };
            for (tokens, n_blocks) in [(&shifted.map_err(text)?, 1), (&memory.tokens, 0)] {
                match stream.read_roof(tokens, n_blocks) {
                    Err(Error::Shape { .. }) => {}
                    other => return Err(format!("{n_blocks} blocks: {other:?}")),
                }
            }
            suite.count(&device.to_string());
        }
        Ok(23)
    });
}

#[test]
fn what_another_thread_drops_is_freed() {
    /// More than anything that a driver keeps back.
    const BYTES: u64 = 1 << 30;
    Suite::run_gpu("gpu_drop_on_another_thread", |suite| {
        let data = vec![f16::ONE; BYTES as usize / 2];
        let tokens = Tokens::padded(&data, 1 << 20, 4, 128).map_err(text)?;
        let queries = Tokens::padded(&data[..128], 1, 1, 128).map_err(text)?;
        for device in cuda_devices() {
            let free = || free_bytes(device);
            let cycle = || -> Result<(), String> {
                let before = free()?;
                let handle = device.upload(&tokens).map_err(text)?;
                let scored = device.score(&queries, &handle, &Pairing::cross()).map_err(text)?;
                if scored.values().iter().any(|&score| score != 128.0) {
                    return Err("wrong scores".into());
                }
                let during = free()?;
                std::thread::spawn(move || drop(handle)).join().expect("no panic");
                let after = free()?;
                suite.note(&format!(
                    "{device}: free before {before}, during {during}, after {after}"
                ));
                let is_held = during + BYTES <= before;
                // The first call may keep kernels and staging memory.
                let is_freed = after + BYTES / 4 >= before;
                if is_held && is_freed { Ok(()) } else { Err(format!("{device}: not freed")) }
            };
            cycle()?;
            // From then on nothing is left behind.
            let before = free()?;
            (0..3).try_for_each(|_| cycle())?;
            if free()? != before {
                return Err(format!("{device}: {before} bytes free before, {} after", free()?));
            }
            suite.count(&device.to_string());
        }
        Ok(4)
    });
}

#[test]
fn out_of_memory_is_an_error_and_nothing_breaks() {
    /// 4 GiB of tokens: no device holds a hundred of them.
    const ROWS: usize = 1 << 24;
    Suite::run_gpu("gpu_out_of_memory", |suite| {
        let case = &ragged_cases(ElementType::F16)[0];
        let problem = Problem::<f16>::new(case);
        let (queries, documents, pairing) = problem.inputs().map_err(text)?;
        let options = ScoreOptions::default().winners(true).token_scores(true);
        let large = vec![f16::ZERO; ROWS * 128];
        let large = Tokens::padded(&large, 1, ROWS, 128).map_err(text)?;
        for device in cuda_devices() {
            let queries = device.upload(&queries).map_err(text)?;
            let documents = device.upload(&documents).map_err(text)?;
            let score = || device.score_with(&queries, &documents, &pairing, &options);
            let before = score().map_err(text)?;
            let mut handles: Vec<DeviceTokens<f16>> = Vec::new();
            let error = loop {
                match device.upload(&large) {
                    Ok(handle) if handles.len() < 100 => handles.push(handle),
                    Ok(_) => return Err("a hundred times 4 GiB are no device's memory".into()),
                    Err(error) => break error,
                }
            };
            match &error {
                Error::DeviceMemory { requested_bytes, .. } if *requested_bytes > 0 => {}
                other => return Err(format!("{device}: {other:?}")),
            }
            suite.note(&format!("{device}: after {} GiB: {error}", 4 * handles.len()));
            // While memory is short a call may fail, with the same error and no other.
            match score() {
                Ok(scores) if same_bits(&before, &scores) => {}
                Err(Error::DeviceMemory { .. }) => {}
                other => return Err(format!("{device}, memory full: {other:?}")),
            }
            drop(handles);
            if !same_bits(&before, &score().map_err(text)?) {
                return Err(format!("{device}: other scores after memory ran out"));
            }
            let _ = device.upload(&large).map_err(text)?;
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}
