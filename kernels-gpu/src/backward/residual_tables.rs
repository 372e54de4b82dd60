//! Adds the gradients of a window's rows to the parts of the centroids' and of the weights'
//! gradients: a warp per unit, of units as far apart as the grid has warps.
//!
//! The rows of a unit that lie in the window follow one another in its list, since rows rise there.
//! As many lanes as a row has chunks take a row, up to 32, and as many rows at once as fit. A lane
//! keeps the sums of its elements in registers, and those of each bucket in shared memory, where a
//! bank is a lane's own.

use crate::abi::params::backward::residual::{TABLES_WARPS, TablesParams, UNIT_ROWS};
use crate::abi::params::backward::{Output, Rows};
use crate::abi::residual_chunk::{CHUNK_LEN, place, slot};
use crate::primitives::row_vector::sum::add_slots;
use crate::primitives::row_vector::{Columns, F16, Sums};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{
    load_f32, load_u8_if, load_u16_if, load_u32, load_u32_if, load_u32x2_if, load_u32x4_if,
    store_u32,
};
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::ptx::warp::sync_warp;

/// Adds this warp's units.
///
/// # Safety
/// `params` must describe gradients of earlier kernels of the same stream as [`TablesParams`] says;
/// all threads of the block.
#[inline(always)]
pub unsafe fn tables(params: &TablesParams) {
    let nbits = params.tokens.nbits;
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let own = block_idx_x() * TABLES_WARPS + warp;
    // Bucket b of lane l is word 32 b + l of the warp's.
    let shared = dynamic_shared() + (warp << nbits) * 128;
    // SAFETY: the host gives the block that much shared memory, and a part of the weights to each
    // warp of the grid; the whole warp takes every turn.
    unsafe {
        let mut bucket = 0;
        while bucket < 1 << nbits {
            store_shared_f32(shared + bucket * 128 + lane * 4, 0.0);
            bucket += 1;
        }
        let mut unit = own;
        while unit < params.n_units {
            let [first, last] = in_window(params, unit);
            let mut column = if first < last { 0 } else { params.n_columns };
            while column < params.n_columns {
                add_rows(params, unit, column, [first, last], shared + lane * 4);
                column += 1;
            }
            unit += grid_dim_x() * TABLES_WARPS;
        }
        sync_warp();
        bucket = lane;
        while bucket < 1 << nbits {
            let mut sum = 0.0;
            let mut i = 0;
            while i < 32 {
                // From the lane's own on, so that no two lanes read the same bank.
                sum += load_shared_f32(shared + bucket * 128 + (lane + i) % 32 * 4);
                i += 1;
            }
            let address = params.weight_parts + ((u64::from(own) << nbits) + u64::from(bucket)) * 4;
            store_u32(address, (load_f32(address) + sum).to_bits());
            bucket += 32;
        }
    }
}

/// Range of the unit's list whose rows lie in the window.
///
/// # Safety
/// There must be the unit.
#[inline(always)]
unsafe fn in_window(params: &TablesParams, unit: u32) -> [u32; 2] {
    // SAFETY: a unit has a first row and one behind its last.
    unsafe {
        let start = load_u32(params.units + u64::from(unit) * 4);
        let end = load_u32(params.units + u64::from(unit + 1) * 4);
        let first_row = params.window.first_row;
        let first = lower_bound(params.rows, start, end, first_row);
        [first, lower_bound(params.rows, first, end, first_row + params.window.n_rows)]
    }
}

/// The first place of a rising list from `start` on whose row is `row` or more; `end` where there
/// is none.
///
/// # Safety
/// The list must have the places.
#[inline(always)]
unsafe fn lower_bound(rows: u64, mut start: u32, end: u32, row: u32) -> u32 {
    const { assert!(UNIT_ROWS.is_power_of_two()) };
    let mut step = UNIT_ROWS as u32;
    while step > 0 {
        // All rows before `start` are less than `row`; the step is taken if that stays so.
        let place = start + step - 1;
        // SAFETY: a place of the list.
        if place < end && unsafe { load_u32(rows + u64::from(place) * 4) } < row {
            start += step;
        }
        step /= 2;
    }
    start
}

