//! The entry points of the kernels of [`crate::table::auxiliary`].

use crate::table::auxiliary::auxiliary_kernels;

/// The device function of each kernel, which takes a reference to the struct that the table says.
#[rustfmt::skip] // one line, one kernel
macro_rules! run {
    (maxsim_sum_partials) => { crate::sum_partials::sum_partials };
    (maxsim_combine_splits) => { crate::combine_splits::combine_splits };
    (maxsim_segments) => { crate::segments::segments };
    (maxsim_bandwidth) => { crate::bandwidth::bandwidth };

    (maxsim_row_norms_f16) => { crate::primitives::row_scales::row_norms::<row::F16> };
    (maxsim_row_norms_bf16) => { crate::primitives::row_scales::row_norms::<row::Bf16> };
    (maxsim_row_norms_f32) => { crate::primitives::row_scales::row_norms::<row::F32> };
    (maxsim_residual_norms_f16) => { crate::decoded_rows::decoded_norms::<chunk::F16> };
    (maxsim_residual_norms_bf16) => { crate::decoded_rows::decoded_norms::<chunk::Bf16> };
    (maxsim_residual_rows_f16) => { crate::decoded_rows::decoded_rows::<chunk::F16> };
    (maxsim_residual_rows_bf16) => { crate::decoded_rows::decoded_rows::<chunk::Bf16> };

    (maxsim_gradient_gather_f16) => { backward::gather::gather::<row::F16> };
    (maxsim_gradient_gather_bf16) => { backward::gather::gather::<row::Bf16> };
    (maxsim_gradient_gather_f32) => { backward::gather::gather::<row::F32> };
    (maxsim_gradient_gather_i8) => { backward::gather::gather::<row::I8> };
    (maxsim_gradient_segmented_sum_sm80_f16) => { segmented_sum::segmented_sum::<row::F16> };
    (maxsim_gradient_segmented_sum_sm80_bf16) => { segmented_sum::segmented_sum::<row::Bf16> };
    (maxsim_gradient_segmented_sum_sm80_f32) => { segmented_sum::segmented_sum::<row::F32> };
    (maxsim_gradient_segmented_sum_sm90_f16) => { segmented_sum::segmented_sum::<row::F16> };
    (maxsim_gradient_segmented_sum_sm90_bf16) => { segmented_sum::segmented_sum::<row::Bf16> };
    (maxsim_gradient_segmented_sum_sm90_f32) => { segmented_sum::segmented_sum::<row::F32> };
    (maxsim_gradient_short_query_sm80_f16) => { backward::short_query::short_query::<row::F16> };
    (maxsim_gradient_short_query_sm80_bf16) => { backward::short_query::short_query::<row::Bf16> };
    (maxsim_gradient_short_query_sm80_f32) => { backward::short_query::short_query::<row::F32> };
    (maxsim_gradient_short_query_sm90_f16) => { backward::short_query::short_query::<row::F16> };
    (maxsim_gradient_short_query_sm90_bf16) => { backward::short_query::short_query::<row::Bf16> };
    (maxsim_gradient_short_query_sm90_f32) => { backward::short_query::short_query::<row::F32> };
    (maxsim_gradient_atomic_sm80_f16) => { backward::atomic::atomic::<row::F16> };
    (maxsim_gradient_atomic_sm80_bf16) => { backward::atomic::atomic::<row::Bf16> };
    (maxsim_gradient_atomic_sm80_f32) => { backward::atomic::atomic::<row::F32> };
    (maxsim_gradient_atomic_sm90_f16) => { backward::atomic::atomic::<row::F16> };
    (maxsim_gradient_atomic_sm90_bf16) => { backward::atomic::atomic::<row::Bf16> };
    (maxsim_gradient_atomic_sm90_f32) => { backward::atomic::atomic::<row::F32> };
    (maxsim_gradient_project_f16) => { backward::normalize::project::<row::F16> };
    (maxsim_gradient_project_bf16) => { backward::normalize::project::<row::Bf16> };
    (maxsim_gradient_project_f32) => { backward::normalize::project::<row::F32> };
    (maxsim_gradient_count) => { backward::counting_sort::count::count };
    (maxsim_gradient_sort) => { backward::counting_sort::sort::sort };
    (maxsim_gradient_fixup) => { backward::fixup::fixup };
    (maxsim_gradient_sum_chunks) => { backward::sum_chunks::sum_chunks };

    (maxsim_residual_gather_f16) => { backward::residual_gather::gather::<chunk::F16> };
    (maxsim_residual_gather_bf16) => { backward::residual_gather::gather::<chunk::Bf16> };
    (maxsim_residual_project_f16) => { backward::residual_project::project::<chunk::F16> };
    (maxsim_residual_project_bf16) => { backward::residual_project::project::<chunk::Bf16> };
    (maxsim_residual_tables) => { backward::residual_tables::tables };
    (maxsim_residual_sum) => { backward::residual_sum::sum };

    (maxsim_loss_contrastive) => { crate::loss::rows::contrastive };
    (maxsim_loss_distillation) => { crate::loss::rows::distillation };
    (maxsim_loss_mean) => { crate::loss::mean::mean };

    (maxsim_top_k) => { crate::top_k::top_k };
    (maxsim_top_k_short) => { crate::top_k::short::top_k_short };
    (maxsim_top_k_largest) => { crate::top_k::groups::largest };
    (maxsim_top_k_bound) => { crate::top_k::groups::bound };
    (maxsim_top_k_gather) => { crate::top_k::groups::gather };

    (maxsim_search_candidates) => { crate::search::candidates };
    (maxsim_search_reaching) => { crate::search::reaching };

    (maxsim_chamfer_nearest_d3) => { crate::chamfer::nearest::<3, 4, 4> };
    (maxsim_chamfer_nearest_d8) => { crate::chamfer::nearest::<8, 8, 2> };
    (maxsim_chamfer_nearest_d15) => { crate::chamfer::nearest::<15, 16, 2> };
    (maxsim_chamfer_both_d3) => { crate::chamfer::both::<3, 4, 8> };
    (maxsim_chamfer_both_d8) => { crate::chamfer::both::<8, 8, 4> };
    (maxsim_chamfer_both_d15) => { crate::chamfer::both::<15, 16, 4> };
    (maxsim_chamfer_compare) => { crate::chamfer::compare };
    (maxsim_chamfer_bounds) => { crate::chamfer::sort::bounds };
    (maxsim_chamfer_codes) => { crate::chamfer::sort::codes };
    (maxsim_chamfer_sort) => { crate::chamfer::sort::sort };
    (maxsim_chamfer_boxes) => { crate::chamfer::sort::boxes };
    (maxsim_chamfer_search) => { crate::chamfer::search::search };
    (maxsim_chamfer_extents) => { crate::chamfer::extents };
    (maxsim_chamfer_copies) => { crate::chamfer::copies };
    (maxsim_chamfer_sm90_products) => { chamfer_products!() };
    (maxsim_chamfer_sm90_select) => { crate::chamfer::halves::select };
    (maxsim_chamfer_select) => { crate::chamfer::select };
    (maxsim_chamfer_refine) => { crate::chamfer::refine };
    (maxsim_chamfer_reduce) => { crate::chamfer::reduce };
    (maxsim_chamfer_scatter) => { crate::chamfer::scatter };
    (maxsim_chamfer_gradients) => { crate::chamfer::gradients };

    (maxsim_projection_sm90_f16) => { projection!(maxsim_projection_sm90_f16 F16) };
    (maxsim_projection_sm90_bf16) => { projection!(maxsim_projection_sm90_bf16 Bf16) };
    (maxsim_projection_f16) => { crate::projection::sm80::project::<row::F16> };
    (maxsim_projection_bf16) => { crate::projection::sm80::project::<row::Bf16> };
    (maxsim_projection_f32) => { crate::projection::sm80::project::<row::F32> };
    (maxsim_projection_product_f16) => { crate::projection::gradient::product::<row::F16> };
    (maxsim_projection_product_bf16) => { crate::projection::gradient::product::<row::Bf16> };
    (maxsim_projection_product_f32) => { crate::projection::gradient::product::<row::F32> };
    (maxsim_projection_gather) => { crate::projection::gradient::gather };
    (maxsim_projection_choose) => { crate::projection::choose::choose };
    (maxsim_projection_active) => { crate::projection::choose::active };
    (maxsim_projection_zeros) => { crate::projection::choose::zeros };
    (maxsim_projection_sum) => { crate::projection::choose::sum };
    (maxsim_xtr_collect_d128_f16) => { collect::collect::<collect::Tall<sm80::F16>> };
    (maxsim_xtr_collect_d128_bf16) => { collect::collect::<collect::Tall<sm80::Bf16>> };
    (maxsim_xtr_collect_wide_f16) => { collect::collect::<Wide<sm80::F16, AsTheyAre, 64>> };
    (maxsim_xtr_collect_wide_bf16) => { collect::collect::<Wide<sm80::Bf16, AsTheyAre, 64>> };
    (maxsim_xtr_collect_wide_f32) => { collect::collect::<Wide<sm80::F32, AsTheyAre, 32>> };
    (maxsim_xtr_collect_normalized_f16) => {
        collect::collect_normalized::<Wide<sm80::F16, Normalized<false>, 32>>
    };
    (maxsim_xtr_collect_normalized_bf16) => {
        collect::collect_normalized::<Wide<sm80::Bf16, Normalized<false>, 32>>
    };
    (maxsim_xtr_collect_normalized_f32) => {
        collect::collect_normalized::<Wide<sm80::F32, Normalized<false>, 32>>
    };
    (maxsim_xtr_collect_sm90_f16) => { collect_mapped!(maxsim_xtr_collect_sm90_f16 F16) };
    (maxsim_xtr_collect_sm90_bf16) => { collect_mapped!(maxsim_xtr_collect_sm90_bf16 Bf16) };
    (maxsim_xtr_select) => { crate::xtr::select::select };
    (maxsim_xtr_score) => { crate::xtr::score::score };

    (maxsim_rescore_f16) => { crate::rescore::rescore::<row::F16> };
    (maxsim_rescore_bf16) => { crate::rescore::rescore::<row::Bf16> };
    (maxsim_rescore_f32) => { crate::rescore::rescore::<row::F32> };
    (maxsim_quantize_f16) => { crate::quantize::rows::quantize::<row::F16> };
    (maxsim_quantize_bf16) => { crate::quantize::rows::quantize::<row::Bf16> };
    (maxsim_quantize_f32) => { crate::quantize::rows::quantize::<row::F32> };
    (maxsim_quantize_affine_f16) => { crate::quantize::affine::quantize::<row::F16> };
    (maxsim_quantize_affine_bf16) => { crate::quantize::affine::quantize::<row::Bf16> };
    (maxsim_quantize_affine_f32) => { crate::quantize::affine::quantize::<row::F32> };
    (maxsim_quantize_largest_f16) => { crate::quantize::tensor::largest::<row::F16> };
    (maxsim_quantize_largest_bf16) => { crate::quantize::tensor::largest::<row::Bf16> };
    (maxsim_quantize_largest_f32) => { crate::quantize::tensor::largest::<row::F32> };
    (maxsim_quantize_tensor_f16) => { crate::quantize::tensor::quantize::<row::F16> };
    (maxsim_quantize_tensor_bf16) => { crate::quantize::tensor::quantize::<row::Bf16> };
    (maxsim_quantize_tensor_f32) => { crate::quantize::tensor::quantize::<row::F32> };

    (maxsim_centroid_scores_f16) => { by_centroid::centroid_scores::<residual::ResidualF16> };
    (maxsim_centroid_scores_bf16) => { by_centroid::centroid_scores::<residual::ResidualBf16> };
    (maxsim_infinite_queries_f16) => { by_centroid::infinite::<residual::ResidualF16> };
    (maxsim_infinite_queries_bf16) => { by_centroid::infinite::<residual::ResidualBf16> };
}

