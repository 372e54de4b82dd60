//! Prints what the page is to show, without a browser: JSON of the example, of the steps in tiles
//! of every width that the page offers, and of the shapes given as arguments, in JSON.

use maxsim_method::{backward, example, forward, shape};

/// Widths of tiles that the page offers.
const TILES: [usize; 3] = [2, 4, 8];

fn main() {
    let shapes: Vec<String> = std::env::args().skip(1).map(|request| shape(&request)).collect();
    println!(
        "{{\"example\": {}, \"forward\": [{}], \"backward\": {}, \"shapes\": [{}]}}",
        example(),
        TILES.map(forward).join(", "),
        backward(),
        shapes.join(", ")
    );
}
