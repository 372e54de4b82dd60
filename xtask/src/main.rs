//! Builds and checks PTX and cubins, gathers bundles, compares evidence, writes the benchmark
//! report, builds and runs for other targets, and checks the floor plan.

mod archive;
mod build_ptx;
mod bundle;
mod check_ptx;
mod cross;
mod cubins;
mod device_rustc;
mod entries;
mod evidence;
mod fingerprint;
mod package;
mod ptx_text;
mod ptxas;
mod report;
mod rust_src;
mod targets;
mod tidy;
mod yields;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::build_ptx::Cubins;
use crate::package::{hub, wheels};

const USAGE: &str = "\
usage: cargo xtask <command>

  build-ptx            compile kernels-gpu for every architecture into host/ptx, assemble it, and
                       compress both into host/images; machine code of some rows gets hints for
                       the scheduler
  build-ptx --ptx-only the same without cubins, for want of an assembler; removes those there are
  build-ptx --check    fail when these are not what kernels-gpu compiles and assembles to
  lint-device          run clippy over kernels-gpu as it compiles for the GPU
  check-ptx            assemble host/ptx with ptxas and check its resources
  bundle               gather tests, benchmark and tool into a folder for a GPU machine (bundle/)
    --out DIR          another folder
    --only NAME,..     only these test programs (maxsim-tests-calls) and files of bin/ (maxsim,
                       maxsim-bench, libmaxsim_bench.so), or those whose names begin so
    --without-embeddings   without the sample's and the reference set's embeddings; programs that
                       need them say so and are skipped
  evidence [--strict]  compare the kernels with the recorded GPU runs in docs/measured
  report               write docs/benchmarks.md and the plots from docs/measured/*/*.json
  report --check       fail when they are not what the records say
  page                 write docs/guide/method.html from wasm/method and the records
  page --check         fail when it is not what they say
  wheels               build the Python package's wheels of a release, for manylinux_2_28 on x86_64
                       and aarch64, with zig's linker, and check them (target/release-wheels)
    --out DIR          another folder
    --target TRIPLE    this processor's alone
  wheels --check WHEEL ..   check these
  hub WHEEL ..         lay out their files as the Hugging Face `kernels` library loads them
                       (target/hub)
    --out DIR          another folder
    --local            wheels for any C library, to be loaded on this machine
  cross NAME COMMAND ..    run `cargo COMMAND ..` for aarch64-unknown-linux-gnu, wasm32-wasip1
                       or wasm32-unknown-unknown, or for this processor under address-sanitizer or
                       thread-sanitizer, with a standard library built from its source
  targets              build the library and the suites of the CPU engine for the first two, and
                       run them under qemu and node (tests/targets/check.sh installs what it needs)
    --record FILE      write what came of every program
    --target NAME,..   these instead, of the two and the sanitizers
    --only NAME,..     these programs of tests/tests alone
  tidy                 check layers, sizes of files, functions and lines, and words of comments
  tidy --lower         lower the counts of exceptions to what is there

environment:
  MAXSIM_RUST_SRC      the standard library's source (`library/` or a .tar.xz of it), used
                       instead of the toolchain's component rust-src
  PTXAS                the assembler; by default the pinned one below target, or that on the path";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = workspace_root();
    let result = match args[..] {
        ["build-ptx"] => build_ptx::write(&root, Cubins::With),
        ["build-ptx", "--ptx-only"] => build_ptx::write(&root, Cubins::Without),
        ["build-ptx", "--check"] => build_ptx::check(&root),
        ["lint-device"] => build_ptx::lint(&root),
        ["check-ptx"] => check_ptx::run(&root),
        ["bundle", ref options @ ..] => {
            bundle::Choice::parse(&root, options).and_then(|choice| bundle::run(&root, &choice))
        }
        ["evidence"] => evidence::run(&root, false),
        ["evidence", "--strict"] => evidence::run(&root, true),
        ["report"] => report::write(&root),
        ["report", "--check"] => report::check(&root),
        ["page"] => report::page::write(&root),
        ["page", "--check"] => report::page::check(&root),
        ["wheels", ref options @ ..] => {
            wheels::Asked::parse(&root, options).and_then(|asked| wheels::run(&root, &asked))
        }
        ["hub", ref options @ ..] => {
            hub::Asked::parse(&root, options).and_then(|asked| hub::run(&root, &asked))
        }
        ["cross", ref words @ ..] => cross::run(&root, words),
        ["targets", ref options @ ..] => {
            targets::Asked::parse(options).and_then(|asked| targets::run(&root, &asked))
        }
        ["tidy"] => tidy::check(&root),
        ["tidy", "--lower"] => tidy::lower(&root),
        _ => {
            if let Some(wrong) = wrong_usage(&args) {
                eprintln!("error: {wrong}\n");
            }
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The commands in the order of the usage.
fn commands() -> Vec<&'static str> {
    let lines = USAGE.lines().skip_while(|line| !line.is_empty()).skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let mut commands: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    commands.dedup();
    commands
}

/// Describes what is wrong with arguments that are no command; `None` where there are none.
fn wrong_usage(args: &[&str]) -> Option<String> {
    let (command, options) = args.split_first()?;
    if !commands().contains(command) {
        let all = commands().join(", ");
        return Some(format!("no such command: {command}; the commands are {all}"));
    }
    Some(format!("{command} does not take {}", options.join(" ")))
}

/// The folder that holds the workspace's Cargo.toml.
fn workspace_root() -> PathBuf {
    // Cargo sets the variable for `cargo run`, so that a moved checkout needs no rebuild.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest_dir.parent().map_or(manifest_dir.clone(), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(wrong_usage(&[]), None);
        let all = "build-ptx, lint-device, check-ptx, bundle, evidence, report, page, wheels, \
                   hub, cross, targets, tidy";
        let expected = format!("no such command: foo; the commands are {all}");
        assert_eq!(wrong_usage(&["foo", "--check"]), Some(expected));
        let expected = "report does not take --chek".to_string();
        assert_eq!(wrong_usage(&["report", "--chek"]), Some(expected));
    }
}
