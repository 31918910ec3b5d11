//! How gradients travel: as they are, or rounded to bf16.

use std::ops::Range;

use candle_core::{DType, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use tealight_ops::unwritten_f32;

use super::range_of;
use super::ranks::Ranks;
use crate::error::Result;

tealight_model::names! {
    /// The format in which gradients travel between ranks.
    pub enum Wire {
        /// As they are. The number of ranks changes no bit.
        "none" => F32,
        /// Rounded to bf16, before ranks exchange them and again after they are summed: half the volume. Results are
        /// repeatable for one number of ranks only.
        "bf16" => Bf16,
    }
}

impl Wire {
    /// Sends a part of `send` to each rank. Returns the numbers that they send to this rank, `receive_lens` numbers
    /// each.
    pub(crate) fn exchange(
        self,
        ranks: &Ranks,
        send: &[f32],
        send_parts: &[Range<usize>],
        receive_lens: &[usize],
    ) -> Result<Vec<f32>> {
        let width = self.width();
        let parts = send_parts.iter().map(|part| part.start * width..part.end * width);
        let (parts, lens) = (parts.collect::<Vec<_>>(), self.bytes(receive_lens));
        self.transfer(send, receive_lens.iter().sum(), |send, receive| {
            Ok(ranks.communicator().exchange(send, &parts, receive, &lens)?)
        })
    }

    /// The numbers that each rank sends, `lens` numbers each.
    pub(crate) fn gather(self, ranks: &Ranks, send: &[f32], lens: &[usize]) -> Result<Vec<f32>> {
        let bytes = self.bytes(lens);
        self.transfer(send, lens.iter().sum(), |send, receive| {
            receive[range_of(ranks.rank(), &bytes)].copy_from_slice(send);
            ranks.gather_in_place(receive, &bytes)
        })
    }

    /// The numbers as they arrive at other ranks.
    pub(crate) fn rounded(self, numbers: &Tensor) -> Result<Tensor> {
        Ok(numbers.to_dtype(self.dtype())?.to_dtype(DType::F32)?)
    }

    /// The format of the numbers on their way.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// The bytes of as many numbers as each of `lens`.
    pub(super) fn bytes(self, lens: &[usize]) -> Vec<usize> {
        lens.iter().map(|len| len * self.width()).collect()
    }

    /// Bytes of a number.
    fn width(self) -> usize {
        self.dtype().size_in_bytes()
    }

    /// The `n_received` numbers that `move_bytes` receives for `send`.
    fn transfer(
        self,
        send: &[f32],
        n_received: usize,
        move_bytes: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let mut numbers = unwritten_f32(n_received);
        match self {
            Self::F32 => {
                move_bytes(bytemuck::cast_slice(send), bytemuck::cast_slice_mut(&mut numbers))?;
            }
            Self::Bf16 => {
                let mut rounded = vec![bf16::ZERO; send.len()];
                rounded.convert_from_f32_slice(send);
                let mut received = vec![bf16::ZERO; n_received];
                let bytes = bytemuck::cast_slice_mut(&mut received);
                move_bytes(bytemuck::cast_slice(&rounded), bytes)?;
                received.convert_to_f32_slice(&mut numbers);
            }
        }
        Ok(numbers)
    }
}
