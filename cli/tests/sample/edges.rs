//! The tool where something is out of the ordinary: output paths that are links or streams, values
//! that are no numbers, options that do not go together; and what it says then.

use std::fs;

use crate::files::{Random, f16_bytes, i64_bytes, npy, packed, safetensors};
use crate::tool::{FolderOf, Run, command, json, rank, run, sample};

const QUERY_OFFSETS: [i64; 3] = [0, 1, 3];
const DOCUMENT_OFFSETS: [i64; 4] = [0, 3, 4, 7];

/// The kind of these tests' folders.
enum Edges {}

type Folder = FolderOf<Edges>;

impl Folder {
    /// A folder with two queries, of rows 0 and 1..3, and three documents of dim 4, of rows 0..3, 3
    /// and 4..7.
    fn new() -> Folder {
        let folder = Folder::empty();
        folder.write("q.safetensors", packed(&Random(1).values(3 * 4), 4, &QUERY_OFFSETS));
        folder.write("d.safetensors", packed(&documents(), 4, &DOCUMENT_OFFSETS));
        folder
    }

    /// Ranks `documents` for q.safetensors.
    fn rank(&self, documents: &str, more: &[&str]) -> Run {
        rank(&self.path("q.safetensors"), &self.path(documents), more)
    }

    /// Compresses `input` to out.safetensors.
    fn quantize(&self, input: &str, more: &[&str]) -> Run {
        let (input, output) = (self.text(input), self.text("out.safetensors"));
        run([&["quantize", "--input", &input, "--output", &output], more].concat())
    }
}

fn documents() -> Vec<f32> {
    Random(2).values(7 * 4)
}

/// Padded INT8 documents of the rows' codes, with a scale each: of rows 0..3, 3..5 and 6..8 of 9.
fn int8(codes: &[i8], scales: &[f32]) -> Vec<u8> {
    let codes: Vec<u8> = codes.iter().map(|code| code.cast_unsigned()).collect();
    let tensors = [
        ("lengths", "I64", &[3][..], i64_bytes(&[3, 2, 2])),
        ("embeddings", "I8", &[3, 3, 4][..], codes),
        ("scales", "F16", &[3, 3][..], f16_bytes(scales)),
    ];
    safetensors(&tensors, 0)
}

