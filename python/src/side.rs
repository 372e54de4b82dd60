//! One side of a call, as addresses and numbers.

use std::mem;
use std::slice;

use maxsim::format::{
    ElementType, Fp8, Int8, Int8Affine, Quantized, RawRows, RawScaleWords, Scales, TokenFormat,
};
use maxsim::half::{bf16, f16};
use maxsim::layout::Index;
use maxsim::{AnyTokens, Error, Pairing, Result, TokenLayout, Tokens};
use pyo3::prelude::*;

use crate::errors::shape;

/// How the rows of items are said, as `_sides.py` numbers it.
pub const PADDED: u8 = 0;
pub const PACKED: u8 = 1;
pub const SCATTERED: u8 = 2;
/// Padded items that begin at multiples of `first` rows.
const STRIDED: u8 = 3;
/// Items that the device alone knows: `first` is the address of their segments, `lengths` how many
/// rows calls are planned for.
const UNREAD: u8 = 4;

/// Tokens of one side: the rows of each item, and a matrix. Addresses are those of arrays that
/// the Python caller keeps; 0 stands for none.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Side(Items, Matrix);

/// The rows of each item.
#[derive(FromPyObject, Clone, Copy, Debug)]
struct Items(
    /* kind */ u8,
    /* number of items */ usize,
    /* length of padded ones */ usize,
    /* rows of the matrix */ usize,
    /* dim */ usize,
    /* offsets, starts, or the stride in rows */ u64,
    /* lengths */ u64,
    /* whether these have 64 bits */ bool,
);

/// Rows in memory.
#[derive(FromPyObject, Clone, Copy, Debug)]
struct Matrix(
    /* address */ u64,
    /* bytes from a row to the next */ u64,
    /* format */ u8,
    /* mask, a byte a row */ Option<Memory>,
    /* scales */ Memory,
    /* their kind */ u8,
    /* minima */ Memory,
    /* weights, an f32 a row */ Option<Memory>,
);

/// Numbers in memory of the Python caller: of an array that it keeps.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Memory(/* address; of none, any */ pub u64, /* how many */ pub usize);

impl Memory {
    /// The numbers, of which there must be `len`.
    ///
    /// # Safety
    /// As [`numbers`], of as many as this says.
    pub unsafe fn read<'a, T>(self, argument: &'static str, len: usize) -> Result<&'a [T]> {
        self.check(argument, len)?;
        // SAFETY: the caller's promise.
        unsafe { numbers(argument, self.0, len) }
    }

    /// Room for numbers, of which there must be `len`.
    ///
    /// # Safety
    /// As [`room`], of as many as this says.
    pub unsafe fn write<'a, T>(self, argument: &'static str, len: usize) -> Result<&'a mut [T]> {
        self.check(argument, len)?;
        // SAFETY: the caller's promise.
        unsafe { room(argument, self.0, len) }
    }

    /// How many entries there are.
    pub fn len(self) -> usize {
        self.1
    }

    /// Checks that there are `len` entries.
    pub fn check(self, argument: &'static str, len: usize) -> Result<()> {
        match self.1 == len {
            true => Ok(()),
            false => Err(shape(argument, format!("{len} entries"), self.1)),
        }
    }
}

/// The numbers at an address.
///
/// # Safety
/// As [`slice::from_raw_parts`], but for the address of no numbers; alignment is checked.
pub unsafe fn numbers<'a, T>(argument: &'static str, address: u64, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_address::<T>(argument, address)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(address as usize as *const T, len) })
}

/// As [`numbers`], to be written.
///
/// # Safety
/// As [`slice::from_raw_parts_mut`], but for the address of no numbers.
unsafe fn room<'a, T>(argument: &'static str, address: u64, len: usize) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_address::<T>(argument, address)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts_mut(address as usize as *mut T, len) })
}

fn check_address<T>(argument: &'static str, address: u64) -> Result<()> {
    let align = mem::align_of::<T>() as u64;
    if address == 0 || !address.is_multiple_of(align) {
        let expected = format!("an address that is a multiple of {align}");
        return Err(shape(argument, expected, format!("{address:#x}")));
    }
    Ok(())
}

