//! A query's loss and the gradients of its scores: a block per row, or a warp.
//!
//! Three passes over the row: its largest score, the sum of exponentials, gradients. Logarithms
//! are to the base 2 until the end. With x a score, m the largest of its row and s = log₂ e / T,
//!
//! ```text
//! w = (x − m) · s      p = 2^w / Σ 2^w      log₂ p = w − log₂ Σ 2^w
//! ```
//!
//! A row that holds NaN or +∞, or nothing but −∞, has a w that is NaN, and so a sum, and so all
//! gradients.

use crate::abi::params::loss::{RowsParams, Sum, THREADS, rows_per_block};
use crate::loss::reduce::Sharing;
use crate::ptx::global::{load_u32, store_u32};
use crate::ptx::math::{exp2, fma, log2};
use crate::ptx::thread::{block_idx_x, thread_idx_x};

/// Loads in flight per thread and row.
const UNROLL: u32 = 4;

/// The threads of a row and the row itself.
#[derive(Clone, Copy)]
struct Row {
    sharing: Sharing,
    /// Index of this thread, and the number of threads.
    thread: u32,
    n_threads: u32,
    query: u32,
    n_documents: u32,
}

impl Row {
    /// The row of this thread; `None` where there are no more.
    #[inline(always)]
    fn of_thread(params: &RowsParams) -> Option<Row> {
        let (block, thread) = (block_idx_x(), thread_idx_x());
        let n_rows = rows_per_block(params.n_documents);
        let is_block = n_rows == 1;
        let (query, thread, n_threads) = match is_block {
            true => (block, thread, THREADS as u32),
            false => (block * n_rows + thread / 32, thread % 32, 32),
        };
        let (sharing, n_documents) = (Sharing { is_block }, params.n_documents);
        (query < params.n_queries).then_some(Row { sharing, thread, n_threads, query, n_documents })
    }

    /// Address of the row in a matrix `[n_queries, n_documents]` of four bytes each.
    #[inline(always)]
    fn address(&self, matrix: u64) -> u64 {
        matrix + u64::from(self.query) * u64::from(self.n_documents) * 4
    }

    /// Calls `each` with this thread's documents and their numbers in `N` matrices.
    ///
    /// # Safety
    /// The matrices must have the row.
    #[inline(always)]
    unsafe fn documents<const N: usize>(
        &self,
        matrices: [u64; N],
        mut each: impl FnMut(u32, [f32; N]),
    ) {
        let rows = matrices.map(|matrix| self.address(matrix));
        let mut first = self.thread;
        while first < self.n_documents {
            let mut values = [[0.0f32; N]; UNROLL as usize];
            let mut k = 0;
            while k < UNROLL {
                // Behind the last document it is looked at again, and not used.
                let document = (first + k * self.n_threads).min(self.n_documents - 1);
                values[k as usize] = rows.map(|row| {
                    // SAFETY: the row has the document; nothing writes scores while this runs.
                    f32::from_bits(unsafe { load_u32(row + u64::from(document) * 4) })
                });
                k += 1;
            }
            k = 0;
            while k < UNROLL {
                let document = first + k * self.n_threads;
                if document < self.n_documents {
                    each(document, values[k as usize]);
                }
                k += 1;
            }
            first += UNROLL * self.n_threads;
        }
    }

    /// The largest numbers of the row in `N` matrices.
    ///
    /// # Safety
    /// As [`Row::documents`], by all threads of the row.
    #[inline(always)]
    unsafe fn max<const N: usize>(&self, matrices: [u64; N]) -> [f32; N] {
        let mut max = [f32::NEG_INFINITY; N];
        // SAFETY: the caller's promise.
        unsafe {
            self.documents(matrices, |_, values| {
                let mut n = 0;
                while n < N {
                    max[n] = max[n].max(values[n]);
                    n += 1;
                }
            });
            max.map(|max| self.sharing.max(max))
        }
    }

