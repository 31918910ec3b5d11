//! The number format that a device computes in: the one that is asked for, or f32 where it lacks what that one needs.

use std::fmt;

use tealight_ops::{ProductPrecision, bf16_instructions, int8_instructions};

use crate::system::device::DeviceName;
use crate::terminal::output::warn;

/// What a device computes in where a precision is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberFormat {
    asked: ProductPrecision,
    device: DeviceName,
    /// The instructions of the CPU that compute in it; `None` where it needs no special ones.
    instructions: Option<&'static str>,
    /// Why the device computes in f32 instead.
    lack: Option<&'static str>,
}

impl NumberFormat {
    /// That of `device` on this machine.
    pub(crate) fn for_device(asked: ProductPrecision, device: DeviceName) -> Self {
        Self::with(asked, device, bf16_instructions())
    }

    /// That of `device` where the CPU has these instructions for bf16.
    fn with(asked: ProductPrecision, device: DeviceName, bf16: Option<&'static str>) -> Self {
        let (instructions, lack) = match (asked, device, bf16) {
            (ProductPrecision::F32, ..) => (None, None),
            (ProductPrecision::Bf16 | ProductPrecision::Tf32, DeviceName::Cuda(_), _) => {
                (None, None)
            }
            (ProductPrecision::Bf16, DeviceName::Cpu, Some(name)) => (Some(name), None),
            (ProductPrecision::Bf16, DeviceName::Cpu, None) => {
                (None, Some("it has no instructions that make bf16 faster"))
            }
            (ProductPrecision::Bf16, DeviceName::Metal(_), _) => {
                (None, Some("Tealight has no bf16 on Metal"))
            }
            (ProductPrecision::Int8, DeviceName::Cpu, _) => (Some(int8_instructions()), None),
            (ProductPrecision::Int8, ..) => (None, Some("Tealight has int8 on CPUs only")),
            (ProductPrecision::Tf32, ..) => (None, Some("tf32 is a format of NVIDIA GPUs")),
        };
        Self { asked, device, instructions, lack }
    }

    /// The precision that is really computed in.
    pub(crate) fn used(self) -> ProductPrecision {
        if self.lack.is_some() { ProductPrecision::F32 } else { self.asked }
    }

    /// ` in bf16`, to follow the name of a device; empty if f32 is asked for.
    pub(crate) fn clause(self) -> String {
        if self.asked == ProductPrecision::F32 { String::new() } else { format!(" in {self}") }
    }

    /// Says on stderr that the device computes in another format than the one asked for, if it does, or more slowly.
    pub(crate) fn warn_if_replaced(self) {
        if let Some(note) = self.note() {
            warn(&note);
        }
        if let (ProductPrecision::Int8, Some(name @ ("avx2" | "portable"))) =
            (self.asked, self.instructions)
        {
            warn(&format!("int8 is slower than f32 here, because {name} has no products of bytes"));
        }
    }

    fn note(self) -> Option<String> {
        let Self { asked, device, lack, .. } = self;
        let name = asked.name();
        lack.map(|_| format!("the precision {name} is asked for, but {device} computes in {self}"))
    }
}

impl fmt::Display for NumberFormat {
    /// `bf16 (avx512_bf16)`, or `f32: ` with the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.used().name())?;
        match (self.instructions, self.lack) {
            (Some(instructions), _) => write!(f, " ({instructions})"),
            (None, Some(lack)) => write!(f, ": {lack}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_only_of_a_format_that_the_device_lacks() {
        let (cpu, cuda, metal) = (DeviceName::Cpu, DeviceName::Cuda(1), DeviceName::Metal(0));
        let fast = Some("avx512_bf16");
        let int8 = format!(" in int8 ({})", int8_instructions());
        for (asked, device, bf16, shown, used) in [
            (ProductPrecision::F32, cpu, fast, "", ProductPrecision::F32),
            (ProductPrecision::F32, metal, None, "", ProductPrecision::F32),
            (ProductPrecision::Bf16, cpu, fast, " in bf16 (avx512_bf16)", ProductPrecision::Bf16),
            (ProductPrecision::Bf16, cuda, None, " in bf16", ProductPrecision::Bf16),
            (ProductPrecision::Tf32, cuda, fast, " in tf32", ProductPrecision::Tf32),
            (ProductPrecision::Int8, cpu, None, &int8, ProductPrecision::Int8),
        ] {
            let format = NumberFormat::with(asked, device, bf16);
            assert_eq!((format.note(), format.used()), (None, used), "{format:?}");
            assert_eq!(format.clause(), shown, "{format:?}");
        }
        for (asked, device, bf16, reason) in [
            (ProductPrecision::Bf16, cpu, None, "it has no instructions that make bf16 faster"),
            (ProductPrecision::Bf16, metal, fast, "Tealight has no bf16 on Metal"),
            (ProductPrecision::Tf32, cpu, fast, "tf32 is a format of NVIDIA GPUs"),
            (ProductPrecision::Int8, cuda, fast, "Tealight has int8 on CPUs only"),
            (ProductPrecision::Int8, metal, fast, "Tealight has int8 on CPUs only"),
        ] {
            let format = NumberFormat::with(asked, device, bf16);
            let name = asked.name();
            let note = format!(
                "the precision {name} is asked for, but {device} computes in f32: {reason}"
            );
            assert_eq!((format.note(), format.used()), (Some(note), ProductPrecision::F32));
            assert_eq!(format.clause(), format!(" in f32: {reason}"));
        }
    }
}
