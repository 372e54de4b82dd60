//! A test case: a short description that prints and shrinks well, and the data it stands for.

use std::ops::Range;

use maxsim::format::{Element, ElementType};
use maxsim::{Error, Pairing, ScoreShape, Tokens};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::oracle::Matrix;
use crate::values::{self, Role, Values};

/// How the items of one side lie in their matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Every item as long as the longest.
    Padded,
    /// Padded, each item cut to its own length.
    PaddedLengths,
    /// One after the other, spare rows before and behind.
    Packed,
    /// Anywhere: overlapping, out of order, with gaps.
    Scattered,
}

/// Queries or documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Layout of the items.
    pub layout: Layout,
    /// Length of each item in tokens.
    pub lengths: Vec<usize>,
    /// Rows that belong to no item, where the layout can have them.
    pub spare_rows: usize,
    /// Percentage of rows that a mask keeps valid; `None` = no mask.
    pub valid_percent: Option<u32>,
}

impl Side {
    /// Packed items without spare rows or a mask.
    pub fn packed(lengths: impl Into<Vec<usize>>) -> Side {
        Side { layout: Layout::Packed, lengths: lengths.into(), spare_rows: 0, valid_percent: None }
    }
}

/// Pairs that are scored. Ids are generated from the case's seed, repeats included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Every query with every document.
    Cross,
    /// `k` own documents per query; their lengths are the side's, over and over.
    Own {
        /// Documents per query.
        k: usize,
    },
    /// `k` shared documents per query.
    Candidates {
        /// Documents per query.
        k: usize,
    },
    /// A list.
    List {
        /// Pairs.
        n: usize,
    },
}

impl Pairs {
    /// Every pairing, with repeats of ids and without any document.
    pub const ALL: [Pairs; 7] = [
        Pairs::Cross,
        Pairs::Own { k: 3 },
        Pairs::Own { k: 0 },
        Pairs::Candidates { k: 5 },
        Pairs::Candidates { k: 0 },
        Pairs::List { n: 20 },
        Pairs::List { n: 0 },
    ];
}

/// Description of one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Element type of both sides.
    pub element: ElementType,
    /// Elements per token.
    pub dim: usize,
    /// The queries.
    pub queries: Side,
    /// The documents.
    pub documents: Side,
    /// Pairs that are scored.
    pub pairs: Pairs,
    /// Source of the numbers.
    pub values: Values,
    /// Whether rows that no item may use are NaN or ±∞.
    pub poison: bool,
    /// Whether rows are normalised.
    pub normalize: bool,
    /// Whether scores of rows that are normalised are angular: what [`crate::engines`] checks, and
    /// other suites ignore.
    pub angular: bool,
    /// Whether query tokens have weights.
    pub weights: bool,
    /// Whether token scores are asked for.
    pub token_scores: bool,
    /// Document splits on a GPU; `None`: as many as the plan chooses.
    pub document_splits: Option<usize>,
    /// Whether queries, documents are uploaded before the call.
    pub upload: [bool; 2],
    /// The seed of everything random.
    pub seed: u64,
}

impl Case {
    /// A packed f32 cross product of unit rows; change what the test is about.
    pub fn new(dim: usize, query_lengths: &[usize], document_lengths: &[usize]) -> Case {
        Case {
            element: ElementType::F32,
            dim,
            queries: Side::packed(query_lengths),
            documents: Side::packed(document_lengths),
            pairs: Pairs::Cross,
            values: Values::Unit,
            poison: false,
            normalize: false,
            angular: false,
            weights: false,
            token_scores: true,
            document_splits: None,
            upload: [false; 2],
            seed: 0x6d61_7873_696d,
        }
    }

    /// No items, or items without tokens, on either side or both.
    pub fn without_tokens(pairs: &[Pairs]) -> Vec<Case> {
        let sides: [&[usize]; 5] = [&[], &[0], &[0, 0, 0], &[2, 0, 3], &[4]];
        let mut cases = Vec::new();
        for queries in sides {
            for documents in sides {
                let of = |&pairs| Case { pairs, ..Case::new(16, queries, documents) };
                cases.extend(pairs.iter().map(of));
            }
        }
        cases
    }

    /// Everything masked, on either side or both, over values that would show.
    pub fn all_masked() -> [Case; 3] {
        [(Some(0), None), (None, Some(0)), (Some(0), Some(0))].map(|(queries, documents)| {
            let mut case = Case { poison: true, ..Case::new(16, &[17, 65], &[129, 3]) };
            case.queries.valid_percent = queries;
            case.documents.valid_percent = documents;
            case
        })
    }

