//! The table of all kernels that are not forward ones: norms, gradients, losses, quantisation …
//!
//! A *family* is the kernels of one purpose, which take the same struct: one kernel for all
//! elements, or one for each. A kernel is one line of its family; a launch names the family.

mod lines;

use core::marker::PhantomData;

use crate::abi::arch::Arch;
use crate::abi::element::ElementType;
use crate::abi::params::{
    self, backward, backward::residual, chamfer, chamfer_search, loss, projection, rescore, search,
    top_k, xtr,
};
use crate::abi::residual_chunk;
pub(crate) use crate::table::auxiliary::lines::auxiliary_kernels;
use crate::table::{Entry, Resources, lines_of, n_lines};

/// Calls that need a kernel: warm-up loads the kernels of a role where such calls are to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Scores of every kind: adds or combines what forward kernels have computed in parts.
    Forward,
    /// Scores and gradients of rows that are normalised.
    Normalized,
    /// Scores of residual-compressed documents through those of their centroids.
    Centroids,
    /// Scores of what codes have found, and codes of queries for them.
    Rescore,
    /// Gradients of every kind.
    Backward,
    /// Gradients of rows that are normalised.
    BackwardNormalized,
    /// Gradients where documents are codes.
    BackwardCodes,
    /// Gradients where documents are residual-compressed.
    BackwardResidual,
    /// Losses on the device.
    Loss,
    /// Rankings on the device.
    TopK,
    /// Chamfer distances and their gradients.
    Chamfer,
    /// Tokens that are projections of hidden states.
    Projection,
    /// XTR scores.
    Xtr,
    /// Work that runs once, where tokens come to a device.
    Upload,
    /// Measurements of the device.
    Measurement,
}

/// A line of the table: one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auxiliary {
    /// Entry of the kernel, and the resources that it takes.
    pub resources: Resources,
    /// The element type that it is for; `None` = all.
    pub element: Option<ElementType>,
    /// The family that it belongs to.
    pub family: &'static str,
    /// Role of the kernel: the calls that need it.
    pub role: Role,
}

/// The kernels of one purpose by element type, all of which take a `P`.
pub struct Family<P> {
    kernels: &'static [Auxiliary],
    params: PhantomData<fn(&P)>,
}

impl Auxiliary {
    /// Whether calls on a device of a compute capability use it: the device runs it, and its
    /// family has none for the same elements and a later instruction set that it runs, too.
    pub fn is_for(&self, capability: (u32, u32)) -> bool {
        let later = AUXILIARY.iter().filter(|other| {
            (other.family, other.element) == (self.family, self.element)
                && other.resources.arch >= self.resources.arch
                && other.resources.arch.runs_on(capability)
        });
        later.max_by_key(|other| other.resources.arch) == Some(self)
    }
}

impl<P> Family<P> {
    /// The kernel for elements of a type on a device of a compute capability: the one for the
    /// latest instruction set that the device has. `None` where the family has none.
    pub fn of(&self, element: ElementType, capability: (u32, u32)) -> Option<Entry<P>> {
        let fits = |row: &&Auxiliary| {
            row.element == Some(element) && row.resources.arch.runs_on(capability)
        };
        let row = self.kernels.iter().filter(fits).max_by_key(|row| row.resources.arch)?;
        Some(Entry::new(row.resources))
    }

    /// Kernels of the family.
    pub const fn kernels(&self) -> &'static [Auxiliary] {
        self.kernels
    }
}

macro_rules! begins_early {
    (begins_early) => {
        true
    };
    ($($other:ident)?) => {
        false
    };
}

macro_rules! tensor_maps {
    (tensor_maps) => {
        true
    };
    ($($other:ident)?) => {
        false
    };
}

macro_rules! element {
    (-) => {
        None
    };
    ($element:ident) => {
        Some(ElementType::$element)
    };
}

