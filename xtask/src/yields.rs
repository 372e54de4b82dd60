//! Sets the scheduler's yield hint in machine code, at every second cycle of arithmetic.
//!
//! A scheduler continues with a warp for as long as that can issue, unless the instruction yields.
//! The assembler sets the hint at about every 12th cycle of maxima and nowhere in a row of
//! multiplications: a warp that reduces a product keeps the three others from starting theirs,
//! which takes some thirty instructions, and the tensor cores wait. What that costs is in
//! docs/decisions/int8-fp8-long-queries.md. It is a hint: results do not change.
//!
//! Of an instruction's 128 bits the upper 23 are for the scheduler. Jia et al., "Dissecting the
//! NVIDIA Volta GPU Architecture via Microbenchmarking" (arXiv:1804.06826), section 2.1, describe
//! them; compute capability 9.0 has the same.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};

/// Bytes of an instruction.
const INSTRUCTION_BYTES: usize = 16;
/// Bits of the operation, whatever its operands are.
const OPCODE: u128 = 0x1ff;
/// Cycles until the warp's next one may be issued: where those four bits start.
const STALL_SHIFT: u32 = 105;
const STALL: u128 = 0xf << STALL_SHIFT;
/// Set unless another warp may come first.
const STAYS: u128 = 1 << 109;
/// Operands that are kept for the warp's next instruction, which another warp's would overwrite.
const REUSED: u128 = 0xf << 122;

/// Instructions that only compute: FSEL, FMNMX, FSETP, ISETP, VIMNMX3, LOP3, SHF, FMUL, FFMA, VIADD
/// and SEL, as `nvdisasm` calls them.
const ARITHMETIC: [u128; 11] =
    [0x008, 0x009, 0x00b, 0x00c, 0x00f, 0x012, 0x019, 0x020, 0x023, 0x036, 0x007];

/// Cycles of arithmetic that may follow each other without a hint.
const CYCLES_MAX: u128 = 2;

/// Lets other warps issue between the arithmetic of an entry's machine code for compute capability
/// 9.0; says at how many instructions.
pub fn set(cubin: &mut [u8], entry: &str) -> Result<usize> {
    let code = code_of(cubin, entry)?;
    let (mut n_cycles, mut n_set) = (0, 0);
    for bytes in cubin[code].as_chunks_mut::<INSTRUCTION_BYTES>().0 {
        let instruction = u128::from_le_bytes(*bytes);
        let computes = ARITHMETIC.contains(&(instruction & OPCODE));
        if !computes || instruction & STAYS == 0 {
            n_cycles = 0;
            continue;
        }
        n_cycles += (instruction & STALL) >> STALL_SHIFT;
        if n_cycles >= CYCLES_MAX {
            *bytes = (instruction & !(STAYS | REUSED)).to_le_bytes();
            n_cycles = 0;
            n_set += 1;
        }
    }
    Ok(n_set)
}

/// Range of an entry's instructions.
fn code_of(cubin: &[u8], entry: &str) -> Result<Range<usize>> {
    let file = object::File::parse(cubin).with_context(|| format!("the cubin of {entry}"))?;
    let name = format!(".text.{entry}");
    let section = file.section_by_name(&name).with_context(|| format!("no section {name}"))?;
    let (start, len) = section.file_range().with_context(|| format!("{name} has no bytes"))?;
    let code = usize::try_from(start)?..usize::try_from(start + len)?;
    ensure!(code.len() % INSTRUCTION_BYTES == 0, "{name} has {} bytes", code.len());
    Ok(code)
}

#[cfg(test)]
mod tests {
    use object::write::Object;
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};

    use super::*;
    use crate::archive;
    use crate::entries;

    /// An instruction that stalls for one cycle, keeps an operand and stays.
    const fn instruction(opcode: u128) -> u128 {
        opcode | 1 << STALL_SHIFT | STAYS | 2 << 122
    }

    /// An ELF file with one section, of this name and these bytes. (Of which machine makes no
    /// difference.)
    fn file(name: &str, code: &[u8]) -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let section = file.add_section(Vec::new(), name.into(), SectionKind::Text);
        file.append_section_data(section, code, INSTRUCTION_BYTES as u64);
        file.write().expect("a file with a section")
    }

    /// The instructions of a file, once other warps may issue.
    fn with_yields(instructions: &[u128]) -> (Vec<u128>, usize) {
        let code: Vec<u8> = instructions.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut file = file(".text.e", &code);
        let before = file.clone();
        let range = code_of(&file, "e").expect("a file with the section");
        let n_set = set(&mut file, "e").expect("a file with the section");
        assert_eq!(before[..range.start], file[..range.start]);
        assert_eq!(before[range.end..], file[range.end..]);
        let words = file[range].as_chunks::<INSTRUCTION_BYTES>().0;
        (words.iter().map(|word| u128::from_le_bytes(*word)).collect(), n_set)
    }

    #[test]
    fn every_second_cycle_of_arithmetic_yields() {
        let (multiply, load) = (instruction(0x220), instruction(0x984));
        let yields = |word: u128| word & !(STAYS | REUSED);
        let (words, n_set) = with_yields(&[multiply; 5]);
        assert_eq!(words, [multiply, yields(multiply), multiply, yields(multiply), multiply]);
        assert_eq!(n_set, 2);
        // A maximum takes two cycles; a load ends a row, and is left as it is.
        let maximum = instruction(0x20f) + (1 << STALL_SHIFT);
        let (words, n_set) = with_yields(&[maximum, multiply, load, multiply, load, load]);
        assert_eq!(words, [yields(maximum), multiply, load, multiply, load, load]);
        assert_eq!(n_set, 1);
        // After one that yields as assembled it starts anew.
        let words = [multiply, yields(multiply), multiply, multiply];
        assert_eq!(with_yields(&words).0, [words[0], words[1], words[2], yields(multiply)]);
    }

    #[test]
    fn a_file_without_the_entry_is_an_error() {
        let mut file = file(".text.e", &instruction(0x220).to_le_bytes());
        let said = |file: &mut [u8], entry| set(file, entry).expect_err("no such code").to_string();
        assert_eq!(said(&mut file, "other"), "no section .text.other");
        assert_eq!(said(&mut [0; 64], "e"), "the cubin of e");
    }

    /// In the committed machine code, where there is any (`build-ptx --ptx-only` has none).
    #[test]
    fn rows_that_yield_have_no_more_to_set() {
        let mut committed = archive::committed(&crate::workspace_root()).expect("an archive");
        let rows: Vec<_> = entries::all().into_iter().filter(|entry| entry.yields).collect();
        assert!(!rows.is_empty());
        for entry in rows {
            for target in entries::cubin_targets(entry.arch) {
                let Some(cubin) = committed.get_mut(&entry.cubin_file(target)) else {
                    eprintln!("SKIPPED (no cubins): {}", entry.name);
                    continue;
                };
                assert_eq!(set(cubin, entry.name).expect("machine code"), 0, "{}", entry.name);
            }
        }
    }
}
