//! Projects hidden states some rows at a time, by one kernel, and scores their tokens.

use std::ops::Range;
use std::sync::Arc;

use maxsim_kernels::abi::params::projection::{self, MappedParams, ProjectionParams};
use maxsim_kernels::table::auxiliary::{PROJECTION, PROJECTION_MAPPED};

use super::plan::ForwardPlan;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::{ProjectionCall, SliceCall};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::error::{Error, Result};
use crate::plan::limits::Access;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::scores::Scores;
use crate::runtime::alloc::copy_of;
use crate::runtime::swap::lock;

/// Alignment of the results of a slice: stores of several elements are aligned.
const RESULTS_ALIGN: u64 = 256;

/// Most bytes of slices whose memory is kept.
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// Slices that have their tokens at the same time, if there are so many.
const TURNS: usize = 2;

impl CudaTokens {
    /// Tokens of some of these rows, with a copy of their mask. Waits for them.
    pub(crate) fn project(
        self: &Arc<CudaTokens>,
        device: &Arc<CudaDevice>,
        call: &ProjectionCall<'_>,
    ) -> Result<CudaTokens> {
        let tokens = Buffer::new(device, call.tokens_bytes())?;
        let projecting = Projecting::new(device, self, call, tokens.address())?;
        // SAFETY: the buffer was just made, for these rows, and nothing else has it; matrices live
        // until the stream has been waited for.
        device.until_done(|stream| unsafe { projecting.enqueue(device, stream) })?;
        projecting.tokens.owning(device, tokens)
    }
}

/// Refuses rows that kernels cannot copy 16 bytes at a time.
pub(in crate::cuda) fn check_rows(argument: &'static str, matrix: &CudaTokens) -> Result<()> {
    match matrix.access().is_aligned() {
        true => Ok(()),
        false => Err(Error::Shape {
            argument,
            expected: "rows on 16-byte boundaries, where a CUDA device projects".into(),
            found: "other rows; upload a copy".into(),
        }),
    }
}

/// Parameters of a projection of some rows of hidden states, without normalisation, and without
/// tokens.
pub(in crate::cuda) fn projection_of(
    hidden: &CudaTokens,
    rows: Range<usize>,
    weight: &CudaTokens,
    bias: Option<&Arc<CudaTokens>>,
) -> ProjectionParams {
    let Access { base, pitch_bytes: hidden_pitch, .. } = hidden.access();
    ProjectionParams {
        hidden: base + rows.start as u64 * hidden_pitch,
        hidden_pitch,
        weight: weight.access().base,
        weight_pitch: weight.access().pitch_bytes,
        bias: bias.map_or(0, |bias| bias.access().base),
        tokens: 0,
        tokens_pitch: 0,
        n_rows: rows.len() as u32,
        n_hidden: hidden.rows().dim,
        dim: weight.n_rows() as u32,
        normalize: 0,
        tokens_are_f32: 0,
        reserved: 0,
    }
}

/// A launch of the kernel that projects some rows of hidden states, and a view of their tokens,
/// with the mask of the rows.
#[derive(Debug)]
pub(in crate::cuda) struct Projecting {
    launch: Launch,
    pub(in crate::cuda) tokens: CudaTokens,
}

/// A kernel with its parameters.
#[derive(Debug)]
enum Launch {
    /// A CTA for some rows each.
    Rows(Kernel<ProjectionParams>, ProjectionParams),
    /// By tensor maps, with as many CTAs as stay on the device.
    Mapped(Kernel<MappedParams>, Box<MappedParams>),
}

impl Launch {
    /// The kernel for the device, which reads some rows of hidden states from `first_row` on.
    fn new(
        device: &Arc<CudaDevice>,
        call: &ProjectionCall<'_>,
        hidden: &CudaTokens,
        projection: ProjectionParams,
    ) -> Result<Launch> {
        let mapped = PROJECTION_MAPPED.of(call.element, device.limits().capability);
        if let Some(entry) = mapped.filter(|_| projection.n_rows > 0) {
            let entered = device.enter()?;
            let maps = [hidden.tile_map(&entered)?, call.weight.tile_map(&entered)?];
            if let [Some(&hidden_map), Some(&weight_map)] = maps {
                let first_row = call.rows.start as u32;
                let params =
                    MappedParams { hidden_map, weight_map, projection, first_row, reserved: 0 };
                return Ok(Launch::Mapped(device.kernel(entry)?, Box::new(params)));
            }
        }
        Ok(Launch::Rows(device.kernel_of(&PROJECTION, call.element)?, projection))
    }
}

