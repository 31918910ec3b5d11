//! Schemes of tags: how a tag for each word marks where entities begin and end.
//!
//! ```text
//!          Anna  Müller  visits  New    York   .
//! iob2     B-PER I-PER   O       B-LOC  I-LOC  O
//! iob1     I-PER I-PER   O       I-LOC  I-LOC  O      B- only where an entity touches another one of its type
//! ioe2     I-PER E-PER   O       I-LOC  E-LOC  O
//! iobes    B-PER E-PER   O       B-LOC  E-LOC  O      S- for an entity of one word
//! bilou    B-PER L-PER   O       B-LOC  L-LOC  O      U- for an entity of one word
//! ```
//!
//! Tags are read in two ways, as seqeval (<https://github.com/chakki-works/seqeval>) reads them. The lenient one is that
//! of conlleval (Tjong Kim Sang & Buchholz 2000, <https://aclanthology.org/W00-0726>): a tag of another type, or a word
//! behind the end of an entity, begins one, whatever the scheme. The strict one knows only what the scheme allows.

use std::collections::BTreeSet;

use tealight_model::names;

use crate::data::shown::on_one_line;

/// The tag of a word outside of all entities.
pub const OUTSIDE: &str = "O";

names! {
    /// How tags mark where entities begin and end.
    pub enum Scheme {
        /// B- begins every entity, I- goes on.
        "iob2" => Iob2,
        /// I- marks entities, and B- begins one that touches another of its type.
        "iob1" => Iob1,
        /// E- ends every entity, I- stands before it.
        "ioe2" => Ioe2,
        /// B-, I-, E-, and S- for an entity of one word.
        "iobes" => Iobes,
        /// B-, I-, L-, and U- for an entity of one word.
        "bilou" => Bilou,
        /// Tags have no parts, and each is one of a word: parts of speech.
        "none" => None,
    }
}

/// An entity: its type, and its first word and the one behind its last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entity {
    /// The type, such as `PER`.
    pub label: String,
    /// The first word.
    pub start: usize,
    /// The word behind the last one.
    pub end: usize,
}

/// A tag in its parts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag<'a> {
    prefix: char,
    label: &'a str,
}

const END: Tag<'static> = Tag { prefix: 'O', label: "" };

impl<'a> Tag<'a> {
    /// Splits a tag into its first character and the type behind the first hyphen; a tag without a type has the type `_`.
    fn lenient(tag: &'a str) -> Self {
        let mut chars = tag.chars();
        let prefix = chars.next().unwrap_or('O');
        let rest = chars.as_str();
        let label = rest.split_once('-').map_or(rest, |(_, label)| label);
        Self { prefix, label: if label.is_empty() { "_" } else { label } }
    }

    /// The first character, and the rest without hyphens at its ends.
    fn strict(tag: &'a str) -> Self {
        let mut chars = tag.chars();
        let prefix = chars.next().unwrap_or('O');
        let label = chars.as_str().trim_matches('-');
        Self { prefix, label: if label.is_empty() { "_" } else { label } }
    }
}

/// The entities of a sentence's tags by the rules of conlleval, whatever the scheme.
pub fn lenient<S: AsRef<str>>(tags: &[S]) -> Vec<Entity> {
    chunks(tags.iter().map(|tag| Tag::lenient(tag.as_ref())))
}

fn chunks<'a>(tags: impl Iterator<Item = Tag<'a>>) -> Vec<Entity> {
    let (mut entities, mut before, mut start) = (Vec::new(), END, 0);
    for (at, tag) in tags.chain([Tag { prefix: 'O', label: "_" }]).enumerate() {
        let is_other = tag.label != before.label;
        let was_inside = !matches!(before.prefix, 'O' | '.');
        let is_inside = !matches!(tag.prefix, 'O' | '.');
        let ends = match before.prefix {
            'E' | 'S' => true,
            'B' | 'I' if matches!(tag.prefix, 'B' | 'S' | 'O') => true,
            _ => was_inside && is_other,
        };
        if ends {
            entities.push(Entity { label: before.label.to_owned(), start, end: at });
        }
        let begins = match (before.prefix, tag.prefix) {
            (_, 'B' | 'S') | ('E' | 'S' | 'O', 'E' | 'I') => true,
            _ => is_inside && is_other,
        };
        if begins {
            start = at;
        }
        before = tag;
    }
    entities
}

