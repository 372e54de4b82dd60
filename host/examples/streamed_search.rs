//! Searches documents that pass by, from memory, page-locked memory or a file, and prints how many
//! documents and bytes a second it takes.
//!
//! ```sh
//! cargo run --release -p maxsim --example streamed_search -- --from direct --file corpus.bin
//! ```
//!
//! The corpus is made up: rows of f16, of INT8 codes (`--int8`) or residual codes (`--plaid`), of
//! which there are a few thousand, over and over. A file that is not there is written first.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use maxsim::format::{Format, Int8, ScaleType, Scales, ScorableWith};
use maxsim::half::f16;
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::streaming::{Source, StreamFound, StreamOptions, TokenReader};
use maxsim::{Device, Devices, TokenLayout, Tokens};

/// Rows of which the corpus is made.
const PATTERN_ROWS: usize = 4099;

/// Searches documents that pass by.
#[derive(Parser)]
struct Args {
    /// Where the documents are
    #[arg(long, default_value = "memory")]
    from: From,
    /// The file of `--from file` and `direct`; it is written if it is not there
    #[arg(long, default_value = "target/streamed_search.bin")]
    file: PathBuf,
    /// Documents
    #[arg(long, default_value_t = 2000)]
    documents: usize,
    /// Tokens of each document
    #[arg(long, default_value_t = 100)]
    document_tokens: usize,
    /// Queries
    #[arg(long, default_value_t = 1)]
    queries: usize,
    /// Tokens of each query
    #[arg(long, default_value_t = 32)]
    query_tokens: usize,
    /// Elements of a token
    #[arg(long, default_value_t = 128)]
    dim: usize,
    /// Documents to find for each query
    #[arg(long, default_value_t = 10)]
    k: usize,
    /// Threads that read documents [default: up to 8]
    #[arg(long)]
    threads: Option<usize>,
    /// Size of a buffer in MB [default: 128 on a GPU, 16 on the CPU]
    #[arg(long)]
    buffer: Option<u64>,
    /// Codes of one byte in place of f16
    #[arg(long)]
    int8: bool,
    /// Residual codes of 2 bits in place of f16, in memory
    #[arg(long, conflicts_with_all = ["int8", "from"])]
    plaid: bool,
    /// Searches, of which the fastest counts
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// The CPU, where there is a GPU too
    #[arg(long)]
    cpu: bool,
    /// GPUs that share the documents (or shares of the CPU)
    #[arg(long, default_value_t = 1)]
    devices: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum From {
    Memory,
    PageLocked,
    File,
    Direct,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.repeats > 0 && args.documents > 0, "there is nothing to search");
    let mut devices = if args.cpu { Devices::new([Device::cpu()])? } else { Devices::all() };
    devices = match devices.devices() {
        [one] if one.ordinal().is_none() => Devices::new(vec![one.clone(); args.devices])?,
        all => {
            ensure!(args.devices <= all.len(), "there are {} GPUs", all.len());
            Devices::new(&all[..args.devices])?
        }
    };
    for device in devices.devices() {
        println!("{device}: {}", device.name());
    }
    let query_rows = pattern(args.queries * args.query_tokens, args.dim);
    let queries = Tokens::padded(&query_rows, args.queries, args.query_tokens, args.dim)?;
    let values = pattern(PATTERN_ROWS, args.dim);
    if args.plaid {
        search_residuals(&devices, &args, &queries.convert::<f16>()?.0)
    } else if args.int8 {
        let codes: Vec<i8> = values.iter().map(|x| (x * 127.0) as i8).collect();
        let scales = vec![f16::from_f32(1.0 / 127.0); args.documents * args.document_tokens];
        let queries = queries.quantize::<Int8>(ScaleType::F16)?;
        search(&devices, &args, &queries, &codes, Some(Scales::F16((&scales[..]).into())))
    } else {
        let halves: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
        search(&devices, &args, &queries.convert::<f16>()?.0, &halves, None)
    }
}

/// Numbers from -1 to 1 that look like noise, the same ones every time.
fn pattern(rows: usize, dim: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..rows * dim).map(|_| number()).collect()
}

/// Rows in memory, of elements or of codes with scales.
struct Held<'a, F: Format> {
    layout: &'a TokenLayout,
    rows: &'a [F::Stored],
    scales: Option<Scales<'a>>,
}

impl<F: Format> Source<F> for Held<'_, F> {
    fn layout(&self) -> &TokenLayout {
        self.layout
    }

    fn scales(&self) -> Option<Scales<'_>> {
        self.scales.clone()
    }

    fn in_memory(&self) -> Option<&[F::Stored]> {
        Some(self.rows)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        let dim = self.layout.dim();
        to.copy_from_slice(&self.rows[rows.start * dim..rows.end * dim]);
        Ok(())
    }
}

