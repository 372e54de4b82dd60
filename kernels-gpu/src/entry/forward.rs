//! The entry points of the forward kernels, one per line of [`crate::table::forward`].

#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::row_scales::{AsTheyAre, Normalized};
#[cfg(maxsim_arch = "sm_80")]
use crate::primitives::row_vector::{Bf16, F16, I8};
use crate::table::forward::{
    facts, params_of, residual_kernels, sm80_kernels, sm90_code_kernels, sm90_kernels,
};

/// The parameters that all forward kernels have, by the kind of struct.
macro_rules! forward_params {
    (Forward $params:ident) => {
        &$params
    };
    ($kind:ident $params:ident) => {
        &$params.forward
    };
}

/// The row scales of a launch, by the kind of struct.
macro_rules! row_scales {
    (Forward $params:ident) => {
        crate::primitives::row_scales::RowScales::NONE
    };
    (Contiguous $params:ident) => {
        crate::primitives::row_scales::RowScales::NONE
    };
    (ScaledContiguous $params:ident) => {
        crate::primitives::row_scales::RowScales::of_contiguous(&$params)
    };
    (Normalized $params:ident) => {
        crate::primitives::row_scales::RowScales::of(&$params)
    };
}

/// Names the row operation of sm_80 kernels.
#[cfg(maxsim_arch = "sm_80")]
macro_rules! normalizer {
    (Plain $operand:ident) => {
        AsTheyAre
    };
    (Affine I8Affine) => {
        crate::sm80::Affine<I8>
    };
    (Affine AffineF16) => {
        crate::sm80::Affine<F16>
    };
    (Affine AffineBf16) => {
        crate::sm80::Affine<Bf16>
    };
    (Normalized $operand:ident) => {
        Normalized<true>
    };
    ($operation:ident $operand:ident) => {
        Normalized<false>
    };
}

/// Whether sm_90a kernels multiply sums by row scales, by the row operation.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! has_row_scales {
    (Plain) => {
        false
    };
    ($operation:ident) => {
        true
    };
}

#[cfg(maxsim_arch = "sm_80")]
macro_rules! product {
    (0 $tile:literal) => {
        crate::sm80::Streamed<{ $tile / 2 }>
    };
    ($slabs:tt $tile:literal) => {
        crate::sm80::Resident
    };
}

/// Declares the entry point of a line of the table: its parameter is the struct of the kind that
/// the line says, and `$run` has the name that it gives the parameter.
macro_rules! declare {
    ($arch:literal $name:ident($params:ident: $kind:ident) $run:block) => {
        /// # Safety
        /// Launched by the host with the table's CTA size and shared memory, and parameters as
        /// their struct says, on a boundary of 64 bytes where they start with tensor maps.
        #[cfg(maxsim_arch = $arch)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name($params: params_of::$kind) $run
    };
}

macro_rules! sm80_tiles {
    ($winners:literal $schedule:ident $operation:ident $kind:ident $name:ident $operand:ident
        [$slabs:tt $warps:tt $fragments:tt $tile:tt $stages:tt $blocks:tt $rate:tt]) => {
        declare! { "sm_80" $name(params: $kind) {
            struct Row;
            impl crate::sm80::Kernel for Row {
                type Element = crate::sm80::$operand;
                type Product = product!($slabs $tile);
                const WARPS: usize = $warps;
                const FRAGMENTS: usize = $fragments;
                const SLABS: usize = $slabs;
                const TILE: usize = $tile;
                const STAGES: usize = $stages;
                const WINNERS: bool = $winners;
                type Normalizer = normalizer!($operation $operand);
            }
            let normalizer = <normalizer!($operation $operand)>::new(row_scales!($kind params));
            // SAFETY: the host's promise.
            unsafe { crate::sm80::forward::<Row>(forward_params!($kind params), normalizer) }
        } }
    };
}

macro_rules! sm80_decoded {
    ($winners:literal Persistent $operation:ident $kind:ident $name:ident $operand:ident
        $tile:tt) => {
        declare! { "sm_80" $name(params: $kind) {
            // SAFETY: the host's promise.
            unsafe {
                crate::sm80::residual::forward::<crate::sm80::residual::$operand>(
                    &params.forward,
                    &params.documents,
                )
            }
        } }
    };
    ($winners:literal ByCentroid $operation:ident $kind:ident $name:ident $operand:ident
        $tile:tt) => {
        declare! { "sm_80" $name(params: $kind) {
            // SAFETY: the host's promise.
            unsafe {
                crate::sm80::residual::by_centroid::forward::<crate::sm80::residual::$operand>(
                    &params,
                )
            }
        } }
    };
}

/// Runs the kernel of a line of `sm90_tiles`, by its schedule.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! run_tiles {
    (Persistent $params:expr, $maps:expr, $row_scales:expr) => {
        crate::sm90::forward::<Row, { REGISTERS[0] }, { REGISTERS[1] }, { REGISTERS[2] }>(
            $params,
            $maps,
            $row_scales,
        )
    };
    (StreamK $params:expr, $maps:expr, $row_scales:expr) => {
        crate::sm90::stream_k::forward::<Row, { REGISTERS[0] }, { REGISTERS[2] }>($params, $maps)
    };
    (SwapAb $params:expr, $maps:expr, $row_scales:expr) => {
        crate::sm90::swap_ab::forward::<Row, { REGISTERS[0] }, { REGISTERS[2] }, false>(
            $params,
            $maps,
            $row_scales,
        )
    };
    (SwapAbStreamK $params:expr, $maps:expr, $row_scales:expr) => {
        crate::sm90::swap_ab::forward::<Row, { REGISTERS[0] }, { REGISTERS[2] }, true>(
            $params,
            $maps,
            $row_scales,
        )
    };
}

