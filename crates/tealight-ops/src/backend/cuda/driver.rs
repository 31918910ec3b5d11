//! Kernels on a CUDA device: compiled by NVRTC, kept on disk, launched in the device's queue.

#![expect(unsafe_code, reason = "what a kernel does with its arguments only the kernel knows")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
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
use candle_core::{CudaDevice, Error, Result, bail};

use super::int;
use super::launch::Launch;

const ATTENTION: &str = include_str!("../../../kernels/attention.cuh");
const PRELUDE: &str = include_str!("../../../kernels/prelude.cuh");
const TENSOR_CORES: &str = include_str!("../../../kernels/attention_bf16.cu");
/// By name, in the parts that they are put together from.
const SOURCES: [(&str, &[&str]); 12] = [
    ("attention", &[ATTENTION, include_str!("../../../kernels/attention.cu")]),
    // Each width on its own: a model has one, and all take long to compile.
    ("attention_bf16_32", &["#define WIDTH 32", ATTENTION, TENSOR_CORES]),
    ("attention_bf16_64", &["#define WIDTH 64", ATTENTION, TENSOR_CORES]),
    ("attention_bf16_128", &["#define WIDTH 128", ATTENTION, TENSOR_CORES]),
    ("convolution", &[include_str!("../../../kernels/convolution.cu")]),
    ("elementwise", &[include_str!("../../../kernels/elementwise.cu")]),
    ("embedding", &[include_str!("../../../kernels/embedding.cu")]),
    ("linear_attention", &[include_str!("../../../kernels/linear_attention.cu")]),
    ("nystrom", &[include_str!("../../../kernels/nystrom.cu")]),
    ("optimizers", &[include_str!("../../../kernels/optimizers.cu")]),
    ("rows", &[include_str!("../../../kernels/rows.cu")]),
    ("scans", &[include_str!("../../../kernels/scans.cu")]),
];
/// What every kernel may have of shared memory without asking; one that asks gets all that there is.
const SHARED_BYTES: u32 = 48 * 1024;

/// See `device::open_cuda`.
pub(crate) fn open(ordinal: usize) -> Result<CudaDevice> {
    let device = CudaDevice::new_with_stream(ordinal)?;
    let stream = device.cuda_stream();
    let mut all = u64::MAX;
    // SAFETY: there is one queue. The pool is the device's own, and the attribute is a number of 64 bits.
    unsafe {
        device.disable_event_tracking();
        // Without a pool that keeps what is freed a step takes longer, and nothing else.
        if let Ok(pool) = driver::device::get_default_mem_pool(stream.context().cu_device()) {
            let attribute = Pool::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let _ = driver::mem_pool::set_attribute(pool, attribute, (&raw mut all).cast());
        }
    }
    Ok(device)
}

/// Ampere and later.
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
    let [x, y, z] = launch.grid;
    let config = LaunchConfig {
        grid_dim: (x, y, z),
        block_dim: (launch.block, 1, 1),
        shared_mem_bytes: launch.shared_bytes,
    };
    // SAFETY: the arguments are those of the kernel, and what they point to is on this device.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

/// What was loaded of the files of each device: modules by file and number type, and kernels by name, too.
#[derive(Default)]
struct Loaded {
    modules: BTreeMap<(usize, &'static str, u32), Arc<CudaModule>>,
    functions: BTreeMap<(usize, &'static str, u32, &'static str), CudaFunction>,
}

fn function(stream: &CudaStream, launch: &Launch<'_>) -> Result<CudaFunction> {
    static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);
    let Launch { file, kernel, bits, .. } = *launch;
    let context = stream.context();
    let ordinal = context.ordinal();
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let Loaded { modules, functions } = &mut *loaded;
    if let Some(function) = functions.get(&(ordinal, file, bits, kernel)) {
        return Ok(function.clone());
    }
    let module = match modules.entry((ordinal, file, bits)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let ptx = ptx(context, file, bits)?;
            entry.insert(context.load_module(Ptx::from_src(ptx)).w()?)
        }
    };
    let function = module.load_function(kernel).w()?;
    // Once, for all launches: another may ask for more than this one.
    if launch.shared_bytes > 0 {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, int(most_shared(context)?)).w()?;
    }
    functions.insert((ordinal, file, bits, kernel), function.clone());
    Ok(function)
}

/// Bytes that a block may ask for.
fn most_shared(context: &CudaContext) -> Result<usize> {
    let attribute = Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    // Some are its own, for the sums of blocks.
    Ok((context.attribute(attribute).w()?.cast_unsigned() as usize).saturating_sub(4096))
}

/// Bytes of shared memory that a kernel may ask for.
pub(super) fn shared_bytes(device: &CudaDevice) -> usize {
    most_shared(device.cuda_stream().context()).unwrap_or(SHARED_BYTES as usize)
}

/// A file for the driver: from the cache, or compiled now.
fn ptx(context: &CudaContext, file: &str, bits: u32) -> Result<String> {
    let Some((_, parts)) = SOURCES.iter().find(|(name, _)| *name == file) else {
        bail!("there is no file of kernels `{file}`")
    };
    let (major, minor) = context.compute_capability().w()?;
    let options = vec![
        format!("--gpu-architecture=compute_{major}{minor}"),
        format!("-DNUMBER_BITS={bits}"),
        "--std=c++17".to_owned(),
    ];
    let source = format!("{PRELUDE}\n{}", parts.join("\n"));
    let made_by = compiler_version();
    let cached = cache().map(|folder| folder.join(name(file, &source, &options, &made_by)));
    if let Some(ptx) = cached.as_deref().and_then(|path| fs::read_to_string(path).ok()) {
        return Ok(ptx);
    }
    let options = CompileOptions { options, ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(source, options)
        .map_err(|error| Error::Msg(format!("the kernels in {file}.cu do not compile: {error}")))?
        .to_src();
    // A cache that cannot be written costs time and nothing else.
    if let Some(path) = cached {
        let _ = keep(&path, &ptx);
    }
    Ok(ptx)
}

fn cache() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(folder.join("tealight/kernels"))
}

/// NVRTC's: what a newer one makes may be too new for the driver.
fn compiler_version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    let _ = unsafe { nvrtcVersion(&raw mut major, &raw mut minor) };
    format!("{major}.{minor}")
}

/// Another name for other content, other options or another compiler.
fn name(file: &str, source: &str, options: &[String], made_by: &str) -> String {
    // FNV-1a, as in `rng.rs`.
    let options = options.iter().flat_map(|option| option.bytes());
    let bytes = options.chain(source.bytes()).chain(made_by.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{file}-{}-{hash:016x}.ptx", env!("CARGO_PKG_VERSION"))
}

fn keep(path: &Path, ptx: &str) -> std::io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let aside = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&aside, ptx)?;
    fs::rename(aside, path)
}
