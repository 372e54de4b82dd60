//! Text files that are read line by line, and lines that are JSON objects.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, Visitor};

/// A line is read whole before it is parsed: this bounds what a file without line ends takes.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Mark that editors on Windows put at the start of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Calls `take` with every line that is not blank and its number from 1. The line comes without
/// its end and without a byte-order mark. An error names file and line.
pub fn lines(path: &Path, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let mut one_line = || -> Result<bool> {
            let n = reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
            ensure!(n as u64 <= MAX_LINE_BYTES, "longer than {MAX_LINE_BYTES} bytes");
            let mark = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1);
            let content = mark.unwrap_or(&line);
            let content = content.strip_suffix(b"\n").unwrap_or(content);
            let content = content.strip_suffix(b"\r").unwrap_or(content);
            if !content.trim_ascii().is_empty() {
                take(number, content)?;
            }
            Ok(n > 0)
        };
        let more = one_line().with_context(|| format!("{}, line {number}", path.display()))?;
        if !more {
            break;
        }
    }
    Ok(())
}

/// Calls `take` with the object of every line that is not blank, and the line's number. An error
/// names file and line, and where a line is something else it shows the `example`.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    example: &str,
    mut take: impl FnMut(u64, T) -> Result<()>,
) -> Result<()> {
    lines(path, |number, line| take(number, parse(line, example)?))
}

/// Whether a line is meant to be a JSON object.
pub fn is_object(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{")
}

/// The object that a line is.
pub fn parse<T: DeserializeOwned>(object: &[u8], example: &str) -> Result<T> {
    // The parser would take an array's values for fields in their order.
    ensure!(is_object(object), "expected a JSON object, such as {example}");
    serde_json::from_slice(object).map_err(|error| {
        // The error counts lines within the one line that was parsed.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        anyhow!("{what} (column {}); expected an object such as {example}", error.column())
    })
}

/// An id in a JSON object: a string or a whole number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonId {
    /// The string, or the digits of the number.
    pub text: String,
    /// Whether it was written as a number.
    pub is_number: bool,
}

impl<'de> Deserialize<'de> for JsonId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonId, D::Error> {
        struct OfId;
        impl Visitor<'_> for OfId {
            type Value = JsonId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<JsonId, E> {
                Ok(JsonId { text: text.to_string(), is_number: false })
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<JsonId, E> {
                Ok(JsonId { text: number.to_string(), is_number: true })
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<JsonId, E> {
                Ok(JsonId { text: number.to_string(), is_number: true })
            }
        }
        deserializer.deserialize_any(OfId)
    }
}
