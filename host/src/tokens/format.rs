//! Storage formats of tokens: elements, or codes of one byte with a scale.

use std::fmt;
use std::marker::PhantomData;

pub use maxsim_kernels::abi::element::ElementType;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::quantize::e4m3_value;

use super::element::Element;

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Int8 {}
    impl Sealed for super::Int8Affine {}
    impl Sealed for super::Fp8 {}
    impl<T: super::Element> Sealed for super::Residual<T> {}
}

/// Storage format of tokens.
///
/// A compressed format is an element type of the same operator: [`Tokens`](crate::Tokens),
/// handles, layouts, masks, pairings and options are those of plain elements. With c the codes of
/// a row,
///
/// | format | row | bytes at dim 128 |
/// |---|---|---|
/// | [`Int8`] | c · scale, c from -127 to 127 | 128 + 2 (f16 scale) or 4 (f32) |
/// | [`Int8Affine`] | c · scale + min, c from 0 to 255 | 128 + 4 |
/// | [`Fp8`] | c · scale, c in e4m3 | 128 + 2 or 4, or one scale for all rows |
/// | [`Residual`] | centroid + weights, see [`crate::residual`] | 4 + 16 per bit of a bucket |
///
/// Similarities are those of the codes, times the document's scale before the maximum over its
/// tokens and the query's after it. Sums of INT8 products are exact; those with other factors
/// are added in f32.
///
/// ```
/// use maxsim::format::{ElementType, TokenFormat};
///
/// // What documents can be compressed to where queries stay f16.
/// let queries = TokenFormat::from(ElementType::F16);
/// let formats = TokenFormat::QUANTIZED.into_iter();
/// let formats: Vec<_> = formats.filter(|&format| queries.is_scorable_with(format)).collect();
/// assert_eq!(formats, [TokenFormat::Int8Affine]);
/// // A file of such codes needs a minimum per row beside its scale.
/// assert!(formats[0].has_mins() && !TokenFormat::Int8.has_mins());
/// // Codes of a file that stand for no finite number, whatever their sign.
/// let nan = TokenFormat::Fp8.nan_code().expect("e4m3 has a NaN");
/// assert_eq!([0x7E, 0x7F, 0xFF].map(|code: u8| code & 0x7F >= nan), [false, true, true]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenFormat {
    /// The elements themselves.
    Element(ElementType),
    /// [`Int8`].
    Int8,
    /// [`Int8Affine`].
    Int8Affine,
    /// [`Fp8`].
    Fp8,
    /// [`Residual`], for queries of this type.
    Residual(ElementType),
}

impl TokenFormat {
    /// The compressed formats.
    pub const QUANTIZED: [TokenFormat; 3] =
        [TokenFormat::Int8, TokenFormat::Int8Affine, TokenFormat::Fp8];

    /// Bytes of an element or code.
    pub const fn size_bytes(self) -> usize {
        match self {
            TokenFormat::Element(element) => element.size_bytes(),
            _ => 1,
        }
    }

