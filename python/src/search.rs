//! Exact searches by way of codes: documents in memory of their own, on the host or on a GPU, so
//! that nothing that was proven of them changes.

use maxsim::format::{Element, Fp8, Int8, Int8Affine, Quantized, ScaleType, ScorableWith};
use maxsim::format::{ElementType, Format, Scales, TokenFormat};
use maxsim::half::{bf16, f16};
use maxsim::search::{Certainty, SearchOptions, SearchRanking, SearchTokens};
use maxsim::{Device, Ranked, Ranking, Result, TokenLayout, Tokens, TokensRef};
use pyo3::prelude::*;

use crate::errors::shape;
use crate::pool;
use crate::rank::{CHUNK_SCORES, RankingRoom};
use crate::side::{Memory, Side, entries, numbers};

/// Documents with codes of them, and bounds of how far these are off.
#[pyclass(frozen)]
pub struct Screen(Box<dyn Search>);

/// A search for queries of any type.
trait Search: Send + Sync {
    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn search(
        &self,
        queries: &Side,
        k: usize,
        how: &SearchOptions,
    ) -> Result<Vec<SearchRanking>>;
}

/// How queries meet documents of a format: as codes of their own, or as they are.
trait Meets<T: Element>: Quantized {
    fn search(
        device: &Device,
        queries: &Tokens<'_, T>,
        documents: &SearchTokens<'_, T, Self>,
        k: usize,
        how: &SearchOptions,
    ) -> Result<Vec<SearchRanking>>;
}

fn as_codes<T: Element, F: Quantized + ScorableWith<F>>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &SearchTokens<'_, T, F>,
    k: usize,
    how: &SearchOptions,
) -> Result<Vec<SearchRanking>> {
    let codes = queries.quantize::<F>(ScaleType::F32)?;
    let queries = SearchTokens::measured(queries, &codes)?;
    device.search(&queries, documents, k, how)
}

macro_rules! meets {
    ($($format:ty),*) => {$(
        impl<T: Element> Meets<T> for $format {
            fn search(
                device: &Device,
                queries: &Tokens<'_, T>,
                documents: &SearchTokens<'_, T, Self>,
                k: usize,
                how: &SearchOptions,
            ) -> Result<Vec<SearchRanking>> {
                as_codes(device, queries, documents, k, how)
            }
        }
    )*};
}
meets!(Int8, Fp8);

macro_rules! meets_plain {
    ($($element:ty),*) => {$(
        impl Meets<$element> for Int8Affine {
            fn search(
                device: &Device,
                queries: &Tokens<'_, $element>,
                documents: &SearchTokens<'_, $element, Self>,
                k: usize,
                how: &SearchOptions,
            ) -> Result<Vec<SearchRanking>> {
                device.search(&SearchTokens::plain(queries)?, documents, k, how)
            }
        }
    )*};
}
meets_plain!(f16, bf16);

/// One side of searches with the tokens `A` and codes `B` that it borrows: those of the host, or
/// handles of a device.
struct Kept<T: Element, F: Quantized, A, B> {
    /// Dropped before what it borrows.
    side: Option<SearchTokens<'static, T, F>>,
    tokens: *mut A,
    codes: *mut B,
    device: Device,
    n_documents: usize,
}

// SAFETY: the pointers are those of boxes that this value owns, of types that are both.
unsafe impl<T: Element, F: Quantized, A: Send + Sync, B: Send + Sync> Send for Kept<T, F, A, B> {}
// SAFETY: as above; nothing is changed through them.
unsafe impl<T: Element, F: Quantized, A: Send + Sync, B: Send + Sync> Sync for Kept<T, F, A, B> {}

