//! Token files as models and numpy write them: padding that is said in every way, counts that do
//! not add up, arrays in archives and folders, and what cannot be read.

mod angular;
mod arrays;
mod plaid;
mod weights;

use crate::files::{
    Random, Tensor, f16_bytes, f32_bytes, i64_bytes, npy, packed, padded, safetensors,
};
use crate::tool::{FolderOf, Run, json, rank, run};
use serde_json::Value;

/// Four documents of up to 4 tokens of dim 4.
const LENGTHS: [i64; 4] = [2, 4, 1, 3];

/// Rows of all documents, one after the other. Their first element is negative, as is every
/// similarity to the query: whatever is scored besides has a larger one.
fn rows() -> Vec<f32> {
    let mut rows = Random(3).values(10 * 4);
    rows.chunks_exact_mut(4).for_each(|row| row[0] = -2.0 - row[0].abs());
    rows
}

/// Documents `[4, 4, 4]` with zeros where `places` has no token of the document.
fn batch(places: [&[usize]; 4]) -> Vec<f32> {
    let mut values = vec![0.0; 4 * 4 * 4];
    let rows = rows();
    let mut rows = rows.chunks_exact(4);
    for (document, places) in places.iter().enumerate() {
        for place in *places {
            values[(document * 4 + place) * 4..][..4].copy_from_slice(rows.next().unwrap());
        }
    }
    values
}

const RIGHT: [&[usize]; 4] = [&[0, 1], &[0, 1, 2, 3], &[0], &[0, 1, 2]];
const LEFT: [&[usize]; 4] = [&[2, 3], &[0, 1, 2, 3], &[3], &[1, 2, 3]];
const HOLES: [&[usize]; 4] = [&[0, 3], &[0, 1, 2, 3], &[2], &[0, 1, 3]];

/// A mask of the places, of numbers of some bytes.
fn mask(places: [&[usize]; 4], bytes_each: usize) -> Vec<u8> {
    let mut mask = vec![0; 16 * bytes_each];
    for (document, places) in places.iter().enumerate() {
        places.iter().for_each(|place| mask[(document * 4 + place) * bytes_each] = 1);
    }
    mask
}

/// The kind of these tests' folders.
enum Inputs {}

type Folder = FolderOf<Inputs>;

impl Folder {
    /// With a query, and the documents packed.
    fn new() -> Folder {
        let folder = Folder::empty();
        let queries = [1.0, 0.0, 0.0, 0.0, 1.0, 0.125, 0.0, -0.125];
        folder.written("q.safetensors", packed(&queries, 4, &[0, 2]));
        folder.written("packed.safetensors", packed(&rows(), 4, &[0, 2, 6, 7, 10]));
        folder
    }

    /// Writes a file, and its name as an argument.
    fn written(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        self.write(name, bytes);
        self.text(name)
    }

    fn rank(&self, documents: &str, more: &[&str]) -> Run {
        let more = [more, &["--format", "json"]].concat();
        rank(&self.path("q.safetensors"), &self.path(documents), &more)
    }

    /// The ranking of the packed documents.
    fn expected(&self) -> Value {
        json(&self.rank("packed.safetensors", &[]).ok())
    }

    /// That documents rank as the packed ones do, in one chunk and in many, without a warning.
    fn check(&self, documents: &str, more: &[&str]) {
        for chunk_bytes in ["1", "150", "1000000"] {
            let run = self.rank(documents, &[more, &["--chunk-bytes", chunk_bytes]].concat());
            assert!(!run.stderr.contains("warning"), "{}", run.stderr);
            assert_eq!(json(&run.ok()), self.expected(), "{documents} {more:?}");
        }
    }

    fn quantize(&self, input: &str, format: &str, more: &[&str]) -> Run {
        let (input, output) = (self.text(input), self.text("out.safetensors"));
        let args = ["quantize", "--format", format, "--input", &input, "--output", &output];
        run([&args[..], more].concat())
    }
}

/// Padded documents with another tensor.
fn with(places: [&[usize]; 4], tensor: Tensor<'_>) -> Vec<u8> {
    let embeddings = ("embeddings", "F32", &[4, 4, 4][..], f32_bytes(&batch(places)));
    safetensors(&[embeddings, tensor], 0)
}

