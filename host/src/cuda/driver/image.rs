//! Images that a kernel can be loaded from: its PTX, and cubins assembled from it ahead of time.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::OnceLock;

use maxsim_kernels::archive;

use super::packed::PackedFile;
use crate::error::{Error, Result};

/// All kernels, compressed. `cargo xtask build-ptx` writes the file.
static ARCHIVE: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/images/kernels.pack"));

/// Environment variable: `cubin` or `ptx`, to load kernels from these alone.
const KERNELS: &str = "MAXSIM_KERNELS";

/// A kernel as this build carries it.
#[derive(Debug)]
pub(in crate::cuda) struct Image {
    /// Name of the entry.
    pub name: &'static str,
    /// PTX, which the driver compiles where no cubin fits.
    ptx: Option<PackedFile>,
    /// Cubins assembled from that PTX, for some devices.
    cubins: Vec<Cubin>,
}

/// A kernel's code for one kind of device.
#[derive(Debug)]
pub(in crate::cuda) struct Cubin {
    /// Compute capability (major, minor) that it was assembled for.
    pub capability: (u32, u32),
    file: PackedFile,
}

/// Contents of the archive.
#[derive(Debug, Default)]
struct Images {
    kernels: BTreeMap<&'static str, Image>,
    dictionaries: BTreeMap<&'static str, PackedFile>,
}

impl Image {
    /// The image of an entry.
    pub(in crate::cuda) fn find(name: &str) -> Result<&'static Image> {
        images()?.kernels.get(name).ok_or_else(|| Error::Unsupported {
            what: format!("kernel {name}"),
            why: "this build contains no PTX of it; run `cargo xtask build-ptx`".into(),
        })
    }

    /// The text that the driver compiles.
    pub(in crate::cuda) fn ptx(&self) -> Result<&CStr> {
        let broken = |why: &str| Error::Unsupported {
            what: format!("kernel {}", self.name),
            why: format!("{why}; run `cargo xtask build-ptx`"),
        };
        let file = self.ptx.as_ref().ok_or_else(|| broken("this build contains no PTX of it"))?;
        CStr::from_bytes_with_nul(file.with_zero(dictionary)?)
            .map_err(|_| broken("its PTX contains a zero byte"))
    }

    /// The cubin that runs on a device: one for its own compute capability or an earlier one
    /// of the same major number. (No entry for sm_90a comes here with another device than its
    /// own: `Arch::runs_on` is asked first.)
    pub(in crate::cuda) fn cubin(&self, capability: (u32, u32)) -> Option<&Cubin> {
        let fits = |cubin: &&Cubin| {
            cubin.capability.0 == capability.0 && cubin.capability.1 <= capability.1
        };
        self.cubins.iter().filter(fits).max_by_key(|cubin| cubin.capability)
    }
}

impl Cubin {
    /// The ELF file, at an address that is a multiple of eight.
    pub(in crate::cuda) fn bytes(&self) -> Result<&[u8]> {
        self.file.bytes(dictionary)
    }
}

/// The directory of the archive, read once.
fn images() -> Result<&'static Images> {
    static IMAGES: OnceLock<Option<Images>> = OnceLock::new();
    IMAGES.get_or_init(|| Images::read(ARCHIVE)).as_ref().ok_or_else(|| Error::Unsupported {
        what: "GPU kernels".into(),
        why: "their archive cannot be read; run `cargo xtask build-ptx`".into(),
    })
}

