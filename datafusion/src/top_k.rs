//! The best documents of a table.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ScalarUDF};
use datafusion::prelude::{DataFrame, ident, lit};

/// Names of the columns between the scores and the ranking.
const SCORE: &str = "score";
const KEY: &str = "maxsim_key";

/// A ranking of a table's documents for one query: the best `k`, best first.
///
/// Each partition scores its documents and keeps its best `k`, and these are merged, on however
/// many machines the partitions are. The order is that of
/// [`maxsim::Ranking`]: scores of documents with tokens, descending, equal scores by lower id; then
/// NaN; then documents without tokens. What SQL has besides comes last: documents that are NULL,
/// whose score is NULL. It is the same order however the table is cut into files and partitions.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::arrow::array::{AsArray, Int64Array};
/// use datafusion::arrow::datatypes::{Float32Type, Int64Type};
/// use maxsim::{Device, Tokens};
/// use maxsim_datafusion::{TopK, batch, query, session};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let session = session(&Device::cpu())?;
/// // Documents of one and two tokens; dim 2.
/// let tokens = [2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0];
/// let documents = Tokens::packed(&tokens, 2, &[0i64, 1, 3]).unwrap().into();
/// let documents = batch(Arc::new(Int64Array::from(vec![10, 11])), &documents)?;
/// let documents = session.read_batch(documents)?;
///
/// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2).unwrap().into();
/// let best = TopK::new(1).of(documents, query(&queries, 0)?)?.collect().await?;
/// assert_eq!(best[0]["id"].as_primitive::<Int64Type>().value(0), 11);
/// assert_eq!(best[0]["score"].as_primitive::<Float32Type>().value(0), 8.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TopK {
    k: usize,
    id: String,
    documents: Columns,
}

/// Columns that have the documents.
#[derive(Clone, Debug)]
enum Columns {
    Tokens(String),
    Int8 { codes: String, scales: String },
}

impl TopK {
    /// The best `k` documents of tables with the columns `id` and `tokens`.
    pub fn new(k: usize) -> TopK {
        TopK { k, id: "id".into(), documents: Columns::Tokens("tokens".into()) }
    }

    /// Takes ids from another column, of any type that has an order.
    ///
    /// ```
    /// use maxsim_datafusion::TopK;
    ///
    /// // As some models' files name them.
    /// let pages = TopK::new(10).id("page").tokens("embeddings");
    /// let compressed = TopK::new(10).id("page").int8("codes", "scales");
    /// # let _ = (pages, compressed);
    /// ```
    pub fn id(self, column: impl Into<String>) -> TopK {
        TopK { id: column.into(), ..self }
    }

    /// Takes tokens from another column.
    pub fn tokens(self, column: impl Into<String>) -> TopK {
        TopK { documents: Columns::Tokens(column.into()), ..self }
    }

    /// Takes INT8 tokens from the columns of their codes and scales, as `maxsim_int8` does.
    pub fn int8(self, codes: impl Into<String>, scales: impl Into<String>) -> TopK {
        let (codes, scales) = (codes.into(), scales.into());
        TopK { documents: Columns::Int8 { codes, scales }, ..self }
    }

    /// Ranks `documents` for a [`query`](crate::query): rows of an id and `score`, best first.
    ///
    /// # Errors
    /// Where the session has no functions ([`register`](crate::register)), or the table no such
    /// columns. What is wrong with documents shows when the rows are collected.
    pub fn of(&self, documents: DataFrame, query: ScalarValue) -> Result<DataFrame> {
        let (state, plan) = documents.into_parts();
        let (scorer, columns) = match &self.documents {
            Columns::Tokens(tokens) => ("maxsim", vec![ident(tokens)]),
            Columns::Int8 { codes, scales } => ("maxsim_int8", vec![ident(codes), ident(scales)]),
        };
        let tokens = columns[0].clone();
        let arguments: Vec<Expr> = [lit(query)].into_iter().chain(columns).collect();
        let score = function(&state, scorer)?.call(arguments);
        let key = function(&state, KEY)?.call(vec![score.clone(), tokens]);
        let id = ident(&self.id);
        // The key has the order of scores, so that NaN and empty documents are where they belong;
        // SQL's own order of scores has NaN first.
        DataFrame::new(state, plan)
            .select(vec![id.clone(), score.alias(SCORE), key.alias(KEY)])?
            .sort(vec![ident(KEY).sort(false, false), id.clone().sort(true, false)])?
            .limit(0, Some(self.k))?
            .select(vec![id, ident(SCORE)])
    }
}

/// A function of the session.
fn function(state: &SessionState, name: &str) -> Result<Arc<ScalarUDF>> {
    state.scalar_functions().get(name).cloned().ok_or_else(|| {
        DataFusionError::Plan(format!(
            "the session has no function {name}: call maxsim_datafusion::register first"
        ))
    })
}