impl Scheme {
    /// The prefixes of its tags.
    fn prefixes(self) -> &'static [char] {
        match self {
            Self::Iob2 | Self::Iob1 => &['B', 'I'],
            Self::Ioe2 => &['I', 'E'],
            Self::Iobes => &['B', 'I', 'E', 'S'],
            Self::Bilou => &['B', 'I', 'L', 'U'],
            Self::None => &[],
        }
    }

    /// The scheme of the sentences of a file, by their tags.
    pub fn found<S: AsRef<str>>(sentences: &[Vec<S>]) -> Self {
        let tags = || sentences.iter().flatten().map(AsRef::as_ref);
        let prefixes: BTreeSet<char> = tags().filter_map(prefix).collect();
        let has = |prefix: char| prefixes.contains(&prefix);
        let n_prefixed = tags().filter(|tag| prefix(tag).is_some()).count();
        let n_bare = tags().filter(|tag| is_bare(tag)).count();
        if prefixes.is_empty() || n_prefixed < n_bare {
            Self::None
        } else if has('U') || has('L') {
            Self::Bilou
        } else if has('S') || has('E') && has('B') {
            Self::Iobes
        } else if has('E') {
            Self::Ioe2
        } else if has('B') && !sentences.iter().any(|sentence| begins_by('I', sentence)) {
            Self::Iob2
        } else if sentences.iter().any(|sentence| begins_by('B', sentence)) {
            // Some entities begin by B- that would need none, others by I-: the latter are faults.
            Self::Iob2
        } else {
            Self::Iob1
        }
    }

    /// The scheme of a model with these labels.
    pub fn of_labels<S: AsRef<str>>(labels: &[S]) -> Self {
        let tags: Vec<Vec<&str>> = vec![labels.iter().map(AsRef::as_ref).collect()];
        match Self::found(&tags) {
            // Labels are not in the order of a sentence, so their neighbours do not tell these two schemes apart.
            Self::Iob1 if labels.iter().any(|label| prefix(label.as_ref()) == Some('B')) => {
                Self::Iob2
            }
            found => found,
        }
    }

    /// The entities of a sentence's tags by the lenient rules, with U- and L- read as S- and E-; without a scheme each word
    /// with another tag than `O`.
    pub fn entities<S: AsRef<str>>(self, tags: &[S]) -> Vec<Entity> {
        match self {
            Self::None => {
                let tags = tags.iter().map(AsRef::as_ref).enumerate();
                tags.filter(|(_, tag)| *tag != OUTSIDE)
                    .map(|(at, tag)| Entity { label: tag.to_owned(), start: at, end: at + 1 })
                    .collect()
            }
            Self::Bilou => chunks(tags.iter().map(|tag| {
                let Tag { prefix, label } = Tag::lenient(tag.as_ref());
                let prefix = match prefix {
                    'U' => 'S',
                    'L' => 'E',
                    other => other,
                };
                Tag { prefix, label }
            })),
            _ => lenient(tags),
        }
    }

    /// The entities that the scheme allows; tags that form none are left out.
    ///
    /// # Errors
    /// If a tag has a prefix that the scheme does not have. The error names the tag.
    pub fn strict<S: AsRef<str>>(self, tags: &[S]) -> Result<Vec<Entity>, String> {
        if self == Self::None {
            return Ok(self.entities(tags));
        }
        let read = tags.iter().map(|tag| Tag::strict(tag.as_ref()));
        let read: Vec<Tag<'_>> = read.chain([END]).collect();
        let is_known = |tag: &Tag<'_>| tag.prefix == 'O' || self.prefixes().contains(&tag.prefix);
        if let Some(at) = read.iter().position(|tag| !is_known(tag)) {
            return Err(format!("\"{}\" is no tag of the scheme", on_one_line(tags[at].as_ref())));
        }
        let (mut entities, mut at) = (Vec::new(), 0);
        while at < tags.len() {
            let before = if at == 0 { END } else { read[at - 1] };
            let start = at;
            at += 1;
            if !self.begins(before, read[start]) {
                continue;
            }
            while at < tags.len() && self.goes_on(read[at - 1], read[at]) {
                at += 1;
            }
            if self.ends(read[at - 1], read[at]) {
                let label = read[start].label.to_owned();
                entities.push(Entity { label, start, end: at });
            }
        }
        Ok(entities)
    }

    fn begins(self, before: Tag<'_>, tag: Tag<'_>) -> bool {
        let is_same = before.label == tag.label;
        match (self, before.prefix, tag.prefix) {
            (Self::Iob2, _, 'B')
            | (Self::Iobes, _, 'B' | 'S')
            | (Self::Bilou, _, 'B' | 'U')
            | (Self::Iob1, 'O' | 'B', 'I')
            | (Self::Ioe2, 'O' | 'E', 'I' | 'E') => true,
            (Self::Iob1, 'I', 'I') | (Self::Ioe2, 'I', 'I' | 'E') => !is_same,
            (Self::Iob1, 'I' | 'B', 'B') => is_same,
            _ => false,
        }
    }

    fn goes_on(self, before: Tag<'_>, tag: Tag<'_>) -> bool {
        let fits = match self {
            Self::Iob2 | Self::Iob1 => matches!((before.prefix, tag.prefix), ('B' | 'I', 'I')),
            Self::Ioe2 => matches!((before.prefix, tag.prefix), ('I', 'I' | 'E')),
            Self::Iobes => matches!((before.prefix, tag.prefix), ('B' | 'I', 'I' | 'E')),
            Self::Bilou => matches!((before.prefix, tag.prefix), ('B' | 'I', 'I' | 'L')),
            Self::None => false,
        };
        fits && before.label == tag.label
    }

    /// Whether an entity may end with `last` before `next`.
    fn ends(self, last: Tag<'_>, next: Tag<'_>) -> bool {
        match self {
            Self::Iob2 | Self::None => true,
            Self::Iob1 => (last.prefix, next.prefix) != ('B', 'B') || last.label == next.label,
            Self::Ioe2 => last.prefix == 'E',
            Self::Iobes => matches!(last.prefix, 'E' | 'S'),
            Self::Bilou => matches!(last.prefix, 'L' | 'U'),
        }
    }

    /// The tags of `n` words with these entities, which are in order and do not overlap.
    pub fn tags(self, entities: &[Entity], n: usize) -> Vec<String> {
        let mut tags = vec![OUTSIDE.to_owned(); n];
        let mut before: Option<&Entity> = None;
        for entity in entities {
            let Entity { label, start, end } = entity;
            let touches =
                before.is_some_and(|before| before.end == *start && before.label == *label);
            let n_words = *end - *start;
            for (at, tag) in tags[*start..*end].iter_mut().enumerate() {
                *tag = match self.prefix(at == 0, at + 1 == n_words, touches) {
                    Some(prefix) => format!("{prefix}-{label}"),
                    None => label.clone(),
                };
            }
            before = Some(entity);
        }
        tags
    }

    fn prefix(self, is_first: bool, is_last: bool, touches: bool) -> Option<char> {
        Some(match (self, is_first, is_last) {
            (Self::None, ..) => return None,
            (Self::Iobes, true, true) => 'S',
            (Self::Bilou, true, true) => 'U',
            (Self::Iobes | Self::Bilou | Self::Iob2, true, _) => 'B',
            (Self::Iob1, true, _) if touches => 'B',
            (Self::Iobes | Self::Ioe2, _, true) => 'E',
            (Self::Bilou, _, true) => 'L',
            _ => 'I',
        })
    }

    /// The tag of a further piece of a word with this tag: an entity does not begin again within it.
    pub fn continued(self, tag: &str) -> String {
        match (self, prefix(tag)) {
            (Self::None, _) | (_, None) => tag.to_owned(),
            (_, Some('B' | 'S' | 'U')) => format!("I{}", &tag[1..]),
            _ => tag.to_owned(),
        }
    }
}

