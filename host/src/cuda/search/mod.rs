//! Searches that a device drives: what stays there of documents' bounds, room for what one search
//! finds, and the launches between its scores.

use std::sync::Arc;

use maxsim_kernels::abi::params::search::{
    CANDIDATES_MAX, DOCUMENTS_MAX, ROOM_MAX, ROW_BYTES, SHARED_BYTES, SearchParams,
};
use maxsim_kernels::table::auxiliary::{SEARCH_CANDIDATES, SEARCH_REACHING};

use super::SearchCall;
use super::buffers::outputs::CudaOutputs;
use super::driver::context::CudaDevice;
use super::driver::hazards::Hazard;
use super::driver::launch::start;
use super::driver::memory::Buffer;
use super::driver::module::Kernel;
use super::driver::staging::upload_lists;
use super::driver::stream::CudaStream;
use super::top_k::CudaTopK;
use crate::error::{Error, Result};
use crate::runtime::alloc::filled;

/// The terms of documents' bounds, each in a column.
#[derive(Debug)]
pub(crate) struct CudaTerms {
    columns: [u64; 3],
    n_documents: usize,
    _owned: Buffer,
}

impl CudaTerms {
    /// Copies columns of as many documents at least. No call waits for it.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        n_documents: usize,
        columns: [&[f32]; 3],
    ) -> Result<CudaTerms> {
        if columns.iter().any(|column| column.len() < n_documents) {
            return Err(Error::Shape {
                argument: "columns",
                expected: format!("terms of {n_documents} documents"),
                found: format!("{:?}", columns.map(<[f32]>::len)),
            });
        }
        let (owned, columns) = upload_lists(device, columns.map(bytemuck::cast_slice))?;
        Ok(CudaTerms { columns, n_documents, _owned: owned })
    }
}

/// Room for what one search finds, and the kernels that find it.
#[derive(Debug)]
pub(crate) struct CudaSearch {
    device: Arc<CudaDevice>,
    candidates: Kernel<SearchParams>,
    reaching: Kernel<SearchParams>,
    sizes: [usize; 3],
    /// See [`SearchParams::rows`].
    rows: Buffer,
    /// Segments of candidates, and of what is found.
    items: Buffer,
}

impl CudaSearch {
    /// Makes room for the best of a selection, for items of these, and for so many documents that
    /// are found beside them.
    pub(crate) fn new(device: &Arc<CudaDevice>, sizes: [usize; 3]) -> Result<CudaSearch> {
        let [n_candidates, n_items, room] = sizes;
        let most = [CANDIDATES_MAX, CANDIDATES_MAX * 2, ROOM_MAX].map(|most| most as usize);
        if sizes.iter().zip(most).any(|(&size, most)| size > most) || n_items < n_candidates {
            return Err(Error::Shape {
                argument: "sizes",
                expected: format!("up to {most:?}, and an item for each candidate"),
                found: format!("{sizes:?}"),
            });
        }
        let n_rows = (1 + n_candidates + room) as u64;
        Ok(CudaSearch {
            device: device.clone(),
            candidates: device.kernel(SEARCH_CANDIDATES)?,
            reaching: device.kernel(SEARCH_REACHING)?,
            sizes,
            // Kernels write what is read of both: nothing waits for zeros.
            rows: Buffer::new(device, n_rows * ROW_BYTES)?,
            items: Buffer::new(device, (n_items + room) as u64 * 8)?,
        })
    }

    /// What there is room for; see [`CudaSearch::new`].
    pub(crate) fn sizes(&self) -> [usize; 3] {
        self.sizes
    }

    /// Addresses of the segments of candidates, and of what is found.
    pub(crate) fn items(&self) -> [u64; 2] {
        let start = self.items.address();
        [start, start + self.sizes[1] as u64 * 8]
    }

    /// Enqueues what makes items of the best of a selection, the candidates.
    ///
    /// Terms and documents must be of as many as there are scores (the caller's check).
    pub(crate) fn enqueue_candidates(
        &mut self,
        stream: &mut CudaStream,
        call: &SearchCall<'_>,
        best: &CudaTopK,
        terms: &CudaTerms,
    ) -> Result<()> {
        let params = self.params(call, best, terms, None)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let raw = stream.raw();
        // SAFETY: addresses are of what has the sizes that the parameters say, in this context, and
        // of what is the call's alone; the hazard orders the writes of the keys before.
        let run = || unsafe { start(&entered, raw, &self.candidates, 1, 0, &params) };
        best.hazard().enqueue(&entered, stream, order, run)
    }

