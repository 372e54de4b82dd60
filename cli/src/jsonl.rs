//! Files of one JSON object a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;

/// A line is read whole before it is parsed: this bounds what a file without line ends takes.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Calls `take` with the object of every line that is not blank. An error names file and line.
pub fn read<T: DeserializeOwned>(path: &Path, mut take: impl FnMut(T) -> Result<()>) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let mut one_line = || -> Result<bool> {
            let n = reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line)?;
            ensure!(n as u64 <= MAX_LINE_BYTES, "longer than {MAX_LINE_BYTES} bytes");
            if !line.trim_ascii().is_empty() {
                take(serde_json::from_slice(&line).map_err(without_line)?)?;
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

/// The parser counts lines within the one line that it was given.
fn without_line(error: serde_json::Error) -> anyhow::Error {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    anyhow!("{what} (column {})", error.column())
}
