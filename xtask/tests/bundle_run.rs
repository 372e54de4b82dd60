//! The bundle's script, with shell scripts in place of test programs and sanitizer.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const GOOD: &str = r#"
printf '{"cases": %s, "passed": %s}' "$MAXSIM_CASES" "$MAXSIM_CASES" \
    > "$MAXSIM_RECORD_DIR/random.json"
echo "ptxas info: compiled" >> "$MAXSIM_JIT_LOG"
echo "in $(basename "$PWD")"
echo "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s"
"#;
const LOADS: &str = r##"
printf '{"engine rows": {"a f16": 1, "a_b f16": 2}, "cases": 1, "passed": 1}' \
    > "$MAXSIM_RECORD_DIR/rows.json"
echo "# a on cuda:0" >> "$MAXSIM_JIT_LOG"
echo "# a_b on cuda:0" >> "$MAXSIM_JIT_LOG"
echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
"##;
const FAILING: &str = r#"
echo "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; done in 1s"
exit 101
"#;
const MODULES: &str = r#"
if [ "$1" = --list ]; then
    printf 'graph::one: test\ngraph::more::two: test\ngraphs::one: test\nalone: test\n'
    exit
fi
echo "ran with: $*"
echo "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
"#;
const SERIALISED: &str = r#"
echo "info (C7510) Potential Performance Loss: wgmma serialized" >> "$MAXSIM_JIT_LOG"
echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
"#;

struct Bundle(PathBuf);

impl Bundle {
    /// `None`, said loudly, on a machine without Python.
    fn new(test: &str, programs: &[(&str, &str)]) -> Option<Bundle> {
        if Command::new("python3").arg("--version").output().is_err() {
            eprintln!("SKIPPED (no python3): {test}");
            return None;
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("programs")).unwrap();
        fs::write(dir.join("run"), include_str!("../bundle/run")).unwrap();
        let bundle = Bundle(dir);
        let mut rows = Vec::new();
        for (name, text) in programs {
            let file = format!("programs/{name}");
            bundle.script(&file, text);
            rows.push(
                json!({"name": name, "file": file, "package_dir": "tests", "uses_gpu": true}),
            );
        }
        let manifest = json!({
            "rustc": "rustc 1.95.0", "commit": "abc", "programs": rows, "ptx": {"a.ptx": "1"},
            "cubins": {"a.cubin": "2"}, "archive": {"kernels.pack": "3"},
        });
        fs::write(bundle.0.join("manifest.json"), manifest.to_string()).unwrap();
        Some(bundle)
    }

    fn script(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_with("auto", args)
    }

    fn run_with(&self, kernels: &str, args: &[&str]) -> Output {
        let mut python = Command::new("python3");
        python.arg(self.0.join("run")).args(args).env("OUT", self.0.join("out"));
        python.env("COMPUTE_SANITIZER", self.0.join("sanitizer")).env("TEST_SECONDS", "1");
        match kernels {
            "auto" => python.env_remove("MAXSIM_KERNELS"),
            forced => python.env("MAXSIM_KERNELS", forced),
        };
        python.env("MAXSIM_CASES", "7").output().unwrap()
    }

