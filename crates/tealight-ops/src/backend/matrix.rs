//! Matrices as views of slices: readable with any strides, writable with contiguous rows.

#![expect(unsafe_code, reason = "blocks of one matrix interleave in memory and are still disjoint")]

use std::marker::PhantomData;
use std::ops::Range;

/// A matrix for reading: element (i, j) is `data[i · row_stride + j · column_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Contiguous rows, without gaps between them.
    ///
    /// # Panics
    /// If `data` has too few elements.
    pub(crate) fn new(data: &'a [T], (rows, columns): (usize, usize)) -> Self {
        Self::strided(data, (rows, columns), (columns, 1))
    }

    /// With strides of (rows, columns).
    ///
    /// # Panics
    /// If `data` has too few elements.
    pub(crate) fn strided(
        data: &'a [T],
        (rows, columns): (usize, usize),
        (row_stride, column_stride): (usize, usize),
    ) -> Self {
        let span = span((rows, columns), (row_stride, column_stride));
        assert!(span <= data.len(), "a matrix of {span} elements in {}", data.len());
        Self { data: &data[..span], rows, columns, row_stride, column_stride }
    }

    /// Aᵀ
    #[must_use]
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(crate) fn column_stride(&self) -> usize {
        self.column_stride
    }

    /// Row i, whose elements are contiguous.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        debug_assert!(self.column_stride == 1 && i < self.rows);
        &self.data[i * self.row_stride..][..self.columns]
    }

    /// The slice from the first element to the last, with the gaps between rows.
    pub(crate) fn data(&self) -> &'a [T] {
        self.data
    }

    /// The rows and columns in these ranges.
    pub(crate) fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        let first = rows.start * self.row_stride + columns.start * self.column_stride;
        let shape = (rows.len(), columns.len());
        let data = self.data.get(first..).unwrap_or_default();
        Self::strided(data, shape, (self.row_stride, self.column_stride))
    }
}

/// A matrix for writing: rows of contiguous elements at a fixed distance.
///
/// It borrows the elements of its rows and not the gaps between them. It can thus be split by columns as well
/// as by rows, and each part sent to another thread.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    first: *mut T,
    rows: usize,
    columns: usize,
    row_stride: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: like a `&mut [T]`, it has exclusive access to its elements.
unsafe impl<T: Send> Send for MatrixMut<'_, T> {}

impl<'a, T> MatrixMut<'a, T> {
    /// Contiguous rows, without gaps between them.
    ///
    /// # Panics
    /// If `data` has too few elements.
    pub(crate) fn new(data: &'a mut [T], (rows, columns): (usize, usize)) -> Self {
        Self::strided(data, (rows, columns), columns)
    }

    /// Rows that start `row_stride` elements apart.
    ///
    /// # Panics
    /// If `data` has too few elements, or the rows overlap.
    pub(crate) fn strided(
        data: &'a mut [T],
        (rows, columns): (usize, usize),
        row_stride: usize,
    ) -> Self {
        let span = span((rows, columns), (row_stride, 1));
        assert!(span <= data.len(), "a matrix of {span} elements in {}", data.len());
        assert!(rows <= 1 || columns <= row_stride, "rows of {columns} every {row_stride}");
        Self { first: data.as_mut_ptr(), rows, columns, row_stride, data: PhantomData }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(crate) fn reborrow(&mut self) -> MatrixMut<'_, T> {
        MatrixMut { data: PhantomData, ..*self }
    }

    /// The address of element (i, j).
    pub(crate) fn pointer(&mut self, i: usize, j: usize) -> *mut T {
        assert!(i < self.rows && j < self.columns);
        // SAFETY: the element is within `data`, by this assertion and that of the constructor.
        unsafe { self.first.add(i * self.row_stride + j) }
    }

    /// Row i.
    #[inline(always)]
    pub(crate) fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows);
        // Rows without elements may begin beyond the end of `data`.
        let first = self.first.wrapping_add(i * self.row_stride);
        // SAFETY: the row is within `data`, or empty; and no other view has its elements while this one is borrowed.
        unsafe { std::slice::from_raw_parts_mut(first, self.columns) }
    }

    /// The first `at` rows, and the remaining ones.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub(crate) fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(at <= self.rows);
        let first = self.first.wrapping_add(at * self.row_stride);
        (Self { rows: at, ..self }, Self { first, rows: self.rows - at, ..self })
    }

    /// The first `at` columns, and the remaining ones.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub(crate) fn split_columns(self, at: usize) -> (Self, Self) {
        assert!(at <= self.columns);
        let first = self.first.wrapping_add(at);
        (Self { columns: at, ..self }, Self { first, columns: self.columns - at, ..self })
    }
}

/// The number of elements from the first of a matrix to the last.
fn span((rows, columns): (usize, usize), (row_stride, column_stride): (usize, usize)) -> usize {
    if rows == 0 || columns == 0 {
        return 0;
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((columns - 1).checked_mul(column_stride))
        .and_then(|(i, j)| i.checked_add(j)?.checked_add(1));
    last.expect("invariant: a matrix lies within memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under Miri an address beyond the elements would be undefined behaviour.
    #[test]
    fn rows_without_elements_lie_nowhere() {
        let mut data = [1., 2.];
        let mut matrix = MatrixMut::strided(&mut data, (5, 0), 3);
        assert!(matrix.row(4).is_empty());
        let (mut left, mut right) = MatrixMut::new(&mut data, (1, 2)).split_columns(2);
        assert_eq!((left.row(0), right.row(0)), (&mut [1., 2.][..], &mut [][..]));
    }
}
