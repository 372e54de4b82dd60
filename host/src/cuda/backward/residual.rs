//! Gradients of scores of residual-compressed documents: those of queries, centroids and bucket
//! weights ([`maxsim_kernels::abi::params::backward::residual`]). Those of the documents' rows are
//! there a window at a time.

use std::ops::Range;
use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward::residual::{
    PROJECT_LANES, PartsParams, ResidualProjectParams, TABLES_GRID_MAX, TABLES_WARPS, TablesParams,
    Window, tables_shared_bytes,
};
use maxsim_kernels::abi::params::backward::{CODE_BYTES, WARPS, columns};
use maxsim_kernels::table::auxiliary::{RESIDUAL_PROJECT, RESIDUAL_SUM, RESIDUAL_TABLES};

use super::{CudaBackward, Sums, WinnerKernels};
use crate::cuda::buffers::residual::CudaByCode;
use crate::cuda::buffers::residual::CudaResiduals;
use crate::cuda::calls::{ResidualCall, ResidualFound};
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::memory::{Buffer, download, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::error::{Error, Result};
use crate::plan::backward::BackwardKind;
use crate::plan::backward::Gathered;
use crate::problem::Problem;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::tokens::element::ElementType;

/// Most bytes of a window, the documents' gradient of some rows in f32. Every window goes through
/// all units, so that few large ones are better than many small ones.
const WINDOW_BYTES_MAX: usize = 128 << 20;

/// Most rows of a window.
pub(in crate::cuda) fn window_rows_max(dim: usize) -> usize {
    (WINDOW_BYTES_MAX / (dim * 4)).max(1)
}

impl CudaDevice {
    /// Computes gradients, and waits for them. Handles and outputs must be those of the problem.
    pub(crate) fn residual_gradients(
        self: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        shape: &OutputShape,
        call: &ResidualCall<'_>,
        found: ResidualFound<'_>,
    ) -> Result<()> {
        let Some(residuals) = &call.documents.residuals else {
            return Err(Error::Unsupported {
                what: "gradients of residual tables".into(),
                why: "the documents are not residual-compressed; use Device::backward".into(),
            });
        };
        let kind = BackwardKind {
            gradient: ElementType::F32,
            is_atomic: false,
            normalizes: false,
            angular: false,
            weighted: false,
            documents: Gathered::Residuals,
            sides: [true; 2],
        };
        let work = CudaBackward::new(self, problem, element, kind, shape)?;
        let tables = Tables::new(self, problem, element, residuals, &work)?;
        let of_queries = Buffer::new(self, size_of_val(found.queries) as u64)?;
        self.until_done(|stream| tables.run(&work, stream, call, of_queries.address(), problem))?;
        let entered = self.enter()?;
        // SAFETY: the buffers are as long as what they are copied to (`Tables::new`, above), and
        // the stream has been waited for.
        unsafe {
            download(&entered, of_queries.address(), bytemuck::cast_slice_mut(found.queries))?;
            let (centroids, weights) = (found.centroids, found.bucket_weights);
            download(&entered, tables.centroids.address(), bytemuck::cast_slice_mut(centroids))?;
            download(&entered, tables.weights.address(), bytemuck::cast_slice_mut(weights))
        }
    }
}

/// Memory and kernels of the tables' gradients.
struct Tables<'a> {
    device: &'a Arc<CudaDevice>,
    residuals: &'a CudaResiduals,
    by_code: Arc<CudaByCode>,
    dim: usize,
    /// CTAs of [`RESIDUAL_TABLES`].
    grid: u32,
    /// Room for the largest span of the plan.
    window: Buffer,
    centroid_parts: Buffer,
    weight_parts: Buffer,
    /// 0, and the number of those.
    weight_firsts: Buffer,
    centroids: Buffer,
    weights: Buffer,
    project: Option<Kernel<ResidualProjectParams>>,
    tables: Kernel<TablesParams>,
    sum: Kernel<PartsParams>,
}