    /// The case in every layout and pairing, with and without masks of either side.
    pub fn in_every_layout_and_pairing(&self) -> Vec<Case> {
        let layouts = [Layout::Padded, Layout::PaddedLengths, Layout::Packed, Layout::Scattered];
        let masks = [(None, None), (Some(50), None), (None, Some(50)), (Some(50), Some(50))];
        let side = |side: &Side, layout, valid_percent| Side {
            layout,
            lengths: side.lengths.clone(),
            spare_rows: 3,
            valid_percent,
        };
        let mut cases = Vec::new();
        for pairs in Pairs::ALL {
            for query_layout in layouts {
                for document_layout in layouts {
                    for (query_mask, document_mask) in masks {
                        let queries = side(&self.queries, query_layout, query_mask);
                        let documents = side(&self.documents, document_layout, document_mask);
                        cases.push(Case { pairs, queries, documents, ..self.clone() });
                    }
                }
            }
        }
        cases
    }

    /// The length of each document.
    fn document_lengths(&self) -> Vec<usize> {
        let lengths = &self.documents.lengths;
        match self.pairs {
            Pairs::Own { .. } if lengths.is_empty() => vec![0; self.n_documents()],
            Pairs::Own { .. } => lengths.iter().copied().cycle().take(self.n_documents()).collect(),
            _ => lengths.clone(),
        }
    }

    fn n_documents(&self) -> usize {
        match self.pairs {
            Pairs::Own { k } => self.queries.lengths.len() * k,
            _ => self.documents.lengths.len(),
        }
    }

    /// Number of scores.
    pub fn n_pairs(&self) -> usize {
        let (n_queries, n_documents) = (self.queries.lengths.len(), self.n_documents());
        match self.pairs {
            Pairs::Cross => n_queries * n_documents,
            Pairs::Own { .. } => n_documents,
            Pairs::Candidates { .. } | Pairs::List { .. } if n_documents == 0 => 0,
            Pairs::Candidates { k } => n_queries * k,
            Pairs::List { .. } if n_queries == 0 => 0,
            Pairs::List { n } => n,
        }
    }

    /// Upper bound of the multiply-adds of the case.
    pub fn cost(&self) -> usize {
        let longest = |side: &Side| side.lengths.iter().copied().max().unwrap_or(0);
        let mean = |side: &Side| match side.layout {
            Layout::Padded => longest(side),
            _ => side.lengths.iter().sum::<usize>().div_ceil(side.lengths.len().max(1)),
        };
        let factors = [self.n_pairs(), mean(&self.queries), mean(&self.documents), self.dim];
        factors.into_iter().fold(1, usize::saturating_mul)
    }

    /// Generates the data.
    pub fn data(&self) -> Data {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut side = |side: &Side, lengths: &[usize], role| {
            let (rows, items) = place(side, lengths, rng);
            let mask: Option<Vec<u8>> = side.valid_percent.map(|percent| {
                let valid = |rng: &mut Xoshiro256PlusPlus| rng.random_range(0..100) < percent;
                (0..rows).map(|_| if valid(rng) { rng.random_range(1..=255) } else { 0 }).collect()
            });
            let mut used = vec![false; rows];
            items.iter().for_each(|item| used[item.clone()].fill(true));
            if let Some(mask) = &mask {
                used.iter_mut().zip(mask).for_each(|(used, &m)| *used &= m != 0);
            }
            let mut values = values::rows(self.values, role, rows, self.dim, rng);
            if self.poison {
                values::poison(&mut values, self.dim, &used, rng);
            }
            values.iter_mut().for_each(|x| *x = values::stored(self.element, *x));
            // 2⁻¹⁴; the others reach as far down as f32.
            let least = if self.element == ElementType::F16 { 1.0 / 16384.0 } else { 0.0 };
            let weights = (self.weights && role == Role::Query)
                .then(|| values::weights(self.values, &used, self.poison, rng));
            let matrix = Matrix {
                values,
                dim: self.dim,
                items,
                mask,
                weights,
                factors: None,
                offsets: None,
                least,
            };
            if self.normalize { matrix.normalized() } else { matrix }
        };
        let queries = side(&self.queries, &self.queries.lengths, Role::Query);
        let documents = side(&self.documents, &self.document_lengths(), Role::Document);

        let (n_queries, n_documents) = (queries.items.len(), documents.items.len());
        let n_pairs = self.n_pairs();
        let mut id = |n: usize| rng.random_range(0..n);
        let (pairs, shape) = match self.pairs {
            Pairs::Cross => (
                (0..n_pairs).map(|p| (p / n_documents, p % n_documents)).collect(),
                ScoreShape::Cross { n_queries, n_documents },
            ),
            Pairs::Own { k } => (
                (0..n_pairs).map(|p| (p / k, p)).collect(),
                ScoreShape::Candidates { n_queries, k },
            ),
            Pairs::Candidates { .. } => {
                let k = n_pairs.checked_div(n_queries).unwrap_or(0);
                let pairs = (0..n_pairs).map(|p| (p / k, id(n_documents))).collect();
                (pairs, ScoreShape::Candidates { n_queries, k })
            }
            Pairs::List { .. } => {
                let pairs = (0..n_pairs).map(|_| (id(n_queries), id(n_documents))).collect();
                (pairs, ScoreShape::Pairs { n_pairs })
            }
        };
        let exact = self.values == Values::Integers && !self.normalize;
        Data { queries, documents, pairs, shape, exact, coarse: 0.0 }
    }

