//! Compiles the kernel crate for the GPU with the pinned rustc's own NVPTX back end.
//!
//! rustc is called directly rather than through cargo: `core` and the kernels are all there is,
//! only the PTX text is wanted (so nothing is linked), and without cargo's path-dependent hashes
//! the output depends on the sources and the compiler alone.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use maxsim_kernels::abi::arch::Arch;

use crate::fingerprint::sha256;
use crate::rust_src;

/// A compiler with `core` built for the GPU.
pub struct DeviceRustc {
    root: PathBuf,
    work: PathBuf,
    core_dir: PathBuf,
}

/// Flags of both `core` and the kernels.
///
/// MIR jump threading and LLVM's simplifycfg copy code that ends in a conditional branch into its
/// predecessors. rustc marks neither `asm!` nor functions as convergent, so that they would copy
/// barriers into both arms of a divergent branch; hence each is held back.
const FLAGS: &[&str] = &[
    "--edition=2024",
    "--crate-type=rlib",
    "--target=nvptx64-nvidia-cuda",
    "-Cpanic=abort",
    "-Copt-level=3",
    "-Ccodegen-units=1",
    "-Cdebuginfo=0",
    "-Cdebug-assertions=off",
    "-Coverflow-checks=off",
    "-Zmir-enable-passes=-JumpThreading",
    "-Zunstable-options",
];
const LLVM_ARGS: &str = "-Cllvm-args=-simplifycfg-max-small-block-size=0";

/// The lints of kernels-gpu/Cargo.toml, for the code that only the GPU compilation sees. An
/// instruction may serve one architecture alone, so that being unused on the other is no fault.
const LINTS: &[&str] = &[
    "-Dwarnings",
    "-Adead_code",
    "-Dmissing_docs",
    "-Dunsafe_op_in_unsafe_fn",
    "-Dclippy::undocumented_unsafe_blocks",
];

impl DeviceRustc {
    /// Prepares `core`; it is kept below `target/ptx` for the next call.
    pub fn new(root: &Path) -> Result<DeviceRustc> {
        let work = root.join("target/ptx");
        fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
        let library = rust_src::library(&work)?;
        let version = Command::new("rustc").arg("-vV").output().context("running rustc")?;
        let key = [&version.stdout, library.as_os_str().as_encoded_bytes()].concat();
        let core_dir = work.join(format!("core-{}", &sha256(&key)[..16]));
        let this = DeviceRustc { root: root.to_path_buf(), work, core_dir };
        if !this.core_dir.is_dir() {
            this.build_core(&library)?;
        }
        Ok(this)
    }

    /// The PTX of the kernel crate for one architecture, as the compiler prints it.
    pub fn ptx(&self, arch: Arch) -> Result<String> {
        let out = self.work.join(format!("{}.ptx", arch.target()));
        let mut rustc = self.kernels("rustc", arch);
        // The declared PTX version decides which drivers load a file. sm_80 entries keep the
        // compiler's minimum for the target (7.0); fence.proxy.tensormap needs 8.3.
        if arch == Arch::Sm90a {
            rustc.arg("-Ctarget-feature=+ptx83");
        }
        // Warnings are for `lint` to show; the one about that feature's name says nothing new.
        rustc.arg("-Awarnings").arg("--emit=asm").arg("-o").arg(&out);
        run(rustc, &format!("compiling kernels-gpu for {}", arch.target()))?;
        fs::read_to_string(&out).with_context(|| format!("reading {}", out.display()))
    }

    /// Runs clippy over the kernel crate as it compiles for one architecture.
    pub fn lint(&self, arch: Arch) -> Result<()> {
        let mut clippy = self.kernels("clippy-driver", arch);
        clippy.args(LINTS).arg("--emit=metadata").arg("-o");
        clippy.arg(self.work.join(format!("{}.rmeta", arch.target())));
        run(clippy, &format!("linting kernels-gpu for {}", arch.target()))
    }

    fn kernels(&self, program: &str, arch: Arch) -> Command {
        let mut rustc = self.compiler(program, "maxsim_kernels");
        rustc.args(FLAGS).arg(LLVM_ARGS).arg("--check-cfg=cfg(test)");
        rustc.arg(r#"--check-cfg=cfg(maxsim_arch, values("sm_80", "sm_90a"))"#);
        rustc.arg("--cfg").arg(format!("maxsim_arch=\"{}\"", arch.target()));
        rustc.arg(format!("-Ctarget-cpu={}", arch.target()));
        rustc.args([extern_core(&self.core_dir), "-L".into(), self.core_dir.clone().into()]);
        rustc.arg("kernels-gpu/src/lib.rs");
        rustc
    }

    /// Metadata is all that the kernels need of `core`: whatever they use is inlined, and what is
    /// not shows up as an unresolved symbol, which is an error.
    fn build_core(&self, library: &Path) -> Result<()> {
        let partial = self.work.join(format!("core-{}.partial", std::process::id()));
        fs::create_dir_all(&partial)?;
        let metadata = ["--emit=metadata", "-Zforce-unstable-if-unmarked", "--cap-lints=allow"];

        let mut core = self.compiler("rustc", "core");
        core.args(FLAGS).args(metadata).arg("-Zalways-encode-mir").arg("--out-dir").arg(&partial);
        core.arg(remap(library, "library")).arg(library.join("core/src/lib.rs"));
        run(core, "compiling core for the GPU")?;

        // rustc looks for this crate beside `core`; the kernels call nothing in it.
        let builtins_source = partial.join("compiler_builtins.rs");
        fs::write(
            &builtins_source,
            "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n",
        )?;
        let mut builtins = self.compiler("rustc", "compiler_builtins");
        builtins.args(FLAGS).args(metadata).arg(extern_core(&partial));
        builtins.arg("--out-dir").arg(&partial).arg(&builtins_source);
        run(builtins, "compiling compiler_builtins for the GPU")?;

        fs::rename(&partial, &self.core_dir).context("keeping the compiled core")
    }

    fn compiler(&self, program: &str, crate_name: &str) -> Command {
        let mut compiler = Command::new(program);
        compiler.current_dir(&self.root).env("RUSTC_BOOTSTRAP", "1");
        compiler.arg("--crate-name").arg(crate_name).arg(remap(&self.root, "maxsim"));
        compiler
    }
}

fn extern_core(dir: &Path) -> OsString {
    let mut flag = OsString::from("--extern=noprelude:core=");
    flag.push(dir.join("libcore.rmeta"));
    flag
}

fn remap(from: &Path, to: &str) -> OsString {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(from);
    flag.push("=");
    flag.push(to);
    flag
}

fn run(mut command: Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| what.to_string())?;
    ensure!(status.success(), "{what}: {} failed", command.get_program().display());
    Ok(())
}
