//! The C interface.
//!
//! Objects are opaque handles, freed with [`maxsim_bench_free`]; a handle of the wrong kind is
//! an error. Functions return null or -1 for an error, which [`maxsim_bench_last_error`] then
//! explains; a panic is such an error too. One thread at a time may use a handle.
//!
//! Addresses are device addresses. On the CPU device they are host addresses: tokens are copied
//! once, and scores are written at each call, so that scripts can be tried without a GPU.

mod backward;
mod devices;
mod handle;
mod operations;
mod roofs;
mod score;
mod search;
mod streaming;
mod tokens;
mod top_k;

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use maxsim::Device;
use maxsim_kernels::table::forward::FORWARD;
use serde_json::json;

pub use self::backward::*;
pub use self::devices::*;
use self::handle::get;
pub use self::operations::*;
pub use self::roofs::*;
pub use self::score::*;
pub use self::search::*;
pub use self::streaming::*;
pub use self::tokens::*;
pub use self::top_k::*;
pub use crate::object::Object;
use crate::object::{Result, text};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why the last call on this thread failed. Valid until the thread's next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn maxsim_bench_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|error| error.as_ptr())
}

/// Opens CUDA device `ordinal` in its primary context, or the CPU for -1. Null for an error.
#[unsafe(no_mangle)]
pub extern "C" fn maxsim_bench_open(ordinal: i32) -> *mut Object {
    made(|| {
        let device = match usize::try_from(ordinal) {
            Ok(ordinal) => Device::cuda(ordinal).map_err(text)?,
            Err(_) => Device::cpu(),
        };
        let kernels: Vec<&str> = FORWARD.iter().map(|row| row.name).collect();
        let what = json!({
            "name": device.name(),
            "capability": device.limits().map(|limits| limits.capability),
            "multiprocessors": device.limits().map(|limits| limits.n_multiprocessors),
            "cuda_of_driver": device.driver_version(),
            "kernels": kernels,
        });
        let what = CString::new(what.to_string()).unwrap_or_default();
        Ok(Object::Device(device, what))
    })
}

/// A work's plan, or what a device is (JSON), as text that lives as long as the handle.
/// Null for an error.
///
/// # Safety
/// The handle must live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_text(object: *const Object) -> *const c_char {
    // SAFETY: the caller's promise.
    let found = guarded(|| match unsafe { get(object)? } {
        Object::Work(_, text) | Object::Device(_, text) => Ok(text.as_ptr()),
        other => Err(format!("{} has no text", other.kind())),
    });
    found.unwrap_or(std::ptr::null())
}

/// Frees an object; waits for the calls that use it. Null is nothing to free.
///
/// # Safety
/// The handle must have come from this library and not have been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn maxsim_bench_free(object: *mut Object) {
    if !object.is_null() {
        // SAFETY: made by `Box::into_raw` in `made`, and freed once.
        let object = unsafe { Box::from_raw(object) };
        guarded(|| {
            drop(object);
            Ok(())
        });
    }
}

/// Runs code, remembers its error.
fn guarded<R>(code: impl FnOnce() -> Result<R>) -> Option<R> {
    let error = match catch_unwind(AssertUnwindSafe(code)) {
        Ok(Ok(result)) => return Some(result),
        Ok(Err(error)) => error,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("panic: {}", said.unwrap_or_default())
        }
    };
    let error = CString::new(error.replace('\0', "")).unwrap_or_default();
    LAST_ERROR.set(error);
    None
}

fn made(code: impl FnOnce() -> Result<Object>) -> *mut Object {
    guarded(code).map_or(std::ptr::null_mut(), |object| Box::into_raw(Box::new(object)))
}

fn done(code: impl FnOnce() -> Result<()>) -> i32 {
    guarded(code).map_or(-1, |()| 0)
}
