//! Tokens of Arrow's list columns, without a copy: Arrow's offsets and values are a packed matrix.

use std::ops::Range;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Float32Type, Int8Type,
};
use datafusion::error::{DataFusionError, Result};
use maxsim::format::{Element, Int8, Scales};
use maxsim::{AnyTokens, TokenLayout, Tokens};

/// A list column: the values of its rows, one row behind the other, and where each begins. A row
/// that is NULL has no values.
pub(crate) struct ListColumn {
    /// The argument's name in messages.
    name: &'static str,
    /// What the lists have: tokens, or elements.
    values: ArrayRef,
    /// Begins of rows in `values`, and the end of the last.
    offsets: Vec<i64>,
}

impl ListColumn {
    /// Takes a List or LargeList column, sliced or not, of whose rows some are NULL.
    pub fn new(
        name: &'static str,
        column: &dyn Array,
        nulls: Option<&NullBuffer>,
    ) -> Result<ListColumn> {
        let column = match column.data_type() {
            DataType::List(_) => ListColumn::of::<i32>(name, column),
            DataType::LargeList(_) => ListColumn::of::<i64>(name, column),
            other => return Err(unexpected(name, "a List or LargeList of tokens", other)),
        };
        match nulls {
            Some(nulls) => column.without_hidden(nulls),
            None => Ok(column),
        }
    }

    fn of<O: OffsetSizeTrait>(name: &'static str, column: &dyn Array) -> ListColumn {
        let lists = column.as_list::<O>();
        let offsets = lists.value_offsets();
        let (first, last) = (offsets[0].as_usize(), offsets[lists.len()].as_usize());
        ListColumn {
            name,
            values: lists.values().slice(first, last - first),
            offsets: offsets.iter().map(|x| (x.as_usize() - first) as i64).collect(),
        }
    }

