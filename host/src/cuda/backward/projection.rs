//! Gradients through a projection on a device, of rows that have one, some at a time.
//!
//! Rows are gathered first, so that nothing is multiplied that is 0. ∂u stays f32 from the sums
//! over winners to the products: these are sums of f32.

use std::sync::Arc;

use maxsim_kernels::abi::params::backward::{ProjectParams, RowNormsParams, Rows, WARPS, columns};
use maxsim_kernels::abi::params::projection::gradient::{
    GatherRowsParams, ProductParams, SHARED_BYTES, THREADS, TILE_K, TILE_M, TILE_N,
};
use maxsim_kernels::abi::params::projection::{self, ProjectionParams};
use maxsim_kernels::abi::params::{SUM_PARTIALS_THREADS, SumPartialsParams};
use maxsim_kernels::table::auxiliary::{
    PROJECT, PROJECTION, PROJECTION_GATHER, PROJECTION_PRODUCT, ROW_NORMS, SUM_PARTIALS,
};

use crate::cuda::buffers::gradients::output;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, download};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::cuda::forward::projection::{check_rows, projection_of};
use crate::error::Result;
use crate::plan::limits::Access;
use crate::runtime::alloc::zeroed;
use crate::tokens::dispatch::with_element;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

/// Parts of the sums over rows, at most.
const PARTS_MAX: u64 = 32;

/// CTAs of the product kernel that a multiprocessor runs at once.
const RESIDENT: usize = 2;

/// Bytes of all parts, if it is more than one.
const PARTS_BYTES_MAX: u64 = 64 << 20;

impl CudaTokens {
    /// Copies of some rows of elements, as one item. Waits for them.
    pub(crate) fn gathered(
        &self,
        device: &Arc<CudaDevice>,
        rows: &[u32],
        element: ElementType,
    ) -> Result<CudaTokens> {
        check_rows("hidden", self)?;
        let dim = self.rows().dim as usize;
        let layout = TokenLayout::padded(1, rows.len(), dim)?;
        let access = Access::uploaded(dim, TokenFormat::from(element));
        let copies = Buffer::new(device, rows.len() as u64 * access.pitch_bytes)?;
        let list = upload(device, bytemuck::cast_slice(rows))?;
        let params = GatherRowsParams {
            from: self.access().base,
            from_pitch: self.access().pitch_bytes,
            rows: list.address(),
            to: copies.address(),
            to_pitch: access.pitch_bytes,
            n_rows: rows.len() as u32,
            row_bytes: (dim * element.size_bytes()) as u32,
        };
        let n_chunks = rows.len() as u64 * u64::from(params.row_bytes.div_ceil(16));
        let kernel = device.kernel(PROJECTION_GATHER)?;
        device.until_done(|stream| {
            let entered = device.enter()?;
            stream.order(&entered)?;
            let grid = n_chunks.div_ceil(THREADS as u64) as u32;
            match grid {
                0 => Ok(()),
                // SAFETY: the list names rows of this matrix, whose memory the handle keeps; the
                // copies have the pitch and as many rows. All live until the stream has been waited
                // for.
                _ => unsafe { start(&entered, stream.raw(), &kernel, grid, 0, &params) },
            }
        })?;
        let access = Access { base: copies.address(), ..access };
        CudaTokens::new(device, element, &layout, access, 0, vec![copies])
    }

    /// The mask, a byte per row, where there is one. Waits for it.
    pub(crate) fn read_mask(&self, device: &Arc<CudaDevice>) -> Result<Option<Vec<u8>>> {
        if !self.is_masked() {
            return Ok(None);
        }
        let mut mask = zeroed(self.n_rows() as u64)?;
        // SAFETY: there is a byte for each row.
        unsafe { download(&device.enter()?, self.matrix().mask, &mut mask)? };
        Ok(Some(mask))
    }
}

/// A projection as gradients go through it, and the kernels that they take.
#[derive(Debug)]
pub(super) struct Layer {
    weight: Arc<CudaTokens>,
    bias: Option<Arc<CudaTokens>>,
    dim: usize,
    hidden: usize,
    normalize: bool,
    kernels: Kernels,
    n_parts: u32,
    /// An element that is 1.
    one: Buffer,
}

