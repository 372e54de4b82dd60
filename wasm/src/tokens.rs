//! Tokens of queries or documents, held in the engine's memory.

use std::borrow::Cow;

use bytemuck::allocation::cast_vec;
use bytemuck::cast_slice;
use half::{bf16, f16};
use js_sys::{Array, Float32Array, Int8Array, Uint8Array, Uint16Array, Uint32Array};
use maxsim::files::{FileFormat, FileOptions, TokenFile, TrailingZeros};
use maxsim::format::{ElementType, Int8, ScaleType, Scales, TokenFormat};
use maxsim::{AnyTokens, TokenLayout, Tokens as Typed};
use wasm_bindgen::prelude::*;

use crate::arguments::{self, Options, Result, count, described, error, integers};
use crate::arrays;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** Offsets, lengths or ids: whole numbers, all of which are checked. */
export type Integers = Int32Array | Uint32Array | BigInt64Array | readonly number[];

/** How tokens are stored: elements, or codes with scales. */
export type TokenFormat = 'f16' | 'bf16' | 'f32' | 'int8' | 'int8-affine' | 'fp8';

/**
 * Token vectors, row after row: f32 elements, the bits of f16 or bf16 elements (`type` says which),
 * or INT8 codes (with `scales`).
 */
export type TokenData = Float32Array | Uint16Array | Int8Array;

/** What goes with token vectors. */
export interface TokensOptions {
    /** What the bits of a Uint16Array are. They may be either, so it has to be said. */
    type?: 'f16' | 'bf16';
    /** The scale of each row of INT8 codes: f32 numbers, or the bits of f16 ones. */
    scales?: Float32Array | Uint16Array;
    /** Of padded items: the number of each item's tokens; what follows them is padding. */
    lengths?: Integers;
    /** One byte per row, 0 where the row is no token, in any pattern. */
    mask?: Uint8Array;
}

/** How a file is read, where it does not say everything itself. */
export interface FileOptions {
    /** Name of the tensor of embeddings, in place of `embeddings`. */
    tensor?: string;
    /** Tensors that do not describe the items, although their name or shape could. */
    ignore?: readonly string[];
    /**
     * What rows of zeros at the ends of items are, where the file does not say how long items are;
     * tokens, with a warning, unless this says so.
     */
    trailingZeros?: 'pad' | 'tokens';
}
"#;

/// Evaluates an expression with the typed tokens of whichever format.
macro_rules! with_tokens {
    ($any:expr, $tokens:ident => $value:expr) => {
        match $any {
            AnyTokens::F32($tokens) => $value,
            AnyTokens::F16($tokens) => $value,
            AnyTokens::Bf16($tokens) => $value,
            AnyTokens::Int8($tokens) => $value,
            AnyTokens::Int8Affine($tokens) => $value,
            AnyTokens::Fp8($tokens) => $value,
            other => return error(format!("{} tokens are not taken here", other.format())),
        }
    };
}

/// Token vectors of queries or documents, in the engine's memory: `rows` vectors of `dim` numbers,
/// and which rows belong to which query or document.
///
/// They are copied there once, and scored as often as wanted. `free()` gives the memory back, at
/// once; so does the garbage collector, later.
#[wasm_bindgen]
pub struct Tokens {
    held: Held,
    /// Weights of the rows, where they have been set.
    weights: Option<Vec<f32>>,
}

/// Where rows are.
enum Held {
    Own(Box<AnyTokens<'static>>),
    /// In the bytes of a file, which tokens are borrowed from.
    File(Box<TokenFile>),
}

#[wasm_bindgen]
impl Tokens {
    /// Items of equal length: `data` is `[count, length, dim]`, row-major. Where items are shorter,
    /// `lengths` or `mask` say which rows are tokens.
    pub fn padded(
        #[wasm_bindgen(unchecked_param_type = "TokenData")] data: &JsValue,
        #[wasm_bindgen(js_name = "count", unchecked_param_type = "number")] n: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] length: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] dim: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "TokensOptions")] options: &JsValue,
    ) -> Result<Tokens> {
        let options = Options::read(options, &["type", "scales", "lengths", "mask"])?;
        let (n, length, dim) = (count(n, "count")?, count(length, "length")?, count(dim, "dim")?);
        // A layout is a list of its items.
        arrays::reserved::<[u64; 2]>(n, "count")?;
        let mut layout = TokenLayout::padded(n, length, dim)?;
        if let Some(lengths) = options.get("lengths")? {
            layout = layout.with_lengths(&integers(&lengths, "lengths")?)?;
        }
        Tokens::of(data, layout, &options)
    }

