//! Residual-compressed tokens in device memory, as kernels decode them
//! ([`maxsim_kernels::abi::residual_chunk`]).

use std::sync::{Arc, Mutex};

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::backward::WARPS;
use maxsim_kernels::abi::params::backward::residual::UNIT_ROWS;
use maxsim_kernels::abi::params::{NORMS_PADDING, ResidualNormsParams, Residuals};
use maxsim_kernels::abi::residual_chunk::{
    BY_CENTROID_NBITS_MAX, CHUNK_LEN, NORMS_LANES, PLANES, arranged, centroid_bytes, n_slots,
    planes, row_bytes, slot,
};
use maxsim_kernels::table::auxiliary::DECODED_NORMS;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::tokens::CudaTokens;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download};
use crate::cuda::driver::transfer::{upload, upload_made};
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::residual::by_code::ByCode;
use crate::residual::{ResidualCodec, ResidualTokens};
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::runtime::swap::lock;
use crate::tokens::element::{Element, ElementType};

/// Rows behind the last one that kernels may read.
const PADDING: usize = NORMS_PADDING;

/// Weights of the table for buckets of 8 bits.
const N_WEIGHTS: usize = 256;

/// Fewest rows that a thread makes at once.
const CHUNK_ROWS: usize = 256;

/// The codes, residuals and tables that rows are decoded from.
#[derive(Debug)]
pub(in crate::cuda) struct CudaResiduals {
    codes: Buffer,
    residuals: Buffer,
    centroids: Buffer,
    weights: Buffer,
    /// r of every row, where tokens are normalised.
    norms: Option<Buffer>,
    row_bytes: u32,
    pitch_bytes: u32,
    nbits: u32,
    n_centroids: usize,
    /// Rows by code, from the first call on that computes the tables' gradients.
    by_code: Mutex<Option<Arc<CudaByCode>>>,
}

impl CudaResiduals {
    /// Number of centroids, and of bucket weights.
    pub(in crate::cuda) fn n_table_rows(&self) -> [usize; 2] {
        [self.n_centroids, 1 << self.nbits]
    }

    /// Returns the `n_rows` rows sorted by their codes. The first call reads the codes back and
    /// sorts.
    pub(in crate::cuda) fn by_code(
        &self,
        device: &Arc<CudaDevice>,
        n_rows: usize,
    ) -> Result<Arc<CudaByCode>> {
        let mut by_code = lock(&self.by_code);
        if let Some(by_code) = &*by_code {
            return Ok(by_code.clone());
        }
        let mut codes: Vec<i32> = filled(n_rows as u64, 0)?;
        let entered = device.enter()?;
        // SAFETY: there is a code per row, and padding.
        unsafe {
            download(&entered, self.codes.address(), bytemuck::cast_slice_mut(&mut codes))?;
        }
        drop(entered);
        let made = Arc::new(CudaByCode::new(device, &codes, self.n_centroids)?);
        Ok(by_code.insert(made).clone())
    }

    /// The parameters that kernels take.
    pub(in crate::cuda) fn params(&self) -> Residuals {
        Residuals {
            codes: self.codes.address(),
            residuals: self.residuals.address(),
            centroids: self.centroids.address(),
            weights: self.weights.address(),
            norms: self.norms.as_ref().map_or(0, Buffer::address),
            row_bytes: self.row_bytes,
            pitch_bytes: self.pitch_bytes,
            nbits: self.nbits,
            reserved: 0,
        }
    }
}

impl CudaTokens {
    /// Copies residual-compressed tokens to the device, for queries of type `T`.
    pub(crate) fn upload_residual<T: Element>(
        device: &Arc<CudaDevice>,
        tokens: &ResidualTokens<'_>,
    ) -> Result<CudaTokens> {
        let operand = Operand::Residual(T::TYPE);
        if !device.limits().has_rows(operand) {
            return Err(Error::Unsupported {
                what: format!("residual documents of {} queries on {device:?}", T::TYPE),
                why: "there are kernels for f16 and bf16 queries; decode the tokens, or use \
                      Device::cpu()"
                    .into(),
            });
        }
        let codec = tokens.codec();
        let (dim, nbits) = (codec.dim(), codec.nbits());
        let mut residuals = CudaResiduals {
            weights: upload(device, &weights::<T>(codec)?)?,
            codes: codes(device, tokens)?,
            residuals: buckets(device, tokens)?,
            centroids: centroids::<T>(device, codec)?,
            norms: None,
            row_bytes: row_bytes(dim, nbits) as u32,
            pitch_bytes: centroid_bytes(dim) as u32,
            nbits,
            n_centroids: codec.n_centroids(),
            by_code: Mutex::new(None),
        };
        if codec.normalize() {
            residuals.find_norms(device, T::TYPE, tokens)?;
        }
        let mask = tokens.mask().map(|mask| upload(device, mask)).transpose()?;
        let mask_address = mask.as_ref().map_or(0, Buffer::address);
        let base = residuals.residuals.address();
        // With more bits there is no room for what centroids score.
        let n_centroids =
            if nbits > BY_CENTROID_NBITS_MAX { 0 } else { residuals.n_centroids as u32 };
        let access = Access { base, pitch_bytes: u64::from(residuals.row_bytes), n_centroids };
        let owned = mask.into_iter().collect();
        let mut uploaded =
            CudaTokens::new(device, operand, tokens.layout(), access, mask_address, owned)?;
        uploaded.residuals = Some(residuals);
        Ok(uploaded)
    }
}

