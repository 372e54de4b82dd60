//! The entries: one per row of the variant table, the sum of partials, the combination of pieces,
//! the read, those of gradients, those of losses, those that score winners again, and those that
//! compress rows.

#[cfg(maxsim_arch = "sm_80")]
use crate::gradient::sources::I8;
use crate::gradient::sources::{Bf16, F16, F32};
use crate::variants::forward_variants;

macro_rules! winners {
    (scores) => {
        false
    };
    (scaled) => {
        false
    };
    ($found:ident) => {
        true
    };
}

macro_rules! params_type {
    (scores) => {
        crate::params::ForwardParams
    };
    (winners) => {
        crate::params::ForwardParams
    };
    (in_runs) => {
        crate::params::RunParams
    };
    (scaled_in_runs) => {
        crate::params::ScaledRunParams
    };
    (cut_runs) => {
        crate::params::CutRunParams
    };
    ($with_factors:ident) => {
        crate::params::NormalizedParams
    };
}

/// The parameters of every forward entry.
macro_rules! forward_params {
    (scores $params:ident) => {
        &$params
    };
    (winners $params:ident) => {
        &$params
    };
    ($with_factors:ident $params:ident) => {
        &$params.forward
    };
}

/// What an entry runs that reads documents as runs of rows.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! forward_runs {
    (in_runs $row:ident $params:ident) => {
        crate::sm90::runs::forward::<$row>(&$params, norms!(in_runs $params))
    };
    (scaled_in_runs $row:ident $params:ident) => {
        crate::sm90::runs::forward::<$row>(&$params.runs, norms!(scaled_in_runs $params))
    };
    (cut_runs $row:ident $params:ident) => {
        crate::sm90::runs::forward_cut::<$row>(&$params)
    };
}

#[cfg(maxsim_arch = "sm_80")]
macro_rules! normalizer {
    (scores $element:ident) => {
        crate::norms::AsTheyAre
    };
    (winners $element:ident) => {
        crate::norms::AsTheyAre
    };
    (affine_winners $element:ident) => {
        crate::sm80::Affine<affine_queries!($element)>
    };
    ($with_factors:ident $element:ident) => {
        crate::norms::Normalized
    };
}

/// The queries of affine documents.
#[cfg(maxsim_arch = "sm_80")]
macro_rules! affine_queries {
    (I8Affine) => {
        I8
    };
    (AffineF16) => {
        F16
    };
    (AffineBf16) => {
        Bf16
    };
}

#[cfg(maxsim_arch = "sm_90a")]
macro_rules! normalizes {
    (scores) => {
        false
    };
    (winners) => {
        false
    };
    ($with_factors:ident) => {
        true
    };
}

macro_rules! norms {
    (scores $params:ident) => {
        crate::norms::Norms::NONE
    };
    (winners $params:ident) => {
        crate::norms::Norms::NONE
    };
    (in_runs $params:ident) => {
        crate::norms::Norms::NONE
    };
    (scaled_in_runs $params:ident) => {
        crate::norms::Norms::of_runs(&$params)
    };
    ($with_factors:ident $params:ident) => {
        crate::norms::Norms::of(&$params)
    };
}

#[cfg(maxsim_arch = "sm_80")]
macro_rules! product {
    (resident $tile:literal) => {
        crate::sm80::Resident
    };
    (streamed $tile:literal) => {
        crate::sm80::Streamed<{ $tile / 2 }>
    };
}

