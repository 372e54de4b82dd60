//! Tiles of Intel AMX: 16 rows against 16 columns in one instruction, of bytes or of bf16.
//!
//! In `asm!`, as stable Rust has no intrinsics for tiles. A tile register is 16 lines of 64 bytes,
//! or as many and as long as the thread's *shapes* say, which are loaded once and kept while
//! someone [holds](Hold) them. Groups of 32 bits lie in panels and rows as tiles take them: lines
//! of a panel are lines of the second operand, and rows are the first one's. Tile registers carry
//! numbers within one block of assembly only: between two of them nothing is left but the shapes,
//! which no code of a compiler touches.
//!
//! Products of bytes are added up in i32. Those of bf16 are exact, and added up in f32: for each
//! tile of at most 16 groups in two chains, of the even and of the odd elements, whose sum is added
//! to those of the tiles before. Denormal numbers, of operands and of sums, count as 0.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::OnceLock;

use super::table::ABSENT;
use super::{Plus, Tile};
use crate::runtime::fetch::CACHE_LINE;

/// Lines of a tile, groups of a line.
const LEN: usize = 16;

/// Most groups that are multiplied by one instruction.
pub(super) const GROUPS: usize = LEN;

/// Whether the CPU has tiles of bytes and of bf16, as this module takes them, and the system lets
/// this process use them. It is asked once: the answer is for all threads, and stays.
pub(super) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_tiles() && saves_tiles() && is_permitted())
}

/// Whether the CPU has AMX-TILE, AMX-INT8 and AMX-BF16, of eight tiles of 16 × 64 bytes.
fn has_tiles() -> bool {
    const TILE_LEAF: u32 = 0x1D;
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    if __cpuid(0).eax < TILE_LEAF || __cpuid_count(7, 0).edx & BF16_TILE_INT8 != BF16_TILE_INT8 {
        return false;
    }
    let palette = __cpuid_count(TILE_LEAF, 1);
    let (tile_bytes, line_bytes) = (palette.eax >> 16, palette.ebx & 0xFFFF);
    let (tiles, lines) = (palette.ebx >> 16, palette.ecx & 0xFFFF);
    (tile_bytes, line_bytes, tiles, lines) == (1024, 64, 8, 16)
}

/// Whether the system saves tiles, and their shapes, of threads that it interrupts.
fn saves_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const SHAPES_AND_TILES: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: the function is compiled for it, and every CPU that has it has register 0.
        unsafe { _xgetbv(0) }
    }
    __cpuid(1).ecx & OSXSAVE != 0 && {
        // SAFETY: programs may use XGETBV, which OSXSAVE says.
        let saved = unsafe { saved() };
        saved & SHAPES_AND_TILES == SHAPES_AND_TILES
    }
}

/// Asks Linux for tiles, which it gives to processes that ask, for all of their threads.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: of this request, the system reads two numbers and no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Lines of rows and of products, and groups of a line of rows, which are lines of a panel.
type Shapes = (u8, u8);

thread_local! {
    /// What this thread's tile registers are shaped for, and how many hold that.
    static STATE: (Cell<Option<Shapes>>, Cell<usize>) = const { (Cell::new(None), Cell::new(0)) };
}

/// Keeps the shapes of this thread's tile registers from one product to the next.
///
/// With the last one of a thread they are released: a thread with shapes costs the system more to
/// interrupt, and other code of the thread may want others. While one is held, no code that may
/// use tiles runs on the thread, but this module's.
#[derive(Debug)]
pub(crate) struct Hold(PhantomData<*const ()>);

impl Hold {
    /// Holds what shapes will be loaded.
    pub fn new() -> Hold {
        STATE.with(|(_, holders)| holders.set(holders.get() + 1));
        Hold(PhantomData)
    }

    /// Loads shapes, unless the tile registers have them.
    fn shape(&self, shapes: Shapes) {
        STATE.with(|(loaded, _)| {
            if loaded.get() != Some(shapes) {
                load(shapes);
                loaded.set(Some(shapes));
            }
        });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        STATE.with(|(loaded, holders)| {
            holders.set(holders.get() - 1);
            if holders.get() == 0 && loaded.take().is_some() {
                // SAFETY: shapes were loaded, so the CPU has the instruction; what tiles held
                // is no longer needed.
                unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
            }
        });
    }
}

/// What the instruction reads shapes from.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

