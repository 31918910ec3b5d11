//! Rows of parameters that stand for tokens or labels, and the rows of a trained model that they are initialised from.
//!
//! ```text
//! a run                      the trained model
//! row of the token "sun"  ◄─ row of the token "sun"
//! row of "sunflower"      ◄─ mean of the rows of its pieces there, "sun" and "##flower"
//! row of "☉"              ◄─ nothing: it keeps its random initial values
//! ```

use std::collections::BTreeMap;
use std::fmt;

use candle_core::{DType, Tensor};

use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::labels::{Labels, UNNAMED};
use crate::task::table::thousands;

/// Where the rows of a run's parameters come from.
#[derive(Debug)]
pub(super) struct RowMap {
    /// By row of the run: the rows of the trained model whose mean it becomes; none: it keeps its initial values.
    sources: Vec<Vec<u32>>,
    /// Whether every row comes from the same row.
    pub(super) is_identity: bool,
    pub(super) report: RowReport,
}

/// How many rows were initialised from what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowReport {
    /// What the rows stand for, in the plural.
    what: &'static str,
    /// Those of the same token or label.
    n_same: usize,
    /// Means over the pieces of a token.
    n_means: usize,
    /// Randomly initialised.
    n_fresh: usize,
}

impl fmt::Display for RowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, n_same, n_means, n_fresh } = self;
        let counts = [
            (n_same, "as in the model"),
            (n_means, "from the mean of their pieces"),
            (n_fresh, "randomly initialised"),
        ];
        let shown = counts.into_iter().filter(|(n, _)| **n > 0);
        let shown = shown.map(|(n, how)| format!("{} {how}", thousands(*n as u64)));
        write!(f, "{what}: {}", shown.collect::<Vec<_>>().join(", "))
    }
}

impl RowMap {
    /// From the rows of the `old` tokenizer's tokens to those of the `new`. A token takes the row of the token with the
    /// same role or, if both tokenizers write tokens alike, of the same name; another the mean of the rows of its pieces.
    ///
    /// # Errors
    /// If the old tokenizer fails on the text of a token.
    pub(super) fn of_tokens(new: &Tokenizer, old: &Tokenizer) -> Result<Self> {
        let old_roles: BTreeMap<_, _> = old.special().named().collect();
        let roles = new.special().named();
        let roles: BTreeMap<u32, u32> =
            roles.filter_map(|(role, id)| Some((id, *old_roles.get(role)?))).collect();
        let is_alike = new.writes_like(old);
        let mut map = Self::empty("tokens");
        for id in 0..new.vocab_size() as u32 {
            let Some(name) = new.token(id) else {
                // An id without a token.
                match old.token(id) {
                    None => map.push_same(id),
                    Some(_) => map.push(Vec::new()),
                }
                continue;
            };
            let of_name = || old.id(&name).filter(|_| is_alike || new.is_special(id));
            if let Some(same) = roles.get(&id).copied().or_else(of_name) {
                map.push_same(same);
            } else if new.is_special(id) {
                map.push(Vec::new());
            } else {
                map.push(pieces(&new.surface(id)?, old)?);
            }
        }
        Ok(map)
    }

    /// From the rows of the `old` labels to those of the `new`, by name.
    pub(super) fn of_labels(new: &Labels, old: &Labels) -> Self {
        let mut map = Self::empty("labels");
        // A single output without a name is the only one of a model, whatever that is called.
        if let ([new], [_]) = (new.names(), old.names())
            && new == UNNAMED
        {
            map.push_same(0);
            return map;
        }
        for name in new.names() {
            let place = old.names().iter().position(|other| other == name);
            match place.filter(|_| new.objective() == old.objective()) {
                Some(place) => map.push_same(place as u32),
                None => map.push(Vec::new()),
            }
        }
        map.is_identity &= new.objective() == old.objective();
        map
    }

    fn empty(what: &'static str) -> Self {
        let report = RowReport { what, n_same: 0, n_means: 0, n_fresh: 0 };
        Self { sources: Vec::new(), is_identity: true, report }
    }

    fn push_same(&mut self, source: u32) {
        self.is_identity &= source as usize == self.sources.len();
        self.sources.push(vec![source]);
        self.report.n_same += 1;
    }

    fn push(&mut self, sources: Vec<u32>) {
        self.is_identity = false;
        let count =
            if sources.is_empty() { &mut self.report.n_fresh } else { &mut self.report.n_means };
        *count += 1;
        self.sources.push(sources);
    }

