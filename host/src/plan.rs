//! Which kernel runs a problem, and why: a pure function of shapes and device limits.

use std::fmt;

use maxsim_kernels::decode::BY_CENTROID_NBITS_MAX;
pub use maxsim_kernels::element::Operand;
use maxsim_kernels::layout::sm90::{DOCUMENT_TILE, tail_width};
use maxsim_kernels::params::{CENTROID_SCORES_BYTES, Group};
pub use maxsim_kernels::variants::Variant;
use maxsim_kernels::variants::{Arch, FORWARD};

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::format::TokenFormat;
use crate::pieces::{Pieces, cut};
use crate::problem::{Problem, ScoreShape};
use crate::scores::ScoreOptions;

/// What eligibility needs to know of a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Compute capability (major, minor): that of the device, or where the environment says
    /// MAXSIM_INSTRUCTIONS=sm_80, that of the oldest one.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: usize,
    /// Shared memory that a block may opt in to, in bytes.
    pub shared_bytes: usize,
}

impl DeviceLimits {
    /// Whether the device runs some row of the variant table for this operand.
    pub(crate) fn has_rows(&self, operand: Operand) -> bool {
        FORWARD.iter().any(|row| row.operand == operand && row.arch.runs_on(self.capability))
    }
}

/// How a matrix in device memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the first element.
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Centroids that the rows are decoded from, with buckets of up to
    /// [`BY_CENTROID_NBITS_MAX`] bits; 0 elsewhere.
    pub n_centroids: u32,
}

impl Access {
    /// Access to a matrix that this library uploads: aligned base, pitch rounded up to 16 bytes.
    pub fn uploaded(dim: usize, format: impl Into<TokenFormat>) -> Access {
        let row_bytes = (dim * format.into().size_bytes()) as u64;
        Access { base: 0, pitch_bytes: row_bytes.next_multiple_of(16), n_centroids: 0 }
    }

    /// Whether rows start on 16-byte boundaries, as `cp.async` and TMA need.
    pub fn is_aligned(&self) -> bool {
        self.base.is_multiple_of(16) && self.pitch_bytes.is_multiple_of(16)
    }

    /// Whether rows of `dim` elements are those of a kernel that reads runs of them.
    pub(crate) fn lies_together(&self, row: &Variant, dim: usize) -> bool {
        let row_bytes = (row.dim_max * row.operand.size_bytes()) as u64;
        dim == row.dim_max && self.base.is_multiple_of(16) && self.pitch_bytes == row_bytes
    }
}

/// The kernel that a call runs, and why not the others.
#[derive(Clone, Debug)]
pub struct Plan {
    choice: Choice,
    rejected: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
enum Choice {
    Cpu { n_threads: usize },
    Kernel { chosen: Chosen, cost: f64, reason: String },
}

/// What runs on a CUDA device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub variant: &'static Variant,
    /// How documents are cut; `None` = they are not.
    pub pieces: Option<Pieces>,
    /// Centroids that documents are decoded from; 0 where they are not.
    #[cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))]
    pub n_centroids: u32,
}

impl Plan {
    /// The plan of the CPU engine.
    pub(crate) fn cpu(options: &ScoreOptions, n_threads: usize) -> Result<Plan> {
        if let Some(kernel) = &options.kernel {
            return Err(Error::Unsupported {
                what: format!("kernel {kernel} on the CPU"),
                why: "the CPU engine has no kernel rows; leave `kernel` unset".into(),
            });
        }
        check_pieces(options)?;
        Ok(Plan { choice: Choice::Cpu { n_threads }, rejected: Vec::new() })
    }

