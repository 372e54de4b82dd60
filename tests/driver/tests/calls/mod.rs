//! Calls of memory that another library would have, with new handles every time.

mod compressed;

use std::sync::Arc;

use half::f16;
use maxsim::format::{Format, RawIndices, RawItems, RawItemsOut, RawRows, ScorableWith};
use maxsim::stream::{DeviceScores, DeviceTopK, PreparedScore, PreparedTopK, Queue, Stream};
use maxsim::training::{
    BackwardOptions, DeviceGradScores, DeviceGradients, GradientType, PreparedBackward,
};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout};

/// Where the stand-in's memory is said to be: nothing reads it.
const FIRST_ADDRESS: u64 = 0x10_0000_0000;

/// Bytes between the addresses of two matrices.
const STEP_BYTES: u64 = 1 << 30;

/// A caller with a stream of its own.
pub struct Call<'a> {
    device: &'a Device,
    pairing: Pairing,
    options: ScoreOptions,
    stream: Stream,
    /// Memory that calls are given to work with.
    lent: Option<(u64, u64)>,
    address: u64,
}

/// Enqueues a call that works in memory that it is given, where it is.
fn on(
    stream: &mut Stream,
    lent: Option<(u64, u64)>,
    call: impl FnOnce(&mut Stream) -> maxsim::Result<()>,
) -> maxsim::Result<()> {
    match lent {
        // SAFETY: nothing reads or writes the memory.
        Some(workspace) => unsafe { stream.with_workspace(workspace, call) },
        None => call(stream),
    }
}

/// Handles and work that are kept.
pub struct Kept {
    queries: DeviceTokens<f16>,
    documents: DeviceTokens<f16>,
    work: PreparedScore,
}

impl Kept {
    pub fn new(
        device: &Device,
        layouts: &[Arc<TokenLayout>; 2],
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Kept {
        let address = FIRST_ADDRESS;
        let [queries, documents] = layouts.each_ref().map(|layout| view(device, layout, address));
        let work = device.prepare(&queries, &documents, pairing, options).expect("work");
        Kept { queries, documents, work }
    }

    /// The selection of the best k documents of each query.
    pub fn top_k(&self, k: usize) -> PreparedTopK {
        self.work.device().prepare_top_k(&self.work, &self.documents, k).expect("work")
    }
}

fn view(device: &Device, layout: &Arc<TokenLayout>, address: u64) -> DeviceTokens<f16> {
    let rows = RawRows::new(address, layout.dim() as u64 * 2);
    // SAFETY: nothing reads the memory.
    unsafe { DeviceTokens::from_raw_unchecked(device, rows, layout.clone()) }.expect("a view")
}

impl<'a> Call<'a> {
    pub fn new(device: &'a Device, pairing: Pairing, options: ScoreOptions) -> Call<'a> {
        let own = device.stream().expect("a stream");
        let handle = own.handle().expect("a handle");
        std::mem::forget(own);
        // SAFETY: the stream is never destroyed.
        let stream = unsafe { Stream::from_raw(device, handle) }.expect("a stream");
        Call { device, pairing, options, stream, lent: None, address: FIRST_ADDRESS }
    }

    /// A caller on the same stream, with another value for it.
    pub fn again(&self) -> Call<'a> {
        let Call { device, pairing, options, address, .. } = self;
        // SAFETY: the stream is never destroyed.
        let stream = unsafe { Stream::from_raw(device, self.stream()) }.expect("a stream");
        Call {
            device,
            pairing: pairing.clone(),
            options: options.clone(),
            stream,
            lent: None,
            address: *address,
        }
    }

    pub fn stream(&self) -> u64 {
        self.stream.handle().expect("a handle")
    }

    /// Bytes of workspace that the stream has, and whether it is captured.
    pub fn state(&self) -> (u64, bool) {
        (self.stream.workspace_bytes(), self.stream.is_captured().expect("an answer"))
    }

    /// Gives each call from now on memory to work with, and returns its address.
    pub fn lend(&mut self, len_bytes: u64) -> u64 {
        let address = self.new_address();
        self.lent = Some((address, len_bytes));
        address
    }

    /// The address of memory that no call before was given.
    fn new_address(&mut self) -> u64 {
        self.address += STEP_BYTES;
        self.address
    }

    fn views(&mut self, layouts: &[Arc<TokenLayout>; 2]) -> [DeviceTokens<f16>; 2] {
        layouts.each_ref().map(|layout| view(self.device, layout, self.new_address()))
    }

    /// Scores views that are dropped at once.
    pub fn forward(&mut self, layouts: &[Arc<TokenLayout>; 2]) {
        let [queries, documents] = self.views(layouts);
        self.score::<f16, f16>(&queries, &documents);
    }

    /// Scores documents whose rows the device finds, from lists that it alone knows.
    pub fn forward_unread(&mut self, queries: &Arc<TokenLayout>, documents: &Arc<TokenLayout>) {
        let (segments, address) = (self.find(documents), self.new_address());
        let queries = view(self.device, queries, self.new_address());
        let rows = RawRows::new(address, documents.dim() as u64 * 2).segments(segments);
        // SAFETY: nothing reads or writes the memory.
        let documents =
            unsafe { DeviceTokens::from_raw_unchecked(self.device, rows, documents.clone()) };
        self.score::<f16, f16>(&queries, &documents.expect("a view"));
    }

