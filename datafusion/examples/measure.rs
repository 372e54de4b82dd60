//! Measures a query on a cluster of this machine, beside as many processes that read the same
//! files with the same reader and call the library. `bench/search/cluster.py` runs it, and has the
//! words of the record.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{Float32Type, Int64Type};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::prelude::SessionContext;
use maxsim::{Device, Pairing, Ranked, Ranking, Tokens};
use maxsim_datafusion::{TopK, cluster, query, read_parquet, session, write_parquet};

const DIM: usize = 128;
const TOKENS: usize = 100;
const QUERY_TOKENS: usize = 32;
const K: usize = 10;
const FILES: usize = 8;
const EXECUTORS: usize = 2;
/// As in sessions of the crate.
const BATCH: usize = 512;

/// Measures a query on a cluster of this machine.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Writes random documents to eight files.
    Write {
        folder: PathBuf,
        #[arg(long, default_value_t = 100_000)]
        documents: usize,
    },
    /// Measures, and prints milliseconds as JSON.
    Run {
        folder: PathBuf,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// One of the processes beside: ranks every second file for each line that it is sent.
    Peer { folder: PathBuf, index: usize },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().command {
        Subcommands::Write { folder, documents } => write(&folder, documents),
        Subcommands::Run { folder, rounds } => run(&folder, rounds).await,
        Subcommands::Peer { folder, index } => peer(&folder, index),
    }
}

/// Numbers from -1 to 1.
fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn query_tokens() -> Result<Tokens<'static, f32>> {
    let layout = maxsim::TokenLayout::padded(1, QUERY_TOKENS, DIM)?;
    Ok(Tokens::from_layout(random(1, QUERY_TOKENS * DIM), layout)?)
}

fn path(folder: &Path, file: usize) -> PathBuf {
    folder.join(format!("part-{file}.parquet"))
}

fn write(folder: &Path, documents: usize) -> Result<()> {
    fs::create_dir_all(folder)?;
    for file in 0..FILES {
        let [start, end] = [file, file + 1].map(|file| file * documents / FILES);
        let data = random(2 + file as u64, (end - start) * TOKENS * DIM);
        let tokens = Tokens::padded(&data, end - start, TOKENS, DIM)?.into();
        let ids = Int64Array::from_iter_values(start as i64..end as i64);
        write_parquet(path(folder, file), &(Arc::new(ids) as _), &tokens)?;
    }
    Ok(())
}

