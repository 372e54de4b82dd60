//! Operations that differ between element types: a chunk's loads, and the product of a slab.

use crate::abi::layout::{SLAB_BYTES, chunk_offset};
use crate::abi::params::Group;
use crate::primitives::unroll::unroll;
pub use crate::ptx::element::{Bf16, Element, F16, F32};
use crate::ptx::global::{load_u8, load_u16, load_u32};
use crate::ptx::math::fma;
use crate::ptx::mma::{load_matrix_x4, mma_bf16, mma_f16};
use crate::ptx::shared::load_shared_f32x4;

/// A slab of query rows and one of document tokens, 128 bytes each, as a lane multiplies them.
#[derive(Clone, Copy)]
pub struct Slabs {
    pub queries: u32,
    pub documents: u32,
    /// Products with tokens from here on may be left out.
    pub n_columns: u32,
    pub lane: u32,
}

/// An element type of the sm_80 kernels. Accumulators lie as [`crate::primitives::accumulator`]
/// says.
pub trait SlabElement: Element {
    /// Whether documents are stored as codes of one byte, which are widened between memory and
    /// shared memory.
    const WIDENS: bool = false;

    /// Adds the products of a slab: of `fragments` (a constant to the caller) groups of query rows
    /// with `2 * N` document tokens.
    ///
    /// # Safety
    /// All 32 lanes together; both slabs must be complete.
    unsafe fn multiply_slab<const N: usize>(c: &mut [[f32; N]; 4], fragments: usize, slabs: Slabs);

    /// The number that an accumulator holds once all slabs have been multiplied. Mostly that is
    /// itself.
    #[inline(always)]
    fn number(sum: f32) -> f32 {
        sum
    }

    /// Makes numbers of what the accumulators of so many groups of query rows (a constant to the
    /// caller) hold.
    #[inline(always)]
    fn numbers<const N: usize>(c: &mut [[f32; N]; 4], fragments: usize) {
        unroll!(I in 0..16 => {
            unroll!(F in 0..4 => {
                if 4 * I < N && F < fragments {
                    unroll!(J in 0..4 => {
                        let at = (4 * I + J) % N;
                        c[F][at] = Self::number(c[F][at]);
                    });
                }
            });
        });
    }

    /// Reads the first `n_bytes` of a chunk whose address need not be aligned to 16; the
    /// rest are zeros.
    ///
    /// # Safety
    /// `address` must be aligned to the element and readable for `n_bytes`.
    #[inline(always)]
    unsafe fn load_chunk(address: u64, n_bytes: u32) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            match Self::BYTES {
                1 => load_bytes(address, n_bytes),
                2 => load_halves(address, n_bytes),
                _ => load_words(address, n_bytes),
            }
        }
    }

    /// Reads a chunk that begins `offset` bytes of elements behind its row's start, as the row is
    /// stored: otherwise as [`SlabElement::load_chunk`].
    ///
    /// # Safety
    /// As there, of what the row holds.
    #[inline(always)]
    unsafe fn load_stored(
        address: u64,
        _offset: u32,
        n_bytes: u32,
        _is_document: bool,
    ) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { Self::load_chunk(address, n_bytes) }
    }

    /// The elements of a chunk whose codes these are, one byte each, where documents are widened.
    #[inline(always)]
    fn widen([low, high]: [u32; 2]) -> [u32; 4] {
        [low, high, 0, 0]
    }
}

/// [`SlabElement::load_chunk`] of elements of one byte.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn load_bytes(address: u64, n_bytes: u32) -> [u32; 4] {
    let byte = |i: u32| match i < n_bytes {
        // SAFETY: the caller's promise.
        true => unsafe { load_u8(address + u64::from(i)) },
        false => 0,
    };
    let pair = |i: u32| byte(i) | byte(i + 1) << 8;
    [0, 4, 8, 12].map(|i| pair(i) | pair(i + 2) << 16)
}

