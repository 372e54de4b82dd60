//! What compressed documents were made of: `maxsim rank --screen` calls nothing proven that is not.
//!
//! All through the tool as a process, each folder with a cache of its own.

use std::fs;
use std::time::Duration;

use crate::files::{
    Random, f16_bytes, f32_bytes, i64_bytes, npy, packed, packed_of, padded, safetensors,
};
use crate::tool::{FolderOf, Run, command, json};
use serde_json::Value;
use twox_hash::XxHash3_128;

const N: usize = 300;
const LEN: usize = 12;
const DIM: usize = 32;
const FORMATS: [&str; 3] = ["int8", "int8-affine", "fp8"];

/// More than a step of file times: what happens later shows.
const SETTLED: Duration = Duration::from_millis(150);

fn unit_rows(random: &mut Random, rows: usize) -> Vec<f32> {
    let mut values: Vec<f32> = {
        let mut value = || (random.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..rows * DIM).map(|_| value()).collect()
    };
    for row in values.chunks_mut(DIM) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x /= norm);
    }
    values
}

fn query() -> Vec<f32> {
    unit_rows(&mut Random(1), 6)
}

/// The documents' rows; document 42 is the query, times `sign`, twice.
fn documents(sign: f32) -> Vec<f32> {
    let mut values = unit_rows(&mut Random(2), N * LEN);
    let query: Vec<f32> = query().iter().map(|x| x * sign).collect();
    let doubled = [&query[..], &query].concat();
    values[42 * LEN * DIM..43 * LEN * DIM].copy_from_slice(&doubled);
    values
}

fn offsets() -> Vec<i64> {
    (0..=N).map(|i| (i * LEN) as i64).collect()
}

/// The kind of these tests' folders.
enum Provenance {}

type Folder = FolderOf<Provenance>;

impl Folder {
    /// With 300 documents of 12 unit rows, of which document 42 is the negative of the query,
    /// compressed to `d.int8.safetensors`.
    fn new() -> Folder {
        let folder = Folder::empty();
        folder.write("q.safetensors", packed(&query(), DIM, &[0, 6]));
        folder.write("d.safetensors", packed(&documents(-1.0), DIM, &offsets()));
        folder.quantize("int8", "d.safetensors", "d.int8.safetensors").ok();
        folder
    }

    fn run(&self, cache: &str, args: &[&str]) -> Run {
        let mut command = command();
        command.current_dir(self.0.path()).env("MAXSIM_CACHE_DIR", self.path(cache)).args(args);
        Run::of(command.output().expect("the tool starts"))
    }

    fn quantize(&self, format: &str, input: &str, output: &str) -> Run {
        self.run("cache", &["quantize", "--format", format, "--input", input, "--output", output])
    }

    /// Ranks with a screen, exactly, with as few documents scored again as may be.
    fn rank_in(&self, cache: &str, documents: &str, screen: &str, more: &[&str]) -> Run {
        let args =
            ["rank", "--queries", "q.safetensors", "--documents", documents, "--screen", screen];
        let how = ["--device", "cpu", "--format", "json", "--top-k", "5", "--shortlist", "5"];
        self.run(cache, &[&args[..], &how, more].concat())
    }

    fn rank(&self, documents: &str, screen: &str, more: &[&str]) -> Run {
        self.rank_in("cache", documents, screen, &[&["--exact"], more].concat())
    }

    /// That the screen is refused, with words for it.
    fn refused(&self, documents: &str, screen: &str, words: &[&str]) {
        let error = self.rank(documents, screen, &[]).error();
        for word in words.iter().chain(&[documents, screen]) {
            assert!(error.contains(word), "{word}: {error}");
        }
        // And with what was remembered of that.
        assert_eq!(self.rank(documents, screen, &[]).error(), error);
        assert_eq!(self.rank(documents, screen, &["--verify", "always"]).error(), error);
    }

    /// How many entries the cache has.
    fn n_remembered(&self, cache: &str) -> usize {
        fs::read_dir(self.path(cache)).map_or(0, Iterator::count)
    }
}

