//! Ballista's scheduler with the functions of maxsim.

use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::scheduler_process::start_server;
use clap::Parser;
use maxsim_datafusion::cluster::{EXECUTOR_TIMEOUT, scheduler_config};

/// Distributes queries among executors. RUST_LOG=info says what it does.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: String,
    /// Port to listen on.
    #[arg(long, default_value_t = 50050)]
    port: u16,
    /// Seconds after which an executor without heartbeats is lost. They come every 5 seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = EXECUTOR_TIMEOUT)]
    executor_timeout: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    env_logger::init();
    let args = Args::parse();
    let mut config = scheduler_config();
    config.bind_host = args.bind;
    config.bind_port = args.port;
    config.executor_timeout_seconds = args.executor_timeout;
    config.no_executors_grace_period_seconds = args.executor_timeout;
    config.expire_dead_executor_interval_seconds = args.executor_timeout.div_ceil(6);
    let address = format!("{}:{}", config.bind_host, config.bind_port);
    let address = address.parse().with_context(|| format!("--bind {}", config.bind_host))?;
    let cluster = BallistaCluster::new_from_config(&config).await?;
    Ok(start_server(cluster, address, Arc::new(config)).await?)
}
