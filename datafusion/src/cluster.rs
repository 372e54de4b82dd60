//! The same functions and rankings on a Ballista cluster.
//!
//! Ballista's own programs do not know the functions. `maxsim-scheduler` and `maxsim-executor` are
//! Ballista's processes that do; a program with settings of its own starts them by
//! [`scheduler_config`] and [`executor_config`]. [`connect`] makes the client's session, which
//! takes the same queries as [`session`](crate::session).
//!
//! Files are read by the executors: every machine must see them under the same path or address.
//! An executor that is lost is noticed when its heartbeats stop, and what it had done is done
//! again by the others: the answer is that of a whole cluster, or an error.

use std::sync::Arc;

use ballista::extension::{SessionConfigExt, SessionContextExt};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_scheduler::config::SchedulerConfig;
use datafusion::error::Result;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use maxsim::Device;

use crate::{configured, functions, register};

/// Seconds between heartbeats of an executor.
const HEARTBEAT_SECONDS: u64 = 5;

/// Seconds without a heartbeat after which [`scheduler_config`] counts an executor as lost.
///
/// ```
/// // Six of [`executor_config`](maxsim_datafusion::cluster::executor_config).
/// assert_eq!(maxsim_datafusion::cluster::EXECUTOR_TIMEOUT, 30);
/// ```
pub const EXECUTOR_TIMEOUT: u64 = 6 * HEARTBEAT_SECONDS;

/// A session whose queries run on the cluster of a scheduler, such as `df://localhost:50050`.
///
/// # Errors
/// Where `url` is none. Whether there is a scheduler shows with the first query.
///
/// ```no_run
/// use maxsim_datafusion::{TopK, cluster, query, read_parquet};
/// # use maxsim::Tokens;
///
/// # #[tokio::main]
/// # async fn main() -> datafusion::error::Result<()> {
/// # let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2).unwrap().into();
/// let session = cluster::connect("df://localhost:50050").await?;
/// let documents = read_parquet(&session, "/data/pages/").await?;
/// TopK::new(10).of(documents, query(&queries, 0)?)?.show().await
/// # }
/// ```
pub async fn connect(url: &str) -> Result<SessionContext> {
    let config = configured(SessionConfig::new_with_ballista());
    let state = SessionStateBuilder::new_with_default_features().with_config(config).build();
    let session = SessionContext::remote_with_state(url, state).await?;
    // After the session is made, which has Ballista's functions alone. It scores nothing itself but
    // constants.
    register(&session, &Device::cpu());
    Ok(session)
}

/// Ballista's default settings of a scheduler, that knows the functions and notices in
/// half a minute that an executor is lost.
///
/// ```
/// let mut config = maxsim_datafusion::cluster::scheduler_config();
/// config.bind_host = "0.0.0.0".into();
/// config.executor_timeout_seconds = 60;
/// ```
pub fn scheduler_config() -> SchedulerConfig {
    SchedulerConfig {
        executor_timeout_seconds: EXECUTOR_TIMEOUT,
        no_executors_grace_period_seconds: EXECUTOR_TIMEOUT,
        expire_dead_executor_interval_seconds: HEARTBEAT_SECONDS,
        override_session_builder: Some(Arc::new(|config| {
            let mut state = default_session_builder(config)?;
            for function in functions(&Device::cpu()) {
                state.register_udf(function)?;
            }
            Ok(state)
        })),
        ..SchedulerConfig::default()
    }
}

/// Ballista's default settings of an executor, that scores on `device`: on a GPU one task at a
/// time, on the CPU one per core.
///
/// ```
/// use maxsim::Device;
///
/// let mut config = maxsim_datafusion::cluster::executor_config(&Device::cpu());
/// config.scheduler_host = "scheduler".into();
/// assert!(config.vcores >= 1 && config.override_function_registry.is_some());
/// ```
pub fn executor_config(device: &Device) -> ExecutorProcessConfig {
    let mut config = ExecutorProcessConfig {
        executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
        ..ExecutorProcessConfig::default()
    };
    if device.ordinal().is_some() {
        config.vcores = 1;
    }
    let mut registry = BallistaFunctionRegistry::default();
    for function in functions(device) {
        registry.scalar_functions.insert(function.name().into(), function);
    }
    config.override_function_registry = Some(Arc::new(registry));
    config
}
