//! `check-ptx`: the committed PTX against the tables, by text and by assembler.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use maxsim_kernels::abi::arch::Arch;
use rayon::prelude::*;

use crate::build_ptx::texts_that_differ;
use crate::entries::{self, Entry};
use crate::fingerprint::{of_cubins, of_ptx, ptx_dir};
use crate::ptx_text::{entry_names, offences};
use crate::ptxas::{Assembled, Ptxas, Resources, how_to_get};

/// Checks every file; prints the resource table where an assembler is found.
pub fn run(root: &Path) -> Result<()> {
    let entries = entries::all();
    let mut problems = check_names(root, &entries)?;
    let differ = texts_that_differ(root)?.into_iter();
    problems.extend(differ.map(|name| format!("{name}: not the text that programs carry")));
    for entry in &entries {
        let path = file_of(root, entry);
        if path.is_file() {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            problems.extend(check_text(entry, &text));
        }
    }
    match Ptxas::find(root)? {
        Some(ptxas) => problems.extend(assemble_all(root, &entries, &ptxas)?),
        None => println!(
            "\nNO PTXAS FOUND ($PTXAS, target, the path): THE PTX WAS NOT ASSEMBLED.\n\
             Checked: the text alone. {}.\n",
            how_to_get()
        ),
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    ensure!(problems.is_empty(), "{} problems in host/ptx", problems.len());
    println!("host/ptx: {} entries, no problems", entries.len());
    Ok(())
}

fn file_of(root: &Path, entry: &Entry) -> PathBuf {
    ptx_dir(root).join(entry.ptx_file())
}

/// The files are exactly those of the table.
fn check_names(root: &Path, entries: &[Entry]) -> Result<Vec<String>> {
    let files: BTreeSet<String> =
        of_ptx(root)?.into_keys().chain(of_cubins(root)?.into_keys()).collect();
    let wanted: BTreeSet<String> = entries
        .iter()
        .flat_map(|entry| {
            let cubins = entries::cubin_targets(entry.arch).iter();
            cubins.map(|target| entry.cubin_file(target)).chain([entry.ptx_file()])
        })
        .collect();
    let missing = wanted.difference(&files).map(|name| format!("{name}: missing"));
    let extra = files.difference(&wanted).map(|name| format!("{name}: in no table"));
    Ok(missing.chain(extra).collect())
}

fn check_text(entry: &Entry, text: &str) -> Vec<String> {
    let mut problems = offences(text);
    if entry_names(text) != [entry.name] {
        problems.push(format!("holds the entries {:?}", entry_names(text)));
    }
    for line in [
        format!(".target {}", entry.arch.target()),
        format!(".maxntid {}, 1, 1", entry.threads),
        format!(".minnctapersm {}", entry.blocks),
    ] {
        if !text.lines().any(|found| found == line) {
            problems.push(format!("lacks the line `{line}`"));
        }
    }
    problems.into_iter().map(|problem| format!("{}: {problem}", entry.name)).collect()
}

/// An entry is assembled for its own target, and for later ones that run the same PTX.
fn targets(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Sm80 => &["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"],
        Arch::Sm90a => &["sm_90a"],
    }
}

/// Assembles on all cores; prints the table in the order of the entries.
fn assemble_all(root: &Path, entries: &[Entry], ptxas: &Ptxas) -> Result<Vec<String>> {
    println!("{}", ptxas.version);
    let work: Vec<(&Entry, &str)> = entries
        .iter()
        .filter(|entry| file_of(root, entry).is_file())
        .flat_map(|entry| targets(entry.arch).iter().map(move |target| (entry, *target)))
        .collect();
    let done = work
        .par_iter()
        .map(|&(entry, target)| {
            let assembled = ptxas.judge(&file_of(root, entry), target);
            (entry, target, assembled)
        })
        .collect::<Vec<_>>();

    println!(
        "{:<40} {:<7} {:>9} {:>10} {:>11} {:>5} {:>6}",
        "entry", "target", "registers", "static sh.", "dynamic sh.", "stack", "spills"
    );
    let mut problems = Vec::new();
    for (entry, target, assembled) in done {
        match assembled? {
            Assembled::UnknownTarget => {
                println!("{:<40} {target:<7} not known to this ptxas", entry.name);
                if target == entry.arch.target() {
                    problems.push(format!("{}: {target} is unknown to this ptxas", entry.name));
                }
            }
            Assembled::Failed(said) => problems.push(format!("{} ({target}): {said}", entry.name)),
            Assembled::Done(used, warnings) => {
                println!(
                    "{:<40} {:<7} {:>9} {:>10} {:>11} {:>5} {:>6}",
                    entry.name,
                    target,
                    used.registers,
                    used.static_shared_bytes,
                    entry.shared_bytes,
                    used.stack_bytes,
                    used.spill_bytes
                );
                let found = over_budget(entry, &used).into_iter().chain(warnings);
                problems.extend(found.map(|what| format!("{} ({target}): {what}", entry.name)));
            }
        }
    }
    Ok(problems)
}

fn over_budget(entry: &Entry, used: &Resources) -> Vec<String> {
    let mut problems = Vec::new();
    let mut limit = |what: &str, found: usize, most: usize| {
        if found > most {
            problems.push(format!("{what}: {found}, at most {most} allowed"));
        }
    };
    limit("registers", used.registers, entry.registers());
    limit(
        "bytes of shared memory",
        used.static_shared_bytes + entry.shared_bytes,
        entries::shared_limit_bytes(entry.arch),
    );
    limit("bytes of stack", used.stack_bytes, 0);
    limit("bytes of spills", used.spill_bytes, 0);
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry(maxsim_kernels::table::Resources {
            name: "maxsim_e",
            arch: Arch::Sm80,
            threads: 128,
            blocks: 3,
            shared_bytes: 98 * 1024,
            tensor_maps: false,
            yields: false,
            begins_early: false,
        })
    }

    #[test]
    fn each_budget_is_checked() {
        let within = Resources { registers: 168, static_shared_bytes: 1024, ..Default::default() };
        assert_eq!(over_budget(&entry(), &within), Vec::<String>::new());
        for (used, what) in [
            (Resources { registers: 169, ..within.clone() }, "registers: 169"),
            (Resources { static_shared_bytes: 1025, ..within.clone() }, "shared memory: 101377"),
            (Resources { stack_bytes: 8, ..within.clone() }, "stack: 8"),
            (Resources { spill_bytes: 4, ..within.clone() }, "spills: 4"),
        ] {
            let problems = over_budget(&entry(), &used);
            assert!(problems.len() == 1 && problems[0].contains(what), "{problems:?}");
        }
    }

    #[test]
    fn each_part_of_the_text_is_checked() {
        let good = ".target sm_80\n.visible .entry maxsim_e(\n)\n.maxntid 128, 1, 1\n\
                    .minnctapersm 3\n{\nret;\n}\n";
        assert_eq!(check_text(&entry(), good), Vec::<String>::new());
        for (from, to) in [
            ("sm_80", "sm_90a"),
            ("maxsim_e", "maxsim_f"),
            (".maxntid 128", ".maxntid 256"),
            (".minnctapersm 3", ".minnctapersm 2"),
            ("ret;", "call.uni f;"),
        ] {
            assert_eq!(check_text(&entry(), &good.replace(from, to)).len(), 1, "{to}");
        }
    }
}