    /// The whole record.
    fn build_record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.0.join("out/tests.json")).unwrap()).unwrap()
    }

    /// What was recorded of runs that may load kernels from anything.
    fn record(&self) -> Value {
        self.build_record()["kernels"]["auto"].take()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_good_run_is_recorded() {
    let Some(bundle) = Bundle::new("good", &[("good", GOOD)]) else { return };
    let output = bundle.run(&["tests"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output).contains("in tests"), "{output:?}");
    let record = bundle.record();
    assert_eq!(record["programs"]["good"]["result"], "ok");
    assert_eq!(record["programs"]["good"]["passed"], 3);
    assert_eq!(record["programs"]["good"]["ignored"], 1);
    assert_eq!(record["suites"]["random"], json!({"cases": 7, "passed": 7}));
    assert_eq!(record["jit_log"], json!(["ptxas info: compiled"]));
    let record = bundle.build_record();
    assert_eq!(record["ptx"], json!({"a.ptx": "1"}));
    assert_eq!(record["cubins"], json!({"a.cubin": "2"}));
    assert_eq!(record["archive"], json!({"kernels.pack": "3"}));
}

#[test]
fn runs_with_cubins_and_with_ptx_have_records_of_their_own() {
    let Some(bundle) = Bundle::new("kernels", &[("good", GOOD), ("failing", FAILING)]) else {
        return;
    };
    assert!(bundle.run_with("cubin", &["tests", "good"]).status.success());
    assert!(!bundle.run_with("ptx", &["tests", "failing"]).status.success());
    let output = bundle.run_with("ptx", &["tests", "good"]);
    assert!(text(&output).contains("kernels: ptx"), "{output:?}");
    let record = bundle.build_record();
    let of = |kernels: &str, part: &str| {
        record["kernels"][kernels][part].as_object().map(|part| part.len())
    };
    assert_eq!((of("cubin", "programs"), of("ptx", "programs")), (Some(1), Some(2)));
    assert_eq!((of("cubin", "suites"), of("ptx", "suites")), (Some(1), Some(1)));
    assert_eq!(of("auto", "programs"), None);
}

#[test]
fn a_later_run_is_merged_unless_the_compiler_is_another() {
    let Some(bundle) = Bundle::new("merged", &[("good", GOOD), ("failing", FAILING)]) else {
        return;
    };
    assert!(bundle.run(&["tests", "good"]).status.success());
    assert!(!bundle.run(&["tests", "failing"]).status.success());
    let record = bundle.record();
    assert_eq!(record["programs"]["good"]["result"], "ok");
    assert_eq!(record["programs"]["failing"]["result"], "FAILED");
    assert_eq!(record["programs"]["failing"]["failed"], 2);

    let manifest = fs::read_to_string(bundle.0.join("manifest.json")).unwrap();
    let other = manifest.replace("1.95.0", "1.96.0");
    assert_ne!(manifest, other);
    fs::write(bundle.0.join("manifest.json"), other).unwrap();
    assert!(bundle.run(&["tests", "good"]).status.success());
    assert_eq!(bundle.record()["programs"].as_object().unwrap().len(), 1);
}

#[test]
fn nothing_stays_of_kernels_that_changed() {
    let Some(bundle) = Bundle::new("changed", &[("loads", LOADS), ("failing", FAILING)]) else {
        return;
    };
    bundle.script("sanitizer", "echo '===== ERROR SUMMARY: 0 errors'");
    for kernels in ["cubin", "ptx"] {
        assert!(bundle.run_with(kernels, &["tests", "loads"]).status.success());
        bundle.run_with(kernels, &["sanitize", "loads"]);
    }
    // As of filters that one of two kernels has, or both.
    let file = bundle.0.join("out/tests.json");
    let mut record = bundle.build_record();
    record["kernels"]["ptx"]["sanitizer"]["memcheck"] =
        json!({"loads (a kernels)": "", "x=y (b kernels)": "", "loads": ""});
    fs::write(&file, record.to_string()).unwrap();
    let manifest = fs::read_to_string(bundle.0.join("manifest.json")).unwrap();
    let other = manifest.replace(r#""a.ptx":"1""#, r#""a.ptx":"2","a_b.ptx":"1""#);
    let other = other.replace(r#""kernels.pack":"3""#, r#""kernels.pack":"4""#);
    assert_ne!(manifest, other);
    fs::write(bundle.0.join("manifest.json"), other).unwrap();
    bundle.run_with("ptx", &["tests", "failing"]);

    // Runs from cubins loaded what there is still.
    let record = bundle.build_record();
    let of = |kernels: &str| {
        let run = &record["kernels"][kernels];
        let verdicts = run["sanitizer"]["memcheck"].as_object().unwrap().keys().cloned();
        let rows = run["suites"]["rows"]["engine rows"].clone();
        (run["jit_log"].clone(), rows, verdicts.collect::<Vec<_>>())
    };
    let (all, rows) =
        (json!(["# a on cuda:0", "# a_b on cuda:0"]), json!({"a f16": 1, "a_b f16": 2}));
    assert_eq!(of("cubin"), (all, rows, vec!["loads".to_string()]));
    let (logged, rows, verdicts) = of("ptx");
    assert_eq!((logged, rows), (json!(["# a_b on cuda:0"]), json!({"a_b f16": 2})));
    let but = "kernels, without those that changed since)";
    let expected = [format!("loads (a {but}"), format!("loads ({but}"), "x=y (b kernels)".into()];
    assert_eq!(verdicts.iter().collect::<BTreeSet<_>>(), expected.iter().collect());
    assert_eq!(record["ptx"], json!({"a.ptx": "2", "a_b.ptx": "1"}));
    assert_eq!(record["archive"], json!({"kernels.pack": "4"}));
    let programs = record["kernels"]["ptx"]["programs"].as_object().unwrap();
    assert_eq!(programs.len(), 2, "{programs:?}");
}

#[test]
fn serialised_kernels_hangs_and_unknown_names_fail() {
    let programs = [("serialised", SERIALISED), ("hangs", "exec sleep 30"), ("dies", "exit 0")];
    let Some(bundle) = Bundle::new("bad", &programs) else { return };
    let output = bundle.run(&["tests", "serialised"]);
    assert!(!output.status.success() && text(&output).contains("1 with C75xx"), "{output:?}");
    assert!(!bundle.run(&["tests", "hangs", "dies"]).status.success());
    assert_eq!(bundle.record()["programs"]["hangs"]["result"], "timed out");
    // A program that ends well without the test runner's closing line did not run its tests.
    assert_eq!(bundle.record()["programs"]["dies"]["result"], "FAILED");
    let output = bundle.run(&["tests", "absent"]);
    assert!(errors(&output).contains("absent"), "{output:?}");
}

#[test]
fn what_was_left_out_is_said_and_what_needs_it_is_skipped() {
    let Some(bundle) = Bundle::new("left-out", &[("good", GOOD), ("reader", GOOD)]) else { return };
    let manifest = fs::read_to_string(bundle.0.join("manifest.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    manifest["programs"][1]["needs"] = json!(["data/set"]);
    manifest["left_out"] = json!(["other", "maxsim", "data/set"]);
    fs::write(bundle.0.join("manifest.json"), manifest.to_string()).unwrap();

    // With the data there, everything runs.
    fs::create_dir_all(bundle.0.join("data/set")).unwrap();
    assert!(bundle.run(&["tests"]).status.success());
    assert_eq!(bundle.record()["programs"]["reader"]["result"], "ok");

    fs::remove_dir_all(bundle.0.join("data")).unwrap();
    let output = bundle.run(&["tests"]);
    let skipped = "SKIPPED reader: data/set was left out of this bundle";
    assert!(output.status.success() && text(&output).contains(skipped), "{output:?}");
    // The earlier run stays recorded.
    assert_eq!(bundle.record()["programs"].as_object().unwrap().len(), 2);

    for (args, said) in [
        (&["tests", "reader"][..], "reader cannot run: data/set was left out"),
        (&["tests", "reader=one"], "reader cannot run"),
        (&["tests", "good", "other"], "left out of this bundle: other; there are: good, reader"),
        (&["tool", "info"], "bin/maxsim was left out of this bundle"),
    ] {
        let output = bundle.run(args);
        assert!(!output.status.success() && errors(&output).contains(said), "{args:?} {output:?}");
    }
}

#[test]
fn a_module_or_one_test_of_a_program_is_run() {
    let Some(bundle) = Bundle::new("modules", &[("gpu", MODULES)]) else { return };
    for (name, tests) in [
        ("gpu=graph", "--exact graph::one graph::more::two"),
        ("gpu=graph::more", "--exact graph::more::two"),
        ("gpu=graphs::one", "--exact graphs::one"),
        ("gpu=alone", "--exact alone"),
    ] {
        let output = bundle.run(&["tests", name]);
        assert!(text(&output).contains(&format!("ran with: {tests}\n")), "{name}: {output:?}");
        assert_eq!(bundle.record()["programs"][name]["result"], "ok");
    }
    let output = bundle.run(&["tests", "gpu=grap"]);
    let said = "gpu has no test or module grap; there are: alone, graph, graph::more, graphs";
    assert!(!output.status.success() && errors(&output).contains(said), "{output:?}");
    // The whole program stands for its parts.
    assert!(bundle.run(&["tests"]).status.success());
    assert_eq!(bundle.record()["programs"].as_object().unwrap().len(), 1);
}

#[test]
fn runs_of_bundles_with_other_programs_are_merged() {
    let both = [("good", GOOD), ("failing", FAILING)];
    let Some(bundle) = Bundle::new("only", &both) else { return };
    let manifest = bundle.0.join("manifest.json");
    let everything: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    for (i, left_out) in [(0, "failing"), (1, "good")] {
        let mut only = everything.clone();
        only["programs"] = json!([everything["programs"][i]]);
        only["left_out"] = json!([left_out]);
        fs::write(&manifest, only.to_string()).unwrap();
        bundle.run(&["tests"]);
    }
    let record = bundle.record();
    assert_eq!(record["programs"]["good"]["result"], "ok");
    assert_eq!(record["programs"]["failing"]["result"], "FAILED");
}

#[test]
fn the_sanitizers_words_become_a_verdict() {
    let Some(bundle) = Bundle::new("sanitizer", &[("good", GOOD)]) else { return };
    let verdict = |says: &str| {
        bundle.script("sanitizer", says);
        let output = bundle.run(&["sanitize"]);
        let record = bundle.record();
        let of = |tool: &str| record["sanitizer"][tool]["good"].as_str().unwrap().to_string();
        (output.status.success(), of("memcheck"), of("racecheck"))
    };
    let (good, memcheck, racecheck) = verdict(
        r#"if [ "$2" = memcheck ]; then echo "========= ERROR SUMMARY: 0 errors"
           else
               echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
           fi"#,
    );
    assert_eq!((good, memcheck.as_str(), racecheck.as_str()), (true, "clean", "clean"));
    let (good, memcheck, _) = verdict("echo '========= ERROR SUMMARY: 2 errors'; exit 86");
    assert!(!good && memcheck.starts_with("REPORTS"), "{memcheck}");
    let (good, memcheck, _) = verdict("echo '========= ERROR SUMMARY: 0 errors'; exit 101");
    assert!(!good && memcheck.starts_with("FAILED"), "{memcheck}");
    let (good, memcheck, _) = verdict("echo '========= Error: Device not supported'; exit 1");
    assert!(!good && memcheck.starts_with("refused: "), "{memcheck}");
    let (good, memcheck, _) = verdict("exit 1");
    assert!(!good && memcheck.starts_with("refused: "), "{memcheck}");
}

#[test]
fn benchmark_scripts_get_their_arguments_and_the_folder_for_results() {
    let Some(bundle) = Bundle::new("bench", &[("good", GOOD)]) else { return };
    fs::create_dir_all(bundle.0.join("bench")).unwrap();
    let script = "import sys; print('got', *sys.argv[1:]); sys.exit(len(sys.argv) - 4)";
    fs::write(bundle.0.join("bench/campaign.py"), script).unwrap();
    // The scripts load the library.
    let output = bundle.run(&["bench", "campaign", "f32"]);
    assert!(
        !output.status.success() && errors(&output).contains("libmaxsim_bench.so"),
        "{output:?}"
    );
    fs::create_dir_all(bundle.0.join("bin")).unwrap();
    fs::write(bundle.0.join("bin/libmaxsim_bench.so"), "").unwrap();
    let output = bundle.run(&["bench", "campaign", "f32"]);
    assert!(output.status.success(), "{output:?}");
    let out = bundle.0.join("out").display().to_string();
    assert!(text(&output).contains(&format!("got f32 --out {out}")), "{output:?}");
    assert!(!bundle.run(&["bench", "campaign", "f32", "--quick"]).status.success());
    // A package.
    let folder = bundle.0.join("bench/search");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("__init__.py"), "WORD = 'package'").unwrap();
    let script = "import sys\nfrom . import WORD\nprint(WORD, *sys.argv[1:])";
    fs::write(folder.join("__main__.py"), script).unwrap();
    let output = bundle.run(&["bench", "search", "--rows", "query"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("package --rows query --out"), "{printed}");
    assert!(printed.contains("search.json"), "{printed}");
    let output = bundle.run(&["bench", "absent"]);
    assert!(errors(&output).contains("campaign"), "{output:?}");
}