/// Adds rows of a unit, of one column.
///
/// # Safety
/// A whole warp; the rows of the list `first .. last` must be of the unit and in the window.
/// `shared` is the address of the lane's sum of bucket 0.
#[inline(always)]
unsafe fn add_rows(
    params: &TablesParams,
    unit: u32,
    column: u32,
    [first, last]: [u32; 2],
    shared: u32,
) {
    let TablesParams { tokens, window, lanes_log2, n_columns, .. } = params;
    let source = Rows {
        base: 0,
        pitch_bytes: 0,
        dim: window.dim,
        lanes_log2: *lanes_log2,
        n_columns: *n_columns,
        aligned: 1,
    };
    // A chunk is as many elements as a lane reads of a row of f16.
    let columns = Columns::new::<F16>(&source, column);
    let chunk = columns.element / CHUNK_LEN as u32;
    let buckets = tokens.residuals + u64::from(slot(chunk as usize) as u32 * tokens.nbits);
    let (places, mask) = (places(tokens.nbits), (1 << tokens.nbits) - 1);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums: Sums = core::mem::zeroed();
        let mut next = first;
        while next < last {
            let index = next + columns.slot;
            let is_there = index < last;
            let row = load_u32_if(params.rows + u64::from(index) * 4, u32::from(is_there));
            let n = if is_there { columns.n_elements } else { 0 };
            let grad = load(window.address(row.wrapping_sub(window.first_row), columns.element), n);
            let address = buckets + u64::from(row) * u64::from(tokens.row_bytes);
            let word = load_buckets(tokens.nbits, address, u32::from(n > 0));
            unroll!(E in 0..8 => {
                if (E as u32) < n {
                    let bucket = (word >> (places >> (8 * E) & 63)) as u32 & mask;
                    let address = shared + bucket * 128;
                    store_shared_f32(address, load_shared_f32(address) + grad[E]);
                    sums[E] += grad[E];
                }
            });
            next += 32 >> columns.lanes_log2;
        }
        add_slots::<F16>(&columns, &mut sums);
        let out = Output {
            base: params.centroid_parts,
            element: Output::F32,
            adds: 1,
            dim: window.dim,
            aligned: u32::from(window.dim.is_multiple_of(4)),
        };
        crate::backward::output::store::<F16>(&out, &columns, u64::from(unit), &sums);
    }
}

/// Positions of the buckets of a chunk in it, a byte for each.
#[inline(always)]
fn places(nbits: u32) -> u64 {
    const fn of(nbits: u32) -> u64 {
        let (mut places, mut i) = (0, 0);
        while i < CHUNK_LEN as u32 {
            places |= (place(nbits, i) as u64) << (8 * i);
            i += 1;
        }
        places
    }
    match nbits {
        1 => const { of(1) },
        2 => const { of(2) },
        4 => const { of(4) },
        _ => const { of(8) },
    }
}

/// The buckets of a chunk where `condition` is not 0.
///
/// # Safety
/// Where `condition` is not 0, they must lie at `address`.
#[inline(always)]
unsafe fn load_buckets(nbits: u32, address: u64, condition: u32) -> u64 {
    let of = |n: u32| condition & u32::from(nbits == n);
    // SAFETY: the caller's promise. One of these is loaded, and the others are 0.
    unsafe {
        let few = load_u8_if(address, of(1)) | load_u16_if(address, of(2));
        let [low, high] = load_u32x2_if(address, of(8));
        u64::from(few | load_u32_if(address, of(4)) | low) | u64::from(high) << 32
    }
}

/// Up to `n` gradients of a lane, and zeros behind them.
///
/// # Safety
/// They must be at `address`, and not be written while the kernel runs.
#[inline(always)]
unsafe fn load(address: u64, n: u32) -> [f32; CHUNK_LEN] {
    let mut grad = [0.0f32; CHUNK_LEN];
    // SAFETY: the caller's promise.
    unsafe {
        if n == CHUNK_LEN as u32 && address.is_multiple_of(16) {
            let [a, b, c, d] = load_u32x4_if(address, 1).map(f32::from_bits);
            let [e, f, g, h] = load_u32x4_if(address + 16, 1).map(f32::from_bits);
            return [a, b, c, d, e, f, g, h];
        }
        unroll!(E in 0..8 => {
            let there = u32::from((E as u32) < n);
            grad[E] = f32::from_bits(load_u32_if(address + E as u64 * 4, there));
        });
    }
    grad
}
