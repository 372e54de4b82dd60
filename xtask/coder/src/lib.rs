//! Compresses and unpacks files of kernels, in the form that [`maxsim_kernels::archive`] describes.
//! Apart from `xtask`, which is built unoptimised: here it spends its time.

use std::io::{Read, Write};

use anyhow::{Context, Result, ensure};
use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter, MfType};
use maxsim_kernels::archive::{Coding, window_bytes};

/// The bytes of a file, behind a dictionary, as its name says that they are coded.
///
/// # Errors
/// Those of the compressor.
pub fn compress(name: &str, bytes: &[u8], dictionary: &[u8]) -> Result<Vec<u8>> {
    let coding = Coding::of(name);
    let mut options = LzmaOptions::with_preset(9);
    // Binary trees would take 1 % off the size and more than twice the time.
    options.mf = MfType::Hc4;
    options.lc = coding.literal_context_bits;
    options.lp = coding.literal_position_bits;
    options.pb = coding.position_bits;
    options.dict_size = window_bytes(dictionary.len(), bytes.len());
    options.nice_len = LzmaOptions::NICE_LEN_MAX;
    if !dictionary.is_empty() {
        options.preset_dict = Some(dictionary.to_vec());
    }
    let mut writer = LzmaWriter::new_no_header(Vec::new(), &options, false)?;
    writer.write_all(bytes)?;
    writer.finish().with_context(|| format!("compressing {name}"))
}

/// The file of `n_bytes` that was compressed.
///
/// # Errors
/// Where `packed` is not what [`compress`] gives of a file of this name and size.
pub fn decompress(name: &str, packed: &[u8], n_bytes: usize, dictionary: &[u8]) -> Result<Vec<u8>> {
    let coding = Coding::of(name);
    let mut reader = LzmaReader::new(
        packed,
        n_bytes as u64,
        coding.literal_context_bits,
        coding.literal_position_bits,
        coding.position_bits,
        window_bytes(dictionary.len(), n_bytes),
        (!dictionary.is_empty()).then_some(dictionary),
    )?;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).with_context(|| format!("unpacking {name}"))?;
    ensure!(bytes.len() == n_bytes, "{name} unpacks to {} of {n_bytes} bytes", bytes.len());
    Ok(bytes)
}
