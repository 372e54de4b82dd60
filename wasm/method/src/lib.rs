//! What the page `docs/guide/method.html` computes: the oracle on a small query and document, tile
//! by tile, and the plans and limits of shapes that a reader types in.
//!
//! Results are JSON: the page shows them, and tests compare what it shows with what the same
//! functions give without a browser.

pub mod backward;
pub mod example;
pub mod forward;
pub mod shape;

use wasm_bindgen::prelude::wasm_bindgen;

/// The small query and document: words, and the numbers of their tokens.
#[wasm_bindgen]
pub fn example() -> String {
    json(&example::Example::new())
}

/// The steps of scoring them in tiles of so many document tokens.
#[wasm_bindgen]
pub fn forward(tile: usize) -> String {
    json(&forward::steps(tile.max(1)))
}

/// The steps of the gradients.
#[wasm_bindgen]
pub fn backward() -> String {
    json(&backward::steps())
}

/// What a shape costs and which kernel runs it, or `{"error": ..}`: given JSON of
/// [`Shape`](shape::Shape).
#[wasm_bindgen]
pub fn shape(request: &str) -> String {
    let found = serde_json::from_str(request).map_err(|error| error.to_string());
    match found.and_then(|shape| shape::costs(&shape)) {
        Ok(costs) => json(&costs),
        Err(error) => json(&shape::Refused { error }),
    }
}

fn json(value: &impl serde::Serialize) -> String {
    // Structs of numbers and words: nothing in them has no JSON.
    serde_json::to_string(value).unwrap_or_default()
}
