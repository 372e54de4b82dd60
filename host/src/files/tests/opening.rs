//! Whole files and what a caller gets of them: tokens, layouts, ids, warnings, errors.

use std::error::Error as _;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::sync::Arc;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::made::{Random, f32_bytes, i64_bytes, npy, packed, padded, safetensors};
use crate::AnyTokens;
use crate::files::{
    Advice, AnyFile, Change, FileFormat, FileOptions, NpyArray, ResidualFile, TokenFile,
    TrailingZeros,
};
use crate::format::TokenFormat;
use crate::layout::LayoutKind;

fn open(bytes: Vec<u8>, format: FileFormat) -> Result<TokenFile, crate::files::FileError> {
    TokenFile::from_bytes(bytes, format, &FileOptions::default())
}

fn values(tokens: &AnyTokens<'_>) -> Vec<f32> {
    match tokens {
        AnyTokens::F32(tokens) => tokens.data().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// A folder that is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("maxsim-files-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn archive(files: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Two tokens of dim 2 with two centroids and buckets of one bit.
fn residual(nbits: &str) -> Vec<u8> {
    let tensors = [
        ("codes", "I32", &[2][..], [1i32, 0].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("residuals", "U8", &[2, 1], vec![1, 2]),
        ("centroids", "F32", &[2, 2], f32_bytes(&[1.0, 0.0, 0.0, 1.0])),
        ("bucket_weights", "F32", &[2], f32_bytes(&[-0.25, 0.25])),
        ("offsets", "I64", &[3], i64_bytes(&[0, 2, 2])),
    ];
    let file = safetensors(&tensors, 0);
    let notes = format!(
        r#"{{"__metadata__":{{"format":"maxsim-residual","version":"1","nbits":"{nbits}",
        "normalize":"false","bit_order":"little-endian"}},"#
    );
    let header = &file[9..8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize];
    let (header, data) = ([notes.as_bytes(), header].concat(), &file[9 + header.len()..]);
    [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
}

#[test]
fn every_kind_of_file_has_the_same_tokens() {
    let folder = Folder::new("kinds");
    let all = Random(1).values(2 * 3 * 4);
    let [first, second] = [&all[..12], &all[12..]].map(f32_bytes);
    let items =
        [("a.npy", npy(1, "<f4", &[3, 4], &first)), ("b.npy", npy(2, "<f4", &[3, 4], &second))];
    for (name, bytes) in &items {
        std::fs::create_dir_all(folder.0.join("items")).unwrap();
        folder.write(&format!("items/{name}"), bytes);
    }
    let stored = archive(&items, CompressionMethod::Stored);
    let paths = [
        folder.write("d.safetensors", &padded(&all, [2, 3, 4], None)),
        folder.write("p.safetensors", &packed(&all, 4, &[0, 3, 6])),
        folder.write("d.npy", &npy(1, "<f4", &[2, 3, 4], &f32_bytes(&all))),
        folder.write("stored.npz", &stored),
        folder.write("packed.npz", &archive(&items, CompressionMethod::Deflated)),
        folder.0.join("items"),
    ];
    // SAFETY: nothing but this test has the folder.
    #[allow(unsafe_code)]
    let mapped = unsafe { FileOptions::default().map() };
    for options in [FileOptions::default(), mapped] {
        for path in &paths {
            let file = TokenFile::open(path, &options).unwrap();
            assert_eq!((file.n_items(), file.layout().dim()), (2, 4), "{path:?}");
            assert_eq!(values(&file.all().unwrap()), all, "{path:?}");
            assert_eq!(values(&file.any_tokens(1..2).unwrap()), all[12..], "{path:?}");
            assert!(file.any_tokens(1..3).is_err() && file.tokens::<half::f16>(0..1).is_err());
            assert!(file.sources().iter().all(|source| source.starts_with(&folder.0)));
            file.check_unchanged(Change::Any).unwrap();
            let names = || ["a", "b"].map(String::from).to_vec();
            let is_list = path.ends_with("items") || path.extension().unwrap() == "npz";
            assert_eq!(file.ids().unwrap(), is_list.then(names), "{path:?}");
        }
    }
    assert_eq!(values(&open(stored, FileFormat::Npz).unwrap().all().unwrap()), all);
    let kind = |i: usize| TokenFile::open(&paths[i], &FileOptions::default()).unwrap();
    let kinds = [0, 1].map(|i| kind(i).all().unwrap().layout().kind());
    assert_eq!(kinds, [LayoutKind::Padded, LayoutKind::Packed]);
}

#[test]
#[cfg(unix)]
fn a_mapped_file_that_changes_is_found_out() {
    let folder = Folder::new("changes");
    let file = |x: f32| npy(1, "<f4", &[1, 1, 1], &f32_bytes(&[x]));
    let path = folder.write("d.npy", &file(1.0));
    crate::files::settle(&path);
    // SAFETY: bytes of the file are not looked at after it has changed.
    #[allow(unsafe_code)]
    let options = unsafe { FileOptions::default().map() };
    let mapped = TokenFile::open(&path, &options).unwrap();
    let read = TokenFile::open(&path, &FileOptions::default()).unwrap();
    let identity = mapped.identity();
    assert!(identity.is_some() && identity == read.identity());
    mapped.check_unchanged(Change::Any).unwrap();

    std::fs::rename(&path, folder.0.join("moved.npy")).unwrap();
    mapped.check_unchanged(Change::Content).unwrap();
    folder.write("moved.npy", &file(2.0));
    for change in [Change::Content, Change::Any] {
        let error = mapped.check_unchanged(change).unwrap_err();
        let said = error.with_advice(|advice| format!("{advice:?}"));
        assert!(said.contains("d.npy: the file changed") && said.ends_with("; NoMap"), "{said}");
    }
    read.check_unchanged(Change::Any).unwrap();
    assert_eq!(read.tokens::<f32>(0..1).unwrap().data(), [1.0]);
}

#[test]
fn options_say_what_a_file_does_not() {
    let folder = Folder::new("options");
    let all = [1.0, 2.0, 6.0, 3.0, 4.0, 5.0];
    let mask = folder.write("mask.npy", &npy(1, "|b1", &[2, 3], &[1, 1, 0, 0, 1, 1]));
    let lengths = folder.write("n.npy", &npy(1, "<i8", &[2], &i64_bytes(&[2, 2])));
    let array = || npy(1, "<f4", &[2, 3, 1], &f32_bytes(&all));
    let of = |options: &FileOptions| {
        let file = TokenFile::from_bytes(array(), FileFormat::Npy, options).unwrap();
        let found = values(&file.any_tokens(0..2).unwrap());
        (found, file.states_lengths(), file.warnings().len(), file.stored_row(2))
    };
    let default = FileOptions::default();
    assert_eq!(of(&default), (all.to_vec(), false, 0, 2));
    // The second item begins with padding: its rows are gathered, and known by their places.
    let kept = vec![1.0, 2.0, 4.0, 5.0];
    assert_eq!(of(&default.clone().mask_file(&mask)), (kept, true, 0, 4));
    let masked = default.clone().mask_file(&mask);
    let file = TokenFile::from_bytes(array(), FileFormat::Npy, &masked).unwrap();
    let places = |item: usize| [0, 1].map(|token| file.stored_token(item, token));
    assert_eq!((places(0), places(1)), ([0, 1], [1, 2]));
    assert!(of(&default.clone().lengths_file(&lengths)).1);

    let zeros = npy(1, "<f4", &[2, 2, 1], &f32_bytes(&[1.0, 0.0, 2.0, 3.0]));
    let file = open(zeros.clone(), FileFormat::Npy).unwrap();
    let warning = file.warnings()[0].to_string();
    assert!(warning.starts_with("1 of 2 items begin or end with 1 row of zeros"), "{warning}");
    assert!(warning.contains("TrailingZeros::Pad"), "{warning}");
    for (meaning, len) in [(TrailingZeros::Pad, 1), (TrailingZeros::Tokens, 2)] {
        let options = default.clone().trailing_zeros(meaning);
        let file = TokenFile::from_bytes(zeros.clone(), FileFormat::Npy, &options).unwrap();
        assert_eq!((file.layout().item_len(0), file.warnings().len()), (len, 0));
    }

    let tensors = [
        ("docs", "F32", &[2, 1, 1][..], f32_bytes(&[1.0, 2.0])),
        ("docs_lengths", "I64", &[2], i64_bytes(&[1, 0])),
        ("n_words", "I64", &[2], i64_bytes(&[7, 8])),
    ];
    let file = safetensors(&tensors, 0);
    let read = |options: &FileOptions| {
        TokenFile::from_bytes(file.clone(), FileFormat::Safetensors, options)
    };
    let error = read(&default).unwrap_err();
    let said = error.with_advice(|advice| format!("{advice:?}"));
    assert!(said.ends_with(r#"; Tensor { name: "docs", has_others: false }"#), "{said}");
    let docs = default.tensor("docs");
    let error = read(&docs).unwrap_err();
    let ignore = Advice::Ignore { name: "n_words".into() };
    assert!(error.to_string().ends_with(&ignore.to_string()), "{error}");
    let file = read(&docs.ignore("n_words")).unwrap();
    assert_eq!([0, 1].map(|item| file.layout().item_len(item)), [1, 0]);
}

#[test]
fn elements_are_replaced_by_as_many() {
    let file =
        || open(padded(&[1.0, 2.0, 3.0], [3, 1, 1], Some(&[1, 0, 1])), FileFormat::Safetensors);
    let replaced = file().unwrap().with_elements(&[4.0f32, 5.0, 6.0].map(half::f16::from_f32));
    let replaced = replaced.unwrap();
    assert_eq!(replaced.contents().format, TokenFormat::Element(crate::format::ElementType::F16));
    assert_eq!(replaced.tokens::<half::f16>(2..3).unwrap().data(), [half::f16::from_f32(6.0)]);
    let error = file().unwrap().with_elements(&[4.0f32]).unwrap_err();
    assert!(error.to_string().contains("expected 3 rows of 1, found 1"), "{error}");
}

#[test]
fn residual_codes_are_read_as_such_alone() {
    let folder = Folder::new("residual");
    let path = folder.write("d.safetensors", &residual("1"));
    let options = FileOptions::default();
    let AnyFile::Residual(file) = AnyFile::open(&path, &options).unwrap() else { panic!() };
    let tokens = file.tokens().unwrap();
    assert_eq!(tokens.layout().n_items(), 2);
    assert_eq!(tokens.decode::<f32>().unwrap().data(), [0.25, 0.75, 0.75, 0.25]);
    assert_eq!((file.ids(2).unwrap(), Arc::strong_count(tokens.codec())), (None, 1));
    let error = TokenFile::open(&path, &options).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "d.safetensors: the tokens are residual-compressed; open it as a ResidualFile"
        ),
        "{error}"
    );
    let error = ResidualFile::from_bytes(residual("3"), &options).tokens().unwrap_err();
    assert!(error.to_string().contains("nbits"), "{error}");
    assert!(error.source().unwrap().is::<crate::Error>());
    let file = ResidualFile::from_bytes(residual("1"), &options.tensor("codes"));
    assert!(file.tokens().unwrap_err().to_string().contains("tensors of fixed names"));
}

#[test]
fn bytes_of_another_file_are_an_error() {
    let files = [
        padded(&[1.0; 24], [2, 3, 4], None),
        padded(&[1.0; 24], [2, 3, 4], Some(&[1, 3])),
        packed(&[1.0; 24], 4, &[0, 2, 6]),
    ];
    for file in files {
        let contents = crate::files::Contents::parse(&file, FileFormat::Safetensors).unwrap();
        for len in 0..contents.data.end {
            assert!(contents.tokens::<f32>(&file[..len], 0..2).is_err());
        }
        let mut other = contents.clone();
        other.layout = crate::TokenLayout::padded(1 << 20, 1 << 10, 4).unwrap();
        assert!(other.tokens::<f32>(&file, 0..1 << 20).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = contents.elements::<f32>(&file, 3..2);
        assert!(reversed.is_err() && contents.elements::<f32>(&file, 0..usize::MAX).is_err());
    }
}

#[test]
fn broken_files_of_every_kind_never_panic() {
    let items = || {
        let of = |shape: &[usize], n| npy(1, "<f4", shape, &f32_bytes(&Random(3).values(n)));
        [("0.npy", of(&[3, 4], 12)), ("1.npy", of(&[1, 4], 4))]
    };
    let whole = [
        (archive(&items(), CompressionMethod::Stored), FileFormat::Npz),
        (archive(&items(), CompressionMethod::Deflated), FileFormat::Npz),
        (residual("1"), FileFormat::Safetensors),
        (items()[0].1.clone(), FileFormat::Npy),
    ];
    let mut random = Random(4);
    let (mut n_read, mut n_refused) = (0, 0);
    for case in 0..8000 {
        let (file, format) = &whole[case % whole.len()];
        let mut file = file.clone();
        let at = random.below(file.len());
        match random.below(4) {
            0 => file[at] = random.next() as u8,
            1 => file[at] ^= 1 << random.below(8),
            2 => file.truncate(at),
            _ => file.insert(at, random.next() as u8),
        }
        let is_read = match format {
            FileFormat::Npz => open(file, *format).is_ok_and(|file| file.all().is_ok()),
            FileFormat::Npy => NpyArray::parse(&file).is_ok_and(|array| !array.data().is_empty()),
            _ => ResidualFile::from_bytes(file, &FileOptions::default()).tokens().is_ok(),
        };
        *if is_read { &mut n_read } else { &mut n_refused } += 1;
    }
    assert!(n_read > 500 && n_refused > 2000, "{n_read} read, {n_refused} refused");
}
