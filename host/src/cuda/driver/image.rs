//! What a kernel can be loaded from: its PTX, and cubins assembled from it ahead of time.

use crate::error::{Error, Result};

include!(concat!(env!("CARGO_MANIFEST_DIR"), "/ptx/index.rs"));

/// Environment variable: `cubin` or `ptx`, to load kernels from these alone.
const KERNELS: &str = "MAXSIM_KERNELS";

/// A kernel as this build carries it.
#[derive(Debug)]
pub(in crate::cuda) struct Image {
    /// Name of the entry.
    pub name: &'static str,
    /// What the driver compiles where no cubin fits.
    pub ptx: &'static str,
    /// The same, assembled for some devices.
    pub cubins: &'static [Cubin],
}

/// A kernel's code for one kind of device.
#[derive(Debug)]
pub(in crate::cuda) struct Cubin {
    /// Compute capability (major, minor) that it was assembled for.
    pub capability: (u32, u32),
    /// The ELF file.
    pub bytes: &'static [u8],
}

impl Image {
    /// The image of an entry.
    pub(in crate::cuda) fn find(name: &str) -> Result<&'static Image> {
        IMAGES.iter().find(|image| image.name == name).ok_or_else(|| Error::Unsupported {
            what: format!("kernel {name}"),
            why: "this build contains no PTX of it; run `cargo xtask build-ptx`".into(),
        })
    }

    /// The cubin that runs on a device: one for its own compute capability or an earlier one
    /// of the same major number. (No entry for sm_90a comes here with another device than its
    /// own: `Arch::runs_on` is asked first.)
    pub(in crate::cuda) fn cubin(&self, capability: (u32, u32)) -> Option<&'static Cubin> {
        let fits = |cubin: &&Cubin| {
            cubin.capability.0 == capability.0 && cubin.capability.1 <= capability.1
        };
        self.cubins.iter().filter(fits).max_by_key(|cubin| cubin.capability)
    }
}

/// What kernels may be loaded from.
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
    /// What the environment variable MAXSIM_KERNELS says.
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
    use maxsim_kernels::decode::{CENTROID_KERNELS, NORMS};
    use maxsim_kernels::gradient::{PROJECT, ROW_NORMS};
    use maxsim_kernels::loss;
    use maxsim_kernels::rescore::RESCORE;
    use maxsim_kernels::variants::{Arch, COMBINE_PIECES, FORWARD, SUM_PARTIALS};

    use super::*;

    #[test]
    fn every_entry_of_the_table_has_an_image() {
        let others =
            [SUM_PARTIALS, COMBINE_PIECES, loss::CONTRASTIVE, loss::DISTILLATION, loss::MEAN];
        let names = FORWARD.iter().map(|row| row.name).chain(others).chain(ROW_NORMS);
        let names =
            names.chain(PROJECT).chain(NORMS).chain(RESCORE).chain(CENTROID_KERNELS.concat());
        for name in names {
            let image = Image::find(name).unwrap();
            assert!(image.ptx.contains(&format!(".entry {name}(")), "{name}");
            for cubin in image.cubins {
                assert_eq!(cubin.bytes[..4], *b"\x7fELF", "{name}");
                let name = name.as_bytes();
                assert!(cubin.bytes.windows(name.len()).any(|found| found == name));
            }
        }
        assert!(matches!(Image::find("maxsim_none"), Err(Error::Unsupported { .. })));
    }

    /// On the devices that cubins are assembled for no driver compiles, once they are built.
    #[test]
    fn ampere_ada_and_hopper_have_a_cubin_of_every_kernel_that_they_run() {
        if IMAGES.iter().all(|image| image.cubins.is_empty()) {
            eprintln!("SKIPPED (built with `cargo xtask build-ptx --ptx-only`): cubins");
            return;
        }
        for row in FORWARD {
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
        let cubin = |capability| Cubin { capability, bytes: &[] };
        let cubins: &[Cubin] = Box::leak(Box::new([cubin((8, 0)), cubin((8, 6)), cubin((9, 0))]));
        let image = Image { name: "maxsim_e", ptx: "", cubins };
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
