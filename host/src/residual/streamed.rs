//! Residual-compressed documents that are read a part at a time.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use maxsim_kernels::abi::residual::BitOrder;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::arrangement::Arrangement;
use super::codec::ResidualCodec;
use super::tokens::ResidualTokens;
use crate::error::{Error, Result};
use crate::runtime::alloc::{fill, filled};
use crate::runtime::pool::Parallel;
use crate::tokens::layout::{TokenLayout, check_len};
use crate::tokens::streamed::check_beside;
use crate::tokens::streamed::staged::Staged;
use crate::tokens::streamed::subset::Subset;

/// Rows that a thread arranges at a time.
const ROWS_AT_ONCE: usize = 256;

/// Residual-compressed documents that [`Device::search_residual_stream`] reads once, from front to
/// back, some rows at a time and from several threads.
///
/// [`ResidualTokens`] are a source, and so are [`ArrangedTokens`], which a GPU reads several times
/// as fast: their buckets lie as its kernels decode them.
///
/// [`Device::search_residual_stream`]: crate::Device::search_residual_stream
pub trait ResidualSource: Sync {
    /// The codec that decodes the tokens.
    fn codec(&self) -> &Arc<ResidualCodec<'_>>;

    /// How the bits of buckets lie, where they are not arranged.
    fn order(&self) -> BitOrder;

    /// Shape and items, as [`Source::layout`](crate::streaming::Source::layout).
    fn layout(&self) -> &TokenLayout;

    /// A byte per row, 0 where the row is no token.
    fn mask(&self) -> Option<&[u8]> {
        None
    }

    /// Whether buckets lie as [`Arrangement::arrange`] puts them, in rows of
    /// [`Arrangement::row_bytes`]: for GPUs alone. Else rows have [`ResidualCodec::row_bytes`].
    fn is_arranged(&self) -> bool {
        false
    }

    /// All rows, where they are those of [`ArrangedTokens`]. From [page-locked
    /// memory](crate::Device::page_locked_residual) a GPU takes them without a copy on the host,
    /// and without [`ResidualSource::fill`].
    fn as_arranged(&self) -> Option<&ArrangedTokens<'_>> {
        None
    }

    /// Writes the codes of some rows, and their buckets `[rows.len(), row_bytes]`. All of both must
    /// be written, and each code be that of a centroid. Several threads call this at once, each for
    /// other rows.
    ///
    /// # Errors
    /// Whatever reading them gives: the search ends with [`Error::Source`], which has it.
    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()>;
}

impl ResidualSource for ResidualTokens<'_> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        self.codec()
    }

    fn order(&self) -> BitOrder {
        self.order()
    }

    fn layout(&self) -> &TokenLayout {
        self.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask()
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        let row_bytes = self.codec().row_bytes();
        codes.copy_from_slice(&self.codes()[rows.clone()]);
        residuals.copy_from_slice(&self.residuals()[rows.start * row_bytes..rows.end * row_bytes]);
        Ok(())
    }
}

impl<S: ResidualSource + ?Sized> ResidualSource for &S {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        (**self).codec()
    }

    fn order(&self) -> BitOrder {
        (**self).order()
    }

    fn layout(&self) -> &TokenLayout {
        (**self).layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        (**self).mask()
    }

    fn is_arranged(&self) -> bool {
        (**self).is_arranged()
    }

    fn as_arranged(&self) -> Option<&ArrangedTokens<'_>> {
        (**self).as_arranged()
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        (**self).fill(rows, codes, residuals)
    }
}

