//! Unpacks the compressed files that programs carry, when they are first asked for.
//!
//! What is unpacked is kept until the process ends: another device loads the same bytes.

use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;
use maxsim_kernels::archive::{Coding, Packed, window_bytes};

use crate::error::{Error, Result};

/// A compressed file of the archive that [`maxsim_kernels::archive`] describes.
#[derive(Debug)]
pub(super) struct PackedFile {
    packed: Packed<'static>,
    /// The bytes and a zero byte; `None` where they cannot be unpacked. Whole words, so that ELF
    /// headers lie as they would in a mapped file: the driver reads them in place.
    unpacked: OnceLock<Option<Vec<u64>>>,
}

impl PackedFile {
    pub(super) fn new(packed: Packed<'static>) -> PackedFile {
        PackedFile { packed, unpacked: OnceLock::new() }
    }

    /// The file's bytes, which start at a multiple of eight. `dictionary` gives those of the file
    /// that its coding names.
    pub(super) fn bytes<'a>(
        &self,
        dictionary: impl FnOnce(&'static str) -> Result<&'a [u8]>,
    ) -> Result<&[u8]> {
        Ok(&self.with_zero(dictionary)?[..self.packed.n_bytes])
    }

    /// The file's bytes and one zero byte.
    pub(super) fn with_zero<'a>(
        &self,
        dictionary: impl FnOnce(&'static str) -> Result<&'a [u8]>,
    ) -> Result<&[u8]> {
        let words = match self.unpacked.get() {
            Some(words) => words,
            None => {
                let dictionary = Coding::of(self.packed.name).dictionary.map(dictionary);
                let dictionary = dictionary.transpose()?.unwrap_or_default();
                self.unpacked.get_or_init(|| unpack(&self.packed, dictionary))
            }
        };
        let words = words.as_ref().ok_or_else(|| Error::Unsupported {
            what: self.packed.name.to_string(),
            why: "it cannot be unpacked; run `cargo xtask build-ptx`".into(),
        })?;
        Ok(&bytemuck::cast_slice(words)[..=self.packed.n_bytes])
    }
}

/// The words of a file with at least one zero byte after its bytes.
fn unpack(file: &Packed<'_>, dictionary: &[u8]) -> Option<Vec<u64>> {
    let coding = Coding::of(file.name);
    let mut reader = LzmaReader::new(
        file.packed,
        file.n_bytes as u64,
        coding.literal_context_bits,
        coding.literal_position_bits,
        coding.position_bits,
        window_bytes(dictionary.len(), file.n_bytes),
        (!dictionary.is_empty()).then_some(dictionary),
    )
    .ok()?;
    let mut words = vec![0u64; file.n_bytes / 8 + 1];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..file.n_bytes];
    reader.read_exact(bytes).ok()?;
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_unpacked_is_an_error() {
        let none = |_| Ok(&[][..]);
        for packed in [&[][..], &[0], &[1, 2, 3, 4, 5, 6], &[0; 32]] {
            let file = PackedFile::new(Packed { name: "maxsim_e.ptx", n_bytes: 1000, packed });
            for _ in 0..2 {
                let error = file.bytes(none).expect_err("no stream").to_string();
                assert!(error.contains("maxsim_e.ptx: it cannot be unpacked"), "{error}");
            }
        }
    }

    #[test]
    fn an_error_of_the_dictionary_is_the_files() {
        let packed = Packed { name: "maxsim_e.ptx", n_bytes: 10, packed: &[0; 5] };
        let none = |name: &str| Err(Error::Unsupported { what: "x".into(), why: name.into() });
        let error = PackedFile::new(packed).bytes(none).expect_err("no dictionary").to_string();
        assert!(error.contains("ptx.dictionary"), "{error}");
    }
}
