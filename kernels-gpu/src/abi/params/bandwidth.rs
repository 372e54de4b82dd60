//! Parameters of the kernel that measures the memory bandwidth.

/// Threads per CTA of the kernel.
pub const BANDWIDTH_THREADS: usize = 512;

/// Parameters of `maxsim_bandwidth`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BandwidthParams {
    /// Address of what is read, aligned to 16.
    pub base: u64,
    /// How much is read, in pieces of 16 bytes.
    pub n_pieces: u64,
    /// Address of four bytes that are never read.
    pub sink: u64,
}
