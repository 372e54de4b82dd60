//! Items that the device alone knows: their rows, found from lists of the device without a wait.

use maxsim::Device;
use maxsim::Result;
use maxsim::format::{RawIndices, RawItems, RawItemsOut};
use pyo3::prelude::*;

use crate::errors::shape;
use crate::side::{Memory, PACKED, PADDED, SCATTERED, entries};
use crate::streams::{self, Call, finished};

/// Items of a matrix, by lists in device memory.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct DeviceItems(
    /* kind, as `_sides.py` numbers it */ u8,
    /* number of items */ usize,
    /* rows of the longest, or more */ usize,
    /* rows of the matrix */ usize,
    /* rows from a padded item to the next */ usize,
    /* offsets or starts */ Option<Memory>,
    /* lengths */ Option<Memory>,
    /* whether these have 64 bits */ bool,
);

/// Which of the items are wanted: a list of ids, and whether these have 64 bits.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct DeviceIds(Memory, bool);

/// Where what is found goes.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Found(
    /* a byte an item, 1 where it is invalid */ Memory,
    /* first row and length of each item, two i32 */ Option<Memory>,
    /* a mask of the items' rows, a byte each */ Option<Memory>,
    /* a mask that this one also has */ Option<Memory>,
);

impl DeviceItems {
    fn items(&self, ids: Option<DeviceIds>) -> Result<RawItems> {
        let DeviceItems(kind, n, longest, rows, stride, first, lengths, is_wide) = *self;
        let list = |argument, memory: Option<Memory>, len| {
            let memory = memory.ok_or_else(|| shape(argument, "a list", "none"))?;
            memory.check(argument, len)?;
            Ok(indices(memory, is_wide))
        };
        let items = match kind {
            PADDED => {
                let items = RawItems::padded(n, longest, stride, rows);
                match lengths {
                    Some(_) => items.with_lengths(list("lengths", lengths, n)?),
                    None => items,
                }
            }
            PACKED => RawItems::packed(n, list("offsets", first, n + 1)?, rows, longest),
            SCATTERED => {
                let lists = [list("starts", first, n)?, list("lengths", lengths, n)?];
                RawItems::scattered(n, lists, rows, longest)
            }
            kind => return Err(shape("kind", "0 to 2", kind)),
        };
        Ok(match ids {
            Some(DeviceIds(ids, is_wide)) => items.with_ids(ids.1, indices(ids, is_wide)),
            None => items,
        })
    }
}

fn indices(memory: Memory, is_wide: bool) -> RawIndices {
    match is_wide {
        true => RawIndices::I64(memory.0),
        false => RawIndices::I32(memory.0),
    }
}

impl Found {
    fn out(&self, n_items: usize, longest: usize) -> Result<RawItemsOut> {
        let Found(invalid, segments, mask, mask_in) = *self;
        let address = |argument, memory: Option<Memory>, len| {
            memory.iter().try_for_each(|memory| memory.check(argument, len))?;
            Ok(memory.map(|memory| memory.0))
        };
        invalid.check("invalid", n_items)?;
        let n_rows = entries(n_items, longest)?;
        let mut out = RawItemsOut::new(invalid.0);
        if let Some(segments) = address("segments", segments, entries(n_items, 2)?)? {
            out = out.segments(segments);
        }
        let mask_in = address("mask", mask_in, n_rows)?;
        if let Some(mask) = address("mask", mask, n_rows)? {
            out = out.mask(mask, mask_in);
        }
        Ok(out)
    }
}

/// Enqueues what finds the rows of items.
#[pyfunction]
pub fn cuda_write_segments(
    py: Python<'_>,
    call: Call,
    items: DeviceItems,
    ids: Option<DeviceIds>,
    found: Found,
) -> PyResult<()> {
    finished(py.detach(|| {
        let device = Device::cuda(call.0)?;
        let raw = items.items(ids)?;
        let out = found.out(raw.n_items(), items.2)?;
        // SAFETY: the Python caller gives tensors that torch frees in the order of the stream, and
        // of which the sizes have been checked.
        unsafe {
            streams::enqueue(&device, &call, 0, |stream| match raw.n_items() {
                0 => Ok(()),
                _ => stream.write_segments(&raw, out),
            })
        }
    }))
}