impl<'a> Tables<'a> {
    fn new(
        device: &'a Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        residuals: &'a CudaResiduals,
        work: &CudaBackward,
    ) -> Result<Tables<'a>> {
        let (dim, params) = (problem.dim(), residuals.params());
        let by_code = residuals.by_code(device, problem.documents().rows())?;
        let grid = by_code.n_units.div_ceil(TABLES_WARPS).min(TABLES_GRID_MAX);
        let n_parts = grid * TABLES_WARPS;
        let row_bytes = dim as u64 * 4;
        let [n_centroids, n_weights] = residuals.n_table_rows();
        let weight_bytes = n_weights as u64 * 4;
        let window_rows = work.plan.spans().iter().map(|span| span.rows.len()).max().unwrap_or(0);
        let normalizes = params.norms != 0;
        Ok(Tables {
            device,
            residuals,
            dim,
            grid,
            window: Buffer::new(device, window_rows as u64 * row_bytes)?,
            centroid_parts: Buffer::new(device, u64::from(by_code.n_units) * row_bytes)?,
            weight_parts: Buffer::new(device, u64::from(n_parts) * weight_bytes)?,
            weight_firsts: upload(device, bytemuck::cast_slice(&[0, n_parts]))?,
            centroids: Buffer::new(device, n_centroids as u64 * row_bytes)?,
            weights: Buffer::new(device, weight_bytes)?,
            project: normalizes
                .then(|| device.kernel_of(&RESIDUAL_PROJECT, element))
                .transpose()?,
            tables: device.kernel(RESIDUAL_TABLES)?,
            sum: device.kernel(RESIDUAL_SUM)?,
            by_code,
        })
    }

    /// Enqueues a call.
    fn run(
        &self,
        work: &CudaBackward,
        stream: &mut CudaStream,
        call: &ResidualCall<'_>,
        of_queries: u64,
        problem: &Problem<'_>,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let workspace = match work.workspace_bytes(false) {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)? + N_RESERVED * 4,
        };
        let matrix = |address, rows| GradientMatrix {
            address,
            element: ElementType::F32,
            rows,
            dim: self.dim,
        };
        let sums = Sums {
            queries: call.queries,
            documents: call.documents,
            outputs: call.outputs,
            grad_scores: call.grad_scores,
            sides: [
                matrix(of_queries, problem.queries().rows()),
                matrix(self.window.address(), problem.documents().rows()),
            ],
            first_row: 0,
            adds: [false; 2],
            norms: [0, self.residuals.params().norms],
        };
        let raw = stream.raw();
        let hazards =
            [Some(call.outputs.hazard().as_ref()), Some(call.grad_scores.hazard().as_ref())];
        // SAFETY: handles, scores and gradients are those of the work (the caller's promise), in
        // this context; only this stream uses its workspace and the buffers, and the hazards order
        // its use of the rest. All of them live until the stream has been waited for.
        let run = || unsafe {
            self.clear(&entered, raw)
                .and_then(|()| match &work.kernels.winners {
                    WinnerKernels::Sorted(sorted) => {
                        work.run_queries(&entered, raw, &sums, sorted, workspace)
                    }
                    // Windows are summed over sorted winners alone.
                    WinnerKernels::Atomic(_) => Ok(()),
                })
                .and_then(|()| {
                    work.run_windows(&entered, raw, &sums, workspace, |rows| {
                        self.add_window(&entered, raw, rows)
                    })
                })
                .and_then(|()| self.add_parts(&entered, raw))
        };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// Fills the parts with zeros.
    ///
    /// # Safety
    /// `stream` must be a stream of the context that the buffers are for.
    unsafe fn clear(&self, entered: &Entered<'_>, stream: CUstream) -> Result<()> {
        [&self.centroid_parts, &self.weight_parts].into_iter().try_for_each(|parts| {
            // SAFETY: the buffer has this length; the caller's promise.
            unsafe { fill(entered, parts.address(), 0, parts.len_bytes(), stream) }
        })
    }

    /// Adds the gradients of the documents' rows that the window holds.
    ///
    /// # Safety
    /// As [`Tables::clear`], behind what writes the window.
    unsafe fn add_window(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        rows: Range<u32>,
    ) -> Result<()> {
        let tokens = self.residuals.params();
        let window = Window {
            base: self.window.address(),
            first_row: rows.start,
            n_rows: rows.len() as u32,
            dim: self.dim as u32,
            reserved: 0,
        };
        // A lane takes as many elements as it does codes.
        let (lanes_log2, n_columns) = columns(self.dim * CODE_BYTES);
        let params = TablesParams {
            tokens,
            window,
            rows: self.by_code.rows.address(),
            units: self.by_code.units.address(),
            centroid_parts: self.centroid_parts.address(),
            weight_parts: self.weight_parts.address(),
            n_units: self.by_code.n_units,
            lanes_log2,
            n_columns,
            reserved: 0,
        };
        let shared_bytes = tables_shared_bytes(tokens.nbits) as u32;
        // SAFETY: the window's rows exist and are in its buffer; the lists are those of the rows'
        // codes, and there are parts for all units and warps; the caller's promise.
        unsafe {
            if let Some(project) = self.project {
                let n_blocks = window.n_rows.div_ceil(WARPS * (32 / PROJECT_LANES));
                let params = ResidualProjectParams { tokens, window };
                start(entered, stream, &project, n_blocks, 0, &params)?;
            }
            start(entered, stream, &self.tables, self.grid, shared_bytes, &params)
        }
    }

    /// Adds the parts of both tables.
    ///
    /// # Safety
    /// As [`Tables::clear`], behind what adds to the parts.
    unsafe fn add_parts(&self, entered: &Entered<'_>, stream: CUstream) -> Result<()> {
        let [n_centroids, n_weights] = self.residuals.n_table_rows();
        let of_centroids = PartsParams {
            parts: self.centroid_parts.address(),
            firsts: self.by_code.firsts.address(),
            out: self.centroids.address(),
            n_rows: n_centroids as u32,
            dim: self.dim as u32,
        };
        let of_weights = PartsParams {
            parts: self.weight_parts.address(),
            firsts: self.weight_firsts.address(),
            out: self.weights.address(),
            n_rows: 1,
            dim: n_weights as u32,
        };
        [of_centroids, of_weights].iter().try_for_each(|params| {
            let n_blocks = params.n_rows.div_ceil(WARPS);
            // SAFETY: there are the parts that the lists say; the caller's promise.
            unsafe { start(entered, stream, &self.sum, n_blocks, 0, params) }
        })
    }
}