impl CudaTokens {
    /// Tables that a kernel decodes these tokens from; an error where they are not
    /// residual-compressed. Planning chooses no such kernel for those.
    pub(in crate::cuda) fn decoded(&self) -> Result<Residuals> {
        self.residuals.as_ref().map(CudaResiduals::params).ok_or_else(not_decoded)
    }
}

/// The error of a plan whose kernel decodes documents that are not compressed.
pub(in crate::cuda) fn not_decoded() -> Error {
    Error::Unsupported {
        what: "documents".into(),
        why: "the kernel decodes residual-compressed documents, and these are not".into(),
    }
}

impl CudaResiduals {
    /// Finds what rows are normalised by, and waits for it.
    fn find_norms(
        &mut self,
        device: &Arc<CudaDevice>,
        element: ElementType,
        tokens: &ResidualTokens<'_>,
    ) -> Result<()> {
        let n_rows = tokens.codes().len();
        self.norms = Some(Buffer::zeroed(device, (n_rows + PADDING) as u64 * 4)?);
        let kernel = device.kernel_of(&DECODED_NORMS, element)?;
        let params = ResidualNormsParams {
            tokens: self.params(),
            n_rows: n_rows as u32,
            dim: tokens.codec().dim() as u32,
        };
        let grid = params.n_rows.div_ceil(WARPS * (32 / NORMS_LANES));
        device.on_idle_stream(|stream| {
            let entered = device.enter()?;
            if grid > 0 {
                // SAFETY: the buffers hold these rows and their padding, and nothing else has the
                // norms; there is a warp for all rows; the kernel takes this struct.
                unsafe { start(&entered, stream.raw(), &kernel, grid, 0, &params)? };
            }
            stream.synchronize()
        })
    }
}

/// The bits of a number rounded to `T`, which has two bytes.
fn bits<T: Element>(value: f32) -> u16 {
    let rounded = T::from_f32(value);
    let bytes = bytemuck::bytes_of(&rounded);
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// The weights' tables.
fn weights<T: Element>(codec: &ResidualCodec<'_>) -> Result<Vec<u8>> {
    let is_finite = |&weight: &f32| T::from_f32(weight).to_f32().is_finite();
    let weights = codec.bucket_weights();
    if let Some(i) = weights.iter().position(|weight| !is_finite(weight)) {
        return Err(Error::Shape {
            argument: "bucket_weights",
            expected: format!("finite numbers of {}, as the queries have them", T::TYPE),
            found: format!("{} at {i}", weights[i]),
        });
    }
    let weights: Vec<u16> = weights.iter().map(|&weight| bits::<T>(weight)).collect();
    let planes: [u32; PLANES] = planes(&weights);
    let mut bytes = bytemuck::cast_slice(&planes).to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(&weights));
    bytes.resize(size_of_val(&planes) + N_WEIGHTS * size_of::<u16>(), 0);
    Ok(bytes)
}

/// A centroid's id per row, and 0 behind.
fn codes(device: &Arc<CudaDevice>, tokens: &ResidualTokens<'_>) -> Result<Buffer> {
    let codes: &[u8] = bytemuck::cast_slice(tokens.codes());
    upload_padded(device, tokens.codes().len(), 4, |first, rows| {
        let from = first * 4;
        rows.copy_from_slice(&codes[from..from + rows.len()]);
    })
}

