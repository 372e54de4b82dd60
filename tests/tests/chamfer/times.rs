//! What a step of Chamfer distances takes on a GPU: forward and backward, as one graph.

use maxsim::chamfer::ChamferOptions;
use maxsim::format::{Element, ElementType, with_element};
use maxsim::stream::Queue;
use maxsim::training::GradientType;
use maxsim::{Device, Tokens};
use maxsim_tests::chamfer::{CloudCase, Points, clouds};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::suite::Suite;

/// Launches that are timed together.
const LAUNCHES: usize = 20;

/// The cases that goals are set for, and the milliseconds of a step.
#[test]
fn steps_on_a_gpu() {
    Suite::run_gpu("gpu_chamfer_times", |suite| {
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        let mut cases = vec![
            ("batch of 32 x 2048", vec![[2048; 2]; 32], Points::Cube),
            ("10 K cube", vec![[10_000; 2]], Points::Cube),
        ];
        if is_timed {
            for (name, n) in [("10 K", 10_000), ("100 K", 100_000), ("1 M", 1_000_000)] {
                for points in [Points::Cube, Points::Converging, Points::Scene] {
                    cases.push((name, vec![[n; 2]], points));
                }
            }
        }
        let mut cases: Vec<_> = cases
            .into_iter()
            .map(|(name, lens, points)| (name, CloudCase::new(3, &lens, points)))
            .collect();
        let n = if is_timed { 100_000 } else { 5000 };
        for points in [Points::Cube, Points::Converging] {
            for element in [ElementType::F32, ElementType::F16] {
                let case = CloudCase::new(128, &[[n; 2]], points);
                cases.push(("100 K d 128", CloudCase { element, ..case }));
            }
        }
        for device in cuda_devices() {
            for (name, case) in &cases {
                let [forward, step] =
                    with_element!(case.element, T => milliseconds::<T>(device, case))?;
                let CloudCase { points, element, .. } = case;
                suite.note(&format!(
                    "{device} {name} {points:?} {element}: forward {forward:.4} ms, \
                     step {step:.4} ms"
                ));
                suite.count(&device.to_string());
            }
        }
        Ok(cases.len())
    });
}

/// Milliseconds of a forward pass, and of a step.
fn milliseconds<T: Element>(device: &Device, case: &CloudCase) -> Result<[f32; 2], String> {
    let [x, y] = clouds::<T>(case);
    let upload = |tokens: Tokens<'_, T>| device.upload(&tokens).map_err(text);
    let (x, y) = (upload(x.tokens().map_err(text)?)?, upload(y.tokens().map_err(text)?)?);
    let work = device.prepare_chamfer(&x, &y, &ChamferOptions::default()).map_err(text)?;
    let mut found = work.new_found().map_err(text)?;
    let grad = work.upload_grad(&vec![1.0; case.lens.len()]).map_err(text)?;
    let mut gradients = work.new_gradients(GradientType::F32).map_err(text)?;
    let mut times = [0.0; 2];
    for (is_step, time) in [false, true].into_iter().zip(&mut times) {
        let mut graph = device
            .capture(|capture| {
                capture.chamfer_into(&x, &y, &work, &mut found)?;
                if is_step {
                    capture.chamfer_backward(
                        &x,
                        &y,
                        &work,
                        found.with_grad(&grad),
                        &mut gradients,
                    )?;
                }
                Ok(())
            })
            .map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        let events = || device.event().map_err(text);
        let (mut start, mut end) = (events()?, events()?);
        let mut launch = |n: usize| (0..n).try_for_each(|_| graph.launch(&mut stream));
        launch(2).map_err(text)?;
        stream.record(&mut start).map_err(text)?;
        let mut launch = |n: usize| (0..n).try_for_each(|_| graph.launch(&mut stream));
        launch(LAUNCHES).map_err(text)?;
        stream.record(&mut end).map_err(text)?;
        *time = end.elapsed_ms(&start).map_err(text)? / LAUNCHES as f32;
    }
    Ok(times)
}
