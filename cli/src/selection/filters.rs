//! Reads lists of documents that are ranked, or are not.

use std::path::Path;

use anyhow::{Result, ensure};

use super::SelectionArgs;
use crate::judging::ids::{self, Ids, some_of};
use crate::texts::counted;

/// Whether each document is left by the lists; `None` where there is no list.
pub(super) fn read(
    args: &SelectionArgs,
    documents: &Ids,
    warnings: &mut Vec<String>,
) -> Result<Option<Vec<bool>>> {
    let mut is_left: Option<Vec<bool>> = None;
    if let Some(path) = &args.include {
        let listed = listed(path, documents, warnings)?;
        ensure!(listed.contains(&true), "{}: no ids, so no document is left", path.display());
        is_left = Some(listed);
    }
    if let Some(path) = &args.exclude {
        let listed = listed(path, documents, warnings)?;
        let is_left = is_left.get_or_insert_with(|| vec![true; documents.n_items()]);
        is_left.iter_mut().zip(listed).for_each(|(is_left, listed)| *is_left &= !listed);
    }
    Ok(is_left)
}

/// Whether each document is in a list.
fn listed(path: &Path, documents: &Ids, warnings: &mut Vec<String>) -> Result<Vec<bool>> {
    let mut listed = vec![false; documents.n_items()];
    let (mut n_ids, mut absent, mut repeated) = (0u64, Vec::new(), Vec::new());
    ids::lines(path, |_, id, _| {
        n_ids += 1;
        match documents.find(id) {
            Some(item) if listed[item as usize] => repeated.push(id.into()),
            Some(item) => listed[item as usize] = true,
            None => {
                ensure!(documents.are_names(), "{}", documents.unknown(id));
                absent.push(id.into());
            }
        }
        Ok(())
    })?;
    let file = path.display();
    ensure!(
        absent.is_empty() || (absent.len() as u64) < n_ids,
        "{file}: none of its {} ({}) is that of a document; {}",
        counted(n_ids, "id", "ids"),
        some_of(&absent),
        documents.unknown(&absent[0])
    );
    if !absent.is_empty() {
        warnings.push(format!(
            "{file}: ids that are not among the documents: {} of {n_ids} ({})",
            absent.len(),
            some_of(&absent)
        ));
    }
    if !repeated.is_empty() {
        warnings.push(format!(
            "{file}: ids that appear once more: {} of {n_ids} ({})",
            repeated.len(),
            some_of(&repeated)
        ));
    }
    Ok(listed)
}
