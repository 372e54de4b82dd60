//! Losses in stream order: those of the host, within the stated bounds, on every device; the same
//! bits every time; and whole training steps as graphs.

use half::f16;
use maxsim::format::Element;
use maxsim::loss::{DeviceLoss, PreparedLoss};
use maxsim::loss::{Loss, contrastive, distillation};
use maxsim::stream::{DeviceScores, Graph, Queue, Stream};
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, Error, Pairing, Result, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::{Step, all_devices, same_bits};
use maxsim_tests::losses::{Bounds, GivenScores, KINDS, Kind, Numbers, Target, drawn, magnitude};
use maxsim_tests::suite::Suite;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// A warp's rows and a block's, whole steps of either and not.
const ROW_LENS: [usize; 17] =
    [1, 2, 3, 8, 31, 32, 33, 100, 127, 128, 129, 255, 256, 257, 1024, 1025, 5000];

/// The loss of a device.
fn on_device(device: &Device, work: &PreparedLoss, given: &GivenScores) -> Result<Loss> {
    let mut grad_scores = given.backward.new_grad_scores()?;
    let mut loss = work.new_loss()?;
    device.stream()?.loss(work, &given.scores, &mut grad_scores, &mut loss)?;
    Ok(Loss { value: loss.read()?, grad_scores: grad_scores.read()? })
}

fn same_loss(a: &Loss, b: &Loss) -> bool {
    let bits = |loss: &Loss| {
        let grads = loss.grad_scores.iter().map(|x| x.to_bits());
        [loss.value.to_bits()].into_iter().chain(grads).collect::<Vec<_>>()
    };
    bits(a) == bits(b)
}

/// A loss of a device and that of the host, within the bounds; to the bit on the CPU.
fn check_loss(
    device: &Device,
    work: &PreparedLoss,
    given: &GivenScores,
    expected: &Loss,
    bounds: &Bounds,
) -> std::result::Result<(), String> {
    let found = on_device(device, work, given).map_err(text)?;
    if device.ordinal().is_none() && !same_loss(expected, &found) {
        return Err("other bits than the host's function".into());
    }
    bounds.check(expected, &found)?;
    match same_loss(&found, &on_device(device, work, given).map_err(text)?) {
        true => Ok(()),
        false => Err("other bits the second time".into()),
    }
}

#[test]
fn losses_are_those_of_the_host() {
    Suite::run("device_losses", all_devices(), |suite, device| {
        for (case, n) in ROW_LENS.into_iter().enumerate() {
            for (kind, t) in KINDS.into_iter().zip([0.05f32, 1.0, 30.0, 0.01, 0.5, 2.0, 1.0]) {
                let n_queries = [1, 7, 65][case % 3];
                let at =
                    |what: &str| format!("{device}: {kind:?} {n_queries} × {n} at {t}, {what}");
                let (scores, positives, teacher) = drawn(kind, n_queries, n, case as u64);
                let given = GivenScores::new(device, n, &scores).map_err(text)?;
                let read = given.scores.read().map_err(text)?;
                let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
                assert!(read.values().iter().zip(&scores).all(same), "{}", at("other scores"));

                let mean = |target: &dyn Fn(usize) -> f64| {
                    (0..n_queries).map(target).sum::<f64>() / n_queries as f64
                };
                let row = |q: usize| &scores[q * n..][..n];
                let size = mean(&|q| magnitude(row(q), Target::Positive(positives[q]), t));
                let expected = contrastive(&scores, n, &positives, t).map_err(text)?;
                let work = device.prepare_contrastive(n, &positives, t).map_err(text)?;
                let bounds = Bounds::new(n_queries, n, t, size);
                check_loss(device, &work, &given, &expected, &bounds)
                    .map_err(|why| at(&format!("contrastive: {why}")))?;

                let size = mean(&|q| magnitude(row(q), Target::Teacher(&teacher[q * n..][..n]), t));
                let bounds = Bounds::new(n_queries, n, t, size);
                let expected = distillation(&scores, &teacher, n, t).map_err(text)?;
                let of = GivenScores::new(device, n, &teacher).map_err(text)?;
                for work in [
                    device.prepare_distillation(&teacher, n, t),
                    device.prepare_distillation_from(&of.scores, n, t),
                ] {
                    check_loss(device, &work.map_err(text)?, &given, &expected, &bounds)
                        .map_err(|why| at(&format!("distillation: {why}")))?;
                }
                // From themselves they are not far.
                let own = device.prepare_distillation_from(&given.scores, n, t).map_err(text)?;
                let own = on_device(device, &own, &given).map_err(text)?;
                if own.grad_scores.iter().any(|&x| x != 0.0 && !x.is_nan()) {
                    return Err(at("scores differ from themselves"));
                }
                suite.count(&device.to_string());
            }
        }
        Ok(())
    });
}

