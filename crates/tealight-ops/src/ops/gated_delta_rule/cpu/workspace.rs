//! The matrices of one chunk, and the steps of the forward pass.

use super::super::inputs::EraseKind;
use super::{Chunk, Head, Rule, solve};
use crate::backend::element::Element;
use crate::backend::gemm::{Product, SerialProducts};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;

/// Tokens whose pairs are exponentiated one by one, if each feature has its decay.
pub(super) const BLOCK: usize = 16;

/// Memory for a block of tokens and those before it.
pub(super) struct Block<T> {
    /// [q_i e^(G_i − G_a); e_i e^(G_i − G_a)], `(2·BLOCK, n_features)`
    pub(super) left: Vec<T>,
    /// e^(G_i − G_a), `(BLOCK, n_features)`
    pub(super) rows: Vec<T>,
    /// k_j e^(G_a − G_j), `(a, n_features)`
    pub(super) key: Vec<T>,
    /// e^(G_a − G_j), `(a, n_features)`
    pub(super) columns: Vec<T>,
    /// A product, `(2·BLOCK, n_features)` or `(a, n_features)`.
    pub(super) product: Vec<T>,
    /// D_ij ⊙ k_j, `(n_features)`
    pub(super) pair: Vec<T>,
}

impl<T: Element> Block<T> {
    /// For chunks of at most `longest` tokens.
    fn new(longest: usize, n_features: usize) -> Self {
        let zeros = |rows: usize| vec![T::ZERO; rows * n_features];
        let block = BLOCK.min(longest);
        Self {
            left: zeros(2 * block),
            rows: zeros(block),
            key: zeros(longest),
            columns: zeros(longest),
            product: zeros(longest.max(2 * block)),
            pair: zeros(1),
        }
    }
}

