//! The copy pipeline: query tiles and document tiles pass through a ring, stage by stage.

use crate::abi::layout::{CHUNK_BYTES, SLAB_BYTES, chunk_offset};
use crate::abi::params::{ForwardParams, Group, Segment};
use crate::primitives::documents::Documents;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::Units;
use crate::ptx::copy::{copy_async_16, copy_async_16_if, copy_commit};
use crate::ptx::global::{load_u8_if, load_u32x2_if, opaque};
use crate::ptx::shared::{load_shared_u32x4, store_shared_u32x4};
use crate::sm80::kernel::{Element, Kernel, SlabElement};
use core::marker::PhantomData;

/// Chunks of a slab row: so many neighbouring threads copy neighbouring chunks.
const CHUNKS: u32 = (SLAB_BYTES / CHUNK_BYTES) as u32;

/// Contents of a stage: four words that its loader writes beside it for the warps that use it, so
/// that they need not walk units and documents again.
#[derive(Clone, Copy)]
pub struct Stage([u32; 4]);

/// A stage, read.
pub enum Kind {
    /// There are no more stages.
    End,
    /// A part of a query tile.
    Queries { tile: u32, part: u32 },
    /// A document tile, or one slab of both sides' tiles.
    Documents(Tile),
}

/// A document tile.
#[derive(Clone, Copy)]
pub struct Tile {
    pub entry: u32,
    /// Document token of column 0.
    pub row: u32,
    /// The first row of the tile as a row of the matrix.
    pub matrix_row: u32,
    /// Document tokens of the tile.
    pub n_columns: u32,
    /// Whether this stage is the tile's last.
    pub ends_tile: bool,
    /// Whether this tile is the document's last.
    pub ends_document: bool,
}

impl Stage {
    const END: u32 = u32::MAX;
    /// Entries, tiles and rows are below this. Of rows it says that more follows: slabs of the
    /// tile, tiles of the document.
    const FLAG: u32 = 1 << 31;

    /// Reads the words at a window address.
    ///
    /// # Safety
    /// They must have been written, and synchronised with.
    #[inline(always)]
    pub(super) unsafe fn read(address: u32) -> Kind {
        // SAFETY: the caller's promise.
        let [first, second, third, n_columns] = unsafe { load_shared_u32x4(address) };
        if first < Self::FLAG {
            return Kind::Documents(Tile {
                entry: first,
                row: second & !Self::FLAG,
                matrix_row: third & !Self::FLAG,
                n_columns,
                ends_tile: second < Self::FLAG,
                ends_document: third < Self::FLAG,
            });
        }
        match first {
            Self::END => Kind::End,
            _ => Kind::Queries { tile: first & !Self::FLAG, part: second },
        }
    }
}

/// Goes through a block's units, documents and tiles, and copies them.
pub struct Loader<'a, K: Kernel> {
    params: &'a ForwardParams,
    n_slabs: u32,
    units: Units<'a>,
    documents: Documents<'a>,
    entry: u32,
    document: Segment,
    /// First row of the next document tile.
    row: u32,
    /// The tile's next slab, where slabs stream.
    slab: u32,
    tile: u32,
    /// Next part of the query tile.
    part: u32,
    kernel: PhantomData<K>,
}

impl<'a, K: Kernel> Loader<'a, K> {
    /// At the start of the block's work.
    #[inline(always)]
    pub(super) fn new(params: &'a ForwardParams, n_slabs: u32) -> Self {
        Loader {
            params,
            n_slabs,
            units: Units::new(params),
            documents: Documents::none(params),
            entry: 0,
            document: Segment { start: 0, len: 0 },
            row: 0,
            slab: 0,
            tile: u32::MAX,
            part: K::QUERY_STAGES,
            kernel: PhantomData,
        }
    }

