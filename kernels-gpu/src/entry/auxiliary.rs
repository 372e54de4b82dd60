//! The entry points of all other kernels, except those that compute the scores of centroids.

#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::row_vector::I8;
use crate::primitives::row_vector::{Bf16, F16, F32};

/// # Safety
/// Launched by the host with parameters as [`crate::abi::params::SumPartialsParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_sum_partials(
    params: crate::abi::params::SumPartialsParams,
) {
    // SAFETY: the host's promise.
    unsafe { crate::sum_partials::sum_partials(&params) }
}

/// # Safety
/// Launched by the host, a block per score with its shared memory, and parameters as
/// [`crate::abi::params::CombinePiecesParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_combine_pieces(
    params: crate::abi::params::CombinePiecesParams,
) {
    // SAFETY: the host's promise.
    unsafe { crate::combine_splits::combine_pieces(&params) }
}

/// # Safety
/// Launched by the host with parameters as [`crate::abi::params::ReadParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_read(params: crate::abi::params::ReadParams) {
    // SAFETY: the host's promise.
    unsafe { crate::bandwidth::read(&params) }
}

macro_rules! gradient_entries {
    ($arch:literal: $($(#[$doc:meta])* $name:ident($params:ident) = $run:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = $arch)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::backward::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

gradient_entries! {
    "sm_80":
    /// Factors that normalise f16 rows.
    maxsim_row_norms_f16(RowNormsParams) = crate::primitives::row_scales::row_norms::<F16>;
    /// Factors that normalise bf16 rows.
    maxsim_row_norms_bf16(RowNormsParams) = crate::primitives::row_scales::row_norms::<Bf16>;
    /// Factors that normalise f32 rows.
    maxsim_row_norms_f32(RowNormsParams) = crate::primitives::row_scales::row_norms::<F32>;
    /// Sums over pairs of f16 documents.
    maxsim_gradient_gather_f16(GatherParams) = crate::backward::gather::gather::<F16>;
    /// Sums over pairs of bf16 documents.
    maxsim_gradient_gather_bf16(GatherParams) = crate::backward::gather::gather::<Bf16>;
    /// Sums over pairs of f32 documents.
    maxsim_gradient_gather_f32(GatherParams) = crate::backward::gather::gather::<F32>;
    /// Sums over pairs of documents that are codes.
    maxsim_gradient_gather_i8(GatherParams) = crate::backward::gather::gather::<I8>;
    /// Sums over sorted sources of f16 queries.
    maxsim_gradient_owner_sm80_f16(OwnerParams) = crate::backward::segmented_sum::owner::<F16>;
    /// Sums over sorted sources of bf16 queries.
    maxsim_gradient_owner_sm80_bf16(OwnerParams) = crate::backward::segmented_sum::owner::<Bf16>;
    /// Sums over sorted sources of f32 queries.
    maxsim_gradient_owner_sm80_f32(OwnerParams) = crate::backward::segmented_sum::owner::<F32>;
    /// Sums over the tokens of one query, f16.
    maxsim_gradient_few_sm80_f16(FewParams) = crate::backward::short_query::few::<F16>;
    /// Sums over the tokens of one query, bf16.
    maxsim_gradient_few_sm80_bf16(FewParams) = crate::backward::short_query::few::<Bf16>;
    /// Sums over the tokens of one query, f32.
    maxsim_gradient_few_sm80_f32(FewParams) = crate::backward::short_query::few::<F32>;
    /// Gradients of f16 rows from those of normalised ones.
    maxsim_gradient_project_f16(ProjectParams) = crate::backward::normalize::project::<F16>;
    /// Gradients of bf16 rows from those of normalised ones.
    maxsim_gradient_project_bf16(ProjectParams) = crate::backward::normalize::project::<Bf16>;
    /// Gradients of f32 rows from those of normalised ones.
    maxsim_gradient_project_f32(ProjectParams) = crate::backward::normalize::project::<F32>;
    /// Counts sources.
    maxsim_gradient_count(CountParams) = crate::backward::counting_sort::count::count;
    /// Sorts sources.
    maxsim_gradient_invert(SortParams) = crate::backward::counting_sort::invert::invert;
    /// Joins rows.
    maxsim_gradient_join(OwnerParams) = crate::backward::fixup::join;
    /// Adds chunks.
    maxsim_gradient_sum(SumParams) = crate::backward::sum_chunks::sum;
    /// Adds f16 rows atomically.
    maxsim_gradient_atomic_sm80_f16(AtomicParams) = crate::backward::atomic::atomic::<F16>;
    /// Adds bf16 rows atomically.
    maxsim_gradient_atomic_sm80_bf16(AtomicParams) = crate::backward::atomic::atomic::<Bf16>;
    /// Adds f32 rows atomically.
    maxsim_gradient_atomic_sm80_f32(AtomicParams) = crate::backward::atomic::atomic::<F32>;
}

gradient_entries! {
    "sm_90a":
    /// Sums over sorted sources of f16 queries.
    maxsim_gradient_owner_sm90_f16(OwnerParams) = crate::backward::segmented_sum::owner::<F16>;
    /// Sums over sorted sources of bf16 queries.
    maxsim_gradient_owner_sm90_bf16(OwnerParams) = crate::backward::segmented_sum::owner::<Bf16>;
    /// Sums over sorted sources of f32 queries.
    maxsim_gradient_owner_sm90_f32(OwnerParams) = crate::backward::segmented_sum::owner::<F32>;
    /// Sums over the tokens of one query, f16.
    maxsim_gradient_few_sm90_f16(FewParams) = crate::backward::short_query::few::<F16>;
    /// Sums over the tokens of one query, bf16.
    maxsim_gradient_few_sm90_bf16(FewParams) = crate::backward::short_query::few::<Bf16>;
    /// Sums over the tokens of one query, f32.
    maxsim_gradient_few_sm90_f32(FewParams) = crate::backward::short_query::few::<F32>;
    /// Adds f16 rows atomically.
    maxsim_gradient_atomic_sm90_f16(AtomicParams) = crate::backward::atomic::atomic::<F16>;
    /// Adds bf16 rows atomically.
    maxsim_gradient_atomic_sm90_bf16(AtomicParams) = crate::backward::atomic::atomic::<Bf16>;
    /// Adds f32 rows atomically.
    maxsim_gradient_atomic_sm90_f32(AtomicParams) = crate::backward::atomic::atomic::<F32>;
}

macro_rules! residual_norms_entries {
    ($($(#[$doc:meta])* $name:ident = $element:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::ResidualNormsParams) {
            // SAFETY: the host's promise.
            unsafe { crate::decoded_norms::decoded_norms::<crate::primitives::residual_chunk::$element>(&params) }
        }
    )*};
}

residual_norms_entries! {
    /// Factors that normalise rows decoded to f16.
    maxsim_residual_norms_f16 = F16;
    /// Factors that normalise rows decoded to bf16.
    maxsim_residual_norms_bf16 = Bf16;
}

macro_rules! residual_gradient_entries {
    ($($(#[$doc:meta])* $name:ident($params:ident) = $run:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::backward::residual::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

residual_gradient_entries! {
    /// Sums over pairs of documents decoded to f16.
    maxsim_residual_gather_f16(ResidualGatherParams) =
        crate::backward::residual_gather::gather::<crate::primitives::residual_chunk::F16>;
    /// Sums over pairs of documents decoded to bf16.
    maxsim_residual_gather_bf16(ResidualGatherParams) =
        crate::backward::residual_gather::gather::<crate::primitives::residual_chunk::Bf16>;
    /// Gradients of rows from those of normalised ones, decoded to f16.
    maxsim_residual_project_f16(ResidualProjectParams) =
        crate::backward::residual_project::project::<crate::primitives::residual_chunk::F16>;
    /// Gradients of rows from those of normalised ones, decoded to bf16.
    maxsim_residual_project_bf16(ResidualProjectParams) =
        crate::backward::residual_project::project::<crate::primitives::residual_chunk::Bf16>;
    /// Adds rows to the parts of the tables' gradients.
    maxsim_residual_tables(TablesParams) = crate::backward::residual_tables::tables;
    /// Adds parts.
    maxsim_residual_sum(PartsParams) = crate::backward::residual_sum::sum;
}

macro_rules! loss_entries {
    ($($(#[$doc:meta])* $name:ident($params:ident) = $run:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::loss::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

loss_entries! {
    /// Cross-entropies of rows with their positives.
    maxsim_loss_contrastive(RowsParams) = crate::loss::rows::contrastive;
    /// Divergences of rows from a teacher's.
    maxsim_loss_distillation(RowsParams) = crate::loss::rows::distillation;
    /// The mean of the rows' losses.
    maxsim_loss_mean(MeanParams) = crate::loss::mean::mean;
}

macro_rules! rescore_entries {
    ($($(#[$doc:meta])* $name:ident = $element:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::rescore::RescoreParams) {
            // SAFETY: the host's promise.
            unsafe { crate::rescore::rescore::<$element>(&params) }
        }
    )*};
}

rescore_entries! {
    /// Scores of winners among f16 documents.
    maxsim_rescore_f16 = F16;
    /// Scores of winners among bf16 documents.
    maxsim_rescore_bf16 = Bf16;
    /// Scores of winners among f32 documents.
    maxsim_rescore_f32 = F32;
}

macro_rules! quantize_entries {
    ($($(#[$doc:meta])* $name:ident($params:ident) = $run:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::abi::params::quantize::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

quantize_entries! {
    /// Codes of f16 rows.
    maxsim_quantize_f16(QuantizeParams) = crate::quantize::rows::quantize::<F16>;
    /// Codes of bf16 rows.
    maxsim_quantize_bf16(QuantizeParams) = crate::quantize::rows::quantize::<Bf16>;
    /// Codes of f32 rows.
    maxsim_quantize_f32(QuantizeParams) = crate::quantize::rows::quantize::<F32>;
    /// Affine codes of f16 rows.
    maxsim_quantize_affine_f16(QuantizeParams) = crate::quantize::affine::quantize::<F16>;
    /// Affine codes of bf16 rows.
    maxsim_quantize_affine_bf16(QuantizeParams) = crate::quantize::affine::quantize::<Bf16>;
    /// Affine codes of f32 rows.
    maxsim_quantize_affine_f32(QuantizeParams) = crate::quantize::affine::quantize::<F32>;
    /// The largest magnitude of f16 rows.
    maxsim_quantize_largest_f16(LargestParams) = crate::quantize::tensor::largest::<F16>;
    /// The largest magnitude of bf16 rows.
    maxsim_quantize_largest_bf16(LargestParams) = crate::quantize::tensor::largest::<Bf16>;
    /// The largest magnitude of f32 rows.
    maxsim_quantize_largest_f32(LargestParams) = crate::quantize::tensor::largest::<F32>;
    /// Codes of f16 rows with one scale.
    maxsim_quantize_tensor_f16(QuantizeParams) = crate::quantize::tensor::quantize::<F16>;
    /// Codes of bf16 rows with one scale.
    maxsim_quantize_tensor_bf16(QuantizeParams) = crate::quantize::tensor::quantize::<Bf16>;
    /// Codes of f32 rows with one scale.
    maxsim_quantize_tensor_f32(QuantizeParams) = crate::quantize::tensor::quantize::<F32>;
}