    /// The same column, whose rows that are NULL have no values. Arrow allows them to have some:
    /// only then is anything copied.
    fn without_hidden(self, nulls: &NullBuffer) -> Result<ListColumn> {
        let is_hidden = |row: usize| nulls.is_null(row) && !self.row(row).is_empty();
        if !(0..self.n_rows()).any(is_hidden) {
            return Ok(self);
        }
        let mut offsets = vec![0];
        let mut end = 0;
        // An empty part, since there may be no other.
        let mut parts = vec![self.values.slice(0, 0)];
        for row in 0..self.n_rows() {
            if nulls.is_valid(row) {
                let values = self.row(row);
                end += values.len() as i64;
                parts.push(self.values.slice(values.start, values.len()));
            }
            offsets.push(end);
        }
        let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
        Ok(ListColumn { values: concat(&parts)?, offsets, ..self })
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The values of a row.
    fn row(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// The row that has a value.
    fn row_of(&self, value: usize) -> usize {
        self.offsets.partition_point(|&start| start <= value as i64) - 1
    }

    /// Elements of a token, where the column's type says it.
    pub fn dim(&self) -> Option<usize> {
        match self.values.data_type() {
            DataType::FixedSizeList(_, dim) => Some(*dim as usize),
            _ => None,
        }
    }

    /// The values' type below lists.
    fn leaf_type(&self) -> &DataType {
        match self.values.data_type() {
            DataType::FixedSizeList(field, _) => field.data_type(),
            other => other,
        }
    }

    /// Refuses NULL tokens, elements or scales: `per_value` of them for each value of the lists.
    fn check_no_nulls(&self, what: &str, found: &dyn Array, per_value: usize) -> Result<()> {
        let nulls = found.nulls().filter(|nulls| nulls.null_count() > 0);
        let Some(first) = nulls.and_then(|nulls| (0..nulls.len()).find(|&i| nulls.is_null(i)))
        else {
            return Ok(());
        };
        execution_error(format!(
            "{}: row {} has {what} that is NULL; a document without tokens is an empty list, and \
             one that there is not is NULL as a whole",
            self.name,
            self.row_of(first / per_value.max(1)),
        ))
    }

    /// The leaf values, and the layout of the rows' tokens. `dim` is used where the column's type
    /// says none.
    fn matrix<T: ArrowPrimitiveType>(
        &self,
        dim: Option<usize>,
    ) -> Result<(&[T::Native], TokenLayout)> {
        let Some(dim) = self.dim().or(dim).filter(|&dim| dim > 0) else {
            return execution_error(format!(
                "{}: a token's number of elements is not known; cast the column or the query to a \
                 list of fixed-size lists, such as List(FixedSizeList(128 x {}))",
                self.name,
                self.leaf_type(),
            ));
        };
        let (leaves, layout) = match self.values.as_fixed_size_list_opt() {
            Some(tokens) => {
                self.check_no_nulls("a token", tokens, 1)?;
                self.check_no_nulls("an element", tokens.values(), dim)?;
                let layout = TokenLayout::packed(tokens.len(), dim, &self.offsets);
                (tokens.values(), layout.map_err(external)?)
            }
            None => {
                self.check_no_nulls("an element", &self.values, 1)?;
                (&self.values, self.flat_layout(dim)?)
            }
        };
        Ok((leaves.as_primitive::<T>().values(), layout))
    }

    /// The layout of lists of elements.
    fn flat_layout(&self, dim: usize) -> Result<TokenLayout> {
        let is_broken = |row: &usize| !self.row(*row).len().is_multiple_of(dim);
        if let Some(row) = (0..self.n_rows()).find(is_broken) {
            return execution_error(format!(
                "{}: expected whole tokens of {dim} elements, found {} elements in row {row}",
                self.name,
                self.row(row).len(),
            ));
        }
        let offsets: Vec<i64> = self.offsets.iter().map(|offset| offset / dim as i64).collect();
        TokenLayout::packed(self.values.len() / dim, dim, &offsets).map_err(external)
    }

    /// The column as f16 or f32 tokens. `dim` is used where the column's type says none.
    pub fn tokens(&self, dim: Option<usize>) -> Result<AnyTokens<'_>> {
        match self.leaf_type() {
            DataType::Float16 => Ok(self.tokens_of::<Float16Type>(dim)?.into()),
            DataType::Float32 => Ok(self.tokens_of::<Float32Type>(dim)?.into()),
            _ => Err(unexpected(
                self.name,
                "a list of fixed-size lists of Float16 or Float32, or a list of these",
                self.values.data_type(),
            )),
        }
    }

    fn tokens_of<T: ArrowPrimitiveType<Native: Element>>(
        &self,
        dim: Option<usize>,
    ) -> Result<Tokens<'_, T::Native>> {
        let (data, layout) = self.matrix::<T>(dim)?;
        Tokens::from_layout(data, layout).map_err(external)
    }

    /// The column as INT8 codes, with a column of as many scales as there are codes of tokens.
    pub fn codes<'a>(&'a self, scales: &'a ListColumn) -> Result<Tokens<'a, Int8>> {
        if self.dim().is_none() || *self.leaf_type() != DataType::Int8 {
            let expected = "a list of fixed-size lists of Int8";
            return Err(unexpected(self.name, expected, self.values.data_type()));
        }
        let (codes, layout) = self.matrix::<Int8Type>(None)?;
        if codes.contains(&i8::MIN) {
            let first = codes.iter().position(|&code| code == i8::MIN).unwrap_or(0);
            return execution_error(format!(
                "{}: row {} has the code -128; INT8 codes go from -127 to 127",
                self.name,
                self.row_of(first / layout.dim()),
            ));
        }
        let len = |column: &ListColumn, row| column.row(row).len();
        let is_other = |row: &usize| len(self, *row) != len(scales, *row);
        if let Some(row) = (0..self.n_rows()).find(is_other) {
            return execution_error(format!(
                "{}: expected a scale for each of the {} tokens of row {row}, found {}",
                scales.name,
                len(self, row),
                len(scales, row),
            ));
        }
        scales.check_no_nulls("a scale", &scales.values, 1)?;
        let scales = match scales.values.data_type() {
            DataType::Float16 => {
                Scales::F16(scales.values.as_primitive::<Float16Type>().values()[..].into())
            }
            DataType::Float32 => {
                Scales::F32(scales.values.as_primitive::<Float32Type>().values()[..].into())
            }
            other => return Err(unexpected(scales.name, "a list of Float16 or Float32", other)),
        };
        Tokens::from_codes(codes, scales, layout).map_err(external)
    }