#[derive(Clone, Copy, Debug)]
struct Kernels {
    product: Kernel<ProductParams>,
    /// Those that find ∂u of rows that are normalised.
    projection: Kernel<ProjectionParams>,
    norms: Kernel<RowNormsParams>,
    through_norm: Kernel<ProjectParams>,
}

/// The gradients of a projection, as far as rows have been added.
#[derive(Debug)]
pub(crate) struct CudaProjectionSums {
    device: Arc<CudaDevice>,
    layer: Layer,
    sum: Kernel<SumPartialsParams>,
    /// The parts of ∂W, `[parts, dim, hidden]`, and of ∂b, `[parts, dim]`.
    parts: Buffer,
    bias_parts: Buffer,
}

impl CudaProjectionSums {
    /// No rows yet.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        weight: &Arc<CudaTokens>,
        bias: Option<&Arc<CudaTokens>>,
        element: ElementType,
        normalize: bool,
    ) -> Result<CudaProjectionSums> {
        let layer = Layer::new(device, weight, bias, element, normalize)?;
        let [parts_bytes, bias_bytes] = layer.parts_bytes();
        Ok(CudaProjectionSums {
            device: device.clone(),
            layer,
            sum: device.kernel(SUM_PARTIALS)?,
            parts: Buffer::zeroed(device, parts_bytes)?,
            bias_parts: Buffer::zeroed(device, bias_bytes)?,
        })
    }

    /// Adds rows of hidden states, all of which have a gradient: `of_tokens` is that of their
    /// tokens, `[rows, dim]`. Theirs is written to `of_hidden`, `[rows, hidden]`.
    pub(crate) fn add(
        &mut self,
        states: &CudaTokens,
        of_tokens: &[f32],
        of_hidden: &mut [f32],
    ) -> Result<()> {
        let n_rows = states.n_rows();
        if n_rows == 0 {
            return Ok(());
        }
        let device = self.device.clone();
        let [projected_bytes, norms_bytes] = self.layer.norm_bytes(n_rows);
        // What the launches use lives until the stream has been waited for.
        let gradients = upload(&device, bytemuck::cast_slice(of_tokens))?;
        let projected = Buffer::new(&device, projected_bytes)?;
        let norms = Buffer::new(&device, norms_bytes)?;
        let found = Buffer::new(&device, n_rows as u64 * self.layer.hidden as u64 * 4)?;
        device.until_done(|stream| {
            let entered = device.enter()?;
            stream.order(&entered)?;
            // SAFETY: the buffers were just made, for these rows, and this call alone has them and
            // the parts until the stream has been waited for.
            unsafe {
                let addresses = [gradients.address(), projected.address(), norms.address()];
                self.layer.through_norm(&entered, stream, states, addresses)?;
                let parts = [self.parts.address(), self.bias_parts.address()];
                self.layer.weight_parts(&entered, stream, states, addresses[0], parts, true)?;
                let to = HiddenGradient { address: found.address(), rows: 0, narrows: false };
                self.layer.of_hidden(&entered, stream, states.n_rows() as u32, addresses[0], to)
            }
        })?;
        // SAFETY: there is a number for each element of the rows.
        unsafe { download(&device.enter()?, found.address(), bytemuck::cast_slice_mut(of_hidden)) }
    }

    /// ∂W, `[dim, hidden]`, and ∂b, which is empty without a bias.
    pub(crate) fn into_gradients(self) -> Result<(Vec<f32>, Vec<f32>)> {
        let Layer { dim, hidden, bias, .. } = &self.layer;
        let weight = self.sum(&self.parts, dim * hidden)?;
        let bias = if bias.is_some() { self.sum(&self.bias_parts, *dim)? } else { Vec::new() };
        Ok((weight, bias))
    }

    /// The sums over parts of `n` numbers.
    fn sum(&self, parts: &Buffer, n: usize) -> Result<Vec<f32>> {
        let device = &self.device;
        let mut sums = zeroed(n as u64)?;
        let found = Buffer::new(device, n as u64 * 4)?;
        let params = SumPartialsParams {
            partials: parts.address(),
            scores: found.address(),
            entry_score: 0,
            row_len: n as u32,
            score_stride: 0,
            score_base: 0,
            entry_base: 0,
            n_results: n as u32,
            n_parts: self.layer.n_parts,
            reserved: 0,
        };
        device.until_done(|stream| {
            let entered = device.enter()?;
            stream.order(&entered)?;
            let grid = params.n_results.div_ceil(SUM_PARTIALS_THREADS as u32);
            // SAFETY: the parts have so many numbers, and so has what was just made for them.
            unsafe { start(&entered, stream.raw(), &self.sum, grid, 0, &params) }
        })?;
        // SAFETY: there are so many numbers.
        unsafe {
            download(&device.enter()?, found.address(), bytemuck::cast_slice_mut(&mut sums))?;
        }
        Ok(sums)
    }
}

