//! Devices: `--device`, and the GPUs of this machine.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use serde::{Deserialize, Serialize};
use tealight_ops::device::open_cuda;

/// A device as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DeviceName {
    Cpu,
    Cuda(usize),
    Metal(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        match (kind, ordinal.parse()) {
            ("cpu", _) if kind == text => Ok(Self::Cpu),
            ("cuda", Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
            ("metal", Ok(ordinal)) => Ok(Self::Metal(ordinal)),
            _ => Err("expected cpu, cuda, cuda:N, metal or metal:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Metal(ordinal) => write!(f, "metal:{ordinal}"),
        }
    }
}

impl DeviceName {
    /// The device of one of several processes on a host, counted from 0: the first uses this GPU, the next the GPU
    /// after it, and so on.
    pub(crate) fn of_process(self, number: usize) -> Self {
        match self {
            Self::Cuda(ordinal) => Self::Cuda(ordinal + number),
            other => other,
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// If this build or this machine does not support it; the message tells which.
    pub(crate) fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Metal(_) if !cfg!(feature = "metal") => bail!(missing("Metal", "metal")),
            Self::Cuda(ordinal) => {
                if ordinal >= n_cuda()? {
                    bail!("there is no device {self}; `tealight devices` lists the available ones");
                }
                open_cuda(ordinal).with_context(|| unusable(self))
            }
            Self::Metal(ordinal) => Device::new_metal(ordinal).with_context(|| unusable(self)),
        }
    }
}

/// A GPU of this machine.
pub(crate) struct Gpu {
    pub(crate) device: DeviceName,
    /// Name, compute capability and CUDA version.
    pub(crate) description: String,
    pub(crate) memory: GpuMemory,
}

/// The GPUs that CUDA can use.
///
/// # Errors
/// If this build has no CUDA, or the machine has no driver or no GPU.
#[cfg(not(feature = "cuda"))]
pub(crate) fn cuda_gpus() -> Result<Vec<Gpu>> {
    bail!(missing("CUDA", "cuda"))
}

/// The number of GPUs that CUDA can use; an error if there is none.
#[cfg(not(feature = "cuda"))]
fn n_cuda() -> Result<usize> {
    bail!(missing("CUDA", "cuda"))
}

#[cfg(feature = "cuda")]
fn n_cuda() -> Result<usize> {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;

    let n = CudaContext::device_count().map_err(|error| {
        anyhow::anyhow!(
            "this build supports CUDA, but the NVIDIA driver does not respond ({error:?}); check it with \
             `nvidia-smi`"
        )
    })?;
    if n == 0 {
        bail!(
            "this build supports CUDA and the NVIDIA driver responds, but no GPU is visible to it"
        );
    }
    Ok(n.cast_unsigned() as usize)
}

#[cfg(feature = "cuda")]
pub(crate) fn cuda_gpus() -> Result<Vec<Gpu>> {
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, sys};

    let n = n_cuda()?;
    let mut version = 0;
    // SAFETY: the pointer is valid for one write of the integer that the function returns.
    #[expect(unsafe_code, reason = "cudarc has no safe function for it")]
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    let cuda_version = match status {
        sys::CUresult::CUDA_SUCCESS => format!(", CUDA {}.{}", version / 1000, version % 1000 / 10),
        _ => String::new(),
    };
    let gpu = |ordinal: usize| {
        let context = CudaContext::new(ordinal)?;
        let (major, minor) = context.compute_capability()?;
        let (free, total) = context.mem_get_info()?;
        anyhow::Ok(Gpu {
            device: DeviceName::Cuda(ordinal),
            description: format!("{}, capability {major}.{minor}{cuda_version}", context.name()?),
            memory: GpuMemory { free: free as u64, total: total as u64 },
        })
    };
    let named = |ordinal| gpu(ordinal).with_context(|| unusable(DeviceName::Cuda(ordinal)));
    (0..n).map(named).collect()
}

/// Memory of a GPU in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuMemory {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// The memory of `device`; `None` for a CPU, and for a GPU that does not report it.
pub(crate) fn gpu_memory(device: &Device) -> Option<GpuMemory> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let (free, total) = device.cuda_stream().context().mem_get_info().ok()?;
            Some(GpuMemory { free: free as u64, total: total as u64 })
        }
        _ => None,
    }
}

fn missing(name: &str, feature: &str) -> String {
    format!(
        "this build of tealight computes on the CPU only; for {name}, build it with \
         `cargo build --release --features {feature}`"
    )
}

fn unusable(device: DeviceName) -> String {
    format!("the device {device} cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in ["cpu", "cuda:0", "cuda:3", "metal:0"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for text in ["cpu:0", "gpu", "cuda:", "cuda:x", ""] {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_cpu_build_says_how_to_get_cuda() {
        let message = DeviceName::Cuda(0).open().unwrap_err().to_string();
        assert!(message.contains("--features cuda"), "{message}");
    }
}
