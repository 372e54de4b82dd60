//! The functions of SQL and of expressions.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float32Array, UInt32Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Float32Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use maxsim::format::{ScaleType, TokenFormat};
use maxsim::{AnyTokens, Device, Pairing, ScoreOptions};
use maxsim_kernels::abi::params::top_k::key;

use crate::columns::{ListColumn, execution_error, external, unexpected};
use crate::kernel;

/// The functions `maxsim`, `maxsim_int8` and `maxsim_key`, which score on `device`.
///
/// [`register`](crate::register) adds them to a session. A process of a cluster of its own, or a
/// session state that is built by hand, takes them from here:
///
/// ```
/// use datafusion::execution::SessionStateBuilder;
/// use maxsim::Device;
///
/// let functions = maxsim_datafusion::functions(&Device::cpu());
/// let names: Vec<&str> = functions.iter().map(|function| function.name()).collect();
/// assert_eq!(names, ["maxsim", "maxsim_int8", "maxsim_key"]);
/// let state = SessionStateBuilder::new_with_default_features().with_scalar_functions(functions);
/// # let _ = state.build();
/// ```
pub fn functions(device: &Device) -> Vec<Arc<ScalarUDF>> {
    [Function::Maxsim, Function::Int8, Function::Key]
        .into_iter()
        .map(|function| Arc::new(ScalarUDF::from(Scorer::new(function, device))))
        .collect()
}

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Function {
    /// `maxsim(query, tokens)`.
    Maxsim,
    /// `maxsim_int8(query, codes, scales)`.
    Int8,
    /// `maxsim_key(score, tokens)`.
    Key,
}

impl Function {
    /// Names of the arguments.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Function::Maxsim => &["query", "tokens"],
            Function::Int8 => &["query", "codes", "scales"],
            Function::Key => &["score", "tokens"],
        }
    }
}

/// A function, and where it scores.
#[derive(Debug)]
struct Scorer {
    function: Function,
    device: Device,
    signature: Signature,
}

impl Scorer {
    fn new(function: Function, device: &Device) -> Scorer {
        // Types are checked in `coerce_types`: they have the dim in them.
        let signature = Signature::user_defined(Volatility::Immutable);
        Scorer { function, device: device.clone(), signature }
    }
}

impl PartialEq for Scorer {
    fn eq(&self, other: &Scorer) -> bool {
        self.function == other.function && self.device.ordinal() == other.device.ordinal()
    }
}

impl Eq for Scorer {}

impl Hash for Scorer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.function, self.device.ordinal()).hash(state);
    }
}

impl ScalarUDFImpl for Scorer {
    fn name(&self) -> &str {
        match self.function {
            Function::Maxsim => "maxsim",
            Function::Int8 => "maxsim_int8",
            Function::Key => "maxsim_key",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.function {
            Function::Key => DataType::UInt32,
            _ => DataType::Float32,
        })
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let arguments = self.function.arguments();
        if found.len() != arguments.len() {
            return execution_error(format!(
                "{}: expected {} arguments ({}), found {}",
                self.name(),
                arguments.len(),
                arguments.join(", "),
                found.len(),
            ));
        }
        let mut types = found.to_vec();
        match self.function {
            Function::Key if found[0] != DataType::Float32 => {
                return Err(unexpected("score", "Float32", &found[0]));
            }
            Function::Key => {}
            _ => types[0] = query_type(&found[0], &found[1]),
        }
        Ok(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arguments = Arguments::new(self.function, args)?;
        match self.function {
            Function::Key => arguments.keys(),
            _ => arguments.scores(&self.device),
        }
    }
}

/// The type that a query is taken as. Numbers of SQL's arrays are Float64 or Int64: they are
/// rounded to the documents' element type. Every other query stays as it is.
fn query_type(query: &DataType, documents: &DataType) -> DataType {
    let (DataType::List(documents) | DataType::LargeList(documents)) = documents else {
        return query.clone();
    };
    let DataType::List(items) = query else { return query.clone() };
    let is_number = |leaf: &DataType| matches!(leaf, DataType::Float64 | DataType::Int64);
    let list = |item: DataType| DataType::List(Arc::new(Field::new_list_field(item, true)));
    let leaf = |documents: &DataType| match documents {
        DataType::Int8 => DataType::Float32,
        other => other.clone(),
    };
    match (documents.data_type(), items.data_type()) {
        (DataType::FixedSizeList(element, dim), DataType::List(item))
            if is_number(item.data_type()) =>
        {
            let element = Field::new_list_field(leaf(element.data_type()), true);
            list(DataType::FixedSizeList(Arc::new(element), *dim))
        }
        (DataType::FixedSizeList(element, _), number) if is_number(number) => {
            list(leaf(element.data_type()))
        }
        _ => query.clone(),
    }
}

/// The arguments of a call, as arrays: of one row where they are constant.
struct Arguments {
    function: Function,
    arrays: Vec<ArrayRef>,
    is_constant: Vec<bool>,
    n_rows: usize,
}

impl Arguments {
    fn new(function: Function, args: ScalarFunctionArgs) -> Result<Arguments> {
        let is_constant = |arg: &ColumnarValue| matches!(arg, ColumnarValue::Scalar(_));
        Ok(Arguments {
            function,
            is_constant: args.args.iter().map(is_constant).collect(),
            n_rows: args.number_rows,
            arrays: args
                .args
                .into_iter()
                .map(|arg| match arg {
                    ColumnarValue::Array(array) => Ok(array),
                    ColumnarValue::Scalar(value) => value.to_array(),
                })
                .collect::<Result<_>>()?,
        })
    }

