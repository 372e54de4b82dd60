//! Calls that fail where a test asks for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Calls until one fails; 0 = none does.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// The code that it returns.
static CODE: AtomicU32 = AtomicU32::new(0);

/// Whether only calls that allocate memory are counted.
static IS_OF_MEMORY: AtomicBool = AtomicBool::new(false);

/// Whether all later calls fail, too, as those of a device that is lost.
static IS_LASTING: AtomicBool = AtomicBool::new(false);

/// Calls that failed.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Has the call of this number from now on fail, the first being 1; 0 for none.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_fail(number: u64, code: u32, is_of_memory: bool, is_lasting: bool) {
    CODE.store(code, Ordering::Relaxed);
    IS_OF_MEMORY.store(is_of_memory, Ordering::Relaxed);
    IS_LASTING.store(is_lasting, Ordering::Relaxed);
    FAILED.store(0, Ordering::Relaxed);
    LEFT.store(number, Ordering::SeqCst);
}

/// Calls that failed since [`stand_in_fail`].
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_failed() -> u64 {
    FAILED.load(Ordering::SeqCst)
}

/// The code that this call is to return, if it is to fail.
pub fn of(name: &str) -> Option<u32> {
    // What errors are called is known without a device.
    if LEFT.load(Ordering::SeqCst) == 0 || name.starts_with("cuGetError") {
        return None;
    }
    let allocates = matches!(name, "cuMemAlloc_v2" | "cuMemHostAlloc");
    if IS_OF_MEMORY.load(Ordering::Relaxed) && !allocates {
        return None;
    }
    let is_lasting = IS_LASTING.load(Ordering::Relaxed);
    let before = LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
        0 => None,
        1 if is_lasting => Some(1),
        left => Some(left - 1),
    });
    (before == Ok(1)).then(|| {
        FAILED.fetch_add(1, Ordering::SeqCst);
        CODE.load(Ordering::Relaxed)
    })
}
