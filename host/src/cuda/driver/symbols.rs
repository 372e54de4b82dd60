//! Finds the CUDA driver's functions in `libcuda.so.1` when they are first called.
//!
//! `cust` wants to be linked with libcuda, which a machine without an NVIDIA driver does not
//! have. So libcuda is never linked: this file *defines* the functions that `cust` refers
//! to, each forwarding to the driver's. A program built this way links and starts anywhere.
//!
//! The functions of [`raw`] return the driver's status code unchanged. The exported ones replace
//! codes newer than CUDA 11.4, because `cust` reads them as an enum of that version.
//!
//! They are for the linker alone. A function that is not mangled is exported from every shared
//! library that has this crate in it, where it would take the place of the driver's own for
//! libraries that are loaded later, or be replaced by it. The linker's word for that is the
//! symbol's visibility, which Rust has no stable attribute for: the assembler's directive `.hidden`
//! says it, in the object that defines the symbol. Programs and shared libraries that link this
//! crate need no flags, and the symbols end with the link.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use cust::sys::*;
use libloading::Library;

use super::status;
use super::status::known_to_cust;

/// The driver's library, opened once and never closed; or why it could not be.
pub(in crate::cuda) fn library() -> Result<&'static Library, &'static Arc<libloading::Error>> {
    static LIBRARY: OnceLock<Result<Library, Arc<libloading::Error>>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            // SAFETY: loading the driver runs its initialisers, which are made for that.
            unsafe { Library::new("libcuda.so.1") }.map_err(Arc::new)
        })
        .as_ref()
}

/// A function of the driver, or the status code that its absence stands for.
///
/// # Safety
/// `F` must be the type of the function `name`, which ends in a zero byte.
unsafe fn function<F: Copy>(name: &str) -> Result<F, u32> {
    let library = library().map_err(|_| status::NO_DEVICE)?;
    // SAFETY: the caller's promise.
    let function = unsafe { library.get::<F>(name.as_bytes()) };
    function.map(|function| *function).map_err(|_| status::NOT_FOUND)
}

macro_rules! define {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// The driver's function of this name; its status code.
        ///
        /// # Safety
        /// As the CUDA driver API documents it.
        pub(crate) unsafe fn $name($($argument: $type),*) -> u32 {
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            static FUNCTION: OnceLock<Result<Function, u32>> = OnceLock::new();
            // SAFETY: the lists below have the driver's own signatures.
            match FUNCTION.get_or_init(|| unsafe { function(concat!(stringify!($name), "\0")) }) {
                // SAFETY: the caller's promise.
                Ok(function) => unsafe { function($($argument),*) },
                Err(code) => *code,
            }
        }
    )*};
}

macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        std::arch::global_asm!(concat!(".hidden ", stringify!($name)));

        // SAFETY: nothing else of this name is linked: libcuda is only ever opened.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: the caller's promise, passed on.
            known_to_cust(unsafe { raw::$name($($argument),*) })
        }
    )*};
}

/// The functions that `cust` 0.3.2 refers to.
macro_rules! cust_functions {
    ($emit:ident) => {
        $emit! {
            fn cuArray3DCreate_v2(
                p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR
            );
            fn cuArray3DGetDescriptor_v2(
                p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, h_array: CUarray
            );
            fn cuArrayDestroy(h_array: CUarray);
            fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
            fn cuCtxDestroy_v2(ctx: CUcontext);
            fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint);
            fn cuCtxGetCacheConfig(pconfig: *mut c_int);
            fn cuCtxGetCurrent(pctx: *mut CUcontext);
            fn cuCtxGetDevice(device: *mut CUdevice);
            fn cuCtxGetFlags(flags: *mut c_uint);
            fn cuCtxGetLimit(pvalue: *mut usize, limit: c_int);
            fn cuCtxGetSharedMemConfig(p_config: *mut c_int);
            fn cuCtxGetStreamPriorityRange(
                least_priority: *mut c_int, greatest_priority: *mut c_int
            );
            fn cuCtxPopCurrent_v2(pctx: *mut CUcontext);
            fn cuCtxPushCurrent_v2(ctx: CUcontext);
            fn cuCtxSetCacheConfig(config: c_int);
            fn cuCtxSetCurrent(ctx: CUcontext);
            fn cuCtxSetLimit(limit: c_int, value: usize);
            fn cuCtxSetSharedMemConfig(config: c_int);
            fn cuCtxSynchronize();
            fn cuDestroyExternalMemory(ext_mem: CUexternalMemory);
            fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
            fn cuDeviceGetAttribute(pi: *mut c_int, attrib: c_int, dev: CUdevice);
            fn cuDeviceGetCount(count: *mut c_int);
            fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
            fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
            fn cuDevicePrimaryCtxReset_v2(dev: CUdevice);
            fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
            fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint);
            fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
            fn cuDriverGetVersion(driver_version: *mut c_int);
            fn cuEventCreate(ph_event: *mut CUevent, flags: c_uint);
            fn cuEventDestroy_v2(h_event: CUevent);
            fn cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);
            fn cuEventQuery(h_event: CUevent);
            fn cuEventRecord(h_event: CUevent, h_stream: CUstream);
            fn cuEventSynchronize(h_event: CUevent);
            fn cuFuncGetAttribute(pi: *mut c_int, attrib: c_int, hfunc: CUfunction);
            fn cuFuncSetCacheConfig(hfunc: CUfunction, config: c_int);
            fn cuFuncSetSharedMemConfig(hfunc: CUfunction, config: c_int);
            fn cuGetErrorString(error: u32, p_str: *mut *const c_char);
            fn cuGraphDestroy(h_graph: CUgraph);
            fn cuImportExternalMemory(
                ext_mem_out: *mut CUexternalMemory,
                mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC
            );
            fn cuInit(flags: c_uint);
            fn cuLinkComplete(
                state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize
            );
            fn cuLinkCreate_v2(
                num_options: c_uint, options: *mut c_int, option_values: *mut *mut c_void,
                state_out: *mut CUlinkState
            );
            fn cuLinkDestroy(state: CUlinkState);
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            fn cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
            fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
            fn cuModuleLoadDataEx(
                module: *mut CUmodule, image: *const c_void, num_options: c_uint,
                options: *mut c_int, option_values: *mut *mut c_void
            );
            fn cuModuleUnload(hmod: CUmodule);
            fn cuOccupancyAvailableDynamicSMemPerBlock(
                dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int,
                block_size: c_int
            );
            fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
                num_blocks: *mut c_int, func: CUfunction, block_size: c_int,
                dynamic_smem_size: usize
            );
            fn cuOccupancyMaxPotentialBlockSize(
                min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction,
                block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize,
                block_size_limit: c_int
            );
            fn cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: c_uint, priority: c_int);
            fn cuStreamDestroy_v2(h_stream: CUstream);
            fn cuStreamGetFlags(h_stream: CUstream, flags: *mut c_uint);
            fn cuStreamGetPriority(h_stream: CUstream, priority: *mut c_int);
            fn cuStreamSynchronize(h_stream: CUstream);
            fn cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: c_uint);
            fn cuSurfObjectCreate(
                p_surf_object: *mut CUsurfObject, p_res_desc: *const CUDA_RESOURCE_DESC
            );
            fn cuSurfObjectDestroy(surf_object: CUsurfObject);
            fn cuSurfObjectGetResourceDesc(
                p_res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject
            );
            fn cuTexObjectCreate(
                p_tex_object: *mut CUtexObject, p_res_desc: *const CUDA_RESOURCE_DESC,
                p_tex_desc: *const CUDA_TEXTURE_DESC,
                p_res_view_desc: *const CUDA_RESOURCE_VIEW_DESC
            );
            fn cuTexObjectDestroy(tex_object: CUtexObject);
            fn cuTexObjectGetResourceDesc(
                p_res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject
            );
        }
    };
}
cust_functions!(export);

