//! Gradients of rows that are normalised or have a weight w: sources times what their rows are
//! multiplied by, and the way from the gradient ∂x̂ with respect to a normalised row x̂ = r · x of
//! weight 1 to that of the row and its weight,
//!
//! `∂x = w · r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩)`, or `w · r · ∂x̂` where rows are not normalised (r = 1) or
//! ‖x‖² was too small for r to depend on it, and `∂w = ⟨x̂, ∂x̂⟩`. In angular scores rows of zeros
//! have none. As many lanes as a row has
//! chunks of 16 bytes, up to 32, keep the first chunk of each lane; they read others twice.

use crate::abi::params::backward::{NO_ROW, Pairs};
use crate::ptx::global::load_u32;
#[cfg(maxsim_arch = "sm_80")]
pub use project::project;

/// The gradient of a score, times what the source row `row` is normalised by, where rows are.
///
/// # Safety
/// The matrix of the sources must have the row, unless it is [`NO_ROW`].
#[inline(always)]
pub unsafe fn scaled(pairs: &Pairs, row: u32, factor: f32) -> f32 {
    if (pairs.source_norms == 0) | (row == NO_ROW) {
        return factor;
    }
    // SAFETY: four bytes per row.
    factor * f32::from_bits(unsafe { load_u32(pairs.source_norms + u64::from(row) * 4) })
}

#[cfg(maxsim_arch = "sm_80")]
mod project {
    use core::hint::assert_unchecked;

    use crate::abi::params::SQUARE_MIN;
    use crate::abi::params::backward::{ProjectParams, WARPS};
    use crate::backward::output::store_lane;
    use crate::primitives::row_vector::{Columns, Sums, VectorElement, unroll};
    use crate::primitives::work_tile::load_weight;
    use crate::ptx::global::{load_f32, read_u32x4, store_u32};
    use crate::ptx::math::{fma, sqrt};
    use crate::ptx::thread::{block_idx_x, thread_idx_x};
    use crate::ptx::warp::{ballot, lane_idx, shuffle_xor_by};

    /// Writes the gradients of this warp's rows, or adds them to what is there.
    ///
    /// # Safety
    /// `params` must describe sums of earlier kernels of the same stream as [`ProjectParams`] says;
    /// all threads of the block.
    #[inline(always)]
    pub unsafe fn project<T: VectorElement>(params: &ProjectParams) {
        // SAFETY: the caller's promise.
        unsafe {
            match params.rows.aligned {
                0 => of_rows::<T, false>(params),
                _ => of_rows::<T, true>(params),
            }
        }
    }

    /// # Safety
    /// As [`project`]; `ALIGNED` is that of the rows.
    #[inline(always)]
    unsafe fn of_rows<T: VectorElement, const ALIGNED: bool>(params: &ProjectParams) {
        let lanes = 1 << params.rows.lanes_log2;
        let unit = block_idx_x() * WARPS + thread_idx_x() / 32;
        let adds = params.out.adds != 0;
        // SAFETY: the host launches warps for all rows, and the matrices have them; the whole warp
        // takes every turn.
        unsafe {
            assert_unchecked(params.rows.n_columns != 0);
            let columns = Columns::new::<T>(&params.rows, 0);
            let row = unit * (32 / lanes) + columns.slot;
            let has_row = row < params.n_rows;
            // What rows of one column, most of them, are read as once.
            let first = Part::load::<T, ALIGNED>(params, &columns, row, has_row);
            // As a weight: 1 where there is none.
            let [norm, weight] = match has_row {
                true => [load_weight(params.norms, row), load_weight(params.weights, row)],
                false => [0.0; 2],
            };
            let mut product = 0.0;
            let mut is_there = first.multiply::<T>(norm, &mut product);
            let mut is_zero = first.is_zero::<T>();
            let mut column = 1;
            while column < params.rows.n_columns {
                let columns = Columns::new::<T>(&params.rows, column);
                let part = Part::load::<T, ALIGNED>(params, &columns, row, has_row);
                is_there |= part.multiply::<T>(norm, &mut product);
                is_zero &= part.is_zero::<T>();
                column += 1;
            }
            let mut mask = lanes / 2;
            while mask > 0 {
                product += shuffle_xor_by(product, mask);
                mask /= 2;
            }
            let of_row = (u32::MAX >> (32 - lanes)) << (lane_idx() & !(lanes - 1));
            // Else no token chose the row, its gradients are 0 or it has no direction: zeros,
            // whatever it holds.
            let mut is_chosen = ballot(u32::from(is_there)) & of_row != 0;
            if params.skips_zeros != 0 {
                is_chosen &= ballot(u32::from(!is_zero)) & of_row != 0;
            }
            if !has_row || !is_chosen && adds {
                return;
            }
            let grad_weight = params.grad_weights + u64::from(row) * 4;
            if params.grad_weights != 0 && columns.element == 0 {
                let before = if adds { load_f32(grad_weight) } else { 0.0 };
                store_u32(grad_weight, (before + if is_chosen { product } else { 0.0 }).to_bits());
            }
            let is_constant = params.norms == 0 || norm == 1.0 / sqrt(SQUARE_MIN);
            let factors = Factors {
                norm,
                weight,
                along: if is_constant { None } else { Some(product) },
                is_chosen,
            };
            store_lane::<T>(&params.out, &columns, row.into(), &first.projected::<T>(&factors));
            let mut column = 1;
            while column < params.rows.n_columns {
                let columns = Columns::new::<T>(&params.rows, column);
                let part = Part::load::<T, ALIGNED>(params, &columns, row, true);
                store_lane::<T>(&params.out, &columns, row.into(), &part.projected::<T>(&factors));
                column += 1;
            }
        }
    }

