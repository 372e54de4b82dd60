//! The stand-in's counts and switches, and a process that has it for its driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;

/// Numbers of the stand-in's counts.
pub const WAITS: usize = 0;
pub const ALLOCATIONS: usize = 1;
pub const COPIES: usize = 3;
pub const LAUNCHES: usize = 4;
pub const LOADS: usize = 5;
pub const QUESTIONS: usize = 6;
pub const VIOLATIONS: usize = 7;
pub const FILLS: usize = 8;
pub const CAPTURED: usize = 9;
pub const CALLS: usize = 10;
pub const REPEATED: usize = 11;
pub const EXTERNAL: usize = 12;
pub const EARLY: usize = 13;

/// The environment variable of a process with the stand-in.
const INSIDE: &str = "MAXSIM_TEST_DRIVER";

/// The stand-in, opened.
pub struct StandIn(Library);

impl StandIn {
    fn function<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers below give the types of the functions.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.expect("the stand-in's function")
    }

    pub fn count(&self, index: usize) -> u64 {
        self.function::<extern "C" fn(usize) -> u64>("stand_in_count")(index)
    }

    pub fn clear(&self) {
        self.function::<extern "C" fn()>("stand_in_clear")();
    }

    pub fn set_lag(&self, launches: u64) {
        self.function::<extern "C" fn(u64)>("stand_in_set_lag")(launches);
    }

    pub fn slow_copies(&self, are_slow: bool) {
        self.function::<extern "C" fn(bool)>("stand_in_slow_copies")(are_slow);
    }

    pub fn set_memory(&self, bytes: u64) {
        self.function::<extern "C" fn(u64)>("stand_in_set_memory")(bytes);
    }

    /// Whether some allocation of device memory has these bytes in it.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let holds =
            self.function::<unsafe extern "C" fn(*const u8, usize) -> bool>("stand_in_holds");
        // SAFETY: a slice has as many bytes as it says.
        unsafe { holds(bytes.as_ptr(), bytes.len()) }
    }

    /// Bytes of device memory that are allocated.
    pub fn used_bytes(&self) -> u64 {
        self.function::<extern "C" fn() -> u64>("stand_in_used_bytes")()
    }

    /// Bytes of page-locked host memory that are allocated.
    pub fn page_locked_bytes(&self) -> u64 {
        self.function::<extern "C" fn() -> u64>("stand_in_page_locked_bytes")()
    }

    /// Makes a call, and checks that none of its kernels may begin before the rows that are copied
    /// meanwhile are there.
    pub fn check_in_order(&self, name: &str, call: impl FnOnce()) {
        self.clear();
        call();
        let (early, launches) = (self.count(EARLY), self.count(LAUNCHES));
        assert!(launches > 1, "{name}: {launches} kernels");
        assert_eq!(early, 0, "{name}: of {launches} kernels before their rows were there");
    }

    /// Has the driver's call of this number from now on fail with a code; with `is_of_memory` that
    /// of the calls which allocate; with `is_lasting` all calls after it, too.
    pub fn fail(&self, number: u64, code: u32, is_of_memory: bool, is_lasting: bool) {
        let fail = self.function::<extern "C" fn(u64, u32, bool, bool)>("stand_in_fail");
        fail(number, code, is_of_memory, is_lasting);
    }

    /// Calls that failed since then.
    pub fn failed(&self) -> u64 {
        self.function::<extern "C" fn() -> u64>("stand_in_failed")()
    }

    pub fn watch(&self, start: u64, len: u64) {
        self.function::<extern "C" fn(u64, u64)>("stand_in_watch")(start, len);
    }

    pub fn capture(&self, stream: u64, is_captured: bool) {
        let capture = self.function::<extern "C" fn(usize, bool)>("stand_in_capture");
        capture(stream as usize, is_captured);
    }
}

/// The start of `CUlaunchConfig`: sizes, and a stream.
#[repr(C)]
struct Config([u32; 7], usize);

