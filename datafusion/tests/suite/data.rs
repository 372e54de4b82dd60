//! Tokens, and what the library says of them.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Int64Array, ListArray, RecordBatch,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{Field, Float32Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use maxsim::files::{FileOptions, TokenFile};
use maxsim::{AnyTokens, Device, Pairing, TokenLayout, Tokens};
use maxsim_datafusion::{batch, functions};

/// Numbers from -1 to 1 that repeat after 2³² calls.
pub struct Numbers(pub u32);

impl Iterator for Numbers {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0)
    }
}

/// Packed f32 tokens of items of these lengths.
pub fn tokens(seed: u32, lengths: &[usize], dim: usize) -> Tokens<'static, f32> {
    let layout = layout(lengths, dim);
    let data: Vec<f32> = Numbers(seed).take(layout.rows() * dim).collect();
    Tokens::from_layout(data, layout).unwrap()
}

/// The layout of packed items of these lengths.
pub fn layout(lengths: &[usize], dim: usize) -> TokenLayout {
    let mut offsets = vec![0];
    for length in lengths {
        offsets.push(offsets[offsets.len() - 1] + length);
    }
    TokenLayout::packed(offsets[lengths.len()], dim, &offsets).unwrap()
}

/// A column of `batch`.
pub fn column(tokens: &AnyTokens<'_>, name: &str) -> ArrayRef {
    batch(ids(tokens.layout().n_items()), tokens).unwrap()[name].clone()
}

pub fn ids(n: usize) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..n as i64))
}

/// The tokens of a file of the tool's sample.
pub fn sample(name: &str) -> TokenFile {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/examples/debian-packages");
    TokenFile::open(format!("{folder}/{name}.safetensors"), &FileOptions::default()).unwrap()
}

/// Bits of the library's scores of all queries and documents, query by query.
pub fn expected(queries: &AnyTokens<'_>, documents: &AnyTokens<'_>) -> Vec<u32> {
    let options = Default::default();
    let scores = Device::cpu().score_any(queries, documents, &Pairing::cross(), &options).unwrap();
    scores.values().iter().map(|score| score.to_bits()).collect()
}

/// Calls a function that scores on the CPU.
pub fn call(name: &str, args: &[ColumnarValue], number_rows: usize) -> Result<ColumnarValue> {
    call_on(&Device::cpu(), name, args, number_rows)
}

pub fn call_on(
    device: &Device,
    name: &str,
    args: &[ColumnarValue],
    number_rows: usize,
) -> Result<ColumnarValue> {
    let all = functions(device);
    let function = all.iter().find(|function| function.name() == name).unwrap();
    let field = |arg: &ColumnarValue| Arc::new(Field::new("argument", arg.data_type(), true));
    let types: Vec<_> = args.iter().map(|arg| arg.data_type()).collect();
    let return_type = function.return_type(&types)?;
    function.invoke_with_args(ScalarFunctionArgs {
        args: args.to_vec(),
        arg_fields: args.iter().map(field).collect(),
        number_rows,
        return_field: Arc::new(Field::new("score", return_type, true)),
        config_options: Arc::new(ConfigOptions::default()),
    })
}

/// A constant of a column's row.
pub fn constant(column: &dyn Array, row: usize) -> ColumnarValue {
    ColumnarValue::Scalar(ScalarValue::try_from_array(column, row).unwrap())
}

/// Bits of scores, and `None` where a score is NULL.
pub fn bits(scores: ColumnarValue) -> Vec<Option<u32>> {
    let scores = scores.into_array(1).unwrap();
    scores.as_primitive::<Float32Type>().iter().map(|x| x.map(f32::to_bits)).collect()
}

/// The error of a call.
pub fn error(scores: Result<ColumnarValue>) -> String {
    scores.map(bits).unwrap_err().to_string()
}

/// Ids and bits of scores of a ranking's rows.
pub fn ranked(batches: &[RecordBatch]) -> Vec<(i64, Option<u32>)> {
    let rows = batches.iter().flat_map(|batch| {
        let ids = batch["id"].as_primitive::<Int64Type>().values().to_vec();
        let scores: &Float32Array = batch["score"].as_primitive();
        ids.into_iter().zip(scores.iter().map(|x| x.map(f32::to_bits)).collect::<Vec<_>>())
    });
    rows.collect()
}

/// The library's ranking of documents, whose ids are these, for a query.
pub fn expected_ranking(
    query: &AnyTokens<'_>,
    documents: &AnyTokens<'_>,
    k: usize,
) -> Vec<(i64, Option<u32>)> {
    let options = Default::default();
    let scores = Device::cpu().score_any(query, documents, &Pairing::cross(), &options).unwrap();
    let ranking = scores.top_k(documents, k).unwrap().remove(0);
    ranking.ranked.iter().map(|r| (i64::from(r.id), Some(r.score.to_bits()))).collect()
}

/// Lists of numbers alone, of the tokens of lists of fixed-size lists.
pub fn flat(column: &ArrayRef) -> ArrayRef {
    let lists = column.as_list::<i32>();
    let tokens = lists.values().as_fixed_size_list();
    let dim = tokens.value_length();
    let offsets = lists.offsets().iter().map(|offset| offset * dim).collect::<Vec<i32>>();
    let field = Arc::new(Field::new_list_field(tokens.value_type(), true));
    let offsets = OffsetBuffer::new(offsets.into());
    let nulls = lists.nulls().cloned();
    Arc::new(ListArray::new(field, offsets, tokens.values().clone(), nulls))
}
