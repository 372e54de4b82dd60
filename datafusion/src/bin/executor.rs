//! Ballista's executor with the functions of maxsim.

use std::sync::Arc;

use anyhow::Result;
use ballista_executor::executor_process::start_executor_process;
use clap::Parser;
use maxsim_cli::args::DeviceChoice;
use maxsim_datafusion::cluster::executor_config;

/// Scores partitions that a scheduler assigns to it. RUST_LOG=info says what it does.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to compute: a GPU per executor, or the CPU.
    #[arg(long, value_name = "auto|cpu|cuda:N", default_value = "auto")]
    device: DeviceChoice,
    /// Host of the scheduler.
    #[arg(long, value_name = "HOST", default_value = "localhost")]
    scheduler: String,
    /// Port of the scheduler.
    #[arg(long, value_name = "PORT", default_value_t = 50050)]
    scheduler_port: u16,
    /// Address to listen on, for the scheduler, other executors and clients.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: String,
    /// Name that the others reach this host by. Unset, the address that the scheduler sees.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Port of results.
    #[arg(long, default_value_t = 50051)]
    port: u16,
    /// Port of the scheduler's calls.
    #[arg(long, value_name = "PORT", default_value_t = 50052)]
    grpc_port: u16,
    /// Tasks at a time. Unset, one per core, and one where a GPU scores.
    #[arg(long, value_name = "N")]
    tasks: Option<usize>,
}

#[tokio::main]
async fn main() -> Result<()> {
    env_logger::init();
    let args = Args::parse();
    let mut config = executor_config(&args.device.open()?);
    let folder = tempfile::tempdir()?;
    config.work_dir = Some(folder.path().display().to_string());
    config.scheduler_host = args.scheduler;
    config.scheduler_port = args.scheduler_port;
    config.scheduler_connect_timeout_seconds = 30;
    config.bind_host = args.bind;
    config.external_host = args.host;
    (config.port, config.grpc_port) = (args.port, args.grpc_port);
    config.vcores = args.tasks.unwrap_or(config.vcores);
    Ok(start_executor_process(Arc::new(config)).await?)
}