impl<T: Element, F: Quantized, A, B> Kept<T, F, A, B>
where
    A: AsRef<TokenLayout> + 'static,
    B: 'static,
    &'static A: Into<TokensRef<'static, T>>,
    &'static B: Into<TokensRef<'static, F>>,
{
    fn new(device: Device, tokens: A, codes: B) -> Result<Kept<T, F, A, B>> {
        let n_documents = tokens.as_ref().n_items();
        let (tokens, codes) = (Box::into_raw(Box::new(tokens)), Box::into_raw(Box::new(codes)));
        let mut kept = Kept { side: None, tokens, codes, device, n_documents };
        // SAFETY: both stay where they are, and as they are, until this value is dropped.
        let (tokens, codes): (&'static A, &'static B) = unsafe { (&*tokens, &*codes) };
        kept.side = Some(SearchTokens::measured(tokens, codes)?);
        Ok(kept)
    }
}

impl<T: Element, F: Quantized, A, B> Drop for Kept<T, F, A, B> {
    fn drop(&mut self) {
        self.side = None;
        // SAFETY: boxes that `new` made, which nothing borrows any more.
        unsafe {
            drop(Box::from_raw(self.tokens));
            drop(Box::from_raw(self.codes));
        }
    }
}

impl<T: Element, F: Meets<T>, A: Send + Sync, B: Send + Sync> Search for Kept<T, F, A, B> {
    unsafe fn search(
        &self,
        queries: &Side,
        k: usize,
        how: &SearchOptions,
    ) -> Result<Vec<SearchRanking>> {
        let Some(documents) = &self.side else { return Ok(Vec::new()) };
        // SAFETY: the caller's promise.
        let queries = unsafe { queries.elements::<T>()? };
        let at_once = (CHUNK_SCORES / self.n_documents.max(1)).max(1);
        let n = queries.layout().n_items();
        let mut found = Vec::with_capacity(n);
        for first in (0..n).step_by(at_once) {
            let some = queries.items(first..n.min(first + at_once))?;
            found.extend(F::search(&self.device, &some, documents, k, how)?);
        }
        Ok(found)
    }
}

impl Side {
    /// A copy of elements of a type.
    ///
    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn owned<T: Element>(&self) -> Result<Tokens<'static, T>> {
        // SAFETY: the caller's promise.
        unsafe {
            let tokens = self.elements::<T>()?;
            let own = Tokens::from_layout(tokens.data().to_vec(), self.layout()?)?;
            self.own_mask(own)
        }
    }

    /// A copy of codes of a format, with their scales.
    ///
    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn owned_codes<F: Quantized>(&self) -> Result<Tokens<'static, F>> {
        // SAFETY: the caller's promise.
        unsafe {
            let len = entries(self.rows(), self.dim())?;
            let codes = numbers::<F::Stored>("codes", self.address(), len)?.to_vec();
            let scales = match self.scales()? {
                Scales::F16(scales) => Scales::F16(scales.into_owned().into()),
                Scales::F32(scales) => Scales::F32(scales.into_owned().into()),
                Scales::Tensor(scale) => Scales::Tensor(scale),
                Scales::Affine { scales, mins } => Scales::Affine {
                    scales: scales.into_owned().into(),
                    mins: mins.into_owned().into(),
                },
                other => return Err(shape("scales", "scales of rows", other.storage().name())),
            };
            self.own_mask(Tokens::from_codes(codes, scales, self.layout()?)?)
        }
    }

    /// # Safety
    /// As [`Side::tokens`].
    unsafe fn own_mask<F: Format>(&self, tokens: Tokens<'static, F>) -> Result<Tokens<'static, F>> {
        match self.mask()? {
            Some(mask) => {
                // SAFETY: the caller's promise.
                let mask = unsafe { mask.read::<u8>("mask", self.rows())? };
                tokens.with_mask(mask.to_vec())
            }
            None => Ok(tokens),
        }
    }
}

/// # Safety
/// As [`Side::tokens`].
unsafe fn kept<T: Element, F: Meets<T>>(
    device: Device,
    tokens: &Side,
    codes: &Side,
) -> Result<Box<dyn Search>> {
    // SAFETY: the caller's promise.
    let (tokens, codes) = unsafe { (tokens.owned::<T>()?, codes.owned_codes::<F>()?) };
    if device.ordinal().is_none() {
        return Ok(Box::new(Kept::new(device, tokens, codes)?));
    }
    // What is measured is what the device has.
    let (tokens, codes) = (device.upload(&tokens)?, device.upload(&codes)?);
    Ok(Box::new(Kept::new(device, tokens, codes)?))
}

