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

/// Operand of a kernel: elements, or the codes of compressed tokens ([`crate::abi::quantize`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The elements of a token matrix.
    Element(ElementType),
    /// Signed whole numbers of one byte, whose products are added exactly.
    I8,
    /// INT8 codes of queries, and for documents whole numbers from 0 on, with a scale and a minimum
    /// each.
    I8Affine,
    /// Elements, of queries as they are, of documents whole numbers of one byte from 0 on, with a
    /// scale and a minimum each.
    Affine(ElementType),
    /// Eight-bit floating point numbers of 3 fraction bits.
    E4m3,
    /// Elements, of queries as they are, of documents decoded from centroids and buckets
    /// ([`crate::abi::residual_chunk`]).
    Residual(ElementType),
}

impl Operand {
    /// Size of an element or code in bytes, as it is multiplied.
    pub const fn size_bytes(self) -> usize {
        match self {
            Operand::Element(element) | Operand::Affine(element) | Operand::Residual(element) => {
                element.size_bytes()
            }
            Operand::I8 | Operand::I8Affine | Operand::E4m3 => 1,
        }
    }

    /// The name used in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Operand::Element(element) => element.name(),
            Operand::I8 => "i8",
            Operand::I8Affine => "i8_affine",
            Operand::Affine(ElementType::F16) => "affine_f16",
            Operand::Affine(ElementType::Bf16) => "affine_bf16",
            Operand::Affine(ElementType::F32) => "affine_f32",
            Operand::E4m3 => "e4m3",
            Operand::Residual(ElementType::F16) => "residual_f16",
            Operand::Residual(ElementType::Bf16) => "residual_bf16",
            Operand::Residual(ElementType::F32) => "residual_f32",
        }
    }

    /// Whether documents are decoded between memory and the products.
    pub const fn is_decoded(self) -> bool {
        matches!(self, Operand::Residual(_))
    }

    /// Whether similarities are those of codes, times the scales of both rows.
    pub const fn is_code(self) -> bool {
        matches!(self, Operand::I8 | Operand::I8Affine | Operand::E4m3)
    }

    /// Whether documents have a minimum each, beside their scale.
    pub const fn has_mins(self) -> bool {
        matches!(self, Operand::I8Affine | Operand::Affine(_))
    }
}

impl From<ElementType> for Operand {
    fn from(element: ElementType) -> Operand {
        Operand::Element(element)
    }
}

impl PartialEq<ElementType> for Operand {
    fn eq(&self, element: &ElementType) -> bool {
        *self == Operand::Element(*element)
    }
}

// Formatting is for the host: on the device it would drag in calls.
#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Display for ElementType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Display for Operand {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