/// The bytes of a dictionary.
fn dictionary(name: &'static str) -> Result<&'static [u8]> {
    let file = images()?.dictionaries.get(name).ok_or_else(|| Error::Unsupported {
        what: name.into(),
        why: "this build does not contain it; run `cargo xtask build-ptx`".into(),
    })?;
    file.bytes(dictionary)
}

impl Images {
    /// Reads the names and places of the files, and unpacks none. `None` where a file's name is of
    /// no known kind, too.
    fn read(bytes: &'static [u8]) -> Option<Images> {
        let mut images = Images::default();
        let mut all_are_known = true;
        archive::read(bytes, |packed| {
            all_are_known &= images.insert(packed.name, PackedFile::new(packed)).is_some();
        })?;
        all_are_known.then_some(images)
    }

    fn insert(&mut self, name: &'static str, file: PackedFile) -> Option<()> {
        let (kernel, kind) = name.split_once('.')?;
        if kind == "dictionary" {
            self.dictionaries.insert(name, file);
            return Some(());
        }
        let none = || Image { name: kernel, ptx: None, cubins: Vec::new() };
        let image = self.kernels.entry(kernel).or_insert_with(none);
        match kind.strip_suffix(".cubin") {
            Some(target) => image.cubins.push(Cubin { capability: capability(target)?, file }),
            None if kind == "ptx" => image.ptx = Some(file),
            None => return None,
        }
        Some(())
    }
}

/// The compute capability that the assembler's name of a target stands for.
fn capability(target: &str) -> Option<(u32, u32)> {
    let number = target.strip_prefix("sm_")?;
    let number: u32 = number.strip_suffix('a').unwrap_or(number).parse().ok()?;
    Some((number / 10, number % 10))
}

/// Images that kernels may be loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Wanted {
    /// A cubin where one fits and the driver takes it, else PTX.
    Any,
    /// Cubins alone.
    Cubin,
    /// PTX alone.
    Ptx,
}

impl Wanted {
    /// Reads the environment variable MAXSIM_KERNELS.
    pub(in crate::cuda) fn of_environment() -> Result<Wanted> {
        match std::env::var_os(KERNELS) {
            None => Ok(Wanted::Any),
            Some(value) => Wanted::parse(&value.to_string_lossy()),
        }
    }

