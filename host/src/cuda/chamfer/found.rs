//! What Chamfer distances find, in device memory.

use std::sync::Arc;

use maxsim_kernels::abi::params::chamfer::{CloudStats, flag_words};

use super::places::{ALIGN_BYTES, lay_out};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::memory::{Buffer, overwrite};
use crate::cuda::driver::pointer::check_foreign;
use crate::cuda::driver::stream::CudaStream;
use crate::error::Result;
use crate::problem::chamfer::{Chamfer, Neighbours, Reduced, each_cloud, reduced};
use crate::problem::outputs::Trust;
use crate::runtime::alloc::filled;

/// Numbers of points by place, and of pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// u64, 0 between calls.
    pub keys: u64,
    pub distances: u64,
    pub indices: u64,
    pub stats: u64,
    pub values: u64,
    /// i64, 0 between calls.
    pub sums: u64,
    /// u64, 0 between calls.
    pub flags: u64,
}

/// Distances, neighbours and values of pairs of clouds, and room for what gradients add up.
#[derive(Debug)]
pub(crate) struct CudaChamfer {
    device: Arc<CudaDevice>,
    /// Points of both sides.
    n_points: [usize; 2],
    n_pairs: usize,
    addresses: Addresses,
    hazard: Arc<Hazard>,
    _owned: Option<Buffer>,
}

impl Addresses {
    fn new([keys, distances, indices, stats, values, sums, flags]: [u64; 7]) -> Addresses {
        Addresses { keys, distances, indices, stats, values, sums, flags }
    }
}

/// Where each list begins, in the order of [`Addresses`], and the end of the last.
fn places(n_points: [usize; 2], n_pairs: usize, dim: usize) -> ([u64; 7], u64) {
    let n = (n_points[0] + n_points[1]) as u64;
    let stats_bytes = 2 * n_pairs as u64 * size_of::<CloudStats>() as u64;
    let (sums_bytes, flags_bytes) = (n * dim as u64 * 8, n * flag_words(dim) as u64 * 8);
    let values_bytes = n_pairs as u64 * 4;
    let lens = [n * 8, n * 4, n * 4, stats_bytes, values_bytes, sums_bytes, flags_bytes];
    lay_out(0, lens)
}

impl CudaChamfer {
    /// Zeros, for so many points of both sides, of `dim` dims.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        n_points: [usize; 2],
        n_pairs: usize,
        dim: usize,
    ) -> Result<CudaChamfer> {
        let (offsets, len_bytes) = places(n_points, n_pairs, dim);
        let memory = Buffer::zeroed(device, len_bytes)?;
        let addresses = Addresses::new(offsets.map(|offset| memory.address() + offset));
        let hazard = Arc::new(Hazard::new(device)?);
        let device = device.clone();
        Ok(CudaChamfer { device, n_points, n_pairs, addresses, hazard, _owned: Some(memory) })
    }

    /// Foreign memory, of whose use nothing is recorded.
    ///
    /// # Safety
    /// As [`crate::chamfer::PreparedChamfer::found_from_raw_unchecked`].
    pub(crate) unsafe fn from_raw_unchecked(
        device: &Arc<CudaDevice>,
        n_points: [usize; 2],
        n_pairs: usize,
        dim: usize,
        address: u64,
    ) -> Result<CudaChamfer> {
        let (offsets, len_bytes) = places(n_points, n_pairs, dim);
        check_foreign(device, address, len_bytes, ALIGN_BYTES, Trust::Unchecked)?;
        let addresses = Addresses::new(offsets.map(|offset| address + offset));
        let hazard = Arc::new(Hazard::of_foreign(device, Trust::Unchecked)?);
        let device = device.clone();
        Ok(CudaChamfer { device, n_points, n_pairs, addresses, hazard, _owned: None })
    }

    /// Bytes of the memory, and from where on it has distances, indices and values.
    pub(super) fn memory(n_points: [usize; 2], n_pairs: usize, dim: usize) -> (u64, [u64; 3]) {
        let (offsets, len_bytes) = places(n_points, n_pairs, dim);
        let Addresses { distances, indices, values, .. } = Addresses::new(offsets);
        (len_bytes, [distances, indices, values])
    }

    /// What was found before, as gradients need it.
    pub(crate) fn of_found(device: &Arc<CudaDevice>, found: &Chamfer) -> Result<CudaChamfer> {
        let [x, y] = &found.layouts;
        let n_points = [x, y].map(|layout| layout.total_len() as usize);
        let own = CudaChamfer::new(device, n_points, x.n_items(), x.dim())?;
        let mut stats = filled(2 * x.n_items() as u64, [0u32; 8])?;
        let mut indices = filled((n_points[0] + n_points[1]) as u64, -1i32)?;
        let mut distances = filled(indices.len() as u64, 0.0f32)?;
        for (side, neighbours) in found.directions() {
            let own = [0..n_points[0], n_points[0]..indices.len()][side].clone();
            indices[own.clone()].copy_from_slice(&neighbours.indices);
            distances[own].copy_from_slice(&neighbours.distances);
        }
        for (side, neighbours) in found.directions() {
            each_cloud(&found.layouts[side], |pair, first, len| {
                let own = first..first + len;
                let (distances, indices) =
                    (&neighbours.distances[own.clone()], &neighbours.indices[own]);
                let Reduced { n, largest, .. } =
                    reduced(found.options.reduction, distances, indices);
                let finite = distances.iter().filter(|distance| distance.is_finite());
                let most_finite = finite.fold(0.0f32, |most, &distance| most.max(distance));
                stats[2 * pair + side] =
                    [0, 0, n as u32, largest as u32, 0, most_finite.to_bits(), 0, 0];
            });
        }
        let entered = device.enter()?;
        // SAFETY: the memory was just made, for so many points and pairs.
        unsafe {
            overwrite(&entered, own.addresses.indices, bytemuck::cast_slice(&indices))?;
            overwrite(&entered, own.addresses.distances, bytemuck::cast_slice(&distances))?;
            overwrite(&entered, own.addresses.stats, bytemuck::cast_slice(&stats))?;
        }
        drop(entered);
        Ok(own)
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses
    }

    pub(in crate::cuda) fn hazard(&self) -> &Arc<Hazard> {
        &self.hazard
    }

    /// Copies values, and the neighbours of both sides, behind a stream's work and whatever writes
    /// them.
    pub(crate) fn read(&self, stream: &mut CudaStream) -> Result<(Vec<f32>, [Neighbours; 2])> {
        let [n_x, n_y] = self.n_points;
        let mut values = filled(self.n_pairs as u64, 0.0f32)?;
        let mut distances = filled((n_x + n_y) as u64, 0.0f32)?;
        let mut indices = filled((n_x + n_y) as u64, -1i32)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let _last = self.hazard.begin(&entered, stream, order)?;
        let Addresses { values: a, distances: b, indices: c, .. } = self.addresses;
        let from = [
            (a, bytemuck::cast_slice_mut(&mut values)),
            (b, bytemuck::cast_slice_mut(&mut distances)),
            (c, bytemuck::cast_slice_mut(&mut indices)),
        ];
        // SAFETY: there are so many of each, and the hazard, which is held, orders their writes
        // before.
        unsafe { stream.read(&entered, from)? };
        let y = Neighbours { distances: distances.split_off(n_x), indices: indices.split_off(n_x) };
        Ok((values, [Neighbours { distances, indices }, y]))
    }
}
