//! What a shared library with this crate in it exports: its own functions, and none of the driver's
//! that are defined for the linker.

use libloading::Library;

/// The file that defines them.
const DEFINED: &str = include_str!("../../host/src/cuda/driver/symbols.rs");

/// The names of functions that a source declares, of those that begin like the driver's.
fn names(source: &str) -> impl Iterator<Item = &str> {
    source.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).filter(|name| {
        name.starts_with("cu") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[test]
#[cfg(target_os = "linux")]
fn no_function_of_the_driver_is_exported() {
    let program = std::env::current_exe().expect("this program");
    let library = program.parent().expect("a folder").join("libmaxsim_bench.so");
    // SAFETY: the library has no initialisers.
    let library = unsafe { Library::new(&library) }.expect("it is built with the tests");
    // SAFETY: the function is not called.
    let exports = |name: &str| unsafe { library.get::<fn()>(name.as_bytes()) }.is_ok();
    assert!(exports("maxsim_bench_open"), "its own functions are");
    let names: Vec<&str> = names(DEFINED).collect();
    assert!(names.len() > 80 && names.contains(&"cuInit"), "{names:?}");
    let exported: Vec<&str> = names.into_iter().filter(|name| exports(name)).collect();
    assert!(exported.is_empty(), "{exported:?}");
}
