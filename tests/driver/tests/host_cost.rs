//! What a call asks of the driver: nothing that waits, allocates or loads, once calls of its shape
//! were made before, however new its handles are. Nothing is computed here: the driver is a
//! stand-in that counts (`maxsim-test-driver`).
//!
//! The tests run in a process of their own that finds the stand-in as `libcuda.so.1`.

mod calls;
mod chamfer;
mod faults;
mod projection;
mod search;
mod stand_in;
mod streaming;
mod xtr;

use std::sync::Arc;
use std::time::Instant;

use half::f16;
use maxsim::format::{Fp8, Int8, Int8Affine, ScaleType};
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientSides};
use maxsim::{Device, Pairing, ScoreOptions, TokenLayout, Tokens};

use calls::{Call, Kept};
use stand_in::{
    ALLOCATIONS, CALLS, CAPTURED, COPIES, EXTERNAL, FILLS, LAUNCHES, LOADS, QUESTIONS, REPEATED,
    StandIn, VIOLATIONS,
};
use stand_in::{WAITS, in_stand_in};

const N_CALLS: u64 = 400;

/// Makes calls, and checks what they ask for after the first ones.
fn check(driver: &StandIn, name: &str, mut call: impl FnMut(u64)) {
    for lag in [0, 40] {
        driver.set_lag(lag);
        (0..300).for_each(&mut call);
        driver.clear();
        let start = Instant::now();
        (0..N_CALLS).for_each(&mut call);
        let ns = start.elapsed().as_nanos() / u128::from(N_CALLS);
        let calls = driver.count(CALLS) as f64 / N_CALLS as f64;
        println!("{name}: {ns} ns and {calls} driver calls a call, events {lag} launches late");
        assert!(driver.count(LAUNCHES) >= N_CALLS, "{name}: kernels are launched");
        for (what, index) in [
            ("waits", WAITS),
            ("allocations", ALLOCATIONS),
            ("module loads", LOADS),
            ("questions about addresses", QUESTIONS),
        ] {
            assert_eq!(driver.count(index), 0, "{name}, events {lag} launches late: {what}");
        }
    }
    driver.set_lag(0);
}

/// Shapes of a call: queries and documents.
fn regular() -> [Arc<TokenLayout>; 2] {
    padded([(32, 32), (200, 180)])
}

/// Numbers and lengths of queries and documents.
fn padded(sides: [(usize, usize); 2]) -> [Arc<TokenLayout>; 2] {
    sides.map(|(n, len)| TokenLayout::padded(n, len, 128).expect("shape").into())
}

/// The same with other lengths each time.
fn ragged(seed: u64) -> [Arc<TokenLayout>; 2] {
    [(32u64, 32usize), (200, 180)].map(|(n, len)| {
        let lengths: Vec<i64> =
            (0..n).map(|i| 1 + ((i * 31 + seed * 7) % len as u64) as i64).collect();
        let layout = TokenLayout::padded(n as usize, len, 128).expect("shape");
        layout.with_lengths(&lengths).expect("lengths").into()
    })
}

#[test]
fn calls_with_new_handles_and_old_shapes_only_enqueue() {
    in_stand_in("calls_with_new_handles_and_old_shapes_only_enqueue", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let cross = Pairing::cross();
        for normalize in [false, true] {
            let options = ScoreOptions::default().normalize(normalize);
            let one_query = padded([(1, 32), (1000, 300)]);
            for (shape, layouts) in
                [("one query", one_query), ("regular", regular()), ("ragged", ragged(0))]
            {
                let name = |what: &str| format!("{what}, {shape}, normalised: {normalize}");
                let mut call = Call::new(&device, cross.clone(), options.clone());
                check(driver, &name("forward"), |_| call.forward(&layouts));
                check(driver, &name("forward and backward"), |_| call.train(&layouts));
                let kept = Kept::new(&device, &layouts, &cross, &options);
                check(driver, &name("prepared"), |_| _ = call.prepared(&kept));
                let top_k = kept.top_k(10);
                check(driver, &name("ranked"), |_| call.ranked(&kept, &top_k));
            }
        }
    });
}

