//! The gradients of one chunk.

use super::super::inputs::EraseKind;
use super::heads::{Head, Rows};
use super::workspace::{Workspace, minus_a};
use super::{Chunk, Rule, pairs, solve};
use crate::backend::gemm::Product;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{add_scaled, sum as total, sum_of_pairs};
use crate::backend::simd::vector::Lanes;

/// The gradients of the matrices of a chunk.
pub(super) struct Slopes<T> {
    /// [dO; dU], `(2·len, width)`, or [dO; dX; dU], `(3·len, width)`
    values: Vec<T>,
    /// Of one head.
    head: OfKeys<T>,
    /// Of all heads of a team so far.
    team: OfKeys<T>,
    /// Of ln α, `(len)` or `(len, n_features)`
    log_decay: Vec<T>,
    /// The same of a head, while terms are added, `(len)`
    logs: Vec<f64>,
    /// What the last token's G has in addition, `(n_features)`
    last: Vec<T>,
}

/// The gradients of what the heads of a team share.
struct OfKeys<T> {
    /// Of [P; −A], then of [Q; E] [B; K]ᵀ, `(stack·len, right·len)`
    pairs: Vec<T>,
    /// Of [Q; E], `(stack·len, n_features)`
    left: Vec<T>,
    /// Of [B; K], `(right·len, n_features)`
    key: Vec<T>,
}

impl<T: Lanes> OfKeys<T> {
    fn new(rule: &Rule) -> Self {
        let (n, longest) = (rule.sizes.n_features, rule.longest);
        let (stack, right) = (rule.erase.n_left(), rule.erase.n_right());
        let zeros = |n: usize| vec![T::ZERO; n];
        Self {
            pairs: zeros(stack * right * longest * longest),
            left: zeros(stack * longest * n),
            key: zeros(right * longest * n),
        }
    }

    /// Adds the gradients of another head, for a chunk of `len` tokens of which nothing is erased.
    #[inline(always)]
    fn add(&mut self, other: &Self, len: usize, n_features: usize) {
        add_scaled(&mut self.pairs[..len * len], &other.pairs, T::ONE);
        add_scaled(&mut self.left[..len * n_features], &other.left, T::ONE);
        add_scaled(&mut self.key[..len * n_features], &other.key, T::ONE);
    }
}

impl<T: Lanes> Slopes<T> {
    pub(super) fn new(rule: &Rule) -> Self {
        let (n, width, longest) = (rule.sizes.n_features, rule.sizes.width, rule.longest);
        let zeros = |n: usize| vec![T::ZERO; n];
        Self {
            values: zeros((1 + rule.erase.n_right()) * longest * width),
            head: OfKeys::new(rule),
            team: OfKeys::new(rule),
            log_decay: zeros(longest * if rule.decays_features { n } else { 1 }),
            logs: vec![0.; longest],
            last: zeros(n),
        }
    }

