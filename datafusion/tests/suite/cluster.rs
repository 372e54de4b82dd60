//! A scheduler and two executors on this machine, some of which are killed.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use maxsim::AnyTokens;
use maxsim::format::{ScaleType, TokenFormat};
use maxsim_datafusion::{TopK, cluster, query};
use tempfile::TempDir;

use crate::data::{expected_ranking, ranked, sample, tokens};
use crate::files::{check_files_that_come_later, read, write, write_parts};

/// Longest that anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A process that ends with the test.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(program: &str, log: PathBuf, args: &[String]) -> Process {
        let stderr = File::create(&log).unwrap();
        let mut command = Command::new(program);
        // Two threads of the engine would only compete for cores with the other's.
        command.args(args).stderr(stderr).env("RUST_LOG", "info").env("RAYON_NUM_THREADS", "1");
        Process { child: command.spawn().unwrap(), log }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tasks that an executor has begun.
    fn n_tasks(&self) -> usize {
        fs::read_to_string(&self.log).unwrap().matches("Execute task").count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ids and bits of scores.
type Ranked = Vec<(i64, Option<u32>)>;

struct Cluster {
    scheduler: Process,
    scheduler_port: u16,
    executors: Vec<Process>,
    session: SessionContext,
    logs: TempDir,
}

impl Cluster {
    /// A scheduler and two executors.
    async fn start() -> Cluster {
        let logs = tempfile::tempdir().unwrap();
        let [scheduler_port] = free_ports();
        let args = ["--port", &scheduler_port.to_string(), "--executor-timeout", "12"];
        let scheduler = Process::start(
            env!("CARGO_BIN_EXE_maxsim-scheduler"),
            logs.path().join("scheduler"),
            &args.map(String::from),
        );
        wait_for(scheduler_port);
        let url = format!("df://127.0.0.1:{scheduler_port}");
        let session = cluster::connect(&url).await.unwrap();
        let mut cluster = Cluster { scheduler, scheduler_port, executors: vec![], session, logs };
        cluster.add_executor();
        cluster.add_executor();
        cluster
    }

    fn add_executor(&mut self) {
        let [port, grpc_port] = free_ports();
        let args = format!(
            "--device cpu --tasks 1 --scheduler 127.0.0.1 --scheduler-port {} --port {port} \
             --grpc-port {grpc_port}",
            self.scheduler_port
        );
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        let log = self.logs.path().join(format!("executor-{}", self.executors.len()));
        self.executors.push(Process::start(env!("CARGO_BIN_EXE_maxsim-executor"), log, &args));
        // Served last, after the scheduler knows the executor.
        wait_for(port);
    }

    async fn rank(&self, folder: &Path, top: TopK, query: ScalarValue) -> Result<Ranked> {
        rank(&self.session, folder, top, query).await
    }
}

/// The best documents, or why there are none; not for ever.
async fn rank(
    session: &SessionContext,
    folder: &Path,
    top: TopK,
    query: ScalarValue,
) -> Result<Ranked> {
    let found = async {
        let frame = read(session, folder).await?;
        Ok(ranked(&top.of(frame, query)?.collect().await?))
    };
    tokio::time::timeout(LIMIT, found).await.expect("an answer or an error")
}

/// Ports that were free a moment ago, each another.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Waits until a process serves a port.
fn wait_for(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < LIMIT, "no process serves port {port}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_ranks_as_the_library_does() {
    let mut cluster = Cluster::start().await;
    let (queries, documents) = (sample("queries"), sample("documents"));
    let (queries, documents) = (queries.all().unwrap(), documents.all().unwrap());
    let codes = documents.quantize(TokenFormat::Int8, ScaleType::F16).unwrap();
    let folders = [&documents, &codes].map(|documents| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), documents);
        folder
    });
    let one = |item: usize| queries.items(item..item + 1).unwrap();
    let expected = |item: usize| expected_ranking(&one(item), &documents, 10);
    let constant = |item: usize| query(&queries, item).unwrap();
    for item in [0, 7] {
        let found = cluster.rank(folders[0].path(), TopK::new(10), constant(item)).await.unwrap();
        assert_eq!(found, expected(item));
        let top = TopK::new(10).int8("codes", "scales");
        let found = cluster.rank(folders[1].path(), top, constant(item)).await.unwrap();
        let one = one(item).quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
        assert_eq!(found, expected_ranking(&one, &codes, 10));
    }
    assert!(cluster.executors.iter().all(|executor| executor.n_tasks() > 0));

    // A truncated file is an error, and one whose first half is missing; written again, it is not.
    let part = folders[0].path().join("part-2.parquet");
    let bytes = fs::read(&part).unwrap();
    for broken in [&bytes[..bytes.len() / 2], &[&bytes[..4], &bytes[bytes.len() / 2..]].concat()] {
        fs::write(&part, broken).unwrap();
        let found = cluster.rank(folders[0].path(), TopK::new(10), constant(3)).await;
        assert!(found.is_err(), "{found:?}");
    }
    fs::write(&part, &bytes).unwrap();
    let found = cluster.rank(folders[0].path(), TopK::new(10), constant(3)).await.unwrap();
    assert_eq!(found, expected(3));

    check_files_that_come_later(&cluster.session).await;

    // One executor is killed between two queries, then the other, then the scheduler.
    cluster.executors[0].kill();
    let found = cluster.rank(folders[0].path(), TopK::new(10), constant(4)).await.unwrap();
    assert_eq!(found, expected(4));
    cluster.executors[1].kill();
    let found = cluster.rank(folders[0].path(), TopK::new(10), constant(4)).await;
    assert!(found.is_err(), "{found:?}");
    cluster.add_executor();
    let found = cluster.rank(folders[0].path(), TopK::new(10), constant(4)).await.unwrap();
    assert_eq!(found, expected(4));
    cluster.scheduler.kill();
    let found = cluster.rank(folders[0].path(), TopK::new(10), constant(4)).await;
    assert!(found.is_err(), "{found:?}");
}

/// With its first task unfinished, and with some finished whose results are lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_may_be_killed_in_the_middle_of_a_query() {
    let mut cluster = Cluster::start().await;
    let documents: AnyTokens<'_> = tokens(1, &[64; 4000], 128).into();
    let queries: AnyTokens<'_> = tokens(2, &[32], 128).into();
    let folder = Arc::new(tempfile::tempdir().unwrap());
    write_parts(folder.path(), &documents, 16);
    let expected = expected_ranking(&queries, &documents, 10);
    let query = query(&queries, 0).unwrap();
    for n_tasks in [1, 4] {
        let last = cluster.executors.len() - 1;
        let job = {
            let (session, folder, query) = (cluster.session.clone(), folder.clone(), query.clone());
            tokio::spawn(async move { rank(&session, folder.path(), TopK::new(10), query).await })
        };
        let before = cluster.executors[last].n_tasks();
        while cluster.executors[last].n_tasks() < before + n_tasks {
            assert!(!job.is_finished(), "{:?}", job.await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.executors[last].kill();
        assert!(!job.is_finished(), "the query ended before its executor");
        match job.await.unwrap() {
            Ok(found) => assert_eq!(found, expected),
            Err(error) => println!("after {n_tasks} tasks: {error}"),
        }
        let found = cluster.rank(folder.path(), TopK::new(10), query.clone()).await.unwrap();
        assert_eq!(found, expected);
        cluster.add_executor();
    }
}