/// Entries of `n` rows of `width`.
pub fn entries(n: usize, width: usize) -> Result<usize> {
    let (what, limit) = ("entries", usize::MAX as u64);
    n.checked_mul(width).ok_or(Error::TooLarge { what, limit, found: limit })
}

/// Offsets, starts, lengths or ids of either width.
enum Indices<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

macro_rules! with_indices {
    ($indices:expr, $values:ident => $result:expr) => {
        match $indices {
            Indices::Narrow($values) => $result,
            Indices::Wide($values) => $result,
        }
    };
}

impl<'a> Indices<'a> {
    /// # Safety
    /// As [`numbers`].
    unsafe fn at(
        argument: &'static str,
        address: u64,
        len: usize,
        is_wide: bool,
    ) -> Result<Indices<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match is_wide {
                false => Indices::Narrow(numbers(argument, address, len)?),
                true => Indices::Wide(numbers(argument, address, len)?),
            })
        }
    }
}

impl Side {
    /// Padded items `[n, len, dim]` of elements, one after the other.
    pub fn padded(
        address: u64,
        element: ElementType,
        [n, len, dim]: [usize; 3],
        mask: Option<Memory>,
    ) -> Side {
        let format = match element {
            ElementType::F32 => 0,
            ElementType::F16 => 1,
            ElementType::Bf16 => 2,
        };
        let (pitch, none) = ((dim * element.size_bytes()) as u64, Memory(0, 0));
        let items = Items(PADDED, n, len, n * len, dim, 0, 0, false);
        Side(items, Matrix(address, pitch, format, mask, none, 0, none, None))
    }

    /// Address of the matrix.
    pub fn address(&self) -> u64 {
        self.1.0
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.0.1
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.0.3
    }

    /// Elements per token.
    pub fn dim(&self) -> usize {
        self.0.4
    }

    /// The bytes of a mask, whatever memory they are in: as many as there are rows.
    pub fn mask(&self) -> Result<Option<Memory>> {
        self.1.3.iter().try_for_each(|mask| mask.check("mask", self.rows()))?;
        Ok(self.1.3)
    }

    /// Whether there is a mask.
    pub fn is_masked(&self) -> bool {
        self.1.3.is_some()
    }

    /// The weights of rows, whatever memory they are in: as many as there are rows.
    fn weights(&self) -> Result<Option<Memory>> {
        self.1.7.iter().try_for_each(|weights| weights.check("weights", self.rows()))?;
        Ok(self.1.7)
    }

    /// Whether there are weights.
    pub fn is_weighted(&self) -> bool {
        self.1.7.is_some()
    }

    /// Storage format of the rows, as `_sides.py` numbers it.
    pub fn format(&self) -> Result<TokenFormat> {
        format(self.1.2)
    }

    /// The layout, without a mask.
    ///
    /// # Safety
    /// Offsets, starts and lengths must be in host memory, as many as the kind has.
    pub unsafe fn layout(&self) -> Result<TokenLayout> {
        let Items(kind, n, len, rows, dim, first, lengths, wide) = self.0;
        // SAFETY: the caller's promise.
        let indices = |argument, address, len| unsafe { Indices::at(argument, address, len, wide) };
        match kind {
            PADDED => {
                let layout = TokenLayout::padded(n, len, dim)?;
                if lengths == 0 {
                    return Ok(layout);
                }
                let lengths = indices("lengths", lengths, n)?;
                with_indices!(lengths, lengths => layout.with_lengths(lengths))
            }
            PACKED => with_indices!(
                indices("offsets", first, n + 1)?,
                offsets => TokenLayout::packed(rows, dim, offsets)
            ),
            SCATTERED => match (indices("starts", first, n)?, indices("lengths", lengths, n)?) {
                (Indices::Narrow(a), Indices::Narrow(b)) => scattered(rows, dim, a, b),
                (Indices::Wide(a), Indices::Wide(b)) => scattered(rows, dim, a, b),
                _ => Err(shape("lengths", "the integer type of the starts", "another")),
            },
            STRIDED => {
                let starts: Vec<u64> = (0..n as u64).map(|i| i * first).collect();
                if lengths == 0 {
                    return scattered(rows, dim, &starts, &vec![len as u64; n]);
                }
                with_indices!(indices("lengths", lengths, n)?, lengths => {
                    let most = TokenLayout::padded(n, len, dim)?.with_lengths(lengths)?;
                    let lengths: Vec<u64> = (0..n).map(|i| most.item_len(i) as u64).collect();
                    scattered(rows, dim, &starts, &lengths)
                })
            }
            UNREAD => TokenLayout::unread(rows, dim, n, len, lengths as usize),
            kind => Err(shape("kind", "0 to 4", kind)),
        }
    }

