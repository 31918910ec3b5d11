//! Products by AMX, rounded and split, bit for bit as a scalar program computes them. Where the processor has no AMX, its
//! instructions are emulated.

mod decoder;
mod emulator;

use pulp::bytemuck::cast_slice_mut;

use super::super::amx::{ROUNDED, SPLIT, gather_strips};
use super::super::kernel::Kernel;
use super::super::panels::gather_panels;
use super::bf16::{Order, compare, differing, near};
use super::*;
use crate::backend::simd::bf16::{Bf16, parts, widened};

/// The blocks of the depth and the order of sums for operands that are rounded.
static OF_ROUNDED: Order = Order {
    block_depth: 1024,
    depth_unit: 32,
    sum: |row, column| by_tiles(&[(near(row), near(column))]),
};

/// The blocks and the order of sums for operands that are split.
static OF_SPLIT: Order = Order { block_depth: 512, depth_unit: 32, sum: by_tiles_of_parts };

/// A kernel that packs element by element.
fn gathering<const PARTS: usize>(kernel: Kernel<f32>) -> Kernel<f32> {
    Kernel {
        pack_panels: |b, panels| gather_panels::<PARTS>(b, cast_slice_mut(panels)),
        pack_strips: gather_strips::<PARTS>,
        ..kernel
    }
}

/// The kernels of AMX and their orders. Kernels that pack element by element run on any processor; the packing of AMX's
/// kernels needs AVX-512.
fn kernels() -> Vec<(Kernels<f32>, &'static Order)> {
    let gathering_rounded = (with_vectors(gathering::<1>(ROUNDED)), &OF_ROUNDED);
    let mut kernels = vec![gathering_rounded, (splitting(), &OF_SPLIT)];
    if Bf16::available().contains(&Bf16::Avx512) {
        kernels.extend([(with_vectors(ROUNDED), &OF_ROUNDED), (with_vectors(SPLIT), &OF_SPLIT)]);
    }
    kernels
}

/// The kernel that splits operands, and packs them element by element.
fn splitting() -> Kernels<f32> {
    with_vectors(gathering::<3>(SPLIT))
}

/// A kernel of AMX beside one of vectors. Its instructions are emulated where the processor does not have them.
fn with_vectors(kernel: Kernel<f32>) -> Kernels<f32> {
    if !Bf16::available().contains(&Bf16::Amx) {
        emulator::install();
    }
    Kernels { vectors: Kernel::new(Level::Portable), converting: Some(kernel) }
}

/// Denormal numbers are zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

/// One element of the sum of these products, in the order of TDPBF16PS: for every 32 depths, padded with zeros, it sums
/// the even and the odd depths apart, one product after the other.
fn by_tiles(products: &[(Vec<f32>, Vec<f32>)]) -> f32 {
    let n_tiles = products[0].0.len().div_ceil(32);
    let mut sum = 0.;
    for tile in 0..n_tiles {
        for (row, column) in products {
            let [even, odd] = [0, 1].map(|first| {
                (first..32).step_by(2).fold(0., |sum: f32, p| {
                    let [a, b] = [row, column].map(|x| x.get(32 * tile + p).copied().unwrap_or(0.));
                    flushed(a.mul_add(b, sum))
                })
            });
            sum = flushed(sum + flushed(even + odd));
        }
    }
    sum
}

/// The products of the parts whose numbers add up to 2 at most, in the order of the kernel.
fn by_tiles_of_parts(row: &[f32], column: &[f32]) -> f32 {
    let part = |x: &[f32], number: usize| -> Vec<f32> {
        x.iter().map(|&x| widened(parts::<3>(x)[number])).collect()
    };
    let products = [(0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0)];
    by_tiles(&products.map(|(a, b)| (part(row, a), part(column, b))))
}

#[test]
fn amx_packs_and_sums_as_a_scalar_program() {
    let mut draw = Draw(21);
    for (kernels, order) in kernels() {
        for _ in 0..50 {
            let shape = [0; 3].map(|_| SIZES[1 + draw.below(SIZES.len() - 1)]);
            compare(&mut draw, &kernels, order, shape.into());
        }
    }
}

