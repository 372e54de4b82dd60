//! Arguments as JavaScript gives them: every one is checked before it is used, since types are
//! only a promise there.

use js_sys::{Array, JsString, Object, Reflect};
use wasm_bindgen::prelude::*;

use crate::arrays;

/// The result of a call from JavaScript.
pub type Result<T, E = JsError> = std::result::Result<T, E>;

/// Largest whole number below which all are numbers of JavaScript.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// Makes an error out of words.
pub fn error<T>(words: impl AsRef<str>) -> Result<T> {
    Err(JsError::new(words.as_ref()))
}

/// The options of a call: an object with known keys, or nothing.
pub struct Options {
    object: Option<Object>,
}

impl Options {
    /// Takes an object, and refuses keys that no option has.
    pub fn read(value: &JsValue, known: &[&str]) -> Result<Options> {
        if value.is_undefined() || value.is_null() {
            return Ok(Options { object: None });
        }
        if !value.is_object() || Array::is_array(value) {
            return error(format!("options: expected an object, found {}", described(value)));
        }
        let object: &Object = value.unchecked_ref();
        for key in Object::keys(object).iter().filter_map(|key| key.as_string()) {
            if !known.contains(&key.as_str()) {
                let known = known.join(", ");
                return error(format!("no such option: {key}; the options are {known}"));
            }
        }
        Ok(Options { object: Some(object.clone()) })
    }

    /// An option's value, where it has one.
    pub fn get(&self, name: &str) -> Result<Option<JsValue>> {
        let Some(object) = &self.object else { return Ok(None) };
        let Ok(value) = Reflect::get(object, &name.into()) else {
            return error(format!("{name}: reading the option failed"));
        };
        Ok((!value.is_undefined() && !value.is_null()).then_some(value))
    }

    /// An option that is on or off; off by default.
    pub fn flag(&self, name: &str) -> Result<bool> {
        let Some(value) = self.get(name)? else { return Ok(false) };
        let Some(flag) = value.as_bool() else {
            return error(format!("{name}: expected true or false, found {}", described(&value)));
        };
        Ok(flag)
    }

    /// An option that is one of some words.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        self.get(name)?.map(|value| word(&value, name, words)).transpose()
    }

    /// An option that is a string.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        self.get(name)?.map(|value| text(&value, name)).transpose()
    }

    /// An option that is a list of strings; none by default.
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        let Some(value) = self.get(name)? else { return Ok(Vec::new()) };
        if !Array::is_array(&value) {
            return error(format!("{name}: expected an array, found {}", described(&value)));
        }
        Array::from(&value).iter().map(|entry| text(&entry, name)).collect()
    }
}

/// A string.
pub fn text(value: &JsValue, name: &str) -> Result<String> {
    match value.as_string() {
        Some(text) => Ok(text),
        None => error(format!("{name}: expected a string, found {}", described(value))),
    }
}

/// The meaning of one of some words.
pub fn word<T: Copy>(value: &JsValue, name: &str, words: &[(&str, T)]) -> Result<T> {
    let found = value.as_string();
    let meaning = words.iter().find(|(word, _)| found.as_deref() == Some(word));
    let Some((_, meaning)) = meaning else {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("'{word}'")).collect();
        let found = found.map_or_else(|| described(value), |found| format!("'{found}'"));
        return error(format!("{name}: expected {}, found {found}", words.join(" or ")));
    };
    Ok(*meaning)
}

/// A number of things: whole and not negative.
pub fn count(value: &JsValue, name: &str) -> Result<usize> {
    let found = value.as_f64().filter(|&number| is_whole(number) && number >= 0.0);
    match found {
        // Beyond 2³² the library says what its limit is.
        Some(number) => Ok(number as usize),
        None => {
            let found = shown(value);
            error(format!("{name}: expected a whole number of 0 or more, found {found}"))
        }
    }
}

/// Offsets, lengths or ids: an array of whole numbers, of JavaScript or a typed one.
pub fn integers(value: &JsValue, name: &str) -> Result<Vec<i64>> {
    if let Some(integers) = arrays::integers(value, name)? {
        return Ok(integers);
    }
    if !Array::is_array(value) {
        return error(format!(
            "{name}: expected Int32Array, Uint32Array, BigInt64Array or an array of numbers, found \
             {}",
            described(value)
        ));
    }
    let entries: &Array = value.unchecked_ref();
    let n = entries.length();
    let mut integers = arrays::reserved(n as usize, name)?;
    for index in 0..n {
        let entry = entries.get(index);
        match entry.as_f64().filter(|&number| is_whole(number)) {
            Some(number) => integers.push(number as i64),
            None => {
                let found = shown(&entry);
                return error(format!("{name}[{index}]: expected a whole number, found {found}"));
            }
        }
    }
    Ok(integers)
}

fn is_whole(number: f64) -> bool {
    number.trunc() == number && number.abs() <= MAX_SAFE
}

/// A number itself, and what other values are.
fn shown(value: &JsValue) -> String {
    value.as_f64().map_or_else(|| described(value), |number| number.to_string())
}

/// Says what a value is, for messages: `Float64Array`, `an array`, `a string`.
pub fn described(value: &JsValue) -> String {
    if let Some(name) = arrays::name(value) {
        return name;
    }
    if value.is_null() || value.is_undefined() {
        return if value.is_null() { "null".into() } else { "undefined".into() };
    }
    if Array::is_array(value) {
        return "an array".into();
    }
    match value.js_typeof().dyn_into::<JsString>() {
        Ok(name) if name == "object" => "an object".into(),
        Ok(name) => format!("a {name}"),
        Err(_) => "something else".into(),
    }
}