    /// The tokens, where they are in host memory, without a copy.
    ///
    /// # Safety
    /// All addresses must be those of host memory that is as long as the numbers say, and stays
    /// as it is while the result is used.
    pub unsafe fn tokens<'a>(&self) -> Result<AnyTokens<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match self.format()? {
                TokenFormat::Element(ElementType::F32) => self.elements::<f32>()?.into(),
                TokenFormat::Element(ElementType::F16) => self.elements::<f16>()?.into(),
                TokenFormat::Element(ElementType::Bf16) => self.elements::<bf16>()?.into(),
                TokenFormat::Int8 => self.codes::<Int8>()?.into(),
                TokenFormat::Int8Affine => self.codes::<Int8Affine>()?.into(),
                _ => self.codes::<Fp8>()?.into(),
            })
        }
    }

    /// Elements of a type, where they are.
    ///
    /// # Safety
    /// As [`Side::tokens`].
    pub unsafe fn elements<'a, T: maxsim::format::Element>(&self) -> Result<Tokens<'a, T>> {
        if self.format()? != T::FORMAT {
            return Err(shape("element types", T::FORMAT.to_string(), self.format()?));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let layout = self.layout()?;
            let data = numbers::<T>("tokens", self.address(), entries(self.rows(), self.dim())?)?;
            self.with_rows_own(Tokens::from_layout(data, layout)?)
        }
    }

    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn codes<'a, F: Quantized>(&self) -> Result<Tokens<'a, F>> {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = self.layout()?;
            let codes = numbers("codes", self.address(), entries(self.rows(), self.dim())?)?;
            self.with_rows_own(Tokens::<F>::from_codes(codes, self.scales()?, layout)?)
        }
    }

    /// Tokens with the mask and the weights that there are.
    ///
    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn with_rows_own<'a, F: maxsim::format::Format>(
        &self,
        tokens: Tokens<'a, F>,
    ) -> Result<Tokens<'a, F>> {
        // SAFETY: the caller's promise.
        unsafe {
            let tokens = match self.mask()? {
                Some(mask) => tokens.with_mask(mask.read::<u8>("mask", self.rows())?)?,
                None => tokens,
            };
            match self.weights()? {
                Some(weights) => tokens.with_weights(weights.read("weights", self.rows())?),
                None => Ok(tokens),
            }
        }
    }

    /// # Safety
    /// As [`Side::tokens`].
    pub unsafe fn scales<'a>(&self) -> Result<Scales<'a>> {
        let Matrix(.., scales, kind, mins, _) = self.1;
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match kind {
                1 => Scales::F16(scales.read("scales", self.rows())?.into()),
                2 => Scales::F32(scales.read("scales", self.rows())?.into()),
                3 => Scales::Tensor(*scales.read("scales", 1)?.first().unwrap_or(&1.0)),
                4 => Scales::Affine {
                    scales: scales.read("scales", self.rows())?.into(),
                    mins: mins.read("mins", self.rows())?.into(),
                },
                kind => return Err(shape("scales", "kind 1 to 4", kind)),
            })
        }
    }

    /// Address of the segments of items that the device alone knows.
    pub fn segments(&self) -> Option<u64> {
        (self.0.0 == UNREAD).then_some(self.0.5)
    }

    /// Rows in device memory.
    pub fn raw_rows(&self) -> Result<RawRows> {
        let rows = RawRows::new(self.1.0, self.1.1).segments(self.segments());
        let rows = rows.mask(self.mask()?.map(|mask| mask.0));
        Ok(rows.weights(self.weights()?.map(|weights| weights.0)))
    }

    /// Scales of codes of a format in device memory, as GPUs read them: a word per row and padding.
    pub fn scale_words(&self, format: TokenFormat) -> Result<RawScaleWords> {
        let Matrix(.., words, kind, _, _) = self.1;
        let is_kind = match format {
            TokenFormat::Int8 => matches!(kind, 1 | 2),
            TokenFormat::Int8Affine => kind == 4,
            _ => matches!(kind, 1..=3),
        };
        if !is_kind {
            return Err(shape("scales", format!("those of {format} codes"), "others"));
        }
        words.check("scales", (RawScaleWords::len_bytes(self.rows()) / 4) as usize)?;
        Ok(RawScaleWords::new(words.0))
    }

    /// All that the layout depends on, where that is in these numbers alone.
    pub fn regular_key(&self) -> Option<[usize; 7]> {
        let Items(kind, n, len, rows, dim, first, lengths, _) = self.0;
        let is_regular = matches!(kind, PADDED | STRIDED) && lengths == 0 || kind == UNREAD;
        let stride = match kind {
            STRIDED => first as usize,
            UNREAD => lengths as usize,
            _ => 0,
        };
        let has = usize::from(self.is_masked()) + 2 * usize::from(self.is_weighted());
        is_regular.then_some([kind.into(), n, len, rows, dim, stride, has])
    }
}

