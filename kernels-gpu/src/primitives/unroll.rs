//! Loops that are unrolled in the source: their index is a constant.

/// Straight-line repetition: `$body` sees `$i` as a constant from 0 on. In a loop register arrays
/// would be in memory.
macro_rules! unroll {
    ($i:ident in 0..2 => $body:block) => {
        unroll!($i => $body; 0 1)
    };
    ($i:ident in 0..3 => $body:block) => {
        unroll!($i => $body; 0 1 2)
    };
    ($i:ident in 0..4 => $body:block) => {
        unroll!($i => $body; 0 1 2 3)
    };
    ($i:ident in 0..6 => $body:block) => {
        unroll!($i => $body; 0 1 2 3 4 5)
    };
    ($i:ident in 0..8 => $body:block) => {
        unroll!($i => $body; 0 1 2 3 4 5 6 7)
    };
    ($i:ident in 0..16 => $body:block) => {
        unroll!($i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident => $body:block; $($value:literal)*) => {
        $({
            const $i: usize = $value;
            $body
        })*
    };
}
pub(crate) use unroll;
