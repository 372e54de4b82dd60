//! The compressed kernels that programs are linked with: `host/images/kernels.pack`, whose form
//! [`maxsim_kernels::archive`] describes.
//!
//! The bytes are a function of the files alone: the compressor is pure Rust, sees one file and its
//! dictionary at a time, and takes no settings from the machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use maxsim_kernels::archive;
use maxsim_kernels::archive::{CUBIN_DICTIONARY, Coding, FIRST_LINE, PTX_DICTIONARY};
use rayon::prelude::*;
use xtask_coder::{compress, decompress};

use crate::build_ptx::Files;

/// Largest size of the archive: every program with the library carries it, and the library's
/// package, which has all of its sources beside it, may have 8 MB. So a new row of the variant
/// table is a decision.
const SIZE_LIMIT_BYTES: usize = 6 << 20;

/// The files that make the dictionary of PTX, one after the other: the base kernels of both
/// architectures and a gradient, in f16. Other element types and tiles repeat most of their lines.
///
/// All compressed bytes change with these files. They are whole files and few, and not chosen
/// from all of them by a measure, so that a change of another kernel changes its own bytes alone.
const PTX_SAMPLES: [&str; 3] = [
    "maxsim_gradient_gather_f16.ptx",
    "maxsim_forward_sm80_f16_wide_q128_winners.ptx",
    "maxsim_forward_sm90_f16_d128_q256.ptx",
];

/// The files that make the dictionary of cubins: both targets of Ampere's kernels, and Hopper's.
const CUBIN_SAMPLES: [&str; 5] = [
    "maxsim_gradient_gather_f16.sm_80.cubin",
    "maxsim_forward_sm80_f16_d128_q64.sm_90.cubin",
    "maxsim_forward_sm80_f16_wide_q128_winners.sm_80.cubin",
    "maxsim_forward_sm90_f16_d64_q64.sm_90a.cubin",
    "maxsim_forward_sm90_f16_d128_q256.sm_90a.cubin",
];

/// Where the archive is in the repository.
pub const PLACE: &str = "host/images/kernels.pack";

/// Path of the archive.
pub fn path(root: &Path) -> PathBuf {
    root.join(PLACE)
}

/// The archive of these PTX files and cubins.
pub fn pack(files: &Files) -> Result<Vec<u8>> {
    let all = files.keys().map(String::as_str);
    let without_cubins = !all.clone().any(|name| name.ends_with(".cubin"));
    let cubin_samples = if without_cubins { &[][..] } else { &CUBIN_SAMPLES };
    let dictionaries = [(PTX_DICTIONARY, &PTX_SAMPLES[..]), (CUBIN_DICTIONARY, cubin_samples)];
    let mut contents = Files::new();
    for (dictionary, samples) in dictionaries {
        contents.insert(dictionary.to_string(), dictionary_of(files, samples)?);
    }
    let names: Vec<&str> = dictionaries.map(|(name, _)| name).into_iter().chain(all).collect();
    let content = |name: &str| contents.get(name).or_else(|| files.get(name));
    let packed = names
        .par_iter()
        .map(|name| {
            let bytes = content(name).with_context(|| format!("{name} is missing"))?;
            let dictionary = match Coding::of(name).dictionary {
                Some(dictionary) => content(dictionary).map_or(&[][..], Vec::as_slice),
                None => &[],
            };
            let packed = compress(name, bytes, dictionary)?;
            let unpacked = decompress(name, &packed, bytes.len(), dictionary)?;
            ensure!(unpacked == *bytes, "{name} is another once it is unpacked");
            Ok((format!("{name} {} {}\n", bytes.len(), packed.len()), packed))
        })
        .collect::<Vec<_>>();
    let (lines, packed): (Vec<String>, Vec<Vec<u8>>) =
        packed.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let mut archive = format!("{FIRST_LINE}\n{}\n", lines.concat()).into_bytes();
    archive.extend(packed.concat());
    check_size(archive.len())?;
    Ok(archive)
}

fn check_size(n_bytes: usize) -> Result<()> {
    ensure!(
        n_bytes <= SIZE_LIMIT_BYTES,
        "PTX and cubins have {n_bytes} bytes compressed, more than the {SIZE_LIMIT_BYTES} \
         allowed: take rows out of the variant table"
    );
    Ok(())
}

