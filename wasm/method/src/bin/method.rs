//! Prints what the page is to show, without a browser: JSON of the example, of the steps in tiles
//! of every width that the page offers, and of the shapes of a file, a list of `{"shape": ..}`.

use maxsim_method::{backward, example, forward, shape};
use serde_json::Value;

/// Widths of tiles that the page offers.
const TILES: [usize; 3] = [2, 4, 8];

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).unwrap_or_default();
    let requests: Vec<Value> = serde_json::from_slice(&std::fs::read(path)?)?;
    let shapes: Vec<String> =
        requests.iter().map(|request| shape(&request["shape"].to_string())).collect();
    println!(
        "{{\"example\": {}, \"forward\": [{}], \"backward\": {}, \"shapes\": [{}]}}",
        example(),
        TILES.map(forward).join(", "),
        backward(),
        shapes.join(", ")
    );
    Ok(())
}