impl<'a, S: ResidualSource + ?Sized> Subset<'a, S> {
    /// As [`Subset::new`], of residual-compressed items.
    ///
    /// ```
    /// use maxsim::residual::{ResidualSource, ResidualTokens};
    /// use maxsim::streaming::{StreamOptions, Subset};
    /// use maxsim::{Device, Result, Tokens};
    ///
    /// /// The best of some documents.
    /// fn best(query: &Tokens<'_, f32>, corpus: &ResidualTokens<'_>, ids: &[u32]) -> Result<u32> {
    ///     let (some, options) = (Subset::of_residuals(corpus, ids)?, StreamOptions::default());
    ///     let found = Device::cpu().search_residual_stream(query, &some, 1, &options)?;
    ///     Ok(ids[found.rankings[0].ranked[0].id as usize])
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Subset::new`].
    pub fn of_residuals(source: &'a S, ids: &[u32]) -> Result<Subset<'a, S>> {
        let all = StreamedResiduals::new(&source)?;
        Subset::of_rows(source, Staged::layout(&all), all.mask, ids)
    }
}

impl<S: ResidualSource + ?Sized> ResidualSource for Subset<'_, S> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        self.source().codec()
    }

    fn order(&self) -> BitOrder {
        self.source().order()
    }

    fn layout(&self) -> &TokenLayout {
        self.own_layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.own_mask()
    }

    fn is_arranged(&self) -> bool {
        self.source().is_arranged()
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        let row_bytes = residuals.len() / codes.len().max(1);
        let fill = |(rows, place): (Range<usize>, Range<usize>)| {
            let bytes = place.start * row_bytes..place.end * row_bytes;
            self.source().fill(rows, &mut codes[place], &mut residuals[bytes])
        };
        self.parts(rows).try_for_each(fill)
    }
}

/// Residual-compressed tokens whose buckets lie as kernels of GPUs decode them, in memory of their
/// own: [`ResidualTokens::arranged`], or [`Device::page_locked_residual`].
///
/// [`Device::page_locked_residual`]: crate::Device::page_locked_residual
///
/// ```
/// use std::sync::Arc;
///
/// use maxsim::residual::{ArrangedTokens, BitOrder, Centroids, ResidualCodec, ResidualTokens};
/// use maxsim::TokenLayout;
///
/// let centroids = Centroids::F32(vec![0.0; 8].into());
/// let codec = Arc::new(ResidualCodec::new(2, 8, centroids, &[-0.3, -0.1, 0.1, 0.3], false)?);
/// let layout = TokenLayout::padded(1, 1, 8)?;
/// let order = BitOrder::LittleEndian;
/// let tokens = ResidualTokens::new(codec, vec![0i32], vec![0x1B, 0xE4], order, layout)?;
/// let arranged: ArrangedTokens = tokens.arranged()?;
/// # Ok::<(), maxsim::Error>(())
/// ```
#[must_use]
pub struct ArrangedTokens<'a> {
    tokens: &'a ResidualTokens<'a>,
    row_bytes: usize,
    /// Buckets, and behind them codes, where these are not those of `tokens`.
    memory: Box<dyn Deref<Target = [u8]> + Send + Sync>,
    /// Where codes begin.
    codes_at: Option<usize>,
}

/// Prints everything but codes and buckets.
impl fmt::Debug for ArrangedTokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrangedTokens").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

impl<'a> ResidualTokens<'a> {
    /// Arranges the buckets for GPUs, in memory of their own: what an upload does.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn arranged(&self) -> Result<ArrangedTokens<'_>> {
        let arrangement = self.arrangement()?;
        let len_bytes = self.codes().len() * arrangement.row_bytes;
        let mut memory: Vec<u8> = filled(len_bytes as u64, 0)?;
        self.arrange(&arrangement, &mut memory);
        let (row_bytes, memory) = (arrangement.row_bytes, Box::new(memory));
        Ok(ArrangedTokens { tokens: self, row_bytes, memory, codes_at: None })
    }

    /// As [`ResidualTokens::arranged`], in memory that `new` makes of so many bytes, on boundaries
    /// of codes, with the codes beside the buckets.
    pub(crate) fn arranged_in<M>(
        &self,
        new: impl FnOnce(usize) -> Result<M>,
    ) -> Result<ArrangedTokens<'_>>
    where
        M: DerefMut<Target = [u8]> + Send + Sync + 'static,
    {
        let arrangement = self.arrangement()?;
        let (n_rows, row_bytes) = (self.codes().len(), arrangement.row_bytes);
        let codes_at = (n_rows * row_bytes).next_multiple_of(size_of::<i32>());
        let mut memory = new(codes_at + n_rows * size_of::<i32>())?;
        let (residuals, codes) = memory.split_at_mut(codes_at);
        self.arrange(&arrangement, &mut residuals[..n_rows * row_bytes]);
        codes.copy_from_slice(bytemuck::cast_slice(self.codes()));
        let (memory, codes_at) = (Box::new(memory), Some(codes_at));
        Ok(ArrangedTokens { tokens: self, row_bytes, memory, codes_at })
    }

    fn arrangement(&self) -> Result<Arrangement> {
        Arrangement::new(self.codec().dim(), self.codec().nbits(), self.order())
    }

    /// Writes arranged buckets to room for them.
    fn arrange(&self, arrangement: &Arrangement, to: &mut [u8]) {
        let (stored, row_bytes) = (self.codec().row_bytes(), arrangement.row_bytes);
        let rows = to.par_chunks_exact_mut(row_bytes).enumerate();
        let arrange = |(row, to): (usize, &mut [u8])| {
            arrangement.arrange(&self.residuals()[row * stored..(row + 1) * stored], to);
        };
        Parallel::new()
            .share(|min_len| rows.with_min_len(ROWS_AT_ONCE.max(min_len)).for_each(arrange));
    }
}