#[test]
fn lengths_and_masks_of_every_name_and_type_are_understood() {
    let folder = Folder::new();
    let lengths: Vec<u8> = LENGTHS.iter().flat_map(|&n| (n as i32).to_le_bytes()).collect();
    for name in ["lengths", "Lengths", "length", "doclens", "doc_lens", "DocLen"] {
        folder.written("d.safetensors", with(RIGHT, (name, "I64", &[4], i64_bytes(&LENGTHS))));
        folder.check("d.safetensors", &[]);
        folder.written("d.safetensors", with(RIGHT, (name, "I32", &[4], lengths.clone())));
        folder.check("d.safetensors", &[]);
    }
    for places in [RIGHT, LEFT, HOLES] {
        for (dtype, size) in [("BOOL", 1), ("U8", 1), ("I8", 1), ("I16", 2), ("U32", 4), ("I64", 8)]
        {
            for name in ["mask", "attention_mask", "Attention_Mask", "masks"] {
                let tensor = (name, dtype, &[4, 4][..], mask(places, size));
                folder.written("d.safetensors", with(places, tensor));
                let json = json(&folder.rank("d.safetensors", &[]).ok());
                assert_eq!(json, folder.expected(), "{name} {dtype}");
            }
        }
        folder.check("d.safetensors", &[]);
        folder.check("d.safetensors", &["--no-mmap"]);
    }
    // Packed rows with lengths, and with both.
    let embeddings = || ("embeddings", "F32", &[10, 4][..], f32_bytes(&rows()));
    let lengths = || ("doclens", "I64", &[4][..], i64_bytes(&LENGTHS));
    let offsets = || ("cu_seqlens", "I64", &[5][..], i64_bytes(&[0, 2, 6, 7, 10]));
    for tensors in [&[embeddings(), lengths()][..], &[offsets(), embeddings()]] {
        folder.written("d.safetensors", safetensors(tensors, 0));
        folder.check("d.safetensors", &[]);
    }
    folder.written("d.safetensors", safetensors(&[offsets(), embeddings(), lengths()], 0));
    folder.check("d.safetensors", &[]);
    // A mask on the left and how many there are of it.
    let (values, mask) = (f32_bytes(&batch(LEFT)), mask(LEFT, 1));
    let tensors =
        [("embeddings", "F32", &[4, 4, 4][..], values), ("mask", "BOOL", &[4, 4], mask), lengths()];
    folder.written("d.safetensors", safetensors(&tensors, 0));
    folder.check("d.safetensors", &[]);
}

#[test]
fn documents_with_masked_queries_and_without_tokens() {
    let folder = Folder::new();
    // The second document has no token left; the query's second token is none.
    let values = batch(LEFT);
    let mut bytes = mask(LEFT, 1);
    bytes[4..8].fill(0);
    let embeddings = ("embeddings", "F32", &[4, 4, 4][..], f32_bytes(&values));
    let tensors = [embeddings, ("mask", "BOOL", &[4, 4][..], bytes)];
    folder.written("d.safetensors", safetensors(&tensors, 0));
    let query = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
    let tensors = [
        ("embeddings", "F32", &[1, 2, 4][..], f32_bytes(&query)),
        ("attention_mask", "I64", &[1, 2], i64_bytes(&[0, 1])),
    ];
    folder.written("q.safetensors", safetensors(&tensors, 0));
    let found = json(&folder.rank("d.safetensors", &[]).ok());
    folder.written("q.safetensors", packed(&query[4..], 4, &[0, 1]));
    let rows = rows();
    let rest = [&rows[..2 * 4], &rows[6 * 4..]].concat();
    folder.written("packed.safetensors", packed(&rest, 4, &[0, 2, 2, 3, 6]));
    assert_eq!(found, folder.expected());
    assert_eq!(found["queries"][0]["documents"][3], 1);
}