    /// Enqueues what finds the documents that reach the k-th of the candidates' scores, `rescored`.
    pub(crate) fn enqueue_reaching(
        &mut self,
        stream: &mut CudaStream,
        call: &SearchCall<'_>,
        best: &CudaTopK,
        terms: &CudaTerms,
        rescored: &CudaOutputs,
    ) -> Result<()> {
        let params = self.params(call, best, terms, Some(rescored))?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let raw = stream.raw();
        let shared_bytes = SHARED_BYTES as u32;
        // SAFETY: as above; the hazards order the writes of scores and keys before.
        let run = || unsafe { start(&entered, raw, &self.reaching, 1, shared_bytes, &params) };
        let used = [best.hazard(), call.scores.hazard(), rescored.hazard()];
        Hazard::enqueue_all(used.map(|hazard| Some(hazard.as_ref())), &entered, stream, order, run)
    }

    /// Copies the rows behind the stream's work, and the scores of what was found, with one wait.
    pub(crate) fn read(
        &mut self,
        stream: &mut CudaStream,
        rescored: Option<&CudaOutputs>,
    ) -> Result<(Vec<[u32; 4]>, Vec<f32>)> {
        let [n_candidates, _, room] = self.sizes;
        let mut rows = filled((1 + n_candidates + room) as u64, [0u32; 4])?;
        let mut scores = filled(rescored.map_or(0, |_| room as u64), 0.0f32)?;
        if let Some(rescored) = rescored {
            check_room("rescored", rescored, room)?;
        }
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let _last = match rescored {
            Some(rescored) => Some(rescored.hazard().begin(&entered, stream, order)?),
            None => None,
        };
        let from = rescored.map_or(0, |outputs| outputs.addresses().scores);
        let copies = [
            (self.rows.address(), bytemuck::cast_slice_mut(&mut rows)),
            (from, bytemuck::cast_slice_mut(&mut scores)),
        ];
        // SAFETY: there are as many rows and scores, as was just checked; rows are written by this
        // stream's work, and the hazard, which is held, orders the writes of scores before.
        unsafe { stream.read(&entered, copies)? };
        Ok((rows, scores))
    }

    /// The parameters of both kernels, checked.
    fn params(
        &self,
        call: &SearchCall<'_>,
        best: &CudaTopK,
        terms: &CudaTerms,
        rescored: Option<&CudaOutputs>,
    ) -> Result<SearchParams> {
        let [n_candidates, n_items, room] = self.sizes;
        let n_documents = terms.n_documents;
        check_room("scores", call.scores, n_documents)?;
        if let Some(rescored) = rescored {
            check_room("rescored", rescored, n_candidates)?;
        }
        let is_of_sizes = n_documents <= DOCUMENTS_MAX as usize
            && best.shape() == [1, n_candidates]
            && (1..=n_candidates).contains(&call.k);
        if !is_of_sizes {
            return Err(Error::Shape {
                argument: "documents",
                expected: format!("up to {DOCUMENTS_MAX}, of which {n_candidates} are selected"),
                found: format!("{n_documents}, {:?} selected, k = {}", best.shape(), call.k),
            });
        }
        let documents = call.documents.matrix();
        let [keys, counts] = best.addresses();
        let [candidate_items, found_items] = self.items();
        Ok(SearchParams {
            keys,
            counts,
            scores: call.scores.addresses().scores,
            terms: terms.columns,
            segments: documents.segments,
            candidate_items,
            candidate_scores: rescored.map_or(0, |outputs| outputs.addresses().scores),
            found_items: if call.is_exact { found_items } else { 0 },
            rows: self.rows.address(),
            factors: call.factors,
            largest: call.largest,
            n_documents: n_documents as u32,
            n_candidates: n_candidates as u32,
            n_candidate_items: n_items as u32,
            k: call.k as u32,
            room: room as u32,
            item_len: documents.item_len,
            reserved: 0,
        })
    }
}

/// Refuses outputs with fewer scores than are read.
fn check_room(argument: &'static str, outputs: &CudaOutputs, n_scores: usize) -> Result<()> {
    match outputs.n_scores() >= n_scores as u64 {
        true => Ok(()),
        false => Err(Error::Shape {
            argument,
            expected: format!("{n_scores} scores"),
            found: format!("{}", outputs.n_scores()),
        }),
    }
}
