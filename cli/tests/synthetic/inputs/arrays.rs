//! Arrays in archives and folders.

use std::fs;
use std::io::{Cursor, Write};

use maxsim_cli::input::{InputOptions, Reading, TokenFile};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{Folder, HOLES, LEFT, LENGTHS, RIGHT, batch, mask, rows};
use crate::files::{Random, f32_bytes, i64_bytes, npy};
use crate::tool::{json, rank};

/// A zip archive of files.
fn archive(files: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The documents as a matrix each.
fn matrices() -> Vec<Vec<u8>> {
    let rows = rows();
    let mut rest = &rows[..];
    let matrix = |&len: &i64| {
        let (rows, after) = rest.split_at(4 * len as usize);
        rest = after;
        npy(1, "<f4", &[len as usize, 4], &f32_bytes(rows))
    };
    LENGTHS.iter().map(matrix).collect()
}

#[test]
fn arrays_in_archives_and_folders_are_read() {
    let folder = Folder::new();
    let embeddings = || npy(1, "<f4", &[4, 4, 4], &f32_bytes(&batch(HOLES)));
    let mask = || npy(1, "|b1", &[4, 4], &mask(HOLES, 1));
    let table = || vec![("attention_mask.npy", mask()), ("embeddings.npy", embeddings())];
    let numbers = || -> Vec<(&str, Vec<u8>)> {
        ["arr_0.npy", "arr_1.npy", "arr_2.npy", "arr_3.npy"].into_iter().zip(matrices()).collect()
    };
    for (files, more) in [
        (table(), &[][..]),
        (numbers(), &[]),
        (vec![("x.npy", embeddings()), ("mask.npy", mask())], &["--documents-tensor", "x"]),
    ] {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            folder.written("d.npz", archive(&files, method));
            folder.check("d.npz", more);
            folder.check("d.npz", &[more, &["--no-mmap"]].concat());
        }
        let sub = TempDir::new_in(folder.0.path()).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(sub.path().join(name), bytes).unwrap());
        fs::write(sub.path().join(".hidden"), "").unwrap();
        let name = sub.path().file_name().unwrap().to_str().unwrap();
        folder.check(name, more);
        folder.check(name, &[more, &["--no-mmap"]].concat());
        fs::write(sub.path().join("README"), "").unwrap();
        let run = folder.rank(name, more);
        let expected = "1 file that is not .npy, the first `README`: not read";
        assert!(run.stderr.contains(expected), "{}", run.stderr);
        assert_eq!(json(&run.ok()), folder.expected());
    }
    // Cut out of a batch, padding and all.
    let cut: Vec<(String, Vec<u8>)> = batch(RIGHT)
        .chunks(16)
        .enumerate()
        .map(|(i, values)| (format!("arr_{i}.npy"), npy(1, "<f4", &[4, 4], &f32_bytes(values))))
        .collect();
    let cut: Vec<(&str, Vec<u8>)> = cut.iter().map(|(name, x)| (&**name, x.clone())).collect();
    folder.written("d.npz", archive(&cut, CompressionMethod::Deflated));
    assert!(folder.rank("d.npz", &[]).stderr.contains("3 of 4 items begin or end with 6 rows"));
    folder.check("d.npz", &["--trailing-zeros", "pad"]);
}

#[test]
fn ids_are_arrays_names_or_an_array() {
    let folder = Folder::new();
    let expected = |ids: [&str; 4]| {
        let mut expected = folder.expected();
        let documents = expected["queries"][0]["documents"].as_array_mut().unwrap();
        documents.iter_mut().for_each(|id| *id = ids[id.as_u64().unwrap() as usize].into());
        expected
    };
    // As numbers they are in this order, as text they are not.
    let names = ["doc_2.npy", "doc_9.NPY", "doc_10.npy", "doc_11.npy"];
    let mut list: Vec<_> = names.into_iter().zip(matrices()).collect();
    list.rotate_left(2);
    folder.written("d.npz", archive(&list, CompressionMethod::Stored));
    let found = json(&folder.rank("d.npz", &[]).ok());
    assert_eq!(found, expected(["doc_2", "doc_9", "doc_10", "doc_11"]));
    let strings: Vec<u8> = ["é", "bc", "d e", "f"]
        .iter()
        .flat_map(|id| {
            let mut chars: Vec<u32> = id.chars().map(u32::from).collect();
            chars.resize(3, 0);
            chars
        })
        .flat_map(u32::to_le_bytes)
        .collect();
    let (embeddings, mask) = (f32_bytes(&batch(LEFT)), mask(LEFT, 1));
    for (ids, expected) in [
        (npy(1, "<U3", &[4], &strings), expected(["é", "bc", "d e", "f"])),
        (npy(1, "<i8", &[4], &i64_bytes(&[7, 5, 3, 1])), expected(["7", "5", "3", "1"])),
    ] {
        let files = [
            ("embeddings.npy", npy(1, "<f4", &[4, 4, 4], &embeddings)),
            ("mask.npy", npy(1, "|b1", &[4, 4], &mask)),
            ("ids.npy", ids),
        ];
        folder.written("d.npz", archive(&files, CompressionMethod::Deflated));
        assert_eq!(json(&folder.rank("d.npz", &[]).ok()), expected);
    }
    let files = [
        ("embeddings.npy", npy(1, "<f4", &[4, 4, 4], &embeddings)),
        ("ids.npy", npy(1, "<i8", &[3], &i64_bytes(&[7, 5, 3]))),
    ];
    folder.written("d.npz", archive(&files, CompressionMethod::Deflated));
    assert!(folder.rank("d.npz", &[]).error().contains("`ids` have shape [3]; expected [4]"));
}

