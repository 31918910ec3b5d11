//! Kernels for the rows by id, and for the gradient of the table: a counting sort of the positions, then one block for
//! each row of the table, so that no two threads add to the same element.

use candle_core::{DType, Result, Shape, Tensor};

use super::NAME;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("embedding", &[include_str!("kernel.cu")]);

/// `ids` are of any integer dtype. An id outside the table gives NaN: checking it on the host would synchronise with
/// the device.
pub(super) fn look_up(table: &Tensor, ids: &Tensor, padding: Option<u32>) -> Result<Tensor> {
    let (vocab_size, width) = table.dims2()?;
    let shape = Shape::from([ids.dims(), &[width]].concat());
    let (table, ids) = (table.contiguous()?, ids.to_dtype(DType::I64)?.contiguous()?);
    let total = shape.elem_count();
    let mut y = Buffer::unwritten(total, table.dtype(), table.device())?;
    Launch::packwise(&KERNELS, "gather", [&table, &ids], &mut y, total)?
        .sizes([width, vocab_size])
        .run()?;
    record_saving(NAME, &[&table], y.value(shape), Saved::Nothing, move |_, _, gradient| {
        let sizes = [vocab_size, width];
        Ok(vec![Some(scatter_add(gradient, &ids, padding, sizes)?)])
    })
}

/// The gradient of the table.
fn scatter_add(
    gradient: &Tensor,
    ids: &Tensor,
    padding: Option<u32>,
    [vocab_size, width]: [usize; 2],
) -> Result<Tensor> {
    let (n, device) = (ids.elem_count(), ids.device());
    let words = |len| Buffer::unwritten(len, DType::U32, device);
    let mut counts = Buffer::zeros(vocab_size, DType::U32, device)?;
    let (mut begins, mut next) = (words(vocab_size + 1)?, words(vocab_size)?);
    let (mut positions, mut sorted) = (words(n)?, words(n)?);
    let launch = |kernel| Launch::new(&KERNELS, kernel, gradient);
    launch("count_ids")?.over(n).read(ids)?.write(&mut counts)?.sizes([n, vocab_size]).run()?;
    launch("begin_ids")?
        .grid([1; 3], 1024)
        .read_buffer(&counts)?
        .writes([&mut begins, &mut next])?
        .size(vocab_size)
        .run()?;
    launch("place_ids")?
        .over(n)
        .read(ids)?
        .writes([&mut next, &mut positions])?
        .sizes([n, vocab_size])
        .run()?;
    launch("sort_ids")?
        .over(n)
        .read(ids)?
        .read_buffers([&begins, &positions])?
        .write(&mut sorted)?
        .sizes([n, vocab_size])
        .run()?;
    let mut dtable = Buffer::unwritten(vocab_size * width, gradient.dtype(), device)?;
    launch("scatter_add")?
        // Where an id has one position or none, few threads of a block have work.
        .grid([vocab_size, 1, 1], if n > vocab_size { 512 } else { 128 })
        .read(gradient)?
        .read_buffers([&begins, &sorted])?
        .write(&mut dtable)?
        .size(width)
        .long(padding.map_or(-1, i64::from))
        .run()?;
    dtable.tensor((vocab_size, width))
}
