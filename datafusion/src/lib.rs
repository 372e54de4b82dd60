//! MaxSim scores and rankings in [Apache DataFusion](https://datafusion.apache.org), in one
//! process or, unchanged, on a Ballista cluster.
//!
//! Three functions score columns of tokens. They take Arrow's arrays without a copy, and their
//! scores are those of [`maxsim::Device::score`], bit for bit; on a GPU by one kernel for all
//! documents of a constant query, so that they do not depend on how tables are cut:
//!
//! | function | |
//! |---|---|
//! | `maxsim(query, tokens)` | the score, Float32 |
//! | `maxsim_int8(query, codes, scales)` | the score of INT8 tokens |
//! | `maxsim_key(score, tokens)` | UInt32, larger for what ranks before |
//!
//! Tokens are a List or LargeList of FixedSizeList of Float16 or Float32, or of the numbers
//! themselves where the other side's type says the dim; codes one of FixedSizeList of Int8 with a
//! list of Float16 or Float32 scales beside: a query of these is quantized, with scales of f32.
//! Keys have the order of rankings: numbers by size, then NaN, then documents without tokens.
//! Either side of `maxsim` may be constant or a column: two columns are scored row by row. What is
//! NULL as a whole scores NULL, an empty list of tokens scores 0, NaN shows; a NULL token or
//! element in a list is an error that names its row. Arrays that are written in SQL (Float64,
//! Int64) are rounded to the documents' type as queries; other types are never converted.
//!
//! [`TopK`] ranks a table, [`write_parquet`] writes one, [`query`] makes a constant of tokens:
//!
//! ```
//! use datafusion::arrow::array::AsArray;
//! use datafusion::arrow::datatypes::Float32Type;
//! use datafusion::prelude::SessionContext;
//! use maxsim::Device;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> datafusion::error::Result<()> {
//! let session = SessionContext::new();
//! maxsim_datafusion::register(&session, &Device::best());
//! let scores = session
//!     .sql(
//!         "SELECT maxsim([[1.0, 0.0], [0.0, 1.0]], tokens) AS score FROM (
//!            SELECT arrow_cast([[3.0, 4.0], [-1.0, 5.0]], 'List(FixedSizeList(2 x Float32))')
//!              AS tokens)",
//!     )
//!     .await?
//!     .collect()
//!     .await?;
//! assert_eq!(scores[0]["score"].as_primitive::<Float32Type>().value(0), 8.0);
//! # Ok(())
//! # }
//! ```
//!
//! Features: `cuda` (on by default: the GPU engines, on Linux; nothing of CUDA is needed to build)
//! and `ballista` (the module `cluster`, and the programs `maxsim-scheduler` and
//! `maxsim-executor`).

#[cfg(feature = "ballista")]
pub mod cluster;
mod columns;
mod functions;
mod kernel;
mod literal;
mod parquet;
mod top_k;

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::{SessionConfig, SessionContext};
use maxsim::Device;

pub use functions::functions;
pub use literal::query;
pub use parquet::{batch, ids, read_parquet, write_parquet};
pub use top_k::TopK;

/// Documents that are read and scored at once: enough for a core, and little memory where a
/// document is a page.
const BATCH_SIZE: usize = 512;

/// Adds the functions to a session. They score on `device`.
///
/// ```
/// use datafusion::prelude::SessionContext;
/// use maxsim::Device;
///
/// let session = SessionContext::new();
/// maxsim_datafusion::register(&session, &Device::cpu());
/// assert!(session.state().scalar_functions().contains_key("maxsim"));
/// ```
pub fn register(session: &SessionContext, device: &Device) {
    for function in functions(device) {
        session.register_udf(ScalarUDF::clone(&function));
    }
}

/// A session of this process with the functions, and with settings that suit documents of many
/// tokens ([`configured`]). Folders are listed by each query, so that files may change between two.
///
/// # Errors
/// Where DataFusion cannot make its environment.
///
/// ```
/// use maxsim::Device;
///
/// let session = maxsim_datafusion::session(&Device::best())?;
/// assert_eq!(session.copied_config().batch_size(), 512);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
pub fn session(device: &Device) -> Result<SessionContext> {
    let config = configured(SessionConfig::new());
    let session = SessionContext::new_with_config_rt(config, runtime()?);
    register(&session, device);
    Ok(session)
}

/// What a session runs in: DataFusion's defaults, but for its memory of which files a folder has
/// and how long they are, which would outlive their being written again.
fn runtime() -> Result<Arc<RuntimeEnv>> {
    RuntimeEnvBuilder::new().with_object_list_cache_limit(0).build_arc()
}

/// Changes settings to those that suit documents of many tokens: 512 documents in a batch (of a
/// GPU, more may be faster), and no scores in the filters of scans, where they would be computed
/// twice.
///
/// ```
/// use datafusion::prelude::{SessionConfig, SessionContext};
///
/// let config = maxsim_datafusion::configured(SessionConfig::new()).with_batch_size(4096);
/// # let _ = SessionContext::new_with_config(config);
/// ```
pub fn configured(config: SessionConfig) -> SessionConfig {
    config
        .with_batch_size(BATCH_SIZE)
        .set_bool("datafusion.optimizer.enable_topk_dynamic_filter_pushdown", false)
}

// The Rust examples of the guide are compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/datafusion.md")]
struct Guide;
