//! Kernels of the CPU engine: products of a tile of document rows and a panel of query tokens.
//!
//! Each side is a matrix of *groups* of 32 bits: one f32, two bf16, two whole numbers of 16 bits,
//! or four of 8. Kernels are one loop ([`multiply`]) over registers of 32-bit lanes, but for those
//! of instructions that multiply matrices themselves (`amx`, `neon`). A kernel is a row of the
//! [`table`]: an instruction set, what a group holds, the tile that it keeps in registers, and how
//! many multiply-adds a core does in a cycle. Which rows a CPU can run
//! ([`InstructionSet::is_available`]) is apart from which it prefers ([`Kernels::new`]), and both
//! are decided once.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod floats;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod integers;
mod multiply;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;
use std::sync::OnceLock;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use pulp::Simd;
use pulp::{Arch, WithSimd};

use crate::error::{Error, Result};
use crate::runtime::fetch::CACHE_LINE;
pub(crate) use table::InstructionSet;
use table::TABLE;

/// Environment variable that names the best instruction set to use.
const VARIABLE: &str = "MAXSIM_CPU";

/// What the two sides of a product are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// f32, added up in f32.
    F32,
    /// Pairs of bf16, whose products are exact, added up in f32.
    Bf16,
    /// Pairs of whole numbers of 16 bits, added up in i32.
    Words,
    /// Four whole numbers of 8 bits, of rows without a sign, of panels with one; in i32.
    Bytes,
    /// Four whole numbers of 8 bits with a sign, of rows and of panels; in i32.
    SignedBytes,
}

impl Operand {
    /// Elements of a group of 32 bits.
    pub const fn group(self) -> usize {
        match self {
            Operand::F32 => 1,
            Operand::Bf16 | Operand::Words => 2,
            Operand::Bytes | Operand::SignedBytes => 4,
        }
    }

    /// Whether products are sums of whole numbers, in i32.
    pub const fn is_integer(self) -> bool {
        matches!(self, Operand::Words | Operand::Bytes | Operand::SignedBytes)
    }
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Kernel {
    set: InstructionSet,
    operand: Operand,
    /// Multiply-adds of one core in a cycle, where nothing else limits it.
    rate: usize,
    /// Groups that it multiplies at once, at most, in steps of equal length and all of a row; or
    /// any number, [`ONE_BY_ONE`].
    at_once: usize,
    run: fn(Tile<'_>),
}

/// Of kernels that take a group after the other.
const ONE_BY_ONE: usize = usize::MAX;

/// Keeps what a CPU has set up for a kernel from one product to the next; see [`Kernel::hold`].
#[derive(Debug)]
pub(crate) struct Hold {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    _tiles: Option<amx::Hold>,
}

/// What is added to the products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plus<'a> {
    Nothing,
    /// A number for each column: bits of what the products are.
    Columns(&'a [u32]),
    /// What is in the products' place.
    Products,
}

/// A tile of rows and a panel of columns, and where their products go.
#[derive(Debug)]
pub(crate) struct Tile<'a> {
    /// `[groups, width]`.
    pub panel: &'a [u32],
    pub width: usize,
    /// `[rows, groups]`.
    pub rows: &'a [u32],
    pub groups: usize,
    /// The groups that are multiplied.
    pub block: Range<usize>,
    pub plus: Plus<'a>,
    /// What will be read next, fetched into the cache meanwhile. Any memory, also none.
    pub ahead: &'a [u8],
    /// `[rows, width]`, bits of f32 or i32.
    pub products: &'a mut [u32],
}

impl Kernel {
    /// What its sides are made of.
    pub fn operand(&self) -> Operand {
        self.operand
    }

    /// Groups of 32 bits of a row of `dim` elements, zeros behind its last element.
    pub fn groups(&self, dim: usize) -> usize {
        let groups = dim.div_ceil(self.operand.group());
        groups.next_multiple_of(groups.div_ceil(self.at_once))
    }

    /// Most groups whose products are added up in one chain.
    pub fn chain_len(&self) -> usize {
        self.at_once
    }

    /// Whether rows are faster to copy than to read where they lie: tiles take twice as long to
    /// load from rows that are whole lines of the cache, and begin within one.
    pub fn wants_copy(&self, rows: &[u32], groups: usize) -> bool {
        let is_tiled = self.at_once != ONE_BY_ONE;
        let lines = (groups * size_of::<u32>()).is_multiple_of(CACHE_LINE);
        is_tiled && lines && !rows.as_ptr().addr().is_multiple_of(CACHE_LINE)
    }