    /// Items one after the other: `data` is `[rows, dim]`, row-major, and item `i` the rows
    /// `offsets[i]` to `offsets[i + 1]`.
    pub fn packed(
        #[wasm_bindgen(unchecked_param_type = "TokenData")] data: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] dim: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "Integers")] offsets: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "Omit<TokensOptions, 'lengths'>")]
        options: &JsValue,
    ) -> Result<Tokens> {
        let options = Options::read(options, &["type", "scales", "mask"])?;
        let (dim, offsets) = (count(dim, "dim")?, integers(offsets, "offsets")?);
        let n = arrays::length(data).unwrap_or(0);
        if dim == 0 || !n.is_multiple_of(dim) {
            return error(format!(
                "data: expected whole rows of {dim} elements, found {n} elements"
            ));
        }
        Tokens::of(data, TokenLayout::packed(n / dim, dim, &offsets)?, &options)
    }

    /// The embeddings of a `.safetensors` file, whose bytes these are: `embeddings` `[rows, dim]`
    /// with `offsets` or `lengths`, or `[n, len, dim]`, optionally with `lengths` or a `mask`; f16,
    /// bf16, f32, or codes with `scales`.
    #[wasm_bindgen(js_name = fromSafetensors)]
    pub fn from_safetensors(
        #[wasm_bindgen(unchecked_param_type = "Uint8Array")] bytes: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "FileOptions")] options: &JsValue,
    ) -> Result<Tokens> {
        Tokens::of_file(bytes, FileFormat::Safetensors, options)
    }

    /// The embeddings of an `.npy` file, whose bytes these are: one array `[n, len, dim]`.
    #[wasm_bindgen(js_name = fromNpy)]
    pub fn from_npy(
        #[wasm_bindgen(unchecked_param_type = "Uint8Array")] bytes: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "FileOptions")] options: &JsValue,
    ) -> Result<Tokens> {
        Tokens::of_file(bytes, FileFormat::Npy, options)
    }

    /// Number of queries or documents.
    #[wasm_bindgen(getter = count)]
    pub fn n_items(&self) -> usize {
        self.layout().n_items()
    }

    /// Number of vectors, those that are no token included.
    #[wasm_bindgen(getter)]
    pub fn rows(&self) -> usize {
        self.layout().rows()
    }

    /// Elements of a vector.
    #[wasm_bindgen(getter)]
    pub fn dim(&self) -> usize {
        self.layout().dim()
    }

    /// How the vectors are stored.
    #[wasm_bindgen(getter, unchecked_return_type = "TokenFormat")]
    pub fn format(&self) -> String {
        match &self.held {
            Held::Own(tokens) => tokens.format().to_string(),
            Held::File(file) => file.contents().format.to_string(),
        }
    }

    /// Number of each item's rows, those that a mask excludes included.
    pub fn lengths(&self) -> Uint32Array {
        let lengths: Vec<u32> = self.layout().segments().iter().map(|[_, len]| *len).collect();
        Uint32Array::from(&lengths[..])
    }

    /// The stored vectors `[rows, dim]`: elements (of f16 and bf16 their bits), or codes.
    #[wasm_bindgen(unchecked_return_type = "Float32Array | Uint16Array | Int8Array | Uint8Array")]
    pub fn data(&self) -> Result<JsValue> {
        Ok(match self.plain()?.as_ref() {
            AnyTokens::F32(tokens) => Float32Array::from(tokens.data()).into(),
            AnyTokens::F16(tokens) => Uint16Array::from(cast_slice(tokens.data())).into(),
            AnyTokens::Bf16(tokens) => Uint16Array::from(cast_slice(tokens.data())).into(),
            AnyTokens::Int8(tokens) => Int8Array::from(cast_slice(tokens.data())).into(),
            AnyTokens::Int8Affine(tokens) => Uint8Array::from(cast_slice(tokens.data())).into(),
            AnyTokens::Fp8(tokens) => Uint8Array::from(cast_slice(tokens.data())).into(),
            other => return error(format!("{} tokens have no array", other.format())),
        })
    }

    /// The scale of each row of codes, as stored: f32 numbers, or the bits of f16 ones; one f32
    /// number where it is that of all rows. `undefined` of elements.
    #[wasm_bindgen(unchecked_return_type = "Float32Array | Uint16Array | undefined")]
    pub fn scales(&self) -> Result<JsValue> {
        Ok(match self.plain()?.as_ref() {
            AnyTokens::Int8(tokens) => shown(tokens.scales()),
            AnyTokens::Int8Affine(tokens) => shown(tokens.scales()),
            AnyTokens::Fp8(tokens) => shown(tokens.scales()),
            _ => JsValue::UNDEFINED,
        })
    }

