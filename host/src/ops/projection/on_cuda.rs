//! Gradients of projections on a CUDA device: of the rows that some query token chose, and of no
//! others.
//!
//! Chosen rows of a slice are gathered, and projected again as documents of these rows alone;
//! winners are counted among them. So what is computed, and kept, depends on what was chosen, not
//! on how many rows there are.

use super::backward::{ProjectedGradients, ProjectionGradients};
use super::projector::Projector;
use super::slices::Slice;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::ops::backward::BackwardOptions;
use crate::ops::backward::training_scores::TrainingScores;
use crate::problem::Problem;
use crate::runtime::alloc::{filled, reserve, zeroed};
use crate::tokens::element::Element;
use crate::tokens::layout::TokenLayout;

/// Most bytes of rows that are gathered together, if it is more than one document.
const GATHERED_BYTES_MAX: usize = 32 << 20;

/// Most rows that count as one, as there are so many for each winner: all of a slice may be chosen.
const ROWS_MAX: u64 = 4;

/// The rows of a slice that some query token chose.
struct Chosen {
    /// In ascending order, as rows of the slice.
    rows: Vec<u32>,
    /// The documents in the matrix of these rows.
    documents: TokenLayout,
    /// The winners, counted in these documents.
    winners: Vec<i32>,
}

impl Chosen {
    /// Of the winners of a slice's problem.
    fn new(problem: &Problem<'_>, n_rows: usize, winners: &[i32]) -> Result<Chosen> {
        let segments = problem.documents().segments();
        let offsets = problem.token_offsets();
        let n_scores = problem.shape().n_scores();
        // Where a document starts, and which of its rows a winner is, if it is one.
        let of_score = |p: usize| segments[problem.pair(p).1];
        let row = |[start, len]: [u32; 2], winner: i32| {
            let within = u32::try_from(winner).ok().filter(|&within| within < len)?;
            Some((start + within) as usize)
        };
        // The number of chosen rows before each row.
        let mut places = filled(n_rows as u64 + 1, 0u32)?;
        for p in 0..n_scores {
            let segment = of_score(p);
            for &winner in &winners[offsets.range(p)] {
                if let Some(row) = row(segment, winner) {
                    places[row + 1] = 1;
                }
            }
        }
        let rows = (0..n_rows as u32).filter(|&row| places[row as usize + 1] != 0).collect();
        for i in 0..n_rows {
            places[i + 1] += places[i];
        }
        let of_row = |row: u32| places[row as usize];
        let starts: Vec<u32> = segments.iter().map(|&[start, _]| of_row(start)).collect();
        let ends = segments.iter().map(|&[start, len]| of_row(start + len));
        let lens: Vec<u32> = ends.zip(&starts).map(|(end, start)| end - start).collect();
        let dim = problem.documents().dim();
        let documents =
            TokenLayout::scattered(of_row(n_rows as u32) as usize, dim, &starts, &lens)?;
        let mut found = Vec::new();
        reserve(&mut found, winners.len())?;
        for p in 0..n_scores {
            let segment = of_score(p);
            let place = |&winner: &i32| match row(segment, winner) {
                Some(row) => (places[row] - of_row(segment[0])) as i32,
                None => -1,
            };
            found.extend(winners[offsets.range(p)].iter().map(place));
        }
        Ok(Chosen { rows, documents, winners: found })
    }
}

