//! Random problems: every engine agrees with the oracle.

use maxsim::format::ElementType;
use maxsim_tests::engines::check_case_in_turns;
use maxsim_tests::strategy::cases;
use maxsim_tests::suite::Suite;

#[test]
fn f16() {
    Suite::run_random("agreement_f16", || cases(ElementType::F16), check_case_in_turns);
}

#[test]
fn bf16() {
    Suite::run_random("agreement_bf16", || cases(ElementType::Bf16), check_case_in_turns);
}

#[test]
fn f32() {
    Suite::run_random("agreement_f32", || cases(ElementType::F32), check_case_in_turns);
}
