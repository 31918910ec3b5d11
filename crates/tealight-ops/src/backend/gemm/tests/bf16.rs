//! Products with operands rounded to bf16, bit for bit as a scalar program computes them.

use super::*;
use crate::backend::gemm::block::parts;
use crate::{ProductPrecision, with_product_precision};

/// The kernels of this processor that round.
fn rounding_kernels() -> impl Iterator<Item = (Bf16, Kernels<f32>)> {
    let kernels = |bf16| Kernels::new(Level::Avx512, Some(Conversion::Rounded(bf16)));
    Bf16::available().iter().map(move |&bf16| (bf16, kernels(bf16)))
}

/// How a kernel sums an element of a product.
pub(super) struct Order {
    /// The greatest depth of a block.
    pub(super) block_depth: usize,
    pub(super) depth_unit: usize,
    /// The sum over a block, of a row of A and a column of B before they are converted.
    pub(super) sum: fn(&[f32], &[f32]) -> f32,
}

const PAIRS: Order = Order { block_depth: 1024, depth_unit: 2, sum: by_pairs };

/// The nearest bf16 of each, as f32.
pub(super) fn near(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| widened(rounded(x))).collect()
}

/// One element of a product, in the order of VDPBF16PS: of each pair the second product is added first.
fn by_pairs(row: &[f32], column: &[f32]) -> f32 {
    let [row, column] = [row, column].map(near);
    let pairs = row.chunks(2).zip(column.chunks(2));
    pairs.fold(0., |sum, (a, b)| {
        let odd = if a.len() == 2 { a[1].mul_add(b[1], sum) } else { sum };
        a[0].mul_add(b[0], odd)
    })
}

impl Order {
    /// Element (i, j) of A B, block by block of the depth.
    fn expected(
        &self,
        (a, b): (&GappedMatrix<f32>, &GappedMatrix<f32>),
        (i, j): (usize, usize),
        (base, scale): (f32, f32),
    ) -> f32 {
        parts(a.shape.1, self.block_depth, self.depth_unit).fold(base, |base, block| {
            let row: Vec<_> = block.clone().map(|p| a.at(i, p) as f32).collect();
            let column: Vec<_> = block.map(|p| b.at(p, j) as f32).collect();
            (self.sum)(&row, &column).mul_add(scale, base)
        })
    }
}

/// The first element of C that differs from base + scale · A B, with the expected number; `None` if all agree.
pub(super) fn differing(
    c: &[f32],
    (a, b): (&GappedMatrix<f32>, &GappedMatrix<f32>),
    order: &Order,
    base: impl Fn(usize) -> f32,
    scale: f32,
) -> Option<String> {
    let n = b.shape.1;
    c.iter().enumerate().find_map(|(at, &c)| {
        let (i, j) = (at / n, at % n);
        let expected = order.expected((a, b), (i, j), (base(at), scale));
        let is_same = c.to_bits() == expected.to_bits() || c.is_nan() && expected.is_nan();
        (!is_same).then(|| format!("{c} for {expected} at ({i}, {j}) of {:?}, {n}", a.shape))
    })
}

#[test]
fn avx512_rounds_and_sums_as_a_scalar_program() {
    let mut draw = Draw(11);
    for (_, kernels) in rounding_kernels().filter(|(bf16, _)| *bf16 == Bf16::Avx512) {
        for _ in 0..200 {
            let shape = [0; 3].map(|_| SIZES[1 + draw.below(SIZES.len() - 1)]);
            compare(&mut draw, &kernels, &PAIRS, shape.into());
        }
        compare(&mut draw, &kernels, &PAIRS, (3, 5, 2_311));
        compare(&mut draw, &kernels, &PAIRS, (229, 521, 37));
    }
}

/// Compares one random product, with every base, to a scalar program with this order of sums.
pub(super) fn compare(
    draw: &mut Draw,
    kernels: &Kernels<f32>,
    order: &Order,
    (m, n, k): (usize, usize, usize),
) {
    let (a, b) = (GappedMatrix::<f32>::draw(draw, (m, k)), GappedMatrix::<f32>::draw(draw, (k, n)));
    let scale: f32 = draw.number();
    let row = draw.numbers::<f32>(n);
    let before = draw.numbers::<f32>(m * n);
    let product = Product::new(a.view(), b.view()).scaled(scale).converted();
    for (product, base) in [(product, 0), (product.accumulated(), 1), (product.plus_row(&row), 2)] {
        let mut c = before.clone();
        product.run(kernels, &mut MatrixMut::new(&mut c, (m, n)).into());
        let base = |at: usize| [0., before[at], row[at % n]][base];
        let wrong = differing(&c, (&a, &b), order, base, scale);
        assert!(wrong.is_none(), "{wrong:?} × {k}");
    }
}

#[test]
fn rounding_is_to_nearest_even_and_denormals_are_zero() {
    let bits = |bits: u32| rounded(f32::from_bits(bits));
    assert_eq!(bits(0x3f80_7fff), 0x3f80);
    assert_eq!(bits(0x3f80_8000), 0x3f80);
    assert_eq!(bits(0x3f80_8001), 0x3f81);
    assert_eq!(bits(0x3f81_8000), 0x3f82);
    assert_eq!(bits(0x7f7f_ffff), 0x7f80);
    assert_eq!(bits(0x807f_ffff), 0x8000);
    assert!(f32::from_bits(u32::from(bits(0x7f80_0001)) << 16).is_nan());
}

#[test]
fn the_bits_of_rounded_products_do_not_depend_on_the_number_of_threads() {
    let mut draw = Draw(12);
    for (m, n, k) in [(307, 211, 601), (2_003, 53, 67), (61, 1_009, 1_301)] {
        for (a_strides, b_strides) in [((k, 1), (1, k)), ((1, m), (n, 1))] {
            let a = GappedMatrix::<f32>::with_strides(&mut draw, (m, k), a_strides);
            let b = GappedMatrix::<f32>::with_strides(&mut draw, (k, n), b_strides);
            let product = Product::new(a.view(), b.view()).converted();
            for (_, kernels) in rounding_kernels() {
                let here = on_threads(1, &kernels, product, (m, n));
                for n_threads in [2, 3, 8] {
                    assert!(here == on_threads(n_threads, &kernels, product, (m, n)));
                }
            }
        }
    }
}

#[test]
fn only_large_products_are_rounded_and_only_where_that_is_asked_for() {
    let stored = |precision, (m, n, k): (usize, usize, usize)| {
        let mut draw = Draw(13);
        let (a, b) = (draw.numbers::<f32>(m * k), draw.numbers::<f32>(k * n));
        let mut c = vec![f32::NAN; m * n];
        let product = Product::new(Matrix::new(&a, (m, k)), Matrix::new(&b, (k, n)));
        let store = || store_all(vec![(product, MatrixMut::new(&mut c, (m, n)).into())]);
        with_product_precision(precision, store);
        c
    };
    let differs =
        |shape| stored(ProductPrecision::Bf16, shape) != stored(ProductPrecision::F32, shape);
    assert!(!differs((31, 64, 64)) && !differs((64, 31, 64)) && !differs((64, 64, 31)));
    assert_eq!(differs((32, 32, 32)), Bf16::current().is_some());
    assert!(
        stored(ProductPrecision::Tf32, (64, 64, 64)) == stored(ProductPrecision::F32, (64, 64, 64))
    );
}