    /// Chooses a row of the variant table: eligibility first, then the least cost, then
    /// the order of the table. A kernel named in `options` skips preference, never
    /// eligibility.
    pub fn choose(
        problem: &Problem<'_>,
        operand: impl Into<Operand>,
        limits: &DeviceLimits,
        queries: Access,
        documents: Access,
        options: &ScoreOptions,
    ) -> Result<Plan> {
        let operand = operand.into();
        if let Some(name) = &options.kernel
            && !FORWARD.iter().any(|row| row.name == name)
        {
            return Err(Error::Unsupported {
                what: format!("kernel {name}"),
                why: "the variant table has no such row; `maxsim info` lists them".into(),
            });
        }
        check_pieces(options)?;
        let lens = DocumentLens::of(problem);
        let mut rejected = Vec::new();
        let mut best: Option<(f64, Chosen)> = None;
        for row in FORWARD {
            let forced = options.kernel.as_deref() == Some(row.name);
            if options.kernel.is_some() && !forced {
                continue;
            }
            match eligible(row, problem, operand, limits, queries, documents, options) {
                Err(why) => rejected.push((row.name, why)),
                Ok(()) => {
                    let n_entries = n_tile_entries(row, problem);
                    let cut = cut(row, problem, n_entries, limits, options);
                    let whole = cost(row, problem, n_entries, &lens, limits);
                    let start = if row.in_runs { 0.0 } else { START_CLOCKS };
                    let before = start + centroid_clocks(row, problem, limits, documents);
                    let cost =
                        before + cut.and_then(|cut| cut.clocks).map_or(whole, |cut| cut.min(whole));
                    let chosen = Chosen {
                        variant: row,
                        pieces: cut.map(|cut| cut.pieces),
                        n_centroids: documents.n_centroids,
                    };
                    match best {
                        Some((least, _)) if cost >= least => {
                            rejected.push((row.name, format!("costs more ({cost:.3e})")));
                        }
                        _ => {
                            if let Some((least, other)) = best.replace((cost, chosen)) {
                                let other = other.variant;
                                rejected.push((other.name, format!("costs more ({least:.3e})")));
                            }
                        }
                    }
                }
            }
        }
        let Some((cost, chosen)) = best else {
            let why = rejected
                .iter()
                .filter(|(name, _)| options.kernel.as_deref().is_none_or(|k| k == *name))
                .map(|(name, why)| format!("{name}: {why}"))
                .collect::<Vec<_>>()
                .join("; ");
            let what = format!("MaxSim of {operand} tokens of dim {}", problem.dim());
            return Err(Error::Unsupported { what, why });
        };
        let reason = match options.kernel {
            Some(_) => "asked for by name".to_string(),
            None => "least cost of the eligible rows".to_string(),
        };
        Ok(Plan { choice: Choice::Kernel { chosen, cost, reason }, rejected })
    }

    /// The row of the variant table, or `None` for the CPU engine.
    pub fn variant(&self) -> Option<&'static Variant> {
        self.chosen().map(|chosen| chosen.variant)
    }

    /// Pieces that every document is cut into; 1 = documents stay whole.
    pub fn document_pieces(&self) -> usize {
        self.chosen().and_then(|chosen| chosen.pieces).map_or(1, |pieces| pieces.n)
    }

    /// What runs on a CUDA device, or `None` for the CPU engine.
    pub(crate) fn chosen(&self) -> Option<Chosen> {
        match &self.choice {
            Choice::Cpu { .. } => None,
            Choice::Kernel { chosen, .. } => Some(*chosen),
        }
    }

    /// Name of what runs: a kernel, or `cpu`.
    pub fn name(&self) -> &'static str {
        self.variant().map_or("cpu", |v| v.name)
    }

    /// The rows that do not run, each with the reason.
    pub fn rejected(&self) -> &[(&'static str, String)] {
        &self.rejected
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            Choice::Cpu { n_threads } => write!(f, "cpu: {n_threads} threads")?,
            Choice::Kernel { chosen: Chosen { variant: v, pieces, .. }, cost, reason } => {
                write!(
                    f,
                    "{}: {reason}; tiles of {} query rows × {} document tokens, {} stages, {} threads, estimated cost {cost:.3e}",
                    v.name, v.query_tile, v.document_tile, v.stages, v.threads
                )?;
                if let Some(Pieces { n, len }) = pieces {
                    write!(f, "; documents cut into {n} pieces of up to {len} tokens")?;
                }
            }
        }
        for (name, why) in &self.rejected {
            write!(f, "\n  not {name}: {why}")?;
        }
        Ok(())
    }
}

