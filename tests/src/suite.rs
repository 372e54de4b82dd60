//! A suite: named, counted, recorded.
//!
//! With MAXSIM_RECORD_DIR set, each suite writes `<dir>/<suite>.json`. `passed`
//! reaches `cases` only when the whole suite has passed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::engines::cuda_devices;

/// Cases that one runner generates from one seed: the cases of a suite are the same on every
/// machine, however many threads share them.
const CASES_PER_SHARD: usize = 50;

/// Cases of a suite that are not random run on so many threads at most: most of a case is calls
/// that wait for a device, and several suites run at once.
const THREADS: usize = 4;

/// A running suite.
#[derive(Debug)]
pub struct Suite {
    name: &'static str,
    rows: Mutex<BTreeMap<String, u64>>,
    expected: Mutex<BTreeSet<String>>,
    notes: Mutex<Vec<String>>,
}

impl Suite {
    /// Runs the cases of a suite, a few at a time.
    ///
    /// # Panics
    /// With a case that fails, of those that run at once the first that is found: this is the
    /// test's failure.
    pub fn run<C: Debug + Sync>(
        name: &'static str,
        cases: impl IntoIterator<Item = C>,
        check: impl Fn(&Suite, &C) -> Result<(), String> + Sync,
    ) {
        let suite = Suite::start(name);
        let _shared = share_devices();
        let cases: Vec<C> = cases.into_iter().collect();
        let passed = AtomicUsize::new(0);
        let failure = on_threads(n_threads().min(THREADS), cases.len(), |i| {
            let case = &cases[i];
            check(&suite, case).map_err(|why| format!("{why}\n{case:#?}"))?;
            passed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        match failure {
            Some(why) => suite.fail(passed.into_inner(), cases.len(), &why),
            None => suite.pass(cases.len()),
        }
    }

    /// Runs the cases of a suite that are about how devices share large calls. Where there is no
    /// device they have little to show, and take minutes: they are left out then, unless
    /// MAXSIM_CASES asks for 300 random cases a suite.
    ///
    /// # Panics
    /// As [`Suite::run`].
    pub fn run_large<C: Debug + Sync>(
        name: &'static str,
        cases: impl IntoIterator<Item = C>,
        check: impl Fn(&Suite, &C) -> Result<(), String> + Sync,
    ) {
        if !is_full() {
            say(&format!("SKIPPED (no CUDA device; MAXSIM_CASES={FULL_CASES} runs it): {name}"));
            return;
        }
        Suite::run(name, cases, check);
    }

    /// As [`Suite::run`], of a suite that is about kernels: every fifth case where there is no
    /// device, as the CPU meets the like of them in other suites, unless MAXSIM_CASES asks for 500
    /// random cases a suite.
    ///
    /// # Panics
    /// As [`Suite::run`].
    pub fn run_on_kernels<C: Debug + Sync>(
        name: &'static str,
        cases: impl IntoIterator<Item = C>,
        check: impl Fn(&Suite, &C) -> Result<(), String> + Sync,
    ) {
        let step = if is_full() { 1 } else { 5 };
        Suite::run(name, cases.into_iter().step_by(step), check);
    }

    /// Runs [`n_cases`] random cases of a suite on every core; a failing one is shrunk.
    ///
    /// # Panics
    /// With the smallest failing case: this is the test's failure.
    pub fn run_random<S: Strategy>(
        name: &'static str,
        strategy: impl Fn() -> S + Sync,
        check: impl Fn(&Suite, &S::Value) -> Result<(), String> + Sync,
    ) {
        Suite::run_some_random(name, n_cases(), strategy, check);
    }

    /// As [`Suite::run_random`], of a suite that is about kernels: a quarter of the cases where
    /// there is no device, as the CPU meets the like of them in other suites.
    ///
    /// # Panics
    /// As [`Suite::run_random`].
    pub fn run_random_on_kernels<S: Strategy>(
        name: &'static str,
        strategy: impl Fn() -> S + Sync,
        check: impl Fn(&Suite, &S::Value) -> Result<(), String> + Sync,
    ) {
        let n_cases = n_cases().div_ceil(if cuda_devices().is_empty() { 4 } else { 1 });
        Suite::run_some_random(name, n_cases, strategy, check);
    }

    fn run_some_random<S: Strategy>(
        name: &'static str,
        n_cases: usize,
        strategy: impl Fn() -> S + Sync,
        check: impl Fn(&Suite, &S::Value) -> Result<(), String> + Sync,
    ) {
        let suite = Suite::start(name);
        let _shared = share_devices();
        let passed = AtomicUsize::new(0);
        let failure = on_threads(n_threads(), n_cases.div_ceil(CASES_PER_SHARD), |shard| {
            let cases = CASES_PER_SHARD.min(n_cases - shard * CASES_PER_SHARD);
            run_shard(name, shard, cases, &strategy(), |case| check(&suite, case))?;
            passed.fetch_add(cases, Ordering::Relaxed);
            Ok(())
        });
        match failure {
            Some(why) => suite.fail(passed.into_inner(), n_cases, &why),
            None => suite.pass(n_cases),
        }
    }

    /// Runs a suite that needs a GPU, once; without one it says so and does nothing.
    ///
    /// # Panics
    /// With the check's own message: this is the test's failure.
    pub fn run_gpu(name: &'static str, check: impl Fn(&Suite) -> Result<usize, String>) {
        let suite = Suite::start(name);
        if cuda_devices().is_empty() {
            suite.record(0, 0, Some("skipped (no CUDA device)"));
            return;
        }
        let _alone = TURNS.write().unwrap_or_else(PoisonError::into_inner);
        match check(&suite) {
            Ok(cases) => suite.pass(cases),
            Err(why) => suite.fail(0, 1, &why),
        }
    }

    fn named(name: &'static str) -> Suite {
        Suite { name, rows: Mutex::default(), expected: Mutex::default(), notes: Mutex::default() }
    }

    fn start(name: &'static str) -> Suite {
        let suite = Suite::named(name);
        if cuda_devices().is_empty() {
            say(&format!("SKIPPED (no CUDA device): {name}"));
        }
        // Overwrite the record of an earlier run, should this run end early.
        suite.record(0, 0, Some("did not finish"));
        suite
    }

    /// Counts one case that passed on one engine.
    pub fn count(&self, row: &str) {
        let mut rows = self.rows.lock().expect("rows");
        match rows.get_mut(row) {
            Some(n) => *n += 1,
            None => _ = rows.insert(row.into(), 1),
        }
    }

    /// Lets the suite fail unless a case is counted on this engine: of rows that a suite is about,
    /// a case that none of them can run is passed over, and all cases may be such by mistake.
    pub fn expect(&self, row: &str) {
        self.expected.lock().expect("expected rows").insert(row.into());
    }

    /// Adds a measured figure to the record.
    pub fn note(&self, figure: &str) {
        say(&format!("{}: {figure}", self.name));
        self.notes.lock().expect("notes").push(figure.into());
    }

    fn pass(&self, cases: usize) {
        if let Some(row) = self.missed() {
            self.fail(0, cases, &format!("no case was for {row}, which the suite is about"));
        }
        self.record(cases, cases, None);
        let rows = self.rows.lock().expect("rows");
        let rows: Vec<String> = rows.iter().map(|(row, n)| format!("{row}: {n}")).collect();
        say(&format!("{}: {cases} cases passed ({})", self.name, rows.join(", ")));
    }

    /// An engine that was expected, and that no case was counted on.
    fn missed(&self) -> Option<String> {
        let rows = self.rows.lock().expect("rows");
        let expected = self.expected.lock().expect("expected rows");
        expected.iter().find(|row| !rows.contains_key(*row)).cloned()
    }

    fn fail(&self, passed: usize, cases: usize, why: &str) -> ! {
        self.record(cases, passed, Some(why));
        panic!("{}: {why}", self.name);
    }

    fn record(&self, cases: usize, passed: usize, failure: Option<&str>) {
        let Some(dir) = std::env::var_os("MAXSIM_RECORD_DIR") else { return };
        let mut record = serde_json::json!({
            "suite": self.name,
            "engine rows": *self.rows.lock().expect("rows"),
            "cases": cases,
            "passed": passed,
        });
        let notes = self.notes.lock().expect("notes");
        if !notes.is_empty() {
            record["notes"] = notes.as_slice().into();
        }
        if let Some(why) = failure {
            record["failure"] = why.into();
        }
        let path = Path::new(&dir).join(format!("{}.json", self.name));
        std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::write(&path, format!("{record:#}\n")))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Random cases per suite where MAXSIM_CASES does not say: enough to meet every kind of case, few
/// enough that all tests take minutes.
const N_CASES: usize = 200;

/// As that, of a small run: machines that are emulated are slow.
const SMALL_CASES: usize = 8;

/// Random cases per suite of the checks of every change.
const FULL_CASES: usize = 300;

/// Random cases per suite: MAXSIM_CASES, or 200, or 8 of a small run.
pub fn n_cases() -> usize {
    match std::env::var("MAXSIM_CASES") {
        Ok(n) => n.parse().expect("MAXSIM_CASES is a number"),
        Err(_) if is_small() => SMALL_CASES,
        Err(_) => N_CASES,
    }
}

/// Whether MAXSIM_SUITE=small: 8 random cases per suite, and of repetitions and long runs a few.
///
/// # Panics
/// With any other value of MAXSIM_SUITE.
pub fn is_small() -> bool {
    match std::env::var("MAXSIM_SUITE").as_deref() {
        Ok("small") => true,
        Ok(other) => panic!("MAXSIM_SUITE={other}: expected small"),
        Err(_) => false,
    }
}

/// Whether every case of every suite runs: where there is a device, which most of them are for, or
/// MAXSIM_CASES asks for 300 random cases.
pub fn is_full() -> bool {
    !cuda_devices().is_empty() || n_cases() >= FULL_CASES
}

/// Turns of the suites of one program on the devices. Suites of [`Suite::run_gpu`] have the devices
/// for themselves, since some fill a device's memory or compare how much of it is free; the others
/// run at once.
static TURNS: RwLock<()> = RwLock::new(());

/// Waits until no suite has the devices for itself; without devices there is nothing to wait for.
fn share_devices() -> Option<RwLockReadGuard<'static, ()>> {
    let has_devices = !cuda_devices().is_empty();
    has_devices.then(|| TURNS.read().unwrap_or_else(PoisonError::into_inner))
}

/// A path of a new file that no other test has.
pub fn temporary_path(name: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // WebAssembly has neither a folder for such files nor numbers of processes.
    let (folder, process) = if cfg!(target_family = "wasm") {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
        (PathBuf::from("/tmp"), time.as_nanos())
    } else {
        (std::env::temp_dir(), std::process::id().into())
    };
    folder.join(format!("maxsim-{name}-{process}-{number}"))
}

fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does tasks `0 .. n` on several threads, and no more once one has failed: why.
fn on_threads(
    n_threads: usize,
    n: usize,
    task: impl Fn(usize) -> Result<(), String> + Sync,
) -> Option<String> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        while failure.lock().expect("failure").is_none() {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                break;
            }
            if let Err(why) = task(i) {
                failure.lock().expect("failure").get_or_insert(why);
            }
        }
    };
    // Not every target has threads.
    match n_threads {
        1 => work(),
        _ => std::thread::scope(|scope| (0..n_threads).for_each(|_| _ = scope.spawn(work))),
    }
    failure.into_inner().expect("failure")
}

fn run_shard<S: Strategy>(
    name: &str,
    shard: usize,
    cases: usize,
    strategy: &S,
    check: impl Fn(&S::Value) -> Result<(), String>,
) -> Result<(), String> {
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: 1000,
        ..Config::default()
    };
    let mut seed = [0u8; 32];
    seed[..8].copy_from_slice(&(shard as u64).to_le_bytes());
    seed[8..].iter_mut().zip(name.bytes()).for_each(|(s, byte)| *s = byte);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    TestRunner::new_with_rng(config, rng)
        .run(strategy, |case| check(&case).map_err(TestCaseError::fail))
        .map_err(|error| error.to_string())
}

/// Past the test harness's capture, so that it is seen when the test passes.
fn say(line: &str) {
    // A closed stderr is no reason to fail.
    _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_is_passed_over_on_every_expected_row_is_none() {
        let suite = Suite::named("rows");
        assert_eq!(suite.missed(), None);
        for row in ["one", "two", "one"] {
            suite.expect(row);
        }
        suite.count("two");
        assert_eq!(suite.missed().as_deref(), Some("one"));
        suite.count("one");
        assert_eq!(suite.missed(), None);
    }
}
