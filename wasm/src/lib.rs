//! The CPU engine for node and browsers: the npm package `maxsim-wasm`.
//!
//! JavaScript sees [`Tokens`](tokens::Tokens), [`Scores`](scores::Scores), and the functions of
//! [`scores`]; their documentation is that of the package's types.

mod arguments;
mod arrays;
pub mod scores;
pub mod tokens;