fn dictionary_of(files: &Files, samples: &[&str]) -> Result<Vec<u8>> {
    let mut dictionary = Vec::new();
    for name in samples {
        let sample = files.get(*name).with_context(|| {
            format!("a dictionary needs {name}; name another file in xtask/src/archive.rs")
        })?;
        dictionary.extend(sample);
    }
    Ok(dictionary)
}

/// The files of the committed archive, unpacked, less the dictionaries.
pub fn committed(root: &Path) -> Result<Files> {
    let path = path(root);
    let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    unpack(&bytes).with_context(|| format!("in {}", path.display()))
}

/// The files of an archive, unpacked, less the dictionaries.
pub fn unpack(bytes: &[u8]) -> Result<Files> {
    let mut packed = Vec::new();
    archive::read(bytes, |file| packed.push(file)).context("not an archive of kernels")?;
    let (dictionaries, rest): (Vec<_>, Vec<_>) =
        packed.into_iter().partition(|file| Coding::of(file.name).dictionary.is_none());
    let mut contents = Files::new();
    for file in dictionaries {
        let bytes = decompress(file.name, file.packed, file.n_bytes, &[])?;
        contents.insert(file.name.to_string(), bytes);
    }
    let unpacked = rest
        .par_iter()
        .map(|file| {
            let dictionary = Coding::of(file.name).dictionary.and_then(|name| contents.get(name));
            let dictionary =
                dictionary.with_context(|| format!("{} has no dictionary", file.name))?;
            let bytes = decompress(file.name, file.packed, file.n_bytes, dictionary)?;
            Ok((file.name.to_string(), bytes))
        })
        .collect::<Vec<_>>();
    unpacked.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of every name that a dictionary needs, and one more of each kind.
    fn files() -> Files {
        let names = PTX_SAMPLES.iter().chain(&CUBIN_SAMPLES).copied();
        let names = names.chain(["maxsim_other.ptx", "maxsim_other.sm_90.cubin"]);
        let content = |name: &str| format!("{name}: {}", "add.f32 %f1; ".repeat(name.len()));
        names.map(|name| (name.to_string(), content(name).into_bytes())).collect()
    }

    #[test]
    fn an_archive_unpacks_to_its_files() {
        let mut files = files();
        files.insert("maxsim_empty.ptx".into(), Vec::new());
        let archive = pack(&files).unwrap();
        assert_eq!(unpack(&archive).unwrap(), files);
        assert_eq!(pack(&files).unwrap(), archive, "the same files are the same bytes");
        files.retain(|name, _| name.ends_with(".ptx"));
        assert_eq!(unpack(&pack(&files).unwrap()).unwrap(), files, "without cubins");
    }

    #[test]
    fn another_kernel_changes_its_own_bytes_alone() {
        let mut files = files();
        let packed = |archive: &[u8]| {
            let mut all = Vec::new();
            archive::read(archive, |file| all.push((file.name.to_string(), file.packed.to_vec())))
                .unwrap();
            all
        };
        let before = packed(&pack(&files).unwrap());
        files.insert("maxsim_other.ptx".into(), b"mul.f32 %f2;".to_vec());
        let after = packed(&pack(&files).unwrap());
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
        let changed: Vec<&str> = changed.map(|(before, _)| before.0.as_str()).collect();
        assert_eq!(changed, ["maxsim_other.ptx"]);
    }

    #[test]
    fn what_cannot_be_packed_or_unpacked_is_said() {
        let mut files = files();
        let archive = pack(&files).unwrap();
        let said = |archive: &[u8]| format!("{:#}", unpack(archive).unwrap_err());
        assert_eq!(said(&archive[1..]), "not an archive of kernels");
        assert_eq!(said(&archive[..archive.len() - 1]), "not an archive of kernels");
        files.remove(PTX_SAMPLES[1]);
        let error = pack(&files).unwrap_err().to_string();
        assert!(error.contains(PTX_SAMPLES[1]), "{error}");
    }

    #[test]
    fn what_weighs_too_much_is_refused() {
        assert!(check_size(SIZE_LIMIT_BYTES).is_ok());
        assert!(check_size(SIZE_LIMIT_BYTES + 1).is_err());
    }
}
