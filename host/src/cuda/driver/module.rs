//! Kernels: one module per line of the tables, loaded at first use.
//!
//! A cubin that fits the device is loaded as it is; otherwise, or where the driver refuses it,
//! the driver compiles the PTX. MAXSIM_KERNELS=cubin or =ptx allows one of them alone.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cust::sys::{CUfunction, CUmodule};
use maxsim_kernels::abi::element::ElementType;
use maxsim_kernels::table::auxiliary::Family;
use maxsim_kernels::table::{Entry, Resources};

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

/// A loaded kernel, ready to be launched with a `P`: the type that its entry takes.
pub(in crate::cuda) struct Kernel<P> {
    entry: Entry<P>,
    loaded: Loaded,
}

impl<P> Clone for Kernel<P> {
    fn clone(&self) -> Kernel<P> {
        *self
    }
}

impl<P> Copy for Kernel<P> {}

impl<P> fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.fmt(f)
    }
}

impl<P> Kernel<P> {
    /// Handle that the driver launches.
    pub(in crate::cuda) fn function(&self) -> CUfunction {
        self.loaded.function
    }

    /// The entry that was loaded.
    pub(in crate::cuda) fn entry(&self) -> &Entry<P> {
        &self.entry
    }
}

/// Module that the driver has made of an image.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    function: CUfunction,
    source: KernelSource,
}

// SAFETY: a handle that stays valid for as long as its module, which is never unloaded; the
// driver takes it from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The kernels that have been loaded on a device. They stay for the life of the process.
#[derive(Debug, Default)]
pub(in crate::cuda) struct Kernels(Mutex<BTreeMap<&'static str, Loaded>>);

impl CudaDevice {
    /// Loads the kernel of an entry.
    pub(in crate::cuda) fn kernel<P>(&self, entry: Entry<P>) -> Result<Kernel<P>> {
        let loaded = self.load(entry.resources())?;
        Ok(Kernel { entry, loaded })
    }

    /// Loads the kernel of a family that is for elements of a type.
    pub(in crate::cuda) fn kernel_of<P>(
        &self,
        family: &Family<P>,
        element: ElementType,
    ) -> Result<Kernel<P>> {
        let entry = family.of(element, self.limits().capability).ok_or_else(|| {
            let like = family.kernels().first().map_or("", |row| row.resources.name);
            Error::Unsupported {
                what: format!("a kernel like {like} for {element} on {self:?}"),
                why: "there is none".into(),
            }
        })?;
        self.kernel(entry)
    }

    /// Loads these kernels, and makes ready what uploads and synchronous calls need.
    pub(crate) fn warm_up(
        self: &Arc<CudaDevice>,
        kernels: &[Resources],
    ) -> Result<Vec<LoadedKernel>> {
        upload(self, &[0])?;
        self.on_idle_stream(|_| Ok(()))?;
        let load = |kernel: &Resources| {
            let name = kernel.name;
            let is_new = !lock(&self.kernels.0).contains_key(name);
            let start = Instant::now();
            let source = self.load(kernel)?.source;
            Ok(LoadedKernel { name, source, time: is_new.then(|| start.elapsed()) })
        };
        kernels.iter().map(load).collect()
    }

    /// CTAs of the kernel that a multiprocessor runs at once.
    pub(in crate::cuda) fn blocks_per_multiprocessor(
        &self,
        kernel: &Resources,
        shared_bytes: usize,
    ) -> Result<usize> {
        let function = self.load(kernel)?.function;
        let _entered = self.enter()?;
        let (mut n_blocks, n_threads) = (0, kernel.threads as i32);
        // SAFETY: `n_blocks` outlives the call; the function lives as long as the process.
        let code = unsafe {
            raw::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut n_blocks,
                function,
                n_threads,
                shared_bytes,
            )
        };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(n_blocks.max(1) as usize)
    }

    fn load(&self, kernel: &Resources) -> Result<Loaded> {
        let name = kernel.name;
        // Once for every launch: for every dim that the kernel takes, up to the device's limit.
        let shared_bytes = kernel.shared_bytes.min(self.limits().shared_bytes);
        let mut kernels = lock(&self.kernels.0);
        if let Some(&loaded) = kernels.get(name) {
            return Ok(loaded);
        }
        let image = Image::find(name)?;
        let _entered = self.enter()?;
        let _relaxed = self.relaxed();
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
        let loaded = Loaded { function, source };
        kernels.insert(name, loaded);
        Ok(loaded)
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

/// Appends the messages of the driver's compiler to the file that MAXSIM_JIT_LOG names.
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