    /// The bits of the f16 number that code 0 of each row stands for; `undefined` where the format
    /// is not `int8-affine`.
    #[wasm_bindgen(unchecked_return_type = "Uint16Array | undefined")]
    pub fn mins(&self) -> Result<JsValue> {
        Ok(match self.plain()?.as_ref() {
            AnyTokens::Int8Affine(tokens) => match tokens.scales() {
                Scales::Affine { mins, .. } => Uint16Array::from(cast_slice(mins)).into(),
                _ => JsValue::UNDEFINED,
            },
            _ => JsValue::UNDEFINED,
        })
    }

    /// The ids that a file gives its items, where it does: as strings.
    #[wasm_bindgen(unchecked_return_type = "string[] | undefined")]
    pub fn ids(&self) -> Result<Option<Array>> {
        let Held::File(file) = &self.held else { return Ok(None) };
        Ok(file.ids()?.map(|ids| ids.into_iter().map(JsValue::from).collect()))
    }

    /// What a user should know about a file that can be read all the same.
    #[wasm_bindgen(unchecked_return_type = "string[]")]
    pub fn warnings(&self) -> Array {
        let Held::File(file) = &self.held else { return Array::new() };
        file.warnings().iter().map(|warning| JsValue::from(warning.to_string())).collect()
    }

    /// Compresses elements to one byte each, with a scale per row: `int8` documents meet `int8`
    /// queries, `int8-affine` ones those of f16, bf16 or `int8`, `fp8` ones `fp8`. Scales are f16
    /// where nothing else is said. Weights stay.
    pub fn quantize(
        &self,
        #[wasm_bindgen(unchecked_param_type = "'int8' | 'int8-affine' | 'fp8'")] format: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "'f16' | 'f32'")] scales: &JsValue,
    ) -> Result<Tokens> {
        let formats = TokenFormat::QUANTIZED.map(|format| (format.name(), format));
        let format = arguments::word(format, "format", &formats)?;
        let words = [ScaleType::F16, ScaleType::F32].map(|scales| (scales.name(), scales));
        let scales = match scales.is_undefined() {
            true => ScaleType::F16,
            false => arguments::word(scales, "scales", &words)?,
        };
        let codes = self.plain()?.quantize(format, scales)?;
        Ok(Tokens { held: Held::Own(Box::new(codes)), weights: self.weights.clone() })
    }

    /// Sets the weight of each row of query tokens, of any sign; `undefined` takes them away. A
    /// score is then the sum of the maxima, each times its token's weight.
    #[wasm_bindgen(js_name = setWeights)]
    pub fn set_weights(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Float32Array | undefined")] weights: &JsValue,
    ) -> Result<()> {
        if weights.is_undefined() {
            self.weights = None;
            return Ok(());
        }
        let weights = arrays::floats(weights, "weights")?;
        let rows = self.rows();
        if weights.len() != rows {
            let found = weights.len();
            return error(format!("weights: expected {rows} entries (one per row), found {found}"));
        }
        self.weights = Some(weights);
        Ok(())
    }

    /// Divides the weights of query tokens, which are 1 where none are set, by the number of the
    /// query's tokens: scores are then means of maxima, not sums.
    #[wasm_bindgen(js_name = setMeanWeights)]
    pub fn set_mean_weights(&mut self) -> Result<()> {
        let weights = with_tokens!(self.view()?.into_owned(), tokens => {
            tokens.with_mean_weights()?.weights().map(<[f32]>::to_vec)
        });
        self.weights = weights;
        Ok(())
    }
}

impl Tokens {
    /// The tokens as the library has them, with their weights.
    pub(crate) fn view(&self) -> Result<Cow<'_, AnyTokens<'_>>> {
        let plain = self.plain()?;
        let Some(weights) = &self.weights else { return Ok(plain) };
        // Queries are few: a copy of them is small beside the documents.
        let bytes = (self.rows() * self.dim()).saturating_mul(size_of::<f32>());
        arrays::reserved::<u8>(bytes, "queries")?;
        let weighted = with_tokens!(plain.into_owned(), tokens => {
            AnyTokens::from(tokens.with_weights(&weights[..])?)
        });
        Ok(Cow::Owned(weighted))
    }

    /// The tokens without their weights.
    fn plain(&self) -> Result<Cow<'_, AnyTokens<'_>>> {
        Ok(match &self.held {
            Held::Own(tokens) => Cow::Borrowed(&**tokens),
            Held::File(file) => Cow::Owned(file.all()?),
        })
    }

    /// Rows, dim, and the rows of each item.
    pub(crate) fn layout(&self) -> &TokenLayout {
        match &self.held {
            Held::Own(tokens) => tokens.layout(),
            Held::File(file) => file.layout(),
        }
    }