#[test]
fn arrays_that_are_ambiguous_or_broken_are_errors() {
    let folder = Folder::new();
    let matrix = |rows: usize, dim: usize| npy(1, "<f4", &[rows, dim], &vec![0; 4 * rows * dim]);
    let ids = || npy(1, "<i8", &[2], &i64_bytes(&[0, 1]));
    let half = || npy(1, "<f2", &[1, 4], &[0; 8]);
    let objects = || npy(1, "|O", &[1, 4], &[0; 8]);
    let wrong = || npy(1, "<f4", &[3, 4], &[0; 8]);
    for (files, expected) in [
        (vec![("1.npy", matrix(2, 4)), ("01.npy", matrix(2, 4))], "the same place in the order"),
        (vec![("a.npy", matrix(2, 4)), ("b.npy", matrix(2, 3))], "must have one type and dim"),
        (vec![("a.npy", matrix(2, 4)), ("b.npy", half())], "must have one type and dim"),
        (vec![("a.npy", matrix(2, 4)), ("b.npy", ids())], "`b` is no matrix [len, dim]"),
        (vec![("a.npy", objects())], "`a` is no matrix [len, dim]"),
        (vec![("a.npy", wrong())], "takes 48 bytes, the file has 8"),
        (vec![("embeddings.npy", matrix(2, 4))], "need a tensor `offsets`"),
        (vec![("embeddings.npy", objects())], "pickled"),
        (vec![("a.npy", vec![])], "not an npy file"),
        (vec![("a.txt", vec![])], "no .npy arrays in it"),
    ] {
        folder.written("d.npz", archive(&files, CompressionMethod::Stored));
        let sub = TempDir::new_in(folder.0.path()).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(sub.path().join(name), bytes).unwrap());
        for name in ["d.npz", sub.path().file_name().unwrap().to_str().unwrap()] {
            let error = folder.rank(name, &[]).error();
            assert!(error.starts_with(&folder.text(name)), "{error}");
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
    let index = rank(&folder.path("q.safetensors"), "tests/plaid/fast-plaid-4".as_ref(), &[]);
    assert!(index.error().contains("maxsim quantize --format plaid --index"));
    // 300 MB of zeros in 300 KB.
    let mut bomb = npy(1, "<f4", &[75_000, 1000], &[]);
    bomb.resize(bomb.len() + 300_000_000, 0);
    folder.written("d.npz", archive(&[("a.npy", bomb)], CompressionMethod::Deflated));
    let error = folder.rank("d.npz", &[]).error();
    assert!(error.contains("save the arrays with numpy.savez"), "{error}");
    // Broken in every place, an archive is an error or what it was.
    let files: Vec<_> = ["a.npy", "b.npy", "c.npy", "d.npy"].into_iter().zip(matrices()).collect();
    let options = InputOptions::new(Reading::Read);
    let mut random = Random(9);
    let mut n_read = 0;
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let whole = archive(&files, method);
        for _ in 0..1000 {
            let mut broken = whole.clone();
            let at = random.below(broken.len());
            match random.below(3) {
                0 => broken[at] = random.next() as u8,
                1 => broken[at] ^= 1 << random.below(8),
                _ => broken.truncate(at),
            }
            let path = folder.written("d.npz", broken);
            let read = TokenFile::open_with(path.as_ref(), &options);
            n_read +=
                usize::from(read.is_ok_and(|file| file.tokens::<f32>(0..file.n_items()).is_ok()));
        }
    }
    assert!(n_read > 100, "{n_read}");
}
