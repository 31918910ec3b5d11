//! Word dropout (Iyyer et al. 2015, <https://aclanthology.org/P15-1162/>): whenever a text is trained on, another part of
//! its tokens is missing, so that the model learns its label from any part instead of learning few texts by heart.

use tealight_ops::rng::{Purpose, Stream};

use crate::inference::text_classifier::encoder::Tokens;

/// Leaves out tokens at random.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenDropout {
    /// The share of the tokens that are left out.
    rate: f64,
    stream: Stream,
}

impl TokenDropout {
    /// `None` at a rate of 0.
    pub(super) fn new(rate: f64, seed: u64) -> Option<Self> {
        let stream = Stream::new(seed, Purpose::Data).fork_name("token_dropout");
        (rate > 0.).then_some(Self { rate, stream })
    }

    /// Leaves out tokens of the `example`-th text that is trained on. Special tokens stay; a text that would lose all
    /// others keeps them.
    pub(super) fn apply(self, tokens: &mut Tokens, is_special: impl Fn(u32) -> bool, example: u64) {
        let stream = self.stream.fork(example);
        let is_special: Vec<bool> = tokens.ids.iter().map(|&id| is_special(id)).collect();
        let stays: Vec<bool> = (0..)
            .zip(&is_special)
            .map(|(at, &is_special)| is_special || stream.uniform(at) >= self.rate)
            .collect();
        if !stays.iter().zip(&is_special).any(|(stays, is_special)| *stays && !is_special) {
            return;
        }
        for part in [&mut tokens.ids, &mut tokens.type_ids] {
            let mut stays = stays.iter();
            part.retain(|_| *stays.next().unwrap_or(&true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids 0 and 1 are special.
    fn without(rate: f64, whole: &Tokens, example: u64) -> Tokens {
        let mut tokens = whole.clone();
        TokenDropout::new(rate, 17).unwrap().apply(&mut tokens, |id| id < 2, example);
        tokens
    }

    fn text(n: u32) -> Tokens {
        let ids = [0].into_iter().chain(2..n + 2).chain([1]).collect();
        Tokens { ids, type_ids: (0..n + 2).collect() }
    }

    #[test]
    fn a_share_of_the_tokens_is_missing_and_another_each_time() {
        let whole = text(400);
        let first = without(0.4, &whole, 0);
        assert!((200..280).contains(&first.ids.len()), "{}", first.ids.len());
        assert_eq!((first.ids[0], first.ids.last()), (0, Some(&1)));
        // The types are those of the tokens that stay.
        let inner = |tokens: &[u32]| tokens[1..tokens.len() - 1].to_vec();
        let types: Vec<_> = inner(&first.ids).iter().map(|id| id - 1).collect();
        assert_eq!(inner(&first.type_ids), types);
        assert_eq!(without(0.4, &whole, 0), first);
        assert_ne!(without(0.4, &whole, 1), first);
        let untyped = Tokens { type_ids: Vec::new(), ..whole };
        assert_eq!(without(0.4, &untyped, 0), Tokens { type_ids: Vec::new(), ..first });
    }

    #[test]
    fn a_text_never_loses_all_its_tokens() {
        let whole = text(1);
        assert!((0..20).all(|example| without(0.9, &whole, example) == whole));
        assert!(TokenDropout::new(0., 17).is_none());
    }
}
