//! What the surroundings of a run have to say: signals, at whatever moment, after which the folder
//! is clean and the output is the one from before, none, or a whole one; and numbers of threads.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::files::{self, Random, npy, packed};
use crate::tool::{self, Run, command};
use indicatif::ProgressBar;
use maxsim::format::ScaleType;
use maxsim::{Device, ScoreOptions};
use maxsim_cli::documents::DocumentFile;
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_cli::rank::stream::{self, Request};
use maxsim_cli::selection::Selected;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Signals that end a run: those that programs can answer, and one that none can. Without those
/// that this process ignores, as under `nohup`: runs that it starts ignore them, too.
fn signals(with_kill: bool) -> Vec<Signal> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let mut signals = vec![Signal::INT, Signal::TERM, Signal::HUP];
    signals.retain(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
    assert!(!signals.is_empty(), "every signal is ignored");
    signals.extend(with_kill.then_some(Signal::KILL));
    signals
}

/// A file system without anonymous files, where `MAXSIM_TEMPORARY` says so.
const NAMED: [(&str, &str); 1] = [("MAXSIM_TEMPORARY", "named")];

const ROWS: usize = 100_000;

/// A folder with documents that take some time to compress, and what they are compressed to.
struct Folder {
    folder: TempDir,
    whole: Vec<u8>,
    took: Duration,
}

