//! Types of the numbers of a matrix, whatever instruction multiplies them.
//!
//! Each family of instructions or kernels extends [`Element`] by a trait of its own.

/// Elements, or codes, of a matrix's rows.
pub trait Element {
    /// Bytes of one.
    const BYTES: usize;
}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident $bytes:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name;

        impl Element for $name {
            const BYTES: usize = $bytes;
        }
    )*};
}

elements! {
    /// IEEE 754 binary16.
    F16 2;
    /// bfloat16.
    Bf16 2;
    /// IEEE 754 binary32. On tensor cores of Hopper: the sum of two numbers of 19 bits.
    F32 4;
    /// Signed whole numbers of one byte.
    I8 1;
    /// Whole numbers of one byte: signed ones in queries, from 0 on in documents.
    I8Affine 1;
    /// Floating point numbers of one byte, 3 fraction bits.
    E4m3 1;
}

#[cfg(maxsim_arch = "sm_90a")]
elements! {
    /// binary32 that TMA rounds to its upper 19 bits.
    Tf32 4;
    /// f16, of documents decoded before the launch, beside r.
    ResidualF16 2;
    /// bf16, of documents decoded before the launch, beside r.
    ResidualBf16 2;
    /// f16, of rows that are normalised without winners.
    NormalizedF16 2;
    /// bf16, of rows that are normalised without winners.
    NormalizedBf16 2;
}

#[cfg(maxsim_arch = "sm_80")]
elements! {
    /// f16 queries of affine documents.
    AffineF16 2;
    /// bf16 queries of affine documents.
    AffineBf16 2;
}