#[test]
fn tensors_that_could_be_lengths_or_a_mask_are_errors() {
    let folder = Folder::new();
    for (name, dtype, shape, bytes, expected) in [
        (
            "n_tokens",
            "I64",
            &[4][..],
            i64_bytes(&LENGTHS),
            "could be the items' lengths: rename it",
        ),
        ("sizes", "F32", &[4, 1], vec![0; 16], "could be the items' lengths"),
        ("padding", "BOOL", &[4, 4], mask(RIGHT, 1), "could be a mask"),
        ("valid", "F32", &[4, 4, 1], vec![0; 64], "could be a mask"),
        ("mask", "F32", &[4, 4], vec![0; 64], "masks are bool or integers"),
        ("mask", "BOOL", &[3, 4], vec![0; 12], "expected [4, 4]"),
        ("mask", "U8", &[4, 4], vec![2; 16], "neither 0 nor 1 for token 0 of item 0"),
        ("lengths", "I64", &[3], i64_bytes(&[1, 2, 3]), "lengths has 3 entries; expected 4"),
        ("doclens", "I64", &[4], i64_bytes(&[1, 2, 3, 5]), "doclens[3] is 5; expected"),
        ("offsets", "I64", &[5], i64_bytes(&[0, 1, 2, 3, 4]), "take `lengths`, not `offsets`"),
    ] {
        folder.written("d.safetensors", with(RIGHT, (name, dtype, shape, bytes)));
        for run in
            [folder.rank("d.safetensors", &[]), folder.quantize("d.safetensors", "int8", &[])]
        {
            let error = run.error();
            assert!(error.starts_with(&folder.text("d.safetensors")), "{error}");
            assert!(error.contains(expected) && error.contains(name), "{expected}: {error}");
        }
    }
    let tensor = ("n_tokens", "I64", &[4][..], i64_bytes(&LENGTHS));
    folder.written("d.safetensors", with(RIGHT, tensor));
    folder.rank("d.safetensors", &["--ignore-tensor", "n_tokens"]).ok();
    // Ids are none of these, and neither is what has another shape.
    for (name, shape) in [("doc_ids", &[4][..]), ("input_ids", &[4, 4]), ("dims", &[2, 4])] {
        let bytes = vec![0; shape.iter().product::<usize>() * 8];
        folder.written("d.safetensors", with(RIGHT, (name, "I64", shape, bytes)));
        let said = folder.rank("d.safetensors", &[]);
        assert!(said.stderr.contains("warning: "), "{}", said.stderr);
        said.ok();
    }
    // What disagrees.
    let embeddings = || ("embeddings", "F32", &[4, 4, 4][..], f32_bytes(&batch(RIGHT)));
    let one = ("mask", "BOOL", &[4, 4][..], mask(RIGHT, 1));
    let other = ("attention_mask", "BOOL", &[4, 4][..], mask(LEFT, 1));
    folder.written("d.safetensors", safetensors(&[embeddings(), one.clone(), other], 0));
    let error = folder.rank("d.safetensors", &[]).error();
    assert!(error.contains("differ in token 0 of item 0"), "{error}");
    let other = ("lengths", "I64", &[4][..], i64_bytes(&[2, 4, 2, 3]));
    folder.written("d.safetensors", safetensors(&[embeddings(), one, other], 0));
    let error = folder.rank("d.safetensors", &[]).error();
    let expected = "`lengths` says that item 2 has 2 tokens, `mask` that it has 1";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn counts_that_do_not_add_up_are_errors() {
    let folder = Folder::new();
    let file = |tensors: &[(&str, &[i64])]| {
        let mut all = vec![("embeddings", "F32", vec![10, 4], f32_bytes(&rows()))];
        all.extend(
            tensors
                .iter()
                .map(|(name, values)| (*name, "I64", vec![values.len()], i64_bytes(values))),
        );
        let all: Vec<Tensor<'_>> = all
            .iter()
            .map(|(name, dtype, shape, data)| (*name, *dtype, &shape[..], data.clone()))
            .collect();
        safetensors(&all, 0)
    };
    for (tensors, expected) in [
        (&[("offsets", &[0, 2, 6, 7][..])][..], "offsets[3] is 7; expected 10"),
        (&[("offsets", &[0, 2, 6, 7])], "if they are where items start, append 10"),
        (&[("offsets", &[2, 6, 7, 10])], "offsets[0] is 2; expected 0"),
        (&[("offsets", &[2, 6, 7, 10])], "if they are where items end, prepend 0"),
        (&[("offsets", &[1, 2, 6, 7, 9])], "leave rows that are no item's out"),
        (&[("offsets", &[0, 6, 2, 10])], "offsets[2] is 2, after 6"),
        (&[("offsets", &[0, 2, 11])], "offsets[2] is 11; expected 10"),
        (&[("offsets", &[])], "offsets has no entries"),
        (&[("cu_seqlens", &[0, 2, 6])], "cu_seqlens[2] is 6; expected 10"),
        (&[("lengths", &[2, 4, 1])], "lengths come to 7 tokens; there are 10 rows"),
        (&[("doclens", &[2, 4, 1, 4])], "doclens come to 11 tokens; there are 10 rows"),
        (&[("doclens", &[i64::MAX, i64::MAX])], "there are 10 rows"),
        (&[("doclens", &[2, -1, 9])], "doclens[1] is -1"),
        (&[("offsets", &[0, 2, 10]), ("lengths", &[3, 7])], "do not agree on item 0"),
        (
            &[("offsets", &[0, 2, 10]), ("lengths", &[2, 4, 4])],
            "`offsets` is of 2 items and `lengths` of",
        ),
        (&[("offsets", &[0, 2, 10]), ("ends", &[2, 10])], "tensor `ends`, I64 [2], could be"),
        (&[("mask", &[1; 10])], "`mask` goes with embeddings [n, len, dim]"),
        (&[("n_tokens", &[2, 4, 1, 3])], "need a tensor `offsets`"),
    ] {
        folder.written("d.safetensors", file(tensors));
        for run in [folder.rank("d.safetensors", &[]), folder.quantize("d.safetensors", "fp8", &[])]
        {
            let error = run.error();
            assert!(error.starts_with(&folder.text("d.safetensors")), "{error}");
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
    // What the tool writes adds up, whatever it reads.
    for format in ["int8", "int8-affine", "fp8", "plaid"] {
        let more: &[&str] = if format == "plaid" { &["--keep-lengths"] } else { &[] };
        for places in [RIGHT, LEFT, HOLES] {
            let tensor = ("mask", "BOOL", &[4, 4][..], mask(places, 1));
            folder.written("d.safetensors", with(places, tensor));
            folder.quantize("d.safetensors", format, more).ok();
            let found = json(&folder.rank("out.safetensors", &[]).ok());
            folder.quantize("packed.safetensors", format, more).ok();
            let expected = json(&folder.rank("out.safetensors", &[]).ok());
            assert_eq!(found, expected, "{format} {places:?}");
        }
    }
}

#[test]
fn masked_documents_are_screened_judged_and_compared() {
    let folder = Folder::new();
    let qrels = folder.written("qrels.jsonl", "{\"id\": 0, \"relevant\": [2]}\n");
    let queries = folder.text("q.safetensors");
    for places in [RIGHT, LEFT, HOLES] {
        folder.written("d.safetensors", with(places, ("mask", "BOOL", &[4, 4], mask(places, 1))));
        let report = |input: &str| {
            let more = ["--report", "json", "--queries", &queries, "--qrels", &qrels];
            json(&folder.quantize(input, "int8", &more).ok())
        };
        let (found, expected) = (report("d.safetensors"), report("packed.safetensors"));
        assert_eq!(found["agreement"], expected["agreement"]);
        assert_eq!(found["n_tokens"], 10);
        assert_eq!(found["max_error"], expected["max_error"]);
        report("d.safetensors");
        let screen = folder.text("out.safetensors");
        let options = ["--screen", &screen, "--exact", "--qrels", &qrels];
        let found = json(&folder.rank("d.safetensors", &options).ok());
        let expected = json(&folder.rank("packed.safetensors", &["--qrels", &qrels]).ok());
        assert_eq!(found["queries"][0]["documents"], expected["queries"][0]["documents"]);
        assert_eq!(found["queries"][0]["scores"], expected["queries"][0]["scores"]);
        assert_eq!(found["metrics"], expected["metrics"]);
    }
}

#[test]
fn errors_name_the_row_of_the_file() {
    let folder = Folder::new();
    let mut values = batch(LEFT);
    // The first row of document 2, which is row 11 of the file.
    values[11 * 4 + 1] = f32::NAN;
    let embeddings = ("embeddings", "F32", &[4, 4, 4][..], f32_bytes(&values));
    let tensors = [embeddings, ("mask", "BOOL", &[4, 4][..], mask(LEFT, 1))];
    folder.written("d.safetensors", safetensors(&tensors, 0));
    let error = folder.rank("d.safetensors", &[]).error();
    assert!(error.contains("d.safetensors") && error.contains("row 11"), "{error}");
}

#[test]
fn rows_of_zeros_are_warned_about_or_left_out() {
    let folder = Folder::new();
    // -0.0 is what a mask makes of negative numbers.
    let minus = |places| {
        let values: Vec<f32> =
            batch(places).iter().map(|&x| if x == 0.0 { -0.0 } else { x }).collect();
        values
    };
    for (name, bytes) in [
        ("d.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(RIGHT)))),
        ("left.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(LEFT)))),
        ("minus.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&minus(LEFT)))),
        ("d.safetensors", padded(&batch(RIGHT), [4, 4, 4], None)),
    ] {
        folder.written(name, bytes);
        let run = folder.rank(name, &[]);
        let expected = format!(
            "warning: {}: 3 of 4 items begin or end with 6 rows of zeros, scored as tokens",
            folder.text(name)
        );
        assert!(run.stderr.contains(&expected), "{}", run.stderr);
        assert_ne!(json(&run.ok()), folder.expected());
        folder.check(name, &["--trailing-zeros", "pad"]);
        let tokens = folder.rank(name, &["--trailing-zeros", "tokens"]);
        assert!(!tokens.stderr.contains("warning"), "{}", tokens.stderr);
        assert_eq!(tokens.ok(), folder.rank(name, &[]).stdout);
        let run = folder.quantize(name, "int8", &[]);
        assert!(run.stderr.contains(&expected), "{}", run.stderr);
        run.ok();
        let error = folder.quantize(name, "plaid", &[]).error();
        assert!(error.starts_with(&folder.text(name)), "{error}");
    }
    // Zeros that the file speaks of are no padding.
    folder.written("d.safetensors", padded(&batch(RIGHT), [4, 4, 4], Some(&[4, 4, 4, 4])));
    assert!(!folder.rank("d.safetensors", &[]).stderr.contains("warning"));
    // Compressed files of others may be padded too.
    let codes: Vec<u8> = batch(RIGHT).iter().map(|x| (8.0 * x) as i8 as u8).collect();
    let tensors = [
        ("embeddings", "I8", &[4, 4, 4][..], codes),
        ("scales", "F16", &[4, 4], f16_bytes(&[0.125; 16])),
    ];
    folder.written("int8.safetensors", safetensors(&tensors, 0));
    let run = folder.rank("int8.safetensors", &[]);
    assert!(run.stderr.contains("3 of 4 items begin or end with 6 rows"), "{}", run.stderr);
    // The error of plaid says what to give.
    let mut units = vec![0.0; 4 * 4 * 4];
    LENGTHS.iter().enumerate().for_each(|(item, &len)| {
        (0..len as usize).for_each(|token| units[(item * 4 + token) * 4 + token] = 1.0);
    });
    folder.written("d.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&units)));
    let error = folder.quantize("d.npy", "plaid", &[]).error();
    assert!(error.contains("token 2 of item 0 is all zeros, as padding is"), "{error}");
    assert!(error.contains("`lengths`") && error.contains("--lengths-file"), "{error}");
    folder.quantize("d.npy", "plaid", &["--trailing-zeros", "pad"]).ok();
}

#[test]
fn masks_and_lengths_come_in_files_of_their_own() {
    let folder = Folder::new();
    let lengths = folder.written("lengths.npy", npy(1, "<i8", &[4], &i64_bytes(&LENGTHS)));
    folder.written("d.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(RIGHT))));
    folder.check("d.npy", &["--documents-lengths-file", &lengths]);
    folder.written("rows.NPY", npy(1, "<f4", &[10, 4], &f32_bytes(&rows())));
    folder.check("rows.NPY", &["--documents-lengths-file", &lengths]);
    let error = folder.rank("rows.NPY", &[]).error();
    assert!(error.contains("shape [10, 4]; expected [n, len, dim]"), "{error}");
    for (descr, size) in [("|b1", 1), ("|u1", 1), ("<i4", 4), ("<i8", 8)] {
        for places in [RIGHT, LEFT, HOLES] {
            folder.written("d.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(places))));
            let mask = folder.written("mask.npy", npy(1, descr, &[4, 4], &mask(places, size)));
            folder.check("d.npy", &["--documents-mask-file", &mask]);
            let both = ["--documents-mask-file", &mask, "--documents-lengths-file", &lengths];
            folder.check("d.npy", &both);
            folder.quantize("d.npy", "fp8", &["--mask-file", &mask]).ok();
            let found = folder.rank("out.safetensors", &[]).ok();
            folder.quantize("packed.safetensors", "fp8", &[]).ok();
            assert_eq!(found, folder.rank("out.safetensors", &[]).ok());
        }
    }
    let wrong = folder.written("wrong.npy", npy(1, "<i8", &[3], &i64_bytes(&LENGTHS[..3])));
    let error = folder.rank("d.npy", &["--documents-lengths-file", &wrong]).error();
    assert!(error.contains("wrong.npy has 3 entries; expected 4"), "{error}");
    let error = folder.rank("d.npy", &["--documents-mask-file", "none.npy"]).error();
    assert!(error.contains("none.npy: No such file"), "{error}");
    // Of queries, beside what the file says.
    let query = [1.0, 0.0, 0.0, 0.0, 1.0, 0.125, 0.0, -0.125, 9.0, 9.0, 9.0, 9.0];
    folder.written("q.npy", npy(1, "<f4", &[1, 3, 4], &f32_bytes(&query)));
    let one = folder.written("one.npy", npy(1, "<i8", &[1], &i64_bytes(&[2])));
    let more = ["--queries-lengths-file", &one, "--format", "json"];
    let found = rank(&folder.path("q.npy"), &folder.path("packed.safetensors"), &more).ok();
    assert_eq!(json(&found), folder.expected());
}

#[test]
fn the_embeddings_are_the_tensor_that_was_asked_for() {
    let folder = Folder::new();
    let tensors = [
        ("documents", "F32", &[4, 4, 4][..], f32_bytes(&batch(LEFT))),
        ("documents_mask", "BOOL", &[4, 4], mask(LEFT, 1)),
        ("queries", "F32", &[1, 2, 4], f32_bytes(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.125, 0.0, -0.125])),
        ("queries.lengths", "I64", &[1], i64_bytes(&[2])),
    ];
    let both = folder.written("both.SafeTensors", safetensors(&tensors, 0));
    folder.check("both.SafeTensors", &["--documents-tensor", "documents"]);
    let tensors = ["--tensor", "documents", "--queries-tensor", "queries", "--format", "json"];
    let found = rank(&folder.path("both.SafeTensors"), &folder.path("both.SafeTensors"), &tensors);
    assert_eq!(json(&found.ok()), folder.expected());
    folder.quantize("both.SafeTensors", "int8", &["--tensor", "documents"]).ok();
    let error = folder.rank("both.SafeTensors", &[]).error();
    let expected = format!(
        "{both}: no tensor `embeddings` in the file; it has `documents` F32 [4, 4, 4] (could be \
         embeddings), `documents_mask` BOOL [4, 4] (could be a mask), `queries` F32 [1, 2, 4] \
         (could be embeddings), `queries.lengths` I64 [1] (could be lengths or offsets); \
         use --tensor documents for it, or another name"
    );
    assert_eq!(error, expected);
    let error = folder.rank("both.SafeTensors", &["--documents-tensor", "d"]).error();
    assert!(error.contains("no tensor `d` in the file; it has `documents`"), "{error}");
    folder.written("d.npy", npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(RIGHT))));
    let error = folder.rank("d.npy", &["--documents-tensor", "d"]).error();
    assert!(error.contains("one array without a name"), "{error}");
}

#[test]
fn files_that_are_not_read_say_how_to_convert_them() {
    let folder = Folder::new();
    for (name, code) in [
        ("d.pt", "torch.load("),
        ("d.pth", "torch.load("),
        ("d.BIN", "torch.load("),
        ("d.parquet", "pandas.read_parquet("),
        ("d.lance", "lance.dataset("),
        ("d.pkl", "pickle.load("),
    ] {
        folder.written(name, "");
        let error = folder.rank(name, &[]).error();
        let path = folder.text(name);
        assert!(error.starts_with(&format!("{path}: ")), "{error}");
        for part in ["convert it: python3 -c", code, &format!("'{path}'"), "save_file("] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let error = rank("-".as_ref(), &folder.path("packed.safetensors"), &[]).error();
    assert!(error.starts_with("-: standard input cannot be read; convert it: python3"), "{error}");
}
