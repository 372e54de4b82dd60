//! `page`: the page about the method, one file that opens from disk, out of its parts in
//! `wasm/method/page`, the records' figures, and what `wasm/method` compiles to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::figures;
use crate::cross;
use crate::package::below_target;

/// The page, from the root.
const PAGE: &str = "docs/guide/method.html";

/// The folder of its parts.
const PARTS: &str = "wasm/method/page";

/// Its scripts, in the order in which they are run.
const SCRIPTS: [&str; 4] = ["steps.js", "shape.js", "questions.js", "page.js"];

/// Most bytes of what is compiled, as text.
const ENGINE_BYTES_MAX: usize = 1_000_000;

/// Writes the page.
pub fn write(root: &Path) -> Result<()> {
    let page = generate(root)?;
    fs::write(root.join(PAGE), &page).with_context(|| format!("writing {PAGE}"))?;
    println!("{PAGE}: {} bytes", page.len());
    Ok(())
}

/// Fails when the page is not what its parts and the records say. What it has of the compiler's
/// bytes, which differ between machines, is left out: tests compare the numbers that these show.
pub fn check(root: &Path) -> Result<()> {
    let page = generate(root)?;
    let committed = fs::read_to_string(root.join(PAGE)).with_context(|| PAGE.to_string())?;
    ensure!(
        without_engine(&page)? == without_engine(&committed)?,
        "{PAGE} is stale; run `cargo xtask page` and commit"
    );
    println!("{PAGE} is what its parts and the records say");
    Ok(())
}

fn generate(root: &Path) -> Result<String> {
    let folder = compiled(root)?;
    let bytes = folder.join("method_bg.wasm");
    let bytes = fs::read(&bytes).with_context(|| bytes.display().to_string())?;
    let engine = STANDARD.encode(bytes);
    ensure!(engine.len() <= ENGINE_BYTES_MAX, "the engine has {} bytes as text", engine.len());
    let part = |name: &str| -> Result<String> {
        let path = root.join(PARTS).join(name);
        Ok(fs::read_to_string(&path).with_context(|| path.display().to_string())?.trim().into())
    };
    let glue = folder.join("method.js");
    let glue = fs::read_to_string(&glue).with_context(|| glue.display().to_string())?;
    let scripts = SCRIPTS.into_iter().map(part).collect::<Result<Vec<_>>>()?.join("\n\n");
    let measured = serde_json::to_string(&figures::cards(root)?).context("the records' figures")?;
    assemble(
        &part("page.html")?,
        &[
            ("style", &part("page.css")?),
            ("measured", &measured),
            ("glue", glue.trim()),
            ("script", &scripts),
            ("engine", &engine),
        ],
    )
}

/// Puts the parts where the template names them, each exactly once.
fn assemble(template: &str, parts: &[(&str, &str)]) -> Result<String> {
    let mut page = String::new();
    let mut rest = template;
    let mut used = Vec::new();
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").context("a {{ that is not closed")?;
        let Some((name, text)) = parts.iter().find(|(part, _)| *part == name) else {
            bail!("the page has no part {name}");
        };
        // Scripts and styles end at the first of these, wherever it stands.
        ensure!(!text.contains("</"), "part {name} has </, which ends the element around it");
        page.extend([before, text]);
        used.push(*name);
        rest = after;
    }
    used.sort_unstable();
    let mut names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    ensure!(used == names, "the page has the parts {used:?}, expected {names:?}");
    Ok(page + rest + "\n")
}

/// The page without what the compiler and wasm-bindgen made.
fn without_engine(page: &str) -> Result<String> {
    let begin = "const engineBytes = \"";
    let (before, after) = page.split_once(begin).context("the page has no engine")?;
    let (_, after) = after.split_once('"').context("the page's engine does not end")?;
    Ok(format!("{before}{begin}{after}"))
}

/// Compiles the engine of the page and its script, and gives their folder.
fn compiled(root: &Path) -> Result<PathBuf> {
    let manifest = root.join("wasm/Cargo.toml");
    let manifest = manifest.to_str().context("the checkout's path is no text")?;
    // With the npm package, whose build this shares.
    let triple = "wasm32-unknown-unknown";
    let packages = ["-p", "maxsim-wasm", "-p", "maxsim-method", "--lib"];
    let options = ["--locked", "--quiet", "--release", "--manifest-path", manifest];
    cross::run(root, &[&[triple, "build"][..], &options, &packages].concat())?;
    let built = below_target(root, "cross").join(triple).join("release/maxsim_method.wasm");
    let folder = below_target(root, "wasm/page");
    let status = Command::new("cargo")
        .args(["run", "--locked", "--quiet", "-p", "package", "--", "page"])
        .args([&built, &folder])
        .current_dir(root.join("wasm"))
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "wasm-bindgen made no script of {}", built.display());
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_where_they_are_named() {
        let made = assemble("<a>{{one}}</a>{{two}}", &[("two", "2"), ("one", "1")]);
        assert_eq!(made.unwrap(), "<a>1</a>2\n");
        for (template, parts, said) in [
            ("{{one}}", &[][..], "no part one"),
            ("", &[("one", "1")], "expected [\"one\"]"),
            ("{{one}}{{one}}", &[("one", "1")], "has the parts"),
            ("{{one", &[("one", "1")], "not closed"),
            ("{{one}}", &[("one", "</script>")], "ends the element"),
        ] {
            let error = assemble(template, parts).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_compilers_bytes_are_no_part_of_the_comparison() {
        let page = |bytes: &str| format!("<p>1\nconst engineBytes = \"{bytes}\";\nrest");
        let without = |bytes| without_engine(&page(bytes)).unwrap();
        assert_eq!(without("AAAA"), without("BBBBBB"));
        assert_ne!(without("AAAA"), without_engine(&page("AAAA").replace('1', "2")).unwrap());
        assert!(without_engine("<p>").is_err());
    }
}
