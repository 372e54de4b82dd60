//! Parameters of the kernel that measures the memory bandwidth.

/// Threads per CTA of the kernel.
pub const BANDWIDTH_THREADS: usize = 512;

/// Parameters of `maxsim_bandwidth`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BandwidthParams {
    /// Address of the first byte to read, aligned to 16.
    pub base: u64,
    /// Number of 16-byte vectors to read.
    pub n_vectors: u64,
    /// Address of four bytes that are never read.
    pub sink: u64,
}
