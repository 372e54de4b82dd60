//! Split-KV: divides documents into splits, so that few long ones still fill a device. A pure
//! function of shapes and device limits.
//!
//! A CTA works on whole documents. Where there are fewer of them than CTAs, each is divided into
//! splits, which kernels score like documents; a second kernel takes the maxima over the splits.

use maxsim_kernels::abi::layout::sm90::DOCUMENT_TILE;
use maxsim_kernels::table::forward::Variant;

use super::cost::document_clocks;
use super::limits::DeviceLimits;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::shape::ScoreShape;

/// Splits start at multiples of this: tiles stay whole.
const STEP: usize = DOCUMENT_TILE;

/// Tokens of a split, at least: below, starting and ending take most of a CTA's time.
const LEN_MIN: usize = 256;

/// Most bytes of workspace for the results of splits.
const BYTES_MAX: u64 = 32 << 20;

/// Clocks that splitting must save: 10 µs. The second kernel takes 3 to 4; and clocks are counted
/// as on a full device, while a CTA with a multiprocessor to itself is up to twice as fast.
pub(crate) const SPLIT_CLOCKS: f64 = 17_000.0;

/// How every document of a call is split; documents shorter than the longest have empty splits at
/// their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DocumentSplits {
    /// Splits of a document, 2 or more.
    pub n: usize,
    /// Tokens of a split.
    pub len: usize,
}

/// Splits, and the clocks that the busiest multiprocessor then takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Split {
    pub splits: DocumentSplits,
    /// `None` where the splits were asked for.
    pub clocks: Option<f64>,
}

impl DocumentSplits {
    /// At most `most` splits of documents of up to `longest` tokens; `None` where that is one.
    fn new(longest: usize, most: usize) -> Option<DocumentSplits> {
        let len = longest.div_ceil(most.max(1)).next_multiple_of(STEP);
        let n = longest.div_ceil(len.max(1));
        (n > 1).then_some(DocumentSplits { n, len })
    }

    /// The rows of a document's splits, in their order; `n` of them.
    pub(crate) fn of(self, [start, len]: [u32; 2]) -> impl Iterator<Item = [u32; 2]> {
        (0..self.n as u64).map(move |i| {
            // Rows are fewer than 2³¹, and no row behind a document's end is read.
            let begin = (i * self.len as u64).min(u64::from(len)) as u32;
            [start + begin, (len - begin).min(self.len as u32)]
        })
    }
}

/// Chooses the document splits of a kernel, whose query tiles meet `n_entries` documents
/// ([`n_tile_entries`](super::cost::n_tile_entries)); `None` for whole documents.
pub(crate) fn choose(
    row: &Variant,
    problem: &Problem<'_>,
    n_entries: f64,
    limits: &DeviceLimits,
    options: &ScoreOptions,
) -> Option<Split> {
    if n_entries < 1.0 || row.schedule.is_contiguous() || row.schedule.is_stream_k() {
        return None;
    }
    if problem.documents().is_unread() || row.decodes_once() || multiplies_scales(row, problem) {
        return None;
    }
    if let Some(most) = options.document_splits {
        let most = most.min(most_that_fit(problem, options));
        let splits = DocumentSplits::new(longest(problem), most)?;
        return Some(Split { splits, clocks: None });
    }
    // Only one round: a second one would begin with most CTAs idle.
    let n_multiprocessors = limits.n_multiprocessors.max(1) as f64;
    let n_rounds_free = (n_multiprocessors * row.blocks as f64 / n_entries) as usize;
    if n_rounds_free < 2 {
        return None;
    }
    let longest = longest(problem);
    let most = n_rounds_free.min(longest / LEN_MIN).min(most_that_fit(problem, options));
    let splits = DocumentSplits::new(longest, most)?;
    // CTAs of one multiprocessor share its time.
    let clocks = |n_entries: f64, len: usize| {
        let n_sharing = if n_entries > n_multiprocessors { row.blocks } else { 1 };
        n_sharing as f64 * document_clocks(row, problem.dim(), len as f64)
    };
    let whole = clocks(n_entries, longest);
    let split = clocks(n_entries * splits.n as f64, splits.len) + SPLIT_CLOCKS;
    (split < whole).then_some(Split { splits, clocks: Some(split) })
}

/// Whether a kernel multiplies the scales of query rows by their weights first, which is rounded:
/// maxima of splits are scaled before they meet, and would have other bits.
pub(crate) fn multiplies_scales(row: &Variant, problem: &Problem<'_>) -> bool {
    problem.queries().is_weighted() && !row.stores_weighted_tokens()
}

/// Tokens of the longest document that is scored: of candidates, the corpus may have longer ones.
fn longest(problem: &Problem<'_>) -> usize {
    let documents = problem.documents();
    match problem.shape() {
        ScoreShape::Cross { .. } => documents.max_len(),
        shape => {
            let scores = 0..shape.n_scores();
            scores.map(|p| documents.item_len(problem.pair(p).1)).max().unwrap_or(0)
        }
    }
}

/// Splits whose results fit the workspace.
fn most_that_fit(problem: &Problem<'_>, options: &ScoreOptions) -> usize {
    let bytes: u64 = OutputShape::of_splits(problem, options.winners).lens_bytes().iter().sum();
    (BYTES_MAX / bytes.max(1)) as usize
}

#[cfg(test)]
mod tests {
    use maxsim_kernels::table::forward::FORWARD;

    use super::*;
    use crate::plan::cost::n_tile_entries;
    use crate::problem::pairing::Pairing;
    use crate::tokens::layout::TokenLayout;