/// Best document, places proven, and what was said.
fn found(run: Run) -> (u64, u64, String) {
    let stderr = run.stderr.clone();
    let output = json(&run.ok());
    let query: &Value = &output["queries"][0];
    (query["documents"][0].as_u64().unwrap(), query["proven"].as_u64().unwrap(), stderr)
}

#[test]
fn a_screen_of_the_documents_is_proven() {
    let folder = Folder::new();
    for format in FORMATS {
        let screen = format!("{format}.safetensors");
        folder.quantize(format, "d.safetensors", &screen).ok();
        for verify in [&[][..], &["--verify", "identity"], &["--verify", "always"], &["--no-mmap"]]
        {
            let (_, proven, said) = found(folder.rank("d.safetensors", &screen, verify));
            assert_eq!(proven, 5, "{format} {verify:?}");
            assert!(!said.contains("note") && !said.contains("warning"), "{said}");
        }
        let plain = ["rank", "--queries", "q.safetensors", "--documents", "d.safetensors"];
        let plain = [&plain[..], &["--top-k", "5", "--format", "json", "--device", "cpu"]].concat();
        let plain = json(&folder.run("cache", &plain).ok());
        let exact = json(&folder.rank("d.safetensors", &screen, &[]).ok());
        assert_eq!(plain["queries"][0]["documents"], exact["queries"][0]["documents"]);
        assert_eq!(plain["queries"][0]["scores"], exact["queries"][0]["scores"]);
    }
}

#[test]
fn nothing_is_proven_of_documents_that_changed() {
    let folder = Folder::new();
    let screen = "d.int8.safetensors";
    folder.write("d.safetensors", packed(&documents(1.0), DIM, &offsets()));
    folder.refused("d.safetensors", screen, &["document 42", "token 0", "compress", "again"]);
    // On the user's word, and said so: the true first document is missed, and nothing is proven.
    let (first, proven, said) = found(folder.rank("d.safetensors", screen, &["--verify", "never"]));
    assert!(first != 42 && proven == 0, "{first} {proven}");
    assert!(said.contains("nothing is proven"), "{said}");
    // By less than codes show.
    let mut values = documents(-1.0);
    values[77] = f32::from_bits(values[77].to_bits() + 1);
    folder.write("d.safetensors", packed(&values, DIM, &offsets()));
    folder.refused("d.safetensors", screen, &["some tokens differ"]);
    // Rows that swap documents, a document more, one less, and others cut.
    let values = documents(-1.0);
    let (head, tail) = values.split_at(LEN * DIM);
    folder.write("turned.safetensors", packed(&[tail, head].concat(), DIM, &offsets()));
    folder.refused("turned.safetensors", screen, &["document 0"]);
    let more = packed(&[&values[..], head].concat(), DIM, &[offsets(), vec![301 * 12]].concat());
    folder.write("more.safetensors", more);
    let error = folder.rank("more.safetensors", screen, &[]).error();
    assert!(error.contains("300 documents") && error.contains("301"), "{error}");
    folder.write("less.safetensors", packed(tail, DIM, &offsets()[..N]));
    let error = folder.rank("less.safetensors", screen, &[]).error();
    assert!(error.contains("300 documents") && error.contains("299"), "{error}");
    let mut cut = offsets();
    cut[42] -= 1;
    folder.write("cut.safetensors", packed(&values, DIM, &cut));
    let error = folder.rank("cut.safetensors", screen, &[]).error();
    assert!(error.contains("document 41"), "{error}");
    // The same numbers in other elements, another dim, and compressed ones.
    let exact: Vec<f32> = values.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
    folder.write("exact.safetensors", packed(&exact, DIM, &offsets()));
    folder.quantize("int8", "exact.safetensors", "exact.int8.safetensors").ok();
    let f16 = packed_of("F16", f16_bytes(&exact), N * LEN, DIM, &offsets(), 0);
    folder.write("half.safetensors", f16);
    folder.write("q16.safetensors", packed_of("F16", f16_bytes(&query()), 6, DIM, &[0, 6], 0));
    let args = ["rank", "--queries", "q16.safetensors", "--documents", "half.safetensors"];
    let args = [&args[..], &["--screen", "exact.int8.safetensors"]].concat();
    let error = folder.run("cache", &args).error();
    assert!(error.contains("f32") && error.contains("f16"), "{error}");
    let error = folder.rank(screen, "exact.int8.safetensors", &[]).error();
    assert!(error.contains("uncompressed embeddings"), "{error}");
}

