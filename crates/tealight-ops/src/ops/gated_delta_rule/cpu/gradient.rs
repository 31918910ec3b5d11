//! The gradients of one chunk.

use super::super::inputs::{Each, EraseKind};
use super::workspace::Workspace;
use super::{Chunk, Head, Rule, pairs, solve};
use crate::backend::gemm::Product;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{add_scaled, sum as total, sum_of_pairs};
use crate::backend::simd::vector::Lanes;

/// The gradients of the matrices of a chunk.
pub(super) struct Slopes<T> {
    /// [dO; dU], `(2·len, width)`
    values: Vec<T>,
    /// Of [P; −A], `(stack·len, len)`
    pairs: Vec<T>,
    /// Of [Q; E], `(stack·len, n_features)`
    left: Vec<T>,
    /// Of K, `(len, n_features)`
    key: Vec<T>,
    /// Of ln α, `(len)` or `(len, n_features)`
    log_decay: Vec<T>,
    /// The same of a head, while terms are added, `(len)`
    logs: Vec<f64>,
    /// What the last token's G has in addition, `(n_features)`
    last: Vec<T>,
}

impl<T: Lanes> Slopes<T> {
    pub(super) fn new(rule: &Rule) -> Self {
        let (n, width, longest) = (rule.sizes.n_features, rule.sizes.width, rule.longest);
        let stack = if rule.erase == EraseKind::Nothing { 1 } else { 2 };
        let zeros = |n: usize| vec![T::ZERO; n];
        Self {
            values: zeros(2 * longest * width),
            pairs: zeros(stack * longest * longest),
            left: zeros(stack * longest * n),
            key: zeros(longest * n),
            log_decay: zeros(longest * if rule.decays_features { n } else { 1 }),
            logs: vec![0.; longest],
            last: zeros(n),
        }
    }

    /// The gradients of the chunk that `space` holds, from that of the state after it, which becomes that of the
    /// `state` before it.
    #[inline(always)]
    pub(super) fn chunk(
        &mut self,
        space: &mut Workspace<'_, T>,
        head: &Head<'_, T>,
        chunk: &Chunk,
        of_output: Option<&[T]>,
        state: &[T],
        dstate: &mut [T],
    ) {
        let Workspace { len, n_features: n, width, stack, products, .. } = *space;
        if len == 0 {
            return;
        }
        let (of_outputs, of_updates) = self.values[..2 * len * width].split_at_mut(len * width);
        for (&t, row) in chunk.positions.iter().zip(of_outputs.chunks_exact_mut(width)) {
            match of_output {
                Some(gradient) => row.copy_from_slice(head.row(gradient, t, width)),
                None => row.fill(T::ZERO),
            }
        }
        // dŨ = Pᵀ dO + K̂ dS, and dU
        let reads = Matrix::new(&space.pairs, (len, len)).transposed();
        let product = Product::new(reads, Matrix::new(of_outputs, (len, width)));
        products.store(product, MatrixMut::new(of_updates, (len, width)));
        let (late, of_state) =
            (Matrix::new(&space.late, (len, n)), Matrix::new(dstate, (n, width)));
        let product = Product::new(late, of_state).accumulated();
        products.store(product, MatrixMut::new(of_updates, (len, width)));
        if stack == 2 {
            solve::backward(products, &space.pairs[len * len..2 * len * len], of_updates, len);
        }
        let values = Matrix::new(&self.values, (stack * len, width));
        let update = Matrix::new(&space.update, (len, width));
        let product = Product::new(values, update.transposed());
        products.store(product, MatrixMut::new(&mut self.pairs, (stack * len, len)));

        // Through the states.
        let before = Matrix::new(state, (n, width)).transposed();
        products
            .store(Product::new(values, before), MatrixMut::new(&mut self.left, (stack * len, n)));
        let all = len * n;
        for (part, sign) in [T::ONE, -T::ONE].into_iter().enumerate().take(stack) {
            let left = &mut self.left[part * all..(part + 1) * all];
            for (x, &gamma) in left.iter_mut().zip(&space.gamma) {
                *x *= sign * gamma;
            }
        }
        let product = Product::new(update, of_state.transposed());
        products.store(product, MatrixMut::new(&mut self.key, (len, n)));
        self.through_state(space, state, dstate);
        let has_decay = head.operands.log_decay.is_some();
        if has_decay && !space.decays_features {
            self.of_head_logs(space);
        }

        // Through the pairs.
        let (pairs, left, key) = (&mut self.pairs, &mut self.left, &mut self.key);
        if space.decays_features {
            pairs::of_features_backward(space, pairs, left, key);
        } else {
            pairs::of_heads_backward(space, pairs, left, key);
        }
        if has_decay && space.decays_features {
            self.of_feature_logs(space);
        }

        // dS ← γ_C ⊙ dS + (γ ⊙ Q)ᵀ dO − (γ ⊙ E)ᵀ dU
        space.fade(dstate);
        let faded = Matrix::new(&space.faded, (stack * len, n)).transposed();
        let product = Product::new(faded, Matrix::new(&self.values, (stack * len, width)));
        products.store(product.accumulated(), MatrixMut::new(dstate, (n, width)));
    }