    /// Gradients of some sides, of documents whose rows the device alone knows.
    pub fn backward_of_unread(
        &mut self,
        [queries, documents]: &[Arc<TokenLayout>; 2],
        options: &BackwardOptions,
    ) -> maxsim::Result<PreparedBackward> {
        let queries = view(self.device, queries, self.new_address());
        let rows = RawRows::new(self.new_address(), documents.dim() as u64 * 2).segments(64);
        // SAFETY: no call is made.
        let documents: DeviceTokens<f16> =
            unsafe { DeviceTokens::from_raw_unchecked(self.device, rows, documents.clone())? };
        let with_winners = self.options.clone().winners(true);
        let work = self.device.prepare(&queries, &documents, &self.pairing, &with_winners)?;
        self.device.prepare_backward(&work, options, GradientType::Tokens)
    }

    /// Enqueues what finds items that the device alone knows, and gives the address of segments.
    fn find(&mut self, layout: &TokenLayout) -> u64 {
        let [offsets, segments, invalid] = [(); 3].map(|()| self.new_address());
        let offsets = RawIndices::I64(offsets);
        let items = RawItems::packed(layout.n_items(), offsets, layout.rows(), layout.max_len());
        // SAFETY: nothing reads or writes the memory.
        let found = unsafe {
            let out = RawItemsOut::new(invalid).segments(segments);
            self.stream.write_segments(&items, out)
        };
        found.expect("a call");
        segments
    }

    fn score<Q: ScorableWith<D>, D: Format>(
        &mut self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
    ) {
        let work = self.device.prepare_cached(queries, documents, &self.pairing, &self.options);
        let (work, address) = (work.expect("work"), self.new_address());
        // SAFETY: nothing writes to the memory.
        let scores = unsafe { DeviceScores::from_raw_unchecked(&work, address, None, None) };
        let mut scores = scores.expect("scores");
        self.stream.score_into(queries, documents, &work, &mut scores).expect("a call");
    }

    /// Bytes of workspace of [`Call::train`].
    pub fn workspace_bytes(&mut self, layouts: &[Arc<TokenLayout>; 2]) -> u64 {
        let [queries, documents] = self.views(layouts);
        let options = self.options.clone().winners(true);
        let work = self.device.prepare_cached(&queries, &documents, &self.pairing, &options);
        let work = work.expect("work");
        let (options, kind) = (BackwardOptions::default(), GradientType::Tokens);
        let backward = self.device.prepare_backward_cached(&work, &options, kind).expect("work");
        work.workspace_bytes().max(backward.workspace_bytes_of(false))
    }

    /// Gives the stream memory of the caller to work with, and returns its address.
    pub fn set_workspace(&mut self, len_bytes: u64) -> u64 {
        let address = self.new_address();
        // SAFETY: nothing reads or writes the memory.
        unsafe { self.stream.set_workspace(address, len_bytes) }.expect("an address");
        address
    }

    /// Scores views with winners, and goes back through the same memory with other handles.
    pub fn train(&mut self, layouts: &[Arc<TokenLayout>; 2]) {
        self.try_train(layouts).expect("calls");
    }

    /// As [`Call::train`].
    pub fn try_train(&mut self, layouts: &[Arc<TokenLayout>; 2]) -> maxsim::Result<()> {
        let options = self.options.clone().winners(true);
        let [scores_at, winners_at, grad_scores_at] = [(); 3].map(|()| self.new_address());
        for is_backward in [false, true] {
            let [queries, documents] = self.views(layouts);
            let work = self.device.prepare_cached(&queries, &documents, &self.pairing, &options);
            let work = work.expect("work");
            // SAFETY: nothing writes to the memory, here and below.
            let scores = unsafe {
                DeviceScores::from_raw_unchecked(&work, scores_at, Some(winners_at), None)
            };
            let mut scores = scores.expect("scores");
            if !is_backward {
                on(&mut self.stream, self.lent, |stream| {
                    stream.score_into(&queries, &documents, &work, &mut scores)
                })?;
                continue;
            }
            let (options, kind) = (BackwardOptions::default(), GradientType::Tokens);
            let backward = self.device.prepare_backward_cached(&work, &options, kind);
            let (backward, addresses) =
                (backward.expect("work"), [(); 2].map(|()| self.new_address()));
            // SAFETY: as above.
            let (grad_scores, gradients) = unsafe {
                let [of_queries, of_documents] = addresses;
                (
                    DeviceGradScores::from_raw_unchecked(&backward, grad_scores_at),
                    DeviceGradients::from_raw_unchecked(&backward, of_queries, of_documents, None),
                )
            };
            let (grad_scores, mut gradients) = (grad_scores.expect("g"), gradients.expect("room"));
            let scores = scores.with_grad(&grad_scores);
            on(&mut self.stream, self.lent, |stream| {
                stream.backward(&queries, &documents, &backward, scores, &mut gradients)
            })?;
        }
        Ok(())
    }

    /// Scores kept handles with kept work, and selects the best of each query, into new results.
    pub fn ranked(&mut self, kept: &Kept, top_k: &PreparedTopK) {
        let scores = self.prepared(kept);
        let [keys, counts] = [(); 2].map(|()| self.new_address());
        // SAFETY: nothing writes to the memory.
        let best = unsafe { DeviceTopK::from_raw_unchecked(top_k, keys, counts) };
        self.stream.top_k_into(&scores, top_k, &mut best.expect("room")).expect("a call");
    }

    /// Scores kept handles with kept work, into new results.
    pub fn prepared(&mut self, kept: &Kept) -> DeviceScores {
        let Kept { queries, documents, work } = kept;
        // SAFETY: nothing writes to the memory.
        let scores =
            unsafe { DeviceScores::from_raw_unchecked(work, self.new_address(), None, None) };
        let mut scores = scores.expect("scores");
        self.stream.score_into(queries, documents, work, &mut scores).expect("a call");
        scores
    }
}