/// Loads the shapes: products in the tile registers 0 to 2, rows in 3 to 5, a panel's lines in 6.
fn load((rows, groups): Shapes) {
    assert!(is_available(), "{ABSENT}");
    assert!((1..=LEN).contains(&usize::from(rows)) && (1..=LEN).contains(&usize::from(groups)));
    let (whole, of_rows) = (4 * LEN as u16, 4 * u16::from(groups));
    let mut config =
        Config { palette: 1, start: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
    config.line_bytes[..7]
        .copy_from_slice(&[whole, whole, whole, of_rows, of_rows, of_rows, whole]);
    config.lines[..7].copy_from_slice(&[rows, rows, rows, rows, rows, rows, groups]);
    // SAFETY: the CPU has tiles and the process may use them; the palette has eight of 16 lines of
    // 64 bytes, which none of these passes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(readonly, nostack, preserves_flags)) };
}

/// What a block of assembly reads and writes. Offsets are in its text.
#[repr(C)]
struct Block {
    /// First row of each tile of rows.
    rows: [*const u32; 3],
    /// Where the products of each go.
    products: [*mut u32; 3],
    /// First line of the panel, from the block's columns on.
    panel: *const u32,
    /// Bytes from a row to the next, and from a line of panel and products to the next.
    row_bytes: usize,
    line_bytes: usize,
    /// Bytes of a row, and of lines of the panel, that a step takes.
    row_step: usize,
    panel_step: usize,
    steps: usize,
    /// What is fetched, so many lines of the cache with each step.
    ahead: *const u8,
    lines: usize,
}

const _: () = {
    assert!(offset_of!(Block, products) == 24 && offset_of!(Block, row_step) == 72);
    assert!(offset_of!(Block, panel_step) == 80 && offset_of!(Block, lines) == 104);
};

/// The rest of a step and the loop, the same for all blocks: pointers advance, lines are fetched.
macro_rules! step_end {
    () => {
        concat!(
            "add {panel}, [{block} + 80]\n",
            "mov {t}, [{block} + 104]\n",
            "test {t}, {t}\n",
            "jz 4f\n",
            "3:\n",
            "prefetcht0 [{ahead}]\n",
            "add {ahead}, 64\n",
            "dec {t}\n",
            "jnz 3b\n",
            "4:\n",
            "dec {steps}\n",
            "jnz 2b\n",
        )
    };
}

/// A kernel of the instruction that multiplies two tiles and adds to a third.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $dot:literal, $add:expr) => {
        $(#[$doc])*
        pub(super) fn $name(tile: Tile<'_>) {
            /// Three tiles of rows against one of columns.
            /// # Safety
            /// Shapes are loaded whose rows and groups the block's places have.
            unsafe fn three(block: &Block) {
                // SAFETY: as the caller promises; the text reads and writes the block's places.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "2:",
                        "tileloadd tmm6, [{panel} + {line_bytes}]",
                        "tileloadd tmm3, [{a} + {row_bytes}]",
                        "tileloadd tmm4, [{b} + {row_bytes}]",
                        "tileloadd tmm5, [{c} + {row_bytes}]",
                        concat!($dot, " tmm0, tmm3, tmm6"),
                        concat!($dot, " tmm1, tmm4, tmm6"),
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        "mov {t}, [{block} + 72]",
                        "add {a}, {t}",
                        "add {b}, {t}",
                        "add {c}, {t}",
                        step_end!(),
                        "mov {a}, [{block} + 24]",
                        "mov {b}, [{block} + 32]",
                        "mov {c}, [{block} + 40]",
                        "tilestored [{a} + {line_bytes}], tmm0",
                        "tilestored [{b} + {line_bytes}], tmm1",
                        "tilestored [{c} + {line_bytes}], tmm2",
                        block = in(reg) block,
                        a = inout(reg) block.rows[0] => _,
                        b = inout(reg) block.rows[1] => _,
                        c = inout(reg) block.rows[2] => _,
                        panel = inout(reg) block.panel => _,
                        row_bytes = in(reg) block.row_bytes,
                        line_bytes = in(reg) block.line_bytes,
                        steps = inout(reg) block.steps => _,
                        ahead = inout(reg) block.ahead => _,
                        t = out(reg) _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _,
                        options(nostack),
                    );
                }
            }

            /// One tile of rows, the block's first, against one of columns.
            /// # Safety
            /// As [`three`].
            unsafe fn one(block: &Block) {
                // SAFETY: as the caller promises; the text reads and writes the block's places.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "2:",
                        "tileloadd tmm6, [{panel} + {line_bytes}]",
                        "tileloadd tmm3, [{a} + {row_bytes}]",
                        concat!($dot, " tmm0, tmm3, tmm6"),
                        "add {a}, [{block} + 72]",
                        step_end!(),
                        "mov {a}, [{block} + 24]",
                        "tilestored [{a} + {line_bytes}], tmm0",
                        block = in(reg) block,
                        a = inout(reg) block.rows[0] => _,
                        panel = inout(reg) block.panel => _,
                        row_bytes = in(reg) block.row_bytes,
                        line_bytes = in(reg) block.line_bytes,
                        steps = inout(reg) block.steps => _,
                        ahead = inout(reg) block.ahead => _,
                        t = out(reg) _,
                        out("tmm0") _, out("tmm3") _, out("tmm6") _,
                        options(nostack),
                    );
                }
            }

            // SAFETY: only what `Kernel::multiply` has checked gets here.
            unsafe { multiply(tile, three, one, $add) }
        }
    };
}

