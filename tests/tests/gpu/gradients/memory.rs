//! The device memory that steps take.

use maxsim::Device;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{free_bytes, text};
use maxsim_tests::suite::Suite;

use super::Batch;

impl Batch {
    /// Bytes of device memory that a step and three runs of it take, all that there is of it.
    fn memory(
        &self,
        options: &BackwardOptions,
        device: &Device,
        element: GradientType,
    ) -> Result<u64, String> {
        let taken = |n: usize| {
            let before = free_bytes(device)?;
            let mut step = self.step_by(options, device, false, element)?;
            (0..n).try_for_each(|_| step.run()).map_err(text)?;
            let _ = step.gradients.read().map_err(text)?;
            Ok::<u64, String>(before.saturating_sub(free_bytes(device)?))
        };
        // Kernels are loaded, and what uploads need is there.
        taken(1)?;
        taken(3)
    }
}

/// Beyond tokens, scores, winners and gradients: the documents' gradient in f32 where it is asked
/// for in f16, and nothing of its size where it is f32.
#[test]
fn an_atomic_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_atomic_memory", |suite| {
        let batch =
            Batch { queries: [64, 1024], documents: [64, 1024], dim: 128, normalize: false };
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let (matrix, n_rows) = (64 * 1024 * 128, 64 * 1024);
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = matrix * if element == GradientType::F32 { 0 } else { 4 };
                let winners = 64 * n_rows * 2;
                let taken = batch.memory(
                    &BackwardOptions::new(BackwardStrategy::Atomic),
                    device,
                    element,
                )?;
                let beyond = taken.saturating_sub(2 * matrix * 2 + gradients + winners);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // The parts of queries' sums and of scores, and the allocator takes 2 MB at a time.
                if beyond > sums + (13 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Winners that are found again are never all there: as many as are asked for, and where gradients
/// are not f32, that of the documents in f32.
#[test]
fn a_step_that_finds_winners_again_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_recompute_memory", |suite| {
        let side = [512, 256];
        let batch = Batch { queries: side, documents: side, dim: 128, normalize: false };
        let at_once = 8 << 20;
        let options = BackwardOptions::new(BackwardStrategy::Recompute).winner_bytes(at_once);
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let matrix = 512 * 256 * 128;
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = matrix * if element == GradientType::F32 { 0 } else { 4 };
                let taken = batch.memory(&options, device, element)?;
                let beyond = taken.saturating_sub(2 * matrix * 2 + gradients);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // A workspace of 32 MB besides, and the allocator takes 2 MB at a time: less than
                // half of the 128 MB of all winners.
                if beyond > sums + at_once + (42 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Beyond tokens, scores, winners and gradients: a workspace of 32 MB, and small lists.
#[test]
fn a_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_memory", |suite| {
        let batch =
            Batch { queries: [64, 1024], documents: [64, 1024], dim: 128, normalize: false };
        for device in cuda_devices() {
            let free = || free_bytes(device);
            // Kernels are loaded, and what uploads need is there.
            let mut warm = batch.step(device, false, GradientType::Tokens)?;
            warm.run().map_err(text)?;
            let _ = warm.gradients.read().map_err(text)?;
            drop(warm);
            let before = free()?;
            let mut step = batch.step(device, false, GradientType::Tokens)?;
            step.run().map_err(text)?;
            let _ = step.gradients.read().map_err(text)?;
            let taken = before.saturating_sub(free()?);
            let n_rows = (64 * 1024) as u64;
            let matrices = 4 * n_rows * 128 * 2;
            let winners = 64 * n_rows * step.scores.winner_bytes() as u64;
            let beyond = taken.saturating_sub(matrices + winners);
            // The allocator takes 2 MB at a time.
            let most = (32 << 20) + (8 << 20);
            suite.note(&format!("{device}: {beyond} bytes beyond tokens, winners and gradients"));
            if beyond > most {
                return Err(format!("{device}: {beyond} bytes, more than {most}"));
            }
            let before = free()?;
            for _ in 0..10 {
                step.run().map_err(text)?;
            }
            step.stream.synchronize().map_err(text)?;
            if free()? < before {
                return Err(format!("{device}: steps allocate"));
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// A step over normalised rows: beyond what others take, r of each row, and where gradients are not
/// f32 their sums in f32.
#[test]
fn a_normalized_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_normalized_memory", |suite| {
        let side = [64, 1024];
        let batch = Batch { queries: side, documents: side, dim: 128, normalize: true };
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let (matrix, n_rows) = (64 * 1024 * 128, 64 * 1024);
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = 2 * matrix * if element == GradientType::F32 { 0 } else { 4 };
                let (winners, norms) = (64 * n_rows * 2, 2 * n_rows * 4);
                let promised = 2 * matrix * 2 + gradients + winners + norms;
                let taken = batch.memory(&BackwardOptions::default(), device, element)?;
                let beyond = taken.saturating_sub(promised);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // A workspace of 32 MB besides, and the allocator takes 2 MB at a time.
                if beyond > sums + (42 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}
