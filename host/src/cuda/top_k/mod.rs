//! The best k of each row of scores on a device: the launches that select them, and the keys.

mod groups;
mod levels;
mod read;

use std::ptr;
use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::top_k::{
    KEY_BYTES, SHORT_K_MAX, SHORT_ROW_MAX, TopKParams, capacity, shared_bytes,
};
use maxsim_kernels::table::auxiliary::{TOP_K, TOP_K_SHORT};

use self::groups::Groups;
use self::levels::{Level, Levels};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::Selection;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::launch::{RESERVED_BYTES, start};
use crate::cuda::driver::memory::{Buffer, download, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::pointer::check_foreign;
use crate::cuda::driver::staging::upload_lists;
use crate::cuda::driver::stream::CudaStream;
use crate::error::Result;
use crate::problem::outputs::Trust;
use crate::problem::top_k::{BestKeys, RankedRows};

/// A selection made ready.
#[derive(Debug)]
pub(crate) struct CudaTopKWork {
    device: Arc<CudaDevice>,
    kernel: Kernel<TopKParams>,
    /// The kernel of short rows, where they are.
    short: Option<Kernel<TopKParams>>,
    /// The search of long rows in groups, where there is one.
    groups: Option<Groups>,
    n_rows: usize,
    k: usize,
    row_documents: usize,
    levels: Levels,
    /// Starts of rows, documents, positions, and which documents are empty; 0 = none.
    lists: [u64; 4],
    _lists: Buffer,
    /// Documents whose segments and mask say which of them are empty.
    items: Option<Arc<CudaTokens>>,
}

impl CudaTopKWork {
    /// Uploads the lists and loads the kernel. `items` are the documents, where the host does not
    /// know which of them are empty.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        rows: &RankedRows,
        k: usize,
        items: Option<&Arc<CudaTokens>>,
    ) -> Result<CudaTopKWork> {
        let listed = rows.listed.as_ref();
        let lists = [
            bytes(listed.and_then(|listed| listed.starts.as_ref())),
            bytes(listed.map(|listed| &listed.documents)),
            bytes(listed.and_then(|listed| listed.positions.as_ref())),
            bytes(rows.empty.as_ref()),
        ];
        // Each score is that of a document with tokens, in order.
        let is_plain = lists.iter().all(|list| list.is_empty()) && items.is_none();
        let levels = Levels::new(rows.n_rows, rows.row_len, k, is_plain);
        let is_short = is_plain
            && (1..=SHORT_K_MAX as usize).contains(&k)
            && rows.row_len <= SHORT_ROW_MAX as usize;
        let (memory, lists) = upload_lists(device, lists)?;
        Ok(CudaTopKWork {
            device: device.clone(),
            kernel: device.kernel(TOP_K)?,
            short: is_short.then(|| device.kernel(TOP_K_SHORT)).transpose()?,
            groups: (levels.n_groups != 0).then(|| Groups::new(device)).transpose()?,
            n_rows: rows.n_rows,
            k,
            row_documents: rows.row_documents,
            levels,
            lists,
            _lists: memory,
            items: items.cloned(),
        })
    }

    /// Bytes of workspace that the work needs.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        match self.levels.between_bytes(self.k) {
            [0, 0, 0] => 0,
            [a, b, c] => RESERVED_BYTES + a + b + c,
        }
    }

    /// Enqueues the selection. Allocates nothing once the stream's workspace has grown.
    ///
    /// Scores and keys must be those of the work; `PreparedTopK` checks them.
    pub(crate) fn enqueue(
        &self,
        stream: &mut CudaStream,
        outputs: &CudaOutputs,
        best: &CudaTopK,
        call: Selection,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let workspace = match self.workspace_bytes() {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)?,
        };
        let hazards = [Some(outputs.hazard().as_ref()), Some(best.hazard.as_ref())];
        let raw = stream.raw();
        // SAFETY: scores and keys are those of the work (the caller's check), in this context; only
        // this stream uses its workspace, and the hazards order the use of the rest.
        let run = || unsafe { self.run(&entered, raw, outputs, best, call, workspace) };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// Enqueues the work's launches.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; what the call is given must be of the work and
    /// live until the launches have run. Until then nothing else may write the scores, or use the
    /// keys or the workspace, which must be as large as the work says.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        outputs: &CudaOutputs,
        best: &CudaTopK,
        call: Selection,
        workspace: u64,
    ) -> Result<()> {
        let has_chunks = self.levels.levels.first().is_some_and(|level| level.n_chunks > 1);
        let mut first_row = 0;
        // SAFETY: counts and keys are those of the rows; the caller's promise.
        unsafe {
            if has_chunks && !call.adds {
                fill(entered, best.counts, 0, self.n_rows as u64 * 16, stream)?;
            }
            while first_row < self.n_rows {
                let n_rows = self.levels.rows_at_once.min(self.n_rows - first_row);
                self.round(entered, stream, [first_row, n_rows], outputs, best, call, workspace)?;
                first_row += n_rows;
            }
        }
        Ok(())
    }

    /// Enqueues the launches for some rows.
    ///
    /// # Safety
    /// As [`CudaTopKWork::run`]; there must be these rows.
    #[expect(clippy::too_many_arguments)]
    unsafe fn round(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        [first_row, n_rows]: [usize; 2],
        outputs: &CudaOutputs,
        best: &CudaTopK,
        call: Selection,
        workspace: u64,
    ) -> Result<()> {
        let result = best.keys + (first_row * self.k) as u64 * KEY_BYTES;
        let areas = {
            let [a, b, _] = self.levels.between_bytes(self.k);
            let start = workspace + RESERVED_BYTES;
            [start, start + a, start + a + b]
        };
        let mut found = of_keys(self.k);
        if let Some(groups) = &self.groups {
            let params = self.of_scores(first_row, outputs, best, call);
            let areas = [areas[2], areas[0]];
            // SAFETY: the caller's promise; the areas are as large as the levels say.
            found =
                unsafe { groups.enqueue(entered, stream, n_rows, &self.levels, areas, &params)? };
        }
        let mut keys = 0;
        for (i, &level) in self.levels.levels.iter().enumerate() {
            let mut params = match i {
                0 => self.of_scores(first_row, outputs, best, call),
                _ => TopKParams { keys, ..self.of_keys() },
            };
            params.found = found.found;
            params.found_keys = found.found_keys;
            params.room = found.room;
            if self.groups.is_some() {
                // The search has counted.
                params.counts = 0;
            }
            let is_last = level.n_chunks == 1;
            // Scores that are in several chunks are counted by several CTAs.
            params.adds_counts = u32::from(call.adds || !is_last);
            params.out = if is_last { result } else { areas[i % 2] };
            params.best = if is_last && call.adds { result } else { 0 };
            params = TopKParams {
                row_len: level.row_len,
                chunk_len: level.chunk_len,
                n_chunks: level.n_chunks,
                ..params
            };
            let short = self.short.as_ref().filter(|_| !call.adds);
            let kernel = short.unwrap_or(&self.kernel);
            // SAFETY: the caller's promise; keys between levels have their area.
            unsafe { launch(entered, stream, kernel, level, n_rows, &params)? };
            keys = params.out;
        }
        Ok(())
    }

    /// Parameters of a launch whose entries are scores, from a row on.
    fn of_scores(
        &self,
        first_row: usize,
        outputs: &CudaOutputs,
        best: &CudaTopK,
        call: Selection,
    ) -> TopKParams {
        let [starts, documents, positions, empty] = self.lists;
        // Rows of equal lengths lie one behind the other; others have starts.
        let row_len = self.levels.levels.first().map_or(0, |level| u64::from(level.row_len));
        let n_before = if starts == 0 { first_row as u64 * row_len * 4 } else { 0 };
        let behind = |list: u64| if list == 0 { 0 } else { list + n_before };
        let items = self.items.as_ref().map(|items| items.matrix());
        TopKParams {
            scores: outputs.addresses().scores + n_before,
            positions: behind(positions),
            documents: behind(documents),
            starts: if starts == 0 { 0 } else { starts + first_row as u64 * 4 },
            empty,
            segments: items.map_or(0, |items| items.segments),
            mask: items.map_or(0, |items| items.mask),
            item_len: items.map_or(0, |items| items.item_len),
            reads_items: u32::from(items.is_some()),
            counts: best.counts + first_row as u64 * 16,
            first_id: call.first_id,
            first_document: (first_row * self.row_documents) as u32,
            row_documents: self.row_documents as u32,
            ..self.of_keys()
        }
    }

    /// Parameters of a launch whose entries are keys, and which counts nothing.
    fn of_keys(&self) -> TopKParams {
        of_keys(self.k)
    }
}