/// Where the gradients of rows go.
#[derive(Clone, Copy, Debug)]
pub(super) struct HiddenGradient {
    pub address: u64,
    /// Address of the row of each, or 0: row i is row i.
    pub rows: u64,
    /// Whether they are elements of the layer's type rather than f32.
    pub narrows: bool,
}

impl Layer {
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        weight: &Arc<CudaTokens>,
        bias: Option<&Arc<CudaTokens>>,
        element: ElementType,
        normalize: bool,
    ) -> Result<Layer> {
        check_rows("weight", weight)?;
        let (dim, hidden) = (weight.n_rows(), weight.rows().dim as usize);
        let part_bytes = dim as u64 * hidden as u64 * 4;
        // As many CTAs as the device runs at once: a few more would take twice as long.
        let n_tiles = dim.div_ceil(TILE_M) * hidden.div_ceil(TILE_N);
        let n_resident = RESIDENT * device.limits().n_multiprocessors;
        let n_parts = (n_resident / n_tiles.max(1)) as u64;
        let n_parts = n_parts.min(PARTS_BYTES_MAX / part_bytes.max(1)).clamp(1, PARTS_MAX);
        Ok(Layer {
            weight: weight.clone(),
            bias: bias.cloned(),
            dim,
            hidden,
            normalize,
            kernels: Kernels {
                product: device.kernel_of(&PROJECTION_PRODUCT, element)?,
                projection: device.kernel_of(&PROJECTION, element)?,
                norms: device.kernel_of(&ROW_NORMS, ElementType::F32)?,
                through_norm: device.kernel_of(&PROJECT, ElementType::F32)?,
            },
            n_parts: n_parts as u32,
            one: upload(device, &with_element!(element, T => one::<T>()))?,
        })
    }

    /// Number of parts of the sums over rows.
    pub(super) fn n_parts(&self) -> u32 {
        self.n_parts
    }

    /// Bytes of the parts of ∂W, and of those of ∂b.
    pub(super) fn parts_bytes(&self) -> [u64; 2] {
        let of_bias = if self.bias.is_some() { self.dim as u64 * 4 } else { 0 };
        [self.dim as u64 * self.hidden as u64 * 4, of_bias].map(|n| n * u64::from(self.n_parts))
    }

    /// Bytes of u and r of some rows, where [`Layer::through_norm`] needs them.
    pub(super) fn norm_bytes(&self, n_rows: usize) -> [u64; 2] {
        let bytes = [self.projected_pitch() * n_rows as u64, n_rows as u64 * 4];
        if self.normalize { bytes } else { [0; 2] }
    }

    /// Distance between rows of u, in f32.
    fn projected_pitch(&self) -> u64 {
        Access::uploaded(self.dim, TokenFormat::from(ElementType::F32)).pitch_bytes
    }

    /// Enqueues what makes ∂u of the gradient of tokens, in its place: where these are normalised,
    /// u again, in f32, and its r.
    ///
    /// # Safety
    /// At the addresses must be the gradient, and room for u and r of the rows of `states`, which
    /// nothing but the stream uses before what is enqueued has run; so long must these live.
    pub(super) unsafe fn through_norm(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        states: &CudaTokens,
        [gradients, projected, norms]: [u64; 3],
    ) -> Result<()> {
        if !self.normalize {
            return Ok(());
        }
        let n_rows = states.n_rows() as u32;
        let pitch_bytes = self.projected_pitch();
        let params = ProjectionParams {
            tokens: projected,
            tokens_pitch: pitch_bytes,
            tokens_are_f32: 1,
            ..projection_of(states, 0..states.n_rows(), &self.weight, self.bias.as_ref())
        };
        let (lanes_log2, n_columns) = columns(self.dim * 4);
        let dim = self.dim as u32;
        let rows = Rows { base: projected, pitch_bytes, dim, lanes_log2, n_columns, aligned: 1 };
        let of_norms = RowNormsParams { rows, norms, weights: 0, n_rows, reserved: 0 };
        let through = ProjectParams {
            rows,
            out: output(gradients, ElementType::F32, self.dim, false),
            sums: gradients,
            norms,
            weights: 0,
            grad_weights: 0,
            n_rows,
            skips_zeros: 0,
        };
        let n_blocks = n_rows.div_ceil(WARPS * (32 >> lanes_log2));
        let n_projected = n_rows.div_ceil(projection::ROWS as u32);
        let shared_bytes = projection::SHARED_BYTES as u32;
        let Kernels { projection, norms, through_norm, .. } = &self.kernels;
        // SAFETY: the caller's promise; there are CTAs for all rows.
        unsafe {
            start(entered, stream.raw(), projection, n_projected, shared_bytes, &params)?;
            start(entered, stream.raw(), norms, n_blocks, 0, &of_norms)?;
            start(entered, stream.raw(), through_norm, n_blocks, 0, &through)
        }
    }

    /// Enqueues the product of ∂u of some rows with W.
    ///
    /// # Safety
    /// As [`Layer::through_norm`], of ∂u at `gradients` and of room for the gradient of each row.
    pub(super) unsafe fn of_hidden(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        n_rows: u32,
        gradients: u64,
        to: HiddenGradient,
    ) -> Result<()> {
        let dim = self.dim as u32;
        let params = ProductParams {
            a: gradients,
            b: self.weight.access().base,
            b_pitch: self.weight.access().pitch_bytes,
            out: to.address,
            a_row: dim,
            a_column: 1,
            m: n_rows,
            n: self.hidden as u32,
            k: dim,
            k_of_part: dim,
            adds: 0,
            narrows: u32::from(to.narrows),
            rows: to.rows,
        };
        // SAFETY: the caller's promise.
        unsafe { self.product(entered, stream, &params, 1) }
    }

    /// Enqueues the products of ∂u with the rows, and its sums where there is a bias: parts of them
    /// that are overwritten, or added to.
    ///
    /// # Safety
    /// As [`Layer::through_norm`], of ∂u at `gradients` and of room for the parts.
    pub(super) unsafe fn weight_parts(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        states: &CudaTokens,
        gradients: u64,
        [parts, bias_parts]: [u64; 2],
        adds: bool,
    ) -> Result<()> {
        let (n_rows, dim) = (states.n_rows() as u32, self.dim as u32);
        let of_weight = ProductParams {
            a: gradients,
            b: states.access().base,
            b_pitch: states.access().pitch_bytes,
            out: parts,
            a_row: 1,
            a_column: dim,
            m: dim,
            n: self.hidden as u32,
            k: n_rows,
            k_of_part: n_rows.div_ceil(self.n_parts).next_multiple_of(TILE_K as u32),
            adds: u32::from(adds),
            narrows: 0,
            rows: 0,
        };
        let one = self.one.address();
        let of_bias = ProductParams { b: one, b_pitch: 0, out: bias_parts, n: 1, ..of_weight };
        // SAFETY: the caller's promise.
        unsafe {
            self.product(entered, stream, &of_weight, self.n_parts)?;
            match self.bias.is_some() {
                true => self.product(entered, stream, &of_bias, self.n_parts),
                false => Ok(()),
            }
        }
    }

    /// # Safety
    /// As [`Layer::of_hidden`], of matrices as the parameters say.
    unsafe fn product(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        params: &ProductParams,
        n_parts: u32,
    ) -> Result<()> {
        let tiles = [(params.m, TILE_M), (params.n, TILE_N)];
        let grid: u32 = tiles.iter().map(|&(len, tile)| len.div_ceil(tile as u32)).product();
        let (kernel, shared_bytes) = (&self.kernels.product, SHARED_BYTES as u32);
        // SAFETY: the caller's promise; there is a CTA for each tile of each part.
        unsafe { start(entered, stream.raw(), kernel, grid * n_parts, shared_bytes, params) }
    }
}

/// The bytes of an element that is 1.
fn one<T: Element>() -> Vec<u8> {
    bytemuck::bytes_of(&T::from_f32(1.0)).to_vec()
}