impl Projecting {
    /// Of tokens at an address, aligned to 16 bytes.
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        hidden: &Arc<CudaTokens>,
        call: &ProjectionCall<'_>,
        address: u64,
    ) -> Result<Projecting> {
        check_rows("hidden", hidden)?;
        check_rows("weight", call.weight)?;
        let (rows, pitch_bytes) = (&call.rows, call.pitch_bytes());
        let params = ProjectionParams {
            tokens: address,
            tokens_pitch: pitch_bytes,
            normalize: u32::from(call.normalize),
            ..projection_of(hidden, rows.clone(), call.weight, call.bias)
        };
        let launch = Launch::new(device, call, hidden, params)?;
        let access = Access { base: address, pitch_bytes, n_centroids: 0 };
        let mask = if hidden.is_masked() { hidden.matrix().mask + rows.start as u64 } else { 0 };
        let tokens = CudaTokens::new(device, call.element, call.layout, access, mask, Vec::new())?;
        let tokens = if mask == 0 { tokens } else { tokens.with_source(hidden) };
        Ok(Projecting { launch, tokens })
    }

    /// Enqueues the launch.
    ///
    /// # Safety
    /// The address must be that of memory of the stream's device for the tokens
    /// ([`ProjectionCall::tokens_bytes`]), which nothing uses but this stream before the kernel has
    /// run; until then hidden states, weight and bias must live.
    pub(in crate::cuda) unsafe fn enqueue(
        &self,
        device: &Arc<CudaDevice>,
        stream: &mut CudaStream,
    ) -> Result<()> {
        let n_rows = match &self.launch {
            Launch::Rows(_, params) => params.n_rows,
            Launch::Mapped(_, params) => params.projection.n_rows,
        };
        if n_rows == 0 {
            return Ok(());
        }
        let entered = device.enter()?;
        stream.order(&entered)?;
        let stream = stream.raw();
        // SAFETY: the caller's promise; the matrices have the rows that the parameters say; the
        // kernel takes this struct.
        unsafe {
            match &self.launch {
                Launch::Rows(kernel, params) => {
                    let grid = n_rows.div_ceil(projection::ROWS as u32);
                    let shared_bytes = projection::SHARED_BYTES as u32;
                    start(&entered, stream, kernel, grid, shared_bytes, params)
                }
                Launch::Mapped(kernel, params) => {
                    let n_tiles = n_rows.div_ceil(projection::sm90::ROWS as u32);
                    let grid = n_tiles.min(device.limits().n_multiprocessors as u32);
                    let shared_bytes = projection::sm90::SHARED_BYTES as u32;
                    start(&entered, stream, kernel, grid, shared_bytes, params)
                }
            }
        }
    }
}

/// Memory for the tokens of slices. The device keeps it for the next call, which then need not
/// wait for the driver to allocate as much.
#[derive(Debug)]
struct SliceMemory(Option<Buffer>);

impl SliceMemory {
    fn new(device: &Arc<CudaDevice>, len_bytes: u64) -> Result<SliceMemory> {
        // Not one that is much longer, which prepared work would have for as long as it lives.
        let fits = |idle: &mut Buffer| {
            (len_bytes..=len_bytes.saturating_mul(2)).contains(&idle.len_bytes())
        };
        let idle = lock(&device.idle_slice).take_if(fits);
        let buffer = idle.map_or_else(|| Buffer::new(device, len_bytes), Ok)?;
        Ok(SliceMemory(Some(buffer)))
    }

    fn address(&self) -> u64 {
        self.0.as_ref().map_or(0, Buffer::address)
    }
}

impl Drop for SliceMemory {
    /// Calls wait for what they enqueue: nothing uses the memory any more.
    fn drop(&mut self) {
        let own = self.0.take().filter(|own| own.len_bytes() <= KEPT_BYTES_MAX);
        let Some(own) = own else { return };
        let device = own.device().clone();
        let mut idle = lock(&device.idle_slice);
        let surplus = match idle.as_ref().map_or(0, Buffer::len_bytes) < own.len_bytes() {
            true => idle.replace(own),
            false => Some(own),
        };
        // Outside the lock.
        drop(idle);
        drop(surplus);
    }
}

/// Slices of hidden states made ready to be scored: their launches, plans and memory.
///
/// Their tokens take turns in the same memory, one slice in each half, on a stream of its own:
/// where multiprocessors have no CTA of a kernel any more, the other slice's kernel begins. Slices
/// of the same problem share their plan, and all results lie in one memory.
#[derive(Debug)]
pub(crate) struct CudaSlices {
    device: Arc<CudaDevice>,
    slices: Vec<CudaSlice>,
    plans: Vec<ForwardPlan>,
    outputs: CudaOutputs,
    _tokens: SliceMemory,
    /// What the launches read: hidden states, weight and bias.
    _matrices: Vec<Arc<CudaTokens>>,
}