/// Rows of several chunks, whose best are kept in the stream's workspace between two launches.
#[test]
fn selections_of_long_rows_only_enqueue() {
    in_stand_in("selections_of_long_rows_only_enqueue", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let layouts = padded([(2, 32), (200_000, 1)]);
        let mut call = Call::new(&device, cross.clone(), options.clone());
        let kept = Kept::new(&device, &layouts, &cross, &options);
        for k in [0, 100, 4096] {
            let top_k = kept.top_k(k);
            let keys_bytes = 13 * 2 * k as u64 * 8;
            let least = if k == 4096 { 4096 } else { keys_bytes };
            assert!(top_k.workspace_bytes() >= least && (k > 0) == (top_k.workspace_bytes() > 0));
            check(driver, &format!("the best {k} of long rows"), |_| call.ranked(&kept, &top_k));
        }
    });
}

#[test]
fn codes_in_memory_of_the_caller_are_made_and_scored_without_a_wait() {
    in_stand_in("codes_in_memory_of_the_caller_are_made_and_scored_without_a_wait", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        for (shape, layouts) in [("regular", regular()), ("ragged", ragged(0))] {
            let name = |what: &str| format!("{what}, {shape}");
            let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
            check(driver, &name("int8"), |_| call.of_codes::<Int8>(&layouts));
            check(driver, &name("fp8"), |_| call.of_codes::<Fp8>(&layouts));
            let [_, documents] = &layouts;
            for scales in [ScaleType::F16, ScaleType::F32] {
                check(driver, &name("to int8"), |_| call.quantize::<Int8>(documents, scales));
                check(driver, &name("to fp8"), |_| call.quantize::<Fp8>(documents, scales));
            }
            let affine = |_| call.quantize::<Int8Affine>(documents, ScaleType::F16);
            check(driver, &name("to affine"), affine);
        }
    });
}

#[test]
fn residuals_in_memory_of_the_caller_are_scored_and_trained_without_a_wait() {
    in_stand_in(
        "residuals_in_memory_of_the_caller_are_scored_and_trained_without_a_wait",
        |driver| {
            let device = Device::cuda(0).expect("the stand-in's device");
            for (shape, layouts) in [("regular", regular()), ("ragged", ragged(0))] {
                let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
                for nbits in [2, 4] {
                    let name = format!("residuals of {nbits} bits, {shape}");
                    check(driver, &name, |_| call.of_residuals(nbits, &layouts));
                }
            }
        },
    );
}

/// Documents that are decoded before they are scored, in pieces of 128 MB of the workspace.
#[test]
fn residuals_of_many_query_rows_are_decoded_in_pieces() {
    in_stand_in("residuals_of_many_query_rows_are_decoded_in_pieces", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        for (n_documents, n_pieces) in [(500, 1), (1200, 3)] {
            let layouts = padded([(1, 1024), (n_documents, 1000)]);
            let name = format!("{n_documents} residual documents of a page");
            check(driver, &name, |_| call.of_residual_scores(2, &layouts));
            // What rows are normalised by; then each piece is decoded and scored.
            assert_eq!(driver.count(LAUNCHES), (1 + 2 * n_pieces) * N_CALLS, "{name}");
            let bytes = driver.used_bytes();
            assert!((120 << 20..160 << 20).contains(&bytes), "{name}: {bytes} bytes");
        }
    });
}

#[test]
fn lengths_that_are_new_with_every_call_are_copied_and_nothing_else() {
    in_stand_in("lengths_that_are_new_with_every_call_are_copied_and_nothing_else", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let layouts: Vec<_> = (0..400).map(ragged).collect();
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        let of = |i: u64| &layouts[i as usize % layouts.len()];
        check(driver, "new lengths", |i| call.forward(of(i)));
        // Segments of both sides, and the work's lists.
        assert!((2 * N_CALLS..=3 * N_CALLS).contains(&driver.count(COPIES)));
        check(driver, "new lengths, with gradients", |i| call.train(of(i)));
    });
}

