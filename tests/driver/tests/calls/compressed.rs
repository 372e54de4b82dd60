//! Calls of compressed tokens.

use std::sync::Arc;

use half::f16;
use maxsim::format::{Quantized, RawCodes, RawRows, RawScaleWords, ScaleType, ScorableWith};
use maxsim::stream::{DeviceScores, Queue};
use maxsim::{DeviceTokens, TokenLayout};

use super::{Call, view};

impl Call<'_> {
    /// A view of codes and scales in new memory.
    fn codes<F: Quantized>(&mut self, layout: &Arc<TokenLayout>) -> DeviceTokens<F> {
        let rows = RawRows::new(self.new_address(), layout.dim() as u64);
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
        let work = self.device.prepare_cached(&queries, &documents, &self.pairing, &self.options);
        let (work, address) = (work.expect("work"), self.new_address());
        // SAFETY: nothing writes to the memory.
        let scores = unsafe { DeviceScores::from_raw_unchecked(&work, address, None, None) };
        let mut scores = scores.expect("scores");
        self.stream.score_into(&queries, &documents, &work, &mut scores).expect("a call");
    }

    /// Compresses tokens into new memory.
    pub fn quantize<F: Quantized>(&mut self, layout: &Arc<TokenLayout>, scales: ScaleType) {
        let tokens: DeviceTokens<f16> = view(self.device, layout, self.new_address());
        let words = RawScaleWords::new(self.new_address());
        let to = RawCodes::new(self.new_address(), words);
        // SAFETY: nothing writes to the memory.
        unsafe { self.stream.quantize_into::<f16, F>(&tokens, scales, to) }.expect("a call");
    }
}
