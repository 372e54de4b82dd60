//! Residual-compressed documents whose padding is said in every way.

use std::fs;

use safetensors::SafeTensors;
use serde_json::Value;

use super::{Folder, HOLES, LEFT, LENGTHS, RIGHT, mask};
use crate::files::{Tensor, i64_bytes, safetensors};
use crate::tool::json;

#[test]
fn plaid_files_take_the_same_lengths_and_masks() {
    let folder = Folder::new();
    folder.quantize("packed.safetensors", "plaid", &["--keep-lengths"]).ok();
    let expected = json(&folder.rank("out.safetensors", &[]).ok());
    let file = fs::read(folder.path("out.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
    let row_bytes = tensors.tensor("residuals").unwrap().shape()[1];
    // The tokens of packed items in places of padded ones, and anything elsewhere.
    let padded = |name: &str, size: usize, places: [&[usize]; 4]| {
        let mut rows = tensors.tensor(name).unwrap().data().chunks_exact(size);
        let mut bytes = vec![0; 16 * size];
        for (item, places) in places.iter().enumerate() {
            for place in *places {
                bytes[(4 * item + place) * size..][..size].copy_from_slice(rows.next().unwrap());
            }
        }
        bytes
    };
    let file = |places: [&[usize]; 4], beside: Option<Tensor<'_>>| {
        let mut all: Vec<Tensor<'_>> = vec![
            ("codes", "I32", &[4, 4], padded("codes", 4, places)),
            ("residuals", "U8", &RESIDUALS, padded("residuals", row_bytes, places)),
        ];
        let shapes: Vec<(&str, Vec<usize>, Vec<u8>)> =
            ["centroids", "bucket_weights", "bucket_cutoffs"]
                .map(|name| (name, tensors.tensor(name).unwrap()))
                .map(|(name, tensor)| (name, tensor.shape().to_vec(), tensor.data().to_vec()))
                .to_vec();
        all.extend(shapes.iter().map(|(name, shape, data)| {
            (*name, header[*name]["dtype"].as_str().unwrap(), &shape[..], data.clone())
        }));
        all.extend(beside);
        let file = safetensors(&all, 0);
        let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut found: Value = serde_json::from_slice(&file[8..8 + len]).unwrap();
        found["__metadata__"] = header["__metadata__"].clone();
        let found = serde_json::to_vec(&found).unwrap();
        [&(found.len() as u64).to_le_bytes()[..], &found, &file[8 + len..]].concat()
    };
    const RESIDUALS: [usize; 3] = [4, 4, 2];
    for places in [RIGHT, LEFT, HOLES] {
        for name in ["mask", "attention_mask"] {
            let beside = (name, "BOOL", &[4, 4][..], mask(places, 1));
            folder.write("d.safetensors", file(places, Some(beside)));
            assert_eq!(json(&folder.rank("d.safetensors", &[]).ok()), expected, "{places:?}");
        }
    }
    let lengths = || ("doclens", "I64", &[4][..], i64_bytes(&LENGTHS));
    folder.write("d.safetensors", file(RIGHT, Some(lengths())));
    assert_eq!(json(&folder.rank("d.safetensors", &[]).ok()), expected);
    let other = ("n_tokens", "I64", &[4][..], i64_bytes(&LENGTHS));
    folder.write("d.safetensors", file(RIGHT, Some(other)));
    let error = folder.rank("d.safetensors", &[]).error();
    assert!(error.contains("tensor `n_tokens`, I64 [4], could be the items' lengths"), "{error}");
}
