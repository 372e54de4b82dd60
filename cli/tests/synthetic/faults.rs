//! Faults of the machine, for every command that writes a file: a run that is killed in the middle
//! of a write, a disk that is full, an input that is truncated while it is mapped. What was there
//! stays, or the whole output is there; nothing that is half-written is ever taken for whole.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::files::{Random, f16_bytes, f32_bytes, npy, packed};
use crate::tool::{Folder, Run, command};
use rustix::process::Signal;

/// A file system without anonymous files, where `MAXSIM_TEMPORARY` says so.
const NAMED: [(&str, &str); 1] = [("MAXSIM_TEMPORARY", "named")];

/// The blocks that `ulimit -f` counts in, of POSIX shells.
const BLOCK_BYTES: u64 = 512;

const DIM: usize = 16;

/// Every command's output: some want this ending, the others take any.
const OUT: &str = "out.safetensors";

/// The conversion of an index, but for its output.
fn index(name: &str) -> String {
    let indexes = Path::new("tests/plaid").canonicalize().unwrap();
    format!("quantize --format plaid --index {}/{name}", indexes.display())
}

/// Every way to write a file, but for its name.
fn writers() -> Vec<Vec<String>> {
    let rank = "rank --device cpu --top-k 100 --queries q.safetensors --documents d.npy";
    let explain = "explain --queries q.safetensors --documents d.npy --query 0 --document 0";
    let written = [
        "quantize --format int8 --input d.npy".into(),
        "quantize --format int8-affine --input d.npy".into(),
        "quantize --format fp8 --input d.npy".into(),
        "quantize --format plaid --keep-lengths --centroids 8 --input d.npy".into(),
        index("fast-plaid-4"),
        format!("{rank} --format json"),
        format!("{rank} --format trec"),
        format!("{rank} --format table"),
        format!("{explain} --format html"),
        format!("{explain} --format svg"),
        format!("{explain} --format json"),
    ];
    written.iter().map(|words| split(words)).collect()
}

