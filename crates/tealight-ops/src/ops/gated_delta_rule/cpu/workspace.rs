//! The matrices of one chunk, and the steps of the forward pass.

use super::super::inputs::EraseKind;
use super::heads::Head;
use super::{Chunk, Rule, solve};
use crate::backend::element::Element;
use crate::backend::gemm::{Product, SerialProducts};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;

/// Tokens whose decays are relative to those of the first of them, if each feature has its decay.
pub(super) const BLOCK: usize = 16;

/// Memory for a block of tokens and those before it.
pub(super) struct Block<T> {
    /// [q_i e^(G_i − G_a); e_i e^(G_i − G_a)], `(2·BLOCK, n_features)`
    pub(super) left: Vec<T>,
    /// e^(G_i − G_a), `(BLOCK, n_features)`
    pub(super) rows: Vec<T>,
    /// [b_j; k_j] e^(G_a − G_j), `(right·end, n_features)` for the tokens up to the end of the block
    pub(super) key: Vec<T>,
    /// e^(G_a − G_j), `(end, n_features)`
    pub(super) columns: Vec<T>,
    /// A product, `(BLOCK, n_features)` or `(end, n_features)`.
    pub(super) product: Vec<T>,
    /// D_ij, `(n_features)`
    pub(super) decay: Vec<T>,
    /// D_ij ⊙ k_j, `(n_features)`
    pub(super) pair: Vec<T>,
}

impl<T: Element> Block<T> {
    /// For chunks of at most `longest` tokens.
    fn new(longest: usize, n_features: usize, right: usize) -> Self {
        let zeros = |rows: usize| vec![T::ZERO; rows * n_features];
        let block = BLOCK.min(longest);
        Self {
            left: zeros(2 * block),
            rows: zeros(block),
            key: zeros(right * longest),
            columns: zeros(longest),
            product: zeros(longest),
            decay: zeros(1),
            pair: zeros(1),
        }
    }
}

/// The matrices of a chunk of `len` tokens; rows and columns beyond it are left over from longer chunks.
///
/// Two matrices in one are stacked: Q above E, B above K, X above U. Without erasing there is no E; where b is k, there
/// are neither B nor X.
pub(super) struct Workspace<'a, T: 'static> {
    pub(super) products: &'a SerialProducts<T>,
    pub(super) erase: EraseKind,
    pub(super) decays_features: bool,
    pub(super) n_features: usize,
    pub(super) width: usize,
    pub(super) len: usize,
    /// The number of stacked matrices: 2, or 1 without erasing.
    pub(super) stack: usize,
    /// The number of matrices of keys: 2, or 1 where b is k.
    pub(super) right: usize,
    /// Factors of a token: one, or one for each feature.
    pub(super) n_logs: usize,
    /// [Q; E], `(stack·len, n_features)`
    pub(super) left: Vec<T>,
    /// [B; K], `(right·len, n_features)`
    pub(super) key: Vec<T>,
    /// [Q; E] [B; K]ᵀ, `(stack·len, right·len)`, if there is one decay for all features
    pub(super) scores: Vec<T>,
    /// G, `(len, n_logs)`
    pub(super) logs: Vec<f64>,
    /// γ, `(len, n_logs)`
    pub(super) gamma: Vec<T>,
    /// e^(G_C − G_j), `(len, n_logs)`
    pub(super) tail: Vec<T>,
    /// [γ ⊙ Q; −γ ⊙ E], `(stack·len, n_features)`
    pub(super) faded: Vec<T>,
    /// [B̂; K̂], `(right·len, n_features)`
    pub(super) late: Vec<T>,
    /// [P; −A], `(stack·len, right·len)`
    pub(super) pairs: Vec<T>,
    /// D of one decay for all features, `(len, len)`
    pub(super) decays: Vec<T>,
    /// U, then Ũ, `(len, width)`, or [X; U], `(2·len, width)`
    pub(super) update: Vec<T>,
    /// O, `(len, width)`
    output: Vec<T>,
    /// Memory of the blocks of `pairs`.
    pub(super) block: Block<T>,
}

impl<'a, T: Lanes> Workspace<'a, T> {
    pub(super) fn new(rule: &Rule, products: &'a SerialProducts<T>) -> Self {
        let (n_features, width, longest) = (rule.sizes.n_features, rule.sizes.width, rule.longest);
        let zeros = |n: usize| vec![T::ZERO; n];
        let per_feature = longest * n_features;
        let n_logs = if rule.decays_features { n_features } else { 1 };
        let (stack, right) = (rule.erase.n_left(), rule.erase.n_right());
        let n_decays = if rule.decays_features { 0 } else { longest * longest };
        Self {
            products,
            erase: rule.erase,
            decays_features: rule.decays_features,
            n_features,
            width,
            len: 0,
            stack,
            right,
            n_logs,
            left: zeros(stack * per_feature),
            key: zeros(right * per_feature),
            scores: zeros(stack * right * n_decays),
            logs: vec![0.; longest * n_logs],
            gamma: zeros(longest * n_logs),
            tail: zeros(longest * n_logs),
            faded: zeros(stack * per_feature),
            late: zeros(right * per_feature),
            pairs: zeros(stack * right * longest * longest),
            decays: zeros(n_decays),
            update: zeros(right * longest * width),
            output: zeros(longest * width),
            block: Block::new(if rule.decays_features { longest } else { 0 }, n_features, right),
        }
    }