    fn parse(value: &str) -> Result<Wanted> {
        match value {
            "" => Ok(Wanted::Any),
            "cubin" => Ok(Wanted::Cubin),
            "ptx" => Ok(Wanted::Ptx),
            other => Err(Error::Unsupported {
                what: format!("{KERNELS}={other}"),
                why: "it must be cubin or ptx, or not be set".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use maxsim_kernels::abi::arch::Arch;
    use maxsim_kernels::archive::{Coding, Packed};
    use maxsim_kernels::table;
    use maxsim_kernels::table::auxiliary::SUM_PARTIALS;

    use super::*;

    #[test]
    fn every_entry_of_the_table_has_an_image() {
        for kernel in table::all() {
            assert_eq!(Image::find(kernel.name).unwrap().name, kernel.name);
        }
        assert_eq!(images().unwrap().kernels.len(), table::all().count());
        assert!(matches!(Image::find("maxsim_none"), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn every_image_is_of_its_entry() {
        for (name, image) in &images().unwrap().kernels {
            let ptx = image.ptx().unwrap().to_str().unwrap();
            assert!(ptx.contains(&format!(".entry {name}(")), "{name}");
            for cubin in &image.cubins {
                let bytes = cubin.bytes().unwrap();
                assert_eq!(bytes[..4], *b"\x7fELF", "{name}");
                assert_eq!(bytes.as_ptr().addr() % 8, 0, "{name}");
                let name = name.as_bytes();
                assert!(bytes.windows(name.len()).any(|found| found == name));
            }
        }
    }

    #[test]
    fn a_file_is_unpacked_once() {
        let image = Image::find(SUM_PARTIALS.resources().name).unwrap();
        assert_eq!(image.ptx().unwrap().as_ptr(), image.ptx().unwrap().as_ptr());
    }

    /// The first call that needs a kernel waits for its file, and for the dictionary of the first.
    ///
    /// A decoder's time is that of the bits it reads (20 MB a second on a slow core), and where
    /// these stand for long repetitions, that of the bytes it writes. Bytes are counted, so that a
    /// busy machine changes nothing: these are some five milliseconds, twice what the longest
    /// takes.
    #[test]
    fn a_file_and_its_dictionary_are_short_to_unpack() {
        const MAX_PACKED: usize = 100_000;
        const MAX_UNPACKED: usize = 1_000_000;
        let mut sizes = BTreeMap::new();
        archive::read(ARCHIVE, |file| {
            assert_eq!(PackedFile::new(file).bytes(dictionary).unwrap().len(), file.n_bytes);
            sizes.insert(file.name, (file.packed.len(), file.n_bytes));
        })
        .unwrap();
        for (name, &(n_packed, n_bytes)) in &sizes {
            let none = (0, 0);
            let of_dictionary = Coding::of(name).dictionary.map_or(none, |name| {
                // It needs no other first.
                assert_eq!(Coding::of(name).dictionary, None);
                sizes[name]
            });
            let (n_packed, n_bytes) = (n_packed + of_dictionary.0, n_bytes + of_dictionary.1);
            assert!(n_packed <= MAX_PACKED, "{name}: {n_packed} bytes to decode");
            assert!(n_bytes <= MAX_UNPACKED, "{name}: {n_bytes} bytes to write");
        }
    }

    /// On the devices that cubins are assembled for no driver compiles, once they are built.
    #[test]
    fn ampere_ada_and_hopper_have_a_cubin_of_every_kernel_that_they_run() {
        if images().unwrap().kernels.values().all(|image| image.cubins.is_empty()) {
            eprintln!("SKIPPED (built with `cargo xtask build-ptx --ptx-only`): cubins");
            return;
        }
        for row in table::all() {
            let image = Image::find(row.name).unwrap();
            for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
                let has_cubin = image.cubin(capability).is_some();
                let is_assembled = row.arch.runs_on(capability) && capability.0 < 10;
                assert_eq!(has_cubin, is_assembled, "{} on {capability:?}", row.name);
            }
            if row.arch == Arch::Sm80 {
                assert_eq!(image.cubin((8, 9)).unwrap().capability, (8, 0));
            }
        }
    }

    #[test]
    fn a_cubin_fits_later_devices_of_its_major_capability() {
        let packed = Packed { name: "maxsim_e.cubin", n_bytes: 0, packed: &[] };
        let cubin = |capability| Cubin { capability, file: PackedFile::new(packed) };
        let cubins = [(8, 0), (8, 6), (9, 0)].map(cubin).into();
        let image = Image { name: "maxsim_e", ptx: None, cubins };
        for (device, fitting) in [
            ((7, 5), None),
            ((8, 0), Some((8, 0))),
            ((8, 5), Some((8, 0))),
            ((8, 9), Some((8, 6))),
            ((9, 0), Some((9, 0))),
            ((10, 0), None),
        ] {
            assert_eq!(image.cubin(device).map(|cubin| cubin.capability), fitting, "{device:?}");
        }
    }

    #[test]
    fn targets_name_compute_capabilities() {
        for (target, expected) in [
            ("sm_80", Some((8, 0))),
            ("sm_90a", Some((9, 0))),
            ("sm_120", Some((12, 0))),
            ("sm_", None),
            ("90", None),
        ] {
            assert_eq!(capability(target), expected, "{target}");
        }
    }

    #[test]
    fn archives_with_files_of_no_known_kind_are_refused() {
        let of_name = |name: &str| {
            let archive = format!("{}\n{name} 0 0\n\n", archive::FIRST_LINE);
            Images::read(archive.leak().as_bytes())
        };
        assert!(of_name("maxsim_e.sm_90a.cubin").is_some());
        for name in ["maxsim_e", "maxsim_e.txt", "maxsim_e.cubin", "maxsim_e.gfx.cubin"] {
            assert!(of_name(name).is_none(), "{name}");
        }
        assert!(Images::read(b"").is_none());
    }

    #[test]
    fn only_cubin_and_ptx_can_be_wanted() {
        assert_eq!(Wanted::parse("").unwrap(), Wanted::Any);
        assert_eq!(Wanted::parse("cubin").unwrap(), Wanted::Cubin);
        assert_eq!(Wanted::parse("ptx").unwrap(), Wanted::Ptx);
        for value in ["PTX", "cubins", "1", " "] {
            let error = Wanted::parse(value).unwrap_err().to_string();
            assert!(error.contains(&format!("MAXSIM_KERNELS={value}")), "{error}");
        }
    }
}