macro_rules! entry {
    (sm80 $name:ident $element:ident by_centroid $($tile:tt)*) => {
        by_centroid_entry!($name forward(ByCentroidParams) $element);
    };
    (sm80 $name:ident $element:ident decoded $($tile:tt)*) => {
        residual_entry!(sm80 $name $element);
    };
    (sm90 $name:ident $element:ident $outputs:ident rows $rows:literal, warps $warps:literal, stages $stages:literal, blocks $blocks:literal) => {
        /// # Safety
        /// As the sm_80 entries.
        #[cfg(maxsim_arch = "sm_90a")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: params_type!($outputs)) {
            struct Row;
            impl crate::sm90::runs::Kernel for Row {
                type Element = crate::sm90::runs::$element;
                const WARPS: usize = $warps;
                const STAGES: usize = $stages;
                const CHUNK_ROWS: usize = $rows;
            }
            // SAFETY: the host's promise.
            unsafe { forward_runs!($outputs Row params) }
        }
    };
    (sm90 $name:ident $element:ident cut consumers $consumers:literal, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scores cut $consumers $fragments $steps $stages $tail);
    };
    (sm90 $name:ident $element:ident scaled consumers 4, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scaled turned 4 $fragments $steps $stages $tail);
    };
    (sm90 $name:ident $element:ident scaled_cut consumers 4, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scaled turned_cut 4 $fragments $steps $stages $tail);
    };
    (sm90 $name:ident $element:ident decoded $($tile:tt)*) => {
        residual_entry!($name $element false $($tile)*);
    };
    (sm90 $name:ident $element:ident decoded_winners $($tile:tt)*) => {
        residual_entry!($name $element true $($tile)*);
    };
    (sm80 $name:ident $element:ident $outputs:ident $product:ident $slabs:literal, warps $warps:literal, fragments $fragments:literal, tile $tile:literal, stages $stages:literal, blocks $blocks:literal) => {
        /// # Safety
        /// Launched by the host with the row's block size and shared memory, and parameters
        /// as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: params_type!($outputs)) {
            struct Row;
            impl crate::sm80::Kernel for Row {
                type Element = crate::sm80::$element;
                type Product = product!($product $tile);
                const WARPS: usize = $warps;
                const FRAGMENTS: usize = $fragments;
                const SLABS: usize = $slabs;
                const TILE: usize = $tile;
                const STAGES: usize = $stages;
                const WINNERS: bool = winners!($outputs);
                type Normalizer = normalizer!($outputs $element);
            }
            let normalizer = <normalizer!($outputs $element)>::new(norms!($outputs params));
            // SAFETY: the host's promise.
            unsafe { crate::sm80::forward::<Row>(forward_params!($outputs params), normalizer) }
        }
    };
    (sm90 $name:ident $element:ident $outputs:ident consumers $consumers:literal, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element $outputs whole $consumers $fragments $steps $stages $tail);
    };
}

/// Entries that read both sides by TMA. Documents are whole in every unit, or may be cut, or are the rows of products,
/// or both.
macro_rules! tiled_entry {
    (run whole $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::forward::<$row, { REGISTERS[0] }, { REGISTERS[1] }, { REGISTERS[2] }>(
            $params, $maps, $norms,
        )
    }};
    (run cut $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::cut::forward::<$row, { REGISTERS[0] }, { REGISTERS[2] }>($params, $maps)
    }};
    (run_turned $cuts:literal $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::turned::forward::<$row, { REGISTERS[0] }, { REGISTERS[2] }, $cuts>(
            $params, $maps, $norms,
        )
    }};
    (run turned $row:ident $params:expr, $maps:expr, $norms:expr) => {
        tiled_entry!(run_turned false $row $params, $maps, $norms)
    };
    (run turned_cut $row:ident $params:expr, $maps:expr, $norms:expr) => {
        tiled_entry!(run_turned true $row $params, $maps, $norms)
    };
    ($name:ident $element:ident $outputs:ident $documents:ident $consumers:literal $fragments:literal $steps:literal $stages:literal $tail:literal) => {
        /// # Safety
        /// As the sm_80 entries; the parameter is aligned to 64 bytes.
        #[cfg(maxsim_arch = "sm_90a")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: params_type!($outputs)) {
            struct Row;
            impl crate::sm90::Kernel for Row {
                type Element = crate::sm90::$element;
                const CONSUMERS: usize = $consumers;
                const FRAGMENTS: usize = $fragments;
                const STEPS: usize = $steps;
                const STAGES: usize = $stages;
                const TAIL_STEP: usize = $tail;
                const WINNERS: bool = winners!($outputs);
                const NORMALIZES: bool = normalizes!($outputs);
            }
            const MAP_BYTES: u64 = size_of::<crate::params::TensorMap>() as u64;
            let first = crate::ptx::parameter_address!($name);
            // The maps are the parameter's first three fields.
            let maps = crate::sm90::Maps {
                queries: first,
                documents: first + MAP_BYTES,
                document_tails: first + 2 * MAP_BYTES,
            };
            // SAFETY: the host's promise.
            unsafe {
                tiled_entry!(run $documents Row forward_params!($outputs params), maps, norms!($outputs params))
            }
        }
    };
}