macro_rules! sm90_tiles {
    ($winners:literal $schedule:ident $operation:ident $kind:ident $name:ident $operand:ident
        [$consumers:tt $fragments:tt $steps:tt $stages:tt $tail:tt $rate:tt]) => {
        declare! { "sm_90a" $name(params: $kind) {
            struct Row;
            impl crate::sm90::Kernel for Row {
                type Element = crate::sm90::$operand;
                const CONSUMERS: usize = $consumers;
                const FRAGMENTS: usize = $fragments;
                const STEPS: usize = $steps;
                const STAGES: usize = $stages;
                const TAIL_STEP: usize = $tail;
                const WINNERS: bool = $winners;
                const NORMALIZES: bool = has_row_scales!($operation);
            }
            const REGISTERS: [u32; 3] = <Row as crate::sm90::Kernel>::REGISTERS;
            const MAP_BYTES: u64 = size_of::<crate::abi::params::TensorMap>() as u64;
            let first = crate::ptx::parameter_address!($name);
            // The maps are the parameter's first three fields.
            let maps = crate::sm90::Maps {
                queries: first,
                documents: first + MAP_BYTES,
                document_tails: first + 2 * MAP_BYTES,
            };
            let forward = forward_params!($kind params);
            // SAFETY: the host's promise.
            unsafe { run_tiles!($schedule forward, maps, row_scales!($kind params)) }
        } }
    };
}

macro_rules! sm90_decoded {
    ($winners:literal $schedule:ident $operation:ident $kind:ident $name:ident $operand:ident
        [$steps:tt $stages:tt $tail:tt $rate:tt]) => {
        declare! { "sm_90a" $name(params: $kind) {
            struct Row;
            impl crate::sm90::Kernel for Row {
                type Element = crate::sm90::residual::$operand;
                const CONSUMERS: usize = 1;
                const FRAGMENTS: usize = 1;
                const STEPS: usize = $steps;
                const STAGES: usize = $stages;
                const TAIL_STEP: usize = $tail;
                const WINNERS: bool = $winners;
                const NORMALIZES: bool = false;
            }
            const REGISTERS: [u32; 3] = crate::sm90::residual::registers::<Row>();
            let queries = crate::ptx::parameter_address!($name);
            // Documents are not read through maps.
            let maps = crate::sm90::Maps { queries, documents: queries, document_tails: queries };
            // SAFETY: the host's promise.
            unsafe {
                crate::sm90::residual::forward::<
                    Row,
                    { REGISTERS[0] },
                    { REGISTERS[1] },
                    { REGISTERS[2] },
                >(&params.forward, maps, &params.documents)
            }
        } }
    };
}

/// Runs the kernel of a line of `sm90_contiguous`, by the kind of struct.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! run_contiguous {
    (Contiguous $params:ident) => {
        crate::sm90::contiguous::forward::<Row>(&$params, row_scales!(Contiguous $params))
    };
    (ScaledContiguous $params:ident) => {
        crate::sm90::contiguous::forward::<Row>(
            &$params.runs,
            row_scales!(ScaledContiguous $params),
        )
    };
    (ContiguousStreamK $params:ident) => {
        crate::sm90::contiguous::forward_stream_k::<Row>(
            &$params,
            crate::primitives::row_scales::RowScales::NONE,
        )
    };
    (NormalizedContiguous $params:ident) => {
        crate::sm90::contiguous::forward::<Row>(
            &$params.runs,
            crate::primitives::row_scales::RowScales::of_cosines($params.maxima_are_cosines),
        )
    };
    (NormalizedContiguousStreamK $params:ident) => {
        crate::sm90::contiguous::forward_stream_k::<Row>(
            &$params.shares,
            crate::primitives::row_scales::RowScales::of_cosines($params.maxima_are_cosines),
        )
    };
}

macro_rules! sm90_contiguous {
    ($winners:literal $schedule:ident $operation:ident $kind:ident $name:ident $operand:ident
        [$rows:tt $warps:tt $stages:tt $blocks:tt $rate:tt]) => {
        declare! { "sm_90a" $name(params: $kind) {
            struct Row;
            impl crate::sm90::contiguous::Kernel for Row {
                type Element = crate::sm90::contiguous::$operand;
                const WARPS: usize = $warps;
                const STAGES: usize = $stages;
                const CHUNK_ROWS: usize = $rows;
            }
            // SAFETY: the host's promise.
            unsafe { run_contiguous!($kind params) }
        } }
    };
}

macro_rules! entries {
    ($($kind:ident { $($name:ident $operand:ident $word:ident $tile:tt)* })*) => {
        $($(facts! { $word $kind $name $operand $tile })*)*
    };
}
sm80_kernels!(entries);
sm90_kernels!(entries);
sm90_code_kernels!(entries);
residual_kernels!(entries);