impl ArrangedTokens<'_> {
    /// A centroid's id per row. They are those of [`ResidualTokens`], which were checked.
    fn codes(&self) -> &[i32] {
        let len_bytes = size_of_val(self.tokens.codes());
        let own = |at: usize| bytemuck::cast_slice(&self.memory[at..at + len_bytes]);
        self.codes_at.map_or(self.tokens.codes(), own)
    }

    /// The buckets of all rows.
    fn residuals(&self) -> &[u8] {
        &self.memory[..self.tokens.codes().len() * self.row_bytes]
    }
}

impl ResidualSource for ArrangedTokens<'_> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        self.tokens.codec()
    }

    fn order(&self) -> BitOrder {
        self.tokens.order()
    }

    fn layout(&self) -> &TokenLayout {
        self.tokens.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.tokens.mask()
    }

    fn is_arranged(&self) -> bool {
        true
    }

    fn as_arranged(&self) -> Option<&ArrangedTokens<'_>> {
        Some(self)
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        codes.copy_from_slice(&self.codes()[rows.clone()]);
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        residuals.copy_from_slice(&self.residuals()[bytes]);
        Ok(())
    }
}

/// What a source has beside its rows, checked.
pub(crate) struct StreamedResiduals<'a> {
    source: &'a dyn ResidualSource,
    codec: &'a Arc<ResidualCodec<'a>>,
    layout: &'a TokenLayout,
    arrangement: Arrangement,
    mask: Option<&'a [u8]>,
    arranged: Option<&'a ArrangedTokens<'a>>,
}

impl<'a> StreamedResiduals<'a> {
    /// Checks what can be checked before rows are read.
    pub(crate) fn new(source: &'a dyn ResidualSource) -> Result<StreamedResiduals<'a>> {
        let (codec, layout, mask) = (source.codec(), source.layout(), source.mask());
        layout.check_read("documents")?;
        if layout.dim() != codec.dim() {
            return Err(Error::Shape {
                argument: "documents",
                expected: format!("tokens of {} elements, as the codec's", codec.dim()),
                found: format!("tokens of {}", layout.dim()),
            });
        }
        check_beside(layout, mask)?;
        let arrangement = Arrangement::new(codec.dim(), codec.nbits(), source.order())?;
        let arranged = source.as_arranged();
        if let Some(arranged) = arranged {
            check_arranged(arranged, codec, layout.rows(), &arrangement)?;
        }
        Ok(StreamedResiduals { source, codec, layout, arrangement, mask, arranged })
    }

    pub(crate) fn codec(&self) -> &'a ResidualCodec<'a> {
        self.codec
    }

    /// All buckets and all codes as a device has them, where they are in memory. Every code is that
    /// of a centroid.
    pub(crate) fn in_memory(&self) -> Option<[&'a [u8]; 2]> {
        let of = |all: &'a ArrangedTokens<'a>| [all.residuals(), bytemuck::cast_slice(all.codes())];
        self.arranged.map(of)
    }

    /// Bytes of a row's buckets as the source has them.
    pub(crate) fn stored_bytes(&self) -> usize {
        match self.source.is_arranged() {
            true => self.arrangement.row_bytes,
            false => self.codec().row_bytes(),
        }
    }

    /// Some consecutive items, which are read.
    pub(crate) fn part(&self, items: Range<usize>) -> Result<ResidualTokens<'_>> {
        if self.source.is_arranged() {
            return Err(Error::Unsupported {
                what: "arranged residual documents, but in a search on a GPU".into(),
                why: "they are for its kernels alone; give the tokens that they were made of"
                    .into(),
            });
        }
        let (rows, layout) = self.layout.items(items)?;
        let row_bytes = self.codec().row_bytes();
        let mut codes = filled(rows.len() as u64, 0)?;
        let mut residuals = filled((rows.len() * row_bytes) as u64, 0)?;
        self.read(rows.clone(), &mut codes, &mut residuals)?;
        let (codec, order) = (self.codec.clone(), self.source.order());
        let part = ResidualTokens::new(codec, codes, residuals, order, layout)?;
        match self.mask {
            Some(mask) => part.with_mask(&mask[rows]),
            None => Ok(part),
        }
    }

