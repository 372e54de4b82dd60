//! A sample of a cross product's documents: of its maxima a bound is made that, most likely, as
//! many similarities reach as a query token retrieves.

use std::sync::Arc;

use bytemuck::cast_slice;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use super::lists::Lists;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::staging::upload_lists;
use crate::cuda::forward::plan::ForwardPlan;
use crate::error::Result;
use crate::plan::choice::Chosen;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::xtr::sample_len;
use crate::tokens::layout::TokenLayout;

/// A sample's maxima, and what finds them.
#[derive(Debug)]
pub(super) struct Sample {
    pub plan: ForwardPlan,
    /// Of the queries and the sample.
    pub lists: Lists,
    /// Address of the numbers of its documents.
    pub numbers: u64,
    /// Bytes of its scores and maxima.
    pub lens_bytes: [u64; 2],
    _numbers: Buffer,
}

impl Sample {
    /// The sample of a cross product that a kernel finds maxima and winners of; `None` where there
    /// are too few documents, or the kernel has none beside it that finds maxima alone.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        variant: &Variant,
    ) -> Result<Option<Sample>> {
        let documents = problem.documents();
        let name = variant.name.trim_end_matches("_winners");
        let variant = FORWARD.iter().find(|row| row.name == name);
        let (Some(variant), Some(n)) = (variant, sample_len(documents.n_items())) else {
            return Ok(None);
        };
        let numbers = numbers(documents.n_items(), n);
        let rows = numbers.iter().map(|&number| documents.item_rows(number as usize));
        let (starts, lens): (Vec<u32>, Vec<u32>) =
            rows.map(|rows| (rows.start as u32, rows.len() as u32)).unzip();
        let layout = TokenLayout::scattered(documents.rows(), documents.dim(), &starts, &lens)?;
        let cross = Pairing::cross();
        let sampled = Problem::new(problem.queries(), &layout, &cross)?;
        let shape = OutputShape::new(&sampled, &ScoreOptions::default().token_scores(true));
        let [scores_bytes, _, maxima_bytes] = shape.lens_bytes();
        let chosen = Chosen { variant, splits: None, n_centroids: 0 };
        let (memory, [address]) = upload_lists(device, [cast_slice(&numbers)])?;
        Ok(Some(Sample {
            plan: ForwardPlan::new(device, &sampled, chosen, &shape)?,
            lists: Lists::new(device, &sampled)?,
            numbers: address,
            lens_bytes: [scores_bytes, maxima_bytes],
            _numbers: memory,
        }))
    }
}

/// The documents of a sample of `n`: one of each run of as many, anywhere in it, since documents
/// that lie together may be alike, and those at equal distances, too.
fn numbers(n_documents: usize, n: usize) -> Vec<u32> {
    let start = |i: usize| i * n_documents / n;
    let place = |i: usize| {
        let run = start(i + 1) - start(i);
        let random = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (start(i) + random as usize % run) as u32
    };
    (0..n).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_exist() {
        for (n_documents, n) in [(128, 64), (512, 96), (513, 96), (1000, 186)] {
            let numbers = numbers(n_documents, n);
            assert!(numbers.len() == n && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert!(numbers.last().is_some_and(|&last| (last as usize) < n_documents));
        }
    }
}