/// The type of a tag, without its prefix; `None` for `O`.
pub fn type_of(tag: &str) -> Option<&str> {
    match prefix(tag) {
        _ if tag == OUTSIDE => None,
        Some(_) => Some(&tag[2..]),
        None => Some(tag),
    }
}

/// The prefix of a tag, such as `B` of `B-PER`.
fn prefix(tag: &str) -> Option<char> {
    let mut chars = tag.chars();
    let prefix = chars.next().filter(|c| "BIESUL".contains(*c))?;
    (chars.next() == Some('-') && chars.next().is_some()).then_some(prefix)
}

/// Whether a tag has no prefix, and is not `O`.
pub(super) fn is_bare(tag: &str) -> bool {
    tag != OUTSIDE && prefix(tag).is_none()
}

/// Whether a tag with this prefix begins an entity that touches none of its type.
fn begins_by<S: AsRef<str>>(wanted: char, tags: &[S]) -> bool {
    let mut before = OUTSIDE;
    tags.iter().map(AsRef::as_ref).any(|tag| {
        let is_other = type_of(before) != type_of(tag);
        before = tag;
        prefix(tag) == Some(wanted) && is_other
    })
}

#[cfg(test)]
mod tests {
    use tealight_model::names::Named as _;

    use super::*;

    const ALL: [Scheme; 5] =
        [Scheme::Iob2, Scheme::Iob1, Scheme::Ioe2, Scheme::Iobes, Scheme::Bilou];

