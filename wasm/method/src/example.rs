//! A query of four tokens and a document of ten, small enough to be read.

use maxsim_oracle::Matrix;
use serde::Serialize;

/// Elements of a token.
pub const DIM: usize = 4;

/// Bytes of an element, as if they were f16.
pub const ELEMENT_BYTES: usize = 2;

/// Tokens with their words. All numbers are eighths, so that no sum rounds.
type Words = &'static [(&'static str, [f32; DIM])];

/// The query: warmth, colour, garment, anything else.
const QUERY: Words = &[
    ("warm", [1.0, 0.0, 0.25, 0.0]),
    ("woollen", [0.75, 0.0, 0.5, 0.0]),
    ("red", [0.0, 1.0, 0.0, 0.25]),
    ("scarf", [0.25, 0.0, 1.0, 0.0]),
];

/// The document.
const DOCUMENT: Words = &[
    ("a", [0.0, 0.0, 0.0, 0.75]),
    ("crimson", [0.0, 1.0, 0.125, 0.0]),
    ("shawl", [0.5, 0.0, 0.875, 0.0]),
    ("knitted", [0.625, 0.0, 0.5, 0.125]),
    ("in", [0.0, 0.125, 0.0, 0.75]),
    ("soft", [0.75, 0.125, 0.25, 0.0]),
    ("lambswool", [0.875, 0.125, 0.375, 0.0]),
    ("for", [0.0, 0.0, 0.125, 0.75]),
    ("cold", [0.875, 0.125, 0.0, 0.125]),
    ("days", [0.25, 0.25, 0.0, 0.5]),
];

/// The example as the page shows it.
#[derive(Serialize)]
pub struct Example {
    query: Vec<Token>,
    document: Vec<Token>,
    dim: usize,
    element_bytes: usize,
}

#[derive(Serialize)]
struct Token {
    word: &'static str,
    values: [f32; DIM],
}

impl Example {
    /// The query and the document.
    pub fn new() -> Example {
        let tokens =
            |words: Words| words.iter().map(|&(word, values)| Token { word, values }).collect();
        let [query, document] = [QUERY, DOCUMENT].map(tokens);
        Example { query, document, dim: DIM, element_bytes: ELEMENT_BYTES }
    }
}

impl Default for Example {
    fn default() -> Example {
        Example::new()
    }
}

/// The query as the oracle takes it.
pub fn query() -> Matrix {
    matrix(QUERY, QUERY.len())
}

/// The document's first `len` tokens as the oracle takes them.
pub fn document(len: usize) -> Matrix {
    matrix(DOCUMENT, len)
}

/// Tokens of the document.
pub fn document_len() -> usize {
    DOCUMENT.len()
}

fn matrix(words: Words, len: usize) -> Matrix {
    Matrix {
        values: words.iter().flat_map(|(_, values)| *values).collect(),
        dim: DIM,
        // One item, which ends where the tiles that were seen end.
        items: std::iter::once(0..len).collect(),
        mask: None,
        weights: None,
        factors: None,
        offsets: None,
        least: 0.0,
    }
}
