//! Landmarks: the means of segments of a sequence.

use candle_core::{Result, Tensor, bail};

use super::{Segments, cuda, reference};
use crate::autograd::graph::{Saved, fused};
use crate::backend::buffer::unwritten;
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{add_scaled, run};
use crate::ops::heads::{row, row_mut};

/// `x (batch, n_heads, len, head_dim)` → `(batch, n_heads, n_landmarks, head_dim)`: the means of the
/// segments; zeros for an empty segment.
///
/// ```text
/// y_i = (1 / |segment i|) Σ x_t over its positions t
/// ```
///
/// # Errors
/// If the segments belong to another length or batch size.
pub fn segment_means(x: &Tensor, segments: &Segments) -> Result<Tensor> {
    let (batch, n_heads, len, head_dim) = x.dims4()?;
    if len != segments.len || ![1, batch].contains(&segments.rows.len()) {
        bail!(
            "means of {:?} over segments of {} rows of {} positions: expected \
             (batch, n_heads, len, head_dim), and segments of 1 or batch rows of len positions",
            x.shape(),
            segments.rows.len(),
            segments.len
        )
    }
    let shape = (batch, n_heads, segments.n_landmarks(), head_dim);
    if x.elem_count() == 0 {
        return Tensor::zeros(shape, x.dtype(), x.device());
    }
    dispatch!(match [x] {
        Cpu(T) => fused("segment-means", [x], shape, Saved::Nothing, |[x]: [&[T]; 1]| {
            let means = Means { segments: segments.clone(), n_heads, head_dim };
            (means.forward(x), move |_, _, g| [means.backward(g)])
        }),
        Cuda => cuda::segment_means(x, segments),
        Reference => {
            let (rule, n_landmarks) = (segments.rule, segments.n_landmarks());
            let mask = segments.key_padding_mask.as_ref();
            widened(x, |x| reference::segment_means(x, rule, n_landmarks, mask))
        }
    })
}

/// The CPU loops: one head of one example at a time.
struct Means {
    segments: Segments,
    n_heads: usize,
    head_dim: usize,
}

impl Means {
    /// The number of elements of one head of one example, and of its landmarks.
    fn plane_lens(&self) -> (usize, usize) {
        (self.segments.len * self.head_dim, self.segments.n_landmarks() * self.head_dim)
    }

    fn forward<T: Element>(&self, x: &[T]) -> Vec<T> {
        let (plane, landmarks) = self.plane_lens();
        let mut y = unwritten(x.len() / plane * landmarks);
        run::<T, _, _>(
            x.len(),
            y.chunks_mut(landmarks).zip(x.chunks(plane)).enumerate(),
            #[inline(always)]
            |(i, (y, x))| {
                let segments = self.segments.row(i / self.n_heads).segments();
                for (y, segment) in y.chunks_exact_mut(self.head_dim).zip(segments) {
                    let scale = T::ONE / T::from_f64(segment.len().max(1) as f64);
                    y.fill(T::ZERO);
                    for &position in segment {
                        add_scaled(y, row(x, position, self.head_dim), T::ONE);
                    }
                    for y in y {
                        *y *= scale;
                    }
                }
            },
        );
        y
    }

    fn backward<T: Element>(&self, gradient: &[T]) -> Vec<T> {
        let (plane, landmarks) = self.plane_lens();
        let mut dx = unwritten(gradient.len() / landmarks * plane);
        run::<T, _, _>(
            gradient.len() / landmarks * plane,
            dx.chunks_mut(plane).zip(gradient.chunks(landmarks)).enumerate(),
            #[inline(always)]
            |(i, (dx, g))| {
                dx.fill(T::ZERO);
                let segments = self.segments.row(i / self.n_heads).segments();
                for (g, segment) in g.chunks_exact(self.head_dim).zip(segments) {
                    let scale = T::ONE / T::from_f64(segment.len().max(1) as f64);
                    for &position in segment {
                        add_scaled(row_mut(dx, position, self.head_dim), g, scale);
                    }
                }
            },
        );
        dx
    }
}