/// A process that ends with this one.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program with one thread for scores.
fn start(program: &Path, args: &[String], piped: bool) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(args).env("RAYON_NUM_THREADS", "1");
    if piped {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    }
    let child = command.spawn().with_context(|| program.display().to_string())?;
    Ok(Process(child))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for(port: u16) -> Result<()> {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(start.elapsed() < Duration::from_secs(60), "no process serves port {port}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn strings(args: &[&dyn ToString]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string()).collect()
}

/// Starts the scheduler and the executors; the session of their cluster.
async fn start_cluster() -> Result<(Vec<Process>, SessionContext)> {
    let this = env::current_exe()?;
    // Examples are in a folder of their own.
    let programs = this.parent().and_then(Path::parent).context("no folder of programs")?;
    let scheduler = free_port()?;
    let program = programs.join("maxsim-scheduler");
    let mut processes = vec![start(&program, &strings(&[&"--port", &scheduler]), false)?];
    wait_for(scheduler)?;
    for _ in 0..EXECUTORS {
        let [port, grpc] = [free_port()?, free_port()?];
        let args = strings(&[
            &"--device",
            &"cpu",
            &"--tasks",
            &1,
            &"--scheduler",
            &"127.0.0.1",
            &"--scheduler-port",
            &scheduler,
            &"--port",
            &port,
            &"--grpc-port",
            &grpc,
        ]);
        processes.push(start(&programs.join("maxsim-executor"), &args, false)?);
        wait_for(port)?;
    }
    Ok((processes, cluster::connect(&format!("df://127.0.0.1:{scheduler}")).await?))
}

/// Ids and bits of scores, as a session finds them.
async fn rank(session: &SessionContext, folder: &Path) -> Result<Vec<(u32, u32)>> {
    let documents = read_parquet(session, &folder.display().to_string()).await?;
    let query = query(&query_tokens()?.into(), 0)?;
    let batches = TopK::new(K).of(documents, query)?.collect().await?;
    let rows = batches.iter().flat_map(|batch: &RecordBatch| {
        let ids = batch["id"].as_primitive::<Int64Type>().values();
        let scores = batch["score"].as_primitive::<Float32Type>().values();
        ids.iter().zip(scores).map(|(&id, score)| (id as u32, score.to_bits()))
    });
    Ok(rows.collect())
}

async fn run(folder: &Path, rounds: usize) -> Result<()> {
    let alone = rank(&session(&Device::cpu())?, folder).await?;
    let (_processes, session) = start_cluster().await?;
    let mut peers = Vec::new();
    for index in 0..EXECUTORS {
        let args = strings(&[&"peer", &folder.display(), &index]);
        peers.push(start(&env::current_exe()?, &args, true)?);
    }
    let [mut cluster_ms, mut peer_ms] = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let start = Instant::now();
        let found = rank(&session, folder).await?;
        let cluster = start.elapsed();
        let start = Instant::now();
        let beside = rank_beside(&mut peers)?;
        let beside_time = start.elapsed();
        ensure!(found == alone, "the cluster's ranking is another: {found:?}, not {alone:?}");
        ensure!(beside == alone, "the processes' ranking is another: {beside:?}, not {alone:?}");
        // The first is a warm-up.
        if round > 0 {
            cluster_ms.push(cluster.as_secs_f64() * 1e3);
            peer_ms.push(beside_time.as_secs_f64() * 1e3);
        }
    }
    println!("{{\"cluster_ms\": {cluster_ms:?}, \"peer_ms\": {peer_ms:?}}}");
    Ok(())
}

/// The ranking that the processes beside find together.
fn rank_beside(peers: &mut [Process]) -> Result<Vec<(u32, u32)>> {
    for Process(peer) in peers.iter_mut() {
        peer.stdin.as_mut().context("no stdin")?.write_all(b"go\n")?;
    }
    let mut found = Vec::new();
    for Process(peer) in peers {
        let mut line = String::new();
        BufReader::new(peer.stdout.as_mut().context("no stdout")?).read_line(&mut line)?;
        let mut ranking = Ranking::default();
        for entry in line.split_whitespace() {
            let Some((id, bits)) = entry.split_once(':') else { bail!("{line}") };
            let score = f32::from_bits(bits.parse()?);
            ranking.ranked.push(Ranked { id: id.parse()?, score, has_tokens: true });
        }
        found.push(ranking);
    }
    let merged = Ranking::merge(found, K).ranked;
    Ok(merged.iter().map(|ranked| (ranked.id, ranked.score.to_bits())).collect())
}

/// Reads every second file and calls the library, once for each line of the input.
fn peer(folder: &Path, index: usize) -> Result<()> {
    let (device, query) = (Device::cpu(), query_tokens()?);
    for line in std::io::stdin().lock().lines() {
        line?;
        let mut best = maxsim::TopK::new(K);
        for file in (index..FILES).step_by(EXECUTORS) {
            let file = File::open(path(folder, file))?;
            let reader = ParquetRecordBatchReaderBuilder::try_new(file)?;
            for batch in reader.with_batch_size(BATCH).build()? {
                let batch = batch?;
                let lists = batch["tokens"].as_list::<i32>();
                let rows = lists.values().as_fixed_size_list().values();
                let rows = rows.as_primitive::<Float32Type>().values();
                let documents = Tokens::packed(rows, DIM, lists.value_offsets())?;
                let scores = device.score(&query, &documents, &Pairing::cross())?;
                let ids = batch["id"].as_primitive::<Int64Type>().values();
                for (&id, &score) in ids.iter().zip(scores.values()) {
                    best.push(Ranked { id: id as u32, score, has_tokens: true });
                }
            }
        }
        let ranked = best.into_ranking().ranked;
        let words: Vec<_> =
            ranked.iter().map(|r| format!("{}:{}", r.id, r.score.to_bits())).collect();
        println!("{}", words.join(" "));
    }
    Ok(())
}