    /// Copies vectors, of the type that their array says, into a layout.
    fn of(data: &JsValue, layout: TokenLayout, options: &Options) -> Result<Tokens> {
        let halves = [("f16", ElementType::F16), ("bf16", ElementType::Bf16)];
        let element = options.word("type", &halves)?;
        let scales = options.get("scales")?;
        let tokens: AnyTokens<'static> = match (arrays::name(data).as_deref(), element, scales) {
            (Some("Float32Array"), None, None) => {
                Typed::from_layout(arrays::floats(data, "data")?, layout)?.into()
            }
            (Some("Uint16Array"), Some(element), None) => {
                let bits = arrays::halves(data, "data")?;
                match element {
                    ElementType::F16 => {
                        Typed::from_layout(cast_vec::<_, f16>(bits), layout)?.into()
                    }
                    _ => Typed::from_layout(cast_vec::<_, bf16>(bits), layout)?.into(),
                }
            }
            (Some("Int8Array"), None, Some(scales)) => {
                let codes = arrays::codes(data, "data")?;
                if let Some(place) = codes.iter().position(|&code| code == i8::MIN) {
                    let row = place / layout.dim();
                    return error(format!(
                        "data: row {row} has the code -128; int8 codes go from -127 to 127"
                    ));
                }
                Typed::<Int8>::from_codes(codes, read_scales(&scales)?, layout)?.into()
            }
            (name, element, scales) => return wrong_data(data, name, element, scales.is_some()),
        };
        let Some(mask) = options.get("mask")? else { return Ok(Tokens::own(tokens)) };
        let mask = arrays::bytes(&mask, "mask")?;
        Ok(Tokens::own(with_tokens!(tokens, tokens => tokens.with_mask(mask)?.into())))
    }

    fn own(tokens: AnyTokens<'static>) -> Tokens {
        Tokens { held: Held::Own(Box::new(tokens)), weights: None }
    }

    fn of_file(bytes: &JsValue, format: FileFormat, options: &JsValue) -> Result<Tokens> {
        let options = Options::read(options, &["tensor", "ignore", "trailingZeros"])?;
        let mut read = FileOptions::default();
        if let Some(tensor) = options.text("tensor")? {
            read = read.tensor(tensor);
        }
        for tensor in options.texts("ignore")? {
            read = read.ignore(tensor);
        }
        let meanings = [("pad", TrailingZeros::Pad), ("tokens", TrailingZeros::Tokens)];
        if let Some(meaning) = options.word("trailingZeros", &meanings)? {
            read = read.trailing_zeros(meaning);
        }
        let bytes = arrays::bytes(bytes, "bytes")?;
        let file = TokenFile::from_bytes(bytes, format, &read)?;
        // Codes and scales are looked at now, not when they are scored.
        let _ = file.all()?;
        Ok(Tokens { held: Held::File(Box::new(file)), weights: None })
    }
}

/// Scales as JavaScript has them.
fn shown(scales: &Scales<'_>) -> JsValue {
    match scales {
        Scales::F32(scales) => Float32Array::from(&scales[..]).into(),
        Scales::F16(scales) | Scales::Affine { scales, .. } => {
            Uint16Array::from(cast_slice(scales)).into()
        }
        Scales::Tensor(scale) => Float32Array::from(&[*scale][..]).into(),
        _ => JsValue::UNDEFINED,
    }
}

/// The scales of INT8 codes.
fn read_scales(scales: &JsValue) -> Result<Scales<'static>> {
    Ok(match arrays::name(scales).as_deref() {
        Some("Float32Array") => Scales::F32(arrays::floats(scales, "scales")?.into()),
        Some("Uint16Array") => {
            Scales::F16(cast_vec::<_, f16>(arrays::halves(scales, "scales")?).into())
        }
        _ => {
            let found = described(scales);
            return error(format!("scales: expected Float32Array or Uint16Array, found {found}"));
        }
    })
}

/// Says what vectors and options do not go together.
fn wrong_data<T>(
    data: &JsValue,
    name: Option<&str>,
    element: Option<ElementType>,
    has_scales: bool,
) -> Result<T> {
    match name {
        Some("Uint16Array") if element.is_none() => error(
            "type: a Uint16Array has the bits of f16 or of bf16 numbers; say type: 'f16' or \
                   type: 'bf16'",
        ),
        Some("Int8Array") if !has_scales => {
            error("scales: INT8 codes need the scale of each row, a Float32Array or Uint16Array")
        }
        Some("Float32Array" | "Int8Array") if element.is_some() => error(format!(
            "type: it says what the bits of a Uint16Array are; data is {}",
            described(data)
        )),
        Some("Float32Array" | "Uint16Array") => {
            error(format!("scales: INT8 codes alone have them; data is {}", described(data)))
        }
        _ => error(format!(
            "data: expected Float32Array, Uint16Array or Int8Array, found {}",
            described(data)
        )),
    }
}