    /// The pairing of `data` as the library takes it.
    pub fn pairing(&self, data: &Data) -> Result<Pairing, Error> {
        let ids = |of: fn(&(usize, usize)) -> usize| -> Vec<i64> {
            data.pairs.iter().map(|pair| of(pair) as i64).collect()
        };
        match (self.pairs, data.shape) {
            (Pairs::Own { k }, _) => Ok(Pairing::own_candidates(k)),
            (Pairs::Candidates { .. }, ScoreShape::Candidates { k, .. }) => {
                Pairing::candidates(&ids(|pair| pair.1), k)
            }
            (Pairs::List { .. }, _) => Pairing::pairs(&ids(|pair| pair.0), &ids(|pair| pair.1)),
            _ => Ok(Pairing::cross()),
        }
    }
}

/// The data of a case: what the oracle reads, and what the library's tokens are made of.
#[derive(Clone, Debug)]
pub struct Data {
    /// The queries, as stored.
    pub queries: Matrix,
    /// The documents, as stored.
    pub documents: Matrix,
    /// (query, document) of each score.
    pub pairs: Vec<(usize, usize)>,
    /// Shape of the scores.
    pub shape: ScoreShape,
    /// Whether no sum can round, so that every engine must give the same bits.
    pub exact: bool,
    /// Error of an engine's products beyond that, relative to their magnitude.
    pub coarse: f64,
}

impl Data {
    /// Whether similarities are multiplied by row scales: rows are normalised, or codes.
    pub fn has_row_scales(&self) -> bool {
        self.documents.factors.is_some()
    }
}

/// A side's matrix as `T`, which holds every value exactly.
pub fn elements<T: Element>(matrix: &Matrix) -> Vec<T> {
    matrix.values.iter().map(|&x| T::from_f32(x)).collect()
}

/// The library's view of a side: `elements` laid out as `side` says.
pub fn tokens<'a, T: Element>(
    side: &Side,
    matrix: &'a Matrix,
    elements: &'a [T],
) -> Result<Tokens<'a, T>, Error> {
    let (dim, items) = (matrix.dim, &matrix.items);
    let lengths: Vec<i64> = items.iter().map(|item| item.len() as i64).collect();
    let tokens = match side.layout {
        Layout::Padded | Layout::PaddedLengths => {
            let rows = elements.len() / dim;
            let len = rows.checked_div(items.len()).unwrap_or(0);
            let padded = Tokens::padded(elements, items.len(), len, dim)?;
            match side.layout {
                Layout::Padded => padded,
                _ => padded.with_lengths(&lengths)?,
            }
        }
        Layout::Packed => {
            // i32 here, i64 elsewhere: both are offsets.
            let first = items.first().map_or(side.spare_rows, |item| item.start);
            let ends = items.iter().map(|item| item.end);
            let offsets: Vec<i32> = std::iter::once(first).chain(ends).map(|o| o as i32).collect();
            Tokens::packed(elements, dim, &offsets)?
        }
        Layout::Scattered => {
            let starts: Vec<i64> = items.iter().map(|item| item.start as i64).collect();
            Tokens::scattered(elements, dim, &starts, &lengths)?
        }
    };
    let tokens = match &matrix.mask {
        Some(mask) => tokens.with_mask(mask)?,
        None => tokens,
    };
    match &matrix.weights {
        Some(weights) => tokens.with_weights(weights),
        None => Ok(tokens),
    }
}

/// Rows of the matrix, and of each item in it.
fn place(
    side: &Side,
    lengths: &[usize],
    rng: &mut Xoshiro256PlusPlus,
) -> (usize, Vec<Range<usize>>) {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let total: usize = lengths.iter().sum();
    match side.layout {
        Layout::Padded => {
            let item = |i| i * longest..(i + 1) * longest;
            (lengths.len() * longest, (0..lengths.len()).map(item).collect())
        }
        Layout::PaddedLengths => {
            let pitch = longest + side.spare_rows;
            let items = lengths.iter().enumerate().map(|(i, len)| i * pitch..i * pitch + len);
            (lengths.len() * pitch, items.collect())
        }
        Layout::Packed => {
            let mut end = side.spare_rows;
            let mut next = |len: &usize| {
                let start = end;
                end += len;
                start..end
            };
            let items = lengths.iter().map(&mut next).collect();
            (end + side.spare_rows, items)
        }
        Layout::Scattered => {
            let rows = longest + side.spare_rows + rng.random_range(0..=total);
            let mut item = |&len: &usize| {
                let start = rng.random_range(0..=rows - len);
                start..start + len
            };
            let items = lengths.iter().map(&mut item).collect();
            (rows, items)
        }
    }
}