/// [`SlabElement::load_chunk`] of elements of two bytes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn load_halves(address: u64, n_bytes: u32) -> [u32; 4] {
    let half = |i: u32| match 2 * i < n_bytes {
        // SAFETY: the caller's promise.
        true => unsafe { load_u16(address + 2 * u64::from(i)) },
        false => 0,
    };
    let word = |i: u32| half(2 * i) | half(2 * i + 1) << 16;
    [word(0), word(1), word(2), word(3)]
}

/// [`SlabElement::load_chunk`] of elements of four bytes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn load_words(address: u64, n_bytes: u32) -> [u32; 4] {
    let word = |i: u32| match 4 * i < n_bytes {
        // SAFETY: the caller's promise.
        true => unsafe { load_u32(address + 4 * u64::from(i)) },
        false => 0,
    };
    [word(0), word(1), word(2), word(3)]
}

/// An element type that the tensor cores multiply in steps of 32 bytes of a row, which `ldmatrix`
/// brings to where they read them.
pub trait Stepped: SlabElement {
    /// `c + a · b` of 16 query rows and 16 document tokens.
    ///
    /// # Safety
    /// All 32 lanes together.
    unsafe fn multiply_add_step(c: [f32; 8], a: [u32; 4], b: [u32; 4]) -> [f32; 8];
}

/// A lane's addresses, for `ldmatrix`, of the first step of a slab of queries and of one of
/// documents. Those of step `k` differ by an exclusive or with `32 * k`.
#[inline(always)]
pub(super) fn first_step(&Slabs { queries, documents, lane, .. }: &Slabs) -> (u32, u32) {
    // A as (rows 0-7, 8-15) × (k 0-7, 8-15), B as two groups of 8 tokens × (k 0-7, 8-15), where k
    // counts pairs of bytes.
    let queries = queries + chunk_offset(lane % 16, lane / 16);
    (queries, documents + chunk_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2))
}

/// Adds the products of one step with the first `2 * n` tokens. The step's addresses are those of
/// queries and documents.
///
/// # Safety
/// As [`SlabElement::multiply_slab`].
#[inline(always)]
pub(super) unsafe fn multiply_step<E: Stepped, const N: usize>(
    c: &mut [[f32; N]; 4],
    n: usize,
    fragments: usize,
    (queries, documents): (u32, u32),
) {
    // SAFETY: the caller's promise; addresses stay within the slabs.
    unsafe {
        let mut a = [[0; 4]; 4];
        unroll!(F in 0..4 => {
            if F < fragments {
                a[F] = load_matrix_x4(queries + (F * Group::ROWS * SLAB_BYTES) as u32);
            }
        });
        unroll!(I in 0..8 => {
            if 8 * I < n {
                let b = load_matrix_x4(documents + (16 * I * SLAB_BYTES) as u32);
                unroll!(F in 0..4 => {
                    if F < fragments {
                        let mut part = [0.0; 8];
                        unroll!(J in 0..8 => { part[J] = c[F][(8 * I + J) % N]; });
                        let part = E::multiply_add_step(part, a[F], b);
                        unroll!(J in 0..8 => { c[F][(8 * I + J) % N] = part[J]; });
                    }
                });
            }
        });
    }
}

/// Elements or codes that `$mma` multiplies as they lie in registers.
macro_rules! stepped {
    ($name:ident, $mma:ident) => {
        impl Stepped for $name {
            #[inline(always)]
            unsafe fn multiply_add_step(c: [f32; 8], a: [u32; 4], b: [u32; 4]) -> [f32; 8] {
                let [l0, l1, l2, l3, r0, r1, r2, r3] = c;
                // SAFETY: the caller's promise.
                let ([l0, l1, l2, l3], [r0, r1, r2, r3]) = unsafe {
                    (
                        $mma([l0, l1, l2, l3], a, [b[0], b[1]]),
                        $mma([r0, r1, r2, r3], a, [b[2], b[3]]),
                    )
                };
                [l0, l1, l2, l3, r0, r1, r2, r3]
            }
        }
    };
}
pub(super) use stepped;

