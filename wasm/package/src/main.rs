//! Makes the npm package out of the compiled engine and the files beside it, `package npm
//! ENGINE.wasm NPM FOLDER`, and scripts for a page that opens from disk, `package page METHOD.wasm
//! FOLDER`.
//!
//! wasm-bindgen writes the JavaScript that calls the engine, and its types.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use wasm_bindgen_cli_support::Bindgen;

/// Name of the generated files.
const NAME: &str = "engine";

/// Parts of wasm-bindgen's JavaScript about freed objects, and what they should be: words that a
/// user knows, and a `free()` that may come again, as at the end of a block with `using`.
const FREED: [[&str; 2]; 2] = [
    ["Attempt to use a moved value", "the object has been freed"],
    ["    free() {\n", "    free() {\n        if (this.__wbg_ptr === 0) return;\n"],
];

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match &arguments[..] {
        [what, engine, npm, folder] if what.as_os_str() == "npm" => package(engine, npm, folder),
        [what, engine, folder] if what.as_os_str() == "page" => page(engine, folder),
        _ => bail!("usage: package npm ENGINE.wasm NPM FOLDER, package page METHOD.wasm FOLDER"),
    }
}

/// Writes what a page needs that has no server: one script, which sets a global variable.
fn page(engine: &Path, folder: &Path) -> Result<()> {
    let mut bindgen = Bindgen::new();
    bindgen.no_modules(true)?.input_path(engine).out_name("method").typescript(false);
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen.generate(folder)
}

/// Writes the npm package.
fn package(engine: &Path, npm: &Path, folder: &Path) -> Result<()> {
    generate(engine, folder)?;
    let script = folder.join(NAME).with_extension("js");
    let mut text = read(&script)?;
    for [found, wanted] in FREED {
        ensure!(text.contains(found), "{} has no {found:?}", script.display());
        text = text.replace(found, wanted);
    }
    fs::write(&script, text)?;
    for entry in fs::read_dir(npm).with_context(|| npm.display().to_string())? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    let manifest = folder.join("package.json");
    ensure!(read(&manifest)?.contains(&version), "package.json has another version: not {version}");
    Ok(())
}

/// Writes the engine with its JavaScript and types.
fn generate(engine: &Path, folder: &Path) -> Result<()> {
    let mut bindgen = Bindgen::new();
    bindgen.web(true)?.input_path(engine).out_name(NAME).typescript(true);
    // Objects and numbers are checked before the engine is entered: an error that is thrown from
    // within never gives back what it has of the stack.
    bindgen.debug(true);
    // Names of functions, which backtraces alone show, are a tenth of the file.
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen.generate(folder)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}
