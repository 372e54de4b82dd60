//! Lays out the folder that the Hugging Face `kernels` library loads, from wheels.
//!
//! That folder has one subfolder for every framework, GPU toolkit and platform ("variant"):
//! `build/torch-stable-abi29-cu128-x86_64-linux/{__init__.py, metadata.json, …}`. The library
//! asks nothing of PyTorch's own symbols and loads the GPU driver when it is asked for, so that
//! the files of all variants of a platform are those of its wheel.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::wheel::Wheel;
use super::{GLIBC, below_target, rules};
use crate::fingerprint::sha256;

/// The kernel's name on the Hub.
const NAME: &str = "maxsim";
/// The kernel's version: the branch `v1`. It grows when a caller has to change something.
const VERSION: u32 = 1;
const LICENSE: &str = "MIT OR Apache-2.0";
/// The oldest PyTorch that takes these files.
const FRAMEWORK: &str = "torch-stable-abi29";
/// Of what CUDA release PyTorch may be, or none; each serves the later ones of its major release,
/// too.
const BACKENDS: &[&str] = &["cu126", "cu128", "cu130", "cpu"];
/// GPUs that the kernels run on: those of compute capability 8.0, and by their PTX all later ones.
const CUDA_ARCHS: &[&str] = &["8.0+PTX", "9.0a"];
/// The page of the kernel.
const CARD: &str = include_str!("card.md");

/// What `cargo xtask hub` is asked to do.
#[derive(Debug, PartialEq)]
pub struct Asked {
    out: PathBuf,
    wheels: Vec<PathBuf>,
    /// Whether a wheel for a newer C library than the Hub allows is taken.
    local: bool,
}

impl Asked {
    /// Reads the options; `root` has the folder where none is named.
    pub fn parse(root: &Path, words: &[&str]) -> Result<Asked> {
        let mut asked = Asked { out: below_target(root, "hub"), wheels: Vec::new(), local: false };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--out" => {
                    asked.out = words.next().context("--out needs a value")?.into();
                }
                "--local" => asked.local = true,
                _ if word.starts_with('-') => bail!("hub {word}: expected --out or --local"),
                _ => asked.wheels.push(word.into()),
            }
        }
        ensure!(!asked.wheels.is_empty(), "hub needs the wheels whose files it lays out");
        Ok(asked)
    }
}

/// Writes the folder.
pub fn run(root: &Path, asked: &Asked) -> Result<()> {
    let wheels: Vec<Wheel> =
        asked.wheels.iter().map(|path| Wheel::read(path)).collect::<Result<_>>()?;
    // What an earlier version left would be a part of this one.
    if asked.out.is_dir() {
        ensure!(
            asked.out.join("build").is_dir() || is_empty(&asked.out)?,
            "{} is not empty and holds no build/: it is no folder of a kernel",
            asked.out.display()
        );
        fs::remove_dir_all(&asked.out)
            .with_context(|| format!("removing {}", asked.out.display()))?;
    }
    let mut seen = BTreeMap::new();
    for wheel in &wheels {
        let strangers = if asked.local { Vec::new() } else { rules::strangers(root) };
        let found = rules::check(wheel, &strangers)?;
        ensure!(
            asked.local || found.glibc <= GLIBC,
            "{} asks for a newer C library than the Hub allows; `cargo xtask wheels` makes those \
             that do not",
            wheel.name
        );
        for backend in BACKENDS {
            let variant = variant(wheel, backend)?;
            if let Some(other) = seen.insert(variant.clone(), &wheel.name) {
                bail!("{} and {other} are for the same platform", wheel.name);
            }
            write(&asked.out, &files(wheel, &variant, backend)?)?;
            println!("{}", asked.out.join("build").join(&variant).display());
        }
    }
    write(&asked.out, &BTreeMap::from([("README.md".into(), CARD.as_bytes().to_vec())]))
}

fn is_empty(dir: &Path) -> Result<bool> {
    Ok(fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?.next().is_none())
}

/// The name of the folder for a wheel's platform and a GPU toolkit.
fn variant(wheel: &Wheel, backend: &str) -> Result<String> {
    let processor = wheel
        .processor()
        .with_context(|| format!("{} is for no platform that the Hub has", wheel.name))?;
    ensure!(wheel.glibc().is_some(), "{} is not for Linux", wheel.name);
    Ok(format!("{FRAMEWORK}-{backend}-{processor}-linux"))
}

/// The files of a variant, by their paths in the folder of the kernel.
fn files(wheel: &Wheel, variant: &str, backend: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let of_package = wheel.files.iter().filter_map(|(path, bytes)| {
        let path = path.strip_prefix("maxsim/")?;
        // The command is of the package alone.
        (path != "__main__.py").then(|| (path.to_string(), bytes.clone()))
    });
    let mut files: BTreeMap<String, Vec<u8>> = of_package.collect();
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let path = format!("maxsim-{}.dist-info/licenses/{name}", wheel.version);
        let bytes = wheel.file(&path).with_context(|| format!("{} has no {path}", wheel.name))?;
        files.insert(name.to_string(), bytes.to_vec());
    }
    let metadata = metadata(&files, variant, backend)?;
    files.insert("metadata.json".into(), metadata);
    let in_build = |(path, bytes)| (format!("build/{variant}/{path}"), bytes);
    Ok(files.into_iter().map(in_build).collect())
}