/// More documents than a block takes at once many times over, and more queries than a mean does.
#[test]
fn long_rows_and_many_rows() {
    Suite::run_gpu("gpu_device_losses_long", |suite| {
        let shapes = [(1, 2_000_000), (300_000, 3), (4000, 300)];
        for device in cuda_devices() {
            for (n_queries, n) in shapes {
                let at = |what: String| format!("{device} {n_queries} × {n}: {what}");
                let (scores, positives, teacher) = drawn(Kind::Plain(6.0), n_queries, n, 5);
                let given = GivenScores::new(device, n, &scores).map_err(text)?;
                // Logarithms are below the row's spread and that of equal scores.
                let bounds = Bounds::new(n_queries, n, 1.0, 2.0 * (12.0 + (n as f64).ln()));
                let expected = contrastive(&scores, n, &positives, 1.0).map_err(text)?;
                let work = device.prepare_contrastive(n, &positives, 1.0).map_err(text)?;
                check_loss(device, &work, &given, &expected, &bounds).map_err(at)?;
                let expected = distillation(&scores, &teacher, n, 1.0).map_err(text)?;
                let work = device.prepare_distillation(&teacher, n, 1.0).map_err(text)?;
                check_loss(device, &work, &given, &expected, &bounds).map_err(at)?;
                suite.count(&device.to_string());
            }
        }
        Ok(cuda_devices().len() * shapes.len())
    });
}

/// A step of training by a loss of scores with a teacher's: both are computed in the step.
struct Training<T: Element> {
    step: Step<T>,
    teacher: Step<T>,
    works: [PreparedLoss; 3],
    losses: [DeviceLoss; 3],
}

impl<T: Element> Training<T> {
    /// Of sums of similarities, or of means, whose query tokens have weights.
    fn new(
        device: &Device,
        pairing: &Pairing,
        n_documents: usize,
        is_mean: bool,
    ) -> Result<Training<T>> {
        let mut numbers = Numbers(11);
        let mut side = |n_tokens: usize| -> Vec<T> {
            numbers.many(n_tokens * 64, 0.3).into_iter().map(T::from_f32).collect()
        };
        let n_queries = 6;
        let items =
            if pairing == &Pairing::cross() { n_documents } else { n_queries * n_documents };
        let mut step = |query_len: usize| {
            let (queries, documents) = (side(n_queries * query_len), side(items * 20));
            let mut queries = Tokens::padded(&queries, n_queries, query_len, 64)?;
            if is_mean {
                queries = queries.with_mean_weights()?;
            }
            let documents = Tokens::padded(&documents, items, 20, 64)?;
            let zeros = vec![0.0; n_queries * n_documents];
            let options = BackwardOptions::default();
            let (queries, documents) = (device.upload(&queries)?, device.upload(&documents)?);
            Step::of(queries, documents, pairing, false, GradientType::Tokens, &options, &zeros)
        };
        let (step, teacher) = (step(16)?, step(5)?);
        let positives: Vec<usize> = (0..n_queries).map(|q| q % n_documents).collect();
        let fixed = numbers.many(n_queries * n_documents, 2.0);
        let works = [
            device.prepare_contrastive(n_documents, &positives, 0.5)?,
            device.prepare_distillation(&fixed, n_documents, 2.0)?,
            device.prepare_distillation_from(&teacher.scores, n_documents, 1.5)?,
        ];
        let losses = [works[0].new_loss()?, works[1].new_loss()?, works[2].new_loss()?];
        Ok(Training { step, teacher, works, losses })
    }

