//! What the readers of single files take, what they refuse, and 100 000 broken files.

use std::ops::Range;

use super::made::{
    Random, bf16_bytes, f16_bytes, f32_bytes, i64_bytes, npy, npy_of, packed, packed_of, padded,
    safetensors,
};
use crate::Tokens;
use crate::files::{Contents, FileFormat as Format};
use crate::format::{Element, Fp8, Int8, Int8Affine, Quantized, ScaleType, Scales, with_format};

/// The embeddings of some items as f32, and the items' lengths.
fn read_as<T: Element>(
    contents: &Contents,
    bytes: &[u8],
    items: Range<usize>,
) -> (Vec<f32>, Vec<usize>) {
    let n_items = items.len();
    values_of(&contents.tokens::<T>(bytes, items).expect("checked contents can be read"), n_items)
}

/// As [`read_as`], of codes.
fn read_codes<F: Quantized>(
    contents: &Contents,
    bytes: &[u8],
    items: Range<usize>,
) -> (Vec<f32>, Vec<usize>) {
    let n_items = items.len();
    let tokens = contents.codes::<F>(bytes, items).expect("checked contents can be read");
    values_of(&tokens.dequantize().expect("memory"), n_items)
}

fn values_of<T: Element>(tokens: &Tokens<'_, T>, n_items: usize) -> (Vec<f32>, Vec<usize>) {
    let lens: Vec<usize> = (0..n_items).map(|i| tokens.layout().item_len(i)).collect();
    let dim = tokens.layout().dim();
    let rows = (0..n_items).flat_map(|i| tokens.layout().item_rows(i));
    let values = rows
        .flat_map(|row| tokens.data()[row * dim..(row + 1) * dim].iter().map(|v| v.to_f32()))
        .collect();
    (values, lens)
}

fn read(contents: &Contents, bytes: &[u8], items: Range<usize>) -> (Vec<f32>, Vec<usize>) {
    with_format!(contents.format, {
        element T => read_as::<T>(contents, bytes, items),
        codes F => read_codes::<F>(contents, bytes, items),
        other => panic!("{other} tokens are files of another kind"),
    })
}

fn whole(bytes: &[u8], format: Format) -> (Vec<f32>, Vec<usize>) {
    let contents = Contents::parse(bytes, format).unwrap();
    read(&contents, bytes, 0..contents.layout.n_items())
}

#[test]
fn every_element_type_and_layout_is_read() {
    let values = Random(1).values(6 * 4);
    let offsets = [0, 2, 2, 6];
    for (dtype, data) in
        [("F16", f16_bytes(&values)), ("BF16", bf16_bytes(&values)), ("F32", f32_bytes(&values))]
    {
        let file = packed_of(dtype, data, 6, 4, &offsets, 0);
        assert_eq!(whole(&file, Format::Safetensors), (values.clone(), vec![2, 0, 4]), "{dtype}");
    }
    let file = padded(&values, [2, 3, 4], None);
    assert_eq!(whole(&file, Format::Safetensors), (values.clone(), vec![3, 3]));
    let file = padded(&values, [2, 3, 4], Some(&[1, 3]));
    let kept = [&values[..4], &values[12..]].concat();
    assert_eq!(whole(&file, Format::Safetensors), (kept, vec![1, 3]));
    for version in 1..=3 {
        let file = npy(version, "<f2", &[3, 2, 4], &f16_bytes(&values));
        assert_eq!(whole(&file, Format::Npy), (values.clone(), vec![2, 2, 2]));
        let file = npy(version, "<f4", &[3, 2, 4], &f32_bytes(&values));
        assert_eq!(whole(&file, Format::Npy), (values.clone(), vec![2, 2, 2]));
    }
}

/// Rows as INT8 with f16 scales, in one item; `shift` moves the tensors.
fn compressed_int8(values: &[f32], dim: usize, shift: usize) -> Vec<u8> {
    let rows = values.len() / dim;
    let tokens = Tokens::padded(values, 1, rows, dim).unwrap();
    let codes = tokens.quantize::<Int8>(ScaleType::F16).unwrap();
    let Scales::F16(scales) = codes.scales() else { panic!("{:?}", codes.scales()) };
    let tensors = [
        ("embeddings", "I8", &[rows, dim][..], bytemuck::cast_slice(codes.data()).to_vec()),
        ("scales", "F16", &[rows], bytemuck::cast_slice(scales).to_vec()),
        ("offsets", "I64", &[2], i64_bytes(&[0, rows as i64])),
    ];
    safetensors(&tensors, shift)
}