    /// Whether a row has no token.
    pub fn is_empty(&self, row: usize) -> bool {
        self.row(row).is_empty()
    }
}

/// An error of the library.
pub(crate) fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// An error that says what is wrong with the data of a query.
pub(crate) fn execution_error<T>(message: String) -> Result<T> {
    Err(DataFusionError::Execution(message))
}

/// An argument of a type that it may not have.
pub(crate) fn unexpected(name: &str, expected: &str, found: &DataType) -> DataFusionError {
    DataFusionError::Execution(format!("{name}: expected {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{FixedSizeListArray, Float32Array, Int8Array, ListArray};
    use datafusion::arrow::buffer::OffsetBuffer;
    use datafusion::arrow::datatypes::Field;

    use super::*;

    /// Documents of 2, 0, 1 and 3 tokens of two values.
    fn lists(values: ArrayRef) -> ListArray {
        let field = |of: &DataType| Arc::new(Field::new_list_field(of.clone(), true));
        let tokens = FixedSizeListArray::new(field(values.data_type()), 2, values, None);
        let offsets = OffsetBuffer::from_lengths([2, 0, 1, 3]);
        ListArray::new(field(tokens.data_type()), offsets, Arc::new(tokens), None)
    }

    #[test]
    fn nothing_is_copied() {
        let values = Float32Array::from_iter_values((0..12).map(|x| x as f32));
        let place = values.values().as_ptr();
        let lists = lists(Arc::new(values));
        let column = ListColumn::new("tokens", &lists.slice(1, 3), None).unwrap();
        let AnyTokens::F32(tokens) = column.tokens(None).unwrap() else { panic!("not f32") };
        assert_eq!(tokens.data().as_ptr(), place.wrapping_add(4));
        assert_eq!(tokens.layout().segments(), [[0, 0], [0, 1], [1, 3]]);

        // Nor of a column whose documents that are NULL have no tokens.
        let nulls = NullBuffer::from(vec![true, false, true, true]);
        let column = ListColumn::new("tokens", &lists, Some(&nulls)).unwrap();
        let AnyTokens::F32(tokens) = column.tokens(None).unwrap() else { panic!("not f32") };
        assert_eq!(tokens.data().as_ptr(), place);
    }

    #[test]
    fn codes_and_scales_are_not_copied() {
        let codes = Int8Array::from_iter_values(0..12);
        let place = codes.values().as_ptr();
        let scales = Float32Array::from_iter_values((1..7).map(|x| x as f32));
        let scales_place = scales.values().as_ptr();
        let field = Arc::new(Field::new_list_field(DataType::Float32, true));
        let offsets = OffsetBuffer::from_lengths([2, 0, 1, 3]);
        let scales = ListArray::new(field, offsets, Arc::new(scales), None);
        let lists = lists(Arc::new(codes));
        let [codes, scales] = [("codes", &lists), ("scales", &scales)]
            .map(|(name, column)| ListColumn::new(name, &column.slice(2, 2), None).unwrap());
        let tokens = codes.codes(&scales).unwrap();
        assert_eq!(tokens.data().as_ptr(), place.wrapping_add(4));
        let Scales::F32(found) = tokens.scales() else { panic!("not f32") };
        assert_eq!(found.as_ptr(), scales_place.wrapping_add(2));
    }
}