/// Puts the corpus where it is to be, and searches it.
fn search<F: ScorableWith<F>>(
    devices: &Devices,
    args: &Args,
    queries: &Tokens<'_, F>,
    pattern: &[F::Stored],
    scales: Option<Scales<'_>>,
) -> Result<()> {
    let layout = TokenLayout::padded(args.documents, args.document_tokens, args.dim)?;
    let len = layout.rows() * args.dim;
    match args.from {
        From::Memory => {
            let rows: Vec<F::Stored> = pattern.iter().copied().cycle().take(len).collect();
            let held = Held { layout: &layout, rows: &rows, scales };
            measure(args, |options| devices.search_stream(queries, &held, args.k, options))
        }
        From::PageLocked => {
            let mut rows = devices.devices()[0].page_locked::<F>(len)?;
            rows.chunks_mut(pattern.len()).for_each(|part| {
                part.copy_from_slice(&pattern[..part.len()]);
            });
            let held = Held { layout: &layout, rows: &rows, scales };
            measure(args, |options| devices.search_stream(queries, &held, args.k, options))
        }
        From::File | From::Direct => {
            write_corpus(&args.file, bytemuck::cast_slice(pattern), len * size_of::<F::Stored>())?;
            let mut reader = match args.from {
                From::Direct => TokenReader::<F>::open_direct(&args.file, 0, layout)?,
                _ => TokenReader::<F>::open(&args.file, 0, layout)?,
            };
            if let Some(scales) = scales {
                reader = reader.with_scales(scales);
            }
            measure(args, |options| devices.search_stream(queries, &reader, args.k, options))
        }
    }
}

/// Writes a file of so many bytes, unless there is one.
fn write_corpus(path: &Path, pattern: &[u8], len: usize) -> Result<()> {
    if path.metadata().is_ok_and(|file| file.len() == len as u64) {
        return Ok(());
    }
    println!("writing {len} bytes to {}", path.display());
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut left = len;
    let mut file = BufWriter::new(file);
    while left > 0 {
        let n = left.min(pattern.len());
        file.write_all(&pattern[..n])?;
        left -= n;
    }
    file.flush()?;
    Ok(())
}

/// Searches residual-compressed documents in memory, whose tables and codes are made up.
fn search_residuals(devices: &Devices, args: &Args, queries: &Tokens<'_, f16>) -> Result<()> {
    let centroids = Centroids::F32(pattern(PATTERN_ROWS, args.dim).into());
    let codec = ResidualCodec::new(2, args.dim, centroids, &[-0.3, -0.1, 0.1, 0.3], true)?;
    let layout = TokenLayout::padded(args.documents, args.document_tokens, args.dim)?;
    let codes: Vec<i32> = (0..layout.rows()).map(|row| (row * 31 % PATTERN_ROWS) as i32).collect();
    let buckets = (0..layout.rows() * codec.row_bytes()).map(|i| (i * 7919 % 251) as u8);
    let buckets: Vec<u8> = buckets.collect();
    let tokens = ResidualTokens::new(codec.into(), codes, buckets, BitOrder::LittleEndian, layout)?;
    match devices.devices()[0].ordinal() {
        None => measure(args, |options| {
            devices.search_residual_stream(queries, &tokens, args.k, options)
        }),
        Some(_) => {
            let arranged = tokens.arranged()?;
            measure(args, |options| {
                devices.search_residual_stream(queries, &arranged, args.k, options)
            })
        }
    }
}

/// Searches some times, and prints the fastest.
fn measure(
    args: &Args,
    search: impl Fn(&StreamOptions) -> maxsim::Result<StreamFound>,
) -> Result<()> {
    let buffer_bytes = args.buffer.map(|megabytes| megabytes << 20);
    let options = StreamOptions::default().threads(args.threads).buffer_bytes(buffer_bytes);
    let mut fastest = f64::INFINITY;
    for repeat in 0..args.repeats {
        let begun = Instant::now();
        let found = search(&options)?;
        let seconds = begun.elapsed().as_secs_f64();
        fastest = fastest.min(seconds);
        let best = found.rankings.first().and_then(|ranking| ranking.ranked.first());
        println!(
            "search {repeat}: {seconds:.3} s, {} chunks by {}, best {}",
            found.n_chunks,
            found.kernels.join(", "),
            best.map_or("none".into(), |best| format!("{} ({:.4})", best.id, best.score)),
        );
        if repeat + 1 == args.repeats {
            println!(
                "{:.0} documents/s, {:.2} GB/s",
                args.documents as f64 / fastest,
                found.bytes as f64 / fastest / 1e9
            );
        }
    }
    Ok(())
}