/// The bytes of a list; none where there is no list.
fn bytes(list: Option<&Vec<u32>>) -> &[u8] {
    list.map_or(&[], |list| bytemuck::cast_slice(list))
}

/// Parameters of a selection of the best k among keys.
fn of_keys(k: usize) -> TopKParams {
    TopKParams {
        scores: 0,
        keys: 0,
        positions: 0,
        documents: 0,
        starts: 0,
        empty: 0,
        segments: 0,
        mask: 0,
        best: 0,
        out: 0,
        counts: 0,
        key_counts: 0,
        row_len: 0,
        chunk_len: 1,
        n_chunks: 1,
        k: k as u32,
        capacity: capacity(k as u32),
        first_id: 0,
        first_document: 0,
        row_documents: 0,
        item_len: 0,
        reads_items: 0,
        adds_counts: 0,
        found: 0,
        found_keys: 0,
        room: 0,
    }
}

/// Enqueues a CTA for each chunk of each row.
///
/// # Safety
/// `params` must describe a launch of so many rows.
unsafe fn launch(
    entered: &Entered<'_>,
    stream: CUstream,
    kernel: &Kernel<TopKParams>,
    level: Level,
    n_rows: usize,
    params: &TopKParams,
) -> Result<()> {
    match n_rows as u32 * level.n_chunks {
        0 => Ok(()),
        // SAFETY: the caller's promise.
        grid => unsafe {
            start(entered, stream, kernel, grid, shared_bytes(params.capacity), params)
        },
    }
}