    fn entity(label: &str, start: usize, end: usize) -> Entity {
        Entity { label: label.to_owned(), start, end }
    }

    #[test]
    fn tags_of_entities_are_read_back_strictly_and_leniently() {
        let entities = [
            entity("creative-work", 0, 1),
            entity("PER", 2, 4),
            entity("PER", 4, 5),
            entity("LOC", 5, 8),
        ];
        for scheme in ALL {
            let tags = scheme.tags(&entities, 9);
            assert_eq!(scheme.entities(&tags), entities, "{scheme:?} {tags:?}");
            assert_eq!(Scheme::found(std::slice::from_ref(&tags)), scheme, "{tags:?}");
            assert_eq!(scheme.strict(&tags).unwrap(), entities, "{scheme:?} {tags:?}");
        }
        let tags = Scheme::Iob1.tags(&entities, 9);
        assert_eq!(tags[2..6], ["I-PER", "I-PER", "B-PER", "I-LOC"]);
        let tags = Scheme::None.tags(&entities, 9);
        assert_eq!(tags[1..4], ["O", "PER", "PER"]);
        assert_eq!(Scheme::found(&[vec!["NOUN", "VERB", "O"]]), Scheme::None);
        assert_eq!(Scheme::of_labels(&["B-PER", "I-LOC", "I-PER", "O"]), Scheme::Iob2);
        assert_eq!(Scheme::ALL.len(), 6);
    }

    #[test]
    fn a_malformed_sequence_is_read_as_conlleval_reads_it_and_not_strictly() {
        let tags = ["O", "I-PER", "I-PER", "B-PER", "I-LOC", "O", "I-LOC"];
        let lenient =
            [entity("PER", 1, 3), entity("PER", 3, 4), entity("LOC", 4, 5), entity("LOC", 6, 7)];
        assert_eq!(super::lenient(&tags), lenient);
        assert_eq!(Scheme::Iob2.strict(&tags).unwrap(), [entity("PER", 3, 4)]);
        assert_eq!(Scheme::Iobes.strict(&tags).unwrap(), []);
        // B- without a touching entity of its type begins none in IOB1.
        assert_eq!(Scheme::Iob1.strict(&["B-PER", "I-PER"]).unwrap(), [entity("PER", 1, 2)]);
        let error = Scheme::Iob2.strict(&["O", "S-PER"]).unwrap_err();
        assert_eq!(error, "\"S-PER\" is no tag of the scheme");
    }

    #[test]
    fn one_file_with_a_few_faults_keeps_its_scheme() {
        let sentences = [vec!["B-PER", "I-PER", "O"], vec!["O", "I-PER"], vec!["B-LOC", "O"]];
        assert_eq!(Scheme::found(&sentences), Scheme::Iob2);
        // A tag that lost its prefix is one more fault.
        assert_eq!(Scheme::found(&[vec!["B-PER", "PER", "I-LOC"]]), Scheme::Iob2);
        assert_eq!(Scheme::of_labels(&["B-PER", "I-PER", "O", "X", "[CLS]"]), Scheme::Iob2);
        let touching = [vec!["I-PER", "B-PER", "O"], vec!["O", "I-LOC", "I-LOC"]];
        assert_eq!(Scheme::found(&touching), Scheme::Iob1);
    }

    #[test]
    fn a_further_piece_of_a_word_begins_nothing() {
        let continued = |tag| Scheme::Iobes.continued(tag);
        assert_eq!(continued("B-PER"), "I-PER");
        assert_eq!(continued("S-PER"), "I-PER");
        assert_eq!(continued("E-PER"), "E-PER");
        assert_eq!(continued("O"), "O");
        assert_eq!(Scheme::None.continued("B-X"), "B-X");
        assert_eq!(type_of("B-creative-work"), Some("creative-work"));
        assert_eq!(type_of("NOUN"), Some("NOUN"));
    }
}
