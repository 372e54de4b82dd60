//! The figure in the README: the relative error of scores on random unit rows.

use half::{bf16, f16};
use maxsim::format::Element;
use maxsim_tests::case::Case;
use maxsim_tests::engines::{Engine, Problem};
use maxsim_tests::oracle::Answer;
use maxsim_tests::suite::{Suite, is_small};

/// 1024 query tokens against documents of 1024 tokens, dim 128.
const LIMIT: f64 = 1e-6;
/// Elements rounded to TF32: each product errs by up to 2⁻¹⁰ of itself, in either direction.
const TF32_LIMIT: f64 = 1e-5;

fn relative_error<T: Element>(name: &'static str) {
    let len = if is_small() { 128 } else { 1024 };
    let case = Case { element: T::TYPE, ..Case::new(128, &[len], &[len; 4]) };
    Suite::run(name, [case], |suite, case| {
        let problem = Problem::<T>::new(case);
        let normalized = problem.normalized();
        for engine in Engine::all(T::TYPE) {
            let options = engine.options(false);
            let found = problem.run(&engine.device, &options).map_err(|e| e.to_string())?;
            let Some(found) = found else { continue };
            let error = |(answer, &score): (&Answer, &f32)| {
                (f64::from(score) / answer.score.exact - 1.0).abs()
            };
            let expected = if engine.normalizes() { &normalized } else { &problem };
            let errors: Vec<f64> =
                expected.expected.iter().zip(found.values()).map(error).collect();
            // A NaN is above no limit, and below none.
            let limit = if engine.is_tf32() { TF32_LIMIT } else { LIMIT };
            if !errors.iter().all(|&error| error <= limit) {
                return Err(format!("{}: relative errors {errors:?}", engine.name()));
            }
            let worst = errors.into_iter().fold(0.0, f64::max);
            suite.count(&engine.name());
            suite.note(&format!("{}: relative error {worst:.1e}", engine.name()));
        }
        Ok(())
    });
}

#[test]
fn f16_scores() {
    relative_error::<f16>("accuracy_f16");
}

#[test]
fn bf16_scores() {
    relative_error::<bf16>("accuracy_bf16");
}

#[test]
fn f32_scores() {
    relative_error::<f32>("accuracy_f32");
}