    /// Of K, times e^(G_C − G_j); and γ_C ⊙ Σ_v S ⊙ dS, with Σ_j K̂_j ⊙ (dS Ũ_j) if each feature
    /// has its decay.
    #[inline(always)]
    fn through_state(&mut self, space: &Workspace<'_, T>, state: &[T], dstate: &[T]) {
        let (all, width) = (space.len * space.n_features, space.width);
        let rows = state.chunks_exact(width).zip(dstate.chunks_exact(width));
        for ((last, (state, dstate)), &total) in self.last.iter_mut().zip(rows).zip(space.total()) {
            *last = total * sum_of_pairs(state, dstate, |s, ds| s * ds);
        }
        for (x, &tail) in self.key[..all].iter_mut().zip(&space.tail) {
            *x *= tail;
        }
        if space.decays_features {
            let n = space.n_features;
            let rows = self.key[..all].chunks_exact(n).zip(space.key.chunks_exact(n));
            for (slopes, key) in rows {
                for (last, (&slope, &key)) in self.last.iter_mut().zip(slopes.iter().zip(key)) {
                    *last += slope * key;
                }
            }
        }
    }

    /// d ln α of the head, to be called before the gradients go through the pairs.
    ///
    /// A factor e^(G_i − G_j) holds ln α_t for j < t ≤ i. Each term is added where its factor stands, so that a term that
    /// has faded is small: the sums of dG would cancel instead, and leave the rounding of what has not faded.
    #[inline(always)]
    fn of_head_logs(&mut self, space: &Workspace<'_, T>) {
        let Workspace { len, n_features: n, stack, .. } = *space;
        let logs = &mut self.logs[..len];
        logs.fill(total(&self.last, |x| x).widen());
        let dot = |a: &[T], b: &[T]| sum_of_pairs(a, b, |x, y| x * y).widen();
        let mut sum = 0.; // of γ_i, for t ≤ i
        for i in (0..len).rev() {
            for part in 0..stack {
                let row = (part * len + i) * n;
                sum += dot(&self.left[row..][..n], &space.left[row..][..n]);
            }
            logs[i] += sum;
        }
        let mut sum = 0.; // of e^(G_C − G_j), for t > j
        for j in 0..len - 1 {
            sum += dot(&self.key[j * n..][..n], &space.key[j * n..][..n]);
            logs[j + 1] += sum;
        }
        for i in 1..len {
            let mut sum = 0.; // of D_ij, for j < t ≤ i
            for j in 0..i {
                for part in 0..stack {
                    let at = (part * len + i) * len + j;
                    sum += (self.pairs[at] * space.pairs[at]).widen();
                }
                logs[j + 1] += sum;
            }
        }
        for (log_decay, &log) in self.log_decay.iter_mut().zip(&*logs) {
            *log_decay = T::narrow(log);
        }
    }

    /// d ln α of each feature: sums of dG = q ⊙ dq + e ⊙ de − k ⊙ dk from each token to the last.
    #[inline(always)]
    fn of_feature_logs(&mut self, space: &Workspace<'_, T>) {
        let Workspace { len, n_features: n, stack, .. } = *space;
        let Self { left: of_left, key: of_key, log_decay, last: sum, .. } = self;
        for i in (0..len).rev() {
            let key = (&of_key[i * n..][..n], &space.key[i * n..][..n]);
            for (sum, (&slope, &key)) in sum.iter_mut().zip(key.0.iter().zip(key.1)) {
                *sum -= slope * key;
            }
            for part in 0..stack {
                let row = (part * len + i) * n;
                let slopes = of_left[row..][..n].iter().zip(&space.left[row..][..n]);
                for (sum, (&slope, &x)) in sum.iter_mut().zip(slopes) {
                    *sum += slope * x;
                }
            }
            log_decay[i * n..][..n].copy_from_slice(sum);
        }
    }

    /// Writes the gradients of the operands at the positions of the chunk.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        space: &Workspace<'_, T>,
        head: &Head<'_, T>,
        chunk: &Chunk,
        rows: &mut Each<MatrixMut<'_, T>>,
    ) {
        let Workspace { len, n_features: n, width, erase, .. } = *space;
        for (i, &t) in chunk.positions.iter().enumerate() {
            let of_update = &self.values[(len + i) * width..][..width];
            let of_erase = self.left.get((len + i) * n..(len + i + 1) * n).unwrap_or_default();
            let strength = head.operands.strength.map(|strength| head.row(strength, t, 1)[0]);
            rows.query.row(t).copy_from_slice(&self.left[i * n..][..n]);
            rows.key.row(t).copy_from_slice(&self.key[i * n..][..n]);
            let of_value = rows.value.row(t);
            of_value.copy_from_slice(of_update);
            if let Some(strength) = strength {
                for x in of_value {
                    *x *= strength;
                }
            }
            let is_key = erase == EraseKind::Key;
            if is_key {
                add_scaled(rows.key.row(t), of_erase, strength.unwrap_or(T::ONE));
            }
            if let Some(row) = &mut rows.strength {
                let value = head.row(head.operands.value, t, width);
                let mut sum = sum_of_pairs(value, of_update, |v, dv| v * dv);
                if is_key {
                    let key = head.row(head.operands.key, t, n);
                    sum += sum_of_pairs(key, of_erase, |k, de| k * de);
                }
                row.row(t)[0] = sum;
            }
            if let Some(row) = &mut rows.erase {
                row.row(t).copy_from_slice(of_erase);
            }
            if let Some(row) = &mut rows.log_decay {
                let width = if space.decays_features { n } else { 1 };
                row.row(t).copy_from_slice(&self.log_decay[i * width..][..width]);
            }
        }
    }
}