    /// While it is held, products by this kernel do not set up the CPU again. Without, each does.
    pub fn hold(&self) -> Hold {
        Hold {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            _tiles: (self.set == InstructionSet::Amx).then(amx::Hold::new),
        }
    }

    /// Writes `products[t · width + s] = Σ_k panel[k · width + s] · rows[t · groups + k]`, each sum
    /// in the same order whatever its `s` and `t`.
    ///
    /// # Panics
    /// When a slice has another length than the others say, width is not a multiple of
    /// [`LANES`](super::gemm::LANES), or a kernel that takes all groups of a row is given others
    /// than [`Kernel::groups`] says, a part of them, or products to add to.
    pub fn multiply(&self, tile: Tile<'_>) {
        let n_rows = tile.rows.len() / tile.groups;
        assert!(tile.width > 0 && tile.width.is_multiple_of(super::gemm::LANES));
        assert!(tile.block.start < tile.block.end && tile.block.end <= tile.groups);
        assert_eq!(tile.panel.len(), tile.groups * tile.width);
        assert_eq!(tile.rows.len(), tile.groups * n_rows);
        assert_eq!(tile.products.len(), n_rows * tile.width);
        if let Plus::Columns(columns) = tile.plus {
            assert_eq!(columns.len(), tile.width);
        }
        if self.at_once != ONE_BY_ONE {
            assert!(tile.groups.is_multiple_of(tile.groups.div_ceil(self.at_once)));
            assert!(tile.block == (0..tile.groups) && !matches!(tile.plus, Plus::Products));
        }
        (self.run)(tile);
    }
}

/// The kernels that this process uses.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub f32: &'static Kernel,
    /// For codes with a sign against codes with one, and against document codes without.
    pub signed: &'static Kernel,
    pub unsigned: &'static Kernel,
    /// None where bf16 is multiplied as f32.
    pub bf16: Option<&'static Kernel>,
    /// The same instructions for loops that a compiler vectorises.
    pub arch: Arch,
}

impl Kernels {
    /// Those of this CPU, or of a lesser one that the environment names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where MAXSIM_CPU names no instruction set that this CPU has.
    pub fn get() -> Result<&'static Kernels> {
        static CHOSEN: OnceLock<std::result::Result<Kernels, String>> = OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| {
            let limit = std::env::var_os(VARIABLE).map(|name| name.to_string_lossy().into_owned());
            Ok(Kernels::new(limit_of(limit.as_deref())?))
        });
        chosen.as_ref().map_err(|name| Error::Unsupported {
            what: format!("{VARIABLE}={name}"),
            why: format!(
                "this CPU has {}; unset the variable for the best of them",
                InstructionSet::available_names()
            ),
        })
    }

    /// The fastest kernel for each operand of instruction sets up to `limit`.
    fn new(limit: InstructionSet) -> Kernels {
        // Of two that are as fast, the one of the later operand.
        let best = |operands: &[Operand]| {
            let rank = |kernel: &Kernel| operands.iter().position(|&of| of == kernel.operand);
            let rows = TABLE.iter().filter(|kernel| rank(kernel).is_some());
            rows.filter(|kernel| kernel.set <= limit && kernel.set.is_available())
                .max_by_key(|kernel| (kernel.rate, rank(kernel)))
        };
        let portable = |operands| best(operands).expect("the table has portable rows");
        Kernels {
            f32: portable(&[Operand::F32]),
            // Rows that have the operand's sign need not be copied.
            signed: portable(&[Operand::Words, Operand::Bytes, Operand::SignedBytes]),
            unsigned: portable(&[Operand::Words, Operand::SignedBytes, Operand::Bytes]),
            bf16: best(&[Operand::Bf16]),
            arch: limit.arch(),
        }
    }
}

/// Runs a loop that is compiled for the registers of `arch`.
///
/// WebAssembly that is built for its registers always has them: the loop stands in a module once,
/// which is to be small, and not once more for CPUs without.
#[inline(always)]
pub(crate) fn dispatch<Op: WithSimd>(arch: Arch, op: Op) -> Op::Output {
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    {
        let _ = arch;
        Simd::vectorize(pulp::wasm::Simd128::try_new().expect(table::ABSENT), op)
    }
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    arch.dispatch(op)
}

/// The best instruction set that may be used: the named one, or that of the CPU.
fn limit_of(name: Option<&str>) -> std::result::Result<InstructionSet, String> {
    match name {
        None | Some("") => Ok(InstructionSet::best()),
        Some(name) => InstructionSet::available().find(|set| set.name() == name).ok_or(name.into()),
    }
}
