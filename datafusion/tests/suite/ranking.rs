//! Rankings of tables in several partitions are those of the library.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::{Int64Type, UInt64Type};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use maxsim::format::{ScaleType, TokenFormat};
use maxsim::{AnyTokens, Device, Tokens};
use maxsim_datafusion::{TopK, batch, configured, query, register};

use crate::data::{Numbers, expected_ranking, ids, layout, ranked, tokens};

const DIM: usize = 6;

/// 60 documents, many of which score the same, some NaN and some without tokens.
fn documents() -> Tokens<'static, f32> {
    let lengths: Vec<usize> = (0..60).map(|i| [2, 0, 1, 3][i % 4]).collect();
    let layout = layout(&lengths, DIM);
    let one_of = |x: f32| (x * 1.5).round();
    let mut data: Vec<f32> = Numbers(1).map(one_of).take(layout.rows() * DIM).collect();
    for row in [7, 30, 31, 55] {
        data[row * DIM + 2] = f32::NAN;
    }
    Tokens::from_layout(data, layout).unwrap()
}

/// A session whose scans are partitions of the table as they are.
fn session() -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(4).with_round_robin_repartition(false);
    let session = SessionContext::new_with_config(configured(config));
    register(&session, &Device::cpu());
    session
}

/// The batch as a table of partitions, whose rows are shuffled and cut anywhere.
fn table(session: &SessionContext, batch: &RecordBatch, cuts: &[usize]) -> DataFrame {
    let n = batch.num_rows();
    let order = (0..n as u64).map(|i| (i * 37 + 11) % n as u64);
    let order = datafusion::arrow::array::PrimitiveArray::<UInt64Type>::from_iter_values(order);
    let shuffled = take_record_batch(batch, &order).unwrap();
    let parts = cuts.windows(2).map(|cut| vec![shuffled.slice(cut[0], cut[1] - cut[0])]);
    let table = MemTable::try_new(batch.schema(), parts.collect()).unwrap();
    session.read_table(Arc::new(table)).unwrap()
}

#[tokio::test]
async fn any_cut_into_partitions_gives_the_librarys_ranking() {
    let session = session();
    let documents: AnyTokens<'_> = documents().into();
    let queries: AnyTokens<'_> = {
        let rounded: Vec<f32> = tokens(5, &[3], DIM).data().iter().map(|x| x.round()).collect();
        Tokens::from_layout(rounded, layout(&[3], DIM)).unwrap().into()
    };
    let codes = documents.quantize(TokenFormat::Int8, ScaleType::F16).unwrap();
    let query_codes = queries.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
    let plain = batch(ids(60), &documents).unwrap();
    let coded = batch(ids(60), &codes).unwrap();
    for cuts in [vec![0, 60], vec![0, 1, 30, 30, 60], vec![0, 15, 30, 45, 60]] {
        for k in [0, 1, 7, 45, 60, 100] {
            let query = query(&queries, 0).unwrap();
            let found = TopK::new(k).of(table(&session, &plain, &cuts), query.clone()).unwrap();
            let found = ranked(&found.collect().await.unwrap());
            assert_eq!(
                without_nan_bits(&found),
                without_nan_bits(&expected_ranking(&queries, &documents, k))
            );

            let top = TopK::new(k).int8("codes", "scales");
            let found = top.of(table(&session, &coded, &cuts), query).unwrap();
            let found = ranked(&found.collect().await.unwrap());
            assert_eq!(
                without_nan_bits(&found),
                without_nan_bits(&expected_ranking(&query_codes, &codes, k))
            );
        }
    }
}

/// Which NaN a score is, is not fixed.
fn without_nan_bits(ranking: &[(i64, Option<u32>)]) -> Vec<(i64, Option<u32>)> {
    let nan = |bits: u32| if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
    ranking.iter().map(|&(id, score)| (id, score.map(nan))).collect()
}

#[tokio::test]
async fn documents_that_are_null_come_last() {
    let session = session();
    let all: AnyTokens<'_> = documents().into();
    session.register_batch("documents", batch(ids(60), &all).unwrap()).unwrap();
    let nulled = session
        .sql("SELECT id AS page, CASE WHEN id % 10 <> 3 THEN tokens END AS pixels FROM documents")
        .await
        .unwrap();
    let queries = tokens(5, &[3], DIM).into();
    let top = TopK::new(60).id("page").tokens("pixels");
    let found = top.of(nulled, query(&queries, 0).unwrap()).unwrap().collect().await.unwrap();
    let found = concat_batches(&found[0].schema(), &found).unwrap();
    let pages: &Int64Array = found["page"].as_primitive::<Int64Type>();
    let last: Vec<i64> = pages.values()[54..].to_vec();
    assert_eq!(last, [3, 13, 23, 33, 43, 53]);
    assert!((54..60).all(|row| found["score"].is_null(row)));
    let expected = expected_ranking(&queries, &all, 60);
    let expected = expected.iter().map(|x| x.0).filter(|id| id % 10 != 3);
    assert!(pages.values()[..54].iter().copied().eq(expected));
}

/// The same order by SQL alone, as the guide says.
#[tokio::test]
async fn sql_ranks_by_keys() {
    let session = session();
    let documents: AnyTokens<'_> = documents().into();
    let queries = tokens(5, &[3], DIM).into();
    let table = table(&session, &batch(ids(60), &documents).unwrap(), &[0, 20, 60]);
    session.register_table("documents", table.into_view()).unwrap();
    let sql = "SELECT id, score FROM (
                 SELECT id, maxsim($query, tokens) AS score,
                        maxsim_key(maxsim($query, tokens), tokens) AS key FROM documents)
               ORDER BY key DESC NULLS LAST, id LIMIT 50";
    let query = query(&queries, 0).unwrap();
    let frame = session.sql(sql).await.unwrap().with_param_values(vec![("query", query)]).unwrap();
    let found = ranked(&frame.collect().await.unwrap());
    let expected = expected_ranking(&queries, &documents, 50);
    assert_eq!(without_nan_bits(&found), without_nan_bits(&expected));
}

#[tokio::test]
async fn partitions_keep_their_best_and_score_once() {
    let session = session();
    let documents: AnyTokens<'_> = documents().into();
    let table = table(&session, &batch(ids(60), &documents).unwrap(), &[0, 15, 30, 45, 60]);
    let queries = tokens(5, &[1], DIM).into();
    let frame = TopK::new(3).of(table, query(&queries, 0).unwrap()).unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let plan = displayable(plan.as_ref()).indent(false).to_string();
    assert!(
        plan.contains("SortPreservingMergeExec: [maxsim_key@2 DESC NULLS LAST, id@0"),
        "{plan}"
    );
    assert!(plan.contains("SortExec: TopK(fetch=3)"), "{plan}");
    assert!(plan.contains("preserve_partitioning=[true]"), "{plan}");
    // Nothing but scores goes up from there.
    assert!(
        !plan
            .lines()
            .take_while(|line| !line.contains("SortExec"))
            .any(|line| line.contains("tokens")),
        "{plan}"
    );
    assert_eq!(plan.matches("maxsim(").count(), 1, "{plan}");
}

#[tokio::test]
async fn a_session_without_functions_says_so() {
    let documents = batch(ids(2), &tokens(1, &[1, 1], DIM).into()).unwrap();
    let frame = SessionContext::new().read_batch(documents).unwrap();
    let query = query(&tokens(1, &[1], DIM).into(), 0).unwrap();
    let error = TopK::new(1).of(frame, query).unwrap_err().to_string();
    assert!(error.contains("call maxsim_datafusion::register first"), "{error}");
}