    /// What the gradient of a row is made with.
    struct Factors {
        norm: f32,
        weight: f32,
        /// ⟨x̂, ∂x̂⟩, where r depends on the row.
        along: Option<f32>,
        /// Whether some sum is not 0, and the row has a direction where that matters.
        is_chosen: bool,
    }

    /// A lane's elements of a row, and of the gradient ∂x̂; zeros behind the end of both.
    struct Part {
        elements: [u32; 4],
        sums: Sums,
        n_elements: u32,
    }

    impl Part {
        /// # Safety
        /// The matrices must have the row, if `has_row`; `ALIGNED` is that of the rows. Where sums
        /// become the gradient, nothing may be written to the lane's elements before.
        #[inline(always)]
        unsafe fn load<T: VectorElement, const ALIGNED: bool>(
            params: &ProjectParams,
            columns: &Columns,
            row: u32,
            has_row: bool,
        ) -> Part {
            let n_elements = if has_row { columns.n_elements } else { 0 };
            let first = u64::from(row) * u64::from(params.out.dim) + u64::from(columns.element);
            let address = params.sums + first * 4;
            let mut sums = [0.0; 8];
            // SAFETY: the caller's promise. Sums are aligned where the gradient is: its rows have a
            // multiple of eight elements then, and the host aligns the sums' first.
            unsafe {
                let elements = columns.load::<T, ALIGNED>(row, u32::from(n_elements > 0));
                if params.out.aligned == 0 {
                    unroll!(e in eight => if (e as u32) < n_elements {
                        sums[e] = load_f32(address + e as u64 * 4);
                    });
                } else if n_elements > 0 {
                    unroll!(k in 0 1 => if k < T::N / 4 {
                        let four = read_u32x4(address + k as u64 * 16).map(f32::from_bits);
                        unroll!(e in four => sums[4 * k + e] = four[e]);
                    });
                }
                Part { elements, sums, n_elements }
            }
        }

        /// Whether the lane's elements are all 0.
        #[inline(always)]
        fn is_zero<T: VectorElement>(&self) -> bool {
            let elements = T::widen(self.elements);
            let mut is_zero = true;
            // Elements behind the row have unspecified values.
            unroll!(e in eight => {
                is_zero &= (e as u32) >= self.n_elements || elements[e] == 0.0;
            });
            is_zero
        }

        /// The elements times `norm`: those of x̂.
        #[inline(always)]
        fn unit<T: VectorElement>(&self, norm: f32) -> Sums {
            let mut unit = T::widen(self.elements);
            // Elements behind the row have unspecified values.
            unroll!(e in eight => {
                unit[e] = if (e as u32) < self.n_elements { norm * unit[e] } else { 0.0 };
            });
            unit
        }

        /// Adds the products with x̂, and says whether some sum is not 0.
        #[inline(always)]
        fn multiply<T: VectorElement>(&self, norm: f32, product: &mut f32) -> bool {
            let unit = self.unit::<T>(norm);
            let mut is_there = false;
            unroll!(e in eight => if e < T::N {
                *product = fma(unit[e], self.sums[e], *product);
                is_there |= self.sums[e] != 0.0;
            });
            is_there
        }

        /// The gradient of the elements. A zero is positive, as one that is added to zeros.
        #[inline(always)]
        fn projected<T: VectorElement>(&self, factors: &Factors) -> Sums {
            let &Factors { norm, weight, along, is_chosen } = factors;
            let unit = self.unit::<T>(norm);
            let mut sums = [0.0; 8];
            unroll!(e in eight => if e < T::N && is_chosen {
                let sum = match along {
                    Some(along) => self.sums[e] - unit[e] * along,
                    None => self.sums[e],
                };
                sums[e] = weight * (norm * sum) + 0.0;
            });
            sums
        }
    }
}
