//! The size of a picture, and where its patches are among the tokens.

use std::fmt;
use std::ops::Range;

use candle_core::{Result, Tensor, bail};

/// The size of all pictures of a task, which the data determine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PictureSize {
    /// Rows of pixels.
    pub height: usize,
    /// Columns of pixels.
    pub width: usize,
    /// Numbers per pixel: 1 for grey, 3 for colour.
    pub channels: usize,
}

impl PictureSize {
    /// An error unless `pictures` are `(batch, height, width, channels)` of this size.
    pub(super) fn check(&self, pictures: &Tensor) -> Result<()> {
        let (_batch, height, width, channels) = pictures.dims4()?;
        if (Self { height, width, channels }) == *self {
            return Ok(());
        }
        bail!(
            "pictures of {height} × {width} pixels with {channels} channels are given to a model of {self} with {}",
            self.channels
        )
    }
}

/// Height and width: "32 × 24 pixels".
impl fmt::Display for PictureSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} pixels", self.height, self.width)
    }
}

/// The tokens of a picture: first those that are no patches, then the patches, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Tokens before the patches: 1 with `[CLS]`, otherwise 0.
    pub n_prefix: usize,
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
}

impl Grid {
    /// Number of patches.
    pub fn n_patches(&self) -> usize {
        self.rows * self.columns
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_prefix + self.n_patches()
    }

    /// The token of the patch in this row and column; `None` outside of the picture.
    pub fn token(&self, row: usize, column: usize) -> Option<usize> {
        let is_inside = row < self.rows && column < self.columns;
        is_inside.then(|| self.n_prefix + row * self.columns + column)
    }

    /// The row and column of the patch that is this token; `None` for `[CLS]`.
    pub fn place(&self, token: usize) -> Option<(usize, usize)> {
        let patch = token.checked_sub(self.n_prefix).filter(|&patch| patch < self.n_patches())?;
        Some((patch / self.columns, patch % self.columns))
    }

    /// The tokens of the patches.
    pub fn patches(&self) -> Range<usize> {
        self.n_prefix..self.n_tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_patches_row_by_row_after_the_prefix() {
        let grid = Grid { n_prefix: 1, rows: 2, columns: 3 };
        assert_eq!((grid.n_patches(), grid.n_tokens()), (6, 7));
        assert_eq!(grid.token(0, 0), Some(1));
        assert_eq!(grid.token(1, 2), Some(6));
        assert_eq!((grid.token(2, 0), grid.token(0, 3)), (None, None));
        assert_eq!((grid.place(0), grid.place(7)), (None, None));
        for token in grid.patches() {
            let (row, column) = grid.place(token).expect("a patch");
            assert_eq!(grid.token(row, column), Some(token));
        }
    }
}
