//! Residual-compressed tokens in device memory, as kernels decode them
//! ([`maxsim_kernels::abi::residual_chunk`]).

use std::sync::{Arc, Mutex};

use cust::sys::CUstream;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::backward::WARPS;
use maxsim_kernels::abi::params::backward::residual::UNIT_ROWS;
use maxsim_kernels::abi::params::{NORMS_PADDING, ResidualNormsParams, Residuals};
use maxsim_kernels::abi::residual_chunk::{
    BY_CENTROID_NBITS_MAX, CHUNK_LEN, NORMS_LANES, PLANES, centroid_bytes, planes, row_bytes,
};
use maxsim_kernels::table::auxiliary::DECODED_NORMS;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::{upload, upload_made, upload_rows};
use crate::error::{Error, Result};
use crate::plan::limits::{Access, ResidualAddresses};
use crate::residual::arrangement::{Arrangement, WEIGHT_BYTES};
use crate::residual::by_code::ByCode;
use crate::residual::{ResidualCodec, ResidualTokens};
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::runtime::swap::lock;
use crate::tokens::dispatch::with_element;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::layout::TokenLayout;

/// Rows behind the last one that kernels may read.
const PADDING: usize = NORMS_PADDING;

/// Fewest rows that a thread makes at once.
const CHUNK_ROWS: usize = 256;

/// The codes, residuals and tables that rows are decoded from.
#[derive(Debug)]
pub(in crate::cuda) struct CudaResiduals {
    params: Residuals,
    n_centroids: usize,
    /// The memory at the addresses, unless it is foreign.
    owned: Vec<Buffer>,
    /// Rows by code, from the first call on that computes the tables' gradients.
    by_code: Mutex<Option<Arc<CudaByCode>>>,
}

impl CudaResiduals {
    /// Number of centroids, and of bucket weights.
    pub(in crate::cuda) fn n_table_rows(&self) -> [usize; 2] {
        [self.n_centroids, 1 << self.params.nbits]
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
            download(&entered, self.params.codes, bytemuck::cast_slice_mut(&mut codes))?;
        }
        drop(entered);
        let made = Arc::new(CudaByCode::new(device, &codes, self.n_centroids)?);
        Ok(by_code.insert(made).clone())
    }

    /// The parameters that kernels take.
    pub(in crate::cuda) fn params(&self) -> Residuals {
        self.params
    }

    /// The same rows, in memory that another value has.
    pub(super) fn view(&self) -> CudaResiduals {
        let CudaResiduals { params, n_centroids, .. } = *self;
        CudaResiduals { params, n_centroids, owned: Vec::new(), by_code: Mutex::new(None) }
    }
}

impl CudaTokens {
    /// Copies residual-compressed tokens to the device, for queries of type `T`.
    pub(crate) fn upload_residual<T: Element>(
        device: &Arc<CudaDevice>,
        tokens: &ResidualTokens<'_>,
    ) -> Result<CudaTokens> {
        let operand = residual_operand(device, T::TYPE)?;
        let codec = tokens.codec();
        let nbits = codec.nbits();
        let [centroids, weights] = tables::<T>(device, codec)?;
        let memory = [codes(device, tokens)?, buckets(device, tokens)?, centroids, weights];
        let [codes, residuals, centroids, weights] = memory.each_ref().map(Buffer::address);
        let addresses = ResidualAddresses { codes, residuals, centroids, weights, norms: 0 };
        let mut residuals =
            CudaResiduals::new(addresses, codec.dim(), nbits, codec.n_centroids(), memory.into());
        if codec.normalize() {
            residuals.find_norms(device, T::TYPE, tokens.codes().len(), codec.dim())?;
        }
        let mask = tokens.mask().map(|mask| upload(device, mask)).transpose()?;
        let mask_address = mask.as_ref().map_or(0, Buffer::address);
        let (access, owned) = (residuals.access(), mask.into_iter().collect());
        let mut uploaded =
            CudaTokens::new(device, operand, tokens.layout(), access, mask_address, owned)?;
        uploaded.residuals = Some(residuals);
        Ok(uploaded)
    }

    /// Views residual-compressed tokens in foreign memory, for queries of a type, and mask and
    /// segments at addresses, or 0.
    pub(crate) fn view_residual(
        device: &Arc<CudaDevice>,
        queries: ElementType,
        layout: &TokenLayout,
        addresses: ResidualAddresses,
        (nbits, n_centroids): (u32, usize),
        beside: [u64; 2],
    ) -> Result<CudaTokens> {
        let operand = residual_operand(device, queries)?;
        let residuals = CudaResiduals::new(addresses, layout.dim(), nbits, n_centroids, Vec::new());
        let [mask, segments] = beside;
        let beside = [mask, segments, 0];
        let mut view = CudaTokens::view(device, operand, layout, residuals.access(), beside)?;
        view.residuals = Some(residuals);
        Ok(view)
    }

    /// Tables that a kernel decodes these tokens from; an error where they are not
    /// residual-compressed. Planning chooses no such kernel for those.
    pub(in crate::cuda) fn decoded(&self) -> Result<Residuals> {
        self.residuals.as_ref().map(CudaResiduals::params).ok_or_else(not_decoded)
    }

