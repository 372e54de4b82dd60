//! Token files made in memory, and random numbers that are the same in every run.
#![allow(dead_code, reason = "each test program uses its part")]

use half::{bf16, f16};

/// A tensor for [`safetensors`]: name, element type as the format writes it, shape, bytes.
pub type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file; `shift` spaces more in its header move the tensors by as many bytes.
pub fn safetensors(tensors: &[Tensor<'_>], shift: usize) -> Vec<u8> {
    let mut end = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, data)| {
            let start = end;
            end += data.len();
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            )
        })
        .collect();
    let mut header = format!("{{{}}}", entries.join(","));
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    header.push_str(&" ".repeat(shift));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    for (_, _, _, data) in tensors {
        file.extend(data);
    }
    file
}

/// `embeddings` `[rows, dim]` f32 with `offsets`.
pub fn packed(values: &[f32], dim: usize, offsets: &[i64]) -> Vec<u8> {
    packed_of("F32", f32_bytes(values), values.len() / dim, dim, offsets, 0)
}

/// `embeddings` `[rows, dim]` of any type with `offsets`.
pub fn packed_of(
    dtype: &str,
    data: Vec<u8>,
    rows: usize,
    dim: usize,
    offsets: &[i64],
    shift: usize,
) -> Vec<u8> {
    let tensors = [
        ("offsets", "I64", &[offsets.len()][..], i64_bytes(offsets)),
        ("embeddings", dtype, &[rows, dim][..], data),
    ];
    safetensors(&tensors, shift)
}

/// `embeddings` `[n, len, dim]` f32, with `lengths` where they are given.
pub fn padded(values: &[f32], [n, len, dim]: [usize; 3], lengths: Option<&[i64]>) -> Vec<u8> {
    let shape = [n, len, dim];
    let mut tensors = vec![("embeddings", "F32", &shape[..], f32_bytes(values))];
    let n_lengths = [lengths.map_or(0, <[i64]>::len)];
    if let Some(lengths) = lengths {
        tensors.push(("lengths", "I64", &n_lengths[..], i64_bytes(lengths)));
    }
    safetensors(&tensors, 0)
}

/// An npy file of the given format version.
pub fn npy(version: u8, descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    npy_of(
        version,
        &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}"),
        data,
    )
}

/// An npy file with this header text.
pub fn npy_of(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
    let len_bytes = if version == 1 { 2 } else { 4 };
    let mut header = dictionary.to_string();
    while !(6 + 2 + len_bytes + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    file.extend(&(header.len() as u32).to_le_bytes()[..len_bytes]);
    file.extend(header.bytes());
    file.extend(data);
    file
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn f16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
}

pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
}

pub fn i64_bytes(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// SplitMix64: a generator in three lines whose numbers never change with a dependency.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Multiples of 1/8 from -1 to 1: exact in every element type, and so are short sums of
    /// their products in any order.
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.below(17) as f32 - 8.0) / 8.0).collect()
    }
}
