//! What a wheel of this package must be: small, for the interpreters and platforms that its name
//! says, and without anything of the machine that built it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use super::elf::Library;
use super::wheel::Wheel;

/// The largest wheel, in bytes.
pub const MAX_BYTES: u64 = 12_000_000;
/// The compiled half.
pub const LIBRARY: &str = "maxsim/_maxsim.abi3.so";
/// All that other libraries may see of it: what its dependencies define stays inside.
const EXPORTED: &str = "PyInit__maxsim";
/// Files without which a wheel is not what it says.
const FILES: &[&str] = &["maxsim/__init__.py", "maxsim/_maxsim.pyi", "maxsim/py.typed"];
/// The same, of the folder `maxsim-VERSION.dist-info`.
const METADATA: &[&str] =
    &["METADATA", "entry_points.txt", "licenses/LICENSE-APACHE", "licenses/LICENSE-MIT"];
/// The system's libraries that a wheel may be loaded with: glibc's parts, and GCC's runtime.
const SYSTEM: &[&str] = &[
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// What a wheel was found to be.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest C library that it asks for.
    pub glibc: (u32, u32),
    /// Bytes of the compiled half.
    pub n_library_bytes: usize,
    /// The libraries that it is loaded with.
    pub needed: BTreeSet<String>,
}

/// Checks a wheel; the error lists all that is wrong. `strangers` are texts that must not be in it,
/// as the builder's folders are.
pub fn check(wheel: &Wheel, strangers: &[String]) -> Result<Found> {
    let mut wrong = of_files(wheel, strangers);
    let library = wheel.file(LIBRARY).unwrap_or_default();
    let mut found = Found { n_library_bytes: library.len(), ..Found::default() };
    match Library::read(library) {
        Ok(library) => {
            wrong.extend(of_library(wheel, &library));
            found.glibc = library.newest("GLIBC").unwrap_or_default();
            found.needed = library.needed;
        }
        Err(error) => wrong.push(format!("{LIBRARY}: {error:#}")),
    }
    ensure!(wrong.is_empty(), "{}:\n  {}", wheel.name, wrong.join("\n  "));
    Ok(found)
}

/// The texts that are of the machine that builds: its folders of the checkout and of the user.
pub fn strangers(root: &Path) -> Vec<String> {
    let home = std::env::var("HOME").ok();
    let cargo = std::env::var("CARGO_HOME").ok();
    let folders = [Some(root.display().to_string()), home, cargo];
    // A folder as short as `/` is in everything.
    folders.into_iter().flatten().filter(|folder| folder.len() > 1).collect()
}

fn of_files(wheel: &Wheel, strangers: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    if wheel.n_bytes > MAX_BYTES {
        wrong.push(format!("it has {} bytes, and may have {MAX_BYTES}", wheel.n_bytes));
    }
    if wheel.interpreters != "cp310-abi3" {
        wrong.push(format!("it is for {}, not cp310-abi3", wheel.interpreters));
    }
    let metadata = format!("maxsim-{}.dist-info", wheel.version);
    let of_metadata = METADATA.iter().map(|name| format!("{metadata}/{name}"));
    for path in FILES.iter().map(ToString::to_string).chain(of_metadata) {
        if wheel.file(&path).is_none() {
            wrong.push(format!("it has no {path}"));
        }
    }
    for (path, bytes) in &wheel.files {
        if path.ends_with(".so") && path != LIBRARY {
            wrong.push(format!("{path} is a library besides {LIBRARY}"));
        }
        for stranger in strangers {
            if bytes.windows(stranger.len()).any(|found| found == stranger.as_bytes()) {
                wrong.push(format!("{path} names {stranger}"));
            }
        }
    }
    wrong
}

