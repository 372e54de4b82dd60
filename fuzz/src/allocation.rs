//! An allocator that counts, so that a small file which asks for much memory is a finding.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that an input of `len` bytes may ask for at once, in one piece: what it says may be held
/// several times over, and in wider types than it is stored in.
const fn bytes_max(len: usize) -> usize {
    (4 << 20) + 64 * len
}

/// The largest piece that has been asked for since [`within`] began.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which notes the largest piece.
pub struct Limited;

fn note(layout: Layout) {
    LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's own, with the same arguments.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs a reader of `len` bytes.
///
/// # Panics
/// Where it asked for more memory than a file of that size should.
pub fn within<T>(len: usize, read: impl FnOnce() -> T) -> T {
    LARGEST.store(0, Ordering::Relaxed);
    let result = read();
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= bytes_max(len), "{len} bytes made the library ask for {largest}");
    result
}
