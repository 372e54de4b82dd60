//! Queries as constants of a plan, and tokens as columns.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Int8Array, ListArray,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use maxsim::format::{Format, Int8, Scales};
use maxsim::{AnyTokens, Tokens};

use crate::columns::{execution_error, external};

/// One item of tokens as a constant: the query of `maxsim` or `maxsim_int8`.
///
/// It goes into a plan as [`lit`](datafusion::prelude::lit), or as the parameter of an SQL query.
///
/// # Errors
/// Where the tokens are neither f16 nor f32, or there is no such item.
///
/// ```
/// use datafusion::arrow::array::AsArray;
/// use datafusion::arrow::datatypes::Float32Type;
/// use datafusion::prelude::SessionContext;
/// use maxsim::{Device, Tokens};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let session = SessionContext::new();
/// maxsim_datafusion::register(&session, &Device::cpu());
/// let tokens = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2).unwrap().into();
/// let query = maxsim_datafusion::query(&tokens, 0)?;
/// let scores = session.sql("SELECT maxsim($query, $query) AS score").await?;
/// let scores = scores.with_param_values(vec![("query", query)])?.collect().await?;
/// assert_eq!(scores[0]["score"].as_primitive::<Float32Type>().value(0), 2.0);
/// # Ok(())
/// # }
/// ```
pub fn query(tokens: &AnyTokens<'_>, item: usize) -> Result<ScalarValue> {
    let item = tokens.items(item..item + 1).map_err(external)?;
    match item {
        AnyTokens::F16(_) | AnyTokens::F32(_) => {
            Ok(ScalarValue::List(Arc::new(token_lists(&item)?)))
        }
        other => {
            execution_error(format!("query: expected f16 or f32 tokens, found {}", other.format()))
        }
    }
}

/// A column of lists of tokens: f16, f32, or the codes of INT8. Masked tokens are left out.
pub(crate) fn token_lists(tokens: &AnyTokens<'_>) -> Result<ListArray> {
    match tokens {
        AnyTokens::F16(tokens) => lists(tokens, |values| Arc::new(Float16Array::from(values))),
        AnyTokens::F32(tokens) => lists(tokens, |values| Arc::new(Float32Array::from(values))),
        AnyTokens::Int8(tokens) => lists(tokens, |values| Arc::new(Int8Array::from(values))),
        other => execution_error(format!(
            "tokens: expected f16, f32 or int8, found {}; Arrow has no such type: convert them, or \
             quantize their embeddings to int8",
            other.format()
        )),
    }
}

/// A column of lists of scales, beside that of the codes.
pub(crate) fn scale_lists(tokens: &Tokens<'_, Int8>) -> Result<ListArray> {
    let rows = valid_rows(tokens);
    let values: ArrayRef = match tokens.scales() {
        Scales::F16(scales) => {
            Arc::new(Float16Array::from_iter_values(rows.iter().map(|&row| scales[row])))
        }
        scales => {
            Arc::new(Float32Array::from_iter_values(rows.iter().map(|&row| scales.scale(row))))
        }
    };
    list_array(tokens, values)
}

/// The column of `tokens`, whose stored numbers become an array by `array`.
fn lists<F: Format>(
    tokens: &Tokens<'_, F>,
    array: impl Fn(Vec<F::Stored>) -> ArrayRef,
) -> Result<ListArray> {
    let dim = tokens.layout().dim();
    let mut values = Vec::new();
    for row in valid_rows(tokens) {
        values.extend_from_slice(&tokens.data()[row * dim..][..dim]);
    }
    let values = array(values);
    let field = element_field(values.data_type().clone());
    let rows = FixedSizeListArray::try_new(field, dim as i32, values, None)?;
    list_array(tokens, Arc::new(rows))
}

/// Lists of one value per valid token.
fn list_array<F: Format>(tokens: &Tokens<'_, F>, values: ArrayRef) -> Result<ListArray> {
    let lengths = (0..tokens.layout().n_items()).map(|item| valid_of_item(tokens, item).count());
    let offsets = OffsetBuffer::from_lengths(lengths);
    let field = element_field(values.data_type().clone());
    Ok(ListArray::try_new(field, offsets, values, None)?)
}

/// A field of something that is never NULL.
fn element_field(of: DataType) -> FieldRef {
    Arc::new(Field::new_list_field(of, false))
}

/// The valid rows of all items, in their order.
fn valid_rows<F: Format>(tokens: &Tokens<'_, F>) -> Vec<usize> {
    (0..tokens.layout().n_items()).flat_map(|item| valid_of_item(tokens, item)).collect()
}

fn valid_of_item<'a, F: Format>(
    tokens: &'a Tokens<'_, F>,
    item: usize,
) -> impl Iterator<Item = usize> + 'a {
    let rows = tokens.layout().item_rows(item);
    rows.filter(|&row| tokens.mask().is_none_or(|mask| mask[row] != 0))
}
