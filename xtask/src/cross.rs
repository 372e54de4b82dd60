//! Runs cargo for a target whose standard library is built from its source: toolchains come with
//! that of the host alone, and rustup's server cannot be reached everywhere. The host itself under
//! a sanitizer is such a target, since what the sanitizer watches is to be all of a program.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::below_target;
use crate::rust_src;

/// A target of the library, and what cargo needs to know of it.
pub struct Target {
    /// The triple, or the sanitizer's name.
    pub name: &'static str,
    triple: &'static str,
    /// The folder below the target folder in which all is built.
    folder: &'static str,
    linker: Option<&'static str>,
    flags: &'static str,
    /// The program that runs its programs, and arguments; names with a slash are files of the
    /// checkout. None where nothing here does.
    pub runner: &'static [&'static str],
}

/// The targets, those first whose programs can be run.
pub const TARGETS: &[Target] = &[
    Target {
        name: "aarch64-unknown-linux-gnu",
        triple: "aarch64-unknown-linux-gnu",
        folder: CROSS,
        linker: Some("aarch64-linux-gnu-gcc"),
        flags: "",
        runner: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    },
    // The 128-bit registers are what every engine has had since 2023. The C library is Debian's.
    Target {
        name: "wasm32-wasip1",
        triple: "wasm32-wasip1",
        folder: CROSS,
        linker: None,
        flags: "-C target-feature=+simd128 -C link-self-contained=no \
                -C link-arg=/usr/lib/wasm32-wasi/crt1-command.o -L native=/usr/lib/wasm32-wasi",
        runner: &["node", "--no-warnings", "tests/targets/wasi.mjs"],
    },
    Target {
        name: "wasm32-unknown-unknown",
        triple: "wasm32-unknown-unknown",
        folder: CROSS,
        linker: None,
        flags: "-C target-feature=+simd128",
        runner: &[],
    },
    Target {
        name: "address-sanitizer",
        triple: HOST,
        folder: "address-sanitizer",
        linker: None,
        // Not what lies around constants: a font among the dependencies takes minutes then.
        flags: "-Zsanitizer=address -Cllvm-args=-asan-globals=0",
        runner: &["env", "ASAN_OPTIONS=detect_stack_use_after_return=1"],
    },
    Target {
        name: "thread-sanitizer",
        triple: HOST,
        folder: "thread-sanitizer",
        linker: None,
        flags: "-Zsanitizer=thread",
        runner: &["env", "TSAN_OPTIONS=halt_on_error=1"],
    },
];

/// Where other processors' programs are built.
const CROSS: &str = "cross";

/// Where the sanitizers' runtimes are part of the toolchain.
const HOST: &str = "x86_64-unknown-linux-gnu";

impl Target {
    /// Whether it is the host under a sanitizer.
    pub fn is_sanitizer(&self) -> bool {
        self.triple == HOST
    }

    /// The program that runs this target's programs, and its arguments; empty without one.
    pub fn runner(&self, root: &Path) -> Vec<String> {
        let word = |word: &&str| match root.join(word) {
            file if word.starts_with("tests/") => file.display().to_string(),
            _ => word.to_string(),
        };
        self.runner.iter().map(word).collect()
    }

    /// `cargo COMMAND --target ..` with the standard library's source. Settings of cargo's that the
    /// caller's environment has win.
    ///
    /// All that is built lies in a folder of its own, as compilers that take unstable options share
    /// nothing with others.
    pub fn cargo(&self, root: &Path, command: &str) -> Result<Command> {
        let (built, source) = (below_target(root, self.folder), below_target(root, CROSS));
        std::fs::create_dir_all(&built).with_context(|| format!("creating {}", built.display()))?;
        let mut cargo = Command::new("cargo");
        cargo.arg(command).args(["--target", self.triple, "-Zbuild-std=std,panic_abort"]);
        // Cargo's own name for where the source lies, if not in the toolchain.
        cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", rust_src::library(&source)?);
        cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &built);
        let mut set = |variable: &str, value: &str| {
            if std::env::var_os(variable).is_none() && !value.is_empty() {
                cargo.env(variable, value);
            }
        };
        set(&self.variable("LINKER"), self.linker.unwrap_or_default());
        set(&self.variable("RUSTFLAGS"), self.flags);
        set(&self.variable("RUNNER"), &self.runner(root).join(" "));
        // A third of the time to build.
        set("CARGO_PROFILE_DEV_DEBUG", "false");
        Ok(cargo)
    }

    /// The variable of the environment that has a setting of this target.
    fn variable(&self, setting: &str) -> String {
        format!("CARGO_TARGET_{}_{setting}", self.triple.replace('-', "_").to_uppercase())
    }
}

/// Runs `cargo COMMAND --target TRIPLE ..` in the caller's folder, given `NAME COMMAND ..`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let [name, command, options @ ..] = words else {
        bail!("cross needs a target and cargo's command: cross {} build ..", TARGETS[0].name)
    };
    let Some(target) = TARGETS.iter().find(|target| target.name == *name) else {
        let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!("cross {name}: expected {}", all.join(", "))
    };
    let status = target.cargo(root, command)?.args(options).status().context("running cargo")?;
    ensure!(status.success(), "cargo {command} for {name} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let error = |words: &[&str]| run(Path::new("checkout"), words).unwrap_err().to_string();
        assert!(error(&["wasm32-unknown-unknown"]).starts_with("cross needs a target"));
        let other = error(&["riscv", "build"]);
        assert!(other.starts_with("cross riscv: expected aarch64-unknown-linux-gnu, "), "{other}");
    }

    #[test]
    fn settings_have_cargos_names() {
        let expected = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
        assert_eq!(TARGETS[0].variable("LINKER"), expected);
    }

    #[test]
    fn runners_of_the_checkout_are_found_from_every_folder() {
        let root = Path::new("/somebody/checkout");
        let runner = TARGETS[1].runner(root);
        assert_eq!(runner[0], "node");
        assert_eq!(runner[2], "/somebody/checkout/tests/targets/wasi.mjs");
    }
}
