//! Kernels: one module per row of the variant table, loaded at first use.
//!
//! A cubin that fits the device is loaded as it is; otherwise, or where the driver refuses it,
//! the driver compiles the PTX. MAXSIM_KERNELS=cubin or =ptx allows one of them alone.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cust::sys::{CUfunction, CUmodule};
use maxsim_kernels::abi::params::{backward, loss, rescore};
use maxsim_kernels::abi::residual_chunk;
use maxsim_kernels::table::forward::{
    COMBINE_PIECES, COMBINE_PIECES_SHARED_BYTES, COMBINE_PIECES_THREADS, SUM_PARTIALS,
    SUM_PARTIALS_THREADS, Variant,
};

use super::context::CudaDevice;
use super::image::{Cubin, Image, Wanted};
use super::status;
use super::status::{UNSUPPORTED_PTX_VERSION, describe};
use super::symbols::raw;
use super::transfer::upload;
use crate::error::{Error, Result};
use crate::plan::kernels::{KernelSource, LoadedKernel};
use crate::runtime::swap::lock;

// `CUjit_option`
const INFO_LOG: i32 = 3;
const INFO_LOG_BYTES: i32 = 4;
const ERROR_LOG: i32 = 5;
const ERROR_LOG_BYTES: i32 = 6;
const LOG_VERBOSE: i32 = 12;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;

/// Room for each of the compiler's logs.
const LOG_BYTES: usize = 16 << 10;

/// Environment variable: the file that what was loaded, and the compiler's logs, are
/// appended to.
const JIT_LOG: &str = "MAXSIM_JIT_LOG";

/// A loaded entry, ready to be launched.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Kernel {
    pub function: CUfunction,
    pub n_threads: u32,
    pub source: KernelSource,
    /// Its blocks may begin before the kernel before it has ended: it waits by itself.
    pub begins_early: bool,
}

