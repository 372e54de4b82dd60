//! Scores of columns are those of the library, bit for bit.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Float32Type};
use datafusion::logical_expr::ColumnarValue;
use maxsim::format::{Int8, ScaleType, Scales, TokenFormat};
use maxsim::half::f16;
use maxsim::{AnyTokens, Device, Tokens};
use maxsim_datafusion::{batch, query, session};

use crate::data::{bits, call, column, constant, error, expected, flat, ids, layout, tokens};

const LENGTHS: [usize; 9] = [3, 0, 1, 17, 2, 0, 5, 40, 9];
const DIM: usize = 24;

fn some(bits: Vec<u32>) -> Vec<Option<u32>> {
    bits.into_iter().map(Some).collect()
}

fn halves(tokens: &Tokens<'_, f32>) -> Tokens<'static, f16> {
    let data: Vec<f16> = tokens.data().iter().map(|&x| f16::from_f32(x)).collect();
    Tokens::from_layout(data, tokens.layout().clone()).unwrap()
}

/// The column as LargeList.
fn large(column: &ArrayRef) -> ArrayRef {
    let item = column.as_list::<i32>().value_type();
    cast(column, &DataType::LargeList(Arc::new(Field::new_list_field(item, true)))).unwrap()
}

#[test]
fn every_type_of_lists_scores_as_the_library() {
    let f32s = [tokens(1, &[7, 4], DIM), tokens(2, &LENGTHS, DIM)];
    let f16s = [halves(&f32s[0]), halves(&f32s[1])];
    let cases: [[AnyTokens<'_>; 2]; 2] = [f32s.map(AnyTokens::from), f16s.map(AnyTokens::from)];
    for [queries, documents] in &cases {
        let found = expected(queries, documents);
        let found: [Vec<_>; 2] = [0, 1].map(|q| some(found[q * 9..][..9].to_vec()));
        let queries = column(queries, "tokens");
        let nested = column(documents, "tokens");
        for documents in [nested.clone(), large(&nested), flat(&nested), large(&flat(&nested))] {
            for (item, found) in found.iter().enumerate() {
                for queries in [queries.clone(), large(&queries)] {
                    let args = [constant(&queries, item), ColumnarValue::Array(documents.clone())];
                    assert_eq!(bits(call("maxsim", &args, 9).unwrap()), *found);
                }
            }
        }
        // A query of numbers alone, where documents say the dim.
        let args = [constant(&flat(&queries), 1), ColumnarValue::Array(nested)];
        assert_eq!(bits(call("maxsim", &args, 9).unwrap()), found[1]);
    }
}

#[test]
fn slices_score_as_what_they_show() {
    let documents = tokens(3, &LENGTHS, DIM).into();
    let queries: AnyTokens<'_> = tokens(4, &[6], DIM).into();
    let found = some(expected(&queries, &documents));
    let query = constant(&column(&queries, "tokens"), 0);
    let nested = column(&documents, "tokens");
    for documents in [nested.clone(), large(&nested), flat(&nested)] {
        for (start, len) in [(0, 9), (1, 8), (3, 4), (4, 1), (5, 1), (9, 0), (2, 0)] {
            let args = [query.clone(), ColumnarValue::Array(documents.slice(start, len))];
            let scores = bits(call("maxsim", &args, len).unwrap());
            assert_eq!(scores, found[start..start + len], "{start} {len}");
        }
    }
}

#[test]
fn two_columns_are_scored_row_by_row() {
    let lengths: Vec<usize> = LENGTHS.iter().rev().copied().collect();
    let queries: AnyTokens<'_> = tokens(5, &lengths, DIM).into();
    let documents: AnyTokens<'_> = tokens(6, &LENGTHS, DIM).into();
    let found = some(expected(&queries, &documents));
    let [queries, documents] = [&queries, &documents].map(|tokens| column(tokens, "tokens"));
    let rows: Vec<_> = (0..9).map(|row| found[row * 9 + row]).collect();
    let args = [&queries, &documents].map(|x| ColumnarValue::Array(x.clone()));
    assert_eq!(bits(call("maxsim", &args, 9).unwrap()), rows);
    // A constant document, and two constants.
    let args = [ColumnarValue::Array(queries.clone()), constant(&documents, 3)];
    let third: Vec<_> = (0..9).map(|row| found[row * 9 + 3]).collect();
    assert_eq!(bits(call("maxsim", &args, 9).unwrap()), third);
    let args = [constant(&queries, 1), constant(&documents, 7)];
    let score = call("maxsim", &args, 9).unwrap();
    assert!(matches!(score, ColumnarValue::Scalar(_)));
    assert_eq!(bits(score), [found[9 + 7]]);
}

#[test]
fn int8_codes_score_as_the_library() {
    let queries: AnyTokens<'_> = tokens(7, &[5, 30], DIM).into();
    let documents = tokens(8, &LENGTHS, DIM);
    for scales in [ScaleType::F16, ScaleType::F32] {
        let codes: AnyTokens<'_> =
            AnyTokens::from(documents.clone()).quantize(TokenFormat::Int8, scales).unwrap();
        let found = queries.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
        let found = some(expected(&found, &codes));
        let queries = column(&queries, "tokens");
        let [codes, scales] = ["codes", "scales"].map(|name| column(&codes, name));
        for (start, len) in [(0, 9), (2, 5)] {
            let [codes, scales] =
                [&codes, &scales].map(|column| ColumnarValue::Array(column.slice(start, len)));
            let args = [constant(&queries, 1), codes, scales];
            let scores = bits(call("maxsim_int8", &args, len).unwrap());
            assert_eq!(scores, found[9 + start..9 + start + len]);
        }
        let args = [constant(&queries, 0), constant(&codes, 3), constant(&scales, 3)];
        assert_eq!(bits(call("maxsim_int8", &args, 1).unwrap()), [found[3]]);

        let args = [constant(&queries, 0), constant(&codes, 3), ColumnarValue::Array(scales)];
        assert!(error(call("maxsim_int8", &args, 9)).contains("found one of each"));
    }
}

#[test]
fn scales_are_as_many_as_codes() {
    let codes = AnyTokens::from(tokens(9, &LENGTHS, DIM))
        .quantize(TokenFormat::Int8, ScaleType::F16)
        .unwrap();
    let other = AnyTokens::from(tokens(9, &[3, 0, 1, 16, 3, 0, 5, 40, 9], DIM))
        .quantize(TokenFormat::Int8, ScaleType::F16)
        .unwrap();
    let query = constant(&column(&tokens(1, &[2], DIM).into(), "tokens"), 0);
    let args = [query, column(&codes, "codes").into(), column(&other, "scales").into()];
    let error = error(call("maxsim_int8", &args, 9));
    assert!(
        error.contains("scales: expected a scale for each of the 17 tokens of row 3, found 16"),
        "{error}"
    );
}

/// No element is compressed to it, and not every kernel multiplies it.
#[test]
fn the_code_that_there_is_not_is_refused() {
    let layout = layout(&[2, 0, 1, 3], 4);
    let scales = || Scales::F32(vec![1.0; 6].into());
    for (place, row) in [(0, 0), (11, 2), (23, 3)] {
        let mut codes = vec![127i8; 24];
        codes[place] = -128;
        let coded = Tokens::<Int8>::from_codes(codes, scales(), layout.clone()).unwrap().into();
        let query = constant(&column(&tokens(1, &[2], 4).into(), "tokens"), 0);
        let columns = ["codes", "scales"].map(|name| column(&coded, name).into());
        let args: Vec<_> = [query].into_iter().chain(columns).collect();
        let error = error(call("maxsim_int8", &args, 4));
        assert!(error.contains(&format!("codes: row {row} has the code -128")), "{error}");
    }
}

#[test]
fn nothing_is_converted_unasked() {
    let documents = tokens(2, &LENGTHS, DIM);
    let half: AnyTokens<'_> = halves(&documents).into();
    let single: AnyTokens<'_> = documents.into();
    let [half, single] = [&half, &single].map(|tokens| column(tokens, "tokens"));
    let cases: [([ColumnarValue; 2], &str); 4] = [
        (
            [constant(&single, 0), half.clone().into()],
            "query: expected f16 tokens as the documents', found f32; cast it: \
             arrow_cast(query, 'List(FixedSizeList(24 x Float16))')",
        ),
        ([constant(&flat(&single), 0), flat(&single).into()], "number of elements is not known"),
        ([constant(&single, 0), ids(9).into()], "tokens: expected a List or LargeList"),
        (
            [constant(&column(&tokens(1, &[1], 25).into(), "tokens"), 0), flat(&single).into()],
            "tokens: expected whole tokens of 25 elements, found 72 elements in row 0",
        ),
    ];
    for (args, expected) in cases {
        let error = error(call("maxsim", &args, 9));
        assert!(error.contains(expected), "{error}");
    }
    // Another dim: the library says so.
    let args = [constant(&column(&tokens(1, &[1], 25).into(), "tokens"), 0), single.into()];
    let error = error(call("maxsim", &args, 9));
    assert!(error.contains("24") && error.contains("25"), "{error}");
    // bf16 is not among Arrow's types.
    let data = vec![maxsim::half::bf16::ONE; 2];
    let brain = Tokens::from_layout(data, layout(&[1], 2)).unwrap().into();
    assert!(query(&brain, 0).unwrap_err().to_string().contains("found bf16"));
    assert!(batch(ids(1), &brain).unwrap_err().to_string().contains("found bf16"));
    assert!(query(&tokens(1, &[1], 2).into(), 1).is_err());
    let error = batch(ids(2), &tokens(1, &[1], 2).into()).unwrap_err().to_string();
    assert!(error.contains("ids: expected one for each of 1 items, found 2"), "{error}");
}

/// As SQL's arrays are Float64 and Int64.
#[tokio::test]
async fn arrays_of_sql_are_queries() {
    let session = session(&Device::cpu()).unwrap();
    let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0, 1, 3]).unwrap();
    for documents in [halves(&documents).into(), AnyTokens::from(documents)] {
        let documents = batch(ids(2), &documents).unwrap();
        session.deregister_table("documents").unwrap();
        session.register_batch("documents", documents).unwrap();
        for query in ["[[1.0, 0.0], [0.0, 1.0]]", "[[1, 0], [0, 1]]", "[1.0, 0.0, 0.0, 1.0]"] {
            let sql = format!("SELECT maxsim({query}, tokens) AS score FROM documents ORDER BY id");
            let found = session.sql(&sql).await.unwrap().collect().await.unwrap();
            assert_eq!(found[0]["score"].as_primitive::<Float32Type>().values()[..], [2.0, 8.0]);
        }
    }
    for (sql, expected) in [
        ("SELECT maxsim([[1.0, 0.0], [0.0]], tokens) FROM documents", "FixedSizeList"),
        ("SELECT maxsim(tokens) FROM documents", "expected 2 arguments (query, tokens), found 1"),
        ("SELECT maxsim_key(id, tokens) FROM documents", "score: expected Float32, found Int64"),
    ] {
        let error = match session.sql(sql).await {
            Ok(frame) => frame.collect().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
}