/// A projection by tensor maps, which are the first two fields of the entry's parameter.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! projection {
    ($name:ident $element:ident) => {{
        use crate::abi::params::TensorMap;
        use crate::abi::params::projection::MappedParams;

        #[inline(always)]
        unsafe fn run(params: &MappedParams) {
            let first = crate::ptx::parameter_address!($name);
            let maps = [first, first + size_of::<TensorMap>() as u64];
            // SAFETY: the entry's.
            unsafe { crate::projection::sm90::project::<row::$element>(params, maps) }
        }
        run
    }};
}

/// The products of clouds by a tensor map, which is the first field of the entry's parameter.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! chamfer_products {
    () => {{
        use crate::abi::params::chamfer::products::ProductParams;

        #[inline(always)]
        unsafe fn run(params: &ProductParams) {
            let map = crate::ptx::parameter_address!(maxsim_chamfer_sm90_products);
            // SAFETY: the entry's.
            unsafe { crate::chamfer::products::products(params, map) }
        }
        run
    }};
}

/// A kernel of XTR by tensor maps, which are the first three fields of the entry's parameter.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! collect_mapped {
    ($name:ident $element:ident) => {{
        use crate::abi::params::TensorMap;
        use crate::abi::params::xtr::CollectParams;

        #[inline(always)]
        unsafe fn run(params: &CollectParams) {
            let queries = crate::ptx::parameter_address!($name);
            let map_bytes = size_of::<TensorMap>() as u64;
            let maps = crate::sm90::Maps {
                queries,
                documents: queries + map_bytes,
                document_tails: queries + 2 * map_bytes,
            };
            // SAFETY: the entry's.
            unsafe { crate::sm90::collect::collect::<crate::sm90::$element>(params, maps) }
        }
        run
    }};
}