#[test]
fn items_that_the_device_alone_knows_need_neither_copies_nor_waits() {
    in_stand_in("items_that_the_device_alone_knows_need_neither_copies_nor_waits", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let [queries, _] = regular();
        // Layouts may be new each time.
        let unread = || TokenLayout::unread(36_000, 128, 200, 300, 180).expect("shape").into();
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        check(driver, "items of the device", |_| call.forward_unread(&queries, &unread()));
        assert_eq!(driver.count(COPIES), 0);
        assert_eq!(driver.count(LAUNCHES), 2 * N_CALLS);
        check(driver, "codes of the device", |_| {
            call.of_codes::<Int8>(&[queries.clone(), unread()]);
        });
        assert_eq!(driver.count(COPIES), 0);
        check(driver, "residuals of the device", |_| {
            call.of_residuals(4, &[queries.clone(), unread()]);
        });
        assert_eq!(driver.count(COPIES), 0);
        let index = device.upload_residual::<f16>(&index()).expect("an index");
        check(driver, "an index as other items", |_| call.of_index(&queries, &index, &unread()));
        assert_eq!(driver.count(COPIES), 0);
        let known = TokenLayout::padded(200, 180, 128).expect("shape");
        let others = TokenLayout::unread(35_999, 128, 200, 300, 180).expect("shape");
        let masked = TokenLayout::clone(&unread()).with_unread_mask();
        for layout in [known, others, masked] {
            // SAFETY: no call is made.
            assert!(unsafe { index.with_raw_segments(64, layout) }.is_err());
        }
    });
}

/// Gradients of queries alone need to know of no document's rows.
#[test]
fn gradients_of_documents_need_their_rows() {
    in_stand_in("gradients_of_documents_need_their_rows", |_| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        let [queries, _] = regular();
        let unread = Arc::new(TokenLayout::unread(36_000, 128, 200, 300, 180).expect("shape"));
        let mut is_ready = |queries: &Arc<TokenLayout>, options: BackwardOptions| {
            call.backward_of_unread(&[queries.clone(), unread.clone()], &options).is_ok()
        };
        let of_queries = BackwardOptions::default().sides(GradientSides::Queries);
        assert!(is_ready(&queries, of_queries.clone()));
        for strategy in [BackwardStrategy::Atomic, BackwardStrategy::Recompute] {
            assert!(
                !is_ready(&queries, BackwardOptions::new(strategy).sides(GradientSides::Queries)),
                "{strategy:?}"
            );
        }
        for sides in [GradientSides::Both, GradientSides::Documents] {
            assert!(!is_ready(&queries, BackwardOptions::default().sides(sides)), "{sides:?}");
        }
        // Where queries share rows, the lists of their pairs say where documents start.
        let shared = TokenLayout::scattered(32, 128, &[0i64, 8], &[16i64, 16]).expect("shape");
        assert!(!is_ready(&Arc::new(shared), of_queries));
    });
}

/// Residual-compressed documents of 36 000 tokens.
fn index() -> ResidualTokens<'static> {
    let codec = ResidualCodec::new(2, 128, Centroids::F32(vec![0.0; 128].into()), &[0.0; 4], true);
    let layout = TokenLayout::padded(200, 180, 128).expect("shape");
    let (codes, bytes) = (vec![0i32; 36_000], vec![0; 36_000 * 32]);
    let order = BitOrder::LittleEndian;
    ResidualTokens::new(codec.expect("a codec").into(), codes, bytes, order, layout).expect("codes")
}

