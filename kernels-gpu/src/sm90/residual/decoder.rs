//! Decoders: tokens out of centroids and buckets, into the ring.
//!
//! Eight lanes have a token, each one chunk of every slab; a warp has four tokens at once, and of
//! a tile's 32 fours every eighth: a short document occupies all warps.

use crate::abi::layout::sm90::DOCUMENT_TILE;
use crate::abi::layout::{SLAB_BYTES, chunk_offset};
use crate::abi::params::{ForwardParams, Residuals, Segment};
use crate::abi::residual_chunk::slot;
use crate::primitives::documents::Documents;
use crate::primitives::residual_chunk::{Decoded, Weights, load_buckets};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::Work;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::copy::fence_async;
use crate::ptx::global::{load_u32, load_u32x4};
use crate::ptx::shared::store_shared_u32x4;
use crate::ptx::warp::{shuffle, sync_warp};
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{Kernel, n_slabs};
use crate::sm90::residual::kernel::DECODER_WARPS;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Elements that tokens are decoded to.
pub trait Residual: WgmmaElement + Decoded {}

impl<E: WgmmaElement + Decoded> Residual for E {}

/// Tokens that a warp decodes at once.
const TOKENS: u32 = 4;

/// Times that a warp does so for a whole tile.
const PASSES: u32 = DOCUMENT_TILE as u32 / (DECODER_WARPS * TOKENS);

/// Distance between the tokens of two passes.
const PASS_ROWS: u32 = DECODER_WARPS * TOKENS;

/// Bytes of a chunk of centroids.
const CHUNK_BYTES: u64 = 16;

/// The block's document tiles, one after the other.
struct Tiles<'a> {
    params: &'a ForwardParams,
    units: ReceivedUnits,
    documents: Documents<'a>,
    document: Segment,
    row: u32,
}

impl<'a> Tiles<'a> {
    #[inline(always)]
    unsafe fn new(params: &'a ForwardParams) -> Self {
        let document = Segment { start: 0, len: 0 };
        let none = Work { unit: 0, tile: 0, entry: 0, entry_end: 0, first: Some(document) };
        // SAFETY: no entry is looked at.
        let documents = unsafe { Documents::new(params, &none) };
        Tiles { params, units: ReceivedUnits::START, documents, document, row: 0 }
    }

    /// The rows of the next tile.
    ///
    /// # Safety
    /// One whole warp of those that receive units.
    #[inline(always)]
    unsafe fn next(&mut self, shared: &Shared, lane: u32) -> Option<Segment> {
        while self.row >= self.document.len {
            // SAFETY: the caller's promise.
            unsafe {
                match self.documents.next() {
                    Some((_, document)) => {
                        self.document = document;
                        self.row = 0;
                    }
                    None => {
                        let work = self.units.next(shared, lane)?;
                        self.documents = Documents::new(self.params, &work);
                    }
                }
            }
        }
        let (start, left) = (self.document.start + self.row, self.document.len - self.row);
        self.row += DOCUMENT_TILE as u32;
        Some(Segment { start, len: left })
    }
}

/// Addresses that a lane reads and writes.
struct Lane<'a> {
    tokens: &'a Residuals,
    weights: Weights,
    /// First of the warp's tokens of a tile.
    first: u32,
    /// Index of the lane's token among four.
    token: u32,
    /// Address of the lane's chunk of centroid 0.
    centroids: u64,
    /// Address of the buckets of the lane's chunk of row 0.
    residuals: u64,
    /// Offset of the lane's chunk of its token of the first pass in a slab.
    place: u32,
    lane: u32,
}

/// Prefetched data of a tile: for pass `lane % 4`, the code; buckets of up to 4 bits of each pass
/// and of both resident slabs.
#[derive(Clone, Copy)]
struct Ahead {
    code: u32,
    buckets: [[u32; 2]; PASSES as usize],
}

impl<'a> Lane<'a> {
    #[inline(always)]
    unsafe fn new<const NBITS: u32>(tokens: &'a Residuals, warp: u32, lane: u32) -> Self {
        let (token, chunk) = (lane / 8, lane % 8);
        let first = TOKENS * warp;
        // SAFETY: the caller's promise.
        let weights = unsafe { Weights::new::<NBITS>(tokens) };
        // Lanes have every fourth chunk of a block: the upper four follow in their places.
        let slot = slot(chunk as usize) as u32;
        Lane {
            tokens,
            weights,
            first,
            token,
            centroids: tokens.centroids + u64::from(chunk) * CHUNK_BYTES,
            residuals: tokens.residuals + u64::from(slot * NBITS),
            place: chunk_offset(first + token, chunk),
            lane,
        }
    }

