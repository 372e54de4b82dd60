//! Host memory that a device reads without help of the host.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Device;
use crate::cuda::Pinned;
use crate::error::{Error, Result};
use crate::residual::{ArrangedTokens, ResidualTokens};
use crate::runtime::alloc::filled;
use crate::runtime::on::On;
use crate::tokens::format::{Format, Fp8};

/// Elements or codes in page-locked host memory, which a GPU copies at the full speed of its link:
/// made by [`Device::page_locked`], and filled, read and borrowed as a slice.
///
/// ```
/// use maxsim::streaming::{PageLocked, StreamOptions};
/// use maxsim::{Device, Tokens};
///
/// let device = Device::best();
/// let mut rows: PageLocked<f32> = device.page_locked(4)?;
/// rows.copy_from_slice(&[1.0, 0.0, 0.0, 2.0]);
/// let documents = Tokens::padded(&rows, 2, 1, 2)?;
/// let query = Tokens::padded(&[1.0f32, 1.0], 1, 1, 2)?;
/// let found = device.search_stream(&query, &documents, 1, &StreamOptions::default())?;
/// assert_eq!(found.rankings[0].ranked[0].id, 1);
/// # Ok::<(), maxsim::Error>(())
/// ```
pub struct PageLocked<F: Format> {
    memory: On<Vec<F::Stored>, Pinned>,
    len: usize,
}

/// Prints the length.
impl<F: Format> fmt::Debug for PageLocked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageLocked").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Device {
    /// Makes page-locked memory for `len` elements or codes, all 0: [`PageLocked`]. It takes memory
    /// from the rest of the system for as long as it lives, and some time to make. On the CPU it is
    /// memory like any other.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room.
    pub fn page_locked<F: Format>(&self, len: usize) -> Result<PageLocked<F>> {
        let memory = match &self.0 {
            On::Cpu(()) => On::Cpu(filled(len as u64, bytemuck::Zeroable::zeroed())?),
            On::Cuda(device) => {
                let len_bytes = len.checked_mul(size_of::<F::Stored>());
                let len_bytes = len_bytes
                    .ok_or(Error::HostMemory { requested_bytes: u64::MAX, source: None })?;
                On::Cuda(Pinned::new(device, len_bytes.max(1))?)
            }
        };
        Ok(PageLocked { memory, len })
    }

    /// Arranges the buckets of residual-compressed tokens for GPUs, as
    /// [`ResidualTokens::arranged`], and puts them into page-locked memory with their codes: a
    /// search of documents that pass by copies them at the full speed of the link. What
    /// [`Device::page_locked`] says of memory and time holds here; on the CPU the memory is like
    /// any other.
    ///
    /// ```
    /// use maxsim::half::f16;
    /// use maxsim::residual::{ResidualSource, ResidualTokens};
    /// use maxsim::{Device, Ranking, Result, Tokens};
    ///
    /// /// Ranks a corpus for one query after the other.
    /// fn rank(
    ///     device: &Device,
    ///     queries: &[Tokens<'_, f16>],
    ///     corpus: &ResidualTokens<'_>,
    /// ) -> Result<Vec<Ranking>> {
    ///     let (arranged, options) = (device.page_locked_residual(corpus)?, Default::default());
    ///     assert!(arranged.as_arranged().is_some() && corpus.as_arranged().is_none());
    ///     let mut rankings = Vec::new();
    ///     for query in queries {
    ///         let found = device.search_residual_stream(query, &arranged, 10, &options)?;
    ///         rankings.extend(found.rankings);
    ///     }
    ///     Ok(rankings)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room.
    pub fn page_locked_residual<'a>(
        &self,
        tokens: &'a ResidualTokens<'_>,
    ) -> Result<ArrangedTokens<'a>> {
        match &self.0 {
            On::Cpu(()) => tokens.arranged(),
            // Codes of FP8 are bytes.
            On::Cuda(_) => tokens.arranged_in(|len_bytes| self.page_locked::<Fp8>(len_bytes)),
        }
    }
}

impl<F: Format> Deref for PageLocked<F> {
    type Target = [F::Stored];

    fn deref(&self) -> &[F::Stored] {
        match &self.memory {
            On::Cpu(values) => values,
            On::Cuda(pinned) => {
                bytemuck::cast_slice(&pinned.as_slice()[..self.len * size_of::<F::Stored>()])
            }
        }
    }
}

impl<F: Format> DerefMut for PageLocked<F> {
    fn deref_mut(&mut self) -> &mut [F::Stored] {
        match &mut self.memory {
            On::Cpu(values) => values,
            On::Cuda(pinned) => bytemuck::cast_slice_mut(
                &mut pinned.as_mut_slice()[..self.len * size_of::<F::Stored>()],
            ),
        }
    }
}
