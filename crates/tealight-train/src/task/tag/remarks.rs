//! What a user should know about tagged sentences before they are trained on.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::shown::on_one_line;
use crate::data::tags::scheme::{Entity, Scheme};
use crate::data::tags::{Content, Sentence};
use crate::task::table::thousands;

/// Sentences with the scheme of their tags.
type Split<'a> = (&'a [Sentence], Option<Scheme>);

/// Remarks on the sentences of both splits, a line each; the second may be empty.
pub(super) fn remarks(splits: [Split<'_>; 2]) -> Vec<String> {
    let mut types: BTreeMap<String, u64> = BTreeMap::new();
    let mut n_odd = 0;
    for (sentence, scheme) in splits
        .iter()
        .flat_map(|&(sentences, scheme)| sentences.iter().map(move |one| (one, scheme)))
    {
        let entities = match &sentence.content {
            Content::Words { tags, .. } => {
                let scheme = scheme.unwrap_or(Scheme::Iob2);
                let entities = scheme.entities(tags);
                // Where IOB1 has faults, the strict reading drops entities that are none.
                let is_odd = scheme != Scheme::Iob1
                    && scheme.strict(tags).is_ok_and(|strict| strict != entities);
                n_odd += u64::from(is_odd);
                entities
            }
            Content::Text { entities, .. } => entities.clone(),
        };
        for Entity { label, .. } in entities {
            *types.entry(label).or_default() += 1;
        }
    }
    let [(train, scheme), (validation, _)] = splits;
    let mut by_count: Vec<_> = types.into_iter().collect();
    by_count.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let listed: Vec<_> = by_count
        .iter()
        .map(|(label, n)| format!("\"{}\" {}", on_one_line(label), thousands(*n)))
        .collect();
    let what = if scheme == Some(Scheme::None) { "tags" } else { "entities" };
    let counts = (!listed.is_empty()).then(|| format!("{what}: {}", listed.join(", ")));
    let odd = (n_odd > 0).then(|| {
        format!(
            "sentences with tags that their scheme does not allow, such as an entity that does not begin: {}. They are read \
             as conlleval reads them",
            thousands(n_odd)
        )
    });
    counts.into_iter().chain(odd).chain(repeated(train, validation)).collect()
}

/// Sentences that occur more than once, those with unlike tags, and those of both splits.
fn repeated(train: &[Sentence], validation: &[Sentence]) -> Vec<String> {
    let mut texts: BTreeMap<String, Vec<&Sentence>> = BTreeMap::new();
    for sentence in train.iter().chain(validation) {
        texts.entry(sentence.text()).or_default().push(sentence);
    }
    let n_repeated = texts.values().filter(|all| all.len() > 1).count();
    let is_unlike = |all: &&Vec<&Sentence>| all.iter().any(|one| one.content != all[0].content);
    let n_unlike = texts.values().filter(is_unlike).count();
    let trained: BTreeSet<String> = train.iter().map(Sentence::text).collect();
    let n_both = validation.iter().filter(|one| trained.contains(&one.text())).count();
    let told = |what: &str, n: usize| (n > 0).then(|| format!("{what}: {}", thousands(n as u64)));
    [
        told("sentences that occur more than once", n_repeated),
        told("sentences that occur with different tags", n_unlike),
        told("held-out sentences that are trained on, too", n_both),
    ]
    .into_iter()
    .flatten()
    .collect()
}