impl Folder {
    fn new() -> Folder {
        let folder = TempDir::new().unwrap();
        let values = Random(1).values(1 << 16);
        let bytes = files::f16_bytes(&values).repeat(ROWS * 64 / values.len() + 1);
        let input = npy(1, "<f2", &[ROWS / 10, 10, 64], &bytes[..ROWS * 64 * 2]);
        fs::write(folder.path().join("d.npy"), input).unwrap();
        let mut folder = Folder { folder, whole: Vec::new(), took: Duration::ZERO };
        let start = Instant::now();
        Run::of(folder.quantize(&[]).wait_with_output().unwrap()).ok();
        folder.took = start.elapsed();
        folder.whole = fs::read(folder.output()).unwrap();
        folder
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn output(&self) -> PathBuf {
        self.path().join("out.safetensors")
    }

    fn quantize(&self, environment: &[(&str, &str)]) -> Child {
        let mut command = command();
        command.current_dir(self.path()).envs(environment.iter().copied());
        command.args(["quantize", "--format", "int8", "--input", "d.npy"]);
        command.args(["--output", "out.safetensors"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn names(&self) -> Vec<String> {
        names(self.path())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Bytes of the hidden file that a process has written so far.
fn written(child: &Child) -> u64 {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return 0 };
    let hidden = entries.flatten().filter(|entry| {
        fs::read_link(entry.path())
            .is_ok_and(|to| to.to_string_lossy().contains("/.maxsim-") || is_deleted(&to))
    });
    hidden.filter_map(|entry| Some(fs::metadata(entry.path()).ok()?.len())).max().unwrap_or(0)
}

fn is_deleted(path: &Path) -> bool {
    path.to_string_lossy().ends_with(" (deleted)")
}

/// Waits until a process is in the middle of writing; whether it was seen to be.
fn until_writing(child: &mut Child) -> bool {
    loop {
        if written(child) > 0 {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
    }
}

#[test]
fn whatever_the_moment_and_the_signal_nothing_is_left_behind() {
    let folder = Folder::new();
    let mut n_ended = 0;
    for signal in signals(true) {
        for step in 0..6 {
            let _ = fs::remove_file(folder.output());
            let child = folder.quantize(&[]);
            std::thread::sleep(folder.took.mul_f64(f64::from(step) / 5.0));
            kill(&child, signal);
            let output = child.wait_with_output().unwrap();
            let names = folder.names();
            match fs::read(folder.output()) {
                Ok(found) => assert_eq!(found, folder.whole, "{signal:?} {step}"),
                Err(_) => assert_eq!(names, ["d.npy"], "{signal:?} {step}"),
            }
            assert!(names.len() <= 2, "{signal:?} {step}: {names:?}");
            assert_eq!(output.stderr, b"", "{signal:?} {step}");
            let status = output.status;
            assert!(status.success() || status.signal() == Some(signal.as_raw()), "{status}");
            n_ended += usize::from(!status.success());
        }
    }
    // Those of the first step at least.
    assert!(n_ended >= signals(true).len(), "{n_ended} runs were ended");
}

#[test]
fn a_run_that_ends_in_the_middle_of_writing_leaves_what_was_there() {
    let folder = Folder::new();
    for (environment, signals) in [(&[][..], signals(true)), (&NAMED, signals(false))] {
        for signal in signals {
            for before in [None, Some("what was there before")] {
                // A run may be done before the signal is there.
                let is_ended = (0..20).any(|_| {
                    let _ = fs::remove_file(folder.output());
                    before.into_iter().for_each(|text| fs::write(folder.output(), text).unwrap());
                    let mut child = folder.quantize(environment);
                    let is_writing = until_writing(&mut child);
                    kill(&child, signal);
                    let status = child.wait().unwrap();
                    is_writing && status.signal() == Some(signal.as_raw())
                });
                assert!(is_ended, "{signal:?} {environment:?}");
                let expected = ["d.npy", "out.safetensors"];
                let expected = &expected[..1 + usize::from(before.is_some())];
                assert_eq!(folder.names(), expected, "{signal:?} {environment:?}");
                assert_eq!(fs::read_to_string(folder.output()).ok().as_deref(), before);
            }
        }
    }
}

#[test]
fn what_a_dead_run_left_is_removed_by_the_next_and_what_a_live_one_writes_is_not() {
    let folder = Folder::new();
    let hidden = || {
        let is_hidden = |name: &String| name.starts_with(".maxsim-");
        folder.names().into_iter().filter(is_hidden).collect::<Vec<_>>()
    };
    // Where there are no anonymous files nothing can be done about SIGKILL.
    let mut dead = folder.quantize(&NAMED);
    assert!(until_writing(&mut dead));
    kill(&dead, Signal::KILL);
    dead.wait().unwrap();
    let left = hidden();
    assert_eq!(left.len(), 1, "{left:?}");
    // A run that stands still is alive.
    let mut live = folder.quantize(&NAMED);
    assert!(until_writing(&mut live));
    kill(&live, Signal::STOP);
    let of_live = hidden();
    assert!(of_live.len() == 1 && of_live != left, "{of_live:?}");
    Run::of(folder.quantize(&[]).wait_with_output().unwrap()).ok();
    assert_eq!(hidden(), of_live);
    kill(&live, Signal::CONT);
    Run::of(live.wait_with_output().unwrap()).ok();
    assert_eq!(folder.names(), ["d.npy", "out.safetensors"]);
    assert_eq!(fs::read(folder.output()).unwrap(), folder.whole);
}

#[test]
fn a_signal_that_was_ignored_when_the_run_began_stays_ignored() {
    let folder = Folder::new();
    let _ = fs::remove_file(folder.output());
    let tool = command().get_program().to_owned();
    let script = "trap '' HUP INT; exec \"$0\" quantize --format int8 --input d.npy \
                  --output out.safetensors";
    let mut child = Command::new("sh");
    child.current_dir(folder.path()).args(["-c", script]).arg(tool);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until_writing(&mut child);
    kill(&child, Signal::HUP);
    kill(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(fs::read(folder.output()).unwrap(), folder.whole);
}

#[test]
fn an_interrupted_ranking_writes_nothing() {
    let folder = TempDir::new().unwrap();
    let rows = 300_000;
    let values = Random(1).values(1 << 16);
    let bytes = files::f32_bytes(&values).repeat(rows * 64 / values.len() + 1);
    let documents = npy(1, "<f4", &[rows / 10, 10, 64], &bytes[..rows * 64 * 4]);
    fs::write(folder.path().join("d.npy"), documents).unwrap();
    let offsets: Vec<i64> = (0..=64).map(|i| i * 16).collect();
    let queries = packed(&Random(2).values(64 * 16 * 64), 64, &offsets);
    fs::write(folder.path().join("q.safetensors"), queries).unwrap();
    for signal in signals(true) {
        let mut command = command();
        command.current_dir(folder.path()).args(["rank", "--device", "cpu", "--output", "out"]);
        command.args(["--queries", "q.safetensors", "--documents", "d.npy"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        assert!(output.stdout.is_empty() && output.stderr.is_empty());
        assert_eq!(names(folder.path()), ["d.npy", "q.safetensors"]);
    }
}

/// A file that becomes shorter while it is ranked is an error that says so, of every kind of file,
/// and the next run works.
#[test]
fn a_file_that_is_truncated_during_a_run_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let rows = Random(3).values(4096 * 32);
    fs::write(path("d.npy"), npy(1, "<f4", &[512, 8, 32], &files::f32_bytes(&rows))).unwrap();
    fs::write(path("q.safetensors"), packed(&rows[..64], 32, &[0, 1, 2])).unwrap();
    for (format, more) in [("int8", &[][..]), ("plaid", &["--keep-lengths", "--centroids", "8"])] {
        let (input, output) = (path("d.npy"), path(&format!("{format}.safetensors")));
        let args = ["quantize", "--format", format, "--input", input.to_str().unwrap()];
        tool::run([&args[..], &["--output", output.to_str().unwrap()], more].concat()).ok();
    }
    for (name, bytes) in
        [("d.npy", 40_000), ("int8.safetensors", 10_000), ("plaid.safetensors", 10_000)]
    {
        let queries = TokenFile::open(&path("q.safetensors"), Reading::Map).unwrap();
        let whole = fs::read(path(name)).unwrap();
        let file = DocumentFile::open(&path(name), Reading::Map).unwrap();
        let documents = file.documents().unwrap();
        let request = Request {
            queries: &queries,
            documents: &documents,
            selected: &Selected::All,
            device: &Device::cpu(),
            devices: None,
            options: &ScoreOptions::default(),
            query_scales: ScaleType::F16,
            allow_infinite: false,
            top_k: 1,
            chunk_bytes: Some(bytes),
            progress: &ProgressBar::hidden(),
        };
        let mut n_chunks = 0;
        let error = stream::scores(&request, 0..2, |_, _| {
            n_chunks += 1;
            let file = fs::File::options().write(true).open(path(name)).unwrap();
            file.set_len(whole.len() as u64 / 2).unwrap();
            Ok(())
        });
        let error = format!("{:#}", error.unwrap_err());
        assert_eq!(n_chunks, 1, "{name}: {error}");
        assert!(error.contains(&format!("{name}: the file changed after")), "{error}");
        assert!(error.contains("--no-mmap"), "{error}");
        fs::write(path(name), &whole).unwrap();
        tool::rank(&path("q.safetensors"), &path(name), &[]).ok();
    }
}

#[test]
fn errors_of_writing_name_the_output_alone() {
    let folder = Folder::new();
    fs::remove_file(folder.output()).unwrap();
    for environment in [&[][..], &NAMED] {
        // A disk that is full after a megabyte, as `ulimit` plays it.
        let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" quantize --format int8 \
                      --input d.npy --output out.safetensors";
        let tool = command().get_program().to_owned();
        let mut child = Command::new("sh");
        child.current_dir(folder.path()).args(["-c", script]).arg(tool);
        let output = child.envs(environment.iter().copied()).output().unwrap();
        let error = Run::of(output).error();
        assert_eq!(error, "out.safetensors: File too large (os error 27)");
        assert_eq!(folder.names(), ["d.npy"]);
    }
    // No user may make files here, root included.
    for environment in [&[][..], &NAMED] {
        let mut child = command();
        child.current_dir(folder.path()).envs(environment.iter().copied());
        child.args(["quantize", "--format", "int8", "--input", "d.npy"]);
        child.args(["--output", "/proc/out.safetensors"]);
        let error = Run::of(child.output().unwrap()).error();
        let expected = "--output /proc/out.safetensors: cannot write in the folder /proc: ";
        assert!(error.starts_with(expected) && !error.contains(".maxsim"), "{error}");
    }
}

/// The first line of what `maxsim info` says of the CPU, and the warning.
fn threads(variables: &[(&str, &str)]) -> (usize, String) {
    let mut command = command();
    let names = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];
    names.into_iter().for_each(|name| _ = command.env_remove(name));
    let run = Run::of(command.arg("info").envs(variables.iter().copied()).output().unwrap());
    let warning = run.stderr.clone();
    assert!(warning.lines().count() <= 1, "{warning}");
    let info = run.ok();
    let line = info.lines().find_map(|line| line.trim().strip_prefix("cpu: ")).unwrap();
    (line.split(' ').next().unwrap().parse().unwrap(), warning)
}

#[test]
fn numbers_of_threads_are_within_reason_and_said_where_they_are_not_taken() {
    let n_cores = std::thread::available_parallelism().unwrap().get();
    let most = 64.max(4 * n_cores);
    assert_eq!(threads(&[]), (n_cores, String::new()));
    let name = "RAYON_NUM_THREADS";
    for n in ["1", "2", "3", " 3 ", "64"] {
        assert_eq!(threads(&[(name, n)]), (n.trim().parse().unwrap(), String::new()));
    }
    assert_eq!(threads(&[(name, "")]), (n_cores, String::new()));
    for value in ["100000", "1000000000000", "99999999999999999999999999"] {
        for name in [name, "RAYON_RS_NUM_CPUS"] {
            let (n, warning) = threads(&[(name, value)]);
            assert_eq!(n, most);
            let start = format!("warning: {name}={value} is too many threads for {n_cores} core");
            assert!(warning.starts_with(&start), "{warning}");
            assert!(warning.ends_with(&format!("; {most} are used\n")), "{warning}");
        }
    }
    for (value, words) in [
        ("0", "asks for no threads"),
        ("many", "is not a number of threads"),
        ("-1", "is not a number of threads"),
        ("2.5", "is not a number of threads"),
    ] {
        let (n, warning) = threads(&[(name, value)]);
        let expected =
            format!("warning: {name}={value} {words}; one per core is used, {n_cores} in all\n");
        assert_eq!((n, warning), (n_cores, expected));
    }
}

#[test]
fn wrong_usage_keeps_the_lines_that_help() {
    let usage = tool::run(["rank", "--documentz", "q", "--documents", "d\u{1b}[1m"]).usage();
    let lines: Vec<&str> = usage.lines().collect();
    assert_eq!(lines[0], "error: unexpected argument '--documentz' found");
    assert_eq!(lines[2], "  tip: a similar argument exists: '--documents'");
    assert!(lines[4].starts_with("Usage: maxsim rank "), "{usage}");
    let usage = tool::run(["rank", "--queries", "q", "--documents", "d", "--top-k", "\u{1b}[1m\n"]);
    assert!(usage.usage().starts_with("error: invalid value '[1m"));
    let usage = tool::run(["rank"]).usage();
    assert!(usage.contains("\n  --queries <FILE>\n  --documents <FILE>\n"), "{usage}");
}

#[test]
fn help_says_which_options_exclude_each_other() {
    let help = |command: &str, option: &str| {
        let help = tool::run([command, "--help"]).ok();
        let start = help.find(&format!("\n      {option}")).expect(option) + 1;
        let rest = &help[start..];
        rest[..rest[1..].find("\n      --").map_or(rest.len(), |end| end + 1)].to_string()
    };
    for (command, option, other) in [
        ("rank", "--screen", "--normalize"),
        ("rank", "--normalize", "--screen"),
        ("rank", "--kernel", "--screen"),
        ("rank", "--exact", "--screen"),
        ("rank", "--shortlist", "--screen"),
        ("quantize", "--index", "--input"),
        ("quantize", "--seed", "--index"),
        ("quantize", "--nbits", "--index"),
        ("quantize", "--no-mmap", "--index"),
        ("quantize", "--nbits", "for plaid"),
        ("quantize", "--scales", "not for plaid"),
        ("rank", "--qrels-format", "--qrels"),
        ("rank", "--query-ids", ""),
    ] {
        assert!(help(command, option).contains(other), "{option}: {}", help(command, option));
    }
    assert!(help("quantize", "--seed").contains("Cannot be used with --index."));
}