/// The matrices of a chunk of `len` tokens; rows and columns beyond it are left over from longer chunks.
///
/// Two matrices in one are stacked: Q above E. Without erasing there is no E.
pub(super) struct Workspace<'a, T: 'static> {
    pub(super) products: &'a SerialProducts<T>,
    pub(super) erase: EraseKind,
    pub(super) decays_features: bool,
    pub(super) n_features: usize,
    pub(super) width: usize,
    pub(super) len: usize,
    /// The number of stacked matrices: 2, or 1 without erasing.
    pub(super) stack: usize,
    /// [Q; E], `(stack·len, n_features)`
    pub(super) left: Vec<T>,
    /// K, `(len, n_features)`
    pub(super) key: Vec<T>,
    /// G, `(len)` or `(len, n_features)`
    pub(super) logs: Vec<f64>,
    /// γ, `(len, n_features)`
    pub(super) gamma: Vec<T>,
    /// e^(G_C − G_j), `(len, n_features)`
    pub(super) tail: Vec<T>,
    /// [γ ⊙ Q; −γ ⊙ E], `(stack·len, n_features)`
    pub(super) faded: Vec<T>,
    /// K̂, `(len, n_features)`
    pub(super) late: Vec<T>,
    /// [P; −A], `(stack·len, len)`
    pub(super) pairs: Vec<T>,
    /// D of one decay for all features, `(len, len)`
    pub(super) decays: Vec<T>,
    /// U, then Ũ, `(len, width)`
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
        let n_logs = if rule.decays_features { per_feature } else { longest };
        let stack = if rule.erase == EraseKind::Nothing { 1 } else { 2 };
        let n_decays = if rule.decays_features { 0 } else { longest * longest };
        Self {
            products,
            erase: rule.erase,
            decays_features: rule.decays_features,
            n_features,
            width,
            len: 0,
            stack,
            left: zeros(stack * per_feature),
            key: zeros(per_feature),
            logs: vec![0.; n_logs],
            gamma: zeros(per_feature),
            tail: zeros(per_feature),
            faded: zeros(stack * per_feature),
            late: zeros(per_feature),
            pairs: zeros(stack * longest * longest),
            decays: zeros(n_decays),
            update: zeros(longest * width),
            output: zeros(longest * width),
            block: Block::new(if rule.decays_features { longest } else { 0 }, n_features),
        }
    }

    /// Copies the operands of the chunk's tokens: Q, E, K, U, G, and what follows from G.
    #[inline(always)]
    pub(super) fn load(&mut self, head: &Head<'_, T>, chunk: &Chunk) {
        let (n, width) = (self.n_features, self.width);
        self.len = chunk.positions.len();
        let (query, erase) = self.left.split_at_mut(self.len * n);
        for (i, &t) in chunk.positions.iter().enumerate() {
            let at = i * n..(i + 1) * n;
            let key = head.row(head.operands.key, t, n);
            let strength = head.operands.strength.map(|strength| head.row(strength, t, 1)[0]);
            query[at.clone()].copy_from_slice(head.row(head.operands.query, t, n));
            self.key[at.clone()].copy_from_slice(key);
            let value = head.row(head.operands.value, t, width);
            scaled(&mut self.update[i * width..(i + 1) * width], value, strength);
            match (self.erase, head.operands.erase) {
                (_, Some(e)) => erase[at].copy_from_slice(head.row(e, t, n)),
                (EraseKind::Key, None) => scaled(&mut erase[at], key, strength),
                (_, None) => {}
            }
        }
        self.sum_logs(head, chunk);
        self.decay();
    }

    /// G.
    #[inline(always)]
    fn sum_logs(&mut self, head: &Head<'_, T>, chunk: &Chunk) {
        let n = if self.decays_features { self.n_features } else { 1 };
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

    /// γ, e^(G_C − G_j), [γ ⊙ Q; −γ ⊙ E] and K̂.
    #[inline(always)]
    fn decay(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        let n = self.n_features;
        let n_logs = if self.decays_features { n } else { 1 };
        for i in 0..self.len {
            let (gamma, tail) = (&mut self.gamma[i * n..][..n], &mut self.tail[i * n..][..n]);
            let (logs, end) =
                (&self.logs[i * n_logs..][..n_logs], &self.logs[last * n_logs..][..n_logs]);
            if self.decays_features {
                for (gamma, &log) in gamma.iter_mut().zip(logs) {
                    *gamma = T::narrow(log).exp();
                }
                for (tail, (&log, &end)) in tail.iter_mut().zip(logs.iter().zip(end)) {
                    *tail = T::narrow(end - log).exp();
                }
            } else {
                gamma.fill(T::narrow(logs[0]).exp());
                tail.fill(T::narrow(end[0] - logs[0]).exp());
            }
        }
        let all = self.len * n;
        multiply(&mut self.late[..all], &self.key[..all], &self.tail[..all], T::ONE);
        for (part, sign) in [T::ONE, -T::ONE].into_iter().enumerate().take(self.stack) {
            let part = part * all..(part + 1) * all;
            multiply(&mut self.faded[part.clone()], &self.left[part], &self.gamma[..all], sign);
        }
    }

    /// Ũ, with the `state` before the chunk.
    #[inline(always)]
    pub(super) fn solve(&mut self, state: &[T]) {
        if self.stack == 1 || self.len == 0 {
            return;
        }
        let Self { len, n_features: n, width, .. } = *self;
        let erase = Matrix::new(&self.faded[len * n..], (len, n));
        let product = Product::new(erase, Matrix::new(state, (n, width))).accumulated();
        self.products.store(product, MatrixMut::new(&mut self.update, (len, width)));
        let minus_a = &self.pairs[len * len..2 * len * len];
        solve::forward(self.products, minus_a, &mut self.update[..len * width], len);
    }

    /// The outputs of the tokens.
    #[inline(always)]
    pub(super) fn read(&mut self, state: &[T]) -> std::slice::ChunksExact<'_, T> {
        let Self { len, n_features: n, width, .. } = *self;
        if len > 0 {
            let (query, state) =
                (Matrix::new(&self.faded, (len, n)), Matrix::new(state, (n, width)));
            let output = &mut self.output[..len * width];
            self.products.store(Product::new(query, state), MatrixMut::new(output, (len, width)));
            let (pairs, update) =
                (Matrix::new(&self.pairs, (len, len)), Matrix::new(&self.update, (len, width)));
            let product = Product::new(pairs, update).accumulated();
            self.products.store(product, MatrixMut::new(output, (len, width)));
        }
        self.output[..len * width].chunks_exact(width)
    }

    /// S ← γ_C ⊙ S + K̂ᵀ Ũ
    #[inline(always)]
    pub(super) fn advance(&self, state: &mut [T]) {
        let Self { len, n_features: n, width, .. } = *self;
        if len == 0 {
            return;
        }
        self.fade(state);
        let late = Matrix::new(&self.late, (len, n)).transposed();
        let product = Product::new(late, Matrix::new(&self.update, (len, width))).accumulated();
        self.products.store(product, MatrixMut::new(state, (n, width)));
    }

    /// S ← γ_C ⊙ S
    #[inline(always)]
    pub(super) fn fade(&self, state: &mut [T]) {
        for (row, &decay) in state.chunks_exact_mut(self.width).zip(self.total()) {
            for x in row {
                *x *= decay;
            }
        }
    }

    /// γ_C, `(n_features)`
    #[inline(always)]
    pub(super) fn total(&self) -> &[T] {
        &self.gamma[(self.len - 1) * self.n_features..][..self.n_features]
    }
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
