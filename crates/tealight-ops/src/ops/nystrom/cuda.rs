//! The kernels of segment means, with one thread per element of the result.

use bytemuck::NoUninit;
use candle_core::{Result, Tensor};

use super::Segments;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source, int, long};
use crate::backend::device::tensor_of;

const KERNELS: Source = Source::new("nystrom", &[include_str!("kernel.cu")]);

/// `Segments` in `kernel.cu`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Sizes {
    len: i64,
    n_landmarks: i64,
    width: i64,
    n_heads: i32,
    n_rows: i32,
    rule: i32,
    /// The kernel's struct ends with as many bytes that nothing reads.
    padding: u32,
}

pub(super) fn segment_means(x: &Tensor, segments: &Segments) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, n_heads, len, width) = x.dims4()?;
    let n_landmarks = segments.n_landmarks();
    let on_device = |table: Vec<u32>| {
        let len = table.len();
        tensor_of(table, len, x.device())
    };
    let table = segments.table().map(on_device).transpose()?;
    let sizes = Sizes {
        len: long(len)?,
        n_landmarks: long(n_landmarks)?,
        width: long(width)?,
        n_heads: int(n_heads)?,
        n_rows: int(segments.rows.len())?,
        rule: segments.rule as i32,
        padding: 0,
    };
    let run = move |kernel, x: &Tensor, len| {
        let n = batch * n_heads * len * width;
        let mut y = Buffer::unwritten(n, x.dtype(), x.device())?;
        let launch = Launch::elementwise(&KERNELS, kernel, [x], &mut y, n)?;
        launch.read_if(table.as_ref())?.plain(sizes).run()?;
        Result::Ok(y)
    };
    let y = run("segment_means_forward", &x, n_landmarks)?;
    let y = y.value((batch, n_heads, n_landmarks, width));
    record_linear("segment means", &[&x], y, move |gradient| {
        let dx = run("segment_means_backward", gradient, len)?;
        Ok(vec![Some(dx.tensor((batch, n_heads, len, width))?)])
    })
}