/// Storage format as `_sides.py` numbers it.
pub fn format(number: u8) -> Result<TokenFormat> {
    Ok(match number {
        0 => ElementType::F32.into(),
        1 => ElementType::F16.into(),
        2 => ElementType::Bf16.into(),
        3 => TokenFormat::Int8,
        4 => TokenFormat::Int8Affine,
        5 => TokenFormat::Fp8,
        other => return Err(shape("format", "0 to 5", other)),
    })
}

fn scattered<I: Index>(
    rows: usize,
    dim: usize,
    starts: &[I],
    lengths: &[I],
) -> Result<TokenLayout> {
    TokenLayout::scattered(rows, dim, starts, lengths)
}

/// Which queries meet which documents.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Pairs(
    /* kind */ u8,
    /* candidates per query */ usize,
    /* number of ids */ usize,
    /* query ids */ u64,
    /* document ids */ u64,
    /* has 64-bit ids */ bool,
);

impl Pairs {
    /// Every query with every document.
    pub fn cross() -> Pairs {
        Pairs(0, 0, 0, 0, 0, false)
    }

    /// Every query with `k` documents of its own.
    pub fn own(k: usize) -> Pairs {
        Pairs(1, k, 0, 0, 0, false)
    }

    /// The pairing.
    ///
    /// # Safety
    /// Ids must be in host memory, as many as the numbers say.
    pub unsafe fn pairing(&self) -> Result<Pairing> {
        let Pairs(kind, k, n, query_ids, document_ids, is_wide) = *self;
        // SAFETY: the caller's promise.
        let ids = |argument, address| unsafe { Indices::at(argument, address, n, is_wide) };
        match kind {
            0 => Ok(Pairing::cross()),
            1 => Ok(Pairing::own_candidates(k)),
            2 => with_indices!(ids("ids", document_ids)?, ids => Pairing::candidates(ids, k)),
            3 => match (ids("q_ids", query_ids)?, ids("d_ids", document_ids)?) {
                (Indices::Narrow(a), Indices::Narrow(b)) => Pairing::pairs(a, b),
                (Indices::Wide(a), Indices::Wide(b)) => Pairing::pairs(a, b),
                _ => Err(shape("d_ids", "the integer type of q_ids", "another")),
            },
            kind => Err(shape("pairing", "0 to 3", kind)),
        }
    }

    /// The query of each of `n` scores. Of ids that are no queries nothing is known here.
    ///
    /// # Safety
    /// As [`Pairs::pairing`].
    pub unsafe fn queries(&self, n: usize, n_documents: usize) -> Result<Vec<u64>> {
        let row_len = match self.0 {
            0 => n_documents,
            1 | 2 => self.1,
            _ => {
                // SAFETY: the caller's promise.
                let ids = unsafe { Indices::at("q_ids", self.3, self.2, self.5)? };
                return Ok(with_indices!(ids, ids => ids.iter().map(|&id| id as u64).collect()));
            }
        };
        Ok((0..n).map(|score| (score / row_len.max(1)) as u64).collect())
    }
}