kernel!(
    /// Four bytes with a sign of both sides.
    signed_bytes,
    "tdpbssd",
    u32::wrapping_add
);
kernel!(
    /// Four bytes without a sign of rows, with one of panels.
    bytes,
    "tdpbusd",
    u32::wrapping_add
);
kernel!(
    /// Pairs of bf16.
    bf16,
    "tdpbf16ps",
    |a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits()
);

/// Multiplies a tile, 48 or 16 rows and 16 columns at a time.
///
/// # Safety
/// The lengths of the tile's slices agree as [`Kernel::multiply`](super::Kernel::multiply) checks,
/// its width is a multiple of 16, and all its groups are multiplied, in equal steps of at most
/// [`GROUPS`].
unsafe fn multiply(
    tile: Tile<'_>,
    three: unsafe fn(&Block),
    one: unsafe fn(&Block),
    add: fn(u32, u32) -> u32,
) {
    let Tile { panel, width, rows, groups, plus, ahead, products, .. } = tile;
    let n_rows = rows.len() / groups;
    if n_rows == 0 {
        return;
    }
    let (of_tile, steps) = (n_rows.min(LEN), groups.div_ceil(GROUPS));
    let of_step = groups / steps;
    let hold = Hold::new();
    hold.shape((of_tile as u8, of_step as u8));
    let n_tiles = n_rows.div_ceil(LEN);
    let n_blocks = (n_tiles / 3 + n_tiles % 3) * (width / LEN);
    // The last steps may fetch a few lines behind the end.
    let lines = ahead.len().div_ceil(CACHE_LINE).div_ceil(n_blocks * steps);
    let mut ahead = ahead.as_ptr();
    for column in (0..width).step_by(LEN) {
        let mut next = 0;
        while next < n_rows {
            let n = if n_rows - next > 2 * LEN { 3 } else { 1 };
            // A tile that would pass the last row begins earlier, and has the same products.
            let firsts = [0, 1, 2].map(|i| (next + i * LEN).min(n_rows - of_tile));
            let block = Block {
                rows: firsts.map(|first| rows[first * groups..].as_ptr()),
                products: firsts.map(|first| products[first * width + column..].as_mut_ptr()),
                panel: panel[column..].as_ptr(),
                row_bytes: groups * size_of::<u32>(),
                line_bytes: width * size_of::<u32>(),
                row_step: of_step * size_of::<u32>(),
                panel_step: of_step * width * size_of::<u32>(),
                steps,
                ahead,
                lines,
            };
            // SAFETY: shapes of `of_tile` rows and `of_step` groups are loaded, and held. From each
            // first row on there are `of_tile` rows of `steps · of_step` groups, as many of
            // products, and the panel has a line for each group; all have 16 columns from this one
            // on.
            unsafe { if n == 3 { three(&block) } else { one(&block) } };
            ahead = ahead.wrapping_add(lines * steps * CACHE_LINE);
            next += n * LEN;
        }
    }
    if let Plus::Columns(columns) = plus {
        for products in products.chunks_exact_mut(width) {
            products.iter_mut().zip(columns).for_each(|(product, &x)| *product = add(*product, x));
        }
    }
}
