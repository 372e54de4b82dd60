//! The part of the real set that tests run on by default.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::files::packed_of;
use crate::tool::reference_set;
use half::f16;
use maxsim::Device;
use maxsim_cli::input::{Reading, TokenFile};
use tempfile::TempDir;

/// Documents of the part: a quarter of them, in a quarter of the time, with all that are relevant.
const N_DOCUMENTS: usize = 250;

/// MAXSIM_CASES of the checks of every change, as the suites of `maxsim-tests` have it.
const FULL_CASES: usize = 300;

/// The folder of a set, removed with it where it was made for a test.
pub struct Set {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl From<PathBuf> for Set {
    fn from(path: PathBuf) -> Set {
        Set { path, _folder: None }
    }
}

impl Deref for Set {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

/// The first documents of the real set with all of its queries; the whole set where there is a CUDA
/// device or MAXSIM_CASES asks for 500 cases. `None`, with a line that cannot be overlooked, where
/// the set is not.
pub fn real_set(skipped: &str) -> Option<Set> {
    let set = reference_set(skipped)?;
    let n_cases = std::env::var("MAXSIM_CASES").ok();
    let n_cases = n_cases.map_or(0, |n| n.parse().expect("MAXSIM_CASES is a number"));
    if n_cases >= FULL_CASES || Device::cuda(0).is_ok() {
        return Some(set.into());
    }
    eprintln!(
        "SKIPPED (MAXSIM_CASES={FULL_CASES} has all): {skipped}, documents from {N_DOCUMENTS} on"
    );
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    let documents = TokenFile::open(&set.join("documents.safetensors"), Reading::Map).unwrap();
    let documents = documents.tokens::<f16>(0..N_DOCUMENTS).unwrap();
    let layout = documents.layout();
    let ends = (0..N_DOCUMENTS).map(|document| layout.item_rows(document).end as i64);
    let offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();
    let elements = bytemuck::cast_slice(documents.data()).to_vec();
    let file = packed_of("F16", elements, layout.rows(), layout.dim(), &offsets, 0);
    fs::write(path.join("documents.safetensors"), file).unwrap();
    for name in ["queries.safetensors", "queries.jsonl"] {
        fs::copy(set.join(name), path.join(name)).unwrap();
    }
    Some(Set { path, _folder: Some(folder) })
}
