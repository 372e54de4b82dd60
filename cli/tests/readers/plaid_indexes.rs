//! Index folders that ColBERT, fast-plaid and next-plaid wrote (`plaid/make_indexes.py`), beside
//! what they decode them to; and folders that are refused.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use maxsim::format::ElementType;
use maxsim::residual::{
    Arithmetic, BitOrder, Centroids, EncodeOptions, ResidualCodec, ResidualTokens,
};
use maxsim::{TokenLayout, Tokens};
use maxsim_cli::residual::{IndexFormat, read_index};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    // The working folder of tests is their package's.
    Path::new("tests/plaid").join(name)
}

/// The elements of an `.npy` file, whose header ends with the first line.
fn npy<T: bytemuck::Pod>(name: &str) -> Vec<T> {
    let bytes = fs::read(fixture(name)).unwrap();
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    bytes[end..].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The tokens that every index was made of, in documents as `layout` has them.
fn tokens(layout: &TokenLayout) -> Tokens<'static, f16> {
    Tokens::from_layout(npy::<f16>("tokens.npy"), layout.clone()).unwrap()
}

/// What fast-plaid computes: a sum, a length and a quotient, each rounded to f16.
fn decoded_in_f16(tokens: &ResidualTokens<'_>) -> Vec<f16> {
    let codec = tokens.codec();
    let weights: Vec<f32> =
        codec.bucket_weights().iter().map(|&w| f16::from_f32(w).to_f32()).collect();
    let centroids = Centroids::F32(codec.centroids().to_f32());
    let sums = ResidualCodec::new(codec.nbits(), codec.dim(), centroids, &weights, false).unwrap();
    let layout = tokens.layout().clone();
    let (codes, residuals) = (tokens.codes(), tokens.residuals());
    let sums =
        ResidualTokens::new(Arc::new(sums), codes, residuals, tokens.order(), layout).unwrap();
    let sums = sums.decode::<f16>().unwrap();
    let row = |row: &[f16]| {
        let square: f32 = row.iter().map(|x| x.to_f32() * x.to_f32()).sum();
        let length = f16::from_f32(square.sqrt()).to_f32();
        row.iter().map(|x| f16::from_f32(x.to_f32() / length)).collect::<Vec<f16>>()
    };
    sums.data().chunks(codec.dim()).flat_map(row).collect()
}

fn bits(values: &[f16]) -> Vec<u16> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn assert_near(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "[{i}]: {f} is not {e}");
    }
}

#[test]
fn indexes_of_fast_plaid_are_read_and_made_bit_for_bit() {
    for nbits in [1, 2, 4, 8] {
        let name = format!("fast-plaid-{nbits}");
        assert_eq!(IndexFormat::of(&fixture(&name)).unwrap(), IndexFormat::Npy);
        let index = read_index(&fixture(&name)).unwrap();
        let codec = index.codec();
        assert_eq!((codec.nbits(), codec.dim(), codec.normalize()), (nbits, 32, true));
        assert_eq!(codec.centroids().element(), ElementType::F16);
        assert_eq!(index.order(), BitOrder::Colbert);
        let layout = index.layout();
        assert_eq!((layout.n_items(), layout.rows()), (24, 139));
        assert_eq!([0, 1, 10, 23].map(|item| layout.item_len(item)), [1, 6, 7, 6]);

        let decoded = npy::<f16>(&format!("{name}.decoded.npy"));
        assert_eq!(bits(&decoded_in_f16(&index)), bits(&decoded), "{name}");
        let wide: Vec<f32> = decoded.iter().map(|x| x.to_f32()).collect();
        assert_near(index.decode::<f32>().unwrap().data(), &wide, 1.0 / 1024.0);

        let options = EncodeOptions::default().arithmetic(Arithmetic::F16);
        let encoded = ResidualTokens::encode(codec.clone(), &tokens(layout), &options).unwrap();
        assert_eq!(encoded.codes(), index.codes(), "{name}");
        assert_eq!(encoded.residuals(), index.residuals(), "{name}");
    }
}