    /// The parameter of the run: its `initial` values, and the rows of `old` that take their places. `None` if the two
    /// differ in another axis than that of the rows.
    pub(super) fn apply(&self, old: &Tensor, initial: &Tensor) -> Result<Option<Tensor>> {
        if old.dims().get(1..) != initial.dims().get(1..) {
            return Ok(None);
        }
        let values = |x: &Tensor| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let (old, mut rows) = (values(old)?, values(initial)?);
        let width = initial.dims()[1..].iter().product::<usize>().max(1);
        for (row, sources) in rows.chunks_exact_mut(width).zip(&self.sources) {
            let of_source = |&source: &u32| old.get(source as usize * width..)?.get(..width);
            let found: Vec<&[f32]> = sources.iter().filter_map(of_source).collect();
            if found.is_empty() {
                continue;
            }
            for (column, x) in row.iter_mut().enumerate() {
                let sum: f64 = found.iter().map(|source| f64::from(source[column])).sum();
                *x = (sum / found.len() as f64) as f32;
            }
        }
        Ok(Some(Tensor::from_vec(rows, initial.shape(), initial.device())?))
    }
}

/// The tokens of `text`, without those that stand for text that the vocabulary lacks.
fn pieces(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    // A token that is a part of a character has no text of its own.
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Ok(Vec::new());
    }
    let mut ids = tokenizer.encode_plain(text)?;
    ids.retain(|&id| Some(id) != tokenizer.special().unknown);
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use serde_json::json;

    use super::*;
    use crate::inference::labels::Objective;

    fn labels(names: &[&str]) -> Labels {
        Labels::new(Objective::Classes, names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn rows_follow_their_labels_and_new_labels_keep_their_initial_rows() -> Result<()> {
        let (old, new) = (labels(&["cat", "dog", "owl"]), labels(&["owl", "ant", "cat"]));
        let map = RowMap::of_labels(&new, &old);
        assert!(!map.is_identity && RowMap::of_labels(&old, &old).is_identity);
        let trained = Tensor::new(&[[1_f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
        let initial = Tensor::full(9_f32, (3, 2), &Device::Cpu)?;
        let rows = map.apply(&trained, &initial)?.unwrap();
        assert_eq!(rows.to_vec2::<f32>()?, [[5., 6.], [9., 9.], [1., 2.]]);
        assert_eq!(map.report.to_string(), "labels: 2 as in the model, 1 randomly initialised");
        let bias = map.apply(&Tensor::new(&[1_f32, 2., 3.], &Device::Cpu)?, &initial.get(0)?);
        // Vectors of another length than the number of labels: what has no row is left.
        assert_eq!(bias?.unwrap().to_vec1::<f32>()?, [3., 9.]);
        assert!(map.apply(&trained, &Tensor::zeros((3, 5), DType::F32, &Device::Cpu)?)?.is_none());
        Ok(())
    }

    /// A tokenizer with this vocabulary: of WordPiece if `prefix` marks continued words, else of whole words.
    fn tokenizer(names: &[&str], prefix: Option<&str>) -> Result<Tokenizer> {
        let vocabulary: serde_json::Map<_, _> =
            names.iter().zip(0..).map(|(&name, id)| (name.to_owned(), json!(id))).collect();
        let mut model = json!({ "type": "WordLevel", "unk_token": "[UNK]", "vocab": vocabulary });
        if let Some(prefix) = prefix {
            model["type"] = json!("WordPiece");
            model["continuing_subword_prefix"] = json!(prefix);
            model["max_input_chars_per_word"] = json!(100);
        }
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null,
            "decoder": null, "model": model,
        });
        Tokenizer::from_json(file.to_string().as_bytes(), "test".as_ref())
    }

    #[test]
    fn a_token_takes_its_own_row_or_the_mean_of_its_pieces() -> Result<()> {
        let old = tokenizer(&["[UNK]", "[MASK]", "sun", "##flower", "##s", "flower"], Some("##"))?;
        let new = ["[MASK]", "sunflower", "sun", "##flower", "☉", "[UNK]"];
        let map = RowMap::of_tokens(&tokenizer(&new, Some("##"))?, &old)?;
        assert_eq!(map.sources, [vec![1], vec![2, 3], vec![2], vec![3], vec![], vec![0]]);
        let report =
            "tokens: 4 as in the model, 1 from the mean of their pieces, 1 randomly initialised";
        assert_eq!(map.report.to_string(), report);
        assert!(RowMap::of_tokens(&old, &old)?.is_identity);
        // In a vocabulary of words, "##s" is no end of a word.
        let words = tokenizer(&["[UNK]", "[MASK]", "suns", "##s"], None)?;
        let words = RowMap::of_tokens(&words, &old)?;
        assert_eq!(words.sources, [vec![0], vec![1], vec![2, 4], vec![]]);
        Ok(())
    }

    #[test]
    fn scores_are_no_classes() {
        let new = Labels::new(Objective::Labels, vec!["cat".to_owned()]);
        assert_eq!(RowMap::of_labels(&new, &labels(&["cat"])).report.n_fresh, 1);
    }
}
