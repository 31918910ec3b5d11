//! What a GPU was given to do, kept as a graph that it is given again in one call.
//!
//! A kernel finds in a graph the addresses and the numbers that it was recorded with. What differs from one
//! time to the next, and is no tensor, is the random numbers: the keys of their streams lie in a table, which
//! is overwritten beforehand.

#![expect(
    unsafe_code,
    reason = "cudarc's copies take slices of its own, and graphs have nodes of any kind"
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

/// Does something so that what Candle brings to the GPU for it, such as strides, stays there.
pub(crate) fn warm_up<R>(device: &Device, f: impl FnOnce() -> R) -> R {
    let device = device.as_cuda_device().ok();
    let _stays = device.map(CudaDevice::enable_cuda_graph_htod_cache);
    f()
}

/// A graph, and the keys that it reads.
pub(crate) struct Graph {
    graph: CudaGraph,
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
    /// Records what `pass` gives `device` to do, and has it done.
    pub(crate) fn capture<R, E: From<Error>>(
        device: &Device,
        stream: Stream,
        pass: impl FnOnce() -> result::Result<R, E>,
    ) -> result::Result<(Self, R), E> {
        let keys = Buffer::unwritten(MOST_KEYS * 2, DType::U32, device)?;
        let device = device.as_cuda_device()?;
        give_back(&device.cuda_stream())?;
        // What Candle brings to the GPU has been there since the warm-up, and it refuses the rest.
        let _at_hand = device.enable_cuda_graph_htod_cache();
        let capture = Capture::begin(device, stream, keys.address()?)?;
        let result = pass()?;
        let captured = capture.end().and_then(|(graph, forks)| {
            let mut graph = Self { graph, device: device.clone(), keys, forks };
            graph.replay(stream)?;
            Ok(graph)
        });
        match captured {
            Ok(graph) => Ok((graph, result)),
            Err(error) => {
                // Its memory was never there, and cannot be given back.
                drop(result);
                let _ = device.cuda_stream().context().check_err();
                Err(error.into())
            }
        }
    }

    /// Has all of it done, with random numbers of `stream`.
    pub(crate) fn replay(&mut self, stream: Stream) -> Result<()> {
        let keys = self.forks.iter().flat_map(|&fork| stream.fork(fork).key());
        let bytes: Vec<u8> = keys.flat_map(u32::to_ne_bytes).collect();
        if !bytes.is_empty() {
            staging::overwrite(&mut self.keys, &bytes, &self.device)?;
        }
        self.graph.launch().w()?;
        Ok(())
    }
}

/// Gives the driver what earlier passes have left in the pool: a graph has memory of its own.
fn give_back(stream: &CudaStream) -> Result<()> {
    stream.synchronize().w()?;
    // SAFETY: the pool is the device's own, and what is in use stays.
    unsafe {
        if let Ok(pool) = driver::device::get_default_mem_pool(stream.context().cu_device()) {
            // What stays is not lost: it is only not there for others.
            let _ = driver::mem_pool::trim_to(pool, 0);
        }
    }
    Ok(())
}

/// Copies the elements of `from` over those of `to`, which has the same shape and dtype: both contiguous.
pub(crate) fn overwrite(to: &Tensor, from: &Tensor) -> Result<()> {
    let place = |x: &Tensor| -> Result<u64> {
        let (storage, layout) = x.storage_and_layout();
        Ok(address::of(&storage)? + layout.start_offset() as u64 * address::size_of(x.dtype()))
    };
    let n = from.elem_count() * from.dtype().size_in_bytes();
    let stream = to.device().as_cuda_device()?.cuda_stream();
    // SAFETY: both have so many bytes, and stay where they are until it is the copy's turn: there is one queue.
    unsafe { memcpy_dtod_async(place(to)?, place(from)?, n, stream.cu_stream()) }.w()?;
    Ok(())
}

/// While this lives, what this thread puts into the queue is recorded, and not done.
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

    /// The graph, and the forks whose keys it reads.
    fn end(mut self) -> Result<(CudaGraph, Vec<u64>)> {
        self.has_ended = true;
        let forks = capture::end();
        // An error that is waiting to be told would keep the capture from being ended.
        let waiting = self.stream.context().check_err();
        // What a pass leaves behind, gradients and a loss, is given up when the next one begins.
        let graph = self.stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        waiting.w()?;
        let Some(graph) = graph.w()? else { bail!("nothing has been recorded") };
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
        // Why the pass has failed is known already; what is left of it is forgotten. An error that is waiting to
        // be told would keep the capture from being ended.
        let _ = self.stream.context().check_err();
        let _ = self.stream.end_capture(Flags(0));
        let _ = self.stream.context().check_err();
    }
}

/// A copy between the GPU and this process's memory would be made again from or to a place that may have been
/// given up.
fn check(graph: &CudaGraph) -> Result<()> {
    for node in nodes(graph)? {
        let mut kind = Kind::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is one of the graph's, which lives.
        unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) }.result().w()?;
        if kind != Kind::CU_GRAPH_NODE_TYPE_MEMCPY {
            continue;
        }
        if sides(node)?.contains(&(Memory::CU_MEMORYTYPE_HOST as u32)) {
            bail!("a copy between the GPU and the processor cannot be recorded")
        }
    }
    Ok(())
}

/// From which side to which a copy goes, as the numbers of [`Memory`].
fn sides(node: sys::CUgraphNode) -> Result<[u32; 2]> {
    let mut copy = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let at = copy.as_mut_ptr();
    // SAFETY: the node is a copy, whose description is written there; both sides are numbers of 32 bits in it.
    unsafe {
        sys::cuGraphMemcpyNodeGetParams(node, at).result().w()?;
        let [from, to] = [&raw const (*at).srcMemoryType, &raw const (*at).dstMemoryType];
        Ok([from, to].map(|side| side.cast::<u32>().read()))
    }
}

fn nodes(graph: &CudaGraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut n = 0;
    // SAFETY: without a place for nodes it is their number that is asked for; then there is room for so many.
    unsafe {
        sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut n).result().w()?;
        let mut nodes = vec![std::ptr::null_mut(); n];
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut n).result().w()?;
        Ok(nodes)
    }
}
