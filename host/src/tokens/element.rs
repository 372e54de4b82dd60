//! Element types of token matrices, as Rust types.

use half::{bf16, f16};
pub use maxsim_kernels::abi::element::ElementType;

use super::format::Format;

/// A Rust type that can be an element of a token matrix: [`half::f16`],
/// [`half::bf16`] or `f32`. Sealed: kernels exist for these only.
#[diagnostic::on_unimplemented(
    message = "tokens cannot have elements of type `{Self}`",
    label = "expected f32, f16 or bf16",
    note = "of numbers without a type Rust makes f64: write `1.0f32`, or `x as f32`",
    note = "`maxsim::half` has the types f16 and bf16"
)]
pub trait Element: Format<Stored = Self> + bytemuck::Pod {
    /// The element type this is.
    const TYPE: ElementType;

    /// The value as `f32`; exact for all three types.
    fn to_f32(self) -> f32;

    /// The nearest value of this type (ties to even).
    fn from_f32(value: f32) -> Self;
}

impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }
}