    /// Starts the copy of the next stage to `shared`, if there is one more, and writes its contents
    /// to `words`. Closes a group in any case, so that groups count stages.
    ///
    /// # Safety
    /// Every thread of the block; the stage and its words must be free.
    #[inline(always)]
    pub(super) unsafe fn load(&mut self, shared: u32, words: u32, thread: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let stage = self.find();
            if thread == 0 {
                store_shared_u32x4(words, stage.0);
            }
            if stage.0[0] < Stage::FLAG {
                // A document without tokens has one stage, with nothing in it.
                if self.document.len > 0 {
                    self.copy(shared, thread, false);
                }
                if K::SLABS == 0 && stage.0[1] >= Stage::FLAG {
                    self.slab += 1;
                } else {
                    self.slab = 0;
                    self.row += K::TILE as u32;
                }
            } else if stage.0[0] != Stage::END {
                // Where slabs stream, the stage only announces the tile.
                if K::SLABS != 0 {
                    self.copy(shared, thread, true);
                }
                self.part += 1;
            }
        }
        copy_commit();
    }

    /// Advances to the next stage.
    #[inline(always)]
    unsafe fn find(&mut self) -> Stage {
        loop {
            if self.part < K::QUERY_STAGES {
                return Stage([self.tile | Stage::FLAG, self.part, 0, 0]);
            }
            // SAFETY: documents and units of this launch.
            unsafe {
                if self.row >= self.document.len {
                    let Some((entry, document)) = self.documents.next() else {
                        let Some(work) = self.units.next(K::GROUPS) else {
                            return Stage([Stage::END; 4]);
                        };
                        if work.entry < work.entry_end {
                            self.documents = Documents::new(self.params, &work);
                            if work.tile != self.tile {
                                self.tile = work.tile;
                                self.part = 0;
                            }
                        }
                        continue;
                    };
                    (self.entry, self.document, self.row) = (entry, document, 0);
                }
            }
            let left = self.document.len - self.row;
            let flag = |more: bool| if more { Stage::FLAG } else { 0 };
            let more_slabs = K::SLABS == 0 && self.slab + 1 < self.n_slabs && left > 0;
            let more_tiles = left > K::TILE as u32;
            return Stage([
                self.entry,
                self.row | flag(more_slabs),
                (self.document.start + self.row) | flag(more_tiles),
                left.min(K::TILE as u32),
            ]);
        }
    }

    /// Starts the copy of the stage's rows. Rows that are not there, and bytes past a row's end,
    /// become zeros.
    ///
    /// # Safety
    /// Every thread of the block; `shared` must be free.
    #[inline(always)]
    unsafe fn copy(&self, shared: u32, thread: u32, is_query: bool) {
        const { assert!(K::QUERY_TILE.is_multiple_of(K::TILE) || K::SLABS == 0) };
        // Whether row `row` of the stage is a query's.
        let is_query = |row: u32| match K::SLABS {
            0 => row >= K::TILE as u32,
            _ => is_query,
        };
        // Where slabs stream, the query tile's rows follow the document tile's.
        let (n_rows, n_slabs, slab) = match K::SLABS {
            0 => ((K::TILE + K::QUERY_TILE) as u32, 1, self.slab),
            n_slabs => (K::TILE as u32, n_slabs as u32, 0),
        };
        let slab_bytes = n_rows * SLAB_BYTES as u32;
        let first = slab * SLAB_BYTES as u32;
        if self.params.aligned == 0 {
            // SAFETY: the caller's promise.
            unsafe { self.copy_unaligned(shared, thread, [n_rows, n_slabs, first], is_query) };
            return;
        }
        let (chunk, mut row) = (thread % CHUNKS, thread / CHUNKS);
        let first = first + chunk * CHUNK_BYTES as u32;
        // Steps of a multiple of eight rows do not change the swizzle; the rows of a step are of
        // one side.
        let step = K::THREADS / CHUNKS;
        const { assert!((K::THREADS / CHUNKS).is_multiple_of(8)) };
        const { assert!((K::TILE as u32).is_multiple_of(K::THREADS / CHUNKS)) };
        let mut to = shared + chunk_offset(row, chunk);
        let copy_row = |row: u32, to: u32, is_query: bool| {
            // SAFETY: the bytes belong to the row.
            unsafe {
                let source = self.row(row, is_query);
                let mut slab = 0;
                while slab < n_slabs {
                    let offset = first + slab * SLAB_BYTES as u32;
                    let from = source.start + u64::from(offset);
                    copy_async_16(to + slab * slab_bytes, from, self.n_bytes(&source, offset));
                    slab += 1;
                }
            }
        };
        if K::Element::BYTES == 4 {
            // These products take long enough, and there are no registers for more than one row.
            while row < n_rows {
                copy_row(row, to, is_query(row));
                row += step;
                to += step * SLAB_BYTES as u32;
            }
            return;
        }
        let mut pass = 0;
        // Beside the search for winners and streamed slabs there are no registers for a second way.
        let may_be_whole = K::SLABS != 0 && !K::WINNERS && !is_query(0);
        let row_bytes = self.params.dim * K::Element::BYTES as u32;
        if K::Element::WIDENS && !is_query(0) {
            // SAFETY: the caller's promise.
            unsafe { self.widen(to, slab_bytes, row, first) };
            pass = K::TILE as u32 / step;
        } else if may_be_whole && row_bytes >= n_slabs * SLAB_BYTES as u32 {
            // SAFETY: the caller's promise.
            unsafe { self.copy_whole(to, slab_bytes, row, first, n_slabs) };
            pass = K::TILE as u32 / step;
        }
        while pass < n_rows / step {
            let to = to + pass * step * SLAB_BYTES as u32;
            copy_row(row + pass * step, to, is_query(pass * step));
            pass += 1;
        }
    }

    /// Copies this thread's chunks of the stage's `n_rows` rows of `n_slabs` slabs, of bytes from
    /// `first` on, where rows are not aligned to 16 bytes.
    ///
    /// # Safety
    /// As [`Loader::copy`]; `is_query` says which rows are a query's.
    #[inline(always)]
    unsafe fn copy_unaligned(
        &self,
        shared: u32,
        thread: u32,
        [n_rows, n_slabs, first]: [u32; 3],
        is_query: impl Fn(u32) -> bool,
    ) {
        let slab_bytes = n_rows * SLAB_BYTES as u32;
        let mut i = thread;
        while i < n_rows * CHUNKS * n_slabs {
            let (row, chunk) = (i / CHUNKS % n_rows, i % CHUNKS);
            let slab = i / CHUNKS / n_rows;
            let offset = first + slab * SLAB_BYTES as u32 + chunk * CHUNK_BYTES as u32;
            let to = shared + slab * slab_bytes + chunk_offset(row, chunk);
            // SAFETY: the bytes belong to the row.
            unsafe {
                let is_document = !is_query(row);
                let row = self.row(row, is_query(row));
                let from = row.start + u64::from(offset);
                let n_bytes = self.n_bytes(&row, offset);
                let chunk = K::Element::load_stored(from, offset, n_bytes, is_document);
                store_shared_u32x4(to, chunk);
            }
            i += K::THREADS;
        }
    }

    /// Bytes of a row's chunk `offset` bytes of elements behind its start.
    #[inline(always)]
    fn n_bytes(&self, row: &Row, offset: u32) -> u32 {
        let row_bytes = self.params.dim * K::Element::BYTES as u32;
        let row_bytes = if row.is_there { row_bytes } else { 0 };
        row_bytes.saturating_sub(offset).min(CHUNK_BYTES as u32)
    }

    /// Starts the copies of the stage's documents, of whose rows no slab ends early: this thread's
    /// chunks, of rows from `row` on and of bytes from `first` on, to `to`. Where there is no row
    /// the old bytes stay: its column is not counted.
    ///
    /// # Safety
    /// As [`Loader::copy`], where rows are aligned.
    #[inline(always)]
    unsafe fn copy_whole(&self, to: u32, slab_bytes: u32, row: u32, first: u32, n_slabs: u32) {
        let step = K::THREADS / CHUNKS;
        let documents = &self.params.documents;
        let left = self.document.len - self.row;
        let first_row = u64::from(self.document.start + self.row + row);
        let mut from = documents.base + first_row * documents.pitch_bytes + u64::from(first);
        let mut pass = 0;
        while pass < K::TILE as u32 / step {
            let is_there = u32::from(row + pass * step < left);
            let mut slab = 0;
            while slab < n_slabs {
                let place = to + pass * step * SLAB_BYTES as u32 + slab * slab_bytes;
                // SAFETY: the bytes belong to the row.
                unsafe {
                    copy_async_16_if(place, from + u64::from(slab * SLAB_BYTES as u32), is_there);
                }
                slab += 1;
            }
            from += u64::from(step) * documents.pitch_bytes;
            pass += 1;
        }
    }

    /// Copies the stage's documents from codes, where those are what their rows hold: this thread's
    /// chunks, of rows from `row` on and of bytes of elements from `first` on, to `to`.
    ///
    /// # Safety
    /// As [`Loader::copy`], where rows are aligned.
    #[inline(always)]
    unsafe fn widen(&self, to: u32, slab_bytes: u32, row: u32, first: u32) {
        let step = K::THREADS / CHUNKS;
        let n_passes = K::TILE as u32 / step;
        let n_chunks = n_passes * if K::SLABS == 0 { 1 } else { K::SLABS as u32 };
        let at = |i: u32| {
            // SAFETY: the document has the row, if it is there.
            let source = unsafe { self.row(row + i % n_passes * step, false) };
            let offset = first + i / n_passes * SLAB_BYTES as u32;
            codes_of::<K>(&source, offset, self.n_bytes(&source, offset))
        };
        // All of them are requested before the first one is waited for.
        let mut codes = [[0; 2]; 8];
        unroll!(I in 0..8 => {
            if (I as u32) < n_chunks {
                let (from, n_codes) = at(I as u32);
                // SAFETY: the codes belong to the row, which is aligned.
                codes[I] = unsafe { load_u32x2_if(from, u32::from(n_codes == CHUNK_CODES)) };
            }
        });
        if !self.params.dim.is_multiple_of(CHUNK_CODES) {
            unroll!(I in 0..8 => {
                let (from, n_codes) = at(I as u32);
                if (I as u32) < n_chunks && n_codes < CHUNK_CODES {
                    // SAFETY: as above.
                    codes[I] = unsafe { load_codes(from, n_codes) };
                }
            });
        }
        unroll!(I in 0..8 => {
            let i = I as u32;
            if i < n_chunks {
                let place = i % n_passes * step * SLAB_BYTES as u32 + i / n_passes * slab_bytes;
                // SAFETY: the caller's promise.
                unsafe { store_shared_u32x4(to + place, K::Element::widen(codes[I])) };
            }
        });
    }

    /// Row `row` of the stage, of queries or documents.
    #[inline(always)]
    unsafe fn row(&self, row: u32, is_query: bool) -> Row {
        let (base, pitch_bytes, row_in, start, len);
        if is_query {
            let row_of_tile = match K::SLABS {
                0 => row - K::TILE as u32,
                _ => row + self.part * K::TILE as u32,
            };
            let index = self.tile * K::GROUPS + row_of_tile / Group::ROWS as u32;
            // SAFETY: the tile has the group.
            let group = unsafe { work_tile::group(self.params, index) };
            row_in = row_of_tile % Group::ROWS as u32;
            (start, len) = (group.start, group.n_rows());
            let queries = &self.params.queries;
            (base, pitch_bytes) = (opaque(queries.base), opaque(queries.pitch_bytes));
        } else {
            row_in = row;
            (start, len) = (self.document.start + self.row, self.document.len - self.row);
            (base, pitch_bytes) = (self.params.documents.base, self.params.documents.pitch_bytes);
        }
        // Nothing is read of a row that is not there; the address has to be aligned.
        let is_there = row_in < len;
        let row = if is_there { start + row_in } else { 0 };
        Row { start: base + u64::from(row) * pitch_bytes, is_there }
    }
}

/// Codes of a chunk of elements of two bytes.
const CHUNK_CODES: u32 = CHUNK_BYTES as u32 / 2;

/// Address of the codes of a row's elements from byte `offset` on, and how many `n_bytes` of
/// elements have.
#[inline(always)]
fn codes_of<K: Kernel>(row: &Row, offset: u32, n_bytes: u32) -> (u64, u32) {
    let bytes = K::Element::BYTES as u32;
    (row.start + u64::from(offset / bytes), n_bytes / bytes)
}

/// The first codes of a chunk, one by one; the rest are zeros.
///
/// # Safety
/// There must be so many.
#[inline(always)]
pub(super) unsafe fn load_codes(address: u64, n_codes: u32) -> [u32; 2] {
    // SAFETY: the caller's promise.
    let code = |i: u32| unsafe { load_u8_if(address + u64::from(i), u32::from(i < n_codes)) };
    let word = |i: u32| code(i) | code(i + 1) << 8 | code(i + 2) << 16 | code(i + 3) << 24;
    [word(0), word(4)]
}

/// A row of a matrix.
struct Row {
    /// Address of its first byte.
    start: u64,
    is_there: bool,
}
