//! The entry points of the forward kernels, one per row of [`crate::table::forward`].

#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::row_vector::{Bf16, F16, I8};
use crate::table::forward::{facts, forward_variants};

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

/// The struct that a row's kernel takes, by the word of the row.
macro_rules! params_struct {
    ($winners:literal $schedule:ident $operation:ident $params:ident) => {
        crate::table::forward::params_of::$params
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
    (contiguous $row:ident $params:ident) => {
        crate::sm90::contiguous::forward::<$row>(&$params, norms!(contiguous $params))
    };
    (scaled_contiguous $row:ident $params:ident) => {
        crate::sm90::contiguous::forward::<$row>(&$params.runs, norms!(scaled_contiguous $params))
    };
    (contiguous_stream_k $row:ident $params:ident) => {
        crate::sm90::contiguous::forward_stream_k::<$row>(&$params)
    };
}

#[cfg(maxsim_arch = "sm_80")]
macro_rules! normalizer {
    (scores $element:ident) => {
        crate::primitives::row_scales::AsTheyAre
    };
    (winners $element:ident) => {
        crate::primitives::row_scales::AsTheyAre
    };
    (affine_winners $element:ident) => {
        crate::sm80::Affine<affine_queries!($element)>
    };
    ($with_factors:ident $element:ident) => {
        crate::primitives::row_scales::Normalized
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
        crate::primitives::row_scales::RowScales::NONE
    };
    (winners $params:ident) => {
        crate::primitives::row_scales::RowScales::NONE
    };
    (contiguous $params:ident) => {
        crate::primitives::row_scales::RowScales::NONE
    };
    (scaled_contiguous $params:ident) => {
        crate::primitives::row_scales::RowScales::of_contiguous(&$params)
    };
    ($with_factors:ident $params:ident) => {
        crate::primitives::row_scales::RowScales::of(&$params)
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
        by_centroid_entry!($name $element);
    };
    (sm80 $name:ident $element:ident decoded $($tile:tt)*) => {
        residual_entry!(sm80 $name $element);
    };
    (sm90 $name:ident $element:ident $outputs:ident rows $rows:literal, warps $warps:literal, stages $stages:literal, blocks $blocks:literal) => {
        /// # Safety
        /// As the sm_80 entries.
        #[cfg(maxsim_arch = "sm_90a")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct $outputs)) {
            struct Row;
            impl crate::sm90::contiguous::Kernel for Row {
                type Element = crate::sm90::contiguous::$element;
                const WARPS: usize = $warps;
                const STAGES: usize = $stages;
                const CHUNK_ROWS: usize = $rows;
            }
            // SAFETY: the host's promise.
            unsafe { forward_runs!($outputs Row params) }
        }
    };
    (sm90 $name:ident $element:ident stream_k consumers $consumers:literal, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scores stream_k $consumers $fragments $steps $stages $tail);
    };
    (sm90 $name:ident $element:ident swap_ab consumers 4, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scaled swap_ab 4 $fragments $steps $stages $tail);
    };
    (sm90 $name:ident $element:ident swap_ab_stream_k consumers 4, fragments $fragments:literal, steps $steps:literal, stages $stages:literal, tail $tail:literal) => {
        tiled_entry!($name $element scaled swap_ab_stream_k 4 $fragments $steps $stages $tail);
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
        pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct $outputs)) {
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

/// Entries that read both sides by TMA. Documents are whole in every unit, or may be cut, or are
/// the rows of products, or both.
macro_rules! tiled_entry {
    (run whole $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::forward::<$row, { REGISTERS[0] }, { REGISTERS[1] }, { REGISTERS[2] }>(
            $params, $maps, $norms,
        )
    }};
    (run stream_k $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::stream_k::forward::<$row, { REGISTERS[0] }, { REGISTERS[2] }>($params, $maps)
    }};
    (run_swap_ab $cuts:literal $row:ident $params:expr, $maps:expr, $norms:expr) => {{
        const REGISTERS: [u32; 3] = <$row as crate::sm90::Kernel>::REGISTERS;
        crate::sm90::swap_ab::forward::<$row, { REGISTERS[0] }, { REGISTERS[2] }, $cuts>(
            $params, $maps, $norms,
        )
    }};
    (run swap_ab $row:ident $params:expr, $maps:expr, $norms:expr) => {
        tiled_entry!(run_swap_ab false $row $params, $maps, $norms)
    };
    (run swap_ab_stream_k $row:ident $params:expr, $maps:expr, $norms:expr) => {
        tiled_entry!(run_swap_ab true $row $params, $maps, $norms)
    };
    ($name:ident $element:ident $outputs:ident $documents:ident $consumers:literal $fragments:literal $steps:literal $stages:literal $tail:literal) => {
        /// # Safety
        /// As the sm_80 entries; the parameter is aligned to 64 bytes.
        #[cfg(maxsim_arch = "sm_90a")]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct $outputs)) {
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
            const MAP_BYTES: u64 = size_of::<crate::abi::params::TensorMap>() as u64;
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
    ($name:ident $element:ident) => {
        /// # Safety
        /// As the other sm_80 entries.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct by_centroid)) {
            // SAFETY: the host's promise.
            unsafe {
                crate::sm80::residual::by_centroid::forward::<crate::sm80::residual::$element>(
                    &params,
                )
            }
        }
    };
}

macro_rules! residual_entry {
    (sm80 $name:ident $element:ident) => {
        /// # Safety
        /// As the other sm_80 entries.
        #[cfg(maxsim_arch = "sm_80")]
        #[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct decoded)) {
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
pub unsafe extern "ptx-kernel" fn $name(params: facts!(params_struct decoded)) {
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