    /// Copies what the heads of a team share, to which `head` belongs: Q and K of the chunk's tokens; and Q Kᵀ.
    #[inline(always)]
    pub(super) fn load_shared(&mut self, head: &Head<'_, T>, chunk: &Chunk) {
        let n = self.n_features;
        self.len = chunk.positions.len();
        let keys = &mut self.key[(self.right - 1) * self.len * n..];
        for (i, &t) in chunk.positions.iter().enumerate() {
            let at = i * n..(i + 1) * n;
            self.left[at.clone()].copy_from_slice(head.shared_row(head.operands.query, t, n));
            keys[at].copy_from_slice(head.shared_row(head.operands.key, t, n));
        }
        if self.stack == 1 && !self.decays_features {
            self.score();
        }
    }

    /// Copies the operands of one head: E, B, U, G, and what follows from them.
    #[inline(always)]
    pub(super) fn load(&mut self, head: &Head<'_, T>, chunk: &Chunk) {
        let (n, width) = (self.n_features, self.width);
        let erase = &mut self.left[self.len * n..];
        let values = &mut self.update[(self.right - 1) * self.len * width..];
        for (i, &t) in chunk.positions.iter().enumerate() {
            let at = i * n..(i + 1) * n;
            let strength = head.strength(t);
            let value = head.row(head.operands.value, t, width);
            scaled(&mut values[i * width..(i + 1) * width], value, strength);
            match (self.erase, head.operands.erase) {
                (_, Some(e)) => erase[at.clone()].copy_from_slice(head.row(e, t, n)),
                (EraseKind::Key, None) => {
                    scaled(&mut erase[at.clone()], &self.key[at.clone()], strength);
                }
                (_, None) => {}
            }
            if let Some(key) = head.operands.erase_key {
                self.key[at].copy_from_slice(head.row(key, t, n));
            }
        }
        if self.stack == 2 && !self.decays_features {
            self.score();
        }
        self.sum_logs(head, chunk);
        self.decay();
    }

    /// [Q; E] [B; K]ᵀ
    #[inline(always)]
    fn score(&mut self) {
        let Self { len, n_features: n, stack, right, .. } = *self;
        if len > 0 {
            let left = Matrix::new(&self.left, (stack * len, n));
            let key = Matrix::new(&self.key, (right * len, n)).transposed();
            let scores = MatrixMut::new(&mut self.scores, (stack * len, right * len));
            self.products.store(Product::new(left, key), scores);
        }
    }

    /// G.
    #[inline(always)]
    fn sum_logs(&mut self, head: &Head<'_, T>, chunk: &Chunk) {
        let n = self.n_logs;
        let Some(log_decay) = head.operands.log_decay else { return };
        for (i, &t) in chunk.positions.iter().enumerate() {
            let (past, now) = self.logs.split_at_mut(i * n);
            let past = if i == 0 { &[][..] } else { &past[(i - 1) * n..] };
            for (feature, (sum, &log)) in now.iter_mut().zip(head.row(log_decay, t, n)).enumerate()
            {
                *sum = log.widen() + past.get(feature).copied().unwrap_or(0.);
            }
        }
    }

    /// γ, e^(G_C − G_j), [γ ⊙ Q; −γ ⊙ E] and [B̂; K̂].
    #[inline(always)]
    fn decay(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        let Self { n_features: n, n_logs, .. } = *self;
        let end = &self.logs[last * n_logs..][..n_logs];
        for i in 0..self.len {
            let of_token = i * n_logs..(i + 1) * n_logs;
            let logs = &self.logs[of_token.clone()];
            for (gamma, &log) in self.gamma[of_token.clone()].iter_mut().zip(logs) {
                *gamma = T::narrow(log).exp();
            }
            for (tail, (&log, &end)) in self.tail[of_token].iter_mut().zip(logs.iter().zip(end)) {
                *tail = T::narrow(end - log).exp();
            }
        }
        let all = self.len * n;
        for part in 0..self.right {
            let part = part * all..(part + 1) * all;
            let key = &self.key[part.clone()];
            weigh(&mut self.late[part], key, &self.tail, (n, n_logs), T::ONE);
        }
        for (part, sign) in [T::ONE, -T::ONE].into_iter().enumerate().take(self.stack) {
            let part = part * all..(part + 1) * all;
            let left = &self.left[part.clone()];
            weigh(&mut self.faded[part], left, &self.gamma, (n, n_logs), sign);
        }
    }