    /// Starts to read what a tile that starts at row `start` needs.
    ///
    /// # Safety
    /// The rows of a whole tile must be there, or padding.
    #[inline(always)]
    unsafe fn read_ahead<K: Kernel, const NBITS: u32>(&self, start: u32) -> Ahead {
        let first = start + self.first + self.token;
        let row = first + PASS_ROWS * (self.lane % PASSES);
        let mut ahead = Ahead { code: 0, buckets: [[0; 2]; PASSES as usize] };
        // SAFETY: the caller's promise.
        unsafe {
            ahead.code = load_u32(self.tokens.codes + u64::from(row) * 4);
            if K::SLABS > 0 && NBITS <= 4 {
                unroll!(I in 0..4 => {
                    unroll!(SLAB in 0..2 => {
                        if SLAB < K::SLABS {
                            let row = first + PASS_ROWS * I as u32;
                            let [low, _] = self.buckets::<NBITS>(row, SLAB as u32);
                            ahead.buckets[I][SLAB] = low;
                        }
                    });
                });
            }
        }
        ahead
    }

    /// The buckets of the lane's chunk of a row's slab.
    ///
    /// # Safety
    /// The row must be there, or padding.
    #[inline(always)]
    unsafe fn buckets<const NBITS: u32>(&self, row: u32, slab: u32) -> [u32; 2] {
        let row = u64::from(row) * u64::from(self.tokens.row_bytes);
        // A block has two slabs.
        let slot = slab / 2 * 16 + slab % 2 * 2;
        let address = self.residuals + row + u64::from(slot * NBITS);
        // SAFETY: the caller's promise.
        unsafe { load_buckets::<NBITS>(address) }
    }

    /// The address of the lane's chunk of the centroid of pass `PASS`.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    unsafe fn centroid<const PASS: u32>(&self, code: u32) -> u64 {
        // SAFETY: the caller's promise.
        let code = unsafe { shuffle(code, self.lane / 8 * 8 + PASS) };
        self.centroids + u64::from(code) * u64::from(self.tokens.pitch_bytes)
    }

    /// Decodes a chunk into a slab.
    ///
    /// # Safety
    /// The slab must be free to be written.
    #[inline(always)]
    unsafe fn store<T: Decoded, const NBITS: u32, const PASS: u32>(
        &self,
        slab: u32,
        centroid: [u32; 4],
        buckets: [u32; 2],
    ) {
        // Eight rows on, chunks lie in the same order.
        let place = slab + self.place + PASS * PASS_ROWS * SLAB_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe { store_shared_u32x4(place, self.weights.add::<T, NBITS>(centroid, buckets)) }
    }
}

/// Decodes the block's tiles.
///
/// # Safety
/// [`DECODER_WARPS`] whole warps per block, numbered from 0; shared memory and barriers as
/// [`crate::sm90::residual::kernel::forward`] sets them up; `tokens` as [`Residuals`] says.
#[inline(always)]
pub(super) unsafe fn decode<K: Kernel, const NBITS: u32>(
    params: &ForwardParams,
    shared: &Shared,
    tokens: &Residuals,
    warp: u32,
    lane: u32,
) where
    K::Element: Residual,
{
    const { assert!(PASSES == 4 && K::SLABS <= 2) };
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    // SAFETY: consumers read the stages in this order, once all decoders have arrived; the whole
    // warp is here.
    unsafe {
        let own = Lane::new::<NBITS>(tokens, warp, lane);
        let mut tiles = Tiles::new(params);
        let mut tile = None;
        let mut ahead = Ahead { code: 0, buckets: [[0; 2]; PASSES as usize] };
        loop {
            let next = tiles.next(shared, lane);
            if K::SLABS == 0 {
                // Not ahead: the next unit is published when the query slabs of this one are under
                // way, and those wait for tiles that are decoded.
                let Some(Segment { start, len }) = next else { return };
                let ahead = own.read_ahead::<K, NBITS>(start);
                streamed::<K, NBITS>(shared, &mut ring, &own, start, len, &ahead, n_slabs);
                continue;
            }
            let start = match next {
                Some(next) => next.start,
                None => 0,
            };
            let next_ahead = own.read_ahead::<K, NBITS>(start);
            if let Some(Segment { start, len }) = tile {
                resident::<K, NBITS>(shared, &mut ring, &own, start, len, &ahead);
            }
            if next.is_none() {
                return;
            }
            (tile, ahead) = (next, next_ahead);
        }
    }
}