/// Rows as FP8 with one scale, in one item.
fn compressed_fp8(values: &[f32], dim: usize) -> Vec<u8> {
    let rows = values.len() / dim;
    let tokens = Tokens::padded(values, 1, rows, dim).unwrap();
    let codes = tokens.quantize::<Fp8>(ScaleType::Tensor).unwrap();
    let tensors = [
        ("offsets", "I64", &[2][..], i64_bytes(&[0, rows as i64])),
        ("embeddings", "F8_E4M3", &[rows, dim], codes.data().to_vec()),
        ("scales", "F32", &[1], f32_bytes(&[codes.scales().scale(0)])),
    ];
    safetensors(&tensors, 0)
}

/// Padded rows as INT8 affine.
fn compressed_affine(values: &[f32], [n, len, dim]: [usize; 3]) -> Vec<u8> {
    let tokens = Tokens::padded(values, n, len, dim).unwrap();
    let codes = tokens.quantize::<Int8Affine>(ScaleType::F16).unwrap();
    let Scales::Affine { scales, mins } = codes.scales() else { panic!("{:?}", codes.scales()) };
    let tensors = [
        ("scales", "F16", &[n, len][..], bytemuck::cast_slice(scales).to_vec()),
        ("mins", "F16", &[n, len], bytemuck::cast_slice(mins).to_vec()),
        ("embeddings", "U8", &[n, len, dim], codes.data().to_vec()),
    ];
    safetensors(&tensors, 0)
}

#[test]
fn compressed_files_are_read_in_every_part() {
    let values = Random(11).values(12 * 4);
    let tokens = Tokens::padded(&values, 4, 3, 4).unwrap();
    let int8 = tokens.quantize::<Int8>(ScaleType::F16).and_then(|t| t.dequantize()).unwrap();
    let affine =
        tokens.quantize::<Int8Affine>(ScaleType::F16).and_then(|t| t.dequantize()).unwrap();
    let fp8 = tokens.quantize::<Fp8>(ScaleType::Tensor).and_then(|t| t.dequantize()).unwrap();
    for shift in 0..3 {
        let file = compressed_int8(&values, 4, shift);
        assert_eq!(whole(&file, Format::Safetensors), (int8.data().to_vec(), vec![12]));
    }
    assert_eq!(
        whole(&compressed_fp8(&values, 4), Format::Safetensors),
        (fp8.data().to_vec(), vec![12])
    );
    let file = compressed_affine(&values, [4, 3, 4]);
    let contents = Contents::parse(&file, Format::Safetensors).unwrap();
    for items in [0..4, 1..3, 3..4, 2..2] {
        let expected = &affine.data()[items.start * 12..items.end * 12];
        let (found, lens) = read(&contents, &file, items.clone());
        assert_eq!((&found[..], lens), (expected, vec![3; items.len()]));
    }
}

