//! Reads the best keys of rows behind the work of a stream.

use super::CudaTopK;
use crate::cuda::driver::stream::CudaStream;
use crate::error::Result;
use crate::problem::top_k::BestKeys;

impl CudaTopK {
    /// Copies keys and counts behind a stream's work and whatever writes them, with one wait.
    pub(crate) fn read_on(&self, stream: &mut CudaStream) -> Result<BestKeys> {
        let mut best = BestKeys::new(self.n_rows, self.k)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let _last = self.hazard.begin(&entered, stream, order)?;
        let keys = (self.keys, bytemuck::cast_slice_mut(&mut best.keys));
        let counts = (self.counts, bytemuck::cast_slice_mut(&mut best.counts));
        // SAFETY: there are as many keys and counts as rows say, and the hazard, which is held,
        // orders their writes before.
        unsafe { stream.read(&entered, [keys, counts])? };
        Ok(best)
    }
}