/// # Safety
/// As [`Side::tokens`].
unsafe fn of_sides(device: Device, tokens: &Side, codes: &Side) -> Result<Box<dyn Search>> {
    macro_rules! of {
        ($element:ty) => {
            // SAFETY: the caller's promise.
            unsafe {
                match codes.format()? {
                    TokenFormat::Int8 => return kept::<$element, Int8>(device, tokens, codes),
                    TokenFormat::Fp8 => return kept::<$element, Fp8>(device, tokens, codes),
                    _ => {}
                }
            }
        };
    }
    macro_rules! of_affine {
        ($element:ty) => {{
            of!($element);
            if codes.format()? == TokenFormat::Int8Affine {
                // SAFETY: the caller's promise.
                return unsafe { kept::<$element, Int8Affine>(device, tokens, codes) };
            }
        }};
    }
    match tokens.format()? {
        TokenFormat::Element(ElementType::F32) => of!(f32),
        TokenFormat::Element(ElementType::F16) => of_affine!(f16),
        TokenFormat::Element(ElementType::Bf16) => of_affine!(bf16),
        _ => {}
    }
    let found = format!("{} of {}", codes.format()?, tokens.format()?);
    let expected = "int8 or fp8 codes, or int8-affine ones of f16 or bf16";
    Err(shape("element types", expected, found))
}

#[pymethods]
impl Screen {
    /// Takes a copy of documents in host memory and of codes of theirs, to a device, or without
    /// one to memory of its own.
    #[new]
    #[pyo3(signature = (n_threads, device, tokens, codes))]
    fn new(
        py: Python<'_>,
        n_threads: usize,
        device: Option<usize>,
        tokens: Side,
        codes: Side,
    ) -> PyResult<Screen> {
        pool::run(py, n_threads, || {
            let device = device.map_or_else(|| Ok(Device::cpu()), Device::cuda)?;
            // SAFETY: the Python caller gives the addresses of arrays that it keeps meanwhile.
            unsafe { Ok(Screen(of_sides(device, &tokens, &codes)?)) }
        })
    }

    /// The best documents of each query, a byte for each that says whether its place is proven,
    /// and how many were re-scored (i64).
    #[pyo3(signature = (n_threads, queries, n_candidates, exact, room, proven, n_rescored))]
    #[allow(clippy::too_many_arguments)] // what a search is given, and room for its results
    fn search(
        &self,
        py: Python<'_>,
        n_threads: usize,
        queries: Side,
        n_candidates: usize,
        exact: bool,
        room: RankingRoom,
        proven: Memory,
        n_rescored: Memory,
    ) -> PyResult<()> {
        pool::run(py, n_threads, || {
            let (n, k) = room.shape();
            let how = SearchOptions::default().n_candidates(n_candidates).exact(exact);
            // SAFETY: as in `new`.
            unsafe {
                let found = self.0.search(&queries, k, &how)?;
                let proven = proven.write::<u8>("proven", entries(n, k)?)?;
                let n_rescored = n_rescored.write::<i64>("n_rescored", n)?;
                room.write(found.iter().map(ranking))?;
                for (query, ranking) in found.iter().enumerate() {
                    n_rescored[query] = ranking.n_rescored as i64;
                    for (i, hit) in ranking.documents.iter().enumerate() {
                        proven[query * k + i] = (hit.certainty == Certainty::Proven).into();
                    }
                }
            }
            Ok(())
        })
    }
}

/// A search's result as rankings are written.
fn ranking(found: &SearchRanking) -> Ranking {
    let ranked = found.documents.iter();
    let ranked =
        ranked.map(|hit| Ranked { id: hit.id, score: hit.score, has_tokens: hit.has_tokens });
    Ranking { ranked: ranked.collect(), n_nan: found.n_nan, n_empty: found.n_empty }
}