    /// The name used in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TokenFormat::Element(element) => element.name(),
            TokenFormat::Int8 => "int8",
            TokenFormat::Int8Affine => "int8-affine",
            TokenFormat::Fp8 => "fp8",
            TokenFormat::Residual(_) => "plaid",
        }
    }

    /// The type of the elements; `None` for codes and residuals.
    pub const fn element(self) -> Option<ElementType> {
        match self {
            TokenFormat::Element(element) => Some(element),
            _ => None,
        }
    }

    /// Whether queries of this format can be scored against documents of another, as
    /// [`ScorableWith`] says of types.
    pub fn is_scorable_with(self, documents: TokenFormat) -> bool {
        TokenFormat::operand(self, documents).is_some()
    }

    /// Whether rows have a minimum beside their scale, both f16: scales have no other type.
    pub const fn has_mins(self) -> bool {
        matches!(self, TokenFormat::Int8Affine)
    }

    /// Where codes are floating point numbers, whose highest bit is the sign: the least code of a
    /// NaN or an infinity without its sign. All codes from it on are no finite numbers.
    pub const fn nan_code(self) -> Option<u8> {
        match self {
            TokenFormat::Fp8 => Some(0x7F),
            _ => None,
        }
    }

    /// Operand of kernels for queries and documents of these formats; `None` where there is no
    /// kernel for them.
    pub fn operand(queries: TokenFormat, documents: TokenFormat) -> Option<Operand> {
        use TokenFormat::{Element, Fp8, Int8, Int8Affine, Residual};
        match (queries, documents) {
            (Element(a), Element(b)) if a == b => Some(queries.stored_operand()),
            (Element(a), Residual(b)) if a == b => Some(documents.stored_operand()),
            (Element(ElementType::F32), Int8Affine) => None,
            (Element(element), Int8Affine) => Some(Operand::Affine(element)),
            (Int8, Int8 | Int8Affine) | (Fp8, Fp8) => Some(documents.stored_operand()),
            _ => None,
        }
    }

    /// Operand of kernels for documents of this format and queries that can meet them.
    pub(crate) fn stored_operand(self) -> Operand {
        match self {
            TokenFormat::Element(element) => element.into(),
            TokenFormat::Int8 => Operand::I8,
            TokenFormat::Int8Affine => Operand::I8Affine,
            TokenFormat::Fp8 => Operand::E4m3,
            TokenFormat::Residual(element) => Operand::Residual(element),
        }
    }

    /// Whether dot products of codes are sums of whole numbers.
    pub(crate) const fn is_integer(self) -> bool {
        matches!(self, TokenFormat::Int8 | TokenFormat::Int8Affine)
    }
}

impl From<ElementType> for TokenFormat {
    fn from(element: ElementType) -> TokenFormat {
        TokenFormat::Element(element)
    }
}

impl fmt::Display for TokenFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Storage format of tokens as a Rust type: an [`Element`], or [`Int8`], [`Int8Affine`] or [`Fp8`].
/// Sealed: engines know these only.
pub trait Format: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// An element or code in memory.
    type Stored: bytemuck::Pod + fmt::Debug + Send + Sync;

    /// The format this is.
    const FORMAT: TokenFormat;

    /// Converts elements or codes to f32, exactly.
    #[doc(hidden)]
    fn widen_into(stored: &[Self::Stored], values: &mut [f32]);
}

/// A [`Format`] of codes with scales. Sealed.
pub trait Quantized: Format + crate::tokens::quantize::Quantizer {}

/// Signed whole numbers, symmetric about 0: a token is `code · scale`.
///
/// Codes are -127 to 127, scales f16 or f32, one per token. As queries and as documents of
/// queries of the same format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8 {}

/// Whole numbers from 0 on: a token is `code · scale + min`.
///
/// Codes are 0 to 255, scales and minima f16, one of each per token. As documents, of f16, bf16
/// and [`Int8`] queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Affine {}

/// Eight-bit floating point numbers of 3 fraction bits, e4m3: a token is `code · scale`.
///
/// Scales are f16 or f32, one per token, or one f32 number for all tokens. As queries and as
/// documents of queries of the same format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {}

/// Tokens of a [`crate::residual`] codec, as documents of queries of type `T`. Made by
/// [`Device::upload_residual`](crate::Device::upload_residual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residual<T: Element>(PhantomData<T>);

impl Format for Int8 {
    type Stored = i8;
    const FORMAT: TokenFormat = TokenFormat::Int8;

    fn widen_into(stored: &[i8], values: &mut [f32]) {
        values.iter_mut().zip(stored).for_each(|(value, &code)| *value = code.into());
    }
}

impl Format for Int8Affine {
    type Stored = u8;
    const FORMAT: TokenFormat = TokenFormat::Int8Affine;

    fn widen_into(stored: &[u8], values: &mut [f32]) {
        values.iter_mut().zip(stored).for_each(|(value, &code)| *value = code.into());
    }
}

impl Format for Fp8 {
    type Stored = u8;
    const FORMAT: TokenFormat = TokenFormat::Fp8;

