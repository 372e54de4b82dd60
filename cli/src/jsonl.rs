//! Files of one JSON object a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;

/// A line is read whole before it is parsed: this bounds what a file without line ends takes.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What editors on Windows put in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Calls `take` with the object of every line that is not blank. An error names file and line, and
/// where a line is something else it shows the `example`.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    example: &str,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let mut one_line = || -> Result<bool> {
            let n = reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
            ensure!(n as u64 <= MAX_LINE_BYTES, "longer than {MAX_LINE_BYTES} bytes");
            let mark = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1);
            let object = mark.unwrap_or(&line);
            if !object.trim_ascii().is_empty() {
                take(parse(object, example)?)?;
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

fn parse<T: DeserializeOwned>(object: &[u8], example: &str) -> Result<T> {
    // The parser would take an array's values for fields in their order.
    let is_object = object.trim_ascii_start().starts_with(b"{");
    ensure!(is_object, "expected a JSON object, such as {example}");
    serde_json::from_slice(object).map_err(|error| {
        // It counts lines within the one that it was given.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        anyhow!("{what} (column {}); expected an object such as {example}", error.column())
    })
}