    /// Ũ, or X, with the `state` before the chunk.
    #[inline(always)]
    pub(super) fn solve(&mut self, state: &[T]) {
        if self.stack == 1 || self.len == 0 {
            return;
        }
        let Self { len, n_features: n, width, right, products, .. } = *self;
        let erase = Matrix::new(&self.faded[len * n..], (len, n));
        let held = Product::new(erase, Matrix::new(state, (n, width)));
        let minus_a = minus_a(&self.pairs, (len, right));
        let update = &mut self.update[..right * len * width];
        if right == 1 {
            products.store(held.accumulated(), MatrixMut::new(update, (len, width)));
            solve::forward(products, minus_a, update);
        } else {
            let (erased, written) = update.split_at_mut(len * width);
            products.store(held, MatrixMut::new(erased, (len, width)));
            let of_written = minus_a.block(0..len, len..2 * len);
            let product = Product::new(of_written, Matrix::new(written, (len, width)));
            products.store(product.accumulated(), MatrixMut::new(erased, (len, width)));
            solve::forward(products, minus_a.block(0..len, 0..len), erased);
        }
    }

    /// The outputs of the tokens.
    #[inline(always)]
    pub(super) fn read(&mut self, state: &[T]) -> std::slice::ChunksExact<'_, T> {
        let Self { len, n_features: n, width, right, .. } = *self;
        if len > 0 {
            let (query, state) =
                (Matrix::new(&self.faded, (len, n)), Matrix::new(state, (n, width)));
            let output = &mut self.output[..len * width];
            self.products.store(Product::new(query, state), MatrixMut::new(output, (len, width)));
            let pairs = Matrix::new(&self.pairs, (len, right * len));
            let update = Matrix::new(&self.update, (right * len, width));
            let product = Product::new(pairs, update).accumulated();
            self.products.store(product, MatrixMut::new(output, (len, width)));
        }
        self.output[..len * width].chunks_exact(width)
    }

    /// S ← γ_C ⊙ S + [B̂; K̂]ᵀ Ũ
    #[inline(always)]
    pub(super) fn advance(&self, state: &mut [T]) {
        let Self { len, n_features: n, width, right, .. } = *self;
        if len == 0 {
            return;
        }
        self.fade(state);
        let late = Matrix::new(&self.late, (right * len, n)).transposed();
        let update = Matrix::new(&self.update, (right * len, width));
        let product = Product::new(late, update).accumulated();
        self.products.store(product, MatrixMut::new(state, (n, width)));
    }

    /// S ← γ_C ⊙ S
    #[inline(always)]
    pub(super) fn fade(&self, state: &mut [T]) {
        for (feature, row) in state.chunks_exact_mut(self.width).enumerate() {
            let decay = self.total(feature);
            for x in row {
                *x *= decay;
            }
        }
    }

    /// γ_C of a feature.
    #[inline(always)]
    pub(super) fn total(&self, feature: usize) -> T {
        self.gamma[(self.len - 1) * self.n_logs + if self.decays_features { feature } else { 0 }]
    }

    /// x ← sign · x ⊙ factors, `(len, n_features)` times `(len, n_logs)`
    #[inline(always)]
    pub(super) fn weigh_in_place(&self, x: &mut [T], factors: &[T], sign: T) {
        let Self { n_features: n, n_logs, .. } = *self;
        for (x, factors) in x.chunks_exact_mut(n).zip(factors.chunks_exact(n_logs)) {
            if let &[factor] = factors {
                for x in x {
                    *x *= sign * factor;
                }
            } else {
                for (x, &factor) in x.iter_mut().zip(factors) {
                    *x *= sign * factor;
                }
            }
        }
    }
}

/// y ← sign · x ⊙ factors, `(len, n)` times `(len, n_logs)`
#[inline(always)]
fn weigh<T: Element>(y: &mut [T], x: &[T], factors: &[T], (n, n_logs): (usize, usize), sign: T) {
    let rows = x.chunks_exact(n).zip(factors.chunks_exact(n_logs));
    for (y, (x, factors)) in y.chunks_exact_mut(n).zip(rows) {
        if let &[factor] = factors {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = sign * x * factor;
            }
        } else {
            multiply(y, x, factors, sign);
        }
    }
}

/// −A of [P; −A], `(len, right·len)`
#[inline(always)]
pub(super) fn minus_a<T>(pairs: &[T], (len, right): (usize, usize)) -> Matrix<'_, T> {
    Matrix::new(&pairs[len * right * len..], (len, right * len))
}

/// y ← a x, or x.
#[inline(always)]
fn scaled<T: Element>(y: &mut [T], x: &[T], a: Option<T>) {
    match a {
        None => y.copy_from_slice(x),
        Some(a) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = a * x;
            }
        }
    }
}

/// y ← sign · a ⊙ b
#[inline(always)]
pub(super) fn multiply<T: Element>(y: &mut [T], a: &[T], b: &[T], sign: T) {
    for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = sign * a * b;
    }
}