/// The driver's functions with the driver's status codes.
pub(in crate::cuda) mod raw {
    use super::*;

    /// `CUlaunchConfig`
    #[repr(C)]
    pub(in crate::cuda) struct LaunchConfig {
        /// CTAs along x, y and z.
        pub grid: [c_uint; 3],
        /// Threads of a CTA along x, y and z.
        pub block: [c_uint; 3],
        /// Dynamic shared memory of a CTA.
        pub shared_mem_bytes: c_uint,
        pub stream: CUstream,
        pub attributes: *const LaunchAttribute,
        pub n_attributes: c_uint,
    }

    /// `CUlaunchAttribute` whose value is an `int`.
    #[repr(C, align(8))]
    pub(in crate::cuda) struct LaunchAttribute {
        id: c_uint,
        padding: c_uint,
        value: c_int,
        /// The union has 64 bytes.
        other_values: [c_uint; 15],
    }

    impl LaunchAttribute {
        /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: CTAs may begin before those of
        /// the kernel before have ended.
        pub(in crate::cuda) fn early() -> LaunchAttribute {
            LaunchAttribute { id: 6, padding: 0, value: 1, other_values: [0; 15] }
        }
    }

    const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

    cust_functions!(define);

    define! {
        fn cuGetErrorName(error: u32, p_str: *mut *const c_char);
        fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
        fn cuMemFree_v2(dptr: CUdeviceptr);
        fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream);
        fn cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
        fn cuMemcpyDtoHAsync_v2(
            dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream
        );
        fn cuMemcpyHtoDAsync_v2(
            dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream
        );
        fn cuMemsetD32Async(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream);
        fn cuMemsetD8Async(dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream);
        fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint);
        fn cuMemFreeHost(p: *mut c_void);
        fn cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr);
        fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, ptr: CUdeviceptr);
        fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
        fn cuFuncSetAttribute(hfunc: CUfunction, attrib: c_int, value: c_int);
        fn cuLaunchKernel(
            f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
            block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
            h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
        );
        fn cuLaunchKernelEx(
            config: *const LaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        fn cuStreamBeginCapture_v2(h_stream: CUstream, mode: c_int);
        fn cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph);
        fn cuStreamGetCaptureInfo(h_stream: CUstream, capture_status: *mut c_int, id: *mut u64);
        fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
        fn cuEventRecordWithFlags(h_event: CUevent, h_stream: CUstream, flags: c_uint);
        fn cuGraphInstantiateWithFlags(
            ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: u64
        );
        fn cuGraphLaunch(h_graph_exec: CUgraphExec, h_stream: CUstream);
        fn cuGraphExecDestroy(h_graph_exec: CUgraphExec);
        fn cuTensorMapEncodeTiled(
            map: *mut c_void, element: c_int, rank: c_uint, base: *mut c_void, dims: *const u64,
            strides_bytes: *const u64, box_dims: *const u32, element_strides: *const u32,
            interleave: c_int, swizzle: c_int, l2_promotion: c_int, out_of_bounds_fill: c_int
        );
    }
}