    fn widen_into(stored: &[u8], values: &mut [f32]) {
        let of = |code: u8| FP8_VALUES[usize::from(code)];
        values.iter_mut().zip(stored).for_each(|(value, &code)| *value = of(code));
    }
}

impl<T: Element> Format for Residual<T> {
    type Stored = u8;
    const FORMAT: TokenFormat = TokenFormat::Residual(T::TYPE);

    /// Rows of residuals are decoded where they are read.
    fn widen_into(_: &[u8], _: &mut [f32]) {
        debug_assert!(false, "residuals are no rows");
    }
}

impl Quantized for Int8 {}
impl Quantized for Int8Affine {}
impl Quantized for Fp8 {}

/// Formats of queries that can be scored against documents of format `D`: an element type against
/// the same one or [`Residual`] tokens, [`Int8`] and [`Fp8`] against themselves, f16, bf16 and
/// [`Int8`] against [`Int8Affine`]. Sealed, as formats are.
#[diagnostic::on_unimplemented(
    message = "{Self} queries cannot be scored against {D} documents",
    note = "both sides have the same format, or documents are Int8Affine and queries f16, bf16 or \
            Int8",
    note = "`Tokens::convert` makes f16, bf16 and f32 tokens of each other, and says what it \
            rounded",
    note = "`Tokens::quantize` makes compressed tokens of f16, bf16 and f32"
)]
pub trait ScorableWith<D: Format>: Format {}

/// Tokens that gradients can be computed from in place of the documents of type `T` that were
/// scored: those documents, or [`Int8`] codes of them. Sealed, as formats are.
///
/// Only the gradients of queries read the documents' rows. From codes each element of them is
///
/// ```text
/// ∂Q[q] = Σ g · (scale · code)[winner]        with an error of at most Σ |g| · scale / 2
/// ```
///
/// and what f32 rounds, over the same winners. The gradients of documents are the same to the bit.
/// (An element loses at most half a scale where scales are f32, and with f16 scales in rows whose
/// largest element is from 10⁻³ to 8 · 10⁶; in others it may lose more. A row with a NaN or an
/// infinity is NaN throughout.)
///
/// Once there are codes the documents may be dropped, which gives back, of n rows,
///
/// ```text
/// n · dim · (size of an element - 1) - n · size of a scale        bytes
/// ```
///
/// until the next step has documents. On a CUDA device scales take 4 bytes whatever their type (6
/// on Hopper, of f16 ones up to dim 128 that were uploaded, not made there), and rows of elements
/// and of codes are rounded up to 16 bytes. Codes are made of documents that are still there: while
/// scores are computed and [`DeviceTokens::quantize`](crate::DeviceTokens::quantize) runs, nothing
/// is saved, and for as long as there are both, codes are in addition. What belongs to others
/// (`DeviceTokens::from_raw_parts`) is theirs to free.
#[diagnostic::on_unimplemented(
    message = "{Self} documents give no gradients of {T} queries",
    note = "give the documents that were scored, or `Int8` codes of them",
    note = "`Device::backward_residual` takes `Residual` documents"
)]
pub trait GradientSource<T: Element>: Format {}

impl<T: Element> GradientSource<T> for T {}
impl<T: Element> GradientSource<T> for Int8 {}

impl<T: Element> ScorableWith<T> for T {}
impl<T: Element> ScorableWith<Residual<T>> for T {}
impl ScorableWith<Int8> for Int8 {}
impl ScorableWith<Fp8> for Fp8 {}
impl ScorableWith<Int8Affine> for half::f16 {}
impl ScorableWith<Int8Affine> for half::bf16 {}
impl ScorableWith<Int8Affine> for Int8 {}

/// The number that each code of FP8 stands for.
const FP8_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3_value(code as u8);
        code += 1;
    }
    values
};

/// Converts elements or codes to f32, exactly.
pub(crate) fn widen<F: Format>(stored: &[F::Stored], values: &mut [f32]) {
    F::widen_into(stored, values);
}