/// The stand-in's events never complete here, so nothing that was dropped may be used again.
#[test]
fn memory_is_not_used_again_before_the_device_is_done() {
    in_stand_in("memory_is_not_used_again_before_the_device_is_done", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        call.forward(&ragged(0));
        driver.set_lag(u64::MAX);
        driver.clear();
        (0..100).for_each(|i| call.forward(&ragged(i + 1)));
        assert_eq!((driver.count(REPEATED), driver.count(WAITS)), (0, 0));
        assert!(driver.count(COPIES) >= 200);
        driver.set_lag(0);
        (0..100).for_each(|i| call.forward(&ragged(i + 1)));
        assert!(driver.count(REPEATED) > 0);
    });
}

#[test]
fn a_lack_of_memory_waits_for_what_was_dropped() {
    in_stand_in("a_lack_of_memory_waits_for_what_was_dropped", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let options = ScoreOptions::default();
        let large = vec![0f32; 16 << 20];
        let large = Tokens::padded(&large, 1 << 10, 128, 128).expect("shape");
        let upload = || device.upload(&large);
        let first = upload().expect("memory");
        let mut call = Call::new(&device, Pairing::cross(), options);
        call.forward(&ragged(0));
        driver.set_lag(u64::MAX);
        driver.set_memory(100 << 20);
        let free = |device: &Device| device.memory().expect("memory").expect("a GPU").free_bytes;
        assert!(free(&device) < 64 << 20);
        call.forward(&ragged(0));
        driver.clear();
        drop(first);
        assert_eq!(driver.count(WAITS), 0);
        let second = upload().expect("what was dropped is freed");
        assert!(driver.count(WAITS) > 0);
        assert!(upload().is_err());
        call.forward(&ragged(0));
        drop(second);
        // What was dropped counts as free.
        assert!(free(&device) > 64 << 20);
    });
}

/// While a stream is captured nothing is recorded on it, and nothing that the driver forbids is
/// asked of it; what was dropped meanwhile is used again later.
#[test]
fn drops_leave_captures_alone() {
    in_stand_in("drops_leave_captures_alone", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        let mut other = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        (0..50).for_each(|i| call.forward(&ragged(i)));
        other.forward(&ragged(0));
        driver.clear();
        driver.capture(other.stream(), true);
        (0..100).for_each(|i| call.forward(&ragged(i + 100)));
        let counts = [VIOLATIONS, CAPTURED, WAITS].map(|index| driver.count(index));
        assert_eq!(counts, [0; 3]);
        // Memory that the captured stream may have used before stays away.
        assert!(driver.count(ALLOCATIONS) > 0);
        driver.capture(other.stream(), false);
        (0..50).for_each(|i| call.forward(&ragged(i + 200)));
        driver.clear();
        (0..100).for_each(|i| call.forward(&ragged(i + 300)));
        assert_eq!((driver.count(ALLOCATIONS), driver.count(WAITS)), (0, 0));
    });
}

/// A capture of the caller's own stream, as `torch.cuda.graph` makes it.
#[test]
fn calls_become_part_of_a_capture() {
    in_stand_in("calls_become_part_of_a_capture", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        // Grows the workspace.
        [regular(), ragged(0)].iter().for_each(|layouts| call.train(layouts));
        let mut other = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        driver.capture(call.stream(), true);
        driver.clear();
        for layouts in [regular(), ragged(0), ragged(1)] {
            call.forward(&layouts);
            call.train(&layouts);
        }
        // Other streams may be used meanwhile.
        other.train(&ragged(2));
        assert_eq!((driver.count(VIOLATIONS), driver.count(WAITS)), (0, 0));
        assert!(driver.count(LAUNCHES) > 0);
        // An event in the graph would have to outlive the values that were made for a call.
        assert_eq!(driver.count(CAPTURED), 0);
        driver.capture(call.stream(), false);
    });
}