fn split(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

fn inputs() -> Folder {
    let folder = Folder::empty();
    let values = Random(5).values(96 * 8 * DIM);
    folder.write("d.npy", npy(1, "<f4", &[96, 8, DIM], &f32_bytes(&values)));
    folder.write("q.safetensors", packed(&values[..8 * DIM], DIM, &[0, 4, 8]));
    folder
}

/// Runs the tool in a folder in which it can write files of `blocks` at most: a write beyond that
/// ends it by a signal, in the middle of the write, or fails where the signal is ignored.
fn limited(
    folder: &Folder,
    args: &[String],
    blocks: u64,
    is_ignored: bool,
    environment: &[(&str, &str)],
) -> Output {
    let trap = if is_ignored { "trap '' XFSZ; " } else { "" };
    let script = format!("{trap}ulimit -c 0; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.current_dir(folder.path("")).args(["-c", &script]);
    shell.arg(command().get_program()).args(args).args(["--output", OUT]);
    shell.env("MAXSIM_CACHE_DIR", folder.path("cache")).envs(environment.iter().copied());
    shell.output().unwrap()
}

fn whole(folder: &Folder, args: &[String]) -> Vec<u8> {
    let mut command = command();
    command.current_dir(folder.path("")).args(args).args(["--output", OUT]);
    Run::of(command.output().unwrap()).ok();
    fs::read(folder.path(OUT)).unwrap()
}

/// Limits below a size: none at all, one block, half, and all but the last block.
fn limits(bytes: usize) -> Vec<u64> {
    let last = (bytes as u64 - 1) / BLOCK_BYTES;
    let mut limits = vec![0, 1.min(last), last / 2, last];
    limits.dedup();
    limits
}

#[test]
fn a_run_that_is_killed_in_a_write_leaves_what_was_there() {
    let folder = inputs();
    for args in writers() {
        let expected = whole(&folder, &args);
        for blocks in limits(expected.len()) {
            for environment in [&[][..], &NAMED] {
                for before in [None, Some("what was there before")] {
                    let _ = fs::remove_file(folder.path(OUT));
                    before.into_iter().for_each(|text| _ = folder.write(OUT, text));
                    let output = limited(&folder, &args, blocks, false, environment);
                    let said = format!("{args:?}, {blocks} blocks, {environment:?}: {output:?}");
                    assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{said}");
                    assert_eq!(fs::read_to_string(folder.path(OUT)).ok().as_deref(), before);
                    // A file that had to have a name is hidden, and the next run removes it.
                    let names = folder.names();
                    let is_left = |name: &&String| name.starts_with(".maxsim-");
                    let n_left = names.iter().filter(is_left).count();
                    assert_eq!(n_left, usize::from(!environment.is_empty()), "{said}");
                    let n_others = 2 + usize::from(before.is_some());
                    assert_eq!(names.len() - n_left, n_others, "{said}: {names:?}");
                    assert_eq!(whole(&folder, &args), expected, "{said}");
                    assert_eq!(folder.names(), ["d.npy", OUT, "q.safetensors"], "{said}");
                }
            }
        }
    }
}

#[test]
fn a_disk_that_is_full_is_an_error_that_names_the_output() {
    let folder = inputs();
    for args in writers() {
        let expected = whole(&folder, &args);
        for blocks in limits(expected.len()) {
            for environment in [&[][..], &NAMED] {
                folder.write(OUT, "what was there before");
                let output = limited(&folder, &args, blocks, true, environment);
                let error = Run::of(output).error();
                let expected = format!("{OUT}: File too large (os error 27)");
                assert_eq!(error, expected, "{args:?}, {blocks} blocks");
                assert_eq!(fs::read(folder.path(OUT)).unwrap(), b"what was there before");
                assert_eq!(folder.names(), ["d.npy", OUT, "q.safetensors"]);
            }
        }
    }
}

/// Files that torch saved are copied to a folder for temporary files before they are read.
#[test]
fn a_disk_that_is_full_of_copies_is_an_error_that_says_so() {
    let folder = inputs();
    let args = split(&index("colbert-2"));
    let expected = whole(&folder, &args);
    for blocks in 0..=2 {
        fs::remove_file(folder.path(OUT)).unwrap_or_default();
        let error = Run::of(limited(&folder, &args, blocks, true, &[])).error();
        let said = "pt: writing a copy in ";
        assert!(error.contains(said) && error.ends_with("File too large (os error 27)"), "{error}");
        let output = limited(&folder, &args, blocks, false, &[]);
        assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{output:?}");
        assert_eq!(folder.names(), ["d.npy", "q.safetensors"]);
        assert_eq!(whole(&folder, &args), expected);
    }
}

/// As above with a file system of 64 KB, where this user may mount one.
#[test]
fn a_file_system_without_space_is_an_error_that_names_the_output() {
    let folder = inputs();
    let values = Random(6).values(1 << 17);
    folder.write("large.npy", npy(1, "<f2", &[1 << 10, 8, DIM], &f16_bytes(&values)));
    fs::create_dir(folder.path("full")).unwrap();
    let script = "mount -t tmpfs -o size=64k tmpfs full || exit 77; \
                  \"$0\" quantize --format int8 --input large.npy --output full/out.safetensors; \
                  code=$?; ls -A full >&2; exit $code";
    let mut shell = Command::new("unshare");
    shell.current_dir(folder.path("")).args(["--mount", "sh", "-c", script]);
    let output = match shell.arg(command().get_program()).output() {
        Ok(output) if output.status.code() == Some(2) => output,
        other => return eprintln!("SKIPPED (no file system can be mounted: {other:?})"),
    };
    // One line, and no name of a file behind it.
    assert_eq!(
        Run::of(output).error(),
        "full/out.safetensors: No space left on device (os error 28)"
    );
}

/// An entry of the cache is there whole or not at all.
#[test]
fn a_run_that_is_killed_while_it_remembers_has_remembered_nothing() {
    let folder = inputs();
    let quantized = "quantize --format int8 --input d.npy --output d.int8.safetensors";
    let rank = "rank --device cpu --queries q.safetensors --documents d.npy \
                --screen d.int8.safetensors --format json";
    let run = |args: &[String], cache: &str| {
        let mut command = command();
        command.current_dir(folder.path("")).args(args);
        Run::of(command.env("MAXSIM_CACHE_DIR", folder.path(cache)).output().unwrap()).ok()
    };
    run(&split(quantized), "cache");
    let expected = run(&split(rank), "cache");
    let entries = |cache| fs::read_dir(folder.path(cache)).unwrap().count();
    assert_eq!(entries("cache"), 1, "the screen is to be remembered");
    let script = "ulimit -c 0; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.current_dir(folder.path("")).args(["-c", script]).arg(command().get_program());
    shell.args(split(rank)).env("MAXSIM_CACHE_DIR", folder.path("other"));
    let output = shell.output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{output:?}");
    assert_eq!(entries("other"), 0);
    assert_eq!(run(&split(rank), "other"), expected);
    assert_eq!(entries("other"), 1);
}

/// A file that another program truncates, at whatever moment: the output is the right one, or there
/// is an error that names the file, or the run is ended by SIGBUS, which mapping a file means. It
/// is never another output. Without mapping there is no such signal.
#[test]
fn a_file_that_is_truncated_at_any_moment_gives_no_wrong_output() {
    const ROWS: usize = 160_000;
    let folder = Folder::empty();
    let values = Random(7).values(1 << 16);
    let bytes = f32_bytes(&values).repeat(ROWS * 32 / values.len() + 1);
    let documents = npy(1, "<f4", &[ROWS / 10, 10, 32], &bytes[..ROWS * 32 * 4]);
    folder.write("d.npy", &documents);
    let offsets: Vec<i64> = (0..=8).map(|i| i * 16).collect();
    folder.write("q.safetensors", packed(&values[..8 * 16 * 32], 32, &offsets));
    let rank = |more: &[&str]| {
        let mut command = command();
        command.current_dir(folder.path("")).args(["rank", "--device", "cpu", "--output", OUT]);
        command.args(["--queries", "q.safetensors", "--documents", "d.npy", "--format", "json"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for more in [&[][..], &["--no-mmap"]] {
        let start = Instant::now();
        Run::of(rank(more).wait_with_output().unwrap()).ok();
        let (took, expected) = (start.elapsed(), fs::read(folder.path(OUT)).unwrap());
        let mut n_whole = 0;
        for step in 0..12 {
            fs::remove_file(folder.path(OUT)).unwrap_or_default();
            let child = rank(more);
            std::thread::sleep(took.mul_f64(f64::from(step) / 10.0));
            let file = fs::File::options().write(true).open(folder.path("d.npy")).unwrap();
            file.set_len(documents.len() as u64 / 2).unwrap();
            let output = child.wait_with_output().unwrap();
            let said = format!("{more:?} {step}: {output:?}");
            if output.status.success() {
                assert_eq!(fs::read(folder.path(OUT)).unwrap(), expected, "{said}");
                n_whole += 1;
            } else {
                assert_eq!(folder.names(), ["d.npy", "q.safetensors"], "{said}");
                let is_fault = output.status.signal() == Some(Signal::BUS.as_raw());
                assert!(!is_fault || more.is_empty(), "{said}");
                if !is_fault {
                    assert!(Run::of(output).error().contains("d.npy"), "{said}");
                }
            }
            folder.write("d.npy", &documents);
            // What changed a moment ago could change again unseen.
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(n_whole < 12, "{more:?}: no run was late enough to see that its file changed");
    }
}
