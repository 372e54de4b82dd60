//! Ranks Parquet files of documents for queries, in this process or on a cluster.
//!
//! ```text
//! cargo run --all-features --example rank -- \
//!     --write ../cli/examples/debian-packages/documents.safetensors \
//!     --queries ../cli/examples/debian-packages/queries.safetensors --query 7 FOLDER
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use datafusion::prelude::SessionContext;
use maxsim::files::{FileOptions, TokenFile};
use maxsim_cli::args::DeviceChoice;
use maxsim_datafusion::{TopK, ids, query, read_parquet, session, write_parquet};

/// Ranks Parquet files of documents for a query.
#[derive(Parser)]
struct Args {
    /// The scheduler of a cluster, such as df://localhost:50050. Unset, this process scores.
    #[arg(long, value_name = "URL")]
    scheduler: Option<String>,
    /// Where this process scores.
    #[arg(long, value_name = "auto|cpu|cuda:N", default_value = "auto")]
    device: DeviceChoice,
    /// Token file whose documents are written to the folder first, as four files.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Token file of queries.
    #[arg(long, value_name = "FILE")]
    queries: PathBuf,
    /// Which of the queries.
    #[arg(long, value_name = "N", default_value_t = 0)]
    query: usize,
    /// How many documents to show.
    #[arg(long, value_name = "K", default_value_t = 10)]
    top_k: usize,
    /// Folder of Parquet files, where every process of a cluster finds it.
    folder: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(file) = &args.write {
        write(file, Path::new(&args.folder))?;
    }
    let session = match &args.scheduler {
        Some(url) => connect(url).await?,
        None => session(&args.device.open()?)?,
    };
    let queries = TokenFile::open(&args.queries, &FileOptions::default())?;
    let query = query(&queries.all()?, args.query)?;
    let documents = read_parquet(&session, &args.folder).await?;
    TopK::new(args.top_k).of(documents, query)?.show().await?;
    Ok(())
}

#[cfg(feature = "ballista")]
async fn connect(url: &str) -> Result<SessionContext> {
    Ok(maxsim_datafusion::cluster::connect(url).await?)
}

#[cfg(not(feature = "ballista"))]
async fn connect(_: &str) -> Result<SessionContext> {
    bail!("--scheduler: build with --features ballista")
}

/// Writes a token file's documents to four Parquet files.
fn write(file: &Path, folder: &Path) -> Result<()> {
    let file = TokenFile::open(file, &FileOptions::default())?;
    if !folder.is_dir() {
        bail!("{}: no such folder", folder.display());
    }
    let (ids, n_items) = (ids(&file)?, file.n_items());
    for part in 0..4 {
        let [start, end] = [part, part + 1].map(|part| part * n_items / 4);
        let path = folder.join(format!("part-{part}.parquet"));
        write_parquet(path, &ids.slice(start, end - start), &file.any_tokens(start..end)?)?;
    }
    Ok(())
}