    /// Stores a document's gradient.
    ///
    /// # Safety
    /// The row must have the document, which is this thread's.
    #[inline(always)]
    unsafe fn store(&self, params: &RowsParams, document: u32, difference: f32) {
        let grad = params.grad_scale.of(difference);
        let address = self.address(params.grad_scores) + u64::from(document) * 4;
        // SAFETY: the caller's promise.
        unsafe { store_u32(address, grad.to_bits()) };
    }

    /// Stores the row's loss, given to the base 2.
    ///
    /// # Safety
    /// All threads of the row must have it.
    #[inline(always)]
    unsafe fn store_loss(&self, params: &RowsParams, loss: f32) {
        if self.thread == 0 {
            let loss = loss * core::f32::consts::LN_2;
            // SAFETY: the host sized the losses.
            unsafe { store_u32(params.losses + u64::from(self.query) * 4, loss.to_bits()) };
        }
    }
}

/// w of the module for a score and the largest of its row. Halves of scores have a difference that
/// an f32 holds.
#[inline(always)]
fn exponent(params: &RowsParams, x: f32, max: f32) -> f32 {
    params.scale.of(fma(x, 0.5, max * -0.5))
}

/// The cross-entropy of a row with its positive.
///
/// # Safety
/// `params` must describe memory of the sizes that they say; all threads of the block.
#[inline(always)]
pub unsafe fn contrastive(params: &RowsParams) {
    let Some(row) = Row::of_thread(params) else { return };
    // SAFETY: the caller's promise; positives are columns of the row.
    unsafe {
        let positive = load_u32(params.targets + u64::from(row.query) * 4);
        let [max] = row.max([params.scores]);
        let own = load_u32(row.address(params.scores) + u64::from(positive) * 4);
        let own = exponent(params, f32::from_bits(own), max);
        // 1 − p of the positive would lose what a query that is nearly right still has to learn.
        let mut others = Sum::ZERO;
        row.documents([params.scores], |document, [x]| {
            let power = exp2(exponent(params, x, max));
            others.add(if document == positive { 0.0 } else { power });
        });
        let others = row.sharing.sum(others.value());
        let sum = others + exp2(own);
        let inverse = 1.0 / sum;
        row.documents([params.scores], |document, [x]| {
            let power = match document == positive {
                true => -others,
                false => exp2(exponent(params, x, max)),
            };
            row.store(params, document, power * inverse);
        });
        row.store_loss(params, log2(sum) - own);
    }
}

/// The divergence of a row from the teacher's.
///
/// # Safety
/// As [`contrastive`].
#[inline(always)]
pub unsafe fn distillation(params: &RowsParams) {
    let Some(row) = Row::of_thread(params) else { return };
    let both = [params.scores, params.targets];
    // SAFETY: the caller's promise.
    unsafe {
        let [max, teacher_max] = row.max(both);
        let (mut sum, mut teacher_sum) = (Sum::ZERO, Sum::ZERO);
        row.documents(both, |_, [x, t]| {
            sum.add(exp2(exponent(params, x, max)));
            teacher_sum.add(exp2(exponent(params, t, teacher_max)));
        });
        let sum = row.sharing.sum(sum.value());
        let teacher_sum = row.sharing.sum(teacher_sum.value());
        let (log_sum, teacher_log_sum) = (log2(sum), log2(teacher_sum));
        let (inverse, teacher_inverse) = (1.0 / sum, 1.0 / teacher_sum);
        let mut loss = Sum::ZERO;
        row.documents(both, |document, [x, t]| {
            let (w, v) = (exponent(params, x, max), exponent(params, t, teacher_max));
            let target = exp2(v) * teacher_inverse;
            row.store(params, document, exp2(w) * inverse - target);
            // 0 · log 0 would be NaN.
            let term = target * ((v - teacher_log_sum) - (w - log_sum));
            loss.add(if target == 0.0 { 0.0 } else { term });
        });
        row.store_loss(params, row.sharing.sum(loss.value()));
    }
}