    /// Enqueues a step by one of the losses, the loss and the gradients on other streams.
    fn run(&mut self, which: usize, streams: &mut [Stream; 2]) -> Result<()> {
        let Training { step, teacher, works, losses } = self;
        teacher.score()?;
        step.score()?;
        let Step { queries, documents, scores, backward, grad_scores, gradients, .. } = step;
        streams[0].loss(&works[which], scores, grad_scores, &mut losses[which])?;
        streams[1].backward(queries, documents, backward, scores.with_grad(grad_scores), gradients)
    }

    fn capture(&mut self, which: usize, device: &Device) -> Result<Graph> {
        let Training { step, teacher, works, losses } = self;
        device.capture(|capture| {
            let Step { queries, documents, work, scores, .. } = teacher;
            capture.score_into(queries, documents, work, scores)?;
            let Step { queries, documents, work, scores, backward, grad_scores, gradients, .. } =
                step;
            capture.score_into(queries, documents, work, scores)?;
            capture.loss(&works[which], scores, grad_scores, &mut losses[which])?;
            capture.backward(queries, documents, backward, scores.with_grad(grad_scores), gradients)
        })
    }
}

/// Scores, loss and gradients, enqueued on three streams and as a graph, launched again with other
/// targets; the value is that of the host's function of the same scores.
#[test]
fn training_steps_as_graphs_give_what_calls_give() {
    fn check<T: Element>(device: &Device, is_mean: bool) -> std::result::Result<(), String> {
        for (pairing, n) in
            [(Pairing::cross(), 6), (Pairing::cross(), 200), (Pairing::own_candidates(4), 4)]
        {
            for which in 0..3 {
                let at = |what: &str| {
                    format!("{device} {pairing:?} loss {which}, mean {is_mean}: {what}")
                };
                let training = || Training::<T>::new(device, &pairing, n, is_mean).map_err(text);
                let (mut direct, mut captured) = (training()?, training()?);
                let mut graph = captured.capture(which, device).map_err(text)?;
                let mut streams = [device.stream().map_err(text)?, device.stream().map_err(text)?];
                let mut values = Vec::new();
                for round in 0..3 {
                    let teacher = Numbers(round).many(6 * n, 3.0);
                    for work in [&mut direct.works[1], &mut captured.works[1]] {
                        work.write_teacher(&teacher).map_err(text)?;
                    }
                    direct.run(which, &mut streams).map_err(text)?;
                    graph.launch(&mut streams[round as usize % 2]).map_err(text)?;
                    let expected = direct.step.gradients.read().map_err(text)?;
                    let found = captured.step.gradients.read().map_err(text)?;
                    let losses = [&direct, &captured].map(|training| training.losses[which].read());
                    let [value, launched] = losses;
                    let (value, launched) = (value.map_err(text)?, launched.map_err(text)?);
                    if !same_bits(&expected, &found) || value.to_bits() != launched.to_bits() {
                        return Err(at(&format!("launch {round} differs")));
                    }
                    if expected.queries.iter().chain(&expected.documents).all(|&x| x == 0.0) {
                        return Err(at("all gradients are 0"));
                    }
                    if expected.weights.iter().any(|&x| x != 0.0) != is_mean {
                        return Err(at("gradients of weights are 0, or there are some"));
                    }
                    let scores = captured.step.scores.read().map_err(text)?;
                    let of = captured.teacher.scores.read().map_err(text)?;
                    let (scores, of) = (scores.values(), of.values());
                    let host = match which {
                        0 => contrastive(scores, n, &[0, 1, 2, 3, 4, 5].map(|q| q % n), 0.5),
                        1 => distillation(scores, &teacher, n, 2.0),
                        _ => distillation(scores, of, n, 1.5),
                    };
                    let host = host.map_err(text)?;
                    let grad_scores = captured.step.grad_scores.read().map_err(text)?;
                    let t = [0.5, 2.0, 1.5][which];
                    Bounds::new(6, n, t, 50.0)
                        .check(&host, &Loss { value, grad_scores })
                        .map_err(|why| at(&why))?;
                    values.push(value.to_bits());
                }
                // Only the teacher's scores were changed.
                if (values[0] != values[1]) != (which == 1) {
                    return Err(at("the second launch's loss"));
                }
            }
        }
        Ok(())
    }
    Suite::run("device_loss_steps", all_devices(), |suite, device| {
        for is_mean in [false, true] {
            check::<f32>(device, is_mean)?;
            check::<f16>(device, is_mean)?;
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

#[test]
fn nothing_has_loss_0() {
    Suite::run("device_losses_of_nothing", all_devices(), |suite, device| {
        let run = || -> Result<()> {
            let queries = Tokens::padded(&[1.0f32; 4], 4, 1, 1)?;
            let documents = Tokens::padded(&[0.0f32; 0], 0, 1, 1)?;
            let (cross, options) = (Pairing::cross(), BackwardOptions::default());
            let (queries, documents) = (device.upload(&queries)?, device.upload(&documents)?);
            let element = GradientType::F32;
            let step = Step::of(queries, documents, &cross, false, element, &options, &[])?;
            let Step { scores, mut grad_scores, mut stream, .. } = step;
            for work in [
                device.prepare_contrastive(7, &[], 1.0)?,
                device.prepare_distillation(&[], 0, 1.0)?,
                device.prepare_distillation_from(&scores, 3, 1.0)?,
            ] {
                let mut loss = work.new_loss()?;
                stream.loss(&work, &scores, &mut grad_scores, &mut loss)?;
                assert_eq!((loss.read()?, grad_scores.read()?.len()), (0.0, 0));
            }
            Ok(())
        };
        run().map_err(text)?;
        suite.count(&device.to_string());
        Ok(())
    });
}

fn argument<T>(result: Result<T>) -> &'static str {
    match result {
        Err(Error::Shape { argument, .. } | Error::Id { argument, .. }) => argument,
        Err(Error::TooLarge { what, .. }) => what,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("must be refused"),
    }
}

#[test]
fn errors() {
    Suite::run("device_loss_errors", all_devices(), |suite, device| {
        for t in [0.0, -1.0, NAN, INF] {
            assert_eq!(argument(device.prepare_contrastive(1, &[0], t)), "temperature");
            assert_eq!(argument(device.prepare_distillation(&[1.0], 1, t)), "temperature");
        }
        assert_eq!(argument(device.prepare_contrastive(2, &[0, 2], 1.0)), "positives");
        let many = device.prepare_contrastive(1 << 30, &[0, 1, 2], 1.0);
        assert_eq!(argument(many), "number of scores");
        assert_eq!(argument(device.prepare_distillation(&[1.0; 7], 3, 1.0)), "teacher");
        assert_eq!(argument(device.prepare_distillation(&[1.0; 7], 0, 1.0)), "teacher");

        let given = GivenScores::new(device, 3, &[1.0; 6]).map_err(text)?;
        for n_documents in [4, 2] {
            let reshaped = device.prepare_distillation_from(&given.scores, n_documents, 1.0);
            assert_eq!(argument(reshaped), "teacher");
        }
        let other = GivenScores::new(device, 3, &[1.0; 9]).map_err(text)?;
        let mut work = device.prepare_contrastive(3, &[0, 2], 1.0).map_err(text)?;
        let transposed = device.prepare_contrastive(2, &[0, 1, 0], 1.0).map_err(text)?;
        let mut loss = work.new_loss().map_err(text)?;
        let mut other_loss = transposed.new_loss().map_err(text)?;
        let mut grads = given.backward.new_grad_scores().map_err(text)?;
        let mut other_grads = other.backward.new_grad_scores().map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        let (scores, wrong): (&DeviceScores, _) = (&given.scores, &other.scores);
        assert_eq!(argument(stream.loss(&work, wrong, &mut grads, &mut loss)), "scores");
        let refused = stream.loss(&transposed, scores, &mut grads, &mut other_loss);
        assert_eq!(argument(refused), "scores");
        assert_eq!(
            argument(stream.loss(&work, scores, &mut other_grads, &mut loss)),
            "grad_scores"
        );
        assert_eq!(argument(stream.loss(&work, scores, &mut grads, &mut other_loss)), "loss");
        let captured = device.capture(|capture| capture.loss(&work, wrong, &mut grads, &mut loss));
        assert_eq!(argument(captured), "scores");
        assert_eq!(argument(work.write_teacher(&[0.0; 5])), "teacher");
        let unwritable = work.write_teacher(&[0.0; 6]);
        assert!(matches!(unwritable, Err(Error::Unsupported { .. })), "{unwritable:?}");
        suite.count(&device.to_string());
        Ok(())
    });
}