    fn all_constant(&self) -> bool {
        self.is_constant.iter().all(|&x| x)
    }

    /// Whether an argument is the same NULL for all rows.
    fn has_constant_null(&self) -> bool {
        self.arrays
            .iter()
            .zip(&self.is_constant)
            .any(|(array, &is_constant)| is_constant && array.logical_null_count() > 0)
    }

    /// Rows in which an argument that is a column is NULL.
    fn nulls(&self) -> Option<NullBuffer> {
        let columns = self.arrays.iter().zip(&self.is_constant).filter(|(_, constant)| !**constant);
        columns.fold(None, |nulls, (array, _)| NullBuffer::union(nulls.as_ref(), array.nulls()))
    }

    /// An argument as lists.
    fn lists(&self, argument: usize, nulls: Option<&NullBuffer>) -> Result<ListColumn> {
        let name = self.function.arguments()[argument];
        let nulls = nulls.filter(|_| !self.is_constant[argument]);
        ListColumn::new(name, &self.arrays[argument], nulls)
    }

    /// The scores of all rows, or of the one that all have.
    fn scores(&self, device: &Device) -> Result<ColumnarValue> {
        if self.has_constant_null() {
            return Ok(ColumnarValue::Scalar(ScalarValue::Float32(None)));
        }
        let nulls = self.nulls();
        let (query, documents) = (self.lists(0, nulls.as_ref())?, self.lists(1, nulls.as_ref())?);
        let queries = query.tokens(documents.dim())?;
        let scores = match self.function {
            Function::Int8 => {
                self.check_constant_scales()?;
                let scales = self.lists(2, nulls.as_ref())?;
                let queries = queries.quantize(TokenFormat::Int8, ScaleType::F32);
                let codes: AnyTokens<'_> = documents.codes(&scales)?.into();
                self.score(device, &queries.map_err(external)?, &codes)?
            }
            _ => {
                let tokens = documents.tokens(query.dim())?;
                check_formats(queries.format(), &tokens)?;
                self.score(device, &queries, &tokens)?
            }
        };
        if self.all_constant() {
            return Ok(ColumnarValue::Scalar(ScalarValue::Float32(Some(scores[0]))));
        }
        Ok(ColumnarValue::Array(Arc::new(Float32Array::new(scores.into(), nulls))))
    }

    /// Codes and scales are both columns or both constant.
    fn check_constant_scales(&self) -> Result<()> {
        match self.is_constant[1] == self.is_constant[2] {
            true => Ok(()),
            false => execution_error(
                "scales: expected a column where codes are one, and a constant where they are; \
                 found one of each"
                    .into(),
            ),
        }
    }

    /// One score per row: of the constant query and each document, of each query and the constant
    /// document, or of the two in a row.
    fn score(
        &self,
        device: &Device,
        queries: &AnyTokens<'_>,
        documents: &AnyTokens<'_>,
    ) -> Result<Vec<f32>> {
        let pairing = match self.is_constant[0] || self.is_constant[1] {
            true => Pairing::cross(),
            false => {
                let rows: Vec<i64> = (0..self.n_rows as i64).collect();
                Pairing::pairs(&rows, &rows).map_err(external)?
            }
        };
        let options = match self.is_constant[0] {
            true => {
                let query = (queries.format(), queries.layout());
                kernel::options(device.limits(), query, documents.format())?
            }
            false => ScoreOptions::default(),
        };
        let scores = device.score_any(queries, documents, &pairing, &options);
        Ok(scores.map_err(external)?.into_values())
    }

    /// The keys of all rows, or of the one that all have.
    fn keys(&self) -> Result<ColumnarValue> {
        if self.has_constant_null() {
            return Ok(ColumnarValue::Scalar(ScalarValue::UInt32(None)));
        }
        let nulls = self.nulls();
        let documents = self.lists(1, nulls.as_ref())?;
        let scores = self.arrays[0].as_primitive::<Float32Type>().values();
        let n_rows = if self.all_constant() { 1 } else { self.n_rows };
        let at = |argument: usize, row| if self.is_constant[argument] { 0 } else { row };
        let key_of = |row| {
            let is_empty = documents.is_empty(at(1, row));
            // The upper half is the score's, the lower the id's.
            (key(scores[at(0, row)].to_bits(), 0, is_empty) >> 32) as u32
        };
        let keys: Vec<u32> = (0..n_rows).map(key_of).collect();
        if self.all_constant() {
            return Ok(ColumnarValue::Scalar(ScalarValue::UInt32(Some(keys[0]))));
        }
        Ok(ColumnarValue::Array(Arc::new(UInt32Array::new(keys.into(), nulls))))
    }
}

/// Refuses a query that would have to be rounded.
fn check_formats(query: TokenFormat, documents: &AnyTokens<'_>) -> Result<()> {
    let found = documents.format();
    if query == found {
        return Ok(());
    }
    let name = if found.size_bytes() == 2 { "Float16" } else { "Float32" };
    execution_error(format!(
        "query: expected {found} tokens as the documents', found {query}; cast it: \
         arrow_cast(query, 'List(FixedSizeList({} x {name}))')",
        documents.layout().dim(),
    ))
}
