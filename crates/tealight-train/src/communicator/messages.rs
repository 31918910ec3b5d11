//! A transport whose collective calls are messages between pairs of ranks, all under way at once. NCCL has such
//! messages between GPUs.

use std::fmt;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::transport::Transport;
use super::wire::Wire;
use crate::error::Result;

/// The part of a tensor that a rank sends to another rank, or receives from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) peer: usize,
    /// Elements of the tensor that is sent or received.
    pub(crate) range: Range<usize>,
}

/// The messages of a rank in one call. A rank may send to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Messages {
    pub(crate) sent: Vec<Message>,
    pub(crate) received: Vec<Message>,
    /// Elements that are received.
    pub(crate) receive_len: usize,
}

impl Messages {
    /// The messages of [`Transport::exchange`].
    fn new(send_parts: impl Iterator<Item = Range<usize>>, receive_lens: &[usize]) -> Self {
        let mut receive_len = 0;
        let received = receive_lens.iter().map(|len| {
            receive_len += len;
            receive_len - len..receive_len
        });
        let messages = |(peer, range)| Message { peer, range };
        let is_there = |message: &Message| !message.range.is_empty();
        let received = received.enumerate().map(messages).filter(is_there).collect();
        let sent = send_parts.enumerate().map(messages).filter(is_there).collect();
        Self { sent, received, receive_len }
    }
}

/// Sends and receives messages.
pub(crate) trait PointToPoint: fmt::Debug + Send + Sync {
    /// The device of the tensors.
    fn device(&self) -> &Device;

    /// Sends the parts of `send` and returns what is received, in the dtype of `send`. No message waits for another.
    fn run(&self, send: &Tensor, messages: &Messages) -> Result<Tensor>;
}

/// A transport by messages.
#[derive(Debug)]
pub(crate) struct ByMessages<P>(pub(crate) P);

impl<P: PointToPoint> ByMessages<P> {
    fn run(&self, wire: Wire, send: &Tensor, messages: &Messages) -> Result<Tensor> {
        let received = self.0.run(&send.to_dtype(wire.dtype())?, messages)?;
        Ok(received.to_dtype(DType::F32)?)
    }
}

impl<P: PointToPoint> Transport for ByMessages<P> {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn exchange(
        &self,
        wire: Wire,
        send: &Tensor,
        send_parts: &[Range<usize>],
        receive_lens: &[usize],
    ) -> Result<Tensor> {
        self.run(wire, send, &Messages::new(send_parts.iter().cloned(), receive_lens))
    }

    fn gather(&self, wire: Wire, send: &Tensor, lens: &[usize]) -> Result<Tensor> {
        let to_all = lens.iter().map(|_| 0..send.elem_count());
        self.run(wire, send, &Messages::new(to_all, lens))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use half::bf16;

    use super::*;
    use crate::communicator::ranks::Ranks;

    /// Messages of tensors on the CPU, carried by a communicator.
    #[derive(Debug)]
    pub(crate) struct Carried(pub(crate) Ranks);

    impl PointToPoint for Carried {
        fn device(&self) -> &Device {
            &Device::Cpu
        }

        fn run(&self, send: &Tensor, messages: &Messages) -> Result<Tensor> {
            let width = send.dtype().size_in_bytes();
            let bytes: Vec<u8> = match send.dtype() {
                DType::BF16 => bytemuck::cast_slice(&send.to_vec1::<bf16>()?).to_vec(),
                _ => bytemuck::cast_slice(&send.to_vec1::<f32>()?).to_vec(),
            };
            let (mut to, mut from) = (vec![0..0; self.0.size()], vec![0; self.0.size()]);
            for Message { peer, range } in &messages.sent {
                to[*peer] = range.start * width..range.end * width;
            }
            for Message { peer, range } in &messages.received {
                from[*peer] = range.len() * width;
            }
            let mut received = vec![0; messages.receive_len * width];
            self.0.communicator().exchange(&bytes, &to, &mut received, &from)?;
            let shape = [messages.receive_len];
            Ok(Tensor::from_raw_buffer(&received, send.dtype(), &shape, &Device::Cpu)?)
        }
    }

    #[test]
    fn a_call_is_a_message_to_and_from_each_rank_that_has_a_part() {
        let message = |peer, range| Message { peer, range };
        let messages = Messages::new([0..3, 0..0, 3..5].into_iter(), &[0, 4, 7]);
        assert_eq!(messages.sent, [message(0, 0..3), message(2, 3..5)]);
        assert_eq!(messages.received, [message(1, 0..4), message(2, 4..11)]);
        assert_eq!(messages.receive_len, 11);
    }
}
