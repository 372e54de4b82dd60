//! Runs cargo for a target whose standard library is built from its source: toolchains come with
//! that of the host alone, and rustup's server cannot be reached everywhere.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::package::below_target;
use crate::rust_src;

/// A target of the library, and what cargo needs to know of it.
struct Target {
    triple: &'static str,
    /// Cargo's settings of a target, which a caller's environment overrides.
    settings: &'static [(&'static str, &'static str)],
}

const TARGETS: &[Target] = &[
    Target {
        triple: "aarch64-unknown-linux-gnu",
        settings: &[
            ("LINKER", "aarch64-linux-gnu-gcc"),
            ("RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
        ],
    },
    Target { triple: "wasm32-unknown-unknown", settings: &[("RUSTFLAGS", SIMD128)] },
];

/// What every engine for WebAssembly has had since 2023; the standard library is built with it,
/// too.
const SIMD128: &str = "-C target-feature=+simd128";

/// Runs `cargo COMMAND --target TRIPLE ..` in the caller's folder, given `TRIPLE COMMAND ..`.
///
/// All that is built lies in `cross` below the target folder, as compilers that take unstable
/// options share nothing with others.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let [triple, command, options @ ..] = words else {
        bail!("cross needs a target and cargo's command: cross {} build ..", TARGETS[0].triple)
    };
    let Some(target) = TARGETS.iter().find(|target| target.triple == *triple) else {
        let all: Vec<&str> = TARGETS.iter().map(|target| target.triple).collect();
        bail!("cross {triple}: expected {}", all.join(", "))
    };
    let built = below_target(root, "cross");
    std::fs::create_dir_all(&built).with_context(|| format!("creating {}", built.display()))?;
    let mut cargo = Command::new("cargo");
    cargo.arg(command).args(["--target", triple, "-Zbuild-std=std,panic_abort"]).args(options);
    // Cargo's own name for where the source lies, if not in the toolchain.
    cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", rust_src::library(&built)?);
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &built);
    for (setting, value) in target.settings {
        let variable = variable(triple, setting);
        cargo.env(&variable, std::env::var_os(&variable).unwrap_or(OsString::from(value)));
    }
    let status = cargo.status().context("running cargo")?;
    ensure!(status.success(), "cargo {command} --target {triple} failed");
    Ok(())
}

/// The variable of the environment that has a setting of a target.
fn variable(triple: &str, setting: &str) -> String {
    format!("CARGO_TARGET_{}_{setting}", triple.replace('-', "_").to_uppercase())
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
        let expected = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS";
        assert_eq!(variable("wasm32-unknown-unknown", "RUSTFLAGS"), expected);
    }
}