/// The keys of the best k of each row, `[n_rows, k]`, and numbers of NaN and of empty documents
/// `[n_rows, 2]`, all of 8 bytes.
#[derive(Debug)]
pub(crate) struct CudaTopK {
    device: Arc<CudaDevice>,
    keys: u64,
    counts: u64,
    n_rows: usize,
    k: usize,
    hazard: Arc<Hazard>,
    /// Memory that the addresses point to, unless it is foreign.
    _owned: Option<Buffer>,
}

impl CudaTopK {
    /// New memory: nothing was found.
    pub(crate) fn new(device: &Arc<CudaDevice>, n_rows: usize, k: usize) -> Result<CudaTopK> {
        let best = CudaTopK::unfilled(device, n_rows, k)?;
        let len_bytes = CudaTopK::lens_bytes(n_rows, k).iter().sum();
        let entered = device.enter()?;
        // SAFETY: the memory was just made, with this length, counts first; null is the default
        // stream.
        unsafe {
            fill(&entered, best.counts, 0, len_bytes, ptr::null_mut())?;
            best.hazard.record(&entered)?;
        }
        drop(entered);
        Ok(best)
    }

    /// New memory with anything in it, to be written before it is read.
    pub(crate) fn unfilled(device: &Arc<CudaDevice>, n_rows: usize, k: usize) -> Result<CudaTopK> {
        let [keys_bytes, counts_bytes] = CudaTopK::lens_bytes(n_rows, k);
        let owned = Buffer::new(device, keys_bytes + counts_bytes)?;
        let (keys, counts) = (owned.address() + counts_bytes, owned.address());
        let (device, hazard) = (device.clone(), Arc::new(Hazard::new(device)?));
        Ok(CudaTopK { device, keys, counts, n_rows, k, hazard, _owned: Some(owned) })
    }

