//! Scores, winners and token scores in device memory.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::memory::{Buffer, download, fill};
use crate::cuda::driver::pointer::check_foreign;
use crate::cuda::driver::stream::CudaStream;
use crate::cuda::driver::transfer::upload;
use crate::error::{Error, Result};
use crate::problem::outputs::OutputAddresses;
use crate::problem::outputs::OutputShape;
use crate::problem::outputs::Trust;
use crate::problem::scores::Scores;
use crate::runtime::alloc::filled;

/// Output memory, and the last work that writes it.
#[derive(Debug)]
pub(crate) struct CudaOutputs {
    device: Arc<CudaDevice>,
    addresses: OutputAddresses,
    /// Bytes of scores, winners, token scores.
    lens_bytes: [u64; 3],
    /// Bytes of each that lie before these and are not there: addresses are those of the first.
    skipped_bytes: [u64; 3],
    hazard: Arc<Hazard>,
    /// Memory that the addresses point to, unless it is foreign.
    _owned: Vec<Buffer>,
}

impl CudaOutputs {
    /// New memory: scores 0, no winners, token scores 0.
    pub(crate) fn new(device: &Arc<CudaDevice>, shape: &OutputShape) -> Result<CudaOutputs> {
        let outputs = CudaOutputs::unfilled(device, shape)?;
        let entered = outputs.device.enter()?;
        // SAFETY: the buffers were just made, with these lengths; null is the default stream.
        unsafe {
            outputs.clear(&entered, ptr::null_mut(), true, true)?;
            outputs.hazard.record(&entered)?;
        }
        drop(entered);
        Ok(outputs)
    }

    /// New memory with anything in it, to be written before it is read.
    pub(crate) fn unfilled(device: &Arc<CudaDevice>, shape: &OutputShape) -> Result<CudaOutputs> {
        CudaOutputs::with_room(device, shape.lens_bytes())
    }

    /// New memory of so many bytes of scores, winners and token scores, with anything in it.
    pub(in crate::cuda) fn with_room(
        device: &Arc<CudaDevice>,
        lens_bytes: [u64; 3],
    ) -> Result<CudaOutputs> {
        let owned = lens_bytes
            .iter()
            .map(|&len_bytes| Buffer::new(device, len_bytes))
            .collect::<Result<Vec<_>>>()?;
        let addresses = OutputAddresses {
            scores: owned[0].address(),
            winners: owned[1].address(),
            token_scores: owned[2].address(),
        };
        let (device, hazard) = (device.clone(), Arc::new(Hazard::new(device)?));
        Ok(CudaOutputs {
            device,
            addresses,
            lens_bytes,
            skipped_bytes: [0; 3],
            hazard,
            _owned: owned,
        })
    }

    /// Makes memory with the host's winners, and no other output.
    pub(crate) fn of_winners(
        device: &Arc<CudaDevice>,
        shape: &OutputShape,
        winners: &[i32],
    ) -> Result<CudaOutputs> {
        let owned = match shape.winner_bytes {
            // The winner -1, none, becomes all-ones.
            2 => {
                let narrow: Vec<u16> = winners.iter().map(|&winner| winner as u16).collect();
                upload(device, bytemuck::cast_slice(&narrow))?
            }
            _ => upload(device, bytemuck::cast_slice(winners))?,
        };
        let addresses = OutputAddresses { scores: 0, winners: owned.address(), token_scores: 0 };
        let (device, hazard) = (device.clone(), Arc::new(Hazard::new(device)?));
        let lens_bytes = [0, owned.len_bytes(), 0];
        let (skipped_bytes, _owned) = ([0; 3], vec![owned]);
        Ok(CudaOutputs { device, addresses, lens_bytes, skipped_bytes, hazard, _owned })
    }

    /// Takes foreign memory after checks. Its contents stay as they are until the first call writes
    /// them.
    ///
    /// # Safety
    /// As [`crate::stream::DeviceScores::from_raw_parts`].
    pub(crate) unsafe fn from_raw_parts(
        device: &Arc<CudaDevice>,
        shape: &OutputShape,
        addresses: OutputAddresses,
        trust: Trust,
    ) -> Result<CudaOutputs> {
        let lens_bytes = shape.lens_bytes();
        let aligns_bytes = [4, shape.winner_bytes as u64, 4];
        let all = [addresses.scores, addresses.winners, addresses.token_scores];
        for ((address, len_bytes), align_bytes) in all.into_iter().zip(lens_bytes).zip(aligns_bytes)
        {
            check_foreign(device, address, len_bytes, align_bytes, trust)?;
        }
        let (device, hazard) = (device.clone(), Arc::new(Hazard::of_foreign(device, trust)?));
        let (skipped_bytes, _owned) = ([0; 3], Vec::new());
        Ok(CudaOutputs { device, addresses, lens_bytes, skipped_bytes, hazard, _owned })
    }