#[test]
fn offsets_may_be_i32() {
    let values = Random(2).values(5 * 2);
    let offsets: Vec<u8> = [0i32, 2, 5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors =
        [("embeddings", "F32", &[5, 2][..], f32_bytes(&values)), ("offsets", "I32", &[3], offsets)];
    assert_eq!(whole(&safetensors(&tensors, 0), Format::Safetensors), (values, vec![2, 3]));
}

#[test]
fn misaligned_embeddings_are_read_as_aligned_ones() {
    let values = Random(3).values(6 * 4);
    let expected = (values.clone(), vec![2, 4]);
    for shift in 0..8 {
        for (dtype, data) in [("F32", f32_bytes(&values)), ("F16", f16_bytes(&values))] {
            let file = packed_of(dtype, data, 6, 4, &[0, 2, 6], shift);
            assert_eq!(whole(&file, Format::Safetensors), expected, "{dtype} + {shift}");
        }
    }
}

#[test]
fn parts_are_what_the_whole_is() {
    let values = Random(4).values(12 * 2);
    for file in
        [packed(&values, 2, &[0, 3, 3, 4, 9, 12]), padded(&values, [4, 3, 2], Some(&[0, 3, 1, 2]))]
    {
        let contents = Contents::parse(&file, Format::Safetensors).unwrap();
        let n = contents.layout.n_items();
        for split in 0..=n {
            let (mut rows, mut lens) = read(&contents, &file, 0..split);
            let rest = read(&contents, &file, split..n);
            rows.extend(rest.0);
            lens.extend(rest.1);
            assert_eq!((rows, lens), whole(&file, Format::Safetensors));
        }
    }
}

#[test]
fn files_without_items_are_read() {
    assert_eq!(whole(&packed(&[], 4, &[0]), Format::Safetensors), (vec![], vec![]));
    assert_eq!(whole(&padded(&[], [0, 7, 4], None), Format::Safetensors), (vec![], vec![]));
    assert_eq!(whole(&npy(1, "<f4", &[0, 7, 4], &[]), Format::Npy), (vec![], vec![]));
    assert_eq!(whole(&npy(1, "<f4", &[3, 0, 4], &[]), Format::Npy), (vec![], vec![0, 0, 0]));
}

/// A file whose tensors have sizes near 2⁶⁴, and a sum of them that, added without a check, comes
/// back to the file's own size.
fn overflowing_sizes() -> Vec<u8> {
    let step = (1u64 << 61) - 1;
    let tensor = |name, start: u64, n: u64| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{start},{}]}}"#, start + n)
    };
    let mut tensors: Vec<String> =
        (0..8).map(|i| tensor(format!("t{i}"), i * step, step)).collect();
    tensors.push(tensor("embeddings".into(), 8 * step, 7));
    let header = format!("{{{}}}", tensors.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

#[test]
fn wrong_safetensors_are_errors_that_say_why() {
    let values = Random(5).values(24);
    let data = || f32_bytes(&values);
    let offsets = |offsets: &[i64]| packed(&values, 4, offsets);
    let one = |name, dtype, shape, data| safetensors(&[(name, dtype, shape, data)], 0);
    let two = |shape, name, dtype, n: usize, more| {
        safetensors(&[("embeddings", "F32", shape, data()), (name, dtype, &[n], more)], 0)
    };
    let lengths = |lengths: &[i64]| padded(&values, [2, 3, 4], Some(lengths));
    let codes = |dtype, name, scales, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>();
        let bytes =
            bytes * [2, 4, 8][["F16", "F32", "F64"].iter().position(|t| *t == scales).unwrap()];
        let scales = (name, scales, shape, vec![0; bytes]);
        safetensors(&[("embeddings", dtype, &[2, 3, 4], vec![0; 24]), scales], 0)
    };
    for (file, expected) in [
        (vec![], "too short"),
        (vec![0; 7], "too short"),
        (u64::MAX.to_le_bytes().to_vec(), "not a safetensors file"),
        (100u64.to_le_bytes().to_vec(), "cut off within the header"),
        ([&2u64.to_le_bytes()[..], b"[]"].concat(), "header is broken"),
        (overflowing_sizes(), "the file has 0"),
        ([offsets(&[0, 6]), vec![0]].concat(), "describes"),
        (offsets(&[0, 6])[..200].to_vec(), "describes"),
        (one("other", "F32", &[6, 4], data()), "no tensor `embeddings`"),
        (one("embeddings", "F32", &[6, 4], data()), "need a tensor `offsets`"),
        (one("embeddings", "F32", &[24], data()), "shape [24]"),
        (one("embeddings", "F64", &[3, 4], data()), "F64"),
        (one("embeddings", "I32", &[6, 4], data()), "I32"),
        (codes("I8", "other", "F16", &[6, 4]), "int8 embeddings need a tensor `scales` [2, 3]"),
        (codes("I8", "scales", "F16", &[6]), "`scales` have shape [6]; expected [2, 3]"),
        (codes("I8", "scales", "F64", &[2, 3]), "`scales` of int8 embeddings are F64"),
        (codes("I8", "scales", "F32", &[1]), "`scales` have shape [1]; expected [2, 3]"),
        (codes("U8", "scales", "F32", &[2, 3]), "`scales` of int8-affine embeddings are F32"),
        (codes("U8", "scales", "F16", &[2, 3]), "need a tensor `mins` [2, 3]"),
        (codes("F8_E4M3", "scales", "F16", &[1]), "`scales` have shape [1]; expected [2, 3]"),
        (one("embeddings", "F32", &[6, 0, 4], vec![]), ""), /* taken: six empty items */
        (one("embeddings", "F32", &[1 << 40, 0, 4], vec![]), "empty items"),
        (one("embeddings", "F32", &[6, 4, 0], vec![]), "dim"),
        (two(&[2, 3, 4], "offsets", "I64", 2, i64_bytes(&[0, 2])), "take `lengths`, not `offsets`"),
        (two(&[6, 4], "offsets", "F32", 2, f32_bytes(&[0.0, 6.0])), "expected I64 or I32"),
        (two(&[6, 4], "offsets", "U64", 2, i64_bytes(&[0, 6])), "expected I64 or I32"),
        (offsets(&[]), "offsets"),
        (offsets(&[-1, 6]), "offsets[0]"),
        (offsets(&[1, 6]), "offsets[0] is 1; expected 0"),
        (offsets(&[0, 5]), "offsets[1] is 5; expected 6"),
        (offsets(&[0, 2, 4]), "if they are where items start, append 6"),
        (offsets(&[2, 4, 6]), "if they are where items end, prepend 0"),
        (offsets(&[0, 4, 3]), "offsets[2]"),
        (offsets(&[0, 7]), "offsets[1]"),
        (offsets(&[0, i64::MAX]), "offsets[1]"),
        (offsets(&[i64::MIN, 0]), "offsets[0]"),
        (lengths(&[3]), "lengths"),
        (lengths(&[3, 4]), "lengths[1]"),
        (lengths(&[-1, 3]), "lengths[0]"),
    ] {
        match Contents::parse(&file, Format::Safetensors) {
            Ok(_) => assert_eq!(expected, ""),
            Err(error) => {
                let error = format!("{error:#}");
                assert!(!expected.is_empty() && error.contains(expected), "{expected}: {error}");
            }
        }
    }
}

