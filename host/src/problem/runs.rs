//! Divides a matrix into runs of rows: disjoint parts that no item crosses.

use std::ops::Range;

use crate::error::Result;
use crate::runtime::alloc::{fill, reserve};
use crate::tokens::layout::TokenLayout;

/// Disjoint runs of rows, divided where no item continues: items share rows only within a run.
#[derive(Debug)]
pub(crate) struct Runs {
    /// Ascending and disjoint.
    pub rows: Vec<Range<usize>>,
    /// The run of each item that has tokens.
    pub of_item: Vec<u32>,
}

impl Runs {
    pub(crate) fn new(layout: &TokenLayout) -> Result<Runs> {
        let mut items: Vec<u32> = Vec::new();
        reserve(&mut items, layout.n_items())?;
        let n_items = layout.n_items() as u32;
        items.extend((0..n_items).filter(|&i| layout.item_len(i as usize) > 0));
        items.sort_unstable_by_key(|&i| layout.segments()[i as usize][0]);
        let mut runs = Runs { rows: Vec::new(), of_item: Vec::new() };
        reserve(&mut runs.rows, items.len())?;
        fill(&mut runs.of_item, layout.n_items(), 0)?;
        for i in items {
            let rows = layout.item_rows(i as usize);
            match runs.rows.last_mut() {
                Some(run) if rows.start < run.end => run.end = run.end.max(rows.end),
                _ => runs.rows.push(rows),
            }
            runs.of_item[i as usize] = runs.rows.len() as u32 - 1;
        }
        Ok(runs)
    }

    /// The part of a matrix `[rows, dim]` that belongs to each run.
    pub(crate) fn parts<'a>(
        &self,
        mut matrix: &'a mut [f32],
        dim: usize,
    ) -> Result<Vec<&'a mut [f32]>> {
        let mut parts = Vec::new();
        reserve(&mut parts, self.rows.len())?;
        let mut end = 0;
        for run in &self.rows {
            let (part, rest) = matrix[(run.start - end) * dim..].split_at_mut(run.len() * dim);
            parts.push(part);
            (matrix, end) = (rest, run.end);
        }
        Ok(parts)
    }
}
