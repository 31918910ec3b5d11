//! How gradients travel: as they are, or rounded to bf16.

use half::bf16;
use half::slice::HalfFloatSliceExt;

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
    /// Sends `send_lens` numbers to each rank; what they send here, `receive_lens` numbers each.
    pub(crate) fn exchange(
        self,
        ranks: &Ranks,
        send: &[f32],
        send_lens: &[usize],
        receive_lens: &[usize],
    ) -> Result<Vec<f32>> {
        let bytes = |lens: &[usize]| lens.iter().map(|len| len * self.width()).collect::<Vec<_>>();
        self.transfer(send, receive_lens.iter().sum(), |send, receive| {
            let communicator = ranks.communicator();
            Ok(communicator.exchange(send, &bytes(send_lens), receive, &bytes(receive_lens))?)
        })
    }

    /// What each rank sends, `lens` numbers each.
    pub(crate) fn gather(self, ranks: &Ranks, send: &[f32], lens: &[usize]) -> Result<Vec<f32>> {
        let bytes: Vec<_> = lens.iter().map(|len| len * self.width()).collect();
        self.transfer(send, lens.iter().sum(), |send, receive| {
            Ok(ranks.communicator().gather(send, receive, &bytes)?)
        })
    }

    /// Bytes of a number.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::Bf16 => size_of::<bf16>(),
        }
    }

    /// The `n_received` numbers that `move_bytes` receives for `send`.
    fn transfer(
        self,
        send: &[f32],
        n_received: usize,
        move_bytes: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<Vec<f32>> {
        let mut numbers = vec![0.; n_received];
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