/// A launch is early where any stream has copied that neither its own comes behind nor the host has
/// waited for.
#[test]
fn launches_wait_for_copies_of_every_stream() {
    in_stand_in("stand_in::launches_wait_for_copies_of_every_stream", |driver| {
        type OfEvent = unsafe extern "C" fn(usize, usize) -> u32;
        let copy: unsafe extern "C" fn(u64, *const u8, usize, usize) -> u32 =
            driver.function("cuMemcpyHtoDAsync_v2");
        let launch: unsafe extern "C" fn(&Config, usize, usize, usize) -> u32 =
            driver.function("cuLaunchKernelEx");
        let create: unsafe extern "C" fn(&mut usize, u32) -> u32 = driver.function("cuEventCreate");
        let record: OfEvent = driver.function("cuEventRecord");
        let wait: unsafe extern "C" fn(usize, usize, u32) -> u32 =
            driver.function("cuStreamWaitEvent");
        let synchronize: unsafe extern "C" fn(usize) -> u32 =
            driver.function("cuStreamSynchronize");
        let (mut memory, bytes) = ([0u8; 4], [1u8; 4]);
        let to = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory is there; streams are numbers; events are those that are made.
        let copy = |stream| unsafe { copy(to, bytes.as_ptr(), 4, stream) };
        let is_early = |stream| {
            driver.clear();
            // SAFETY: as above.
            unsafe { launch(&Config([1; 7], stream), 0, 0, 0) };
            driver.count(EARLY) == 1
        };
        let follow = |stream, other| {
            let mut event = 0;
            // SAFETY: as above.
            unsafe { (create(&mut event, 0), record(event, other), wait(stream, event, 0)) }
        };
        assert!(!is_early(1), "nothing was copied");
        for stream in [1, 2] {
            copy(stream);
        }
        // Stream 2 has copied last, and knows nothing of stream 1.
        assert!(is_early(1) && is_early(2) && is_early(3));
        follow(2, 1);
        assert!(!is_early(2) && is_early(3));
        // What stream 2 comes behind, those that wait for it do, too.
        follow(3, 2);
        assert!(!is_early(3));
        copy(1);
        assert!(is_early(2) && is_early(3));
        // SAFETY: as above.
        unsafe { synchronize(1) };
        assert!(!is_early(2) && !is_early(3), "the host has waited");
    });
}

/// Runs a test in a process of its own with the stand-in for its driver.
pub fn in_stand_in(test: &str, run: impl FnOnce(&StandIn)) {
    match stand_in() {
        Some(driver) => run(&driver),
        None => println!("{}", in_process(test, None)),
    }
}

/// The stand-in, in a process that has it for its driver.
pub fn stand_in() -> Option<StandIn> {
    std::env::var_os(INSIDE)?;
    // SAFETY: the stand-in has no initialisers.
    Some(StandIn(unsafe { Library::new("libcuda.so.1") }.expect("the stand-in")))
}

/// Runs a test once more, in a process that has the stand-in for its driver, and a variable; gives
/// what it says.
pub fn in_process(test: &str, variable: Option<(&str, String)>) -> String {
    let program = std::env::current_exe().expect("this program");
    let folder = folder(&program, test);
    let output = Command::new(&program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .env_remove("MAXSIM_KERNELS")
        .env_remove("MAXSIM_INSTRUCTIONS")
        .envs(variable.clone())
        .output()
        .expect("a process");
    let _ = std::fs::remove_dir_all(&folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{variable:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder that has the stand-in under the driver's name.
fn folder(program: &Path, test: &str) -> PathBuf {
    let beside = program.parent().expect("a folder").join("libmaxsim_test_driver.so");
    assert!(beside.is_file(), "{} is built with the tests", beside.display());
    // Colons would divide the path.
    let name = test.replace("::", "-");
    let folder = std::env::temp_dir().join(format!("maxsim-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::symlink(beside, folder.join("libcuda.so.1")).expect("a link");
    folder
}
