//! Writes an index with next-plaid, and what next-plaid decodes it to.
//!
//! Arguments: tokens.npy (f32), lengths.json, the number of bits, the folder to write, decoded.npy.

use ndarray::{Array2, s};
use ndarray_npy::{read_npy, write_npy};
use next_plaid::{IndexConfig, MmapIndex};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let tokens: Array2<f32> = read_npy(&args[1]).unwrap();
    let lengths: Vec<usize> = std::fs::read_to_string(&args[2])
        .unwrap()
        .trim_matches(['[', ']', '\n'])
        .split(',')
        .map(|len| len.trim().parse().unwrap())
        .collect();
    let mut start = 0;
    let documents: Vec<Array2<f32>> = lengths
        .iter()
        .map(|&len| {
            start += len;
            tokens.slice(s![start - len..start, ..]).to_owned()
        })
        .collect();
    let config = IndexConfig {
        nbits: args[3].parse().unwrap(),
        batch_size: 16,
        seed: Some(7),
        start_from_scratch: 0,
        force_cpu: true,
        ..IndexConfig::default()
    };
    let index = MmapIndex::create_with_kmeans(&documents, &args[4], &config).unwrap();
    let ids: Vec<i64> = (0..documents.len() as i64).collect();
    let decoded = index.reconstruct(&ids).unwrap();
    let views: Vec<_> = decoded.iter().map(|document| document.view()).collect();
    write_npy(&args[5], &ndarray::concatenate(ndarray::Axis(0), &views).unwrap()).unwrap();
}
