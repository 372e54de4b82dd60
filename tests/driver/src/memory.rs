//! The memory of the stand-in.

use std::alloc::{Layout, dealloc};
use std::ptr;

use super::{Count, INVALID_VALUE, OK, WATCHED_BYTES, count, state};

/// The layout of so many bytes of memory.
pub(crate) fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(1), 512).expect("a layout")
}

/// Fills memory that was allocated here; of other memory the address may be anything.
pub(crate) fn fill(to: u64, byte: u8, len: usize) -> u32 {
    let state = state();
    let watched = state.watched;
    if to >= watched.start && to < watched.start + WATCHED_BYTES {
        let is_inside = to + len as u64 <= watched.start + watched.len;
        count(if is_inside { Count::Fills } else { Count::Violations });
    }
    if let Some((&start, &size)) = state.allocations.range(..=to).next_back()
        && to + len as u64 <= start + size as u64
    {
        // SAFETY: `cuMemAlloc_v2` allocated it, with this length, and the lock keeps it.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(to as usize).write_bytes(byte, len) };
    }
    OK
}

/// Frees memory that was allocated here.
pub(crate) fn free(address: u64) -> u32 {
    count(Count::Frees);
    let Some(len) = state().allocations.remove(&address) else { return INVALID_VALUE };
    // SAFETY: `cuMemAlloc_v2` allocated it, with this length.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(address as usize), layout(len)) };
    OK
}