fn of_library(wheel: &Wheel, library: &Library) -> Vec<String> {
    let mut wrong = Vec::new();
    if wheel.processor() != Some(&library.machine) {
        wrong.push(format!("its library is for {}, not {}", library.machine, wheel.platform));
    }
    for name in library.needed.iter().filter(|name| !SYSTEM.contains(&&name[..])) {
        wrong.push(format!("its library is loaded with {name}"));
    }
    for name in &library.unversioned {
        if !name.starts_with("Py") && !name.starts_with("_Py") {
            wrong.push(format!("its library asks for {name}, which is no symbol of Python"));
        }
    }
    if !library.exported.iter().eq([EXPORTED]) {
        let names: Vec<&str> = library.exported.iter().map(|name| &name[..]).take(5).collect();
        wrong.push(format!("its library exports {}, not {EXPORTED} alone", names.join(", ")));
    }
    match (wheel.glibc(), library.newest("GLIBC")) {
        (Some(promised), Some(asked)) if asked <= promised => {}
        (promised, asked) => wrong.push(format!(
            "it promises to run with glibc {promised:?}, and its library asks for {asked:?}"
        )),
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::super::wheel::tests::wheel;
    use super::*;

    fn library() -> Library {
        Library {
            machine: "x86_64".into(),
            needed: ["libc.so.6", "libm.so.6"].map(String::from).into(),
            versions: ["GLIBC_2.17", "GLIBC_2.28"].map(String::from).into(),
            unversioned: ["PyErr_Occurred", "_Py_Dealloc"].map(String::from).into(),
            exported: [EXPORTED.to_string()].into(),
        }
    }

    /// What is wrong with a library that `change` changed, in a wheel for x86-64.
    fn wrong_with(change: impl FnOnce(&mut Library)) -> Vec<String> {
        let mut library = library();
        change(&mut library);
        of_library(&wheel("manylinux_2_28_x86_64"), &library)
    }

    #[test]
    fn a_library_that_a_wheel_may_have_is_taken() {
        assert_eq!(wrong_with(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_library_is_said() {
        let one = |change: &dyn Fn(&mut Library), expected: &str| {
            let wrong = wrong_with(change);
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains(expected), "{wrong:?}");
        };
        one(
            &|library| library.machine = "aarch64".into(),
            "for aarch64, not manylinux_2_28_x86_64",
        );
        one(&|library| _ = library.needed.insert("libcuda.so.1".into()), "libcuda.so.1");
        one(&|library| _ = library.unversioned.insert("cuInit".into()), "asks for cuInit");
        one(&|library| _ = library.exported.insert("cuInit".into()), "exports PyInit__maxsim, cuI");
        one(&|library| library.exported.clear(), "not PyInit__maxsim alone");
        one(&|library| _ = library.versions.insert("GLIBC_2.29".into()), "Some((2, 29))");
    }

    #[test]
    fn a_wheel_for_no_c_library_is_refused() {
        let wrong = of_library(&wheel("linux_x86_64"), &library());
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("promises to run with glibc None"), "{wrong:?}");
    }

    #[test]
    fn each_fault_of_the_files_is_said() {
        let good = || wheel("manylinux_2_28_x86_64");
        let folder = ["/somebody/checkout".to_string()];
        assert_eq!(of_files(&good(), &folder), Vec::<String>::new());
        let one = |change: &dyn Fn(&mut Wheel), expected: &str| {
            let mut wheel = good();
            change(&mut wheel);
            let wrong = of_files(&wheel, &folder);
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains(expected), "{wrong:?}");
        };
        one(&|wheel| wheel.n_bytes = MAX_BYTES + 1, "it has 12000001 bytes");
        one(&|wheel| wheel.interpreters = "cp311-cp311".into(), "for cp311-cp311");
        one(&|wheel| wheel.files.retain(|(path, _)| !path.ends_with("py.typed")), "py.typed");
        one(&|wheel| wheel.files.retain(|(path, _)| !path.ends_with("-MIT")), "LICENSE-MIT");
        one(&|wheel| wheel.files.push(("maxsim/x.so".into(), vec![])), "maxsim/x.so is a library");
        let said = b"panicked at /somebody/checkout/src/lib.rs".to_vec();
        one(&|wheel| wheel.files[0].1 = said.clone(), "METADATA names /somebody/checkout");
    }

    #[test]
    fn a_wheel_without_a_library_is_refused_with_its_name() {
        let error = check(&wheel("manylinux_2_28_x86_64"), &[]).expect_err("no ELF").to_string();
        assert!(error.starts_with("maxsim-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl:"), "{error}");
        assert!(error.contains("maxsim/_maxsim.abi3.so: it is no ELF file"), "{error}");
    }
}
