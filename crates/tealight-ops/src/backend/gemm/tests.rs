use super::*;
use crate::backend::threads;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bf16;

/// Zero, and sizes at and near those of tiles and blocks.
const SIZES: &[usize] = &[0, 1, 2, 3, 7, 13, 17, 31, 33, 65, 131, 263];
/// Those for an interpreter, which takes seconds for the larger ones.
const SMALL_SIZES: &[usize] = &[0, 1, 2, 7, 13, 17];

/// Deterministic pseudo-random numbers.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// In −1 .. 1.
    fn number<T: Float>(&mut self) -> T {
        T::from_f64(self.next() as f64 / f64::from(1_u32 << 30) - 1.)
    }

    fn numbers<T: Float>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| self.number()).collect()
    }
}

trait Float: Lanes {
    const EPSILON: f64;
}

impl Float for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
}

impl Float for f64 {
    const EPSILON: f64 = f64::EPSILON;
}

/// A matrix whose gaps between rows or columns are NaN.
struct GappedMatrix<T> {
    data: Vec<T>,
    shape: (usize, usize),
    strides: (usize, usize),
}

impl<T: Float> GappedMatrix<T> {
    /// Row-major, column-major, or neither; with or without a gap.
    fn draw(draw: &mut Draw, shape: (usize, usize)) -> Self {
        let gap = [0, 0, 3, 70][draw.below(4)];
        let (rows, columns) = shape;
        let strides = match draw.below(5) {
            0 | 1 => (columns + gap, 1),
            2 | 3 => (1, rows + gap),
            _ => (2, 2 * rows + gap + 1),
        };
        Self::with_strides(draw, shape, strides)
    }

    fn with_strides(draw: &mut Draw, shape: (usize, usize), strides: (usize, usize)) -> Self {
        let mut data = vec![T::from_f64(f64::NAN); shape.0 * strides.0 + shape.1 * strides.1];
        for i in 0..shape.0 {
            for j in 0..shape.1 {
                data[i * strides.0 + j * strides.1] = draw.number();
            }
        }
        Self { data, shape, strides }
    }

    fn view(&self) -> Matrix<'_, T> {
        Matrix::strided(&self.data, self.shape, self.strides)
    }

    fn set(&mut self, i: usize, j: usize, x: T) {
        self.data[i * self.strides.0 + j * self.strides.1] = x;
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.data[i * self.strides.0 + j * self.strides.1].widen()
    }
}

fn kernels<T: Lanes>() -> impl Iterator<Item = Kernels<T>> {
    Level::available().iter().map(|&level| Kernels::new(level, None))
}