    /// Enqueues the kernel that finds what residual-compressed rows are normalised by, in the
    /// memory that the tokens have for it, if they have some.
    ///
    /// # Safety
    /// Until the kernel has run nothing else may use that memory, and the tokens must live.
    pub(crate) unsafe fn write_residual_norms(
        &self,
        stream: &mut CudaStream,
        queries: ElementType,
        dim: usize,
    ) -> Result<()> {
        let device = stream.device().clone();
        let Some(residuals) = self.residuals.as_ref().filter(|x| x.params.norms != 0) else {
            return Ok(());
        };
        let kernel = device.kernel_of(&DECODED_NORMS, queries)?;
        let entered = device.enter()?;
        stream.order(&entered)?;
        // SAFETY: the caller's promise.
        unsafe { residuals.write_norms(&entered, stream.raw(), &kernel, self.n_rows(), dim) }
    }
}

/// The operand of residual-compressed documents, where the device has kernels for queries of the
/// type.
fn residual_operand(device: &CudaDevice, queries: ElementType) -> Result<Operand> {
    let operand = Operand::Residual(queries);
    if device.limits().has_rows(operand) {
        return Ok(operand);
    }
    Err(Error::Unsupported {
        what: format!("residual documents of {queries} queries on {device:?}"),
        why: "there are kernels for f16 and bf16 queries; decode the tokens, or use Device::cpu()"
            .into(),
    })
}

/// The error of a plan whose kernel decodes documents that are not compressed.
pub(in crate::cuda) fn not_decoded() -> Error {
    Error::Unsupported {
        what: "documents".into(),
        why: "the kernel decodes residual-compressed documents, and these are not".into(),
    }
}

impl CudaResiduals {
    /// Rows of `dim` elements at these addresses, in memory that `owned` has unless it is foreign.
    fn new(
        addresses: ResidualAddresses,
        dim: usize,
        nbits: u32,
        n_centroids: usize,
        owned: Vec<Buffer>,
    ) -> CudaResiduals {
        let ResidualAddresses { codes, residuals, centroids, weights, norms } = addresses;
        let params = Residuals {
            codes,
            residuals,
            centroids,
            weights,
            norms,
            row_bytes: row_bytes(dim, nbits) as u32,
            pitch_bytes: centroid_bytes(dim) as u32,
            nbits,
            reserved: 0,
        };
        CudaResiduals { params, n_centroids, owned, by_code: Mutex::new(None) }
    }

    /// How kernels reach the rows. With more bits there is no room for what centroids score.
    fn access(&self) -> Access {
        let Residuals { residuals, row_bytes, nbits, .. } = self.params;
        let n_centroids = if nbits > BY_CENTROID_NBITS_MAX { 0 } else { self.n_centroids as u32 };
        Access { base: residuals, pitch_bytes: u64::from(row_bytes), n_centroids }
    }

    /// Finds what rows are normalised by, and waits for it.
    fn find_norms(
        &mut self,
        device: &Arc<CudaDevice>,
        element: ElementType,
        n_rows: usize,
        dim: usize,
    ) -> Result<()> {
        let norms = Buffer::new(device, (n_rows + PADDING) as u64 * 4)?;
        self.params.norms = norms.address();
        self.owned.push(norms);
        let kernel = device.kernel_of(&DECODED_NORMS, element)?;
        device.until_done(|stream| {
            let entered = device.enter()?;
            // SAFETY: the buffers hold these rows and their padding, and nothing else has the
            // norms.
            unsafe { self.write_norms(&entered, stream.raw(), &kernel, n_rows, dim) }
        })
    }

    /// Enqueues the kernel that finds what rows are normalised by, and zeros behind them.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; the rows must be there until the kernel has run,
    /// and nothing else may use the norms, of which there are these and padding.
    unsafe fn write_norms(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        kernel: &Kernel<ResidualNormsParams>,
        n_rows: usize,
        dim: usize,
    ) -> Result<()> {
        let tokens = self.params;
        let params = ResidualNormsParams { tokens, n_rows: n_rows as u32, dim: dim as u32 };
        // SAFETY: the caller's promise; there is a warp for all rows; the kernel takes this struct.
        unsafe {
            fill(entered, tokens.norms + n_rows as u64 * 4, 0, PADDING as u64 * 4, stream)?;
            match params.n_rows.div_ceil(WARPS * (32 / NORMS_LANES)) {
                0 => Ok(()),
                grid => start(entered, stream, kernel, grid, 0, &params),
            }
        }
    }
}

/// The tables that a codec's rows are decoded from for queries of a type: centroids and weights.
pub(in crate::cuda) fn residual_tables(
    device: &Arc<CudaDevice>,
    queries: ElementType,
    codec: &ResidualCodec<'_>,
) -> Result<[Buffer; 2]> {
    residual_operand(device, queries)?;
    with_element!(queries, T => tables::<T>(device, codec))
}

fn tables<T: Element>(device: &Arc<CudaDevice>, codec: &ResidualCodec<'_>) -> Result<[Buffer; 2]> {
    codec.check_range::<T>()?;
    Ok([centroids::<T>(device, codec)?, upload(device, &weights::<T>(codec)?)?])
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
    bytes.resize(WEIGHT_BYTES, 0);
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
    let stored = codec.row_bytes();
    let arrangement = Arrangement::new(codec.dim(), codec.nbits(), tokens.order())?;
    let row_bytes = arrangement.row_bytes;
    let arrange = |row: usize, to: &mut [u8]| {
        arrangement.arrange(&tokens.residuals()[row * stored..(row + 1) * stored], to);
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
    if codec.centroids().element() == T::TYPE {
        return upload_rows(device, codec.centroids().bytes(), dim * size_of::<T>(), pitch_bytes);
    }
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
