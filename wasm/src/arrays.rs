//! Typed arrays, copied out of JavaScript's memory. A view of it would have to be given up at the
//! next allocation, and its buffer may be another thread's or gone; a copy is neither.

use js_sys::{
    ArrayBuffer, BigInt64Array, Float32Array, Int8Array, Int32Array, Reflect, Symbol, Uint8Array,
    Uint16Array, Uint32Array,
};
use maxsim::Error;
use wasm_bindgen::prelude::*;

use crate::arguments::{Result, described, error};

/// The name of a typed array's type; `None` of values that are none.
///
/// By name, and not by the constructor, of which each frame of a page has its own.
pub fn name(value: &JsValue) -> Option<String> {
    if !ArrayBuffer::is_view(value) {
        return None;
    }
    Reflect::get(value, &Symbol::to_string_tag()).ok()?.as_string()
}

/// Whether a value is a typed array of this type.
pub fn is(value: &JsValue, type_name: &str) -> bool {
    name(value).as_deref() == Some(type_name)
}

/// An empty vector with room for `n` elements.
pub fn reserved<T>(n: usize, name: &str) -> Result<Vec<T>> {
    let mut room = Vec::new();
    let Err(source) = room.try_reserve_exact(n) else { return Ok(room) };
    let requested_bytes = n as u64 * size_of::<T>() as u64;
    let lacking = Error::HostMemory { requested_bytes, source: Some(source) };
    error(format!("{name}: {lacking}"))
}

macro_rules! copies {
    ($($(#[$doc:meta])* $function:ident: $array:ident, $element:ty;)*) => {$(
        $(#[$doc])*
        pub fn $function(value: &JsValue, name: &str) -> Result<Vec<$element>> {
            let wanted = stringify!($array);
            if !is(value, wanted) {
                return error(format!("{name}: expected {wanted}, found {}", described(value)));
            }
            let array: &$array = value.unchecked_ref();
            // As long as it is now: shared memory may grow meanwhile. An array whose buffer was
            // given away has no length, and no part either.
            let n = array.length();
            if n == 0 {
                return Ok(Vec::new());
            }
            let mut elements = reserved(n as usize, name)?;
            elements.resize(n as usize, Default::default());
            array.subarray(0, n).copy_to(&mut elements);
            Ok(elements)
        }
    )*};
}

copies! {
    /// Copies bytes.
    bytes: Uint8Array, u8;
    /// Copies INT8 codes.
    codes: Int8Array, i8;
    /// Copies f32 elements.
    floats: Float32Array, f32;
    /// Copies the bits of f16 or bf16 elements.
    halves: Uint16Array, u16;
    i32s: Int32Array, i32;
    u32s: Uint32Array, u32;
    i64s: BigInt64Array, i64;
}

/// The integers of a typed array that may have them; `None` of other values.
pub fn integers(value: &JsValue, name: &str) -> Result<Option<Vec<i64>>> {
    Ok(match self::name(value).as_deref() {
        Some("Int32Array") => Some(i32s(value, name)?.into_iter().map(i64::from).collect()),
        Some("Uint32Array") => Some(u32s(value, name)?.into_iter().map(i64::from).collect()),
        Some("BigInt64Array") => Some(i64s(value, name)?),
        _ => None,
    })
}

/// Number of elements of a typed array; `None` of other values.
pub fn length(value: &JsValue) -> Option<usize> {
    name(value)?;
    // Every typed array has it, and a DataView none.
    let length = Reflect::get(value, &"length".into()).ok()?.as_f64()?;
    Some(length as usize)
}