// SAFETY: a handle that stays valid for as long as its module, which is never unloaded; the
// driver takes it from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The kernels that have been loaded on a device. They stay for the life of the process.
#[derive(Debug, Default)]
pub(in crate::cuda) struct Kernels(Mutex<BTreeMap<&'static str, Kernel>>);

impl CudaDevice {
    /// The kernel of a row of the variant table.
    pub(in crate::cuda) fn kernel(&self, variant: &'static Variant) -> Result<Kernel> {
        // Once for every dim that the kernel takes, up to the device's limit.
        let shared_bytes = variant.shared_bytes(variant.dim_max).min(self.limits().shared_bytes);
        self.load(variant.name, variant.threads, shared_bytes)
    }

    /// The kernel that adds partial sums.
    pub(in crate::cuda) fn sum_partials_kernel(&self) -> Result<Kernel> {
        self.load(SUM_PARTIALS, SUM_PARTIALS_THREADS, 0)
    }

    /// The kernel that combines the pieces of cut documents.
    pub(in crate::cuda) fn combine_pieces_kernel(&self) -> Result<Kernel> {
        self.load(COMBINE_PIECES, COMBINE_PIECES_THREADS, COMBINE_PIECES_SHARED_BYTES)
    }

    /// Loads these rows and what goes with them, and these other kernels, and makes
    /// ready what uploads and synchronous calls need.
    pub(crate) fn warm_up(
        self: &Arc<CudaDevice>,
        rows: &[&'static Variant],
        others: &[&'static str],
    ) -> Result<Vec<LoadedKernel>> {
        upload(self, &[0])?;
        self.on_idle_stream(|_| Ok(()))?;
        let timed = |name, load: &dyn Fn() -> Result<Kernel>| {
            let is_new = !lock(&self.kernels.0).contains_key(name);
            let start = Instant::now();
            let source = load()?.source;
            Ok(LoadedKernel { name, source, time: is_new.then(|| start.elapsed()) })
        };
        let mut kernels = rows
            .iter()
            .map(|row| timed(row.name, &|| self.kernel(row)))
            .collect::<Result<Vec<_>>>()?;
        kernels.push(timed(SUM_PARTIALS, &|| self.sum_partials_kernel())?);
        kernels.push(timed(COMBINE_PIECES, &|| self.combine_pieces_kernel())?);
        for &name in others {
            let load = || match name {
                loss::CONTRASTIVE | loss::DISTILLATION | loss::MEAN => self.loss_kernel(name),
                _ if rescore::RESCORE.contains(&name) => self.rescore_kernel(name),
                _ if residual_chunk::CENTROID_KERNELS.as_flattened().contains(&name) => {
                    self.centroid_kernel(name)
                }
                _ => self.gradient_kernel(name),
            };
            kernels.push(timed(name, &load)?);
        }
        Ok(kernels)
    }

    /// Blocks of the kernel that a multiprocessor runs at once.
    pub(in crate::cuda) fn blocks_per_multiprocessor(
        &self,
        kernel: Kernel,
        shared_bytes: usize,
    ) -> Result<usize> {
        let _entered = self.enter()?;
        let (mut n_blocks, n_threads) = (0, kernel.n_threads as i32);
        // SAFETY: `n_blocks` outlives the call; the function lives as long as the process.
        let code = unsafe {
            raw::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut n_blocks,
                kernel.function,
                n_threads,
                shared_bytes,
            )
        };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(n_blocks.max(1) as usize)
    }

    pub(in crate::cuda) fn load(
        &self,
        name: &'static str,
        n_threads: usize,
        shared_bytes: usize,
    ) -> Result<Kernel> {
        let mut kernels = lock(&self.kernels.0);
        if let Some(&kernel) = kernels.get(name) {
            return Ok(kernel);
        }
        let image = Image::find(name)?;
        let _entered = self.enter()?;
        let (module, source) = self.module(image)?;
        let entry = CString::new(name).unwrap_or_default();
        let mut function = ptr::null_mut();
        // SAFETY: the module was just loaded; `function` and `entry` outlive the call.
        let code = unsafe { raw::cuModuleGetFunction(&mut function, module, entry.as_ptr()) };
        self.check("cuModuleGetFunction", code)?;
        // SAFETY: the function was just found.
        let code = unsafe {
            raw::cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_BYTES, shared_bytes as i32)
        };
        self.check("cuFuncSetAttribute", code)?;
        let begins_early = backward::BEGIN_EARLY.contains(&name);
        let kernel = Kernel { function, n_threads: n_threads as u32, source, begins_early };
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    fn module(&self, image: &Image) -> Result<(CUmodule, KernelSource)> {
        let wanted = Wanted::of_environment()?;
        let cubin = image.cubin(self.capability());
        let refused = match (wanted, cubin) {
            (Wanted::Ptx, _) | (Wanted::Any, None) => None,
            (Wanted::Cubin, None) => {
                let (major, minor) = self.capability();
                Some(format!("it has no cubin for compute capability {major}.{minor}"))
            }
            (Wanted::Any | Wanted::Cubin, Some(cubin)) => match self.load_cubin(image, cubin)? {
                Ok(module) => return Ok((module, KernelSource::Cubin)),
                Err(code) => Some(format!("the driver refuses its cubin: {}", describe(code))),
            },
        };
        match (wanted, refused) {
            (Wanted::Cubin, Some(why)) => {
                let what = format!("MAXSIM_KERNELS=cubin for kernel {}", image.name);
                Err(Error::Unsupported { what, why })
            }
            _ => Ok((self.compile(image.name, image.ptx()?)?, KernelSource::Ptx)),
        }
    }

    /// Loads a cubin, or gives the code with which the driver refuses to run such a file.
    fn load_cubin(
        &self,
        image: &Image,
        cubin: &Cubin,
    ) -> Result<std::result::Result<CUmodule, u32>> {
        let bytes = cubin.bytes()?;
        let mut module = ptr::null_mut();
        // SAFETY: the image is a whole ELF file, which says itself how long it is and lies as in a
        // file, since the driver reads its headers in place; it and `module` outlive the call.
        let code = unsafe { raw::cuModuleLoadData(&mut module, bytes.as_ptr().cast()) };
        if status::is_refused_image(code) {
            return Ok(Err(code));
        }
        self.check("cuModuleLoadData", code)?;
        let (major, minor) = cubin.capability;
        let said = format!("cubin for compute capability {major}.{minor}");
        append_log(image.name, &format!("{self:?}"), &said, "")?;
        Ok(Ok(module))
    }

    fn compile(&self, name: &'static str, ptx: &CStr) -> Result<CUmodule> {
        let (mut info, mut error) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = [INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, LOG_VERBOSE];
        let mut values = [
            info.as_mut_ptr().cast(),
            ptr::without_provenance_mut(LOG_BYTES),
            error.as_mut_ptr().cast(),
            ptr::without_provenance_mut(LOG_BYTES),
            ptr::without_provenance_mut(usize::from(std::env::var_os(JIT_LOG).is_some())),
        ];
        let mut module = ptr::null_mut();
        // SAFETY: the image ends in a zero byte; options and values are as many as said, each
        // value as its option wants it; the logs are as long as said; all outlive the call.
        let code = unsafe {
            raw::cuModuleLoadDataEx(
                &mut module,
                ptx.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let (info, error) = (text(&info), text(&error));
        append_log(name, &format!("{self:?}"), &info, &error)?;
        match code {
            UNSUPPORTED_PTX_VERSION => {
                Err(Error::PtxTooNew { kernel: name.into(), driver_version: self.driver_version() })
            }
            _ => match self.check("cuModuleLoadDataEx", code) {
                Ok(()) => Ok(module),
                Err(Error::Driver { call, code, .. }) => {
                    let message = format!("{}; kernel {name}: {}", describe(code), error.trim());
                    Err(Error::Driver { call, code, message })
                }
                Err(other) => Err(other),
            },
        }
    }
}

/// A log up to its first zero byte.
fn text(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}

/// Appends what the driver's compiler said to the file that MAXSIM_JIT_LOG names.
fn append_log(kernel: &str, device: &str, info: &str, error: &str) -> Result<()> {
    match std::env::var_os(JIT_LOG) {
        Some(file) if !file.is_empty() => append(Path::new(&file), kernel, device, info, error),
        _ => Ok(()),
    }
}

fn append(file: &Path, kernel: &str, device: &str, info: &str, error: &str) -> Result<()> {
    let text = format!("# {kernel} on {device}\n{}\n{}\n", info.trim(), error.trim());
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Error::Unsupported {
            what: format!("{JIT_LOG}={}", file.display()),
            why: format!("the file cannot be written: {error}"),
        })
}
