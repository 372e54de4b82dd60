//! How the tokens of a query and a document match, for people to look at.

use maxsim_cli::explain::{Explanation as Found, Grid, Picture};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::pool;
use crate::side::{Memory, entries};

/// A picture's bytes, patches across and down, and the token that is the first of them.
type PictureOf = (Vec<u8>, u32, u32, u32);

/// A query and a document, and how their tokens match.
#[pyclass(frozen, module = "maxsim._maxsim")]
#[derive(Debug)]
pub struct Explanation(Found);

#[pymethods]
impl Explanation {
    /// Explains rows of f32 `[tokens, dim]`, with words of query and document.
    #[new]
    fn new(
        py: Python<'_>,
        n_threads: usize,
        sides: (Memory, Memory, usize, bool),
        words: (Option<Vec<String>>, Option<Vec<String>>),
        picture: Option<PictureOf>,
    ) -> PyResult<Explanation> {
        let (query, document, dim, normalize) = sides;
        let found = pool::run(py, n_threads, || {
            // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
            let [query, document] = unsafe {
                [("query", query), ("document", document)]
                    .map(|(name, rows)| rows.read::<f32>(name, rows.len()))
            };
            let words = [words.0, words.1];
            Ok(Found::of_rows(query?, document?, dim, normalize, words))
        })?;
        let found = found.map_err(wrong)?;
        let found = match picture {
            None => found,
            Some((bytes, columns, rows, first)) => {
                let picture = Picture::new(&bytes, Grid { columns, rows, first });
                picture.and_then(|picture| found.with_picture(picture)).map_err(wrong)?
            }
        };
        Ok(Explanation(found))
    }

    #[getter]
    fn score(&self) -> f32 {
        self.0.score
    }

    /// For each of the query's tokens the document's, or -1, and how similar they are.
    fn matches(&self) -> Vec<(i64, f32)> {
        let of = self.0.query.iter();
        of.map(|of| (of.chosen.map_or(-1, |chosen| chosen as i64), of.similarity)).collect()
    }

    /// Writes the similarities `[query tokens, document tokens]`.
    fn similarities(&self, to: Memory) -> PyResult<()> {
        let found = &self.0.similarities;
        let len = entries(self.0.query.len(), self.0.document.len());
        let room = len.and_then(|len| {
            // SAFETY: the Python caller gives the address of an array of this call's alone.
            unsafe { to.write::<f32>("similarities", len) }
        });
        room.map_err(crate::errors::raised)?.copy_from_slice(found);
        Ok(())
    }

    fn html(&self) -> String {
        self.0.html()
    }

    fn svg(&self) -> String {
        self.0.svg()
    }

    fn text(&self) -> String {
        self.0.text()
    }

    fn json(&self) -> PyResult<String> {
        self.0.json().map_err(wrong)
    }
}

fn wrong(error: impl std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>) -> PyErr {
    PyValueError::new_err(format!("{error:#}"))
}
