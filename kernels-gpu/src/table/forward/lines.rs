//! Makes a [`Variant`](crate::table::forward::Variant) of a line: a macro for each kind of tile.

/// The variants of some lines.
macro_rules! variants {
    ($($kind:ident { $($name:ident $operand:ident $word:ident $tile:tt)* })*) => {
        &[$($(facts! { $word $kind $name $operand $tile }),*),*]
    };
}

/// A variant with these constants of its tile. All kinds have the rest of a line alike.
macro_rules! variant {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        { $($tile:tt)* }) => {
        Variant {
            name: stringify!($name),
            operand: operand!($operand),
            tf32: tf32!($operand),
            winners: $winners,
            schedule: Schedule::$schedule,
            row_operation: RowOperation::$operation,
            params: ParamsKind::$params,
            $($tile)*
        }
    };
}

/// `mma.sync` on tiles of both sides: slabs of a query row that stay in registers (0 = they stream,
/// for any dim), warps, fragments of 16 rows per warp, tokens of a tile, stages of the ring, CTAs
/// of a multiprocessor.
macro_rules! sm80_tiles {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        [$slabs:literal $warps:literal $fragments:literal $tile:literal $stages:literal
            $blocks:literal $rate:literal]) => {
        variant! { $winners $schedule $operation $params $name $operand {
            arch: Arch::Sm80,
            dim_max: match $slabs {
                0 => DIM_MAX,
                slabs => layout::SLAB_BYTES / operand!($operand).size_bytes() * slabs,
            },
            query_tile: layout::sm80::query_tile($warps, $fragments),
            document_tile: $tile,
            tail_step: layout::sm80::TAIL_STEP,
            streams_queries: $slabs == 0,
            stages: $stages,
            threads: 32 * $warps,
            blocks: $blocks,
            rate: $rate,
        } }
    };
}

/// `mma.sync` on documents that each warp decodes in registers: warps, CTAs of a multiprocessor.
macro_rules! sm80_decoded {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        [$warps:literal $blocks:literal $rate:literal]) => {
        variant! { $winners $schedule $operation $params $name $operand {
            arch: Arch::Sm80,
            dim_max: 128,
            query_tile: layout::sm80::RESIDUAL_ROWS,
            document_tile: Group::ROWS,
            tail_step: Group::ROWS,
            streams_queries: false,
            stages: 0,
            threads: 32 * $warps,
            blocks: $blocks,
            rate: $rate,
        } }
    };
}

/// `wgmma` on tiles that TMA loads: consumer warpgroups, fragments of 64 rows per consumer, steps
/// of 32 bytes of a query row that stays in shared memory (0 = its slabs stream, for any dim),
/// stages of the ring, narrowest width of a document's last tile.
macro_rules! sm90_tiles {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        [$consumers:literal $fragments:literal $steps:literal $stages:literal $tail:literal
            $rate:literal]) => {
        variant! { $winners $schedule $operation $params $name $operand {
            arch: Arch::Sm90a,
            dim_max: match $steps {
                0 => DIM_MAX,
                steps => layout::sm90::STEP_BYTES / operand!($operand).size_bytes() * steps,
            },
            query_tile: layout::sm90::query_tile($consumers, $fragments),
            document_tile: layout::sm90::DOCUMENT_TILE,
            tail_step: $tail,
            streams_queries: $steps == 0,
            stages: $stages,
            threads: match RowOperation::$operation {
                RowOperation::Decoded => layout::sm90::decoding_threads($consumers),
                _ => layout::sm90::threads($consumers),
            },
            // A single consumer has room for a second CTA on the multiprocessor.
            blocks: if $consumers == 1 { 2 } else { 1 },
            rate: $rate,
        } }
    };
}

/// `wgmma` on documents that warpgroups decode into shared memory, for one consumer of one
/// fragment: the rest as [`sm90_tiles`].
macro_rules! sm90_decoded {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        [$steps:literal $stages:literal $tail:literal $rate:literal]) => {
        sm90_tiles! {
            $winners $schedule $operation $params $name $operand
            [1 1 $steps $stages $tail $rate]
        }
    };
}

/// `mma.sync` on contiguous documents, which bulk copies load: rows of a chunk, warps, stages of
/// each warp's ring, CTAs of a multiprocessor.
macro_rules! sm90_contiguous {
    ($winners:literal $schedule:ident $operation:ident $params:ident $name:ident $operand:ident
        [$rows:literal $warps:literal $stages:literal $blocks:literal $rate:literal]) => {
        variant! { $winners $schedule $operation $params $name $operand {
            arch: Arch::Sm90a,
            dim_max: layout::contiguous::DIM,
            query_tile: layout::contiguous::QUERY_ROWS,
            document_tile: $rows,
            tail_step: layout::contiguous::PRODUCT_ROWS,
            streams_queries: false,
            stages: $stages,
            threads: layout::contiguous::threads($warps, operand!($operand).is_code()),
            blocks: $blocks,
            rate: $rate,
        } }
    };
}

/// The operand that a line names.
#[rustfmt::skip]
macro_rules! operand {
    (Tf32) => { Operand::Element(ElementType::F32) };
    (NormalizedF16) => { Operand::Element(ElementType::F16) };
    (NormalizedBf16) => { Operand::Element(ElementType::Bf16) };
    (I8) => { Operand::I8 };
    (I8Affine) => { Operand::I8Affine };
    (AffineF16) => { Operand::Affine(ElementType::F16) };
    (AffineBf16) => { Operand::Affine(ElementType::Bf16) };
    (E4m3) => { Operand::E4m3 };
    (ResidualF16) => { Operand::Residual(ElementType::F16) };
    (ResidualBf16) => { Operand::Residual(ElementType::Bf16) };
    ($element:ident) => { Operand::Element(ElementType::$element) };
}

/// Whether f32 elements are rounded to TF32.
#[rustfmt::skip]
macro_rules! tf32 {
    (Tf32) => { true };
    ($operand:ident) => { false };
}
