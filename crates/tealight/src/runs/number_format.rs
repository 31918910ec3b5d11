//! The number format that a device computes in: the one that is asked for, or f32 where it lacks what that one needs.

use std::fmt;

use tealight_model::names::Named;
use tealight_ops::bf16_instructions;
use tealight_train::config::Precision;

use crate::system::device::DeviceName;
use crate::terminal::output::warn;

/// What a device computes in where a precision is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberFormat {
    asked: Precision,
    device: DeviceName,
    /// The instructions of the CPU that compute in it; `None` where it needs no special ones.
    instructions: Option<&'static str>,
    /// Why the device computes in f32 instead.
    lack: Option<&'static str>,
}

impl NumberFormat {
    /// That of `device` on this machine.
    pub(crate) fn for_device(asked: Precision, device: DeviceName) -> Self {
        Self::with(asked, device, bf16_instructions())
    }

    /// That of `device` where the CPU has these instructions for bf16.
    fn with(asked: Precision, device: DeviceName, bf16: Option<&'static str>) -> Self {
        let (instructions, lack) = match (asked, device, bf16) {
            (Precision::F32, ..) | (_, DeviceName::Cuda(_), _) => (None, None),
            (Precision::Bf16, DeviceName::Cpu, Some(name)) => (Some(name), None),
            (Precision::Bf16, DeviceName::Cpu, None) => {
                (None, Some("it has no instructions that make bf16 faster"))
            }
            (Precision::Bf16, DeviceName::Metal(_), _) => {
                (None, Some("Tealight has no bf16 on Metal"))
            }
            (Precision::Tf32, ..) => (None, Some("tf32 is a format of NVIDIA GPUs")),
        };
        Self { asked, device, instructions, lack }
    }

    /// The precision that is really computed in.
    pub(crate) fn used(self) -> Precision {
        if self.lack.is_some() { Precision::F32 } else { self.asked }
    }

    /// ` in bf16`, to follow the name of a device; empty if f32 is asked for.
    pub(crate) fn clause(self) -> String {
        if self.asked == Precision::F32 { String::new() } else { format!(" in {self}") }
    }

    /// Says on stderr that the device computes in another format than the one asked for, if it does.
    pub(crate) fn warn_if_replaced(self) {
        if let Some(note) = self.note() {
            warn(&note);
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
        for (asked, device, bf16, shown, used) in [
            (Precision::F32, cpu, fast, "", Precision::F32),
            (Precision::F32, metal, None, "", Precision::F32),
            (Precision::Bf16, cpu, fast, " in bf16 (avx512_bf16)", Precision::Bf16),
            (Precision::Bf16, cuda, None, " in bf16", Precision::Bf16),
            (Precision::Tf32, cuda, fast, " in tf32", Precision::Tf32),
        ] {
            let format = NumberFormat::with(asked, device, bf16);
            assert_eq!((format.note(), format.used()), (None, used), "{format:?}");
            assert_eq!(format.clause(), shown, "{format:?}");
        }
        for (asked, device, bf16, reason) in [
            (Precision::Bf16, cpu, None, "it has no instructions that make bf16 faster"),
            (Precision::Bf16, metal, fast, "Tealight has no bf16 on Metal"),
            (Precision::Tf32, cpu, fast, "tf32 is a format of NVIDIA GPUs"),
        ] {
            let format = NumberFormat::with(asked, device, bf16);
            let name = asked.name();
            let note = format!(
                "the precision {name} is asked for, but {device} computes in f32: {reason}"
            );
            assert_eq!((format.note(), format.used()), (Some(note), Precision::F32));
            assert_eq!(format.clause(), format!(" in f32: {reason}"));
        }
    }
}