#[test]
fn an_index_of_colbert_has_the_same_tokens() {
    assert_eq!(IndexFormat::of(&fixture("colbert-2")).unwrap(), IndexFormat::Colbert);
    let index = read_index(&fixture("colbert-2")).unwrap();
    let same = read_index(&fixture("fast-plaid-2")).unwrap();
    assert_eq!((index.codes(), index.residuals()), (same.codes(), same.residuals()));
    assert_eq!(index.layout(), same.layout());
    let (codec, other) = (index.codec(), same.codec());
    assert_eq!(codec.bucket_weights(), other.bucket_weights());
    assert_eq!(codec.bucket_cutoffs(), other.bucket_cutoffs());
    assert_eq!(codec.centroids().bytes(), other.centroids().bytes());
    // ColBERT divides where we multiply by 1 / length, and adds squares in another order.
    let decoded = npy::<f32>("colbert-2.decoded.npy");
    assert_near(index.decode::<f32>().unwrap().data(), &decoded, 2e-7);
}

#[test]
fn an_index_of_next_plaid_is_read_and_made_bit_for_bit() {
    let index = read_index(&fixture("next-plaid-4")).unwrap();
    let codec = index.codec();
    assert_eq!((codec.nbits(), codec.dim()), (4, 32));
    assert_eq!(codec.centroids().element(), ElementType::F32);
    let decoded = npy::<f32>("next-plaid-4.decoded.npy");
    assert_near(index.decode::<f32>().unwrap().data(), &decoded, 2e-7);
    let tokens = tokens(index.layout());
    let encoded =
        ResidualTokens::encode(codec.clone(), &tokens, &EncodeOptions::default()).unwrap();
    assert_eq!(encoded.codes(), index.codes());
    assert_eq!(encoded.residuals(), index.residuals());
}

/// A copy of a fixture, to be broken.
fn copy(name: &str) -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in fs::read_dir(fixture(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

fn assert_refused(folder: &TempDir, parts: &[&str]) {
    let error = format!("{:#}", read_index(folder.path()).map(|_| ()).unwrap_err());
    parts.iter().for_each(|part| assert!(error.contains(part), "no '{part}': {error}"));
}

/// A `.npy` file of one version-1 header and some bytes.
fn npy_file(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let len = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), data].concat()
}

