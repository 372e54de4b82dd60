//! Text of a PTX module: taken apart, checked, and put together as one file per entry.

use anyhow::{Context, Result, ensure};

/// A PTX module, without its comments.
#[derive(Debug, Default, PartialEq)]
pub struct Module {
    /// `.version`, `.target` and `.address_size`, one line each.
    pub header: String,
    /// Module-level declarations such as shared memory, one statement each.
    pub declarations: Vec<String>,
    /// The entries, in the module's order.
    pub entries: Vec<EntryText>,
}

/// A `.visible .entry`.
#[derive(Debug, PartialEq)]
pub struct EntryText {
    /// Name of the entry.
    pub name: String,
    /// Statement of the entry, from `.visible` to the closing brace.
    pub text: String,
}

/// Launch bounds, which the compiler has no option for, added to the text.
#[derive(Clone, Copy, Debug)]
pub struct LaunchBounds {
    /// Threads per block.
    pub threads: usize,
    /// Blocks that share a multiprocessor.
    pub blocks: usize,
    /// Whether the first parameter starts with tensor maps, which TMA wants on 64-byte boundaries.
    pub tensor_maps: bool,
}

impl Module {
    /// Takes the compiler's output apart.
    pub fn parse(text: &str) -> Result<Module> {
        let mut module = Module::default();
        let mut statement = String::new();
        let mut depth = 0_i32;
        for line in text.lines().map(without_comment).filter(|line| !line.is_empty()) {
            if statement.is_empty()
                && [".version", ".target", ".address_size"].iter().any(|d| line.starts_with(d))
            {
                module.header += line;
                module.header.push('\n');
                continue;
            }
            statement += line;
            statement.push('\n');
            depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
            if depth == 0 && line.ends_with([';', '}']) {
                module.add(std::mem::take(&mut statement));
            }
        }
        ensure!(statement.is_empty(), "the PTX ends within a statement: {statement}");
        ensure!(module.header.lines().count() == 3, "no PTX header: {:?}", module.header);
        Ok(module)
    }

    fn add(&mut self, statement: String) {
        if let Some(rest) = statement.strip_prefix(".visible .entry ") {
            let name = rest.split('(').next().unwrap_or_default().trim().to_string();
            self.entries.push(EntryText { name, text: statement });
        } else if !words(&statement).any(|word| word == ".func") {
            self.declarations.push(statement);
        }
        // The compiler also prints what the crate offers to the host. No entry may call a
        // function (`offences`), so none is kept.
    }

    /// A module of its own for one entry, with the declarations that it uses.
    pub fn file_of(&self, entry: &EntryText, bounds: LaunchBounds) -> Result<String> {
        let mut file = with_version_of(&self.header, &entry.text);
        for declaration in &self.declarations {
            let name = declared_name(declaration)?;
            if words(&entry.text).any(|word| word == name) {
                file += declaration;
            }
        }
        file += &with_launch_bounds(&with_own_labels(&entry.text), &entry.name, bounds)?;
        Ok(file)
    }
}

/// Instructions that need a later PTX version than the compiler declares, and which: other entries
/// keep theirs, so that older drivers load them.
const LATER: [(&str, &str); 1] = [(".s32.s8.u8", "8.4")];

/// A module's header, with the version that an entry's instructions need.
fn with_version_of(header: &str, entry: &str) -> String {
    let Some((_, version)) = LATER.iter().find(|(instruction, _)| entry.contains(instruction))
    else {
        return header.to_string();
    };
    let lines = header.lines().map(|line| match line.starts_with(".version") {
        true => format!(".version {version}\n"),
        false => format!("{line}\n"),
    });
    lines.collect()
}

/// The line without its comment and the space around it.
fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim()
}

/// The words of PTX text: identifiers, directives and instructions, without punctuation.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "_$%.".contains(c)))
        .filter(|word| !word.is_empty())
}

/// The name that a module-level declaration introduces.
fn declared_name(declaration: &str) -> Result<&str> {
    let left = declaration.split(['=', '[', ';']).next().unwrap_or_default();
    words(left).last().with_context(|| format!("a declaration without a name: {declaration}"))
}

/// Block labels count the module's functions: without that number, an entry's text does not
/// change when another entry is added.
fn with_own_labels(text: &str) -> String {
    const PREFIX: &str = "$L__BB";
    let mut parts = text.split(PREFIX);
    let mut renamed = parts.next().unwrap_or_default().to_string();
    for part in parts {
        renamed += PREFIX;
        renamed += part.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    renamed
}

/// Both bounds are needed: ptxas honours `setmaxnreg` only where it knows the registers at entry,
/// which `.maxntid` alone does not say.
fn with_launch_bounds(text: &str, name: &str, bounds: LaunchBounds) -> Result<String> {
    let (parameters, body) = text
        .split_once("\n{\n")
        .with_context(|| format!("{name}: no body found behind its parameters"))?;
    let parameters = if bounds.tensor_maps {
        let compiled = format!(".param .align 8 .b8 {name}_param_0[");
        ensure!(
            parameters.contains(&compiled),
            "{name}: `{compiled}` not found: its first parameter must be the struct that starts \
             with the tensor maps"
        );
        parameters.replace(&compiled, &compiled.replace(".align 8", ".align 64"))
    } else {
        parameters.to_string()
    };
    let LaunchBounds { threads, blocks, .. } = bounds;
    Ok(format!("{parameters}\n.maxntid {threads}, 1, 1\n.minnctapersm {blocks}\n{{\n{body}"))
}

/// Lists what must not be in shipped PTX: symbols whose names depend on the compiler's hashes,
/// calls, and local memory.
pub fn offences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let offence = words(line).find_map(|word| {
            if word.starts_with("_ZN") || is_v0_mangled(word) {
                Some("a mangled symbol")
            } else if word.starts_with("anon.") || word.contains(".anon.") {
                Some("an anonymous constant")
            } else if word.starts_with("__local_depot") {
                Some("local memory")
            } else if word == "call" || word.starts_with("call.") {
                Some("a call")
            } else if word == ".func" {
                Some("a function")
            } else if [".file", ".loc", ".section"].contains(&word) {
                Some("debug information")
            } else {
                None
            }
        });
        if let Some(offence) = offence {
            found.push(format!("{offence}: {}", line.trim()));
        }
    }
    found
}

