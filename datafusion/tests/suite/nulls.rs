//! NULL, NaN and nothing.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, ListArray,
};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::datatypes::{Field, UInt32Type};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;
use maxsim::AnyTokens;
use maxsim::format::{ScaleType, TokenFormat};

use crate::data::{bits, call, column, constant, error, expected, flat, tokens};

const LENGTHS: [usize; 6] = [2, 3, 0, 1, 4, 2];
const DIM: usize = 8;

/// The column with other NULLs, behind which values stay.
fn with_nulls(column: &ArrayRef, valid: [bool; 6]) -> ArrayRef {
    let (field, offsets, values, _) = column.as_list::<i32>().clone().into_parts();
    Arc::new(ListArray::new(field, offsets, values, Some(NullBuffer::from(valid.to_vec()))))
}

#[test]
fn null_scores_null() {
    let documents: AnyTokens<'_> = tokens(1, &LENGTHS, DIM).into();
    let queries: AnyTokens<'_> = tokens(2, &[3, 1, 2, 2, 0, 1], DIM).into();
    let found = expected(&queries, &documents);
    let [queries, documents] = [&queries, &documents].map(|tokens| column(tokens, "tokens"));
    let valid = [true, false, true, false, true, true];
    for documents in [with_nulls(&documents, valid), flat(&with_nulls(&documents, valid))] {
        let of = |row: usize| Some(found[row]).filter(|_| valid[row]);
        let args = [constant(&queries, 0), documents.clone().into()];
        let scores = bits(call("maxsim", &args, 6).unwrap());
        assert_eq!(scores, (0..6).map(of).collect::<Vec<_>>());
        assert_eq!(scores[2], Some(0.0f32.to_bits()), "a document without tokens scores 0");
        // A part, and NULL queries beside NULL documents.
        let args = [constant(&queries, 0), documents.slice(1, 3).into()];
        assert_eq!(bits(call("maxsim", &args, 3).unwrap()), [1, 2, 3].map(of));
        let queries = with_nulls(&queries, [false, true, true, true, true, true]);
        let args = [queries.into(), documents.clone().into()];
        let pairs = (0..6).map(|row| Some(found[row * 7]).filter(|_| valid[row] && row > 0));
        assert_eq!(bits(call("maxsim", &args, 6).unwrap()), pairs.collect::<Vec<_>>());
    }
    let null = ScalarValue::try_new_null(documents.data_type()).unwrap();
    let args = [ColumnarValue::Scalar(null), documents.into()];
    assert_eq!(bits(call("maxsim", &args, 6).unwrap()), [None]);
}

#[test]
fn null_codes_or_scales_score_null() {
    let documents = AnyTokens::from(tokens(3, &LENGTHS, DIM));
    let documents = documents.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
    let query: AnyTokens<'_> = tokens(4, &[3], DIM).into();
    let found = expected(&query.quantize(TokenFormat::Int8, ScaleType::F32).unwrap(), &documents);
    let codes = with_nulls(&column(&documents, "codes"), [true, false, true, true, true, true]);
    let scales = with_nulls(&column(&documents, "scales"), [true, true, true, true, false, true]);
    let args = [constant(&column(&query, "tokens"), 0), codes.into(), scales.into()];
    let valid = |row: usize| Some(found[row]).filter(|_| ![1, 4].contains(&row));
    assert_eq!(bits(call("maxsim_int8", &args, 6).unwrap()), (0..6).map(valid).collect::<Vec<_>>());
}

/// Three documents of two tokens of two elements, some of which are NULL.
fn documents(elements: Vec<Option<f32>>, tokens: [bool; 6]) -> ArrayRef {
    let element =
        Arc::new(Field::new_list_field(datafusion::arrow::datatypes::DataType::Float32, true));
    let elements = Arc::new(Float32Array::from(elements));
    let nulls = NullBuffer::from(tokens.to_vec());
    let tokens = FixedSizeListArray::new(element, 2, elements, Some(nulls));
    let token = Arc::new(Field::new_list_field(tokens.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([2, 2, 2]);
    Arc::new(ListArray::new(token, offsets, Arc::new(tokens), None))
}

#[test]
fn null_in_a_document_is_an_error() {
    let query = constant(&column(&tokens(1, &[2], 2).into(), "tokens"), 0);
    let elements: Vec<Option<f32>> = (0..12).map(|x| Some(x as f32)).collect();
    let mut broken = elements.clone();
    broken[9] = None;
    let all = [true; 6];
    let without = documents(broken, all);
    let cases = [
        (documents(elements.clone(), [true, true, true, false, true, true]), "row 1 has a token"),
        (without.clone(), "row 2 has an element"),
        (flat(&without), "row 2 has an element"),
        (without.slice(1, 2), "row 1 has an element"),
    ];
    for (documents, expected) in cases {
        let n_rows = documents.len();
        let error = error(call("maxsim", &[query.clone(), documents.into()], n_rows));
        assert!(error.contains(expected) && error.contains("is NULL"), "{error}");
    }
    // Elsewhere in the array, or behind a document that is NULL, it does no harm.
    let args = [query.clone(), without.slice(0, 2).into()];
    assert!(call("maxsim", &args, 2).is_ok());
    let (field, offsets, values, _) = without.as_list::<i32>().clone().into_parts();
    let nulls = Some(NullBuffer::from(vec![true, true, false]));
    let hidden: ArrayRef = Arc::new(ListArray::new(field, offsets, values, nulls));
    let scores = bits(call("maxsim", &[query, hidden.into()], 3).unwrap());
    assert!(scores[1].is_some() && scores[2].is_none());
}

#[test]
fn nan_shows_and_keys_have_the_order_of_rankings() {
    let elements = (0..12).map(|x| Some(if x == 5 { f32::NAN } else { x as f32 })).collect();
    let documents = documents(elements, [true; 6]);
    let query = constant(&column(&tokens(1, &[2], 2).into(), "tokens"), 0);
    let args = [query, documents.clone().into()];
    let scores = bits(call("maxsim", &args, 3).unwrap());
    let is_nan = |bits: &Option<u32>| f32::from_bits(bits.unwrap()).is_nan();
    assert_eq!(scores.iter().map(is_nan).collect::<Vec<_>>(), [false, true, false]);

    // The last is a document without tokens, and one that is NULL.
    let documents = column(&tokens(1, &[1, 1, 1, 1, 1, 0], 2).into(), "tokens");
    let scores = [f32::INFINITY, 1.0, -0.0, -3.0, f32::NAN, 0.0];
    let scores: ArrayRef = Arc::new(Float32Array::from(scores.to_vec()));
    let keys = call("maxsim_key", &[scores.into(), documents.clone().into()], 6).unwrap();
    let keys = keys.into_array(6).unwrap();
    let keys = keys.as_primitive::<UInt32Type>().values();
    assert!(keys.is_sorted_by(|a, b| a > b) && keys[5] > 0, "{keys:?}");
    let zero = ColumnarValue::Scalar(ScalarValue::Float32(Some(0.0)));
    let zeros = call("maxsim_key", &[zero.clone(), documents.clone().into()], 6).unwrap();
    assert_eq!(zeros.into_array(6).unwrap().as_primitive::<UInt32Type>().value(0), keys[2]);
    let nulls = with_nulls(&documents, [true, true, true, true, true, false]);
    let found = call("maxsim_key", &[zero, nulls.into()], 6).unwrap().into_array(6).unwrap();
    assert!(found.is_null(5) && found.null_count() == 1);
}
