//! Cubins: the generated PTX assembled ahead of time, so that no driver has to compile it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rayon::prelude::*;

use crate::build_ptx::Files;
use crate::entries::{Entry, Target, cubin_targets};
use crate::ptxas::{Assembled, Ptxas};
use crate::yields;

/// The cubins of all entries, whose PTX `ptx` holds, by file name.
pub fn assemble(root: &Path, ptxas: &Ptxas, entries: &[Entry], ptx: &Files) -> Result<Files> {
    let dir = root.join(format!("target/ptx/cubins-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let cubins = in_folder(&dir, ptxas, entries, ptx);
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    cubins
}

fn in_folder(dir: &Path, ptxas: &Ptxas, entries: &[Entry], ptx: &Files) -> Result<Files> {
    for entry in entries {
        let name = entry.ptx_file();
        let text = ptx.get(&name).with_context(|| format!("{name} was not generated"))?;
        fs::write(dir.join(&name), text).with_context(|| format!("writing {name}"))?;
    }
    let work: Vec<(&Entry, &Target)> = entries
        .iter()
        .flat_map(|entry| cubin_targets(entry.arch).iter().map(move |target| (entry, target)))
        .collect();
    let cubins = work
        .par_iter()
        .map(|(entry, target)| {
            cubin(dir, ptxas, entry, target).map(|cubin| (entry.cubin_file(target), cubin))
        })
        .collect::<Vec<_>>();
    cubins.into_iter().collect()
}

fn cubin(dir: &Path, ptxas: &Ptxas, entry: &Entry, target: &Target) -> Result<Vec<u8>> {
    let out: PathBuf = dir.join(entry.cubin_file(target));
    match ptxas.assemble(&dir.join(entry.ptx_file()), target.name, &out)? {
        // `check-ptx` judges resources and warnings.
        Assembled::Done(..) => {
            let mut cubin = fs::read(&out).with_context(|| format!("reading {}", out.display()))?;
            if entry.yields {
                yields::set(&mut cubin, entry.name)?;
            }
            Ok(cubin)
        }
        Assembled::UnknownTarget => {
            bail!("{}: {} is unknown to {}", entry.name, target.name, ptxas.version)
        }
        Assembled::Failed(said) => bail!("{} ({}): {said}", entry.name, target.name),
    }
}