/// As [`Device::backward_projected`], of a checked problem.
pub(super) fn backward<T: Element>(
    device: &Device,
    queries: TokensRef<'_, T>,
    projector: &Projector<'_, T>,
    hidden: &TokenLayout,
    problem: &Problem<'_>,
    scores: &TrainingScores,
    grad_scores: &[f32],
) -> Result<ProjectedGradients> {
    let (dim, n) = (problem.dim(), hidden.dim());
    let uploaded = match queries {
        TokensRef::Host(tokens) => Some(device.upload(tokens)?),
        TokensRef::Device(_) => None,
    };
    let queries = uploaded.as_ref().map_or(queries, TokensRef::Device);
    let n_weights = if queries.layout().is_weighted() { queries.layout().rows() } else { 0 };
    let mut found = ProjectedGradients {
        queries: zeroed(queries.layout().rows() as u64 * dim as u64)?,
        query_weights: zeroed(n_weights as u64)?,
        documents: ProjectionGradients {
            hidden: zeroed(hidden.rows() as u64 * n as u64)?,
            ..ProjectionGradients::default()
        },
    };
    let mut sums = projector.sums()?;
    // Where few rows can be chosen a slice has more of them: it makes a dozen calls that wait.
    let per_winner = hidden.rows() as u64 / problem.token_offsets().total().max(1);
    let counted = row_bytes::<T>(dim, n) / per_winner.clamp(1, ROWS_MAX) as usize;
    for slice in Slice::all(problem, counted.max(1))? {
        let part = Problem::new(problem.queries(), &slice.documents, &slice.pairing)?;
        let (winners, grads) = slice.with_grad(scores.scores(), grad_scores);
        let chosen = Chosen::new(&part, slice.rows.len(), &winners)?;
        if chosen.rows.is_empty() {
            continue;
        }
        let rows: Vec<u32> = chosen.rows.iter().map(|row| row + slice.rows.start as u32).collect();
        let states = projector.gathered(&rows)?;
        let tokens = projector.tokens_of(&states, chosen.documents.clone())?;
        let layouts = [queries.layout().clone(), chosen.documents];
        let of =
            TrainingScores::from_winners(chosen.winners, layouts, &slice.pairing, &scores.options)?;
        let options = BackwardOptions::default();
        let gradients =
            device.backward::<T, T>(queries, &tokens, of.with_grad(&grads), &options)?;
        let sides = [
            (&mut found.queries, &gradients.queries),
            (&mut found.query_weights, &gradients.weights),
        ];
        for (sum, part) in sides {
            sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        let of_rows = Active::new(&rows, &gradients.documents, dim);
        // Mostly all of them.
        let states = if of_rows.rows.len() == rows.len() {
            states
        } else {
            projector.gathered(&of_rows.rows)?
        };
        let mut of_hidden = zeroed(of_rows.rows.len() as u64 * n as u64)?;
        sums.add(&states, &of_rows.gradients, &mut of_hidden)?;
        of_rows.add_to(&of_hidden, &mut found.documents.hidden, n);
    }
    (found.documents.weight, found.documents.bias) = sums.into_gradients()?;
    Ok(found)
}

/// As [`Device::project_backward`], of a gradient that is as long as it must be.
pub(super) fn project_backward<T: Element>(
    projector: &Projector<'_, T>,
    hidden: &TokenLayout,
    dim: usize,
    grad_tokens: &[f32],
) -> Result<ProjectionGradients> {
    let n = hidden.dim();
    let is_used = hidden.used_rows()?;
    let mask = projector.mask()?;
    let is_valid = |row: usize| is_used[row] && mask.as_ref().is_none_or(|mask| mask[row] != 0);
    let rows: Vec<u32> =
        (0..hidden.rows()).filter(|&row| is_valid(row)).map(|row| row as u32).collect();
    let rows_max = (GATHERED_BYTES_MAX / row_bytes::<T>(dim, n)).max(1);
    let mut sums = projector.sums()?;
    let mut of_hidden = zeroed(hidden.rows() as u64 * n as u64)?;
    for rows in rows.chunks(rows_max) {
        let mut gradients = Vec::new();
        reserve(&mut gradients, rows.len() * dim)?;
        for &row in rows {
            gradients.extend_from_slice(&grad_tokens[row as usize * dim..][..dim]);
        }
        let of_rows = Active::new(rows, &gradients, dim);
        if of_rows.rows.is_empty() {
            continue;
        }
        let mut found = zeroed(of_rows.rows.len() as u64 * n as u64)?;
        let states = projector.gathered(&of_rows.rows)?;
        sums.add(&states, &of_rows.gradients, &mut found)?;
        of_rows.add_to(&found, &mut of_hidden, n);
    }
    let (weight, bias) = sums.into_gradients()?;
    Ok(ProjectionGradients { hidden: of_hidden, weight, bias })
}

/// Bytes of a row that is gathered, or of the gradient of its token.
fn row_bytes<T: Element>(dim: usize, hidden: usize) -> usize {
    (hidden * size_of::<T>()).max(dim * size_of::<f32>())
}

/// Rows that have a gradient, and the gradients of their tokens. What others hold may be anything.
struct Active {
    rows: Vec<u32>,
    gradients: Vec<f32>,
}

impl Active {
    fn new(rows: &[u32], gradients: &[f32], dim: usize) -> Active {
        // A NaN is one.
        let has_gradient = |row: &[f32]| row.iter().any(|&x| x != 0.0);
        let all = rows.iter().zip(gradients.chunks_exact(dim));
        let active: Vec<(&u32, &[f32])> = all.filter(|(_, row)| has_gradient(row)).collect();
        Active {
            rows: active.iter().map(|&(&row, _)| row).collect(),
            gradients: active.iter().flat_map(|&(_, gradient)| gradient).copied().collect(),
        }
    }

    /// Adds the gradients of the rows to theirs among those of all.
    fn add_to(&self, found: &[f32], all: &mut [f32], n: usize) {
        for (&row, found) in self.rows.iter().zip(found.chunks_exact(n)) {
            let sums = &mut all[row as usize * n..][..n];
            sums.iter_mut().zip(found).for_each(|(sum, x)| *sum += x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::pairing::Pairing;

    /// Winners keep their rows, and their order, in the matrix of what was chosen.
    #[test]
    fn winners_are_counted_among_chosen_rows() {
        let queries = TokenLayout::padded(2, 2, 4).unwrap();
        // Rows 1 to 3, 5 to 9, which overlap with rows 8 and 9, and nothing.
        let documents = TokenLayout::scattered(10, 4, &[1, 5, 8, 3], &[3, 5, 2, 0]).unwrap();
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).unwrap();
        // Two for each document of a query; 7 is no row of its document.
        let winners = [2, 0, 4, -1, 0, 1, -1, -1, 2, 7, 4, 4, 1, 1, -1, 0];
        let chosen = Chosen::new(&problem, 10, &winners).unwrap();
        assert_eq!(chosen.rows, [1, 3, 8, 9]);
        assert_eq!(chosen.documents.segments(), [[0, 2], [2, 2], [2, 2], [1, 0]]);
        assert_eq!(chosen.winners, [1, 0, 1, -1, 0, 1, -1, -1, 1, -1, 1, 1, 1, 1, -1, -1]);
    }

    #[test]
    fn rows_without_a_gradient_are_left_out() {
        let gradients = [0.0, 0.0, -1.0, 0.0, 0.0, f32::NAN, -0.0, 0.0];
        let active = Active::new(&[2, 3, 5, 9], &gradients, 2);
        assert_eq!(active.rows, [3, 5]);
        let mut all = vec![0.0; 6];
        Active::new(&[2], &[1.0], 1).add_to(&[3.0, 4.0], &mut all, 2);
        assert_eq!(all, [0.0, 0.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