    /// The gradients of the chunk that `space` holds, from that of the state after it, which becomes that of the
    /// `state` before it. Those of what a team shares are added to the sums of its earlier heads, unless `is_first`.
    #[inline(always)]
    pub(super) fn of_head(
        &mut self,
        space: &mut Workspace<'_, T>,
        (head, is_first): (&Head<'_, T>, bool),
        chunk: &Chunk,
        of_output: Option<&[T]>,
        state: &[T],
        dstate: &mut [T],
    ) {
        if space.len == 0 {
            return;
        }
        self.of_values(space, head, chunk, of_output, dstate);
        self.through_state(space, state, dstate);
        let has_decay = head.operands.log_decay.is_some();
        let OfKeys { pairs, left, key } = &mut self.head;
        if space.decays_features {
            pairs::of_features_backward(space, pairs, left, key);
            if has_decay {
                self.of_feature_logs(space);
            }
        } else {
            if has_decay {
                self.of_head_logs(space);
            }
            pairs::of_scores(space, &mut self.head.pairs);
        }
        self.of_state(space, dstate);
        if is_first {
            std::mem::swap(&mut self.head, &mut self.team);
        } else {
            self.team.add(&self.head, space.len, space.n_features);
        }
    }

    /// Of what a team shares, once all its heads are done.
    #[inline(always)]
    pub(super) fn of_team(&mut self, space: &Workspace<'_, T>) {
        if space.len > 0 && !space.decays_features {
            let OfKeys { pairs, left, key } = &mut self.team;
            pairs::through_scores(space, pairs, left, key);
        }
    }

    /// The gradients of outputs, X and U: dO, then [dX; dU] = [P_b P_k]ᵀ dO + [B̂; K̂] dS, of which dX is solved for, and
    /// −A_kᵀ dX is added to dU; then [dP; −dA] = [dO; dX] [X; U]ᵀ. Where b is k, Ũ is in place of both.
    #[inline(always)]
    fn of_values(
        &mut self,
        space: &Workspace<'_, T>,
        head: &Head<'_, T>,
        chunk: &Chunk,
        of_output: Option<&[T]>,
        dstate: &[T],
    ) {
        let Workspace { len, n_features: n, width, stack, right, products, .. } = *space;
        let (of_outputs, of_updates) =
            self.values[..(1 + right) * len * width].split_at_mut(len * width);
        for (&t, row) in chunk.positions.iter().zip(of_outputs.chunks_exact_mut(width)) {
            match of_output {
                Some(gradient) => row.copy_from_slice(head.row(gradient, t, width)),
                None => row.fill(T::ZERO),
            }
        }
        let reads = Matrix::new(&space.pairs, (len, right * len)).transposed();
        let product = Product::new(reads, Matrix::new(of_outputs, (len, width)));
        products.store(product, MatrixMut::new(of_updates, (right * len, width)));
        let late = Matrix::new(&space.late, (right * len, n));
        let product = Product::new(late, Matrix::new(dstate, (n, width))).accumulated();
        products.store(product, MatrixMut::new(of_updates, (right * len, width)));
        if stack == 2 {
            let (of_erased, of_written) = of_updates.split_at_mut(len * width);
            let minus_a = minus_a(&space.pairs, (len, right));
            solve::backward(products, minus_a.block(0..len, 0..len), of_erased);
            if right == 2 {
                let of_keys = minus_a.block(0..len, len..2 * len).transposed();
                let product = Product::new(of_keys, Matrix::new(of_erased, (len, width)));
                let target = MatrixMut::new(of_written, (len, width));
                products.store(product.accumulated(), target);
            }
        }
        let values = Matrix::new(&self.values, (stack * len, width));
        let update = Matrix::new(&space.update, (right * len, width)).transposed();
        let pairs = MatrixMut::new(&mut self.head.pairs, (stack * len, right * len));
        products.store(Product::new(values, update), pairs);
    }

    /// dS ← γ_C ⊙ dS + (γ ⊙ Q)ᵀ dO − (γ ⊙ E)ᵀ dU
    #[inline(always)]
    fn of_state(&self, space: &Workspace<'_, T>, dstate: &mut [T]) {
        let Workspace { len, n_features: n, width, stack, products, .. } = *space;
        space.fade(dstate);
        let faded = Matrix::new(&space.faded, (stack * len, n)).transposed();
        let product = Product::new(faded, Matrix::new(&self.values, (stack * len, width)));
        products.store(product.accumulated(), MatrixMut::new(dstate, (n, width)));
    }

    /// Of [Q; E] and [B; K] through the states before and after; and γ_C ⊙ Σ_v S ⊙ dS, with Σ_j K̂_j ⊙ (dS Ũ_j) if each
    /// feature has its decay.
    #[inline(always)]
    fn through_state(&mut self, space: &Workspace<'_, T>, state: &[T], dstate: &[T]) {
        let Workspace { len, n_features: n, width, stack, right, products, .. } = *space;
        let all = len * n;
        let OfKeys { left, key, .. } = &mut self.head;
        let values = Matrix::new(&self.values, (stack * len, width));
        let before = Matrix::new(state, (n, width)).transposed();
        products.store(Product::new(values, before), MatrixMut::new(left, (stack * len, n)));
        for (part, sign) in [T::ONE, -T::ONE].into_iter().enumerate().take(stack) {
            space.weigh_in_place(&mut left[part * all..(part + 1) * all], &space.gamma, sign);
        }
        let update = Matrix::new(&space.update, (right * len, width));
        let after = Matrix::new(dstate, (n, width)).transposed();
        products.store(Product::new(update, after), MatrixMut::new(key, (right * len, n)));
        for part in 0..right {
            space.weigh_in_place(&mut key[part * all..(part + 1) * all], &space.tail, T::ONE);
        }
        let rows = state.chunks_exact(width).zip(dstate.chunks_exact(width));
        for (feature, (last, (state, dstate))) in self.last.iter_mut().zip(rows).enumerate() {
            *last = space.total(feature) * sum_of_pairs(state, dstate, |s, ds| s * ds);
        }
        if space.decays_features {
            let rows = key[..right * all].chunks_exact(n).zip(space.key.chunks_exact(n));
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
        let Workspace { len, n_features: n, stack, right, .. } = *space;
        let logs = &mut self.logs[..len];
        logs.fill(total(&self.last, |x| x).widen());
        let dot = |a: &[T], b: &[T]| sum_of_pairs(a, b, |x, y| x * y).widen();
        let mut sum = 0.; // of γ_i, for t ≤ i
        for i in (0..len).rev() {
            for part in 0..stack {
                let row = (part * len + i) * n;
                sum += dot(&self.head.left[row..][..n], &space.left[row..][..n]);
            }
            logs[i] += sum;
        }
        let mut sum = 0.; // of e^(G_C − G_j), for t > j
        for j in 0..len - 1 {
            for part in 0..right {
                let row = (part * len + j) * n;
                sum += dot(&self.head.key[row..][..n], &space.key[row..][..n]);
            }
            logs[j + 1] += sum;
        }
        for i in 1..len {
            let mut sum = 0.; // of D_ij, for j < t ≤ i
            for j in 0..i {
                for row in (0..stack).map(|part| (part * len + i) * right * len) {
                    for at in (0..right).map(|key| row + key * len + j) {
                        sum += (self.head.pairs[at] * space.pairs[at]).widen();
                    }
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
        let Workspace { len, n_features: n, stack, right, .. } = *space;
        let Self { head: OfKeys { left: of_left, key: of_key, .. }, log_decay, last: sum, .. } =
            self;
        for i in (0..len).rev() {
            for part in 0..right {
                let row = (part * len + i) * n;
                let slopes = of_key[row..][..n].iter().zip(&space.key[row..][..n]);
                for (sum, (&slope, &key)) in sum.iter_mut().zip(slopes) {
                    *sum -= slope * key;
                }
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

    /// Writes the gradients of the operands of one head at the positions of the chunk.
    #[inline(always)]
    pub(super) fn write(
        &self,
        space: &Workspace<'_, T>,
        head: &Head<'_, T>,
        chunk: &Chunk,
        rows: &mut Rows<'_, T>,
    ) {
        let Workspace { len, width, right, n_logs, .. } = *space;
        for (i, &t) in chunk.positions.iter().enumerate() {
            let of_update = &self.values[(right * len + i) * width..][..width];
            let of_value = rows.value.row(t);
            of_value.copy_from_slice(of_update);
            if let Some(strength) = head.strength(t) {
                for x in of_value {
                    *x *= strength;
                }
            }
            if let Some(row) = &mut rows.strength {
                let value = head.row(head.operands.value, t, width);
                row.row(t)[0] = sum_of_pairs(value, of_update, |v, dv| v * dv);
            }
            if let Some(row) = &mut rows.log_decay {
                row.row(t).copy_from_slice(&self.log_decay[i * n_logs..][..n_logs]);
            }
        }
    }

    /// Writes the gradients of the queries and the keys of a team.
    #[inline(always)]
    pub(super) fn write_shared(
        &self,
        space: &Workspace<'_, T>,
        chunk: &Chunk,
        [query, key]: [&mut MatrixMut<'_, T>; 2],
    ) {
        let n = space.n_features;
        let of_key = &self.team.key[(space.right - 1) * space.len * n..];
        for (i, &t) in chunk.positions.iter().enumerate() {
            query.row(t).copy_from_slice(&self.team.left[i * n..][..n]);
            key.row(t).copy_from_slice(&of_key[i * n..][..n]);
        }
    }

    /// Writes what a team of one head, which erases, has besides: the gradients of E and B, or what E = β K adds to those of
    /// its factors.
    #[inline(always)]
    pub(super) fn write_erased(
        &self,
        space: &Workspace<'_, T>,
        head: &Head<'_, T>,
        chunk: &Chunk,
        of_key: &mut MatrixMut<'_, T>,
        rows: &mut Rows<'_, T>,
    ) {
        let Workspace { len, n_features: n, erase, .. } = *space;
        for (i, &t) in chunk.positions.iter().enumerate() {
            let of_erase = &self.team.left[(len + i) * n..][..n];
            if erase == EraseKind::Key {
                add_scaled(of_key.row(t), of_erase, head.strength(t).unwrap_or(T::ONE));
                if let Some(row) = &mut rows.strength {
                    let key = &space.key[i * n..][..n];
                    row.row(t)[0] += sum_of_pairs(key, of_erase, |k, de| k * de);
                }
            }
            if let Some(row) = &mut rows.erase {
                row.row(t).copy_from_slice(of_erase);
            }
            if let Some(row) = &mut rows.erase_key {
                row.row(t).copy_from_slice(&self.team.key[i * n..][..n]);
            }
        }
    }
}
