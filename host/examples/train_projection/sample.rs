//! What is learnt: the sample's documents, each parted from its first tokens.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use half::f16;
use safetensors::SafeTensors;

/// Tokens of a document that become a query.
const QUERY_LEN: usize = 8;

/// One document of so many is held out.
const HELD_OUT: usize = 4;

/// Token embeddings of several items.
pub struct Embeddings {
    /// `[rows, dim]`, row-major.
    pub values: Vec<f32>,
    /// Elements per row.
    pub dim: usize,
    /// Row at which each item begins, and where the last one ends.
    pub offsets: Vec<usize>,
}

impl Embeddings {
    /// Reads a packed `.safetensors` file with f16 embeddings.
    pub fn read(path: &Path) -> Result<Embeddings> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let embeddings = tensors.tensor("embeddings")?;
        let (numbers, _) = embeddings.data().as_chunks();
        let values = numbers.iter().map(|&number| f16::from_le_bytes(number).to_f32()).collect();
        let offsets = tensors.tensor("offsets")?;
        let (offsets, _) = offsets.data().as_chunks();
        let offsets = offsets.iter().map(|&offset| Ok(i64::from_le_bytes(offset).try_into()?));
        let dim = *embeddings.shape().last().context("embeddings have no dim")?;
        Ok(Embeddings { values, dim, offsets: offsets.collect::<Result<_>>()? })
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rows of an item.
    pub fn rows(&self, item: usize) -> Range<usize> {
        self.offsets[item]..self.offsets[item + 1]
    }

    /// These items alone, and of each the rows that `part` makes of all of its rows.
    pub fn select(
        &self,
        items: &[usize],
        part: impl Fn(Range<usize>) -> Range<usize>,
    ) -> Embeddings {
        let mut selected = Embeddings { values: Vec::new(), dim: self.dim, offsets: vec![0] };
        for &item in items {
            let rows = part(self.rows(item));
            let numbers = rows.start * self.dim..rows.end * self.dim;
            selected.values.extend_from_slice(&self.values[numbers]);
            selected.offsets.push(selected.values.len() / self.dim);
        }
        selected
    }
}

/// Finding the rest of a document by its beginning, the inverse cloze task (Lee, Chang and
/// Toutanova, "Latent retrieval for weakly supervised open domain question answering", ACL 2019):
/// it needs no judgements, and unlike the sample's synopses there is something to learn from it.
pub struct Task {
    /// Queries to learn from, and the document of each under the same index.
    pub queries: Embeddings,
    pub documents: Embeddings,
    /// Queries that training does not see; theirs are the first of all documents.
    pub held_out: Embeddings,
    pub all_documents: Embeddings,
}

impl Task {
    /// Makes the task out of the documents in a folder.
    pub fn read(dir: &Path) -> Result<Task> {
        let documents = Embeddings::read(&dir.join("documents.safetensors"))?;
        let (held_out, learnt): (Vec<usize>, Vec<usize>) =
            (0..documents.n_items()).partition(|item| item.is_multiple_of(HELD_OUT));
        // A short document keeps its last token, at least.
        let parting = |rows: &Range<usize>| (rows.start + QUERY_LEN).min(rows.end - 1);
        let head = |rows: Range<usize>| rows.start..parting(&rows);
        let rest = |rows: Range<usize>| parting(&rows)..rows.end;
        let all = [&held_out[..], &learnt].concat();
        Ok(Task {
            queries: documents.select(&learnt, head),
            documents: documents.select(&learnt, rest),
            held_out: documents.select(&held_out, head),
            all_documents: documents.select(&all, rest),
        })
    }
}