macro_rules! by_centroid_entry {
    ($name:ident $run:ident($params:ident) $element:ident) => {
        /// # Safety
        /// As the other sm_80 entries.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::params::$params) {
            // SAFETY: the host's promise.
            unsafe {
                crate::sm80::residual::by_centroid::$run::<crate::sm80::residual::$element>(&params)
            }
        }
    };
}

by_centroid_entry!(maxsim_centroid_scores_f16 centroid_scores(CentroidScoresParams) ResidualF16);
by_centroid_entry!(maxsim_centroid_scores_bf16 centroid_scores(CentroidScoresParams) ResidualBf16);
by_centroid_entry!(maxsim_infinite_queries_f16 infinite(ByCentroidParams) ResidualF16);
by_centroid_entry!(maxsim_infinite_queries_bf16 infinite(ByCentroidParams) ResidualBf16);

macro_rules! residual_entry {
    (sm80 $name:ident $element:ident) => {
        /// # Safety
        /// As the other sm_80 entries.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::params::ResidualParams) {
            // SAFETY: the host's promise.
            unsafe {
                crate::sm80::residual::forward::<crate::sm80::residual::$element>(
                    &params.forward,
                    &params.documents,
                )
            }
        }
    };
    ($name:ident $element:ident $winners:literal consumers $consumers:literal, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        /// # Safety
        /// As the other sm_90a entries.
        #[cfg(maxsim_arch = "sm_90a")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::params::ResidualParams) {
            struct Row;
            impl crate::sm90::Kernel for Row {
                type Element = crate::sm90::residual::$element;
                const CONSUMERS: usize = $consumers;
                const FRAGMENTS: usize = $fragments;
                const STEPS: usize = $steps;
                const STAGES: usize = $stages;
                const TAIL_STEP: usize = $tail;
                const WINNERS: bool = $winners;
                const NORMALIZES: bool = false;
            }
            let queries = crate::ptx::parameter_address!($name);
            // Documents are not read through maps.
            let maps = crate::sm90::Maps { queries, documents: queries, document_tails: queries };
            const REGISTERS: [u32; 3] = crate::sm90::residual::registers::<Row>();
            // SAFETY: the host's promise.
            unsafe {
                crate::sm90::residual::forward::<
                    Row,
                    { REGISTERS[0] },
                    { REGISTERS[1] },
                    { REGISTERS[2] },
                >(&params.forward, maps, &params.documents)
            }
        }
    };
}

macro_rules! entries {
    ($($arch:ident $name:ident { $element:ident, $outputs:ident, $($tile:tt)* })*) => {
        $(entry!($arch $name $element $outputs $($tile)*);)*
    };
}
forward_variants!(entries);

/// # Safety
/// Launched by the host with parameters as [`crate::params::SumPartialsParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_sum_partials(params: crate::params::SumPartialsParams) {
    // SAFETY: the host's promise.
    unsafe { crate::sum::sum_partials(&params) }
}