    const H200: DeviceLimits =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };

    #[test]
    fn splits_cover_each_token_once_and_in_order() {
        for longest in (0..1500).chain([8192, 8193, 100_000]) {
            for most in [0, 1, 2, 3, 5, 33, 1000] {
                let Some(splits) = DocumentSplits::new(longest, most) else {
                    assert!(longest <= STEP || most <= 1, "{longest} tokens, {most} splits");
                    continue;
                };
                assert!((2..=most).contains(&splits.n) && splits.len.is_multiple_of(STEP));
                for len in [0, 1, longest / 2, longest] {
                    let segments: Vec<[u32; 2]> = splits.of([7, len as u32]).collect();
                    assert_eq!(segments.len(), splits.n);
                    let mut next = 7;
                    for (i, [start, n_rows]) in segments.into_iter().enumerate() {
                        assert_eq!(start, next);
                        assert!(n_rows == 0 || start as usize == 7 + i * splits.len);
                        next += n_rows;
                    }
                    assert_eq!(next as usize, 7 + len);
                }
            }
        }
    }

    /// The splits of `n` documents of `len` tokens against one query, with the row of that name.
    fn chosen(row: &str, query_len: usize, n: usize, len: usize, most: Option<usize>) -> usize {
        of_query(row, TokenLayout::padded(1, query_len, 128).unwrap(), n, len, most)
    }

    fn of_query(
        row: &str,
        queries: TokenLayout,
        n: usize,
        len: usize,
        most: Option<usize>,
    ) -> usize {
        let documents = TokenLayout::padded(n, len, 128).unwrap();
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        let row = FORWARD.iter().find(|known| known.name == row).unwrap();
        let options = ScoreOptions { document_splits: most, ..ScoreOptions::default() };
        let n_entries = n_tile_entries(row, &problem);
        choose(row, &problem, n_entries, &H200, &options).map_or(1, |split| split.splits.n)
    }

    /// Scales times weights are rounded before whole documents' maxima, and behind those of splits.
    #[test]
    fn codes_of_weighted_tokens_are_not_split_where_scales_take_the_weights() {
        let split = |row: &str, is_weighted: bool, most| {
            let queries = TokenLayout::padded(1, 256, 128).unwrap();
            let queries = if is_weighted { queries.with_unread_weights() } else { queries };
            of_query(row, queries, 8, 8192, most)
        };
        for most in [None, Some(8)] {
            assert!(split("maxsim_forward_sm90_i8_d128_q256", false, most) > 1);
            assert_eq!(split("maxsim_forward_sm90_i8_d128_q256", true, most), 1);
            assert!(split("maxsim_forward_sm90_f16_d128_q256", true, most) > 1);
        }
    }

    #[test]
    fn few_long_documents_are_split_for_one_round_of_ctas() {
        const SHORT: &str = "maxsim_forward_sm90_f16_d128_q64";
        const TALL: &str = "maxsim_forward_sm90_f16_d128_q256";
        for (row, query_len, n, len, n_splits) in [
            (SHORT, 32, 8, 8192, 32),
            (SHORT, 32, 1, 100_000, 261),
            // Full enough.
            (SHORT, 32, 133, 8192, 1),
            (SHORT, 32, 1000, 8192, 1),
            (TALL, 1024, 17, 8192, 1),
            // Each tile of the query takes its turn with every split.
            (TALL, 1024, 8, 8192, 4),
            (TALL, 256, 8, 8192, 16),
            // Too little to save.
            (SHORT, 32, 8, 1024, 1),
            (SHORT, 32, 8, 256, 1),
            (SHORT, 32, 64, 2048, 1),
            (SHORT, 32, 8, 0, 1),
            (SHORT, 0, 8, 8192, 1),
        ] {
            let found = chosen(row, query_len, n, len, None);
            assert_eq!(found, n_splits, "{query_len} × {n} × {len} with {row}");
        }
        // As asked for, as far as there are tokens.
        for (len, most, n_splits) in
            [(8192, 1, 1), (8192, 5, 5), (300, 5, 3), (129, 5, 2), (128, 5, 1), (0, 5, 1)]
        {
            assert_eq!(chosen(SHORT, 32, 1000, len, Some(most)), n_splits, "{len} into {most}");
        }
        assert_eq!(chosen(SHORT, 0, 8, 8192, Some(5)), 1);
    }

    #[test]
    fn what_splits_leave_fits_the_workspace() {
        // 1000 documents × 4096 query tokens: 16 MB of token scores a split.
        const TALL: &str = "maxsim_forward_sm90_f16_d128_q256";
        assert_eq!(chosen(TALL, 4096, 1000, 8192, Some(9)), 2);
        assert_eq!(chosen(TALL, 4096, 2500, 8192, Some(9)), 1);
    }

    #[test]
    fn only_documents_that_are_scored_count() {
        let queries = TokenLayout::padded(1, 32, 128).unwrap();
        let lens: Vec<i64> = (0..100).map(|i| if i == 0 { 100_000 } else { 4096 }).collect();
        let documents = TokenLayout::scattered(100_000, 128, &[0i64; 100], &lens).unwrap();
        let pairing = Pairing::candidates(&[7i64, 9, 9, 50], 4).unwrap();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let row = FORWARD.iter().find(|row| row.name.ends_with("sm90_f16_d128_q64")).unwrap();
        let n_entries = n_tile_entries(row, &problem);
        let split = choose(row, &problem, n_entries, &H200, &ScoreOptions::default()).unwrap();
        assert_eq!(split.splits, DocumentSplits { n: 16, len: 256 });
    }
}