/// The rows' buckets, arranged as kernels decode them.
fn buckets(device: &Arc<CudaDevice>, tokens: &ResidualTokens<'_>) -> Result<Buffer> {
    let (codec, n_rows) = (tokens.codec(), tokens.codes().len());
    let (stored, nbits) = (codec.row_bytes(), codec.nbits() as usize);
    let tables: Vec<[u64; N_WEIGHTS]> =
        (0..codec.nbits()).map(|at| arranged(codec.nbits(), tokens.order(), at)).collect();
    let row_bytes = row_bytes(codec.dim(), codec.nbits());
    debug_assert_eq!(row_bytes, n_slots(codec.dim()) * nbits);
    let n_chunks = codec.dim().div_ceil(CHUNK_LEN);
    let slots: Vec<usize> = (0..n_chunks).map(slot).collect();
    let arrange = |row: usize, to: &mut [u8]| {
        let from = &tokens.residuals()[row * stored..(row + 1) * stored];
        if slots.len() < n_slots(codec.dim()) {
            to.fill(0);
        }
        for (slot, from) in slots.iter().zip(from.chunks(nbits)) {
            let chunk = from
                .iter()
                .zip(&tables)
                .fold(0, |chunk, (&byte, table)| chunk | table[usize::from(byte)]);
            to[slot * nbits..][..nbits].copy_from_slice(&chunk.to_le_bytes()[..nbits]);
        }
    };
    upload_padded(device, n_rows, row_bytes, |first, rows| {
        Parallel::new().share(|min_len| {
            let rows = rows.par_chunks_exact_mut(row_bytes).with_min_len(CHUNK_ROWS.max(min_len));
            rows.enumerate().for_each(|(i, to)| arrange(first + i, to));
        });
    })
}

/// New device memory with `n_rows` rows, which `make` writes, given the first one's index, and
/// zeros in as many rows as kernels may read behind them.
fn upload_padded(
    device: &Arc<CudaDevice>,
    n_rows: usize,
    row_bytes: usize,
    make: impl Fn(usize, &mut [u8]),
) -> Result<Buffer> {
    upload_made(device, (n_rows + PADDING) as u64, row_bytes, |first, staging| {
        let first = first as usize;
        let n = n_rows.saturating_sub(first).min(staging.len() / row_bytes);
        let (rows, padding) = staging.split_at_mut(n * row_bytes);
        if n > 0 {
            make(first, rows);
        }
        padding.fill(0);
    })
}

/// The centroids, rounded to `T`, with zeros up to whole slabs.
fn centroids<T: Element>(device: &Arc<CudaDevice>, codec: &ResidualCodec<'_>) -> Result<Buffer> {
    let (dim, pitch_bytes) = (codec.dim(), centroid_bytes(codec.dim()));
    debug_assert!(pitch_bytes.is_multiple_of(CHUNK_LEN * size_of::<T>()));
    upload_made(device, codec.n_centroids() as u64, pitch_bytes, |first, staging| {
        let write = |values: &mut Vec<f32>, (i, row): (usize, &mut [u8])| {
            codec.centroids().load(first as usize + i, values);
            let (elements, padding) = row.split_at_mut(dim * size_of::<T>());
            for (to, &mut value) in elements.chunks_exact_mut(size_of::<T>()).zip(values) {
                to.copy_from_slice(bytemuck::bytes_of(&T::from_f32(value)));
            }
            padding.fill(0);
        };
        let rows = staging.par_chunks_exact_mut(pitch_bytes).enumerate();
        Parallel::new().share(|min_len| {
            rows.with_min_len(CHUNK_ROWS.max(min_len)).for_each_init(|| vec![0.0; dim], write);
        });
    })
}

/// Rows sorted by their codes, in parts that are summed together: the same for every call.
#[derive(Debug)]
pub(in crate::cuda) struct CudaByCode {
    /// A u32 per row.
    pub(in crate::cuda) rows: Buffer,
    /// Index in `rows` of each unit's first row, and the end of the last unit.
    pub(in crate::cuda) units: Buffer,
    /// First unit of each centroid, and the number of units.
    pub(in crate::cuda) firsts: Buffer,
    pub(in crate::cuda) n_units: u32,
}

impl CudaByCode {
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        codes: &[i32],
        n_centroids: usize,
    ) -> Result<CudaByCode> {
        let sorted = ByCode::new(codes, n_centroids)?;
        let (units, firsts) = units(sorted.starts());
        Ok(CudaByCode {
            rows: upload(device, bytemuck::cast_slice(sorted.rows()))?,
            n_units: units.len() as u32 - 1,
            units: upload(device, bytemuck::cast_slice(&units))?,
            firsts: upload(device, bytemuck::cast_slice(&firsts))?,
        })
    }
}

/// The units of codes whose rows start at `starts`: where each one's rows start, and the first unit
/// of each code. Both lists have one entry more.
pub(in crate::cuda) fn units(starts: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let (mut units, mut firsts) = (Vec::new(), Vec::with_capacity(starts.len()));
    for code in starts.windows(2) {
        firsts.push(units.len() as u32);
        units.extend((code[0]..code[1]).step_by(UNIT_ROWS));
    }
    firsts.push(units.len() as u32);
    units.push(starts.last().copied().unwrap_or(0));
    (units, firsts)
}
