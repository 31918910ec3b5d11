//! Products by AMX, bit for bit as a scalar program computes them. Where the processor has no AMX, its instructions are
//! emulated.

mod decoder;
mod emulator;

use pulp::bytemuck::cast_slice_mut;

use super::super::amx::{AMX, gather_strips};
use super::super::bf16::gather_panels;
use super::super::kernel::Kernel;
use super::bf16::{Order, compare, differing, near};
use super::*;
use crate::backend::simd::bf16::Bf16;

/// Blocks of the depth, and the order of sums, of AMX.
const TILES: Order = Order { block_depth: 1024, depth_unit: 32, sum: by_tiles };

/// The kernels of AMX: packing element by element runs on any processor, that of the kernel itself needs AVX-512.
fn kernels() -> Vec<Kernels<f32>> {
    if !Bf16::available().contains(&Bf16::Amx) {
        emulator::install();
    }
    let gathering = Kernel {
        pack_panels: |b, panels| gather_panels(b, cast_slice_mut(panels)),
        pack_strips: gather_strips,
        ..AMX
    };
    let packing = Bf16::available().contains(&Bf16::Avx512).then_some(AMX);
    let rounding = std::iter::once(gathering).chain(packing);
    rounding
        .map(|kernel| Kernels { exact: Kernel::new(Level::Portable), rounding: Some(kernel) })
        .collect()
}

/// Denormal numbers are zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

/// One element of a product, in the order of TDPBF16PS: of every 32 depths, padded with zeros, the even and the odd
/// ones are summed apart.
fn by_tiles(row: &[f32], column: &[f32]) -> f32 {
    let tiles = row.chunks(32).zip(column.chunks(32));
    tiles.fold(0., |sum, (row, column)| {
        let [even, odd] = [0, 1].map(|first| {
            (first..32).step_by(2).fold(0., |sum: f32, p| {
                let [a, b] = [row, column].map(|x| x.get(p).copied().unwrap_or(0.));
                flushed(a.mul_add(b, sum))
            })
        });
        flushed(sum + flushed(even + odd))
    })
}

#[test]
fn amx_rounds_and_sums_as_a_scalar_program() {
    let mut draw = Draw(21);
    for kernels in kernels() {
        for _ in 0..100 {
            let shape = [0; 3].map(|_| SIZES[1 + draw.below(SIZES.len() - 1)]);
            compare(&mut draw, &kernels, &TILES, shape.into());
        }
    }
}

#[test]
fn blocks_of_the_depth_meet_in_multiples_of_32() {
    let mut draw = Draw(22);
    for kernels in kernels() {
        for shape in [(3, 5, 2_311), (33, 31, 1_025), (229, 521, 37), (61, 37, 1_301)] {
            compare(&mut draw, &kernels, &TILES, shape);
        }
    }
}

#[test]
fn not_a_number_and_infinity_stay_in_their_row_and_column_of_tiles() {
    let (m, n, k) = (29, 67, 23);
    let mut draw = Draw(23);
    for (strides_a, strides_b) in [((k, 1), (n, 1)), ((1, m), (1, k)), ((2, 2 * m), (2, 2 * k))] {
        let mut a = GappedMatrix::<f32>::with_strides(&mut draw, (m, k), strides_a);
        let mut b = GappedMatrix::<f32>::with_strides(&mut draw, (k, n), strides_b);
        a.set(5, 22, f32::NAN);
        a.set(17, 2, f32::INFINITY);
        b.set(22, 65, f32::NAN);
        b.set(2, 6, 0.);
        let product = Product::of(a.view(), b.view()).rounded();
        for kernels in kernels() {
            let mut c = vec![0.; m * n];
            product.run(&kernels, &mut MatrixMut::new(&mut c, (m, n)).into());
            for (at, &x) in c.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let nan = i == 5 || j == 65 || (i, j) == (17, 6);
                assert_eq!(x.is_nan(), nan, "({i}, {j})");
                assert_eq!(x.is_infinite(), !nan && i == 17, "({i}, {j})");
            }
            let wrong = differing(&c, (&a, &b), &TILES, |_| 0., 1.);
            assert!(wrong.is_none(), "{wrong:?}");
        }
    }
}

#[test]
fn denormal_products_are_zero() {
    let mut draw = Draw(24);
    let [mut a, mut b] =
        [(37, 67), (67, 41)].map(|shape| GappedMatrix::<f32>::draw(&mut draw, shape));
    for x in a.data.iter_mut().chain(&mut b.data) {
        *x *= 4. * f32::MIN_POSITIVE.sqrt();
    }
    let product = Product::of(a.view(), b.view()).rounded();
    for kernels in kernels() {
        let mut c = vec![0.; 37 * 41];
        product.run(&kernels, &mut MatrixMut::new(&mut c, (37, 41)).into());
        assert!(c.contains(&0.) && c.iter().any(|x| x.is_normal()));
        let wrong = differing(&c, (&a, &b), &TILES, |_| 0., 1.);
        assert!(wrong.is_none(), "{wrong:?}");
    }
}

#[test]
fn a_product_without_depth_is_its_base() {
    let (a, b) = (Matrix::new(&[], (33, 0)), Matrix::new(&[], (0, 37)));
    for kernels in kernels() {
        let mut c = vec![f32::NAN; 33 * 37];
        let row: Vec<_> = (0_u8..37).map(f32::from).collect();
        let product = Product::of(a, b).plus_row(&row).rounded();
        product.run(&kernels, &mut MatrixMut::new(&mut c, (33, 37)).into());
        assert!(c.chunks(37).all(|c| c == row));
    }
}

#[test]
fn gaps_between_rows_are_left_alone_by_tiles() {
    let (mut draw, stride) = (Draw(25), 41);
    let (a, b) = (draw.numbers::<f32>(35 * 11), draw.numbers::<f32>(11 * 37));
    let product = Product::of(Matrix::new(&a, (35, 11)), Matrix::new(&b, (11, 37))).rounded();
    for kernels in kernels() {
        let mut c = vec![7.; 36 * stride];
        product.run(&kernels, &mut MatrixMut::strided(&mut c, (35, 37), stride).into());
        let (written, below) = c.split_at(35 * stride);
        assert!(written.chunks(stride).all(|row| row[37..] == [7.; 4] && !row[..37].contains(&7.)));
        assert!(below.iter().all(|&x| x == 7.));
    }
}

#[test]
fn the_bits_of_amx_do_not_depend_on_the_number_of_threads() {
    let mut draw = Draw(26);
    for (m, n, k) in [(131, 211, 601), (503, 53, 67), (61, 257, 1_301)] {
        for (a_strides, b_strides) in [((k, 1), (1, k)), ((1, m), (n, 1))] {
            let a = GappedMatrix::<f32>::with_strides(&mut draw, (m, k), a_strides);
            let b = GappedMatrix::<f32>::with_strides(&mut draw, (k, n), b_strides);
            let product = Product::of(a.view(), b.view()).rounded();
            for kernels in kernels() {
                let here = on_threads(1, &kernels, product, (m, n));
                for n_threads in [2, 3, 8] {
                    assert!(here == on_threads(n_threads, &kernels, product, (m, n)));
                }
            }
        }
    }
}

#[test]
fn the_reference_sums_even_and_odd_depths_apart() {
    // In any other order, 1 is lost in 2²⁵ or 2²⁵ is left over.
    let large = near(33_554_432.);
    assert_eq!(by_tiles(&[large, 1., -large, 1.], &[1.; 4]), 2.);
    assert_eq!(by_tiles(&[large, 1., 1., -large], &[1.; 4]), 0.);
}
