//! Gradients of one side: the bits that both sides' calls give it, without memory or work for the
//! other one.

use half::f16;
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientSides, GradientType, Gradients};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, Tokens};
use maxsim_tests::gradients::{STRATEGIES, all_devices, same_bits};

const DIM: usize = 24;

fn numbers(n: usize, seed: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32(((i * 7919 + seed) % 251) as f32 / 125.0 - 1.0)).collect()
}

/// Gradients with one side's rows alone.
fn alone(both: &Gradients, sides: GradientSides) -> Gradients {
    let mut alone = both.clone();
    match sides {
        GradientSides::Queries => alone.documents.clear(),
        GradientSides::Documents => alone.queries.clear(),
        _ => {}
    }
    alone
}

/// Gradients on a stream of calls that overwrite and then add, and bytes of workspace.
fn on_stream(
    device: &Device,
    [queries, documents]: [&Tokens<'_, f16>; 2],
    (pairing, scoring): (&Pairing, &ScoreOptions),
    options: &BackwardOptions,
    kind: GradientType,
) -> Result<(Gradients, u64)> {
    let (queries, documents) = (device.upload(queries)?, device.upload(documents)?);
    let work = device.prepare(&queries, &documents, pairing, scoring)?;
    let backward = device.prepare_backward_cached(&work, options, kind)?;
    let (mut scores, mut stream) = (work.new_scores()?, device.stream()?);
    let g: Vec<f32> = (0..work.shape().n_scores()).map(|i| (i % 7) as f32 / 4.0 - 0.75).collect();
    let g = backward.upload_grad_scores(&g)?;
    let mut gradients = backward.new_gradients()?;
    stream.score_into(&queries, &documents, &work, &mut scores)?;
    stream.backward(&queries, &documents, &backward, scores.with_grad(&g), &mut gradients)?;
    stream.backward_into(&queries, &documents, &backward, scores.with_grad(&g), &mut gradients)?;
    Ok((gradients.read()?, backward.workspace_bytes()))
}

/// Many short queries with few documents each, whose kernel sums both sides in one launch; a cross
/// product; and items that overlap, whose pairs are listed.
#[test]
fn one_side_has_the_bits_that_it_has_beside_the_other() {
    let data = numbers(4000 * DIM, 1);
    let other = numbers(4000 * DIM, 2);
    let padded = |data, n, len| Tokens::padded(data, n, len, DIM).expect("tokens");
    let starts: Vec<i64> = (0..30).map(|i| i * 100).collect();
    let overlapping = Tokens::scattered(&other, DIM, &starts, &[150i64; 30]).expect("tokens");
    let lengths: Vec<i64> = (0..40).map(|i| i % 9).collect();
    let ragged = padded(&data[..40 * 8 * DIM], 40, 8).with_lengths(&lengths).expect("lengths");
    let cases = [
        (padded(&data[..400 * 4 * DIM], 400, 4), padded(&other[..800 * DIM], 800, 1), 2),
        (padded(&data[..40 * 32 * DIM], 40, 32), padded(&other[..50 * 60 * DIM], 50, 60), 0),
        (ragged, overlapping, 0),
    ];
    for (queries, documents, k) in &cases {
        let pairing = match k {
            0 => Pairing::cross(),
            k => Pairing::own_candidates(*k),
        };
        for device in all_devices() {
            for normalize in [false, true] {
                let scoring = ScoreOptions::default().winners(true).normalize(normalize);
                let call = (&pairing, &scoring);
                check_sides(&device, [queries, documents], call);
            }
        }
    }
}

fn check_sides(device: &Device, tokens: [&Tokens<'_, f16>; 2], call: (&Pairing, &ScoreOptions)) {
    for strategy in STRATEGIES {
        for kind in [GradientType::F32, GradientType::Tokens] {
            // Recomputed a few queries at a time, too.
            let options = BackwardOptions::new(strategy).winner_bytes(20_000);
            let (both, most) = on_stream(device, tokens, call, &options, kind).expect("both");
            for sides in [GradientSides::Queries, GradientSides::Documents] {
                let options = options.clone().sides(sides);
                let (found, bytes) = on_stream(device, tokens, call, &options, kind).expect("one");
                let name = format!("{device}, {call:?}, {strategy:?}, {kind:?}: {sides:?}");
                assert!(same_bits(&found, &alone(&both, sides)), "{name}");
                assert!(bytes <= most, "{name}: {bytes} bytes of workspace, not {most}");
            }
        }
    }
}

/// Calls that wait: of one side by the options, or by where there is room for gradients.
#[test]
fn blocking_calls_leave_a_side_out() {
    let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let queries = Tokens::padded(&data, 2, 3, 2).expect("queries");
    let documents = Tokens::padded(&data, 3, 2, 2).expect("documents");
    for device in all_devices() {
        let scores =
            device.score_for_training(&queries, &documents, &Pairing::cross()).expect("scores");
        let g = [1.0, 0.5, -1.0, 2.0, 0.25, -0.5];
        let of = |options: &BackwardOptions| {
            device.backward(&queries, &documents, scores.with_grad(&g), options)
        };
        let both = of(&BackwardOptions::default()).expect("gradients");
        for strategy in STRATEGIES {
            for sides in [GradientSides::Queries, GradientSides::Documents] {
                let options = BackwardOptions::new(strategy).sides(sides);
                let found = of(&options).expect("gradients");
                assert!(same_bits(&found, &alone(&both, sides)), "{device} {sides:?}");
                // What is there of the other side stays as it is.
                let mut kept = Gradients {
                    queries: vec![7.0; 12],
                    documents: vec![7.0; 12],
                    ..Gradients::default()
                };
                let added = scores.with_grad(&g);
                let into = device.backward_into(&queries, &documents, added, &options, &mut kept);
                into.expect("gradients");
                let is_kept = |values: &[f32]| values.iter().all(|&x| x == 7.0);
                assert_eq!(is_kept(&kept.queries), sides == GradientSides::Documents);
                assert_eq!(is_kept(&kept.documents), sides == GradientSides::Queries);
            }
        }
        let mut room = [0.0; 12];
        let sides = [None, Some(&mut room[..])];
        let options = BackwardOptions::default();
        let found =
            device.backward_sides(&queries, &documents, scores.with_grad(&g), &options, sides);
        found.expect("gradients");
        assert_eq!(room[..], both.documents);
    }
}

/// Atomic additions go to both sides in one pass: one side alone is an error, but where the caller
/// has no room for the other.
#[test]
fn atomic_additions_are_of_both_sides() {
    let data = [1.0f32, 2.0, 3.0, 4.0];
    let tokens = Tokens::padded(&data, 1, 2, 2).expect("tokens");
    for device in all_devices() {
        let scores = device.score_for_training(&tokens, &tokens, &Pairing::cross());
        let scores = scores.expect("scores");
        let options = BackwardOptions::new(BackwardStrategy::Atomic).sides(GradientSides::Queries);
        let found = device.backward(&tokens, &tokens, scores.with_grad(&[1.0]), &options);
        assert!(matches!(found, Err(Error::Unsupported { .. })), "{device}: {found:?}");
        if device.ordinal().is_some() {
            let mut room = [0.0; 4];
            let options = BackwardOptions::new(BackwardStrategy::Atomic);
            let (g, sides) = (scores.with_grad(&[1.0]), [Some(&mut room[..]), None]);
            device.backward_sides(&tokens, &tokens, g, &options, sides).expect("gradients");
            assert_eq!(room, [3.0, 4.0, 3.0, 4.0]);
        }
    }
}