    /// Foreign memory, checked. Its contents stay as they are until the first call.
    ///
    /// # Safety
    /// As [`crate::stream::DeviceTopK::from_raw_parts`].
    pub(crate) unsafe fn from_raw_parts(
        device: &Arc<CudaDevice>,
        [n_rows, k]: [usize; 2],
        [keys, counts]: [u64; 2],
        trust: Trust,
    ) -> Result<CudaTopK> {
        let [keys_bytes, counts_bytes] = CudaTopK::lens_bytes(n_rows, k);
        check_foreign(device, keys, keys_bytes, 8, trust)?;
        check_foreign(device, counts, counts_bytes, 8, trust)?;
        let hazard = Arc::new(Hazard::of_foreign(device, trust)?);
        Ok(CudaTopK { device: device.clone(), keys, counts, n_rows, k, hazard, _owned: None })
    }

    /// Bytes of keys and of counts.
    fn lens_bytes(n_rows: usize, k: usize) -> [u64; 2] {
        [(n_rows as u64).saturating_mul(k as u64).saturating_mul(KEY_BYTES), n_rows as u64 * 16]
    }

    /// Addresses of keys and of counts.
    pub(crate) fn addresses(&self) -> [u64; 2] {
        [self.keys, self.counts]
    }

    /// Number of rows, and keys of each.
    pub(in crate::cuda) fn shape(&self) -> [usize; 2] {
        [self.n_rows, self.k]
    }

    pub(super) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Waits for the last work and copies keys and counts.
    pub(crate) fn read(&self) -> Result<BestKeys> {
        let _last = self.hazard.wait(&self.device)?;
        let mut best = BestKeys::new(self.n_rows, self.k)?;
        let entered = self.device.enter()?;
        // SAFETY: there are as many keys and counts as rows say.
        unsafe {
            download(&entered, self.keys, bytemuck::cast_slice_mut(&mut best.keys))?;
            download(&entered, self.counts, bytemuck::cast_slice_mut(&mut best.counts))?;
        }
        Ok(best)
    }

    /// Enqueues the merging of what `other` has, of as many rows and the same k.
    pub(crate) fn enqueue_merge(&self, stream: &mut CudaStream, other: &CudaTopK) -> Result<()> {
        let kernel = self.device.kernel(TOP_K)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let hazards = [Some(other.hazard.as_ref()), Some(self.hazard.as_ref())];
        let raw = stream.raw();
        // SAFETY: both are of as many rows (the caller's check), in this context, and the hazards
        // order their use.
        let run = || unsafe { self.run_merge(&entered, raw, &kernel, other) };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// Enqueues the launch that merges.
    ///
    /// # Safety
    /// As [`CudaTopKWork::run`]; `other` must be of as many rows and the same k, and not the same.
    pub(super) unsafe fn run_merge(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        kernel: &Kernel<TopKParams>,
        other: &CudaTopK,
    ) -> Result<()> {
        let k = self.k as u32;
        let level = Level { row_len: k, chunk_len: k.max(1), n_chunks: 1 };
        let params = TopKParams {
            keys: other.keys,
            best: self.keys,
            out: self.keys,
            counts: self.counts,
            key_counts: other.counts,
            row_len: level.row_len,
            chunk_len: level.chunk_len,
            adds_counts: 1,
            ..of_keys(self.k)
        };
        // SAFETY: the caller's promise.
        unsafe { launch(entered, stream, kernel, level, self.n_rows, &params) }
    }
}
