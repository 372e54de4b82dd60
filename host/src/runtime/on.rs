//! The one seam between CPU and CUDA: a value of either half.

/// One of two: what a value is on the CPU, or on a CUDA device.
///
/// Without the feature `cuda` the types of the second arm have no values, so that both builds
/// check the types of every arm.
#[derive(Clone, Debug)]
pub(crate) enum On<C, G> {
    /// The CPU engine's.
    Cpu(C),
    /// A CUDA device's.
    Cuda(G),
}
