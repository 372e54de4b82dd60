//! Gradients that were prepared of a work, kept beside it.

use std::sync::{Arc, Mutex};

use super::prepared::{GradientType, PreparedBackward};
use super::{BackwardOptions, BackwardStrategy};
use crate::device::Device;
use crate::error::Result;
use crate::ops::score::prepared::PreparedScore;
use crate::runtime::swap::lock;

/// Most gradients that are kept of one work.
const KEPT_MAX: usize = 4;

/// Gradients of a work by what they were prepared with, the newest last.
#[derive(Debug, Default)]
pub(crate) struct BackwardCache(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    options: BackwardOptions,
    gradients: GradientType,
    backward: Arc<PreparedBackward>,
}

impl Device {
    /// As [`Device::prepare_backward`], and kept with the work: the next call with these options
    /// finds it again. What [`BackwardStrategy::Recompute`] needs, which has memory for winners, is
    /// not kept.
    ///
    /// [`BackwardStrategy::Recompute`]: crate::training::BackwardStrategy::Recompute
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::training::{BackwardOptions, GradientType};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
    /// let options = ScoreOptions::default().winners(true);
    /// let work = device.prepare_cached(&tokens, &tokens, &Pairing::cross(), &options)?;
    /// let options = BackwardOptions::default();
    /// let backward = device.prepare_backward_cached(&work, &options, GradientType::F32)?;
    /// let again = device.prepare_backward_cached(&work, &options, GradientType::F32)?;
    /// assert!(Arc::ptr_eq(&backward, &again));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::prepare_backward`].
    pub fn prepare_backward_cached(
        &self,
        work: &PreparedScore,
        options: &BackwardOptions,
        gradients: GradientType,
    ) -> Result<Arc<PreparedBackward>> {
        self.check_same("work", &work.device)?;
        let BackwardCache(cache) = &work.backward;
        let is_it = |kept: &&Kept| kept.options == *options && kept.gradients == gradients;
        if let Some(kept) = lock(cache).iter().find(is_it) {
            return Ok(kept.backward.clone());
        }
        let backward = Arc::new(self.prepare_backward(work, options, gradients)?);
        if options.strategy == BackwardStrategy::Recompute {
            return Ok(backward);
        }
        let kept = Kept { options: options.clone(), gradients, backward: backward.clone() };
        let mut cache = lock(cache);
        // The oldest is dropped outside the lock.
        let oldest = (cache.len() == KEPT_MAX).then(|| cache.remove(0));
        cache.push(kept);
        drop(cache);
        drop(oldest);
        Ok(backward)
    }
}
