//! Limits of a device, and how a matrix in its memory can be read: the input of eligibility.

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::tokens::format::TokenFormat;

/// Limits of a CUDA device that decide which kernels are eligible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Compute capability (major, minor): that of the device, or where the environment says
    /// MAXSIM_INSTRUCTIONS=sm_80, that of the oldest one.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: usize,
    /// Shared memory that a CTA may opt in to, in bytes.
    pub shared_bytes: usize,
}

impl DeviceLimits {
    /// Whether the device runs some row of the variant table for this operand.
    pub(crate) fn has_rows(&self, operand: Operand) -> bool {
        FORWARD.iter().any(|row| row.operand == operand && row.arch.runs_on(self.capability))
    }
}

/// Addresses of residual-compressed tokens as kernels decode them; no norms are 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidualAddresses {
    pub codes: u64,
    pub residuals: u64,
    pub centroids: u64,
    pub weights: u64,
    pub norms: u64,
}

/// How a matrix in device memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the first element.
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Centroids that the rows are decoded from, with buckets of up to
    /// [`BY_CENTROID_NBITS_MAX`](maxsim_kernels::abi::residual_chunk::BY_CENTROID_NBITS_MAX) bits;
    /// 0 elsewhere.
    pub n_centroids: u32,
}

impl Access {
    /// Access to a matrix that this library uploads: aligned base, pitch rounded up to 16 bytes.
    pub fn uploaded(dim: usize, format: impl Into<TokenFormat>) -> Access {
        let row_bytes = (dim * format.into().size_bytes()) as u64;
        Access { base: 0, pitch_bytes: row_bytes.next_multiple_of(16), n_centroids: 0 }
    }

    /// What plans depend on.
    pub(crate) fn class(&self) -> (bool, u64, u32) {
        (self.base.is_multiple_of(16), self.pitch_bytes, self.n_centroids)
    }

    /// Whether rows start on 16-byte boundaries, as `cp.async` and TMA need.
    pub fn is_aligned(&self) -> bool {
        self.base.is_multiple_of(16) && self.pitch_bytes.is_multiple_of(16)
    }

    /// Whether rows of `dim` elements lie as a contiguous kernel reads them.
    pub(crate) fn lies_together(&self, row: &Variant, dim: usize) -> bool {
        let row_bytes = (row.dim_max * row.operand.size_bytes()) as u64;
        dim == row.dim_max && self.base.is_multiple_of(16) && self.pitch_bytes == row_bytes
    }
}
