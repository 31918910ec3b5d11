//! The operands as a list of tensors, in the dtype of the computation, and back.

use candle_core::{DType, Result, Tensor};

use super::{Erase, Operands};
use crate::backend::buffer::View;
use crate::backend::element::Element;

/// The operands, cast to one dtype.
pub(super) struct Inputs {
    tensors: Vec<Tensor>,
    shape: Presence,
}

/// Which of the optional operands are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presence {
    strength: bool,
    erase: EraseKind,
    log_decay: bool,
    state: bool,
}

/// [`Erase`] without its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EraseKind {
    Nothing,
    Key,
    Along,
    Between,
}

impl EraseKind {
    /// How many matrices read: Q, and E where something is erased.
    pub(super) fn n_left(self) -> usize {
        if self == Self::Nothing { 1 } else { 2 }
    }

    /// How many matrices are read: K, and B where it is not K.
    pub(super) fn n_right(self) -> usize {
        if self == Self::Between { 2 } else { 1 }
    }
}

/// One thing for each operand.
pub(super) struct Each<X> {
    pub(super) query: X,
    pub(super) key: X,
    pub(super) value: X,
    pub(super) strength: Option<X>,
    pub(super) erase: Option<X>,
    pub(super) erase_key: Option<X>,
    pub(super) log_decay: Option<X>,
    pub(super) state: Option<X>,
}

impl Inputs {
    pub(super) fn new(operands: &Operands<'_>, dtype: DType) -> Result<Self> {
        let Operands { query, key, value, strength, erase, log_decay, state } = *operands;
        let (kind, along, of_key) = match erase {
            Erase::Nothing => (EraseKind::Nothing, None, None),
            Erase::Key => (EraseKind::Key, None, None),
            Erase::Along(e) => (EraseKind::Along, Some(e), None),
            Erase::Between { along, key } => (EraseKind::Between, Some(along), Some(key)),
        };
        let shape = Presence {
            strength: strength.is_some(),
            erase: kind,
            log_decay: log_decay.is_some(),
            state: state.is_some(),
        };
        let all = [Some(query), Some(key), Some(value), strength, along, of_key, log_decay, state];
        let tensors =
            all.into_iter().flatten().map(|x| x.to_dtype(dtype)).collect::<Result<_>>()?;
        Ok(Self { tensors, shape })
    }

    pub(super) fn tensors(&self) -> Vec<&Tensor> {
        self.tensors.iter().collect()
    }

    pub(super) fn shape(&self) -> Presence {
        self.shape
    }

    pub(super) fn operands(&self) -> Operands<'_> {
        let Each { query, key, value, strength, erase, erase_key, log_decay, state } =
            self.shape.each(self.tensors.iter());
        let erase = match (self.shape.erase, erase, erase_key) {
            (_, Some(along), Some(key)) => Erase::Between { along, key },
            (_, Some(e), None) => Erase::Along(e),
            (EraseKind::Key, None, _) => Erase::Key,
            (_, None, _) => Erase::Nothing,
        };
        Operands { query, key, value, strength, erase, log_decay, state }
    }

    /// Whether there is a decay for each feature.
    pub(super) fn decays_features(&self) -> bool {
        self.operands().log_decay.is_some_and(|x| x.rank() == 4)
    }
}

impl Presence {
    pub(super) fn erase(self) -> EraseKind {
        self.erase
    }

    /// The things of `all` by their names.
    pub(super) fn each<X>(self, mut all: impl Iterator<Item = X>) -> Each<X> {
        let mut next = || all.next().expect("invariant: one for each operand that is there");
        Each {
            query: next(),
            key: next(),
            value: next(),
            strength: self.strength.then(&mut next),
            erase: matches!(self.erase, EraseKind::Along | EraseKind::Between).then(&mut next),
            erase_key: (self.erase == EraseKind::Between).then(&mut next),
            log_decay: self.log_decay.then(&mut next),
            state: self.state.then(&mut next),
        }
    }

    /// The elements of the operands.
    pub(super) fn slices<'a, T: Element>(self, views: &'a [View<'_, T>]) -> Each<&'a [T]> {
        self.each(views.iter().map(|view| &view[..]))
    }
}

impl<X> Each<X> {
    /// The things in the order of the operands.
    pub(super) fn into_vec(self) -> Vec<X> {
        let Self { query, key, value, strength, erase, erase_key, log_decay, state } = self;
        let optional = [strength, erase, erase_key, log_decay, state];
        [query, key, value].into_iter().chain(optional.into_iter().flatten()).collect()
    }

    pub(super) fn as_mut(&mut self) -> Each<&mut X> {
        Each {
            query: &mut self.query,
            key: &mut self.key,
            value: &mut self.value,
            strength: self.strength.as_mut(),
            erase: self.erase.as_mut(),
            erase_key: self.erase_key.as_mut(),
            log_decay: self.log_decay.as_mut(),
            state: self.state.as_mut(),
        }
    }
}
