//! Reads objects, layouts and texts behind a caller's pointers.

use std::ffi::{CStr, c_char};

use maxsim::TokenLayout;
use maxsim::stream::Stream;

use crate::codes::Codes;
use crate::object::{AnyTokens, Object, Outputs, Result, text};

/// # Safety
/// The handle must be null or live.
pub(super) unsafe fn get<'a>(object: *const Object) -> Result<&'a Object> {
    // SAFETY: the caller's promise.
    unsafe { object.as_ref() }.ok_or_else(|| "a handle is null".to_string())
}

/// # Safety
/// The handle must be null or live.
pub(super) unsafe fn wrong<R>(expected: &str, found: *const Object) -> Result<R> {
    // SAFETY: the caller's promise.
    Err(format!("expected {expected}, found {}", unsafe { get(found)? }.kind()))
}

/// # Safety
/// The handle must be null or live.
pub(super) unsafe fn tokens<'a>(object: *const Object) -> Result<&'a AnyTokens> {
    // SAFETY: the caller's promise.
    match unsafe { get(object)? } {
        Object::Tokens(tokens) => Ok(tokens),
        other => Err(format!("expected tokens, found {}", other.kind())),
    }
}

/// # Safety
/// The handle must be null, or live and in use nowhere else.
pub(super) unsafe fn stream_of<'a>(object: *mut Object) -> Result<&'a mut Stream> {
    // SAFETY: the caller's promise.
    match unsafe { object.as_mut() } {
        Some(Object::Stream(stream)) => Ok(stream),
        Some(other) => Err(format!("expected a stream, found {}", other.kind())),
        None => Err("a handle is null".to_string()),
    }
}

/// # Safety
/// The handle must be null, or live and in use nowhere else.
pub(super) unsafe fn outputs_of<'a>(object: *mut Object) -> Result<&'a mut Outputs> {
    // SAFETY: the caller's promise.
    match unsafe { object.as_mut() } {
        Some(Object::Outputs(outputs)) => Ok(outputs),
        Some(other) => Err(format!("expected outputs, found {}", other.kind())),
        None => Err("a handle is null".to_string()),
    }
}

/// # Safety
/// The handle must be null or live.
pub(super) unsafe fn codes_of<'a>(object: *const Object) -> Result<&'a Codes> {
    // SAFETY: the caller's promise.
    match unsafe { get(object)? } {
        Object::Codes(codes) => Ok(codes),
        other => Err(format!("expected codes, found {}", other.kind())),
    }
}

/// `[n, len, dim]`, or packed where there are offsets.
///
/// # Safety
/// `offsets` must be null or n + 1 values.
pub(super) unsafe fn layout(
    dim: u64,
    n: u64,
    len: u64,
    offsets: *const i64,
) -> Result<TokenLayout> {
    let (n, len, dim) = (n as usize, len as usize, dim as usize);
    if offsets.is_null() {
        return TokenLayout::padded(n, len, dim).map_err(text);
    }
    // SAFETY: the caller's promise.
    let offsets = unsafe { std::slice::from_raw_parts(offsets, n + 1) };
    TokenLayout::packed(offsets[n].max(0) as usize, dim, offsets).map_err(text)
}

/// # Safety
/// The pointer must be null or a C string.
pub(super) unsafe fn string<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err("a string is null".to_string());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| "a string is not UTF-8".to_string())
}