    /// Makes outputs of the same memory without the token scores, which another kernel writes.
    /// Allocates nothing.
    pub(in crate::cuda) fn without_token_scores(&self) -> CudaOutputs {
        let [scores, winners, _] = self.lens_bytes;
        CudaOutputs {
            device: self.device.clone(),
            addresses: OutputAddresses { token_scores: 0, ..self.addresses },
            lens_bytes: [scores, winners, 0],
            skipped_bytes: self.skipped_bytes,
            hazard: self.hazard.clone(),
            _owned: Vec::new(),
        }
    }

    /// Makes token scores lie in other memory, where there were none, until
    /// [`CudaOutputs::return_token_scores`].
    pub(in crate::cuda) fn lend_token_scores(&mut self, address: u64, len_bytes: u64) {
        self.addresses.token_scores = address;
        self.lens_bytes[2] = len_bytes;
    }

    /// Makes outputs have no token scores any more.
    pub(in crate::cuda) fn return_token_scores(&mut self) {
        self.lend_token_scores(0, 0);
    }

    /// Makes outputs of the start of the same memory as a part of larger outputs, of which some
    /// bytes lie before the part. Its addresses are where the larger ones would start: only the
    /// part may be accessed.
    pub(in crate::cuda) fn part(
        &self,
        skipped_bytes: [u64; 3],
        lens_bytes: [u64; 3],
    ) -> CudaOutputs {
        let OutputAddresses { scores, winners, token_scores } = self.addresses;
        CudaOutputs {
            device: self.device.clone(),
            addresses: OutputAddresses {
                scores: scores.wrapping_sub(skipped_bytes[0]),
                winners: winners.wrapping_sub(skipped_bytes[1]),
                token_scores: token_scores.wrapping_sub(skipped_bytes[2]),
            },
            lens_bytes,
            skipped_bytes,
            hazard: self.hazard.clone(),
            _owned: Vec::new(),
        }
    }

    pub(crate) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(crate) fn addresses(&self) -> OutputAddresses {
        self.addresses
    }

    /// Number of scores.
    pub(in crate::cuda) fn n_scores(&self) -> u64 {
        self.lens_bytes[0] / 4
    }

    /// Orders work that uses the outputs.
    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Fills the scores with 0, and the winners with none and the token scores with 0, each as
    /// asked.
    ///
    /// # Safety
    /// `stream` must be a stream of the context, or null, and the outputs must be its to write.
    pub(in crate::cuda) unsafe fn clear(
        &self,
        entered: &Entered<'_>,
        stream: cust::sys::CUstream,
        scores: bool,
        tokens: bool,
    ) -> Result<()> {
        let [scores_bytes, winners_bytes, token_scores_bytes] = self.lens_bytes;
        let all = [self.addresses.scores, self.addresses.winners, self.addresses.token_scores];
        let [to_scores, to_winners, to_token_scores] =
            std::array::from_fn(|i| all[i].wrapping_add(self.skipped_bytes[i]));
        // SAFETY: the addresses have these lengths; the caller's promise for the stream.
        unsafe {
            if scores {
                fill(entered, to_scores, 0, scores_bytes, stream)?;
            }
            if tokens {
                fill(entered, to_winners, 0xFF, winners_bytes, stream)?;
                fill(entered, to_token_scores, 0, token_scores_bytes, stream)?;
            }
        }
        Ok(())
    }

    /// Makes outputs of a piece of the same memory: bytes of scores, winners and token scores that
    /// lie before it, and those of it.
    pub(in crate::cuda) fn piece(&self, starts: [u64; 3], lens_bytes: [u64; 3]) -> CudaOutputs {
        let OutputAddresses { scores, winners, token_scores } = self.addresses;
        // What is not there has the address 0 in any piece.
        let at = |address: u64, start| if address == 0 { 0 } else { address + start };
        CudaOutputs {
            device: self.device.clone(),
            addresses: OutputAddresses {
                scores: at(scores, starts[0]),
                winners: at(winners, starts[1]),
                token_scores: at(token_scores, starts[2]),
            },
            lens_bytes,
            skipped_bytes: [0; 3],
            hazard: self.hazard.clone(),
            _owned: Vec::new(),
        }
    }