fn is_v0_mangled(word: &str) -> bool {
    word.strip_prefix("_R").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// The names of the entries in a PTX file.
pub fn entry_names(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.split_once(".entry "))
        .map(|(_, rest)| rest.split('(').next().unwrap_or_default().trim())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPILED: &str = "//
// Generated by LLVM NVPTX Back-End
//

.version 8.3
.target sm_90a
.address_size 64

.extern .shared .align 1024 .b8 smem_dyn[];
.const .align 4 .b8 table[4] = {1, 2,
 3, 4};

\t// .globl\tfirst

.visible .entry first(
\t.param .align 8 .b8 first_param_0[144],
\t.param .u64 first_param_1
)
{
\t.reg .b32 \t%r<9>;
$L__BB12_4:
\t// begin inline asm
\t{
.reg .pred p; // {%r1
mov.u32 %r6, smem_dyn;
}
\t// end inline asm
\t@%p1 bra \t$L__BB12_4;
\tret;
                                        // -- End function
}
\t// .globl\tsecond
.visible .entry second()
{
\tret;
}
";

    const BOUNDS: LaunchBounds = LaunchBounds { threads: 384, blocks: 1, tensor_maps: true };

    #[test]
    fn an_entry_declares_the_version_that_its_instructions_need() {
        let header = ".version 8.3\n.target sm_90a\n.address_size 64\n";
        assert_eq!(with_version_of(header, "wgmma.m64n8k32.s32.s8.s8 {%r1}"), header);
        let mixed = with_version_of(header, "wgmma.m64n8k32.s32.s8.u8 {%r1}");
        assert_eq!(mixed, header.replace("8.3", "8.4"));
    }

    #[test]
    fn a_module_falls_into_header_declarations_and_entries() {
        let module = Module::parse(COMPILED).unwrap();
        assert_eq!(module.header, ".version 8.3\n.target sm_90a\n.address_size 64\n");
        assert_eq!(module.declarations.len(), 2);
        let names: Vec<&str> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn an_entry_becomes_a_module_of_its_own() {
        let module = Module::parse(COMPILED).unwrap();
        assert_eq!(
            module.file_of(&module.entries[0], BOUNDS).unwrap(),
            "\
.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem_dyn[];
.visible .entry first(
.param .align 64 .b8 first_param_0[144],
.param .u64 first_param_1
)
.maxntid 384, 1, 1
.minnctapersm 1
{
.reg .b32 \t%r<9>;
$L__BB_4:
{
.reg .pred p;
mov.u32 %r6, smem_dyn;
}
@%p1 bra \t$L__BB_4;
ret;
}
"
        );
    }

    #[test]
    fn a_first_parameter_that_is_not_the_tensor_maps_is_an_error() {
        let module = Module::parse(COMPILED).unwrap();
        let error = module.file_of(&module.entries[1], BOUNDS).unwrap_err().to_string();
        assert!(error.contains("second_param_0"), "{error}");
    }

    #[test]
    fn functions_are_dropped_and_their_calls_are_offences() {
        let module = Module::parse(
            ".version 7.0\n.target sm_80\n.address_size 64\n\
             .extern .func panic\n(\n.param .b64 a\n)\n;\n\
             .visible .func  (.param .b64 r) helper(\n)\n{\nret;\n}\n\
             .visible .entry e()\n{\ncall.uni panic, (p);\n}\n",
        )
        .unwrap();
        assert!(module.declarations.is_empty());
        let bounds = LaunchBounds { tensor_maps: false, ..BOUNDS };
        let file = module.file_of(&module.entries[0], bounds).unwrap();
        assert_eq!(offences(&file), ["a call: call.uni panic, (p);"]);
    }

    #[test]
    fn torn_text_is_an_error() {
        let header = ".version 7.0\n.target sm_80\n.address_size 64\n";
        assert!(Module::parse(&format!("{header}.visible .entry e()\n{{\nret;\n")).is_err());
        assert!(Module::parse(".visible .entry e()\n{\nret;\n}\n").is_err());
    }

    #[test]
    fn offences_are_found() {
        for (line, offence) in [
            (".global .align 4 .b8 _ZN4core3fmt17h0123E[4];", "mangled"),
            ("\tld.global.b32 %r1, [_RNvCs1234_6kernel5TABLE];", "mangled"),
            (".global .align 4 .b8 anon.1a2b.0[4];", "anonymous"),
            ("\t.local .align 16 .b8 \t__local_depot0[512];", "local memory"),
            ("\tcall.uni \tpanic, (param0);", "call"),
            (".extern .func panic", "function"),
            ("\t.loc\t1 12 3", "debug"),
        ] {
            let found = offences(line);
            assert!(found.len() == 1 && found[0].contains(offence), "{line}: {found:?}");
        }
    }

    #[test]
    fn ordinary_text_is_no_offence() {
        let module = Module::parse(COMPILED).unwrap();
        let file = module.file_of(&module.entries[0], BOUNDS).unwrap();
        assert_eq!(offences(&file), Vec::<String>::new());
        assert_eq!(entry_names(&file), ["first"]);
    }
}
