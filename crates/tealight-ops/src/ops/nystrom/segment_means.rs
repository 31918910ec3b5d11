//! Landmarks: the means of segments of a sequence.

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use super::{Segments, cuda, reference};
use crate::autograd::graph::apply1;
use crate::backend::buffer::{View, slice, stored, tensor, unwritten};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, run};

/// `x (batch, n_heads, len, head_dim)` → `(batch, n_heads, n_landmarks, head_dim)`: the means of the
/// segments, zeros of an empty one.
///
/// ```text
/// y_i = (1 / |segment i|) Σ x_t over its positions t
/// ```
///
/// # Errors
/// If the segments are of another length, or of other rows.
pub fn segment_means(x: &Tensor, segments: &Segments) -> Result<Tensor> {
    let (batch, n_heads, len, head_dim) = x.dims4()?;
    if len != segments.len() || !segments.are_of(batch) {
        bail!("means of {:?} over segments of {} positions", x.shape(), segments.len())
    }
    if x.elem_count() == 0 {
        let shape = (batch, n_heads, segments.n_landmarks(), head_dim);
        return Tensor::zeros(shape, x.dtype(), x.device());
    }
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, SegmentMeans::<f32>::over(x, segments)?),
        Backend::F64 => apply1(&x.contiguous()?, SegmentMeans::<f64>::over(x, segments)?),
        Backend::Cuda => cuda::segment_means(x, segments),
        Backend::Reference => widened(x, |x| reference::segment_means(x, segments)),
    }
}

struct SegmentMeans<T> {
    segments: Segments,
    n_heads: usize,
    head_dim: usize,
    element: PhantomData<T>,
}

impl<T: Element> SegmentMeans<T> {
    fn over(x: &Tensor, segments: &Segments) -> Result<Self> {
        let (_, n_heads, _, head_dim) = x.dims4()?;
        Ok(Self { segments: segments.clone(), n_heads, head_dim, element: PhantomData })
    }

    /// The numbers of one head of one sequence, and of its landmarks.
    fn plane_lens(&self) -> (usize, usize) {
        (self.segments.len() * self.head_dim, self.segments.n_landmarks() * self.head_dim)
    }

    fn means(&self, x: &[T]) -> Vec<T> {
        let (plane, landmarks) = self.plane_lens();
        let mut y = unwritten(x.len() / plane * landmarks);
        run(
            x.len(),
            y.chunks_mut(landmarks).zip(x.chunks(plane)).enumerate(),
            #[inline(always)]
            |(i, (y, x))| {
                let segments = self.segments.row(i / self.n_heads).segments();
                for (y, segment) in y.chunks_exact_mut(self.head_dim).zip(segments) {
                    let scale = T::ONE / T::from_f64(segment.len().max(1) as f64);
                    y.fill(T::ZERO);
                    for &position in segment {
                        let x = &x[position * self.head_dim..][..self.head_dim];
                        add_scaled(y, x, T::ONE);
                    }
                    for y in y {
                        *y *= scale;
                    }
                }
            },
        );
        y
    }

    fn gradient(&self, gradient: &[T]) -> Vec<T> {
        let (plane, landmarks) = self.plane_lens();
        let mut dx = unwritten(gradient.len() / landmarks * plane);
        run(
            gradient.len() / landmarks * plane,
            dx.chunks_mut(plane).zip(gradient.chunks(landmarks)).enumerate(),
            #[inline(always)]
            |(i, (dx, g))| {
                dx.fill(T::ZERO);
                let segments = self.segments.row(i / self.n_heads).segments();
                for (g, segment) in g.chunks_exact(self.head_dim).zip(segments) {
                    let scale = T::ONE / T::from_f64(segment.len().max(1) as f64);
                    for &position in segment {
                        let dx = &mut dx[position * self.head_dim..][..self.head_dim];
                        add_scaled(dx, g, scale);
                    }
                }
            },
        );
        dx
    }
}

impl<T: Element> CustomOp1 for SegmentMeans<T> {
    fn name(&self) -> &'static str {
        "segment-means"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, n_heads, _, head_dim) = layout.shape().dims4()?;
        let shape = (batch, n_heads, self.segments.n_landmarks(), head_dim);
        Ok(stored(self.means(slice(x, layout)?), shape))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let dx = self.gradient(&View::<T>::of(&gradient)?);
        tensor(dx, x.shape()).map(Some)
    }
}
