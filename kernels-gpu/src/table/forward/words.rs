//! Meaning of the words of a line, and the parameter structs that kernels take.

use crate::table::Entry;
use crate::table::forward::Variant;

/// Defines once for each parameter struct of forward kernels: the kind that a word names, the
/// struct's type for the entry point, and the entry that the host launches.
macro_rules! params_kinds {
    ($($kind:ident($struct:ident),)*) => {
        /// The parameter structs of forward kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ParamsKind {
            $(
                #[doc = concat!("[`crate::abi::params::", stringify!($struct), "`].")]
                $kind,
            )*
        }

        /// The parameter structs by their kinds.
        #[cfg(target_arch = "nvptx64")]
        pub(crate) mod params_of {
            $(pub type $kind = crate::abi::params::$struct;)*
        }

        /// The entry point of a forward kernel, of the struct that it takes.
        #[derive(Clone, Copy)]
        pub enum ForwardEntry {
            $(
                #[doc = concat!("Takes a [`crate::abi::params::", stringify!($struct), "`].")]
                $kind(Entry<crate::abi::params::$struct>),
            )*
        }

        impl Variant {
            /// Entry point, with the struct that it takes.
            pub const fn entry(&self) -> ForwardEntry {
                match self.params {
                    $(ParamsKind::$kind => ForwardEntry::$kind(Entry::new(self.resources())),)*
                }
            }
        }
    };
}

params_kinds! {
    Forward(ForwardParams),
    Normalized(NormalizedParams),
    Contiguous(ContiguousParams),
    ScaledContiguous(ScaledContiguousParams),
    ContiguousStreamK(ContiguousStreamKParams),
    NormalizedContiguous(NormalizedContiguousParams),
    NormalizedContiguousStreamK(NormalizedContiguousStreamKParams),
    Residual(ResidualParams),
    ByCentroid(ByCentroidParams),
}

/// Gives `$take!` what a word stands for: whether winners are found, the schedule, the row
/// operation and the kind of parameters, and behind them the rest of a line.
#[rustfmt::skip] // one line, one word
macro_rules! facts {
    (scores $take:ident $($line:tt)*) => {
        $take! { false Persistent Plain Forward $($line)* } };
    (winners $take:ident $($line:tt)*) => {
        $take! { true Persistent Plain Forward $($line)* } };
    (stream_k $take:ident $($line:tt)*) => {
        $take! { false StreamK Plain Forward $($line)* } };
    (normalized $take:ident $($line:tt)*) => {
        $take! { true Persistent Normalized Normalized $($line)* } };
    (normalized_scores $take:ident $($line:tt)*) => {
        $take! { false Persistent SelfNormalized Normalized $($line)* } };
    (scaled $take:ident $($line:tt)*) => {
        $take! { false Persistent Scaled Normalized $($line)* } };
    (scaled_winners $take:ident $($line:tt)*) => {
        $take! { true Persistent Scaled Normalized $($line)* } };
    (affine_winners $take:ident $($line:tt)*) => {
        $take! { true Persistent Affine Normalized $($line)* } };
    (swap_ab $take:ident $($line:tt)*) => {
        $take! { false SwapAb Scaled Normalized $($line)* } };
    (swap_ab_stream_k $take:ident $($line:tt)*) => {
        $take! { false SwapAbStreamK Scaled Normalized $($line)* } };
    (contiguous $take:ident $($line:tt)*) => {
        $take! { false Contiguous Plain Contiguous $($line)* } };
    (scaled_contiguous $take:ident $($line:tt)*) => {
        $take! { false Contiguous Scaled ScaledContiguous $($line)* } };
    (contiguous_stream_k $take:ident $($line:tt)*) => {
        $take! { false ContiguousStreamK Plain ContiguousStreamK $($line)* } };
    (normalized_contiguous $take:ident $($line:tt)*) => {
        $take! { false Contiguous SelfNormalized NormalizedContiguous $($line)* } };
    (normalized_contiguous_stream_k $take:ident $($line:tt)*) => {
        $take! { false ContiguousStreamK SelfNormalized NormalizedContiguousStreamK $($line)* } };
    (decoded $take:ident $($line:tt)*) => {
        $take! { false Persistent Decoded Residual $($line)* } };
    (decoded_winners $take:ident $($line:tt)*) => {
        $take! { true Persistent Decoded Residual $($line)* } };
    (decoded_once $take:ident $($line:tt)*) => {
        $take! { false Persistent DecodedOnce Normalized $($line)* } };
    (by_centroid $take:ident $($line:tt)*) => {
        $take! { false ByCentroid Decoded ByCentroid $($line)* } };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use facts;
