//! The threads of a run: as many as the environment asks for, within reason.

use std::env;
use std::ffi::OsString;

/// Variables that rayon reads, the deprecated name last.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];

/// Threads per core, beyond which they can only wait for each other: each has work for its core all
/// the time.
const PER_CORE: usize = 4;

/// Threads that may always be asked for: so many cost little on any machine.
const ALWAYS: usize = 64;

/// Starts the threads. What the environment asks for and does not get comes back as a warning.
///
/// # Errors
/// Where they cannot be started.
pub fn start() -> Result<Option<String>, String> {
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = VARIABLES.into_iter().find_map(|name| Some((name, env::var_os(name)?)));
    let (n_threads, warning) = number(asked, n_cores);
    // Otherwise the first call starts them, which panics where it cannot.
    match rayon::ThreadPoolBuilder::new().num_threads(n_threads).build_global() {
        Ok(()) => Ok(warning),
        Err(error) => Err(format!(
            "threads cannot be started: {error}; with RAYON_NUM_THREADS=1 one is enough"
        )),
    }
}

/// Chooses how many threads to start; with a warning, if any.
fn number(asked: Option<(&str, OsString)>, n_cores: usize) -> (usize, Option<String>) {
    let Some((name, value)) = asked else { return (n_cores, None) };
    let value = value.to_string_lossy();
    let value = value.trim();
    let most = ALWAYS.max(PER_CORE.saturating_mul(n_cores));
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let warning = match value.parse::<usize>() {
        Ok(n @ 1..) if n <= most => return (n, None),
        // More than any number can be is too many, too.
        Ok(1..) => return (most, Some(too_many(name, value, most, n_cores))),
        Err(_) if is_number => return (most, Some(too_many(name, value, most, n_cores))),
        // An empty variable is as good as none.
        Err(_) if value.is_empty() => return (n_cores, None),
        Ok(_) => "asks for no threads",
        Err(_) => "is not a number of threads",
    };
    let warning = format!("{name}={value} {warning}; one per core is used, {n_cores} in all");
    (n_cores, Some(warning))
}

fn too_many(name: &str, value: &str, most: usize, n_cores: usize) -> String {
    let cores = if n_cores == 1 { "core" } else { "cores" };
    format!("{name}={value} is too many threads for {n_cores} {cores}; {most} are used")
}