#[test]
fn blocks_of_the_depth_meet_in_multiples_of_32() {
    let mut draw = Draw(22);
    for (kernels, order) in kernels() {
        for shape in [(3, 5, 2_311), (33, 31, 1_025), (229, 521, 37), (61, 37, 1_301)] {
            compare(&mut draw, &kernels, order, shape);
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
        let product = Product::new(a.view(), b.view()).converted();
        for (kernels, order) in kernels() {
            let mut c = vec![0.; m * n];
            product.run(&kernels, &mut MatrixMut::new(&mut c, (m, n)).into());
            for (at, &x) in c.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                // The second part of an infinite element is not a number.
                let is_infinite = i == 17 && !std::ptr::eq(order, &raw const OF_SPLIT);
                let nan = i == 5 || j == 65 || (i, j) == (17, 6) || i == 17 && !is_infinite;
                assert_eq!(x.is_nan(), nan, "({i}, {j})");
                assert_eq!(x.is_infinite(), !nan && is_infinite, "({i}, {j})");
            }
            let wrong = differing(&c, (&a, &b), order, |_| 0., 1.);
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
    let product = Product::new(a.view(), b.view()).converted();
    for (kernels, order) in kernels() {
        let mut c = vec![0.; 37 * 41];
        product.run(&kernels, &mut MatrixMut::new(&mut c, (37, 41)).into());
        assert!(c.contains(&0.) && c.iter().any(|x| x.is_normal()));
        let wrong = differing(&c, (&a, &b), order, |_| 0., 1.);
        assert!(wrong.is_none(), "{wrong:?}");
    }
}

#[test]
fn split_operands_are_as_exact_as_fused_multiply_adds() {
    let mut draw = Draw(27);
    let split = splitting();
    let level = *Level::available().last().expect("a level");
    for (m, n, k) in [(33, 65, 32), (37, 41, 311), (32, 33, 1_301)] {
        let (a, b) = (
            GappedMatrix::<f32>::draw(&mut draw, (m, k)),
            GappedMatrix::<f32>::draw(&mut draw, (k, n)),
        );
        let product = Product::new(a.view(), b.view());
        let error = |kernels: &Kernels<f32>, product: Product<'_, f32>| {
            let mut c = vec![0.; m * n];
            product.run(kernels, &mut MatrixMut::new(&mut c, (m, n)).into());
            let errors = c.iter().enumerate().map(|(at, &x)| {
                let exact: f64 = (0..k).map(|p| a.at(at / n, p) * b.at(p, at % n)).sum();
                f64::from(x) - exact
            });
            let (squares, largest) = errors.fold((0., 0_f64), |(squares, largest), error| {
                (squares + error * error, largest.max(error.abs()))
            });
            ((squares / (m * n) as f64).sqrt(), largest)
        };
        let vectors = Kernels { vectors: Kernel::new(level), converting: None };
        let (of_vectors, of_split) = (error(&vectors, product), error(&split, product.converted()));
        assert!(of_split.0 <= of_vectors.0, "{of_split:?}, {of_vectors:?}");
        assert!(of_split.1 <= 1.5 * of_vectors.1, "{of_split:?}, {of_vectors:?}");
    }
}

#[test]
fn operands_of_large_products_only_are_split() {
    let kernels = splitting();
    let is_split = |(m, n, k)| {
        let (a, b) = (vec![0.; m * k], vec![0.; k * n]);
        let product = Product::new(Matrix::new(&a, (m, k)), Matrix::new(&b, (k, n)));
        product.converted_if_faster(&kernels).is_converted()
    };
    assert!(is_split((128, 128, 32)) && is_split((128, 129, 1_000)));
    assert!(!is_split((127, 128, 32)) && !is_split((128, 127, 32)) && !is_split((128, 128, 31)));
}

#[test]
fn a_product_without_depth_is_its_base() {
    let (a, b) = (Matrix::new(&[], (33, 0)), Matrix::new(&[], (0, 37)));
    for (kernels, _) in kernels() {
        let mut c = vec![f32::NAN; 33 * 37];
        let row: Vec<_> = (0_u8..37).map(f32::from).collect();
        let product = Product::new(a, b).plus_row(&row).converted();
        product.run(&kernels, &mut MatrixMut::new(&mut c, (33, 37)).into());
        assert!(c.chunks(37).all(|c| c == row));
    }
}

#[test]
fn gaps_between_rows_are_left_alone_by_tiles() {
    let (mut draw, stride) = (Draw(25), 41);
    let (a, b) = (draw.numbers::<f32>(35 * 11), draw.numbers::<f32>(11 * 37));
    let product = Product::new(Matrix::new(&a, (35, 11)), Matrix::new(&b, (11, 37))).converted();
    for (kernels, _) in kernels() {
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
            let product = Product::new(a.view(), b.view()).converted();
            for (kernels, _) in kernels() {
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
    let large = 33_554_432.;
    assert_eq!((OF_ROUNDED.sum)(&[large, 1., -large, 1.], &[1.; 4]), 2.);
    assert_eq!((OF_ROUNDED.sum)(&[large, 1., 1., -large], &[1.; 4]), 0.);
}