/// The lines of a family.
macro_rules! lines {
    ($handle:ident $role:ident $threads:tt $shared:tt
        $($arch:ident $element:tt $name:ident $blocks:literal $($word:ident)?;)*) => {
        &[$(Auxiliary {
            resources: Resources {
                name: stringify!($name),
                arch: Arch::$arch,
                threads: $threads,
                blocks: $blocks,
                shared_bytes: $shared,
                tensor_maps: tensor_maps!($($word)?),
                yields: false,
                begins_early: begins_early!($($word)?),
            },
            element: element!($element),
            family: stringify!($handle),
            role: Role::$role,
        }),*]
    };
}

/// Defines the constant that launches name: the entry of a kernel that is alone, or the family.
macro_rules! handle {
    ($(#[$doc:meta])* $handle:ident $params:ty, $role:ident $threads:tt $shared:tt
        $arch:ident - $name:ident $blocks:literal $($word:ident)?;) => {
        $(#[$doc])*
        pub const $handle: Entry<$params> = {
            const LINES: &[Auxiliary] =
                lines!($handle $role $threads $shared $arch - $name $blocks $($word)?;);
            Entry::new(LINES[0].resources)
        };
    };
    ($(#[$doc:meta])* $handle:ident $params:ty, $role:ident $threads:tt $shared:tt
        $($lines:tt)*) => {
        $(#[$doc])*
        pub const $handle: Family<$params> =
            Family {
                kernels: lines!($handle $role $threads $shared $($lines)*),
                params: PhantomData,
            };
    };
}

macro_rules! families {
    ($(
        $(#[$doc:meta])*
        $handle:ident($($params:ident)::+): $role:ident, $threads:expr, $shared:expr => {
            $($lines:tt)*
        }
    )*) => {
        $(handle! {
            $(#[$doc])*
            $handle crate::abi::params::$($params)::+, $role { $threads } { $shared } $($lines)*
        })*

        const FAMILIES: &[&[Auxiliary]] =
            &[$(lines!($handle $role { $threads } { $shared } $($lines)*)),*];
    };
}
auxiliary_kernels!(families);

const N_KERNELS: usize = n_lines(FAMILIES);

/// Every kernel that is not a forward one.
pub const AUXILIARY: &[Auxiliary] = &lines_of::<Auxiliary, N_KERNELS>(FAMILIES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::all;

    #[test]
    fn names_are_unique_and_say_element_and_arch() {
        let names: [&str; N_KERNELS] = core::array::from_fn(|i| AUXILIARY[i].resources.name);
        for (i, row) in AUXILIARY.iter().enumerate() {
            let name = row.resources.name;
            assert_eq!(all().filter(|kernel| kernel.name == name).count(), 1, "{name}");
            if let Some(element) = row.element {
                assert_eq!(name.rsplit('_').next(), Some(element.name()), "{name}");
            }
            let says_sm90 = name.contains("_sm90_");
            assert_eq!(says_sm90, row.resources.arch == Arch::Sm90a, "{name}");
            assert!(!names[..i].contains(&name), "{name}");
        }
    }

    /// Every device from compute capability 8.0 on has each of them, and Hopper its own.
    #[test]
    fn families_have_a_kernel_for_every_device() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
            for element in ElementType::ALL {
                let sum = SEGMENTED_SUM.of(element, capability).unwrap();
                let arch = if capability == (9, 0) { Arch::Sm90a } else { Arch::Sm80 };
                assert_eq!(sum.resources().arch, arch, "{element} on {capability:?}");
                assert!(sum.resources().name.ends_with(element.name()));
                let gather = GATHER.of(element, capability).unwrap();
                assert_eq!(gather.resources().arch, Arch::Sm80);
                for row in SEGMENTED_SUM.kernels().iter().filter(|row| row.element == Some(element))
                {
                    assert_eq!(row.is_for(capability), row.resources == *sum.resources());
                }
            }
        }
        assert!(SEGMENTED_SUM.of(ElementType::F16, (7, 5)).is_none());
        assert!(RESIDUAL_GATHER.of(ElementType::F32, (9, 0)).is_none());
    }

    #[test]
    fn shared_memory_fits_the_smallest_device() {
        for row in AUXILIARY {
            let most = if row.resources.arch == Arch::Sm90a { 227 } else { 99 };
            assert!(row.resources.shared_bytes <= most * 1024, "{}", row.resources.name);
        }
    }
}