#[derive(Debug)]
struct CudaSlice {
    projecting: Projecting,
    /// The number of its plan.
    plan: usize,
    shape: OutputShape,
    /// Bytes of each output before its results, which `results` are.
    starts: [u64; 3],
    results: CudaOutputs,
}

impl CudaSlices {
    /// Plans the slices of hidden states; what their calls read stays with them.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        hidden: &Arc<CudaTokens>,
        calls: &[SliceCall<'_>],
        options: &ScoreOptions,
    ) -> Result<CudaSlices> {
        let most = calls.iter().map(|call| call.projection.tokens_bytes()).max();
        let turn_bytes = most.unwrap_or(0).next_multiple_of(RESULTS_ALIGN);
        let tokens = SliceMemory::new(device, turn_bytes * TURNS.min(calls.len()) as u64)?;
        let mut ends = [0; 3];
        let places = calls.iter().map(|call| {
            let (starts, shape) = (ends, OutputShape::new(&call.problem, options));
            for (end, len) in ends.iter_mut().zip(shape.lens_bytes()) {
                *end = (*end + len).next_multiple_of(RESULTS_ALIGN);
            }
            (starts, shape)
        });
        let places: Vec<_> = places.collect();
        // A call writes every output, filled or computed.
        let outputs = CudaOutputs::with_room(device, ends)?;
        let (mut slices, mut plans) = (Vec::with_capacity(calls.len()), Vec::new());
        for (i, (call, (starts, shape))) in calls.iter().zip(places).enumerate() {
            let address = tokens.address() + (i % TURNS) as u64 * turn_bytes;
            let projecting = Projecting::new(device, hidden, &call.projection, address)?;
            if call.plan == plans.len() {
                plans.push(ForwardPlan::new(device, &call.problem, call.chosen, &shape)?);
            }
            let results = outputs.piece(starts, shape.lens_bytes());
            slices.push(CudaSlice { projecting, plan: call.plan, shape, starts, results });
        }
        let of_projection = calls.first().map(|call| &call.projection);
        let weights = of_projection.into_iter().flat_map(|of| [Some(of.weight), of.bias]);
        let matrices = weights.flatten().chain([hidden]).cloned().collect();
        let device = device.clone();
        Ok(CudaSlices { device, slices, plans, outputs, _tokens: tokens, _matrices: matrices })
    }

    /// The scores of each slice. All of them are enqueued before the first is waited for.
    pub(crate) fn score(self: &mut CudaSlices, queries: &CudaTokens) -> Result<Vec<Scores>> {
        self.run(queries)?;
        let pieces = self.slices.iter().map(|slice| (slice.starts, &slice.shape));
        self.outputs.read_pieces(pieces)
    }

    /// The values of [`CudaSlices::score`]; winners stay on the device.
    pub(crate) fn score_values(
        self: &mut CudaSlices,
        queries: &CudaTokens,
    ) -> Result<Vec<Vec<f32>>> {
        self.run(queries)?;
        let all = 0..self.outputs.n_scores() as usize;
        let found = self.device.until_done(|stream| self.outputs.read_scores(stream, all))?;
        let piece = |slice: &CudaSlice| {
            let start = slice.starts[0] as usize / 4;
            copy_of(&found[start..start + slice.shape.shape.n_scores()])
        };
        self.slices.iter().map(piece).collect()
    }

    /// Address of the winners of each slice's last scores, and bytes of one.
    pub(crate) fn winners(&self) -> Vec<(u64, usize)> {
        let of = |slice: &CudaSlice| (slice.results.addresses().winners, slice.shape.winner_bytes);
        self.slices.iter().map(of).collect()
    }

    fn run(&self, queries: &CudaTokens) -> Result<()> {
        self.device.until_both_are_done(|mut streams: [_; TURNS]| {
            self.slices.iter().enumerate().try_for_each(|(i, slice)| {
                let stream = &mut *streams[i % TURNS];
                // SAFETY: a half of the memory has room for the tokens of any slice, and this
                // stream alone uses it, of this call alone until both have been waited for; so
                // long do the matrices live.
                unsafe { slice.projecting.enqueue(&self.device, stream)? };
                let plan = &self.plans[slice.plan];
                plan.enqueue(stream, queries, &slice.projecting.tokens, &slice.results)
            })
        })
    }
}
