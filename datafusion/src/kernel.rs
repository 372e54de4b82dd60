//! The kernel that scores a query's documents on a GPU: one for all batches.

use datafusion::error::Result;
use maxsim::format::TokenFormat;
use maxsim::plan::{Access, DeviceLimits, Plan, Problem};
use maxsim::{Pairing, ScoreOptions, TokenLayout};

use crate::columns::external;

/// Documents of the batch that kernels are chosen for.
const N_DOCUMENTS: i64 = 512;

/// Options of a call that scores documents for a query, on a GPU of these limits.
///
/// Kernels differ in the last bits of scores, and which is fastest depends on the batch: chosen
/// anew, a ranking would depend on how files are cut into batches, partitions and machines. So it
/// is chosen by the query and the formats alone, for documents of any lengths.
pub(crate) fn options(
    limits: Option<&DeviceLimits>,
    query: (TokenFormat, &TokenLayout),
    documents: TokenFormat,
) -> Result<ScoreOptions> {
    let options = ScoreOptions::default();
    let (format, query) = query;
    let operand = TokenFormat::operand(format, documents);
    // The CPU engine's scores have the same bits anyway, and what cannot be scored says so there.
    let (Some(limits), Some(operand)) = (limits, operand) else { return Ok(options) };
    // Of other lengths each, so that the kernel is none for documents that are alike.
    let mut offsets = vec![0];
    for document in 0..N_DOCUMENTS {
        offsets.push(offsets[offsets.len() - 1] + document % 257);
    }
    let rows = offsets[offsets.len() - 1] as usize;
    let batch = TokenLayout::packed(rows, query.dim(), &offsets).map_err(external)?;
    let cross = Pairing::cross();
    let problem = Problem::new(query, &batch, &cross).map_err(external)?;
    let access = [format, documents].map(|format| Access::uploaded(query.dim(), format));
    let plan = Plan::choose(&problem, operand, limits, access, &options).map_err(external)?;
    Ok(options.kernel(plan.name()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use maxsim::format::ElementType;

    use super::*;

    const H100: DeviceLimits =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };
    const OLDER: DeviceLimits =
        DeviceLimits { capability: (8, 6), n_multiprocessors: 28, shared_bytes: 99 * 1024 };

    /// Batches of documents of these lengths.
    fn batches() -> Vec<Vec<usize>> {
        let mixed = (0..300).map(|i| i * 7 % 400).collect();
        vec![vec![180; 512], mixed, vec![1], vec![0; 5], vec![9000, 0], vec![1024; 2000], vec![]]
    }

    #[test]
    fn every_batch_can_be_scored_by_the_kernel_that_is_chosen() {
        let formats = [ElementType::F16.into(), ElementType::F32.into(), TokenFormat::Int8];
        let mut others = BTreeSet::new();
        for limits in [&H100, &OLDER] {
            for format in formats {
                for (dim, query_len) in [(128, 1), (128, 32), (96, 100), (128, 1024), (300, 40)] {
                    let query = TokenLayout::packed(query_len, dim, &[0, query_len]).unwrap();
                    let pinned = options(Some(limits), (format, &query), format).unwrap();
                    let kernel = pinned.kernel.clone().expect("a kernel");
                    for lengths in batches() {
                        let mut offsets = vec![0];
                        for len in lengths {
                            offsets.push(offsets[offsets.len() - 1] + len);
                        }
                        let rows = offsets[offsets.len() - 1];
                        let batch = TokenLayout::packed(rows, dim, &offsets).unwrap();
                        let cross = Pairing::cross();
                        let problem = Problem::new(&query, &batch, &cross).unwrap();
                        let choose = |options: &ScoreOptions| {
                            let operand = TokenFormat::operand(format, format).unwrap();
                            let access = [Access::uploaded(dim, format); 2];
                            Plan::choose(&problem, operand, limits, access, options).unwrap().name()
                        };
                        assert_eq!(choose(&pinned), kernel);
                        if choose(&ScoreOptions::default()) != kernel {
                            others.insert(kernel.clone());
                        }
                    }
                }
            }
        }
        assert!(!others.is_empty(), "no batch would have had another kernel");
    }

    #[test]
    fn the_cpu_needs_no_kernel() {
        let query = TokenLayout::packed(3, 8, &[0, 3]).unwrap();
        let format = ElementType::F32.into();
        assert_eq!(options(None, (format, &query), format).unwrap(), ScoreOptions::default());
    }
}
