//! Small trees that break one rule each, and the real tree broken in memory.

use super::*;

/// Findings of a tree of paths and texts.
fn findings(files: &[(&str, &str)]) -> Vec<Finding> {
    let source = |&(path, text): &(&str, &str)| Source { path: path.into(), text: text.into() };
    find(&files.iter().map(source).collect::<Vec<_>>()).unwrap()
}

/// Rules and places of a tree's findings.
fn places(files: &[(&str, &str)]) -> Vec<(Rule, String)> {
    let place = |x: &Finding| (x.rule, format!("{}:{}", x.path, x.line));
    findings(files).iter().map(place).collect()
}

const LIB: (&str, &str) = (
    "host/src/lib.rs",
    "mod error;\nmod plan;\nmod cpu;\nmod cuda;\nmod device;\npub use device::Device;\n",
);
const ERROR: (&str, &str) = ("host/src/error.rs", "pub struct Error;\n");
const PLAN: (&str, &str) = ("host/src/plan.rs", "pub struct Plan;\n");
const CPU: (&str, &str) = ("host/src/cpu/mod.rs", "use crate::plan::Plan;\n");
const CUDA: (&str, &str) =
    ("host/src/cuda/mod.rs", "mod driver;\nmod forward;\npub use forward::Launch;\n");
const DRIVER: (&str, &str) = ("host/src/cuda/driver.rs", "use crate::error;\n");
const FORWARD: (&str, &str) =
    ("host/src/cuda/forward.rs", "use super::driver;\npub struct Launch;\n");
const DEVICE: (&str, &str) =
    ("host/src/device/mod.rs", "use crate::{cpu, cuda};\npub struct Device;\n");
const TREE: [(&str, &str); 8] = [LIB, ERROR, PLAN, CPU, CUDA, DRIVER, FORWARD, DEVICE];

/// The tree with another text of one file.
fn with(path: &str, text: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut tree = TREE.to_vec();
    let file = tree.iter_mut().find(|file| file.0 == path).expect("a file of the tree");
    file.1 = text;
    tree
}