/// # Safety
/// Launched by the host, a block per score with its shared memory, and parameters as
/// [`crate::params::CombinePiecesParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_combine_pieces(
    params: crate::params::CombinePiecesParams,
) {
    // SAFETY: the host's promise.
    unsafe { crate::combine::combine_pieces(&params) }
}

/// # Safety
/// Launched by the host with parameters as [`crate::params::ReadParams`] says.
#[cfg(maxsim_arch = "sm_80")]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn maxsim_read(params: crate::params::ReadParams) {
    // SAFETY: the host's promise.
    unsafe { crate::read::read(&params) }
}

macro_rules! gradient_entries {
    ($arch:literal: $($(#[$doc:meta])* $name:ident($params:ident) = $run:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = $arch)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::gradient::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

gradient_entries! {
    "sm_80":
    /// Factors that normalise f16 rows.
    maxsim_row_norms_f16(RowNormsParams) = crate::norms::row_norms::<F16>;
    /// Factors that normalise bf16 rows.
    maxsim_row_norms_bf16(RowNormsParams) = crate::norms::row_norms::<Bf16>;
    /// Factors that normalise f32 rows.
    maxsim_row_norms_f32(RowNormsParams) = crate::norms::row_norms::<F32>;
    /// Sums over pairs of f16 documents.
    maxsim_gradient_gather_f16(GatherParams) = crate::gradient::gather::gather::<F16>;
    /// Sums over pairs of bf16 documents.
    maxsim_gradient_gather_bf16(GatherParams) = crate::gradient::gather::gather::<Bf16>;
    /// Sums over pairs of f32 documents.
    maxsim_gradient_gather_f32(GatherParams) = crate::gradient::gather::gather::<F32>;
    /// Sums over pairs of documents that are codes.
    maxsim_gradient_gather_i8(GatherParams) = crate::gradient::gather::gather::<I8>;
    /// Sums over sorted sources of f16 queries.
    maxsim_gradient_owner_sm80_f16(OwnerParams) = crate::gradient::owner::owner::<F16>;
    /// Sums over sorted sources of bf16 queries.
    maxsim_gradient_owner_sm80_bf16(OwnerParams) = crate::gradient::owner::owner::<Bf16>;
    /// Sums over sorted sources of f32 queries.
    maxsim_gradient_owner_sm80_f32(OwnerParams) = crate::gradient::owner::owner::<F32>;
    /// Sums over the tokens of one query, f16.
    maxsim_gradient_few_sm80_f16(FewParams) = crate::gradient::few::few::<F16>;
    /// Sums over the tokens of one query, bf16.
    maxsim_gradient_few_sm80_bf16(FewParams) = crate::gradient::few::few::<Bf16>;
    /// Sums over the tokens of one query, f32.
    maxsim_gradient_few_sm80_f32(FewParams) = crate::gradient::few::few::<F32>;
    /// Gradients of f16 rows from those of normalised ones.
    maxsim_gradient_project_f16(ProjectParams) = crate::gradient::normalize::project::<F16>;
    /// Gradients of bf16 rows from those of normalised ones.
    maxsim_gradient_project_bf16(ProjectParams) = crate::gradient::normalize::project::<Bf16>;
    /// Gradients of f32 rows from those of normalised ones.
    maxsim_gradient_project_f32(ProjectParams) = crate::gradient::normalize::project::<F32>;
    /// Counts sources.
    maxsim_gradient_count(CountParams) = crate::gradient::count::count;
    /// Sorts sources.
    maxsim_gradient_invert(SortParams) = crate::gradient::invert::invert;
    /// Joins rows.
    maxsim_gradient_join(OwnerParams) = crate::gradient::join::join;
    /// Adds chunks.
    maxsim_gradient_sum(SumParams) = crate::gradient::sum::sum;
    /// Adds f16 rows atomically.
    maxsim_gradient_atomic_sm80_f16(AtomicParams) = crate::gradient::atomic::atomic::<F16>;
    /// Adds bf16 rows atomically.
    maxsim_gradient_atomic_sm80_bf16(AtomicParams) = crate::gradient::atomic::atomic::<Bf16>;
    /// Adds f32 rows atomically.
    maxsim_gradient_atomic_sm80_f32(AtomicParams) = crate::gradient::atomic::atomic::<F32>;
}

gradient_entries! {
    "sm_90a":
    /// Sums over sorted sources of f16 queries.
    maxsim_gradient_owner_sm90_f16(OwnerParams) = crate::gradient::owner::owner::<F16>;
    /// Sums over sorted sources of bf16 queries.
    maxsim_gradient_owner_sm90_bf16(OwnerParams) = crate::gradient::owner::owner::<Bf16>;
    /// Sums over sorted sources of f32 queries.
    maxsim_gradient_owner_sm90_f32(OwnerParams) = crate::gradient::owner::owner::<F32>;
    /// Sums over the tokens of one query, f16.
    maxsim_gradient_few_sm90_f16(FewParams) = crate::gradient::few::few::<F16>;
    /// Sums over the tokens of one query, bf16.
    maxsim_gradient_few_sm90_bf16(FewParams) = crate::gradient::few::few::<Bf16>;
    /// Sums over the tokens of one query, f32.
    maxsim_gradient_few_sm90_f32(FewParams) = crate::gradient::few::few::<F32>;
    /// Adds f16 rows atomically.
    maxsim_gradient_atomic_sm90_f16(AtomicParams) = crate::gradient::atomic::atomic::<F16>;
    /// Adds bf16 rows atomically.
    maxsim_gradient_atomic_sm90_bf16(AtomicParams) = crate::gradient::atomic::atomic::<Bf16>;
    /// Adds f32 rows atomically.
    maxsim_gradient_atomic_sm90_f32(AtomicParams) = crate::gradient::atomic::atomic::<F32>;
}

macro_rules! residual_norms_entries {
    ($($(#[$doc:meta])* $name:ident = $element:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::params::ResidualNormsParams) {
            // SAFETY: the host's promise.
            unsafe { crate::decoded_norms::decoded_norms::<crate::chunks::$element>(&params) }
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
        pub unsafe extern "ptx-kernel" fn $name(params: crate::residual_gradient::$params) {
            // SAFETY: the host's promise.
            unsafe { $run(&params) }
        }
    )*};
}

residual_gradient_entries! {
    /// Sums over pairs of documents decoded to f16.
    maxsim_residual_gather_f16(ResidualGatherParams) =
        crate::residual_gradient::gather::gather::<crate::chunks::F16>;
    /// Sums over pairs of documents decoded to bf16.
    maxsim_residual_gather_bf16(ResidualGatherParams) =
        crate::residual_gradient::gather::gather::<crate::chunks::Bf16>;
    /// Gradients of rows from those of normalised ones, decoded to f16.
    maxsim_residual_project_f16(ResidualProjectParams) =
        crate::residual_gradient::project::project::<crate::chunks::F16>;
    /// Gradients of rows from those of normalised ones, decoded to bf16.
    maxsim_residual_project_bf16(ResidualProjectParams) =
        crate::residual_gradient::project::project::<crate::chunks::Bf16>;
    /// Adds rows to the parts of the tables' gradients.
    maxsim_residual_tables(TablesParams) = crate::residual_gradient::tables::tables;
    /// Adds parts.
    maxsim_residual_sum(PartsParams) = crate::residual_gradient::sum::sum;
}

macro_rules! loss_entries {
    ($($(#[$doc:meta])* $name:ident($params:ident) = $run:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Launched by the host with parameters and a grid as their struct says.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: crate::loss::$params) {
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
        pub unsafe extern "ptx-kernel" fn $name(params: crate::rescore::RescoreParams) {
            // SAFETY: the host's promise.
            unsafe { crate::rescore::pairs::rescore::<$element>(&params) }
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
        pub unsafe extern "ptx-kernel" fn $name(params: crate::quantize::$params) {
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