/// Adds the products of a slab by straight-line code for either half of the tokens: loads overlap
/// the products before them.
///
/// # Safety
/// As [`SlabElement::multiply_slab`].
#[inline(always)]
pub(super) unsafe fn multiply_unrolled<E: Stepped, const N: usize>(
    c: &mut [[f32; N]; 4],
    fragments: usize,
    slabs: Slabs,
) {
    let (queries, documents) = first_step(&slabs);
    let step = |k: u32| (queries ^ (32 * k), documents ^ (32 * k));
    // SAFETY: the caller's promise; addresses stay within the slabs.
    unsafe {
        if slabs.n_columns > N as u32 {
            unroll!(K in 0..4 => { multiply_step::<E, N>(c, N, fragments, step(K as u32)); });
        } else {
            unroll!(K in 0..4 => { multiply_step::<E, N>(c, N / 2, fragments, step(K as u32)); });
        }
    }
}

macro_rules! half {
    ($name:ident, $mma:ident) => {
        stepped!($name, $mma);

        impl SlabElement for $name {
            #[inline(always)]
            unsafe fn multiply_slab<const N: usize>(
                c: &mut [[f32; N]; 4],
                fragments: usize,
                slabs: Slabs,
            ) {
                // SAFETY: the caller's promise.
                unsafe { multiply_unrolled::<Self, N>(c, fragments, slabs) }
            }
        }
    };
}

half!(F16, mma_f16);
half!(Bf16, mma_bf16);

/// Products and sums are f32, without tensor cores.
impl SlabElement for F32 {
    #[inline(always)]
    unsafe fn multiply_slab<const N: usize>(c: &mut [[f32; N]; 4], fragments: usize, slabs: Slabs) {
        let Slabs { queries, documents, n_columns, lane } = slabs;
        let (row, token) = (lane / 4, 2 * (lane % 4));
        let more = n_columns > N as u32;
        let mut chunk = 0;
        while chunk < 8 {
            // Rows that differ by a multiple of eight are swizzled alike.
            let queries = queries + chunk_offset(row, chunk);
            let lefts = documents + chunk_offset(token, chunk);
            let rights = documents + chunk_offset(token + 1, chunk);
            // SAFETY: the caller's promise; addresses stay within the slabs.
            unsafe {
                let mut a = [[0.0; 4]; 8];
                unroll!(R in 0..8 => {
                    if R < 2 * fragments {
                        a[R] = load_shared_f32x4(queries + (8 * R * SLAB_BYTES) as u32);
                    }
                });
                unroll!(I in 0..16 => {
                    // Two halves: finer steps would keep loads from overlapping products.
                    if 4 * I < N && (4 * I < N / 2 || more) {
                        let offset = (8 * I * SLAB_BYTES) as u32;
                        let left = load_shared_f32x4(lefts + offset);
                        let right = load_shared_f32x4(rights + offset);
                        unroll!(R in 0..8 => {
                            if R < 2 * fragments {
                                let at = 4 * I + 2 * (R % 2);
                                let sums = &mut c[R / 2];
                                sums[at % N] = dot(a[R], left, sums[at % N]);
                                sums[(at + 1) % N] = dot(a[R], right, sums[(at + 1) % N]);
                            }
                        });
                    }
                });
            }
            chunk += 1;
        }
    }
}

/// `c + ⟨a, b⟩`, in the order of the elements.
#[inline(always)]
fn dot(a: [f32; 4], b: [f32; 4], c: f32) -> f32 {
    let c = fma(a[0], b[0], c);
    let c = fma(a[1], b[1], c);
    let c = fma(a[2], b[2], c);
    fma(a[3], b[3], c)
}