/// The only finding of a tree, circles aside: most imports that go up close one.
fn only(files: &[(&str, &str)]) -> Finding {
    let mut found = findings(files);
    found.retain(|x| x.rule != Rule::Cycle);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn imports_that_go_down_pass() {
    assert_eq!(places(&TREE), []);
    // A file that is moved to a folder is the same module.
    let mut tree = TREE.to_vec();
    tree[2] = ("host/src/plan/mod.rs", "mod cost;\npub struct Plan;\n");
    tree.push(("host/src/plan/cost.rs", "use super::Plan;\n"));
    assert_eq!(places(&tree), []);
}

#[test]
fn an_import_that_goes_up_is_found() {
    let found = only(&with("host/src/plan.rs", "use std::fmt;\nuse crate::device::Device;\n"));
    assert_eq!((found.rule, found.line), (Rule::Layer, 2));
    let message = "host/src/plan.rs:2: `plan` uses `crate::device::Device` of `device`, which lies \
                   above it; move the definition down or the use up (xtask/src/tidy/layers.rs)";
    assert_eq!(found.to_string(), message);
}

#[test]
fn an_import_through_the_root_counts_where_it_is_defined() {
    let found = only(&with("host/src/plan.rs", "use crate::Device;\n"));
    assert_eq!(found.rule, Rule::Layer);
    assert!(found.message.contains("`crate::Device` of `device`"), "{}", found.message);
    // The root's own items are above everything.
    let mut tree = with("host/src/device/mod.rs", "use crate::VERSION;\npub struct Device;\n");
    tree[0].1 = "mod device;\npub use device::Device;\npub const VERSION: u32 = 1;\n";
    tree.retain(|file| file.0.starts_with("host/src/lib") || file.0.contains("/device/"));
    assert!(only(&tree).message.contains("of `lib.rs`"));
}

/// They are named as the root's, and what they become is code of others.
#[test]
fn macros_for_other_crates_are_where_they_are_defined() {
    const EXPORTED: &str = "pub use crate::open;\n#[macro_export]\n\
                            macro_rules! open { () => { $crate::device::open() } }\n";
    assert_eq!(places(&with("host/src/cuda/driver.rs", EXPORTED)), []);
    let mut tree = with("host/src/error.rs", "pub fn f() { crate::open!() }\n");
    tree[5].1 = EXPORTED;
    let found = only(&tree);
    assert_eq!((found.rule, &found.path[..]), (Rule::Layer, "host/src/error.rs"));
}

#[test]
fn an_import_of_a_sibling_is_found() {
    let found = only(&with("host/src/cpu/mod.rs", "fn f() { crate::cuda::Launch::new() }\n"));
    assert_eq!(found.rule, Rule::Layer);
    assert!(found.message.starts_with("`cpu` uses `crate::cuda::Launch::new` of its sibling"));
}

#[test]
fn every_way_to_write_an_import_is_seen() {
    let ways = [
        "use crate::{error, device::{self, Device}};\n",
        "use crate::device::*;\n",
        "use crate::device as other;\n",
        "pub(crate) use crate::device::Device;\n",
        "use super::device::Device;\n",
        "type D = crate::device::Device;\n",
        "fn f(device: &crate::device::Device) {}\n",
        "fn f() { use crate::device::Device; }\n",
        "fn f() { crate::device::open(); }\n",
        "fn f() { print!(\"{}\", crate::device::open()); }\n",
        "macro_rules! open { () => { $crate::device::open() } }\n",
        "macro_rules! open { () => { use crate::{device::{Device}}; } }\n",
        "impl crate::device::Device {}\n",
        "mod inner { use super::super::device::Device; }\n",
        "use crate::cuda;\nfn f() { cuda::open() }\n",
    ];
    for text in ways {
        let found = findings(&with("host/src/plan.rs", text));
        assert!(found.iter().any(|x| x.rule == Rule::Layer), "{text}");
    }
    let others = [
        "// use crate::device::Device;\n",
        "/// As [`crate::device::Device`].\npub struct Plan;\n",
        "const TEXT: &str = \"crate::device::Device\";\n",
        "pub(in crate::device) struct Plan;\n",
        "use std::device::Device;\n",
        "use ::device::Device;\n",
        "#[cfg(test)]\nmod tests { use crate::device::Device; }\n",
        "#[cfg(all(test, feature = \"cuda\"))]\nuse crate::device::Device;\n",
    ];
    for text in others {
        assert_eq!(places(&with("host/src/plan.rs", text)), [], "{text}");
    }
    let not_test = "#[cfg(not(test))]\nuse crate::device::Device;\n";
    assert_eq!(only(&with("host/src/plan.rs", not_test)).rule, Rule::Layer);
}

#[test]
fn files_of_tests_import_what_they_like() {
    let mut tree = with("host/src/plan.rs", "#[cfg(test)]\nmod tests;\n");
    tree.push(("host/src/plan/tests.rs", "use crate::device::Device;\nmod more;\n"));
    tree.push(("host/src/plan/tests/more.rs", "use crate::device::Device;\n"));
    assert_eq!(places(&tree), []);
}

#[test]
fn rooms_within_a_room_have_layers() {
    let found = only(&with("host/src/cuda/driver.rs", "use super::forward::Launch;\n"));
    assert_eq!(found.rule, Rule::Layer);
    let text = "`cuda::driver` uses `super::forward::Launch` of `cuda::forward`, which lies above";
    assert!(found.message.starts_with(text), "{}", found.message);
    // An import through the exports of the room's own file is found, too.
    let found = findings(&with("host/src/cuda/driver.rs", "use crate::cuda::Launch;\n"));
    assert!(found.iter().any(|x| x.message.contains("of `cuda::forward`")), "{found:?}");
}

#[test]
fn a_circle_is_found() {
    let found = findings(&with("host/src/cpu/mod.rs", "use crate::device::Device;\n"));
    let circles: Vec<_> = found.iter().filter(|x| x.rule == Rule::Cycle).collect();
    // One for each room in it, and the import that goes up.
    assert_eq!((circles.len(), found.len()), (2, 3), "{found:?}");
    assert_eq!(circles[0].path, "host/src/lib.rs");
    let message = "rooms import each other in a circle of 2: cpu → device \
                   (host/src/cpu/mod.rs:1) → cpu (host/src/device/mod.rs:1); break one of these \
                   imports";
    assert_eq!(circles[0].message, message);
}

#[test]
fn a_file_in_no_room_is_found() {
    let mut tree = with("host/src/lib.rs", "mod error;\nmod helpers;\n");
    tree.retain(|file| file.0 == "host/src/lib.rs" || file.0 == "host/src/error.rs");
    tree.push(("host/src/helpers.rs", "use crate::error;\n"));
    assert_eq!(only(&tree).message.split(';').next(), Some("this file is in no room"));
    tree[0].1 = "mod error;\n";
    tree[2].0 = "host/src/error/lost.rs";
    assert!(only(&tree).message.starts_with("no module declares this file"));
}

#[test]
fn long_functions_are_found() {
    let function = |head: &str, n_lines: usize| {
        format!("{head} {{\n{}}}", "    let x = 1;\n".repeat(n_lines - 2))
    };
    let rules = |text: &str| places(&[("cli/src/a.rs", text)]);
    let long = [(Rule::Function, "cli/src/a.rs:1".to_string())];
    assert_eq!(rules(&function("fn f()", 80)), []);
    assert_eq!(rules(&function("fn f()", 81)), long);
    // Attributes and comments are not the function's.
    assert_eq!(rules(&format!("/// Doc.\n#[inline]\n{}", function("fn f()", 80))), []);
    let within = |head: &str, text: String| rules(&format!("{head} {{\n{text}\n}}\n")).len();
    assert_eq!(within("impl A", function("fn f(&self)", 80)), 0);
    assert_eq!(within("impl A", function("fn f(&self)", 81)), 1);
    assert_eq!(within("trait A", function("fn f(&self)", 81)), 1);
    assert_eq!(within("mod a", function("fn f()", 81)), 1);
    assert_eq!(within("proptest!", function("fn f(x in 0..1)", 81)), 1);
    let rule = format!("() => {{ {} }}", function("fn $name(f: fn(u32))", 81));
    assert_eq!(within("macro_rules! a", rule), 1);
}

#[test]
fn long_files_lines_and_folders_are_found() {
    let rules = |path: &str, text: &str| {
        let found = places(&[(path, text)]);
        found.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    assert_eq!(rules("cli/src/a.rs", &"\n".repeat(500)), []);
    assert_eq!(rules("cli/src/a.rs", &"\n".repeat(501)), [Rule::File]);
    assert_eq!(rules("cli/src/a.rs", &format!("// {}", "é".repeat(97))), []);
    assert_eq!(rules("cli/src/a.rs", &format!("// {}", "é".repeat(98))), [Rule::Width]);
    assert_eq!(rules("Cargo.toml", &format!("# {}", "x".repeat(99))), [Rule::Width]);

    let paths: Vec<String> = (0..16).map(|i| format!("cli/src/x/{i}.rs")).collect();
    let mut tree: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
    assert_eq!(places(&tree), [(Rule::Folder, "cli/src/x/:1".to_string())]);
    tree[0].0 = "cli/src/x/y/0.rs";
    assert_eq!(places(&tree), []);
}

#[test]
fn banned_words_are_found() {
    let found = only(&[("cli/src/a.rs", "fn f() {}\n\n/// What a warp is told.\nfn told() {}\n")]);
    assert_eq!((found.rule, found.line), (Rule::Word, 3));
    assert!(found.message.starts_with("\"told\" in a comment; write instead: "));
}

#[test]
fn conditions_on_the_feature_cuda_are_few() {
    let condition = "#[cfg(all(feature = \"cuda\", unix))]\nfn f() {}\n";
    let few = condition.repeat(seam::PLACES);
    // Comments, strings and other features are none.
    let others = "// feature = \"cuda\"\nconst A: &str = \"feature = \\\"cuda\\\"\";\n\
                  #[cfg(feature = \"serde\")]\nfn f() {}\n";
    assert_eq!(places(&[("cli/src/a.rs", &few), ("cli/src/b.rs", others)]), []);
    let in_a_macro = "fn f() -> bool {\n    cfg!(feature = \"cuda\")\n}\n";
    let tree = [("cli/src/a.rs", &few[..]), ("cli/src/b.rs", in_a_macro)];
    assert_eq!(places(&tree), [(Rule::Seam, "cli/src/b.rs:2".to_string())]);
}

#[test]
fn exceptions_may_only_shrink() {
    let wide = |n: usize| {
        let text = format!("// {}\n", "x".repeat(98)).repeat(n);
        findings(&[("cli/src/a.rs", &text)])
    };
    let allowed = Allowed::parse("# Comment.\n\nwidth cli/src/a.rs 2\n").unwrap();
    assert_eq!(allowed.compare(&wide(2)), Vec::<String>::new());
    let more = allowed.compare(&wide(3));
    assert!(more[0].starts_with("cli/src/a.rs: 3 findings of the rule `width`, where"), "{more:?}");
    assert_eq!(more[3], "cli/src/a.rs:3: 101 columns, more than 100; wrap the line");
    let fewer = allowed.compare(&wide(1));
    assert_eq!(fewer.len(), 1);
    assert!(fewer[0].ends_with("still has 2; run `cargo xtask tidy --lower`"), "{fewer:?}");

    assert_eq!(allowed.lowered(&wide(1)).unwrap().total(), 1);
    assert_eq!(allowed.lowered(&[]).unwrap(), Allowed::default());
    allowed.lowered(&wide(3)).unwrap_err();
    // Findings of another rule are no exception yet.
    allowed.lowered(&findings(&[("cli/src/a.rs", "// told\n")])).unwrap_err();
    // A file that was moved takes its findings along.
    let mut moved = wide(2);
    moved.iter_mut().for_each(|x| x.path = "cli/src/b.rs".into());
    let text = allowed.lowered(&moved).unwrap().text();
    assert!(text.ends_with("\nwidth cli/src/b.rs 2\n"), "{text}");
    assert_eq!(Allowed::parse(&text).unwrap().text(), text);
}

#[test]
fn a_table_that_cannot_be_read_is_an_error() {
    for line in ["width cli/src/a.rs", "width cli/src/a.rs 0", "wide a.rs 1", "width a.rs 1 2"] {
        let error = Allowed::parse(line).unwrap_err().to_string();
        assert!(error.contains("allowed.txt:1: not a rule, a path and a count"), "{error}");
    }
    Allowed::parse("width a.rs 1\nwidth a.rs 2\n").unwrap_err();
}

#[test]
fn the_real_tree_cannot_be_broken_unseen() {
    let root = crate::workspace_root();
    let sources = tree::read(&root).unwrap();
    let before = find(&sources).unwrap();
    let allowed = Allowed::read(&root.join(ALLOWED)).unwrap();
    let breaks = [
        ("host/src/error.rs", "use crate::device;\n", Rule::Layer),
        ("kernels-gpu/src/ptx/mod.rs", "use crate::sm80;\n", Rule::Layer),
        ("host/src/error.rs", "// Nobody is told.\n", Rule::Word),
    ];
    for (path, text, rule) in breaks {
        let mut broken = sources.clone();
        let file = broken.iter_mut().find(|source| source.path == path).expect(path);
        file.text.push_str(text);
        let line = file.text.lines().count();
        let after = find(&broken).unwrap();
        let is_new = |x: &&Finding| x.rule == rule && x.path == path && x.line == line;
        assert!(after.iter().any(|x| is_new(&x)), "{path} with {text}");
        assert!(!before.iter().any(|x| is_new(&x)));
        let place = format!("{path}:{line}: ");
        assert!(allowed.compare(&after).iter().any(|x| x.starts_with(&place)), "{place}");
    }
}