/// A capture in which nothing was called before: calls work in memory that each is given, and the
/// stream has none of its own. Copies that are under way are waited for by the host, not the graph.
#[test]
fn first_calls_in_a_capture_work_in_memory_that_they_are_given() {
    in_stand_in("first_calls_in_a_capture_work_in_memory_that_they_are_given", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        driver.slow_copies(true);
        for normalize in [false, true] {
            let options = ScoreOptions::default().normalize(normalize);
            let mut call = Call::new(&device, Pairing::cross(), options);
            driver.set_lag(u64::MAX);
            driver.capture(call.stream(), true);
            driver.clear();
            for layouts in [regular(), ragged(0), ragged(1)] {
                let needed = call.workspace_bytes(&layouts);
                let start = call.lend(needed);
                driver.watch(start, needed);
                call.train(&layouts);
                assert!(driver.count(FILLS) > 0, "its start is cleared in the graph");
                call.lend(needed - 1);
                assert!(call.try_train(&layouts).is_err(), "one byte is missing");
            }
            assert_eq!((driver.count(VIOLATIONS), driver.count(CAPTURED)), (0, 0));
            assert_eq!(driver.count(EXTERNAL), 0, "no graph waits for a copy");
            assert_eq!(call.state(), (0, true));
            driver.capture(call.stream(), false);
            assert_eq!(call.state(), (0, false));
            driver.set_lag(0);
        }
    });
}

/// Memory that a call is given is the call's alone: the stream goes back to what it had.
#[test]
fn a_workspace_of_one_call_does_not_stay() {
    in_stand_in("a_workspace_of_one_call_does_not_stay", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        let layouts = regular();
        let needed = call.workspace_bytes(&layouts);
        call.set_workspace(needed);
        let kept = call.state();
        call.lend(2 * needed);
        driver.clear();
        call.train(&layouts);
        assert_eq!(call.state(), kept);
        assert_eq!((driver.count(ALLOCATIONS), driver.count(WAITS)), (0, 0));
    });
}

/// Values that are made for each call, over one stream, do not add up.
#[test]
fn streams_come_and_go() {
    in_stand_in("streams_come_and_go", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let mut kept = Call::new(&device, Pairing::cross(), ScoreOptions::default());
        let layouts = regular();
        let needed = kept.workspace_bytes(&layouts);
        check(driver, "a stream for each call", |_| {
            let mut call = kept.again();
            call.set_workspace(needed);
            call.train(&layouts);
        });
    });
}

#[test]
fn threads_with_streams_of_their_own_do_not_wait_for_each_other() {
    in_stand_in("threads_with_streams_of_their_own_do_not_wait_for_each_other", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        driver.set_lag(100);
        let steps = |from: u64| {
            let mut call = Call::new(&device, Pairing::cross(), ScoreOptions::default());
            (from..from + 100).for_each(|i| call.train(&ragged(i)));
        };
        let all = || {
            std::thread::scope(|scope| {
                (0..4).for_each(|thread| drop(scope.spawn(move || steps(thread * 50))));
            });
        };
        all();
        driver.clear();
        all();
        assert_eq!(driver.count(WAITS), 0);
    });
}

/// The workspace of the caller: the stream allocates none, and refuses what does not fit.
#[test]
fn a_workspace_of_the_caller_is_used_and_not_grown() {
    in_stand_in("a_workspace_of_the_caller_is_used_and_not_grown", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let one_query = padded([(1, 32), (1000, 300)]);
        for (normalize, layouts) in
            [(false, regular()), (true, regular()), (true, one_query), (true, ragged(0))]
        {
            let options = ScoreOptions::default().normalize(normalize);
            let mut call = Call::new(&device, Pairing::cross(), options);
            let needed = call.workspace_bytes(&layouts);
            assert!(needed > 0);
            let start = call.set_workspace(needed);
            driver.watch(start, needed);
            driver.clear();
            call.train(&layouts);
            assert_eq!((driver.count(WAITS), driver.count(VIOLATIONS)), (0, 0));
            // What both sides are normalised by, in either direction, ends with zeros.
            assert!(driver.count(FILLS) >= if normalize { 4 } else { 0 });
            call.set_workspace(needed - 1);
            let error = call.try_train(&layouts).expect_err("one byte is missing").to_string();
            assert!(error.contains("workspace") && error.contains(&needed.to_string()), "{error}");
        }
    });
}