    /// Reads rows, and refuses codes of no centroid.
    fn read(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> Result<()> {
        let (first_row, n_rows) = (rows.start as u64, rows.len() as u64);
        let filled = self.source.fill(rows.clone(), codes, residuals);
        filled.map_err(|source| Error::Source { first_row, n_rows, source })?;
        let n_items = self.codec().n_centroids();
        // Negative codes are large without their sign.
        let largest = codes.iter().fold(0, |largest, &code| largest.max(code as u32));
        if (largest as usize) < n_items {
            return Ok(());
        }
        match codes.iter().position(|&code| code as u32 as usize >= n_items) {
            None => Ok(()),
            Some(i) => {
                let (index, found) = (rows.start + i, codes[i].into());
                Err(Error::Id { argument: "codes", index, found, n_items })
            }
        }
    }
}

/// Refuses arranged tokens that are not all rows of a source, or of other centroids.
fn check_arranged(
    arranged: &ArrangedTokens<'_>,
    codec: &ResidualCodec<'_>,
    rows: usize,
    arrangement: &Arrangement,
) -> Result<()> {
    check_len("codes", rows, "one per row", arranged.codes().len())?;
    let of = arranged.tokens.codec();
    if of.n_centroids() > codec.n_centroids() || arranged.row_bytes != arrangement.row_bytes {
        let say = |n_centroids: usize, row_bytes: usize| {
            format!("codes of {n_centroids} centroids and {row_bytes} bytes of buckets a row")
        };
        return Err(Error::Shape {
            argument: "documents",
            expected: say(codec.n_centroids(), arrangement.row_bytes),
            found: format!("arranged {}", say(of.n_centroids(), arranged.row_bytes)),
        });
    }
    Ok(())
}

impl Staged for StreamedResiduals<'_> {
    fn layout(&self) -> &TokenLayout {
        self.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask
    }

    fn pitch_bytes(&self) -> usize {
        self.arrangement.row_bytes
    }

    fn has_words(&self) -> bool {
        true
    }

    fn write(
        &self,
        rows: Range<usize>,
        to: &mut [u8],
        words: &mut [u32],
        scratch: &mut Vec<u64>,
    ) -> Result<()> {
        let codes: &mut [i32] = bytemuck::cast_slice_mut(&mut words[..rows.len()]);
        let to = &mut to[..rows.len() * self.arrangement.row_bytes];
        if self.source.is_arranged() {
            return self.read(rows, codes, to);
        }
        let stored = self.codec().row_bytes();
        let len_bytes = rows.len() * stored;
        fill(scratch, len_bytes.div_ceil(size_of::<u64>()), 0)?;
        let residuals = &mut bytemuck::cast_slice_mut(scratch)[..len_bytes];
        self.read(rows, codes, residuals)?;
        let places = to.chunks_exact_mut(self.arrangement.row_bytes);
        for (to, from) in places.zip(residuals.chunks_exact(stored)) {
            self.arrangement.arrange(from, to);
        }
        Ok(())
    }
}