#[test]
fn files_that_are_swapped_are_found_out() {
    let folder = Folder::new();
    folder.write("e.safetensors", packed(&documents(1.0), DIM, &offsets()));
    folder.quantize("int8", "e.safetensors", "e.int8.safetensors").ok();
    // So that both are remembered.
    for name in ["d", "e"] {
        let (documents, screen) =
            (format!("{name}.safetensors"), format!("{name}.int8.safetensors"));
        assert_eq!(found(folder.rank(&documents, &screen, &[])).1, 5);
    }
    folder.refused("d.safetensors", "e.int8.safetensors", &["document 42"]);
    folder.refused("e.safetensors", "d.int8.safetensors", &["document 42"]);
    // One name for the other, in an instant.
    fs::rename(folder.path("e.safetensors"), folder.path("d.safetensors")).unwrap();
    folder.refused("d.safetensors", "d.int8.safetensors", &["document 42"]);
}

#[test]
fn codes_and_scales_of_two_files_are_found_out() {
    let folder = Folder::new();
    folder.write("e.safetensors", packed(&documents(-0.5), DIM, &offsets()));
    folder.quantize("int8", "e.safetensors", "e.int8.safetensors").ok();
    let d = fs::read(folder.path("d.int8.safetensors")).unwrap();
    let e = fs::read(folder.path("e.int8.safetensors")).unwrap();
    assert_eq!(d.len(), e.len());
    let scales = d.len() - 2 * N * LEN;
    // Scales of the other file, and the header of the other file.
    let data = 8 + u64::from_le_bytes(d[..8].try_into().unwrap()) as usize;
    folder.write("scales.safetensors", [&d[..scales], &e[scales..]].concat());
    folder.write("head.safetensors", [&e[..data], &d[data..]].concat());
    let mut damaged = d.clone();
    damaged[scales - 77] ^= 1;
    folder.write("damaged.safetensors", damaged);
    for (documents, screen) in
        [("d", "scales.safetensors"), ("e", "head.safetensors"), ("d", "damaged.safetensors")]
    {
        let documents = format!("{documents}.safetensors");
        let error = folder.rank(&documents, screen, &[]).error();
        assert!(error.contains(screen) && error.contains("damaged"), "{error}");
        assert_eq!(folder.rank(&documents, screen, &[]).error(), error);
    }
}

#[test]
fn what_was_found_is_remembered_until_a_file_changes() {
    let folder = Folder::new();
    let screen = "d.int8.safetensors";
    let rank = |verify: &str| {
        folder.rank_in("own", "d.safetensors", screen, &["--exact", "--verify", verify])
    };
    // The file is the one that was compressed: only what the codes are is found out and remembered.
    std::thread::sleep(SETTLED);
    assert_eq!(found(rank("always")).1, 5);
    let n_always = folder.n_remembered("own");
    assert_eq!(n_always, 2, "what --verify always found");
    fs::remove_dir_all(folder.path("own")).unwrap();
    assert_eq!(found(rank("identity")).1, 5);
    assert_eq!(folder.n_remembered("own"), 1);
    // Touched, it is another file with the same tokens.
    let d = folder.path("d.safetensors");
    let touch = || {
        fs::File::options().write(true).open(&d).unwrap().set_modified(std::time::SystemTime::now())
    };
    touch().unwrap();
    std::thread::sleep(SETTLED);
    assert_eq!(found(rank("identity")).1, 5);
    assert_eq!(folder.n_remembered("own"), 2);
    assert_eq!(found(rank("identity")).1, 5);
    assert_eq!(folder.n_remembered("own"), 2);
    // What is remembered is what is used: a wrong entry is believed, but not by --verify always.
    for entry in fs::read_dir(folder.path("own")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (head, _) = text.trim_end().rsplit_once('\n').unwrap();
        fs::write(&path, format!("{head}\n{}\n", "0".repeat(32))).unwrap();
    }
    assert!(rank("identity").error().contains("some tokens differ"));
    assert_eq!(found(rank("always")).1, 5);
    assert_eq!(found(rank("identity")).1, 5);
    // Changed with its time set back, it is not what it was.
    let modified = fs::metadata(&d).unwrap().modified().unwrap();
    fs::write(&d, packed(&documents(1.0), DIM, &offsets())).unwrap();
    fs::File::options().write(true).open(&d).unwrap().set_modified(modified).unwrap();
    assert!(rank("identity").error().contains("document 42"));
}