#[cfg(unix)]
#[test]
fn files_keep_their_permissions_and_links_lead_to_new_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new();
    let out = folder.write("out", "private");
    let mode = || fs::metadata(&out).unwrap().permissions().mode() & 0o777;
    for private in [0o600, 0o666, 0o440] {
        fs::set_permissions(&out, PermissionsExt::from_mode(private)).unwrap();
        folder.rank("d.safetensors", &["--output", out.to_str().unwrap()]).ok();
        assert_eq!(mode(), private, "{:o} is now {:o}", private, mode());
    }
    // A link to a link to nothing, by way of a folder.
    fs::create_dir(folder.path("sub")).unwrap();
    symlink("../target", folder.path("sub/link")).unwrap();
    symlink("sub/link", folder.path("link")).unwrap();
    folder.rank("d.safetensors", &["--output", &folder.text("link")]).ok();
    assert!(fs::symlink_metadata(folder.path("link")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(folder.path("sub/link")).unwrap().is_symlink());
    assert_eq!(fs::read(folder.path("target")).unwrap(), fs::read(&out).unwrap());
    symlink("round", folder.path("round")).unwrap();
    let error = folder.rank("d.safetensors", &["--output", &folder.text("round")]).error();
    assert!(error.contains("links"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn open_files_are_written_to_and_not_replaced() {
    let folder = Folder::new();
    let expected = folder.rank("d.safetensors", &["--format", "trec"]).ok();
    for output in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/stderr"] {
        let log = folder.write("log", "before\n");
        let append = || fs::File::options().append(true).open(&log).unwrap();
        let mut command = command();
        command.args(["rank", "--device", "cpu", "--format", "trec", "--output", output]);
        command.arg("--queries").arg(folder.path("q.safetensors"));
        command.arg("--documents").arg(folder.path("d.safetensors"));
        match output {
            "/dev/stderr" => command.stderr(append()),
            _ => command.stdout(append()),
        };
        assert_eq!(command.output().unwrap().status.code(), Some(0));
        let found = fs::read_to_string(&log).unwrap();
        assert!(found.starts_with(&format!("before\n{expected}")), "{output}: {found}");
    }
}

#[test]
fn values_that_are_no_numbers_are_said_to_be_in_a_row_of_a_file() {
    let folder = Folder::new();
    let mut values = documents();
    values[5 * 4 + 1] = f32::NAN;
    folder.write("nan.safetensors", packed(&values, 4, &DOCUMENT_OFFSETS));
    let path = folder.text("nan.safetensors");
    for chunk_bytes in ["1", "1000000"] {
        let error = folder.rank("nan.safetensors", &["--chunk-bytes", chunk_bytes]).error();
        assert_eq!(error, format!("row 5 of {path} (document 2) has a NaN in element 1"));
    }

    let mut scales = [0.5; 9];
    scales[4] = -0.5;
    folder.write("scales.safetensors", int8(&[1; 36], &scales));
    let mut codes = [1i8; 36];
    // Row 5 is of no document.
    (codes[3 * 4 + 3], codes[5 * 4]) = (-128, -128);
    folder.write("codes.safetensors", int8(&codes, &[0.5; 9]));
    codes[3 * 4 + 3] = -127;
    folder.write("right.safetensors", int8(&codes, &[0.5; 9]));
    for chunk_bytes in ["1", "1000000"] {
        let rank = |documents: &str| folder.rank(documents, &["--chunk-bytes", chunk_bytes]);
        let error = rank("scales.safetensors").error();
        let expected =
            format!("{}: the scale of row 4 is -0.5;", folder.text("scales.safetensors"));
        assert!(error.starts_with(&expected), "{error}");
        let error = rank("codes.safetensors").error();
        let expected = format!("{}: row 3 has the code -128;", folder.text("codes.safetensors"));
        assert!(error.starts_with(&expected), "{error}");
        rank("right.safetensors").ok();
    }
}

#[test]
fn a_report_without_rankings_says_why() {
    let folder = Folder::new();
    let mut values = documents();
    (values[3 * 4], values[3 * 4 + 1]) = (3e38, 0.0);
    folder.write("large.safetensors", packed(&values, 4, &DOCUMENT_OFFSETS));
    let queries = folder.write("q1.safetensors", packed(&[9.0, 0.0, 0.0, 0.0], 4, &[0, 1]));
    let queries = queries.to_str().unwrap();
    let more = ["--format", "int8", "--scales", "f32", "--report", "json", "--queries", queries];
    let run = folder.quantize("large.safetensors", &more);
    let expected =
        "warning: rankings were not compared: the score of query 0 and document 1 is inf";
    assert!(run.stderr.starts_with(expected), "{}", run.stderr);
    assert!(run.stderr.contains("row 3 of"), "{}", run.stderr);
    let report = json(&run.ok());
    assert_eq!(report["agreement"], json("null"));
    assert!(folder.path("out.safetensors").exists());
}

#[test]
fn calls_on_the_cpu_are_short_enough_to_see_them_go_by() {
    let folder = Folder::new();
    // 20 MB of zeros, which need no room on disk.
    let header = npy(1, "<f4", &[5000, 1, 1024], &[]);
    let documents = folder.write("zeros.npy", &header);
    let file = fs::File::options().write(true).open(&documents).unwrap();
    file.set_len(header.len() as u64 + 5000 * 1024 * 4).unwrap();
    let queries = folder.write("one.safetensors", packed(&[1.0; 1024], 1024, &[0, 1]));
    let run = rank(&queries, &documents, &["--format", "trec"]);
    assert!(run.stderr.contains("1 query × 5000 documents"), "{}", run.stderr);
    assert!(run.stderr.contains("in 2 chunks"), "{}", run.stderr);
    run.ok();
}

#[test]
fn judgements_and_texts_are_objects() {
    let folder = Folder::new();
    let file = |content: &str| folder.write("lines.jsonl", content).to_str().unwrap().to_string();
    let qrels = |content: &str| folder.rank("d.safetensors", &["--qrels", &file(content)]);
    let texts = |content: &str| folder.rank("d.safetensors", &["--texts", &file(content)]);
    // As editors on Windows write it.
    let said = qrels("\u{feff}{\"id\": 0, \"relevant\": [1]}\n").ok();
    assert!(said.ends_with("over 1 judged query\n"), "{said}");
    texts("\u{feff}{\"id\": 0, \"title\": \"t\"}\n").ok();
    let object = r#"{"id": 0, "relevant": [3, 7]}"#;
    for (line, expected) in [
        ("[0, [1]]", "line 1: not a known form of judgements"),
        ("{\"id\": \"a\", \"relevant\": []}", "line 1: query a does not exist"),
        ("{\"id\": 0.5, \"relevant\": []}", "line 1: invalid type: floating point `0.5`"),
        ("{\"id\": 0}", "line 1: missing field `relevant`"),
        ("{\"id\": 0, \"relevant\": []}\n[0, [1]]", "line 2: expected a JSON object, such as"),
        ("\n\u{feff}{}", "line 2: not a known form of judgements"),
    ] {
        let error = qrels(line).error();
        assert!(error.contains(expected), "{line}: {error}");
        if !error.contains("does not exist") {
            assert!(error.contains(object), "{line}: {error}");
        }
    }
    let error = texts("[0, \"t\", null, null]").error();
    assert!(error.contains("expected a JSON object") && error.contains("\"title\""), "{error}");
}

#[test]
fn messages_name_options_of_the_tool() {
    let folder = Folder::new();
    let check = |run: Run, parts: &[&str]| {
        let error = run.error();
        parts.iter().for_each(|part| assert!(error.contains(part), "no '{part}': {error}"));
        assert!(!error.contains("Device::cpu()"), "{error}");
    };
    let kernel = |name| folder.rank("d.safetensors", &["--kernel", name]);
    check(kernel("foo"), &["--kernel foo: no such kernel", "`maxsim info --kernels` lists them"]);
    check(kernel("maxsim_forward_sm80_f32_q64"), &["the CPU has no kernels", "leave --kernel out"]);
    let few = ["--format", "plaid", "--keep-lengths", "--centroids", "8"];
    check(folder.quantize("d.safetensors", &few), &["--centroids 8: expected 1 to 7"]);
    folder.quantize("d.safetensors", &["--format", "int8-affine"]).ok();
    let affine = folder.path("out.safetensors");
    check(rank(&affine, &affine, &[]), &["such documents take int8, f16, bf16 or f32 queries"]);
    check(rank(&affine, &folder.path("d.safetensors"), &[]), &["such documents take f32 queries"]);
    let device = folder.rank("d.safetensors", &["--device", "cuda:4000"]);
    check(device, &["--device cuda:4000: "]);
    let info = run(["info"]).ok();
    assert!(!info.contains("Device::cpu()"), "{info}");
}

#[test]
fn options_without_effect_are_refused() {
    let folder = Folder::new();
    let (index, output) = ("tests/plaid/fast-plaid-4", folder.text("out.safetensors"));
    let convert = ["quantize", "--format", "plaid", "--index", index, "--output", &output];
    let qrels = sample("queries.jsonl");
    for more in [&["--no-mmap"][..], &["--qrels", qrels.to_str().unwrap()]] {
        let error = run([&convert[..], more].concat()).error();
        assert!(error.contains("'--index <FOLDER>' cannot be used with"), "{error}");
    }
    run(convert).ok();
    for dim in ["0", "4097"] {
        let error = run(["warm-up", "--device", "cpu", "--dim", dim]).error();
        assert!(error.contains("expected a whole number from 1 to 4096"), "{error}");
    }
    run(["warm-up", "--device", "cpu", "--dim", "1", "--dim", "4096"]).ok();
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_started_are_an_error() {
    let folder = Folder::new();
    let mut command = command();
    // Stacks beyond any address space.
    command.env("RUST_MIN_STACK", (1u64 << 50).to_string()).args(["rank", "--device", "cpu"]);
    command.arg("--queries").arg(folder.path("q.safetensors"));
    command.arg("--documents").arg(folder.path("d.safetensors"));
    let error = Run::of(command.output().unwrap()).error();
    assert!(error.starts_with("threads cannot be started: "), "{error}");
    assert!(error.contains("RAYON_NUM_THREADS"), "{error}");
}

#[test]
fn tables_are_aligned_and_one_is_no_plural() {
    let info = run(["info", "--kernels"]).ok();
    let kernels: Vec<&str> = info.lines().filter(|line| line.contains(" query × ")).collect();
    assert!(kernels.len() > 50);
    for column in [" dim ", ", tiles of ", " stages, ", " threads, ", " KB shared"] {
        let place = |line: &str| line.split(column).next().unwrap().chars().count();
        let first = place(kernels[0]);
        assert!(kernels.iter().all(|line| place(line) == first), "{column}");
    }
    let folder = Folder::new();
    let one = folder.write("one.safetensors", packed(&[1.0; 4], 4, &[0, 1]));
    let said = rank(&one, &one, &[]).stderr;
    assert!(said.starts_with("1 query × 1 document (1 pair; "), "{said}");
    let report = folder.quantize("one.safetensors", &["--format", "int8"]).ok();
    assert!(report.starts_with("1 item, 1 token of 4: "), "{report}");
}

#[cfg(all(target_os = "linux", not(feature = "cuda")))]
#[test]
fn a_tool_without_gpu_support_says_which_line_installs_one_with_it() {
    let line = "`cargo install --git REPOSITORY maxsim-cli`, without --no-default-features";
    let error = Folder::new().rank("d.safetensors", &["--device", "cuda:0"]).error();
    assert!(error.starts_with("--device cuda:0: ") && error.contains(line), "{error}");
    let info = run(["info"]).ok();
    assert!(info.contains("no CUDA device: ") && info.contains(line), "{info}");
    assert!(run(["warm-up"]).ok().starts_with("cpu: "));
}

#[test]
fn help_is_in_words_that_a_stranger_would_use() {
    for command in ["rank", "quantize", "info", "warm-up"] {
        let help = run([command, "--help"]).ok();
        for words in ["unless told", "a JSON object a line", "there is none of", "say --"] {
            assert!(!help.contains(words), "{command}: '{words}': {help}");
        }
    }
}
