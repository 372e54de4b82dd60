//! The element types a token matrix can hold.

/// Element type of a token matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an IEEE 754 binary32.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl ElementType {
    /// Every element type.
    pub const ALL: [ElementType; 3] = [ElementType::F16, ElementType::Bf16, ElementType::F32];

    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 => 4,
        }
    }

    /// The name used in file formats, kernel names and messages.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::F32 => "f32",
        }
    }
}

// Formatting is for the host: on the device it would drag in calls.
#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Display for ElementType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