impl CudaBackward {
    /// Enqueues the sums of the documents' rows, some of them at a time: `sums` has the memory of
    /// the documents' gradient for the first of these. `take` is given the rows that are ready, and
    /// enqueues the kernels that read them.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`]; there must be room for the largest of
    /// [`GradientPlan::spans`].
    ///
    /// [`GradientPlan::spans`]: super::gradient_plan::GradientPlan::spans
    unsafe fn run_windows(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        sums: &Sums<'_>,
        workspace: u64,
        mut take: impl FnMut(Range<u32>) -> Result<()>,
    ) -> Result<()> {
        let plan = &self.plan;
        let (Some(pairs), WinnerKernels::Sorted(sorted)) =
            (&plan.document_pairs, &self.kernels.winners)
        else {
            return Ok(());
        };
        let pairs = self.pairs(sums, pairs, self.lists.document_order, sums.norms[0]);
        for span in plan.spans() {
            let [of_queries, of_documents] = sums.sides;
            let of_documents = GradientMatrix { rows: span.rows.len(), ..of_documents };
            let first_row = span.rows.start;
            let sums = Sums { sides: [of_queries, of_documents], first_row, ..*sums };
            // SAFETY: the caller's promise; the rows of a span are all that its groups write.
            unsafe {
                // Rows that no query token chose are not written again.
                of_documents.clear(entered, stream)?;
                for group in &plan.groups[span.groups] {
                    let left = self.run_group(
                        entered, stream, &sums, &pairs, group, None, sorted, workspace,
                    )?;
                    left.map_or(Ok(()), |left| self.run_fixup(entered, stream, &left, sorted))?;
                }
            }
            take(span.rows)?;
        }
        Ok(())
    }
}
