//! Decides whether a compiled kernel may run a problem, and if not, why.

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::residual_chunk::BY_CENTROID_NBITS_MAX;
use maxsim_kernels::table::forward::Variant;

use super::Operand;
use super::cost::{centroid_score_bytes, n_tiles, shares};
use super::document_splits::multiplies_scales;
use super::limits::{Access, DeviceLimits};
use super::pieces::rows_max;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::shape::ScoreShape;

/// Most bytes of centroids' scores: what is read of them should stay in the cache.
const CENTROID_SCORE_BYTES_MAX: f64 = (64 << 20) as f64;

/// Smallest dim of rows that split their elements. Two such products differ by up to 8 · 2⁻²³ of
/// themselves ([`maxsim_kernels::abi::tf32`]), and two engines' winners may by dim · 2⁻²³ of the
/// sum.
const SPLIT_DIM_MIN: usize = 16;

/// May this compiled kernel run this problem? If not, why.
pub(super) fn eligible(
    row: &Variant,
    problem: &Problem<'_>,
    operand: Operand,
    limits: &DeviceLimits,
    [queries, documents]: [Access; 2],
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    let dim = problem.dim();
    if row.operand != operand {
        return Err(format!("works on {}", row.operand));
    }
    if row.normalizes() != options.normalize {
        return Err(
            if row.normalizes() { "normalises rows" } else { "does not normalise rows" }.into()
        );
    }
    let is_element = matches!(row.operand, Operand::Element(_));
    let finds_either = row.winners && (row.normalizes() || !is_element);
    // Calls that are to have the bits of one with winners may have its kernel.
    let may_find = finds_either || row.winners && options.consistent;
    if row.winners != options.winners && !may_find {
        return Err(if row.winners { "finds winners" } else { "finds no winners" }.into());
    }
    if !row.arch.runs_on(limits.capability) {
        let (major, minor) = limits.capability;
        return Err(format!(
            "{} code does not run on compute capability {major}.{minor}",
            row.arch.target()
        ));
    }
    if dim > row.dim_max {
        return Err(format!("dim is at most {}", row.dim_max));
    }
    if row.splits() && dim < SPLIT_DIM_MIN {
        return Err(format!("dim is at least {SPLIT_DIM_MIN}: elements are split in two"));
    }
    if row.shared_bytes(dim) > limits.shared_bytes {
        return Err(format!(
            "needs {} bytes of shared memory, the device has {}",
            row.shared_bytes(dim),
            limits.shared_bytes
        ));
    }
    if options.token_scores && problem.queries().is_weighted() && !row.stores_weighted_tokens() {
        return Err("stores no token scores of query tokens with weights".into());
    }
    if options.document_splits.is_some_and(|n| n > 1) && multiplies_scales(row, problem) {
        return Err("takes no document splits of query tokens with weights".into());
    }
    if row.schedule.is_stream_k() {
        takes_stream_k(row, problem, limits, options)?;
    }
    // Behind that: it looks at every document.
    if row.schedule.is_contiguous() {
        takes_contiguous(row, problem, [queries, documents], options)?;
    }
    if row.decodes_once() {
        takes_decoded_once(row, problem, options)?;
    }
    if row.schedule.is_by_centroid() {
        takes_by_centroid(row, problem, documents)?;
    }
    if row.tf32 && !options.allow_tf32 {
        return Err("rounds to TF32, which the call does not allow".into());
    }
    if row.arch == Arch::Sm90a || row.operand.is_decoded() {
        for (name, access) in [("queries", queries), ("documents", documents)] {
            // Documents that are decoded are not copied.
            let is_copied = name == "queries" || !row.operand.is_decoded();
            if is_copied && !access.is_aligned() {
                return Err(format!(
                    "rows must be aligned to 16 bytes, those of the {name} are not"
                ));
            }
        }
    }
    Ok(())
}

/// Whether a Stream-K kernel can score these.
fn takes_stream_k(
    row: &Variant,
    problem: &Problem<'_>,
    limits: &DeviceLimits,
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    if !matches!(problem.shape(), ScoreShape::Cross { .. }) {
        return Err("every query meets every document".into());
    }
    if n_tiles(row, problem) > limits.n_multiprocessors as f64 {
        return Err(format!("a multiprocessor for each {} query rows", row.query_tile));
    }
    if problem.documents().is_masked() {
        return Err("reads no mask of documents".into());
    }
    takes_read(problem)?;
    if options.token_scores {
        return Err("finds no token scores".into());
    }
    if options.document_splits.is_some_and(|n| n > 1) {
        return Err("divides documents where units end (Stream-K): no document splits".into());
    }
    if row.schedule.is_contiguous() && shares(row, problem, limits).is_none() {
        return Err(format!(
            "up to {} query rows meet documents of one length, of which whole ones are unequal \
             shares",
            row.query_tile
        ));
    }
    Ok(())
}

/// Whether there is room for the scores of the documents' centroids.
fn takes_by_centroid(
    row: &Variant,
    problem: &Problem<'_>,
    documents: Access,
) -> std::result::Result<(), String> {
    if documents.n_centroids == 0 {
        return Err(format!("buckets have at most {BY_CENTROID_NBITS_MAX} bits"));
    }
    let bytes = centroid_score_bytes(row, problem, documents);
    match bytes > CENTROID_SCORE_BYTES_MAX {
        true => Err(format!(
            "the scores of centroids take {bytes} bytes, of at most {CENTROID_SCORE_BYTES_MAX}"
        )),
        false => Ok(()),
    }
}

/// Whether documents can be decoded before the kernel runs, some at a time.
fn takes_decoded_once(
    row: &Variant,
    problem: &Problem<'_>,
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    if !matches!(problem.shape(), ScoreShape::Cross { .. }) {
        return Err("every query meets every document".into());
    }
    takes_read(problem)?;
    if options.document_splits.is_some_and(|n| n > 1) {
        return Err("takes no document splits".into());
    }
    let rows_max = rows_max(row, problem.dim()) as usize;
    match problem.documents().max_len() > rows_max {
        true => Err(format!("decodes {rows_max} rows at a time, of whole documents")),
        false => Ok(()),
    }
}

/// Whether the host knows where documents are, as kernels need it whose units it cuts by rows.
fn takes_read(problem: &Problem<'_>) -> std::result::Result<(), String> {
    match problem.documents().is_unread() {
        true => Err("the device alone knows the documents' rows".into()),
        false => Ok(()),
    }
}

/// Whether a contiguous kernel, which reads documents as one run of rows, can read these.
fn takes_contiguous(
    row: &Variant,
    problem: &Problem<'_>,
    [queries, documents]: [Access; 2],
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    let layout = problem.documents();
    for (name, access) in [("queries", queries), ("documents", documents)] {
        if !access.lies_together(row, problem.dim()) {
            return Err(format!(
                "rows have {} elements with nothing in between, aligned to 16 bytes; those of the \
                 {name} lie otherwise",
                row.dim_max
            ));
        }
    }
    if !problem.pairing().has_documents_in_order() {
        return Err("documents are taken in their order".into());
    }
    if layout.is_masked() {
        return Err("reads no mask of documents".into());
    }
    takes_read(problem)?;
    if options.document_splits.is_some_and(|n| n > 1) {
        return Err("takes no document splits".into());
    }
    // Last: there may be millions of documents.
    let follows = |pair: &[[u32; 2]]| pair[0][0] + pair[0][1] == pair[1][0];
    let segments = layout.segments();
    if !segments.windows(2).all(follows) || segments.iter().any(|&[_, len]| len == 0) {
        return Err("documents lie one behind the other, none of them empty".into());
    }
    Ok(())
}
