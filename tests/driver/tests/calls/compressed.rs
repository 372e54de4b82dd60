//! Calls of compressed tokens.

use std::sync::Arc;

use half::f16;
use maxsim::format::{
    Quantized, RawCodes, RawResiduals, RawRows, RawScaleWords, Residual, ScaleType, ScorableWith,
};
use maxsim::stream::{DeviceScores, Queue};
use maxsim::training::{BackwardOptions, DeviceGradScores, DeviceGradients, GradientType};
use maxsim::{DeviceTokens, TokenLayout};

use super::{Call, view};

impl Call<'_> {
    /// A view of codes and scales in new memory.
    fn codes<F: Quantized>(&mut self, layout: &Arc<TokenLayout>) -> DeviceTokens<F> {
        let segments = layout.is_unread().then(|| self.find(layout));
        let rows = RawRows::new(self.new_address(), layout.dim() as u64).segments(segments);
        let scales = RawScaleWords::new(self.new_address());
        let layout = layout.clone();
        // SAFETY: nothing reads the memory.
        let codes =
            unsafe { DeviceTokens::from_raw_codes_unchecked(self.device, rows, scales, layout) };
        codes.expect("a view")
    }

    /// Scores views of codes that are dropped at once.
    pub fn of_codes<F: Quantized + ScorableWith<F>>(&mut self, layouts: &[Arc<TokenLayout>; 2]) {
        let [queries, documents] = layouts.each_ref().map(|layout| self.codes::<F>(layout));
        self.score(&queries, &documents);
    }

    /// Scores documents of an index as other items, which the device alone knows.
    pub fn of_index(
        &mut self,
        queries: &Arc<TokenLayout>,
        index: &DeviceTokens<Residual<f16>>,
        layout: &Arc<TokenLayout>,
    ) {
        let (segments, queries) =
            (self.find(layout), view(self.device, queries, self.new_address()));
        // SAFETY: nothing reads the memory.
        let some = unsafe { index.with_raw_segments(segments, layout.clone()) };
        self.score(&queries, &some.expect("a view"));
    }

    /// Compresses tokens into new memory.
    pub fn quantize<F: Quantized>(&mut self, layout: &Arc<TokenLayout>, scales: ScaleType) {
        let tokens: DeviceTokens<f16> = view(self.device, layout, self.new_address());
        let words = RawScaleWords::new(self.new_address());
        let to = RawCodes::new(self.new_address(), words);
        // SAFETY: nothing writes to the memory.
        unsafe { self.stream.quantize_into::<f16, F>(&tokens, scales, to) }.expect("a call");
    }

    /// A view of residual-compressed documents in new memory.
    fn residuals(&mut self, nbits: u32, layout: &Arc<TokenLayout>) -> DeviceTokens<Residual<f16>> {
        let [codes, residuals, centroids, weights, norms] = [(); 5].map(|()| self.new_address());
        let raw = RawResiduals::new(nbits, [codes, residuals], (centroids, 1 << 10), weights);
        let segments = layout.is_unread().then(|| self.find(layout));
        // SAFETY: nothing reads the memory, here and below.
        let view = unsafe {
            let raw = raw.norms(norms).segments(segments);
            DeviceTokens::from_raw_residuals(self.device, raw, layout.clone())
        };
        let view = view.expect("a view");
        // SAFETY: as above.
        unsafe { self.stream.find_residual_norms(&view) }.expect("a call");
        view
    }

    /// Scores residual-compressed documents alone.
    pub fn of_residual_scores(&mut self, nbits: u32, [queries, documents]: &[Arc<TokenLayout>; 2]) {
        let queries = view(self.device, queries, self.new_address());
        let documents = self.residuals(nbits, documents);
        self.score(&queries, &documents);
    }

    /// Scores residual-compressed documents with winners, and goes back to the queries with other
    /// handles.
    pub fn of_residuals(&mut self, nbits: u32, layouts: &[Arc<TokenLayout>; 2]) {
        let [of_queries, of_documents] = layouts;
        let options = self.options.clone().winners(true);
        let [scores_at, winners_at, grad_scores_at] = [(); 3].map(|()| self.new_address());
        for is_backward in [false, true] {
            let queries = view(self.device, of_queries, self.new_address());
            let documents = self.residuals(nbits, of_documents);
            let work = self.device.prepare_cached(&queries, &documents, &self.pairing, &options);
            let work = work.expect("work");
            // SAFETY: nothing writes to the memory, here and below.
            let scores = unsafe {
                DeviceScores::from_raw_unchecked(&work, scores_at, Some(winners_at), None)
            };
            let mut scores = scores.expect("scores");
            if !is_backward {
                let enqueued = self.stream.score_into(&queries, &documents, &work, &mut scores);
                enqueued.expect("a call");
                continue;
            }
            let (options, kind) = (BackwardOptions::default(), GradientType::F32);
            let backward = self.device.prepare_backward_cached(&work, &options, kind);
            let (backward, address) = (backward.expect("work"), self.new_address());
            // SAFETY: as above.
            let (grad_scores, gradients) = unsafe {
                (
                    DeviceGradScores::from_raw_unchecked(&backward, grad_scores_at),
                    DeviceGradients::from_raw_unchecked(&backward, address, 0, None),
                )
            };
            let (grad_scores, mut to) = (grad_scores.expect("g"), gradients.expect("room"));
            let scores = scores.with_grad(&grad_scores);
            let enqueued =
                self.stream.backward_residual(&queries, &documents, &backward, scores, &mut to);
            enqueued.expect("a call");
        }
    }
}
