//! CUDA graphs: the launches of a pass, captured once and replayed by one call.
//!
//! A replay repeats each kernel with the addresses and numbers of the capture. Besides the input tensors, only the
//! random numbers differ between replays: kernels read the keys of their streams from a table in device memory,
//! which is overwritten before each replay.

#![expect(
    unsafe_code,
    reason = "copies between addresses and the nodes of graphs have no safe interface in cudarc"
)]

use std::fmt;
use std::mem::MaybeUninit;
use std::result;
use std::sync::Arc;

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::{self as driver, memcpy_dtod_async};
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUgraphInstantiate_flags as Flags, CUgraphNodeType as Kind, CUmemorytype as Memory,
    CUstreamCaptureMode as Mode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream};
use candle_core::{CudaDevice, DType, Device, Error, Result, Tensor, bail};

use super::buffer::Buffer;
use super::capture::{self, MOST_KEYS};
use super::{address, staging};
use crate::rng::Stream;

/// Runs `f` and keeps on the GPU the small tables, such as strides, that Candle copies there for it.
pub(crate) fn warm_up<R>(device: &Device, f: impl FnOnce() -> R) -> R {
    let device = device.as_cuda_device().ok();
    let _stays = device.map(CudaDevice::enable_cuda_graph_htod_cache);
    f()
}

/// A graph, and the table of keys that it reads.
pub(crate) struct Graph {
    executable: CudaGraph,
    device: CudaDevice,
    keys: Buffer,
    forks: Vec<u64>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("n_draws", &self.forks.len()).finish_non_exhaustive()
    }
}

impl Graph {
    /// Captures the launches of `pass` on `device`, and replays them once.
    pub(crate) fn capture<R, E: From<Error>>(
        device: &Device,
        stream: Stream,
        pass: impl FnOnce() -> result::Result<R, E>,
    ) -> result::Result<(Self, R), E> {
        let keys = Buffer::unwritten(MOST_KEYS * 2, DType::U32, device)?;
        let device = device.as_cuda_device()?;
        give_back(&device.cuda_stream())?;
        // Candle finds its tables on the GPU since the warm-up, and refuses to copy others.
        let _cache = device.enable_cuda_graph_htod_cache();
        let capture = Capture::begin(device, stream, keys.address_of(0)?)?;
        let result = pass()?;
        let captured = capture.end().and_then(|(executable, forks)| {
            let mut graph = Self { executable, device: device.clone(), keys, forks };
            graph.replay(stream)?;
            Ok(graph)
        });
        match captured {
            Ok(graph) => Ok((graph, result)),
            Err(error) => {
                // Capture failed, so these allocations never happened: an error on freeing them is expected.
                drop(result);
                let _ = device.cuda_stream().context().check_err();
                Err(error.into())
            }
        }
    }

    /// Launches the graph with the random numbers of `stream`.
    pub(crate) fn replay(&mut self, stream: Stream) -> Result<()> {
        let keys = self.forks.iter().flat_map(|&fork| stream.fork(fork).key());
        let bytes: Vec<u8> = keys.flat_map(u32::to_ne_bytes).collect();
        if !bytes.is_empty() {
            staging::overwrite(&mut self.keys, &bytes, &self.device)?;
        }
        self.executable.launch().w()?;
        Ok(())
    }
}

/// Releases the pool's unused memory to the driver: a graph has memory of its own.
fn give_back(stream: &CudaStream) -> Result<()> {
    stream.synchronize().w()?;
    // SAFETY: the pool belongs to the device; trimming keeps memory in use.
    unsafe {
        if let Ok(pool) = driver::device::get_default_mem_pool(stream.context().cu_device()) {
            // A failure only means that the memory stays in the pool.
            let _ = driver::mem_pool::trim_to(pool, 0);
        }
    }
    Ok(())
}

/// Copies the elements of `from` into `to`: contiguous tensors of one shape and dtype on one GPU.
pub(crate) fn overwrite(to: &Tensor, from: &Tensor) -> Result<()> {
    let ((to_address, _lock_to), (from_address, _lock_from)) =
        (address::of_tensor(to)?, address::of_tensor(from)?);
    let n = from.elem_count() * from.dtype().size_in_bytes();
    let stream = to.device().as_cuda_device()?.cuda_stream();
    // SAFETY: both have `n` bytes. Memory freed later is freed in the order of the stream, after the copy.
    unsafe { memcpy_dtod_async(to_address, from_address, n, stream.cu_stream()) }.w()?;
    Ok(())
}

/// While this lives, work that this thread submits to the stream is captured instead of executed.
struct Capture {
    stream: Arc<CudaStream>,
    has_ended: bool,
}

impl Capture {
    fn begin(device: &CudaDevice, draws: Stream, table: u64) -> Result<Self> {
        let stream = device.cuda_stream();
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
        capture::begin(draws, table);
        Ok(Self { stream, has_ended: false })
    }

    /// Ends the capture: the graph, and the forks whose keys it reads.
    fn end(mut self) -> Result<(CudaGraph, Vec<u64>)> {
        self.has_ended = true;
        let forks = capture::end();
        // cudarc reports a pending error before it ends the capture: take it first.
        let pending = self.stream.context().check_err();
        // The results of a replay, gradients and a loss, are freed when the next replay begins.
        let graph = self.stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        pending.w()?;
        let Some(graph) = graph.w()? else { bail!("the captured pass launches nothing") };
        check(&graph)?;
        Ok((graph, forks))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        capture::end();
        // The caller reports why the pass failed; further errors are discarded. cudarc reports a pending error before
        // it ends the capture: take it first.
        let _ = self.stream.context().check_err();
        let _ = self.stream.end_capture(Flags(0));
        let _ = self.stream.context().check_err();
    }
}

/// Refuses a graph with a copy between the GPU and host memory, which may be freed before a replay.
fn check(graph: &CudaGraph) -> Result<()> {
    for node in nodes(graph)? {
        let mut kind = Kind::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node belongs to the graph, which is alive.
        unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) }.result().w()?;
        if kind != Kind::CU_GRAPH_NODE_TYPE_MEMCPY {
            continue;
        }
        if sides(node)?.contains(&(Memory::CU_MEMORYTYPE_HOST as u32)) {
            bail!("a copy between the GPU and host memory cannot be captured in a CUDA graph")
        }
    }
    Ok(())
}

/// Source and destination of a copy, as the numbers of [`Memory`].
fn sides(node: sys::CUgraphNode) -> Result<[u32; 2]> {
    let mut copy = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let at = copy.as_mut_ptr();
    // SAFETY: the node is a copy, and the driver writes its description to `at`; both types are numbers of 32 bits.
    unsafe {
        sys::cuGraphMemcpyNodeGetParams(node, at).result().w()?;
        let [from, to] = [&raw const (*at).srcMemoryType, &raw const (*at).dstMemoryType];
        Ok([from, to].map(|side| side.cast::<u32>().read()))
    }
}

fn nodes(graph: &CudaGraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut n = 0;
    // SAFETY: without an array, the driver writes the number of nodes; then the array has room for all of them.
    unsafe {
        sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut n).result().w()?;
        let mut nodes = vec![std::ptr::null_mut(); n];
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut n).result().w()?;
        Ok(nodes)
    }
}