/// Names that the entries of one instruction set use.
#[allow(unused_imports)]
mod names {
    pub(super) use crate::backward;
    pub(super) use crate::backward::segmented_sum;
    #[cfg(maxsim_arch = "sm_80")]
    pub(super) use crate::primitives::residual_chunk as chunk;
    #[cfg(maxsim_arch = "sm_80")]
    pub(super) use crate::primitives::row_scales::{AsTheyAre, Normalized};
    pub(super) use crate::primitives::row_vector as row;
    #[cfg(maxsim_arch = "sm_80")]
    pub(super) use crate::sm80;
    #[cfg(maxsim_arch = "sm_80")]
    pub(super) use crate::sm80::collect::{self, Wide};
    #[cfg(maxsim_arch = "sm_80")]
    pub(super) use crate::sm80::residual::{self, by_centroid};
}
use names::*;

macro_rules! entry {
    (Sm80 $name:ident($params:ty)) => {
        entry!("sm_80" $name($params));
    };
    (Sm90a $name:ident($params:ty)) => {
        entry!("sm_90a" $name($params));
    };
    ($arch:literal $name:ident($params:ty)) => {
        /// # Safety
        /// Launched by the host with the CTA's size and shared memory that the table says, and
        /// parameters and a grid as their struct says.
        #[cfg(maxsim_arch = $arch)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: $params) {
            // SAFETY: the host's promise.
            unsafe { run!($name)(&params) }
        }
    };
}

/// The entries of a family.
macro_rules! lines {
    ($params:tt $($arch:ident $element:tt $name:ident $blocks:literal $($word:ident)?;)*) => {
        $(entry!($arch $name $params);)*
    };
}

macro_rules! entries {
    ($(
        $(#[$doc:meta])*
        $handle:ident($($params:ident)::+): $role:ident, $threads:expr, $shared:expr => {
            $($lines:tt)*
        }
    )*) => {
        $(lines! { (crate::abi::params::$($params)::+) $($lines)* })*
    };
}
auxiliary_kernels!(entries);