/// Decodes a tile of which all slabs fit the ring. Passes overlap: while one is decoded, the
/// centroids of the next ones are in flight.
///
/// # Safety
/// As [`decode`]; `ahead` must be of the tile, which has `len` rows or is whole.
#[inline(always)]
unsafe fn resident<K: Kernel, const NBITS: u32>(
    shared: &Shared,
    ring: &mut Ring,
    own: &Lane<'_>,
    start: u32,
    len: u32,
    ahead: &Ahead,
) where
    K::Element: Residual,
{
    let mut centroids = [[[0; 4]; 2]; PASSES as usize];
    let second = ring.next(shared.stages);
    let slabs = [shared.stage(ring.slot), shared.stage(second.slot)];
    macro_rules! gather {
        ($pass:literal) => {
            if own.first + PASS_ROWS * $pass < len {
                let centroid = own.centroid::<$pass>(ahead.code);
                unroll!(SLAB in 0..2 => {
                    if SLAB < K::SLABS {
                        let address = centroid + SLAB as u64 * SLAB_BYTES as u64;
                        centroids[$pass][SLAB] = load_u32x4(address);
                    }
                });
            }
        };
    }
    macro_rules! store {
        ($pass:literal) => {
            if own.first + PASS_ROWS * $pass < len {
                unroll!(SLAB in 0..2 => {
                    if SLAB < K::SLABS {
                        let mut buckets = [ahead.buckets[$pass][SLAB], 0];
                        if NBITS == 8 {
                            let row = start + own.first + own.token + PASS_ROWS * $pass;
                            buckets = own.buckets::<NBITS>(row, SLAB as u32);
                        }
                        let centroid = centroids[$pass][SLAB];
                        let slab = slabs[SLAB];
                        own.store::<K::Element, NBITS, $pass>(slab, centroid, buckets);
                    }
                });
            }
        };
    }
    // SAFETY: the caller's promise; codes are those of centroids. Rows behind the tile's last one
    // are others', or padding.
    unsafe {
        gather!(0);
        gather!(1);
        barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
        if K::SLABS == 2 {
            barrier_wait(shared.empty(second.slot), second.parity ^ 1);
        }
        store!(0);
        gather!(2);
        store!(1);
        gather!(3);
        store!(2);
        store!(3);
        // Every lane for its own words, before one of them arrives for all.
        fence_async();
        sync_warp();
        unroll!(SLAB in 0..2 => {
            if SLAB < K::SLABS {
                barrier_arrive_if(shared.full(ring.slot), (own.lane == 0) as u32);
                *ring = ring.next(shared.stages);
            }
        });
    }
}

/// Decodes a tile slab by slab.
///
/// # Safety
/// As [`resident`].
#[inline(always)]
unsafe fn streamed<K: Kernel, const NBITS: u32>(
    shared: &Shared,
    ring: &mut Ring,
    own: &Lane<'_>,
    start: u32,
    len: u32,
    ahead: &Ahead,
    n_slabs: u32,
) where
    K::Element: Residual,
{
    let mut slab = 0;
    // SAFETY: as there.
    unsafe {
        while slab < n_slabs {
            let place = shared.stage(ring.slot);
            let offset = u64::from(slab) * SLAB_BYTES as u64;
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            macro_rules! pass {
                ($pass:literal) => {
                    if own.first + PASS_ROWS * $pass < len {
                        let row = start + own.first + own.token + PASS_ROWS * $pass;
                        let centroid = load_u32x4(own.centroid::<$pass>(ahead.code) + offset);
                        let buckets = own.buckets::<NBITS>(row, slab);
                        own.store::<K::Element, NBITS, $pass>(place, centroid, buckets);
                    }
                };
            }
            pass!(0);
            pass!(1);
            pass!(2);
            pass!(3);
            fence_async();
            sync_warp();
            barrier_arrive_if(shared.full(ring.slot), (own.lane == 0) as u32);
            *ring = ring.next(shared.stages);
            slab += 1;
        }
    }
}