#[test]
fn wrong_npy_files_are_errors_that_say_why() {
    let data = f32_bytes(&Random(6).values(24));
    let good = npy(1, "<f4", &[2, 3, 4], &data);
    let dictionary = |text: &str| npy_of(1, text, &data);
    for (file, expected) in [
        (vec![], "not an npy file"),
        (b"PK\x03\x04".to_vec(), "not an npy file"),
        (good[..7].to_vec(), "cut off"),
        (good[..9].to_vec(), "cut off"),
        (good[..40].to_vec(), "cut off"),
        (npy(4, "<f4", &[2, 3, 4], &data), "version 4.0"),
        (good[..good.len() - 1].to_vec(), "takes 96 bytes, the file has 95"),
        ([good.clone(), vec![0]].concat(), "takes 96 bytes, the file has 97"),
        (npy(1, ">f4", &[2, 3, 4], &data), "big-endian"),
        (npy(1, "|O", &[2, 3, 4], &data), "pickled"),
        (npy(1, "<f8", &[1, 3, 4], &data), "'<f8'"),
        (npy(1, "<V2", &[4, 3, 4], &data), "'<V2'"),
        (npy(1, "<f4", &[6, 4], &data), "shape [6, 4]"),
        (npy(1, "<f4", &[], &data), "shape []"),
        (npy(1, "<f4", &[usize::MAX, 3, 4], &data), "too large for any file"),
        (npy(1, "<f4", &[1 << 40, 0, 4], &[]), "empty items"),
        (npy(1, "<f4", &[2, 3, 0], &[]), "dim"),
        (dictionary("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3, 4)}"), "Fortran"),
        (
            dictionary("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3, 4)}"),
            "fields",
        ),
        (dictionary("{'descr': '<f4', 'shape': (2, 3, 4)}"), "no key 'fortran_order'"),
        (dictionary("{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3, 4)}"), "broken"),
        (dictionary("__import__('os')"), "broken"),
    ] {
        let error = Contents::parse(&file, Format::Npy).expect_err(expected);
        let error = format!("{error:#}");
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Valid files of every kind, small enough that most mutations hit something that matters.
fn valid_files() -> Vec<(Vec<u8>, Format)> {
    let values = Random(7).values(6 * 4);
    let (f32s, f16s) = (f32_bytes(&values), f16_bytes(&values));
    let i32s: Vec<u8> = [0i32, 1, 6].iter().flat_map(|v| v.to_le_bytes()).collect();
    let with_i32 =
        [("offsets", "I32", &[3][..], i32s), ("embeddings", "F32", &[6, 4], f32s.clone())];
    let safetensors = [
        packed(&values, 4, &[0, 2, 2, 6]),
        packed_of("F16", f16s.clone(), 6, 4, &[0, 5, 6], 3),
        packed_of("BF16", bf16_bytes(&values), 6, 4, &[0, 3, 4, 6], 0),
        padded(&values, [2, 3, 4], None),
        padded(&values, [3, 2, 4], Some(&[1, 0, 2])),
        safetensors(&with_i32, 0),
        compressed_int8(&values, 4, 1),
        compressed_fp8(&values, 4),
        compressed_affine(&values, [2, 3, 4]),
    ];
    let npy = [
        npy(1, "<f4", &[2, 3, 4], &f32s),
        npy(2, "<f2", &[1, 6, 4], &f16s),
        npy(3, "<f2", &[3, 2, 4], &f16s),
    ];
    let safetensors = safetensors.into_iter().map(|file| (file, Format::Safetensors));
    safetensors.chain(npy.into_iter().map(|file| (file, Format::Npy))).collect()
}

/// One change to a file, of the kinds that accidents and attackers make.
fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    if file.is_empty() {
        return file.push(random.next() as u8);
    }
    let at = random.below(file.len());
    // Headers are short, and most of what can go wrong is in them.
    let at = if random.below(2) == 0 { at % 160 % file.len() } else { at };
    match random.below(9) {
        0 => file[at] = random.next() as u8,
        1 => file[at] ^= 1 << random.below(8),
        2 => file.truncate(at),
        3 => {
            file.remove(at);
        }
        4 => file.insert(at, random.next() as u8),
        5 => {
            let end = (at + random.below(24)).min(file.len());
            let copy = file[at..end].to_vec();
            file.splice(at..at, copy);
        }
        // A number of eight bytes at an extreme: header length, offset or length.
        6 => {
            let n = [0, 1, -1, i64::MAX, i64::MIN, 1 << 31, 1 << 32, 100_000_000][random.below(8)];
            let at = if random.below(4) == 0 { 0 } else { at / 8 * 8 };
            let end = (at + 8).min(file.len());
            file[at..end].copy_from_slice(&n.to_le_bytes()[..end - at]);
        }
        // A digit of a shape, a data offset or a type.
        7 => {
            let digits: Vec<usize> =
                (0..file.len().min(300)).filter(|&i| file[i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                file[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
            }
        }
        // A number made long.
        _ => {
            let digit = (0..file.len().min(300)).find(|&i| i >= at && file[i].is_ascii_digit());
            if let Some(i) = digit {
                let n = ["99", "18446744073709551615", "4294967296", "-", "0000", "1e3"];
                file.splice(i..i, n[random.below(n.len())].bytes());
            }
        }
    }
}

#[test]
fn a_hundred_thousand_mutated_files_give_errors_or_valid_readings() {
    let files = valid_files();
    let mut random = Random(20);
    let (mut n_read, mut n_refused) = (0, 0);
    for case in 0..100_000 {
        let (file, format) = &files[case % files.len()];
        let mut file = file.clone();
        // Mostly one change: several nearly always break the header.
        for _ in 0..1 + random.below(5) / 3 {
            mutate(&mut file, &mut random);
        }
        let Ok(contents) = Contents::parse(&file, *format) else {
            n_refused += 1;
            continue;
        };
        n_read += 1;
        let layout = &contents.layout;
        assert!(contents.data.end <= file.len());
        let elements = layout.rows() * layout.dim();
        assert_eq!(contents.data.len(), elements * contents.format.size_bytes());
        let n = layout.n_items();
        let (values, lens) = read(&contents, &file, 0..n);
        assert_eq!(lens.iter().sum::<usize>() as u64, layout.total_len());
        assert_eq!(values.len(), lens.iter().sum::<usize>() * layout.dim());
        let middle = n / 2;
        assert_eq!(read(&contents, &file, middle..n).1, lens[middle..]);
    }
    // Both ends of the readers must have been worked.
    assert!(n_read > 5_000 && n_refused > 50_000, "{n_read} read, {n_refused} refused");
    println!("{n_read} read, {n_refused} refused");
}