    /// Waits for the last work and copies the results of one call: calls that would write meanwhile
    /// wait to be enqueued.
    pub(crate) fn read(&self, shape: &OutputShape) -> Result<Scores> {
        let _last = self.hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        let OutputAddresses { scores, winners, token_scores } = self.addresses;
        let addresses = [scores, winners, token_scores];
        results(shape, |output, bytes| {
            // SAFETY: the memory is as long as the shape says, which the bytes were made from.
            unsafe { download(&entered, addresses[output], bytes) }
        })
    }

    /// As [`CudaOutputs::read`], of pieces of these outputs: where each begins, and its shape. All
    /// of them with one copy of each output.
    pub(in crate::cuda) fn read_pieces<'a>(
        &self,
        pieces: impl Iterator<Item = ([u64; 3], &'a OutputShape)>,
    ) -> Result<Vec<Scores>> {
        let _last = self.hazard.wait(&self.device)?;
        let entered = self.device.enter()?;
        let OutputAddresses { scores, winners, token_scores } = self.addresses;
        let mut all = [const { Vec::new() }; 3];
        let outputs = [scores, winners, token_scores].into_iter().zip(self.lens_bytes);
        for (all, (address, len_bytes)) in all.iter_mut().zip(outputs) {
            *all = filled(len_bytes, 0u8)?;
            // SAFETY: the memory has this length.
            unsafe { download(&entered, address, all)? };
        }
        let piece = |(starts, shape): ([u64; 3], &OutputShape)| {
            results(shape, |output, bytes| {
                let start = starts[output] as usize;
                bytes.copy_from_slice(&all[output][start..start + bytes.len()]);
                Ok(())
            })
        };
        pieces.map(piece).collect()
    }
}

/// The results of a call: `read` gets the number of an output, scores, winners or token scores, and
/// room for all of its bytes.
fn results(
    shape: &OutputShape,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<Scores> {
    let mut scores = shape.host_scores()?;
    read(0, bytemuck::cast_slice_mut(&mut scores.values))?;
    if let Some(token_scores) = &mut scores.token_scores {
        read(2, bytemuck::cast_slice_mut(token_scores))?;
    }
    match &mut scores.winners {
        Some(winners) if shape.winner_bytes == 2 => {
            let mut narrow = vec![0u16; winners.len()];
            read(1, bytemuck::cast_slice_mut(&mut narrow))?;
            for (winner, &narrow) in winners.iter_mut().zip(&narrow) {
                *winner = widen(narrow);
            }
        }
        Some(winners) => read(1, bytemuck::cast_slice_mut(winners))?,
        None => {}
    }
    scores.leave_out(&shape.without_tokens);
    Ok(scores)
}

impl CudaOutputs {
    /// Copies some scores behind a stream's work and whatever writes them, with one wait.
    pub(crate) fn read_scores(
        &self,
        stream: &mut CudaStream,
        scores: Range<usize>,
    ) -> Result<Vec<f32>> {
        let mut found = filled(scores.len() as u64, 0.0f32)?;
        let (start, end) = (scores.start as u64 * 4, scores.end as u64 * 4);
        if end > self.lens_bytes[0] {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("some of {}", self.lens_bytes[0] / 4),
                found: format!("{scores:?}"),
            });
        }
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let _last = self.hazard.begin(&entered, stream, order)?;
        let from = self.addresses.scores + start;
        // SAFETY: there are as many bytes, as was just checked, and the hazard, which is held,
        // orders their writes before.
        unsafe { stream.read(&entered, [(from, bytemuck::cast_slice_mut(&mut found))])? };
        Ok(found)
    }
}

/// A winner of 2 bytes as the 4 bytes of the public type.
fn widen(winner: u16) -> i32 {
    match winner {
        u16::MAX => -1,
        winner => i32::from(winner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_narrow_winner_means_none() {
        assert_eq!([0, 65534, 65535].map(widen), [0, 65534, -1]);
    }
}
