//! Learns to halve token embeddings: a linear projection from 128 to 64 dimensions, trained on real
//! documents by an in-batch contrastive loss, on a GPU or on the CPU.
//!
//! ```sh
//! cargo run -p maxsim --example train_projection
//! ```
//!
//! A query is the beginning of a document, and what is to be found is the rest of it. One document
//! in four is held out: nDCG@10 of their beginnings against all documents is printed before and
//! after. `loss.csv` and `loss.svg` in the folder `--out` show the loss of every step.
//!
//! MaxSim and its gradients come from the library, in f32 as exact as f32 is; the projection, its
//! gradient and Adam are a few lines of plain Rust in `train_projection/training.rs`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use maxsim::Device;

use sample::Task;
use training::{Projection, Settings, held_out_ndcg, train};

#[path = "train_projection/curve.rs"]
mod curve;
#[path = "train_projection/sample.rs"]
mod sample;
#[path = "train_projection/training.rs"]
mod training;

/// The sample's documents.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/examples/debian-packages");

/// Trains a projection of token embeddings.
#[derive(Parser)]
struct Args {
    /// Where scores and gradients are computed [default: a GPU if there is one, or else the CPU]
    #[arg(long)]
    device: Option<Engine>,
    /// Batches to learn from
    #[arg(long, default_value_t = 500)]
    steps: usize,
    /// Folder for loss.csv and loss.svg
    #[arg(long, default_value = "target/train_projection")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Cpu,
    Cuda,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.steps > 0, "--steps must be at least 1");
    let device = match args.device {
        None => Device::best(),
        Some(Engine::Cpu) => Device::cpu(),
        Some(Engine::Cuda) => Device::cuda(0)?,
    };
    let (task, settings) = (Task::read(Path::new(SAMPLE))?, Settings::default());
    let mut projection = Projection::random(task.queries.dim, &settings);
    println!(
        "{device} ({}): {} queries and documents to learn from, {} queries held out",
        device.name(),
        task.queries.n_items(),
        task.held_out.n_items()
    );
    let before = held_out_ndcg(&device, &task, &projection)?;

    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} steps, {eta} left, {msg}")?;
    let bar = ProgressBar::new(args.steps as u64).with_style(style);
    let (start, mut losses) = (Instant::now(), Vec::with_capacity(args.steps));
    train(&device, &task, &settings, &mut projection, args.steps, |loss| {
        losses.push(loss);
        bar.set_message(format!("loss {loss:.4}"));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let time = start.elapsed();

    let after = held_out_ndcg(&device, &task, &projection)?;
    std::fs::create_dir_all(&args.out)?;
    let files = ["loss.csv", "loss.svg"].map(|name| args.out.join(name));
    curve::write_csv(&files[0], &losses)?;
    curve::write_svg(&files[1], &losses)?;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("{} steps in {:.1} s: loss {first:.4} to {last:.4}", args.steps, time.as_secs_f64());
    println!("held-out nDCG@10: {before:.4} before, {after:.4} after");
    println!("wrote {} and {}", files[0].display(), files[1].display());
    Ok(())
}