/// Compares one random product, with every base and kernel, to its definition in f64.
fn compare<T: Float>(draw: &mut Draw, (m, n, k): (usize, usize, usize)) {
    let (a, b) = (GappedMatrix::<T>::draw(draw, (m, k)), GappedMatrix::<T>::draw(draw, (k, n)));
    let scale: T = draw.number();
    let row = draw.numbers::<T>(n);
    let stride = n + draw.below(2) * 5;
    let before = draw.numbers::<T>(m * stride);
    let product = Product::new(a.view(), b.view()).scaled(scale);
    for (product, base) in [(product, 0), (product.accumulated(), 1), (product.plus_row(&row), 2)] {
        for kernels in kernels() {
            let mut c = before.clone();
            if base != 1 {
                c.fill(T::from_f64(f64::NAN));
            }
            product.run(&kernels, &mut MatrixMut::strided(&mut c, (m, n), stride).into());
            for i in 0..m {
                for j in 0..n {
                    let base = [0., before[i * stride + j].widen(), row[j].widen()][base];
                    let terms = (0..k).map(|p| a.at(i, p) * b.at(p, j) * scale.widen());
                    let (sum, size) =
                        terms.fold((base, base.abs()), |(sum, size), x| (sum + x, size + x.abs()));
                    let error = (c[i * stride + j].widen() - sum).abs();
                    let bound = (k + 2) as f64 * T::EPSILON * size;
                    assert!(error <= bound, "{m} × {n} × {k} at ({i}, {j}): off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn every_shape_and_layout_is_multiplied() {
    let mut draw = Draw(1);
    let (n, sizes) = if cfg!(miri) { (7, SMALL_SIZES) } else { (300, SIZES) };
    for _ in 0..n {
        let shape = [0; 3].map(|_| sizes[draw.below(sizes.len())]);
        compare::<f32>(&mut draw, shape.into());
        compare::<f64>(&mut draw, shape.into());
    }
}

#[test]
fn blocks_meet_without_gap() {
    let mut draw = Draw(2);
    for shape in [(5, 7, 1_301), (3, 1_201, 19), (1_201, 3, 19), (229, 37, 601), (31, 521, 523)] {
        compare::<f32>(&mut draw, shape);
    }
    compare::<f64>(&mut draw, (5, 523, 1_301));
}

#[test]
fn gaps_between_rows_are_left_alone() {
    let (mut draw, stride) = (Draw(3), 41);
    let (a, b) = (draw.numbers::<f32>(19 * 11), draw.numbers::<f32>(11 * 37));
    for kernels in kernels() {
        let mut c = vec![7.; 19 * stride];
        Product::new(Matrix::new(&a, (19, 11)), Matrix::new(&b, (11, 37)))
            .run(&kernels, &mut MatrixMut::strided(&mut c, (19, 37), stride).into());
        assert!(c.chunks(stride).all(|row| row[37..] == [7.; 4]));
    }
}

#[test]
fn not_a_number_and_infinity_stay_in_their_row_and_column() {
    let (m, n, k) = (29, 67, 23);
    let mut draw = Draw(4);
    let (mut a, mut b) = (draw.numbers::<f32>(m * k), draw.numbers::<f32>(k * n));
    a[5 * k + 3] = f32::NAN;
    a[17 * k + 2] = f32::INFINITY;
    b[4 * n + 65] = f32::NAN;
    b[2 * n + 6] = 0.;
    for kernels in kernels() {
        let mut c = vec![0.; m * n];
        Product::new(Matrix::new(&a, (m, k)), Matrix::new(&b, (k, n)))
            .run(&kernels, &mut MatrixMut::new(&mut c, (m, n)).into());
        for i in 0..m {
            for j in 0..n {
                let x = c[i * n + j];
                let nan = i == 5 || j == 65 || (i, j) == (17, 6);
                assert_eq!(x.is_nan(), nan, "({i}, {j})");
                assert_eq!(x.is_infinite(), !nan && i == 17, "({i}, {j})");
            }
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let mut draw = Draw(5);
    for (m, n, k) in [(307, 211, 601), (31, 1_201, 97), (2_003, 53, 67), (7, 1_009, 83)] {
        for (a_strides, b_strides) in [((k, 1), (1, k)), ((1, m), (n, 1))] {
            let a = GappedMatrix::<f32>::with_strides(&mut draw, (m, k), a_strides);
            let b = GappedMatrix::<f32>::with_strides(&mut draw, (k, n), b_strides);
            let product = Product::new(a.view(), b.view());
            for kernels in kernels() {
                let here = on_threads(1, &kernels, product, (m, n));
                assert!(here == on_threads(2, &kernels, product, (m, n)));
                assert!(here == on_threads(5, &kernels, product, (m, n)));
            }
        }
    }
}

fn on_threads(
    n_threads: usize,
    kernels: &Kernels<f32>,
    product: Product<'_, f32>,
    (m, n): (usize, usize),
) -> Vec<f32> {
    let mut c = vec![f32::NAN; m * n];
    let task = (product, MatrixMut::new(&mut c, (m, n)).into());
    threads::with(n_threads, || share::run_all(kernels, vec![task]));
    c
}

#[test]
fn heads_of_a_packed_tensor_are_multiplied_where_they_are() {
    let (batch, seq_len, n_heads, head_dim) = (5, 31, 3, 11);
    let width = n_heads * head_dim;
    let mut draw = Draw(6);
    let [query, key] = [0; 2].map(|_| draw.numbers::<f32>(batch * seq_len * width));
    let mut output = vec![f32::NAN; batch * seq_len * width];
    let mut products = Vec::new();
    for (i, example) in output.chunks_mut(seq_len * width).enumerate() {
        let mut rest = MatrixMut::new(example, (seq_len, width));
        for h in 0..n_heads {
            let (c, right) = rest.split_columns(head_dim);
            rest = right;
            let start = i * seq_len * width + h * head_dim;
            let [q, k] = [&query, &key]
                .map(|x| Matrix::strided(&x[start..], (seq_len, head_dim), (width, 1)));
            let product = Product::new(q.block(0..seq_len, 0..2), k.block(0..2, 0..head_dim));
            products.push((product, c.into()));
        }
    }
    store_all(products);
    for i in 0..batch * seq_len {
        for j in 0..width {
            let (first, head) = (i / seq_len * seq_len, j / head_dim * head_dim);
            let term = |p: usize| query[i * width + head + p] * key[(first + p) * width + j];
            let error = (output[i * width + j] - term(0) - term(1)).abs();
            assert!(error < 4. * f32::EPSILON, "({i}, {j}) is off by {error:e}");
        }
    }
}

#[test]
fn finish_sees_every_element_once_and_complete() {
    let (m, n, k) = (307, 211, 601);
    let mut draw = Draw(7);
    let (a, b) = (draw.numbers::<f32>(m * k), draw.numbers::<f32>(k * n));
    let product = Product::new(Matrix::new(&a, (m, k)), Matrix::new(&b, (k, n)));
    let [mut plain, mut finished] = [0; 2].map(|_| vec![f32::NAN; m * n]);
    store_all(vec![(product, MatrixMut::new(&mut plain, (m, n)).into())]);
    let mut beside = vec![2.; m * n];
    let add_place = |(i, j): (usize, usize), row: &mut [f32], beside: &mut [f32]| {
        for ((j, x), beside) in (j..).zip(row).zip(beside) {
            *x += (i * n + j) as f32;
            *beside *= *x;
        }
    };
    let place = MatrixMut::new(&mut finished, (m, n));
    let target = Target::beside(place, MatrixMut::new(&mut beside, (m, n)));
    store_all(vec![(product.then(&add_place), target)]);
    for (i, (plain, finished)) in plain.iter().zip(&finished).enumerate() {
        assert_eq!(plain + i as f32, *finished);
        assert_eq!(2. * finished, beside[i]);
    }
}

#[test]
fn what_is_summed_over_many_rows_is_the_same_on_any_number_of_threads() {
    let (rows, m, n) = (1_301, 45, 37);
    let mut draw = Draw(9);
    let [g, x] = [m, n].map(|width| draw.numbers::<f32>(rows * width));
    let (of_g, of_x) = (Matrix::new(&g, (rows, m)), Matrix::new(&x, (rows, n)));
    for kernels in kernels() {
        let on = |n_threads| {
            let weight = Product::new(of_g.transposed(), of_x);
            let weight = on_threads(n_threads, &kernels, weight, (m, n));
            let bias = Product::sum_of_rows(of_g);
            (weight, on_threads(n_threads, &kernels, bias, (1, m)))
        };
        let here = on(1);
        assert!(here == on(2) && here == on(5));
        let sum = |f: &dyn Fn(usize) -> f32| (0..rows).map(|p| f64::from(f(p))).sum::<f64>();
        for i in 0..m {
            let error = f64::from(here.1[i]) - sum(&|p| g[p * m + i]);
            assert!(error.abs() < 1e-4, "the sum of column {i} is off by {error:e}");
            for j in 0..n {
                let error = f64::from(here.0[i * n + j]) - sum(&|p| g[p * m + i] * x[p * n + j]);
                assert!(error.abs() < 1e-4, "({i}, {j}) is off by {error:e}");
            }
        }
    }
}

#[test]
fn a_sum_of_products_is_that_of_its_parts() {
    let mut draw = Draw(8);
    for (m, n, depths) in [(307, 211, [601, 7, 130]), (5, 37, [3, 600, 1]), (61, 1, [1, 2, 3])] {
        let factors = depths.map(|k| (draw.numbers::<f32>(m * k), draw.numbers::<f32>(k * n)));
        let factors: Vec<_> = factors
            .iter()
            .zip(depths)
            .map(|((a, b), k)| (Matrix::new(a, (m, k)), Matrix::new(b, (k, n))))
            .collect();
        let double = |_: (usize, usize), row: &mut [f32], _: &mut [f32]| {
            for x in row {
                *x *= 2.;
            }
        };
        let sum = Product::sum(&factors).then(&double);
        for kernels in kernels() {
            let here = on_threads(1, &kernels, sum, (m, n));
            assert!(here == on_threads(3, &kernels, sum, (m, n)));
            let mut expected = vec![0.; m * n];
            for &(a, b) in &factors {
                let one = on_threads(1, &kernels, Product::new(a, b), (m, n));
                expected.iter_mut().zip(one).for_each(|(sum, x)| *sum += 2. * x);
            }
            for (x, expected) in here.iter().zip(expected) {
                assert!((x - expected).abs() < 1e-4, "{x} for {expected}");
            }
        }
    }
}

#[test]
fn tasks_cover_the_matrix_once() {
    for (m, n, n_tasks) in [(1, 1, 5), (1, 999, 7), (1_000, 3, 9), (613, 8_191, 32), (768, 512, 13)]
    {
        let (a, b) = (vec![0.; m], vec![0.; n]);
        let product = Product::new(Matrix::new(&a, (m, 1)), Matrix::new(&b, (1, n))).accumulated();
        let mut c = vec![0_f32; m * n];
        let tasks = product.cut((32, 4), n_tasks, MatrixMut::new(&mut c, (m, n)).into());
        assert!(tasks.len() <= 2 * n_tasks, "{} of {n_tasks} tasks", tasks.len());
        for (_, Target { c: mut block, .. }) in tasks {
            (0..block.rows()).for_each(|i| block.row(i).iter_mut().for_each(|x| *x += 1.));
        }
        assert!(c.iter().all(|&x| x == 1.));
    }
}

#[test]
#[should_panic(expected = "the columns of A and the rows of B")]
fn shapes_must_agree() {
    Product::new(Matrix::new(&[0_f32; 6], (2, 3)), Matrix::new(&[0_f32; 6], (2, 3)));
}

#[test]
#[should_panic(expected = "a matrix of 6 elements in 5")]
fn a_matrix_lies_within_its_data() {
    let _ = Matrix::new(&[0_f32; 5], (2, 3));
}