#[test]
fn chunks_with_files_of_their_own_take_the_place_of_merged_rows() {
    // Chunk 1 has been written again, with one document less of its ten; its old rows are merged
    // still.
    let folder = copy("fast-plaid-2");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let whole = read_index(folder.path()).unwrap();
    let (start, kept) = (whole.layout().item_rows(10).start, whole.layout().item_rows(18).end);
    let codes: Vec<i64> = whole.codes()[start..kept].iter().map(|&code| code.into()).collect();
    let n = kept - start;
    let residuals = &whole.residuals()[start * 8..kept * 8];
    write("1.codes.npy", &npy_file("<i8", &format!("({n},)"), bytemuck::cast_slice(&codes)));
    write("1.residuals.npy", &npy_file("<u1", &format!("({n}, 8)"), residuals));
    write("doclens.1.json", b"[7,1,6,11,5,10,4,9,3]");
    let rest = whole.layout().item_rows(20).start;
    let n_tokens = kept + whole.layout().rows() - rest;
    let totals = format!(
        r#"{{"num_chunks": 3, "nbits": 2, "num_documents": 23, "num_embeddings": {n_tokens}}}"#
    );
    write("metadata.json", totals.as_bytes());
    let index = read_index(folder.path()).unwrap();
    assert_eq!(index.layout().n_items(), 23);
    assert_eq!(index.codes(), [&whole.codes()[..kept], &whole.codes()[rest..]].concat());
    let bytes = [&whole.residuals()[..kept * 8], &whole.residuals()[rest * 8..]].concat();
    assert_eq!(index.residuals(), bytes);

    // Chunk 1 is not merged yet at all.
    let (codes, bytes) = (whole.codes(), whole.residuals());
    let end = whole.layout().item_rows(20).start;
    let wide: Vec<i64> = codes.iter().map(|&code| code.into()).collect();
    let merged = [&wide[..start], &wide[end..]].concat();
    let merged_bytes = [&bytes[..start * 8], &bytes[end * 8..]].concat();
    let folder = copy("fast-plaid-2");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let vector = |n: usize| format!("({n},)");
    let matrix = |n: usize| format!("({n}, 8)");
    let own = bytemuck::cast_slice(&wide[start..end]);
    write("1.codes.npy", &npy_file("<i8", &vector(end - start), own));
    let own = &bytes[start * 8..end * 8];
    write("1.residuals.npy", &npy_file("<u1", &matrix(end - start), own));
    let n = merged.len();
    write("merged_codes.npy", &npy_file("<i8", &vector(n), bytemuck::cast_slice(&merged)));
    write("merged_residuals.npy", &npy_file("|u1", &matrix(n), &merged_bytes));
    for what in ["codes", "residuals"] {
        let name = format!("merged_{what}.manifest.json");
        let mut rows: serde_json::Value =
            serde_json::from_slice(&fs::read(folder.path().join(&name)).unwrap()).unwrap();
        rows.as_object_mut().unwrap().remove(&format!("1.{what}.npy")).unwrap();
        write(&name, rows.to_string().as_bytes());
    }
    let index = read_index(folder.path()).unwrap();
    assert_eq!((index.codes(), index.residuals()), (codes, bytes));

    // Without its manifest, a merged file has the chunks' documents one after the other.
    let folder = copy("fast-plaid-2");
    for name in ["merged_codes.manifest.json", "merged_residuals.manifest.json"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let index = read_index(folder.path()).unwrap();
    assert_eq!((index.codes(), index.residuals()), (whole.codes(), whole.residuals()));
}

#[test]
fn folders_that_disagree_with_themselves_are_refused() {
    let broken = |name: &str, file: &str, bytes: Option<&[u8]>, parts: &[&str]| {
        let folder = copy(name);
        let path = folder.path().join(file);
        match bytes {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        assert_refused(&folder, parts);
    };
    let npy = |file: &str, bytes: &[u8], parts: &[&str]| {
        broken("fast-plaid-4", file, Some(bytes), parts);
    };
    assert_refused(&TempDir::new().unwrap(), &["metadata.json"]);
    for file in ["metadata.json", "doclens.1.json", "bucket_weights.npy", "bucket_cutoffs.npy"] {
        broken("fast-plaid-4", file, None, &[file]);
    }
    broken("fast-plaid-4", "centroids.npy", None, &["neither centroids.pt nor centroids.npy"]);
    broken("fast-plaid-4", "centroids.pt", Some(b""), &["both centroids.pt and centroids.npy"]);
    broken("fast-plaid-4", "1.codes.npy", None, &["neither 1.codes.npy nor merged_codes.npy"]);
    broken("fast-plaid-2", "merged_codes.npy", None, &["neither 0.codes.npy nor merged_codes.npy"]);
    broken("colbert-2", "1.codes.pt", None, &["1.codes.pt"]);
    npy("metadata.json", b"{", &["metadata.json"]);
    npy("metadata.json", br#"{"num_chunks": 3}"#, &["metadata.json", "nbits"]);
    npy("metadata.json", br#"{"num_chunks": 3, "nbits": 3}"#, &["nbits", "1, 2, 4 or 8", "3"]);
    npy("metadata.json", br#"{"num_chunks": 3, "nbits": 2}"#, &["bucket_weights", "4 entries"]);
    npy("metadata.json", br#"{"num_chunks": 4, "nbits": 4}"#, &["doclens.3.json"]);
    npy("metadata.json", br#"{"num_chunks": 3, "nbits": 4, "binary": true}"#, &["signs"]);
    npy("doclens.0.json", b"[1,2]", &["0.codes.npy", "59 rows", "3 tokens"]);
    npy("doclens.0.json", b"[-1]", &["doclens.0.json"]);
    npy("centroids.npy", &npy_file("<f4", "(4,)", &[0; 16]), &["centroids", "[4]", "[n, dim]"]);
    npy("centroids.npy", &npy_file("<i4", "(2, 2)", &[0; 16]), &["centroids", "I32", "F32"]);
    npy("centroids.npy", &npy_file("|O", "(2, 2)", &[0; 16]), &["centroids.npy", "never read"]);
    npy("centroids.npy", &npy_file("<f8", "(2, 1)", &[0; 16]), &["centroids.npy", "<f8"]);
    npy("centroids.npy", &npy_file("<f4", "(2, 3)", &[0; 16]), &["24 bytes", "16"]);
    npy(
        "centroids.npy",
        &npy_file("<f4", "(2, 1)", &[0; 8]),
        &["residuals", "[59, 16]", "[rows, 1]"],
    );
    let few = npy_file("<f4", "(1, 32)", &[0; 128]);
    npy("centroids.npy", &few, &["codes[", "does not exist", "1 items"]);
    npy("0.codes.npy", &npy_file("<f4", "(59,)", &[0; 236]), &["0.codes.npy", "F32", "I64"]);
    npy("0.residuals.npy", &npy_file("|u1", "(59, 8)", &[0; 472]), &["0.residuals.npy", "[59, 8]"]);
    let manifest = br#"{"0.codes.npy": {"rows": 58}}"#;
    broken("fast-plaid-2", "merged_codes.manifest.json", Some(manifest), &["58 rows of chunk 0"]);
    let short = npy_file("<i8", "(60,)", &[0; 480]);
    broken("fast-plaid-2", "merged_codes.npy", Some(&short), &["60 rows", "chunk 1"]);

    // A single number has no rows, not even one.
    let folder = copy("fast-plaid-2");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("metadata.json", br#"{"num_chunks": 1, "nbits": 2}"#);
    write("doclens.0.json", b"[1]");
    write("merged_codes.manifest.json", br#"{"0.codes.npy": {"rows": 1}}"#);
    write("merged_codes.npy", &npy_file("<i8", "()", &[0; 8]));
    assert_refused(&folder, &["merged_codes.npy", "a single number"]);
}

#[test]
fn documents_that_metadata_leave_out_are_missed() {
    let with = |name: &str, metadata: &str| {
        let folder = copy(name);
        fs::write(folder.path().join("metadata.json"), metadata).unwrap();
        folder
    };
    let few = r#"{"num_chunks": 2, "nbits": 4, "num_embeddings": 139}"#;
    assert_refused(&with("fast-plaid-4", few), &["metadata.json", "is 139", "2 chunks have 123"]);
    let few = r#"{"num_chunks": 3, "nbits": 4, "num_embeddings": 139, "num_documents": 25}"#;
    assert_refused(&with("fast-plaid-4", few), &["`num_documents` is 25", "24 documents"]);
    // Without totals, by the chunk that is left out.
    let few = r#"{"num_chunks": 2, "nbits": 4}"#;
    assert_refused(&with("fast-plaid-4", few), &["metadata.json", "doclens.2.json"]);
    let few = r#"{"num_chunks": 2, "config": {"nbits": 2}, "num_embeddings": 139}"#;
    assert_refused(&with("colbert-2", few), &["`num_chunks` is 2", "there is doclens.2.json"]);
    // As ColBERT's updater writes it.
    let many = r#"{"num_chunks": 3, "config": {"nbits": 2}, "num_embeddings": 300}"#;
    assert_eq!(read_index(with("colbert-2", many).path()).unwrap().layout().rows(), 139);
}

/// An archive as `torch.save` makes it, of a pickle and one storage.
fn archive(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    archive_of(&[("a/data.pkl", pickle), ("a/data/0", storage), ("a/version", b"3\n")])
}

fn archive_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for &(name, bytes) in entries {
        writer.start_file(name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// The pickle of a tensor of 20 × 32 f32.
fn tensor_pickle() -> Vec<u8> {
    let text =
        |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        &text("storage")[..],
        b"ctorch\nFloatStorage\n",
        &text("0"),
        &text("cpu"),
        b"M\x80\x02tQK\x00K\x14K \x86K K\x01\x86\x89ccollections\nOrderedDict\n)RtR",
    ]
    .concat()
}

#[test]
fn pt_files_of_anything_but_tensors_are_refused_and_nothing_runs() {
    let with = |bytes: &[u8]| {
        let folder = copy("colbert-2");
        fs::write(folder.path().join("centroids.pt"), bytes).unwrap();
        folder
    };
    let pickle = |inner: &[u8]| archive(&[b"\x80\x02", inner, b"."].concat(), &[0; 2560]);
    let tensor = tensor_pickle();
    // What is refused below differs from this in one thing each.
    let index = read_index(with(&pickle(&tensor)).path()).unwrap();
    assert_eq!(index.codec().centroids().to_f32()[..], [0.0; 640]);

    let marker = TempDir::new().unwrap();
    let path = marker.path().join("ran");
    let command = format!("touch {}", path.display());
    let argument = [b"X", &(command.len() as u32).to_le_bytes()[..], command.as_bytes()].concat();
    let call = [b"cos\nsystem\n", &argument[..], b"\x85R"].concat();
    let refused = |inner: &[u8], parts: &[&str]| {
        let parts = [&["centroids.pt"][..], parts].concat();
        assert_refused(&with(&pickle(inner)), &parts);
        assert!(!path.exists(), "a pickle ran a command");
    };
    refused(&call, &["expected a tensor, and nothing else"]);
    // Opcodes of other pickles: INST, an extension, a buffer, and one that there is not.
    refused(&[b"(", &argument[..], b"ios\nsystem\n"].concat(), &["pickle"]);
    refused(b"\x82\x01", &["pickle"]);
    refused(b"\x97", &["pickle"]);
    refused(b"\xff", &["pickle"]);
    // A tensor beside something else, or a call under it.
    refused(&[&tensor[..], &call, b"\x86"].concat(), &["expected a tensor"]);
    refused(b"K\x01", &["expected a tensor"]);
    refused(b"}", &["expected a tensor"]);
    refused(b"", &["pickle"]);
    refused(&tensor[..tensor.len() - 1], &["centroids.pt"]);
    // A pair where one is wanted, and one where a pair is.
    refused(&[&tensor[..], &tensor, b"\x86"].concat(), &["expected a tensor"]);
    let folder = copy("colbert-2");
    fs::write(folder.path().join("buckets.pt"), pickle(&tensor)).unwrap();
    assert_refused(&folder, &["buckets.pt", "expected a pair of tensors"]);
    let pair = [&tensor[..], &call, b"\x86"].concat();
    fs::write(folder.path().join("buckets.pt"), pickle(&pair)).unwrap();
    assert_refused(&folder, &["buckets.pt", "expected a pair of tensors"]);
    assert!(!path.exists(), "a pickle ran a command");

    // Archives that torch.save does not write.
    let file = |bytes: &[u8], part: &str| assert_refused(&with(bytes), &["centroids.pt", part]);
    file(b"", "not a file that torch.save wrote");
    file(&tensor, "not a file that torch.save wrote");
    file(&archive(&tensor, &[0; 2560]), "not a pickle of protocol 2");
    let whole = [b"\x80\x02", &tensor[..], b"."].concat();
    file(&archive(&whole, &[0; 2556]), "centroids.pt");
    file(&archive(&vec![0; 1 << 17], &[0; 2560]), "a pickle of 131072 bytes");
    let unstopped = [b"\x80\x02", &tensor[..]].concat();
    file(&archive(&unstopped, &[0; 2560]), "not a pickle of protocol 2");
    let entries = [("a/data.pkl", &whole[..]), ("b/data.pkl", &whole), ("a/data/0", &[0; 2560])];
    file(&archive_of(&entries), "2 pickles");
    file(&archive_of(&entries[2..]), "0 pickles");
    // The storage's method, in its own header and in the directory: said to be compressed.
    let mut compressed = pickle(&tensor);
    for (signature, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        let headers: Vec<usize> =
            (0..compressed.len() - 4).filter(|&at| &compressed[at..at + 4] == signature).collect();
        assert_eq!(headers.len(), 3);
        compressed[headers[1] + method] = 8;
    }
    file(&compressed, "entries are compressed");
    let cut = pickle(&tensor);
    file(&cut[..cut.len() - 40], "centroids.pt");
}
