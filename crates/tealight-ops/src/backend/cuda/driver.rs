//! Kernels on a CUDA device: compiled by NVRTC, cached on disk, launched on the device's stream.

#![expect(unsafe_code, reason = "the driver cannot check a kernel's accesses to memory")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute_enum as Device, CUfunction_attribute_enum as Attribute,
    CUmemPool_attribute_enum as Pool,
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig, PushKernelArg,
    result as driver,
};
use candle_core::cuda_backend::cudarc::nvrtc::sys::nvrtcVersion;
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};
use candle_core::{CudaDevice, Error, Result};

use super::launch::{Dims, Launch};
use super::source::Source;
use super::{int, ptx_cache};
use crate::rng::hash;

/// Shared memory of a block on every device. More needs an attribute of the kernel.
const SHARED_BYTES: usize = 48 * 1024;

/// See `device::open_cuda`.
pub(crate) fn open(ordinal: usize) -> Result<CudaDevice> {
    let device = CudaDevice::new_with_stream(ordinal)?;
    let stream = device.cuda_stream();
    let mut all = u64::MAX;
    // SAFETY: without events, work must not be spread over several streams: there is one. The pool belongs to the
    // device, and the attribute is a number of 64 bits.
    unsafe {
        device.disable_event_tracking();
        // The pool keeps freed memory for later allocations. A failure only costs time.
        if let Ok(pool) = driver::device::get_default_mem_pool(stream.context().cu_device()) {
            let attribute = Pool::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let _ = driver::mem_pool::set_attribute(pool, attribute, (&raw mut all).cast());
        }
    }
    Ok(device)
}

/// Whether the device multiplies matrices of bf16 by warps: Ampere and later.
pub(super) fn has_tensor_cores(device: &CudaDevice) -> bool {
    device.cuda_stream().context().compute_capability().is_ok_and(|(major, _)| major >= 8)
}

pub(super) fn launch(device: &CudaDevice, launch: &Launch<'_>) -> Result<()> {
    let stream = device.cuda_stream();
    let function = function(&stream, launch)?;
    let mut builder = stream.launch_builder(&function);
    for words in &launch.arguments {
        builder.arg(&words[0]);
    }
    let Dims { grid: [x, y, z], block, shared_bytes } = launch.dims()?;
    let config = LaunchConfig {
        grid_dim: (x, y, z),
        block_dim: (block, 1, 1),
        shared_mem_bytes: shared_bytes,
    };
    // SAFETY: the kernel's module guarantees what `Launch::run` lists. The launch borrows all operands, so their memory
    // is freed later and, in the order of the stream, after the kernel.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

/// Loaded modules by device, source and `NUMBER_BITS`; functions by these and the kernel.
#[derive(Default)]
struct Loaded {
    modules: BTreeMap<(usize, &'static str, u32), Arc<CudaModule>>,
    functions: BTreeMap<(usize, &'static str, u32, &'static str), CudaFunction>,
}

fn function(stream: &CudaStream, launch: &Launch<'_>) -> Result<CudaFunction> {
    static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);
    let Launch { source, kernel, bits, .. } = *launch;
    let name = source.name;
    let context = stream.context();
    let ordinal = context.ordinal();
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let Loaded { modules, functions } = &mut *loaded;
    if let Some(function) = functions.get(&(ordinal, name, bits, kernel)) {
        return Ok(function.clone());
    }
    let module = match modules.entry((ordinal, name, bits)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(module(context, source, bits)?),
    };
    let function = module.load_function(kernel).w()?;
    // The function is cached, and later launches may need more: allow as much as there is.
    if launch.dims()?.shared_bytes > 0 {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, int(most_shared(context)?)?).w()?;
    }
    functions.insert((ordinal, name, bits, kernel), function.clone());
    Ok(function)
}

/// Bytes of dynamic shared memory that a block can have.
fn most_shared(context: &CudaContext) -> Result<usize> {
    let attribute = Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    // Some are left for static shared memory, as `block_sum` uses.
    Ok((context.attribute(attribute).w()?.cast_unsigned() as usize).saturating_sub(4096))
}

/// The same, or 48 KiB if the driver does not report it.
pub(super) fn shared_bytes(device: &CudaDevice) -> usize {
    most_shared(device.cuda_stream().context()).unwrap_or(SHARED_BYTES)
}

/// The module of a source: from the cache on disk, or compiled now, also if the driver does not load what is cached.
fn module(context: &Arc<CudaContext>, source: &Source, bits: u32) -> Result<Arc<CudaModule>> {
    let (major, minor) = context.compute_capability().w()?;
    let options = vec![
        format!("--gpu-architecture=compute_{major}{minor}"),
        format!("-DNUMBER_BITS={bits}"),
        "--std=c++17".to_owned(),
    ];
    let text = source.text();
    let compiler = compiler_version();
    let cached =
        ptx_cache::folder().map(|folder| folder.join(name(source, &text, &options, &compiler)));
    if let Some(ptx) = cached.as_deref().and_then(ptx_cache::read)
        && let Ok(module) = context.load_module(Ptx::from_src(ptx))
    {
        return Ok(module);
    }
    let options = CompileOptions { options, ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(text, options)
        .map_err(|error| {
            Error::Msg(format!("the kernels of {} do not compile: {error}", source.name))
        })?
        .to_src();
    // A failure to write the cache only costs time.
    if let Some(path) = cached {
        let _ = ptx_cache::write(&path, &ptx);
    }
    context.load_module(Ptx::from_src(ptx)).w()
}

/// The version of NVRTC. PTX of a newer one may be too new for the driver.
fn compiler_version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for writes of a C `int`.
    let _ = unsafe { nvrtcVersion(&raw mut major, &raw mut minor) };
    format!("{major}.{minor}")
}

/// The name of a cached PTX: it changes with the text, the options and the compiler.
fn name(source: &Source, text: &str, options: &[String], compiler: &str) -> String {
    let options = options.iter().flat_map(|option| option.bytes());
    let hash = hash(options.chain(text.bytes()).chain(compiler.bytes()));
    format!("{}-{}-{hash:016x}.ptx", source.name, env!("CARGO_PKG_VERSION"))
}