/// What the loader reads before the files: their digests, and the name that the module gets, which
/// is that of the operators, too. It is another one for every build.
fn metadata(files: &BTreeMap<String, Vec<u8>>, variant: &str, backend: &str) -> Result<Vec<u8>> {
    let digests: BTreeMap<&String, String> =
        files.iter().map(|(path, bytes)| (path, STANDARD.encode(Sha256::digest(bytes)))).collect();
    let all = format!("{variant}\n{}", serde_json::to_string(&digests)?);
    let kind = if backend == "cpu" { "cpu" } else { "cuda" };
    let mut of_backend = json!({ "type": kind });
    if kind == "cuda" {
        of_backend["archs"] = json!(CUDA_ARCHS);
    }
    let metadata = json!({
        "id": format!("_{NAME}_{kind}_{}", &sha256(all.as_bytes())[..12]),
        "name": NAME,
        "version": VERSION,
        "license": LICENSE,
        "python-depends": [],
        "backend": of_backend,
        "digest": { "algorithm": "sha256", "files": digests },
    });
    Ok((serde_json::to_string_pretty(&metadata)? + "\n").into_bytes())
}

fn write(out: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    for (path, bytes) in files {
        let path = out.join(path);
        let failed = || format!("writing {}", path.display());
        fs::create_dir_all(path.parent().with_context(failed)?).with_context(failed)?;
        fs::write(&path, bytes).with_context(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::wheel::tests::wheel;
    use super::*;

    const CU128: &str = "torch-stable-abi29-cu128-aarch64-linux";

    fn of_variant(wheel: &Wheel, variant: &str, backend: &str) -> (Vec<String>, Value) {
        let files = files(wheel, variant, backend).unwrap();
        let metadata = &files[&format!("build/{variant}/metadata.json")];
        (files.keys().cloned().collect(), serde_json::from_slice(metadata).unwrap())
    }

    #[test]
    fn a_variant_has_the_packages_files_and_their_digests() {
        let wheel = wheel("manylinux_2_28_aarch64");
        assert_eq!(variant(&wheel, "cu128").unwrap(), CU128);
        let (paths, metadata) = of_variant(&wheel, CU128, "cu128");
        let expected = [
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "__init__.py",
            "_maxsim.abi3.so",
            "_maxsim.pyi",
            "metadata.json",
            "py.typed",
        ];
        assert_eq!(paths, expected.map(|name| format!("build/{CU128}/{name}")));
        let digests = metadata["digest"]["files"].as_object().unwrap();
        assert_eq!(digests.len(), expected.len() - 1);
        // `printf maxsim/__init__.py | openssl dgst -sha256 -binary | base64`
        assert_eq!(digests["__init__.py"], "V2TOJqEAfzTTjgCAp6HaXerfpN1F/CAv3s767JYhSvM=");
        assert_eq!(metadata["backend"]["type"], "cuda");
        assert_eq!(metadata["backend"]["archs"][0], "8.0+PTX");
        assert_eq!(metadata["version"], 1);
    }

    #[test]
    fn every_build_has_a_name_of_its_own() {
        let mut wheel = wheel("manylinux_2_28_aarch64");
        let cpu = CU128.replace("cu128", "cpu");
        let id = |wheel: &Wheel, variant: &str, backend: &str| {
            of_variant(wheel, variant, backend).1["id"].as_str().unwrap().to_string()
        };
        let names = [
            id(&wheel, CU128, "cu128"),
            id(&wheel, &CU128.replace("cu128", "cu126"), "cu126"),
            id(&wheel, &cpu, "cpu"),
        ];
        assert!(names[0].starts_with("_maxsim_cuda_") && names[2].starts_with("_maxsim_cpu_"));
        assert!(names[0] != names[1]);
        assert_eq!(id(&wheel, CU128, "cu128"), names[0]);
        wheel.files[4].1.push(b'\n');
        assert_ne!(id(&wheel, CU128, "cu128"), names[0]);
        assert_eq!(of_variant(&wheel, &cpu, "cpu").1["backend"], json!({ "type": "cpu" }));
    }

    #[test]
    fn platforms_that_the_hub_has_not_are_refused() {
        for platform in ["win_amd64", "linux_x86_64", "manylinux_2_28_riscv64"] {
            assert!(variant(&wheel(platform), "cpu").is_err(), "{platform}");
        }
    }

    #[test]
    fn options_are_read() {
        let parse = |words: &[&str]| Asked::parse(Path::new("checkout"), words);
        let asked = parse(&["a.whl", "--out", "x", "b.whl"]).unwrap();
        let wheels = vec!["a.whl".into(), "b.whl".into()];
        assert_eq!(asked, Asked { out: "x".into(), wheels, local: false });
        assert!(parse(&["a.whl", "--local"]).unwrap().local);
        for (words, expected) in [
            (&[][..], "hub needs the wheels"),
            (&["a.whl", "--out"], "--out needs a value"),
            (&["a.whl", "--loca"], "hub --loca: expected"),
        ] {
            let error = parse(words).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
