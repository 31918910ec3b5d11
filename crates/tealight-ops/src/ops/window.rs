//! Square windows that slide over a picture.

use std::ops::Range;

use candle_core::{Result, bail};

/// A square window that slides over a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of the window.
    pub size: usize,
    /// Rows or columns from one window to the next.
    pub stride: usize,
    /// Rows and columns outside of the picture, on each side.
    pub padding: usize,
}

impl Window {
    /// The number of windows along an axis of `len` pixels; windows that would leave the padded picture do not count.
    ///
    /// # Errors
    /// If the size or the stride is 0, if the window is larger than the padded axis, or if the padding is as large as
    /// the window, so that one could lie outside of the picture.
    pub fn count(&self, len: usize) -> Result<usize> {
        let Self { size, stride, padding } = *self;
        let room = (len + 2 * padding).checked_sub(size);
        match room {
            Some(room) if stride > 0 && size > padding && len > 0 => Ok(room / stride + 1),
            _ => bail!(
                "{self:?} on {len} pixels: expected padding < size ≤ pixels + 2 padding, and a \
                 stride and pixels above 0"
            ),
        }
    }

    /// The places of window `i` that lie within an axis of `len` pixels, and the pixel of the first of them.
    #[inline(always)]
    pub(crate) fn inside(&self, i: usize, len: usize) -> (Range<usize>, usize) {
        let start = i * self.stride; // In the padded axis.
        let first = self.padding.saturating_sub(start).min(self.size);
        let end = (len + self.padding).saturating_sub(start).min(self.size).max(first);
        (first..end, (start + first).saturating_sub(self.padding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_they_are_listed() -> Result<()> {
        for (size, stride, padding) in [(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 3, 0), (4, 2, 3)] {
            let window = Window { size, stride, padding };
            for len in 5_usize..13 {
                let starts: Vec<usize> = (0..=len + 2 * padding - size).step_by(stride).collect();
                assert_eq!(window.count(len)?, starts.len(), "{window:?} on {len}");
                for (i, start) in starts.into_iter().enumerate() {
                    let is_inside = |j: &usize| (padding..padding + len).contains(&(start + j));
                    let places: Vec<usize> = (0..size).filter(is_inside).collect();
                    let (range, pixel) = window.inside(i, len);
                    assert_eq!(
                        range.clone().collect::<Vec<_>>(),
                        places,
                        "{window:?} on {len}: {i}"
                    );
                    assert_eq!(pixel + padding, start + range.start);
                }
            }
        }
        assert!(Window { size: 3, stride: 1, padding: 0 }.count(2).is_err());
        assert!(Window { size: 3, stride: 0, padding: 0 }.count(5).is_err());
        assert!(Window { size: 3, stride: 1, padding: 3 }.count(5).is_err());
        Ok(())
    }
}
