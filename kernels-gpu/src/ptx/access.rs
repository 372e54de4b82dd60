//! The shapes that loads and stores have: an address, one register or two or four of them, and a
//! condition.
//!
//! A function states its instruction and what its caller promises; the macro of its shape has the
//! operands. Macros begin with the class and type of an address: `reg64 u64` of global memory,
//! `reg32 u32` of shared memory.

/// Loads: `name -> class type = instruction`. Options, as `pure`, are those of `asm!`.
macro_rules! loads {
    ($at:ident $address:ty, $options:tt;
     $($(#[$meta:meta])* $name:ident -> $class:ident $type:ty = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: $address) -> $type {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    concat!($text, " {0}, [{1}];"),
                    out($class) value,
                    in($at) address,
                    options $options,
                );
            }
            value
        }
    )*};
}
pub(super) use loads;

/// Loads of two or four consecutive numbers: `name -> [type; 4] = instruction`.
macro_rules! vector_loads {
    ($at:ident $address:ty, $options:tt;
     $($(#[$meta:meta])* $name:ident -> [$type:ty; $n:tt] = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: $address) -> [$type; $n] {
            // SAFETY: the caller's promise.
            unsafe { vector_loads!($n $text, in($at) address, options $options) }
        }
    )*};
    (2 $text:literal, $($address_and_options:tt)*) => {{
        let (a, b);
        asm!(
            concat!($text, " {{{0}, {1}}}, [{2}];"),
            out(reg32) a,
            out(reg32) b,
            $($address_and_options)*
        );
        [a, b]
    }};
    (4 $text:literal, $($address_and_options:tt)*) => {{
        let (a, b, c, d);
        asm!(
            concat!($text, " {{{0}, {1}, {2}, {3}}}, [{4}];"),
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            $($address_and_options)*
        );
        [a, b, c, d]
    }};
}
pub(super) use vector_loads;

/// Stores: `name(value: class type) = instruction`.
macro_rules! stores {
    ($at:ident $address:ty;
     $($(#[$meta:meta])* $name:ident($value:ident: $class:ident $type:ty) = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: $address, $value: $type) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    concat!($text, " [{0}], {1};"),
                    in($at) address,
                    in($class) $value,
                    options(nostack),
                );
            }
        }
    )*};
}
pub(super) use stores;

/// Stores of two or four consecutive words: `name(value: [type; 4]) = instruction`.
macro_rules! vector_stores {
    ($at:ident $address:ty;
     $($(#[$meta:meta])* $name:ident($value:ident: [$type:ty; $n:tt]) = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: $address, $value: [$type; $n]) {
            // SAFETY: the caller's promise.
            unsafe { vector_stores!($n $text, $value, in($at) address) };
        }
    )*};
    (2 $text:literal, $value:ident, $($address:tt)*) => {
        asm!(
            concat!($text, " [{0}], {{{1}, {2}}};"),
            $($address)*,
            in(reg32) $value[0],
            in(reg32) $value[1],
            options(nostack),
        )
    };
    (4 $text:literal, $value:ident, $($address:tt)*) => {
        asm!(
            concat!($text, " [{0}], {{{1}, {2}, {3}, {4}}};"),
            $($address)*,
            in(reg32) $value[0],
            in(reg32) $value[1],
            in(reg32) $value[2],
            in(reg32) $value[3],
            options(nostack),
        )
    };
}
pub(super) use vector_stores;

/// Stores, and atomic updates without a result, where `condition` is not 0: `name(value: type) =
/// instruction`.
macro_rules! conditional_stores {
    ($at:ident $address:ty;
     $($(#[$meta:meta])* $name:ident($value:ident: $type:ty) = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: $address, $value: $type, condition: u32) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred p;",
                    "setp.ne.b32 p, {2}, 0;",
                    concat!("@p ", $text, " [{0}], {1};"),
                    "}}",
                    in($at) address,
                    in(reg32) $value,
                    in(reg32) condition,
                    options(nostack),
                );
            }
        }
    )*};
}
pub(super) use conditional_stores;

/// Atomic updates that give the value before: `name(value) = instruction`.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! fetches {
    ($($(#[$meta:meta])* $name:ident($value:ident) = $text:literal;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name(address: u64, $value: u32) -> u32 {
            let before;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    concat!($text, " {0}, [{1}], {2};"),
                    out(reg32) before,
                    in(reg64) address,
                    in(reg32) $value,
                    options(nostack),
                );
            }
            before
        }
    )*};
}
#[cfg(maxsim_arch = "sm_90a")]
pub(super) use fetches;