/// May this compiled kernel run this problem? If not, why.
fn eligible(
    row: &Variant,
    problem: &Problem<'_>,
    operand: Operand,
    limits: &DeviceLimits,
    queries: Access,
    documents: Access,
    options: &ScoreOptions,
) -> std::result::Result<(), String> {
    let dim = problem.dim();
    if row.operand != operand {
        return Err(format!("works on {}", row.operand));
    }
    if row.normalizes != options.normalize {
        return Err(if row.normalizes { "normalises rows" } else { "normalises no rows" }.into());
    }
    let is_element = matches!(row.operand, Operand::Element(_));
    let finds_either = row.normalizes || !is_element && row.winners;
    if row.winners != options.winners && !finds_either {
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
    if row.in_runs {
        takes_runs(row, problem, queries, documents, options)?;
    }
    if row.by_centroid {
        if documents.n_centroids == 0 {
            return Err(format!("buckets have at most {BY_CENTROID_NBITS_MAX} bits"));
        }
        let bytes = centroid_score_bytes(row, problem, documents);
        if bytes > CENTROID_SCORE_BYTES_MAX {
            return Err(format!(
                "the scores of centroids take {bytes} bytes, of at most {CENTROID_SCORE_BYTES_MAX}"
            ));
        }
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

/// Whether a kernel that reads documents as runs of rows can read these.
fn takes_runs(
    row: &Variant,
    problem: &Problem<'_>,
    queries: Access,
    documents: Access,
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
    let follows = |pair: &[[u32; 2]]| pair[0][0] + pair[0][1] == pair[1][0];
    let segments = layout.segments();
    if !segments.windows(2).all(follows) || segments.iter().any(|&[_, len]| len == 0) {
        return Err("documents lie one behind the other, none of them empty".into());
    }
    if !problem.pairing().has_documents_in_order() {
        return Err("documents are taken in their order".into());
    }
    if layout.is_masked() {
        return Err("reads no mask of documents".into());
    }
    if options.document_pieces.is_some_and(|n| n > 1) {
        return Err("documents are not cut".into());
    }
    Ok(())
}

fn check_pieces(options: &ScoreOptions) -> Result<()> {
    match options.document_pieces {
        Some(0) => Err(Error::Shape {
            argument: "document_pieces",
            expected: "1 or more, or None".into(),
            found: "0".into(),
        }),
        _ => Ok(()),
    }
}

/// Most bytes of centroids' scores: what is read of them should stay in the cache.
const CENTROID_SCORE_BYTES_MAX: f64 = (64 << 20) as f64;

/// Bytes that the scores of all centroids take, where documents have any.
fn centroid_score_bytes(row: &Variant, problem: &Problem<'_>, documents: Access) -> f64 {
    n_tiles(row, problem) * f64::from(documents.n_centroids) * CENTROID_SCORES_BYTES as f64
}

/// Clocks that the device takes for them: as a document of so many tokens, and a launch.
fn centroid_clocks(
    row: &Variant,
    problem: &Problem<'_>,
    limits: &DeviceLimits,
    documents: Access,
) -> f64 {
    if !row.by_centroid {
        return 0.0;
    }
    let columns = n_tiles(row, problem) * f64::from(documents.n_centroids);
    let share = columns / limits.n_multiprocessors.max(1) as f64;
    LAUNCH_CLOCKS + document_clocks(row, problem.dim(), share)
}

/// Clocks of two launches beside another one, and of a table that nobody has read yet.
const LAUNCH_CLOCKS: f64 = 15_000.0;

/// Smallest dim of rows that split their elements. Two such products differ by up to 8 · 2⁻²³ of
/// themselves ([`maxsim_kernels::tf32`]), and two engines' winners may by dim · 2⁻²³ of the sum.
const SPLIT_DIM_MIN: usize = 16;

/// Clocks that the device takes for [`n_tile_entries`], padding included. Only ratios matter, except
/// where documents may be cut.
fn cost(
    row: &Variant,
    problem: &Problem<'_>,
    n_entries: f64,
    lens: &DocumentLens,
    limits: &DeviceLimits,
) -> f64 {
    let n_documents = problem.documents().n_items().max(1) as f64;
    let columns = lens.columns(row) as f64 / n_documents;
    // Blocks that share a multiprocessor share its time: what counts is what the busiest
    // multiprocessor gets.
    let rounds = (n_entries / limits.n_multiprocessors.max(1) as f64).ceil().max(1.0);
    rounds * document_clocks(row, problem.dim(), columns)
}

/// Clocks between a launch and the first product, and between the last one and the end, that rows which
/// read documents as runs save. Blocks of theirs take equal shares, for which their rate is 2 % lower: of
/// two kernels that wait for memory the other one is faster beyond some hundred megabytes.
const START_CLOCKS: f64 = 3500.0;

/// Documents that a kernel's query tiles meet, all tiles together.
pub(crate) fn n_tile_entries(row: &Variant, problem: &Problem<'_>) -> f64 {
    let per_tile = match problem.shape() {
        ScoreShape::Cross { n_documents, .. } => n_documents as f64,
        shape => shape.n_scores() as f64 / problem.queries().n_items().max(1) as f64,
    };
    n_tiles(row, problem) * per_tile
}

/// A kernel's query tiles.
fn n_tiles(row: &Variant, problem: &Problem<'_>) -> f64 {
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
    // Multiply-adds per clock and multiprocessor, as a share of the peak that is seen in
    // practice. The fewer rows a tile has, the more shared memory is read per product, and the
    // sooner documents arrive too slowly.
    let rate = match (row.arch, row.operand) {
        (Arch::Sm90a, operand) => {
            let peak = match (operand.size_bytes(), row.splits()) {
                // Three products of half the rate.
                (4, true) => 1024.0 / 3.0,
                (4, false) => 1024.0,
                (1, _) => 4096.0,
                _ => 2048.0,
            };
            let share = match (row.query_tile, row.streams_queries) {
                _ if row.in_runs => 0.152,
                (256.., false) => 0.8,
                (256.., true) => 0.7,
                (128.., false) => 0.55,
                (128.., true) => 0.45,
                _ => 0.31,
            };
            peak * share
        }
        (Arch::Sm80, Operand::Element(ElementType::F32)) => match row.query_tile {
            256.. => 64.0 * 0.8,
            _ => 64.0 * 0.6,
        },
        // What follows the products (numbers, scales, winners) takes as long as they do, or longer, and
        // the height of the tile saves little of it.
        (Arch::Sm80, Operand::I8) => match row.streams_queries {
            false => 2048.0 * 0.4,
            true => 2048.0 * 0.35,
        },
        // Codes with a minimum come through registers.
        (Arch::Sm80, Operand::Affine(_) | Operand::I8Affine) => match row.streams_queries {
            false => 1024.0 * 0.3,
            true => 1024.0 * 0.25,
        },
        // Codes are widened before they are multiplied as f16.
        (Arch::Sm80, Operand::E4m3) => 1024.0 * 0.3,
        // Nothing but weights is decoded.
        (Arch::Sm80, _) if row.by_centroid => 1024.0 * 0.45,
        // The tensor cores of compute capability 8.0.
        (Arch::Sm80, _) => {
            let share = match (row.query_tile, row.streams_queries) {
                (256.., _) => 0.85,
                (128.., false) => 0.7,
                (128.., true) => 0.55,
                _ => 0.4,
            };
            1024.0 * share
        }
    };
    let work = (columns + DOCUMENT_COLUMNS) * row.query_tile as f64;
    work * row.dim_multiplied(dim) as f64 / rate
}

/// What a document costs besides its columns, in columns: the sum over the rows.
const DOCUMENT_COLUMNS: f64 = 24.0;

/// A multiple of every kernel's document tile.
const WHOLE_TILES: usize = DOCUMENT_TILE;

/// The documents' lengths as far as kernels differ in what they make of them. Counted once for
/// all rows of the table: there may be millions of documents.
struct DocumentLens {
    /// Tokens in whole tiles of every kernel.
    whole: usize,
    /// Documents by the number of tokens beyond those.
    tails: [usize; WHOLE_TILES],
}

impl DocumentLens {
    fn of(problem: &Problem<'_>) -> DocumentLens {
        let mut lens = DocumentLens { whole: 0, tails: [0; WHOLE_TILES] };
        for &[_, len] in problem.documents().segments() {
            let tail = len as usize % WHOLE_TILES;
            lens.whole += len as usize - tail;
            lens.tails[tail] += 1;
        }
        lens
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
    use super::*;
    use crate::pairing::Pairing;
    use crate::tokens::TokenLayout;

    #[test]
    fn counted_lengths_give_the_columns_of_the_documents_themselves() {
        let lens: Vec<i64> = (0..700).collect();
        let documents = TokenLayout::scattered(700, 8, &[0i64; 700], &lens).unwrap();
        let (queries, cross) = (TokenLayout::padded(1, 1, 8).unwrap(), Pairing::cross());
        let counted = DocumentLens::of(&Problem::new(&queries, &documents, &cross).unwrap());
        for row in FORWARD {
            let each: usize = (0..700).map(|len| columns(row, len)).sum();
            assert_eq!(counted.columns(row), each, "{}", row.name);
        }
    }
}
