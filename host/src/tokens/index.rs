//! The integer types of offsets, lengths, starts and ids.

mod sealed {
    pub trait Sealed {}
}

/// An integer type that offsets, lengths, starts and ids may have: any of Rust's up to 64 bits.
/// Sealed.
///
/// Every entry is checked; one that is negative or too large is an
/// [`Error::Offset`](crate::Error::Offset) that names it, and never wraps.
#[diagnostic::on_unimplemented(
    message = "offsets, lengths, starts and ids cannot be of type `{Self}`",
    label = "expected an integer type of at most 64 bits",
    note = "usize, u32, u64, i32 and i64 are taken"
)]
pub trait Index: Copy + sealed::Sealed {
    /// Converts to the same number, exactly.
    #[doc(hidden)]
    fn to_i128(self) -> i128;
}

macro_rules! index {
    ($($integer:ty)*) => {$(
        impl sealed::Sealed for $integer {}
        impl Index for $integer {
            fn to_i128(self) -> i128 {
                // No integer of 64 bits is beyond i128.
                self as i128
            }
        }
    )*};
}

index!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);