#[test]
fn a_cache_that_cannot_be_written_costs_time_alone() {
    let folder = Folder::new();
    folder.write("file", "");
    let (_, proven, said) =
        found(folder.rank_in("file/cache", "d.safetensors", "d.int8.safetensors", &["--exact"]));
    assert_eq!(proven, 5);
    assert!(said.contains("warning") && said.contains("MAXSIM_CACHE_DIR"), "{said}");
    assert!(folder.path("file").is_file());
}

/// Compressed by another program, or by an older version: every row is looked at.
#[test]
fn screens_that_say_nothing_are_compared_row_by_row() {
    let folder = Folder::new();
    let ours = fs::read(folder.path("d.int8.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(ours[..8].try_into().unwrap()) as usize;
    let end = data + 8 * (N + 1);
    let codes = ours[end..end + N * LEN * DIM].to_vec();
    let scales = ours[end + N * LEN * DIM..].to_vec();
    let write = |name: &str, codes: Vec<u8>, scales: Vec<u8>| {
        let tensors = [
            ("offsets", "I64", &[N + 1][..], i64_bytes(&offsets())),
            ("embeddings", "I8", &[N * LEN, DIM][..], codes),
            ("scales", "F16", &[N * LEN][..], scales),
        ];
        folder.write(name, safetensors(&tensors, 0));
    };
    write("foreign.safetensors", codes.clone(), scales.clone());
    std::thread::sleep(SETTLED);
    let rank = |more: &[&str]| folder.rank("d.safetensors", "foreign.safetensors", more);
    for when in ["this run", "an earlier run"] {
        let (_, proven, said) = found(rank(&[]));
        assert_eq!(proven, 5);
        assert!(said.contains(when) && said.contains("does not say"), "{said}");
    }
    assert!(found(rank(&["--verify", "always"])).2.contains("this run"));
    assert_eq!(found(rank(&["--verify", "never"])).1, 0);
    // One code of one row.
    let mut wrong = codes.clone();
    wrong[(42 * LEN + 3) * DIM] ^= 4;
    write("wrong.safetensors", wrong, scales.clone());
    let error = folder.rank("d.safetensors", "wrong.safetensors", &[]).error();
    assert!(
        error.contains("token 3 of document 42") && error.contains("--verify never"),
        "{error}"
    );
    // A scale that does not fit.
    let mut wrong = scales;
    wrong[2 * (7 * LEN + 1) + 1] ^= 4;
    write("wrong.safetensors", codes, wrong);
    let error = folder.rank("d.safetensors", "wrong.safetensors", &[]).error();
    assert!(error.contains("token 1 of document 7"), "{error}");
    // The documents changed.
    folder.write("d.safetensors", packed(&documents(1.0), DIM, &offsets()));
    assert!(rank(&[]).error().contains("document 42"));
}

#[test]
fn padded_and_packed_files_of_the_same_tokens_are_the_same_documents() {
    let folder = Folder::new();
    let values = documents(-1.0);
    // Padded to 13 rows, with anything behind the lengths.
    let items = values.chunks(LEN * DIM);
    let items: Vec<f32> = items.flat_map(|item| [item, &[9.0; DIM]].concat()).collect();
    let lengths = vec![LEN as i64; N];
    folder.write("padded.safetensors", padded(&items, [N, LEN + 1, DIM], Some(&lengths)));
    assert_eq!(found(folder.rank("padded.safetensors", "d.int8.safetensors", &[])).1, 5);
    folder.quantize("fp8", "padded.safetensors", "padded.fp8.safetensors").ok();
    assert_eq!(found(folder.rank("d.safetensors", "padded.fp8.safetensors", &[])).1, 5);
    // The same metadata, but for the file's own identity.
    let note = |name: &str, key: &str| {
        let bytes = fs::read(folder.path(name)).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        header["__metadata__"][key].as_str().unwrap().to_owned()
    };
    let source = note("d.int8.safetensors", "maxsim.source");
    assert_eq!(source, note("padded.fp8.safetensors", "maxsim.source"));
    // The documented form, made here anew.
    let mut bytes = b"maxsim tokens 1 f32 32\n".to_vec();
    bytes.extend(f32_bytes(&values));
    bytes.extend(i64_bytes(&[LEN as i64; N]));
    bytes.extend(i64_bytes(&[N as i64]));
    assert_eq!(source, format!("tokens-1 f32 {:032x}", XxHash3_128::oneshot(&bytes)));
    // Files of the same file are the same.
    folder.quantize("fp8", "padded.safetensors", "again.fp8.safetensors").ok();
    let read = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(read("padded.fp8.safetensors") == read("again.fp8.safetensors"));
    // So is what goes through a pipe, for which everything is compressed twice.
    let args = ["quantize", "--format", "fp8", "--input", "padded.safetensors", "--output"];
    let script =
        format!("\"$0\" {} fifo.safetensors > report & cat fifo.safetensors; wait", args.join(" "));
    let tool = command().get_program().to_owned();
    let mut piped = std::process::Command::new("sh");
    let script = format!("mkfifo fifo.safetensors; {script}");
    piped.current_dir(folder.0.path()).arg("-c").arg(script).arg(tool);
    let piped = piped.env("MAXSIM_CACHE_DIR", folder.path("cache")).output().unwrap();
    assert!(piped.stdout == read("padded.fp8.safetensors"), "{piped:?}");
    // PLAID files say it, too.
    folder
        .run(
            "cache",
            &[
                "quantize",
                "--format",
                "plaid",
                "--centroids",
                "16",
                "--input",
                "d.safetensors",
                "--output",
                "plaid.safetensors",
            ],
        )
        .ok();
    assert_eq!(note("plaid.safetensors", "maxsim.source"), source);
}

/// The mask is part of which tokens there are: a screen that was made with another is refused.
#[test]
fn a_mask_that_changed_is_found_out() {
    let folder = Folder::new();
    let values = f32_bytes(&documents(-1.0));
    folder.write("d.npy", npy(1, "<f4", &[N, LEN, DIM], &values));
    let mut mask = vec![1u8; N * LEN];
    folder.write("mask.npy", npy(1, "|u1", &[N, LEN], &mask));
    let args = ["quantize", "--format", "int8", "--input", "d.npy", "--output", "s.safetensors"];
    folder.run("cache", &[&args[..], &["--mask-file", "mask.npy"]].concat()).ok();
    let masked = ["--documents-mask-file", "mask.npy"];
    assert_eq!(found(folder.rank("d.npy", "s.safetensors", &masked)).1, 5);
    // One token of one document less, at its end, and another in its middle.
    for row in [42 * LEN + LEN - 1, 7 * LEN + 3] {
        mask[row] = 0;
        folder.write("mask.npy", npy(1, "|u1", &[N, LEN], &mask));
        for verify in ["identity", "always", "never"] {
            let options = [&masked[..], &["--verify", verify]].concat();
            let error = folder.rank("d.npy", "s.safetensors", &options).error();
            assert!(error.contains("s.safetensors") && error.contains("document"), "{error}");
        }
    }
}
