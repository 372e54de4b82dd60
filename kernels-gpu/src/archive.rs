//! The file that compiled kernels are linked from: every PTX text and cubin, each compressed on
//! its own, so that a program unpacks only what it loads.
//!
//! `cargo xtask build-ptx` writes it and the host reads it. It starts with a directory in text,
//!
//! ```text
//! maxsim kernels 1
//! NAME BYTES PACKED_BYTES
//! …
//! ```
//!
//! whose last line is empty; the compressed files follow in the order of the directory, with
//! nothing between them. Each is a raw LZMA stream, without a header and without an end mark, whose
//! settings are those of [`Coding::of`]. Names are those of the generated files, as
//! `maxsim_sum_partials.sm_90.cubin`; the two dictionaries are files like any other.

/// The first line.
pub const FIRST_LINE: &str = "maxsim kernels 1";

/// Name of the file that PTX texts are compressed with as their preset dictionary.
pub const PTX_DICTIONARY: &str = "ptx.dictionary";

/// Name of the file that cubins are compressed with as their preset dictionary.
pub const CUBIN_DICTIONARY: &str = "cubin.dictionary";

/// Settings of LZMA for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// High bits of the byte before that choose a literal's probabilities.
    pub literal_context_bits: u32,
    /// Low bits of the position that choose a literal's probabilities.
    pub literal_position_bits: u32,
    /// Low bits of the position that choose everything else's probabilities.
    pub position_bits: u32,
    /// Name of the file that matches may reach back into, as if its bytes came first.
    pub dictionary: Option<&'static str>,
}

impl Coding {
    /// The settings of the file of this name.
    ///
    /// PTX is text, where the byte before says most. A cubin is instructions of 16 bytes, where
    /// the position within the instruction does.
    #[must_use]
    pub fn of(name: &str) -> Coding {
        let of_text = |dictionary| Coding {
            literal_context_bits: 3,
            literal_position_bits: 0,
            position_bits: 0,
            dictionary,
        };
        let of_code = |dictionary| Coding {
            literal_context_bits: 0,
            literal_position_bits: 4,
            position_bits: 4,
            dictionary,
        };
        match name {
            PTX_DICTIONARY => of_text(None),
            CUBIN_DICTIONARY => of_code(None),
            _ if name.ends_with(".ptx") => of_text(Some(PTX_DICTIONARY)),
            _ => of_code(Some(CUBIN_DICTIONARY)),
        }
    }
}

/// Bytes of the window that a file of `n_bytes` is compressed in after a dictionary of
/// `n_dictionary_bytes`: all of both, so that every match is within reach.
#[must_use]
pub const fn window_bytes(n_dictionary_bytes: usize, n_bytes: usize) -> u32 {
    const MIN: usize = 1 << 16;
    const MAX: usize = 1 << 30;
    let needed = n_dictionary_bytes.saturating_add(n_bytes);
    match needed {
        0..MIN => MIN as u32,
        MIN..=MAX => needed.next_power_of_two() as u32,
        _ => MAX as u32,
    }
}

/// A compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// Length of the file once it is unpacked.
    pub n_bytes: usize,
    /// LZMA stream of the file.
    pub packed: &'a [u8],
}

/// Passes the files of an archive to `each`, in the order of the directory; `None` as soon as the
/// bytes turn out to be no archive, or not a whole one.
pub fn read<'a>(archive: &'a [u8], mut each: impl FnMut(Packed<'a>)) -> Option<()> {
    let end = archive.windows(2).position(|pair| pair == b"\n\n")?;
    let directory = core::str::from_utf8(&archive[..end]).ok()?;
    let mut lines = directory.lines();
    if lines.next() != Some(FIRST_LINE) {
        return None;
    }
    let mut rest = &archive[end + 2..];
    for line in lines {
        let mut words = line.split(' ');
        let (name, n_bytes, n_packed) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let packed;
        (packed, rest) = rest.split_at_checked(n_packed.parse().ok()?)?;
        each(Packed { name, n_bytes: n_bytes.parse().ok()?, packed });
    }
    rest.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn names(archive: &str) -> Option<Vec<(&str, usize, &[u8])>> {
        let mut files = Vec::new();
        read(archive.as_bytes(), |file| files.push((file.name, file.n_bytes, file.packed)))?;
        Some(files)
    }

    #[test]
    fn files_follow_in_the_order_of_the_directory() {
        let archive = "maxsim kernels 1\na.ptx 30 3\nb.sm_90.cubin 9 0\nc.ptx 7 2\n\nAAACC";
        let expected: [(_, _, &[u8]); 3] =
            [("a.ptx", 30, b"AAA"), ("b.sm_90.cubin", 9, b""), ("c.ptx", 7, b"CC")];
        assert_eq!(names(archive).unwrap(), expected);
        // Two line ends in compressed bytes do not end the directory.
        assert_eq!(names("maxsim kernels 1\na 1 2\n\n\n\n").unwrap(), [("a", 1, &b"\n\n"[..])]);
        assert_eq!(names("maxsim kernels 1\n\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_whole_archive_is_refused() {
        for archive in [
            "",
            "maxsim kernels 1",
            "maxsim kernels 2\n\n",
            "maxsim kernels 1\na.ptx 30 3\n\nAA",
            "maxsim kernels 1\na.ptx 30 3\n\nAAAA",
            "maxsim kernels 1\na.ptx 30\n\n",
            "maxsim kernels 1\na.ptx 30 -3\n\n",
            "maxsim kernels 1\na.ptx x 0\n\n",
            "maxsim kernels 1\na.ptx 30 3 3\n\nAAA",
            "maxsim kernels 1\na.ptx 30 99999999999999999999\n\n",
        ] {
            assert_eq!(names(archive), None, "{archive:?}");
        }
    }

    #[test]
    fn windows_hold_dictionary_and_file() {
        assert_eq!(window_bytes(0, 0), 1 << 16);
        assert_eq!(window_bytes(0, (1 << 16) + 1), 1 << 17);
        assert_eq!(window_bytes(300_000, 224_288), 1 << 19);
        assert_eq!(window_bytes(300_000, 224_289), 1 << 20);
        assert_eq!(window_bytes(usize::MAX, usize::MAX), 1 << 30);
    }
}
