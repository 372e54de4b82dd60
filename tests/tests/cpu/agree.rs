//! The comparison itself: what it must refuse.

use maxsim::{Device, ScoreOptions};
use maxsim_tests::agree::{allowance, check};
use maxsim_tests::case::Case;
use maxsim_tests::engines::Problem;
use maxsim_tests::oracle::{Answer, Value};
use maxsim_tests::values::Values;

/// Scores `case` for real, then changes the oracle's answer instead of the engine's result.
fn verdict(case: &Case, change: impl Fn(&mut Vec<Answer>)) -> Result<(), String> {
    let mut problem = Problem::<f32>::new(case);
    let options = ScoreOptions::default().winners(true).token_scores(true);
    let found = problem.run(&Device::cpu(), &options).expect("the CPU runs it").expect("eligible");
    change(&mut problem.expected);
    check(&problem.data, &problem.expected, &options, &found)
}

fn case() -> Case {
    Case::new(64, &[3], &[5, 4])
}

#[test]
fn what_agrees() {
    verdict(&case(), |_| {}).expect("agrees");
}

#[test]
fn a_wrong_value_is_refused() {
    for (change, what) in [
        ((|v| v.exact *= 1.00001) as fn(&mut Value), "expected"),
        (|v| v.exact += 1e-5, "expected"),
        (|v| v.exact = f64::NAN, "NaN"),
        (|v| v.exact = f64::INFINITY, "inf"),
        (|v| v.exact = 0.0, "expected 0"),
    ] {
        // The error that comes with the change must not raise its own limit.
        let change = |v: &mut Value| {
            change(v);
            v.twin = v.exact as f32;
        };
        let why = verdict(&case(), |e| change(&mut e[1].score)).expect_err("score");
        assert!(why.starts_with("score 1") && why.contains(what), "{why}");
        let why = verdict(&case(), |e| change(&mut e[1].tokens[2].score)).expect_err("token score");
        assert!(why.contains("query token 2") && why.contains(what), "{why}");
    }
}

#[test]
fn a_wrong_winner_is_refused() {
    let why = verdict(&case(), |e| e[0].tokens[0].winner = None).expect_err("no winner");
    assert!(why.contains("there is none"), "{why}");
    let other = |e: &mut Vec<Answer>| {
        let token = &mut e[0].tokens[0];
        token.winner = token.winner.map(|t| (t + 1) % 5);
    };
    let why = verdict(&case(), other).expect_err("not within rounding");
    assert!(why.contains("winner"), "{why}");
    let integers = Case { values: Values::Integers, ..case() };
    let why = verdict(&integers, other).expect_err("exact");
    assert!(why.contains("winner"), "{why}");
}

#[test]
fn the_allowance_is_a_few_units_in_the_last_place() {
    let value = Value { exact: 1.0, twin: 1.0, magnitude: 1.0 };
    let ulp = f64::from(f32::EPSILON);
    assert_eq!(allowance(value, 0, false), 4.0 * ulp);
    assert_eq!(allowance(value, 128, false), 12.0 * ulp);
    let unlucky = Value { twin: 1.0 + f32::EPSILON, ..value };
    assert_eq!(allowance(unlucky, 0, false), 6.0 * ulp);
    assert_eq!(allowance(value, 128, true), 24.0 * ulp);
}
