//! Estimates the cost of a kernel: clocks of the busiest multiprocessor.

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::layout::sm90::{DOCUMENT_TILE, tail_width};
use maxsim_kernels::abi::params::{CENTROID_SCORES_BYTES, Group};
use maxsim_kernels::table::forward::Variant;

use super::limits::{Access, DeviceLimits};
use super::pieces::{decoded_access, pieces, rows_max};
use super::stream_k::Shares;
use super::sweep::is_sweep;
use crate::problem::Problem;
use crate::problem::shape::ScoreShape;

/// Bytes that the scores of all centroids take, where documents have any.
pub(super) fn centroid_score_bytes(row: &Variant, problem: &Problem<'_>, documents: Access) -> f64 {
    n_tiles(row, problem) * f64::from(documents.n_centroids) * CENTROID_SCORES_BYTES as f64
}

/// Clocks that the device takes for them: as a document of so many tokens, and a launch.
pub(super) fn centroid_clocks(
    row: &Variant,
    problem: &Problem<'_>,
    limits: &DeviceLimits,
    documents: Access,
) -> f64 {
    if !row.schedule.is_by_centroid() {
        return 0.0;
    }
    let columns = n_tiles(row, problem) * f64::from(documents.n_centroids);
    let share = columns / limits.n_multiprocessors.max(1) as f64;
    LAUNCH_CLOCKS + document_clocks(row, problem.dim(), share)
}

/// Clocks that the device takes to decode documents before the kernel runs, where it does.
pub(super) fn decoding_clocks(row: &Variant, problem: &Problem<'_>, limits: &DeviceLimits) -> f64 {
    if !row.decodes_once() {
        return 0.0;
    }
    let (documents, dim) = (problem.documents(), problem.dim());
    // For a short query other kernels decode as often, and write nothing: what is decoded need not
    // be known, and there may be millions of documents.
    let (n_pieces, n_rows) = match problem.queries().total_len() {
        ..=SHORT_QUERY_ROWS => (1, documents.total_len()),
        _ => {
            let pieces = pieces(documents, rows_max(row, dim));
            (pieces.len(), pieces.iter().map(|piece| piece.rows.len() as u64).sum())
        }
    };
    let bytes = n_rows as f64 * decoded_access(row, dim).pitch_bytes as f64;
    n_pieces as f64 * LAUNCH_CLOCKS
        + bytes / limits.n_multiprocessors.max(1) as f64 * DECODED_BYTE_CLOCKS
}

/// Query rows that the other kernels multiply with documents that they decode once.
const SHORT_QUERY_ROWS: u64 = 64;

/// Clocks of a multiprocessor for each byte of decoded rows: centroids are read out of the L2
/// cache, and rows written and read again.
const DECODED_BYTE_CLOCKS: f64 = 0.13;

/// Clocks of two launches beside another one, and of a table that is not in the cache yet.
const LAUNCH_CLOCKS: f64 = 15_000.0;

/// Clocks that the device takes for [`n_tile_entries`], padding included. Only ratios matter,
/// except where a document may span CTAs (Stream-K).
pub(super) fn cost(
    row: &Variant,
    problem: &Problem<'_>,
    n_entries: f64,
    lens: &DocumentLens,
    limits: &DeviceLimits,
) -> f64 {
    let n_documents = problem.documents().n_items().max(1) as f64;
    let columns = lens.columns(row) as f64 / n_documents;
    // CTAs of one multiprocessor share its time, so the busiest multiprocessor counts.
    let n_multiprocessors = limits.n_multiprocessors.max(1) as f64;
    let clocks = document_clocks(row, problem.dim(), columns);
    if row.schedule.is_stream_k() && row.schedule.is_contiguous() {
        let shares = shares(row, problem, limits);
        let n_partials = shares.map_or(0, |shares| shares.units_of_a_document());
        return n_entries / n_multiprocessors * clocks + FIXUP_CLOCKS * f64::from(n_partials);
    }
    if row.schedule.is_stream_k() {
        let per_tile = (n_multiprocessors / n_tiles(row, problem).max(1.0)).floor().max(1.0);
        let share = (lens.tokens() as f64 / per_tile).max(row.document_tile as f64);
        let n_partials = (problem.documents().max_len() as f64 / share).ceil();
        return n_documents / per_tile * clocks * STREAM_K_COST
            + STREAM_K_CLOCKS * (1.0 + n_partials);
    }
    let rate = if is_sweep(row, problem, limits) { SWEEP_COST } else { 1.0 };
    (n_entries / n_multiprocessors).ceil().max(1.0) * clocks * rate
}

/// The cost of documents that are read in order, relative to as many shares of them at a time.
const SWEEP_COST: f64 = 0.97;

/// The equal shares of Stream-K over contiguous documents, where whole documents do not do as well.
pub(super) fn shares(
    row: &Variant,
    problem: &Problem<'_>,
    limits: &DeviceLimits,
) -> Option<Shares> {
    if n_tiles(row, problem) != 1.0 {
        return None;
    }
    let segments = problem.documents().segments();
    let [_, len] = *segments.first()?;
    let n_documents = segments.len().try_into().ok()?;
    let shares = Shares::new(n_documents, len, limits.n_multiprocessors)?;
    // Last: there may be millions of documents.
    segments.iter().all(|segment| segment[1] == len).then_some(shares)
}

/// Clocks until a CTA has received the partial maxima of a document that ends in its share: four
/// at once, which takes 0.4 µs.
const FIXUP_CLOCKS: f64 = 200.0;

/// The cost of Stream-K relative to equal shares of whole documents: with many documents for each
/// CTA whole ones do as well.
const STREAM_K_COST: f64 = 1.01;

/// Clocks until a CTA knows its share, and until it has received the partial maxima of a document
/// that ends in it, one after the other.
const STREAM_K_CLOCKS: f64 = 2000.0;

/// Clocks that contiguous kernels save between a launch and the first product, and between the
/// last one and the end. Their CTAs have static shares, for which their rate is 2 % lower: beyond
/// some hundred megabytes the kernel with the dynamic scheduler is faster.
pub(super) const START_CLOCKS: f64 = 3500.0;

/// Documents that a kernel's query tiles meet, all tiles together.
pub(crate) fn n_tile_entries(row: &Variant, problem: &Problem<'_>) -> f64 {
    let per_tile = match problem.shape() {
        ScoreShape::Cross { n_documents, .. } => n_documents as f64,
        shape => shape.n_scores() as f64 / problem.queries().n_items().max(1) as f64,
    };
    n_tiles(row, problem) * per_tile
}

/// A kernel's query tiles.
pub(super) fn n_tiles(row: &Variant, problem: &Problem<'_>) -> f64 {
    let queries = problem.queries();
    let n_groups = |q: usize| queries.item_len(q).div_ceil(Group::ROWS);
    let groups_per_tile = row.query_tile / Group::ROWS;
    let n_tiles = match problem.shape() {
        // Queries share tiles where all of them meet every document.
        ScoreShape::Cross { n_queries, .. } => {
            (0..n_queries).map(n_groups).sum::<usize>().div_ceil(groups_per_tile)
        }
        _ => (0..queries.n_items()).map(|q| n_groups(q).div_ceil(groups_per_tile)).sum(),
    };
    n_tiles as f64
}

/// Clocks that a multiprocessor takes for one query tile and a document of so many columns.
pub(crate) fn document_clocks(row: &Variant, dim: usize, columns: f64) -> f64 {
    let work = (columns + DOCUMENT_COLUMNS) * row.query_tile as f64;
    work * row.dim_multiplied(dim) as f64 / row.multiply_adds()
}

/// Columns that a document costs besides its own: its epilogue, the sum over the rows.
const DOCUMENT_COLUMNS: f64 = 24.0;

/// A multiple of every kernel's document tile.
const WHOLE_TILES: usize = DOCUMENT_TILE;

/// The documents' lengths as far as kernels differ in what they make of them. Counted once for
/// all rows of the table: there may be millions of documents.
pub(super) struct DocumentLens {
    /// Tokens in whole tiles of every kernel.
    whole: usize,
    /// Documents by the number of tokens beyond those.
    tails: [usize; WHOLE_TILES],
}

impl DocumentLens {
    pub(super) fn of(problem: &Problem<'_>) -> DocumentLens {
        let mut lens = DocumentLens { whole: 0, tails: [0; WHOLE_TILES] };
        for &[_, len] in problem.documents().segments() {
            let tail = len as usize % WHOLE_TILES;
            lens.whole += len as usize - tail;
            lens.tails[tail] += 1;
        }
        lens
    }

    /// Tokens of all documents.
    fn tokens(&self) -> usize {
        self.whole + self.tails.iter().enumerate().map(|(len, n)| n * len).sum::<usize>()
    }

    /// Columns that a kernel multiplies for all documents.
    fn columns(&self, row: &Variant) -> usize {
        let tails = self.tails.iter().enumerate().map(|(len, n)| n * columns(row, len));
        self.whole + tails.sum::<usize>()
    }
}

/// Columns that a kernel multiplies for a document of `len` tokens.
fn columns(row: &Variant, len: usize) -> usize {
    let tail = len % row.document_tile;
    let whole = len - tail;
    match (tail, row.arch) {
        (0, _) => whole,
        (tail, Arch::Sm80) if row.streams_queries => {
            // Half a tile or all of it.
            whole + tail.next_multiple_of(row.document_tile / 2)
        }
        (tail, Arch::Sm80) => whole + tail.next_multiple_of(row.tail_step),
        (tail, Arch::Sm90a) => whole + tail_width(row.tail_step, row.winners, tail),
    }
}

#[cfg(test)]
mod tests {
    use maxsim_kernels::table::forward::FORWARD;

    use super::*;
    use crate::problem::pairing::Pairing;
    use crate::tokens::layout::TokenLayout;

    #[test]
    fn counted_lengths_give_the_columns_of_the_documents_themselves() {
        let lens: Vec<i64> = (0..700).collect();
        let documents = TokenLayout::scattered(700, 8, &[0i64; 700], &lens).unwrap();
        let (queries, cross) = (TokenLayout::padded(1, 1, 8).unwrap(), Pairing::cross());
        let counted = DocumentLens::of(&Problem::new(&queries, &documents, &cross).unwrap());
        for row in FORWARD {
            let each: usize = (0..700).map(|len| columns(row, len)).sum();
            assert_eq!(counted.columns(row), each, "{}", row.name);
            assert_eq!(counted.tokens(), (0..700).sum::<usize>());
        }
    }
}
