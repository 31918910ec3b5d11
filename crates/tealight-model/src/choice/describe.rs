//! What settings mean, from the types that read them: documentation, type, default, kinds.
//!
//! [`choice!`](crate::choice!), [`names!`](crate::names!) and [`settings!`](crate::settings!) implement [`Described`]
//! beside the reading, so that a reference, a schema and an error message cannot say anything else than what is read.
//! Nothing is computed until it is asked for.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::Kind;

/// A type of settings that says what it may hold.
pub trait Described {
    /// What a value may be.
    fn shape() -> Shape;

    /// The documentation of the type, with a line break after each line.
    fn about() -> &'static str {
        ""
    }
}

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// An integer that is not negative, up to the greatest of its type; `None`: of 64 bits.
    Integer {
        /// The greatest value.
        greatest: Option<u64>,
    },
    /// A number, with or without a fraction.
    Number,
    /// A text.
    Text,
    /// The path of a file or folder.
    Path,
    /// One of a few words.
    Words(&'static [Kind]),
    /// An array, of this length if it is fixed.
    List {
        /// What an element may be.
        item: Box<Shape>,
        /// The number of elements.
        len: Option<usize>,
    },
    /// A table of settings.
    Table(Vec<Field>),
    /// A table of settings, or the value of the first of them alone.
    TableOrFirst(Vec<Field>),
    /// A table with `kind`, or the name of a kind.
    Choice(Alternatives),
}

/// The kinds of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternatives {
    /// The type in Rust: the same choice may stand at several keys.
    pub type_name: &'static str,
    /// All kinds, in the order of the variants.
    pub kinds: Vec<Alternative>,
}

/// A kind of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The value of `kind`.
    pub name: &'static str,
    /// The documentation, with a line break after each line.
    pub doc: &'static str,
    /// The settings of this kind.
    pub fields: Vec<Field>,
}

impl Alternative {
    /// The first paragraph of the documentation, as plain text.
    pub fn summary(&self) -> String {
        first_paragraph(&plain(self.doc)).to_owned()
    }
}

/// A setting of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its key.
    pub name: &'static str,
    /// The documentation, with a line break after each line.
    pub doc: &'static str,
    /// The documentation of its type, which may say more.
    pub about: &'static str,
    /// What its value may be.
    pub shape: Shape,
    /// Its value when it is absent; `None` if that is no value of its own.
    pub default: Option<Value>,
    /// Whether it must be given.
    pub is_required: bool,
}

impl Field {
    /// A setting that may be left out.
    pub fn optional<T: Described + Serialize>(
        name: &'static str,
        doc: &'static str,
        default: &T,
    ) -> Self {
        let default = serde_json::to_value(default).ok().filter(|value| !value.is_null());
        Self { name, doc, about: T::about(), shape: T::shape(), default, is_required: false }
    }

    /// A setting that must be given.
    pub fn required<T: Described>(name: &'static str, doc: &'static str) -> Self {
        let default = None;
        Self { name, doc, about: T::about(), shape: T::shape(), default, is_required: true }
    }
}

impl Field {
    /// What it means, in plain text: its documentation, and that of its type where the former only names the table.
    pub fn meaning(&self) -> String {
        let (own, of_type) = (plain(self.doc), plain(self.about));
        let only_names =
            own.starts_with('`') && own.ends_with('`') && own.matches('`').count() == 2;
        if (own.is_empty() || only_names) && !of_type.is_empty() { of_type } else { own }
    }
}

impl Shape {
    /// The settings of a table; none of any other shape.
    pub fn into_fields(self) -> Vec<Field> {
        if let Self::Table(fields) = self { fields } else { Vec::new() }
    }
}

/// A doc comment as plain text: paragraphs on one line each, links without their targets.
pub fn plain(doc: &str) -> String {
    let paragraph = |text: &str| {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        without_links(&lines.join(" "))
    };
    let lines: Vec<&str> = doc.lines().map(str::trim).collect();
    let paragraphs: Vec<String> = lines.join("\n").split("\n\n").map(paragraph).collect();
    paragraphs.join("\n").trim().to_owned()
}

/// The first paragraph of a [`plain`] text.
pub fn first_paragraph(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The links `[a](b)` and `[a]`, where a is code, become a; other brackets stay.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        // "`[model]`" is a table in code, not a link.
        let in_code = before.matches('`').count() % 2 == 1;
        if let Some((name, after)) = after.split_once("`]").filter(|_| !in_code) {
            plain.extend([before, "`", name, "`"]);
            let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
            rest = target.map_or(after, |(_, after)| after);
        } else {
            plain.extend([before, "[`"]);
            rest = after;
        }
    }
    plain + rest
}

macro_rules! described {
    ($($type:ty => $shape:expr),+ $(,)?) => {$(
        impl Described for $type {
            fn shape() -> Shape {
                $shape
            }
        }
    )+};
}

described! {
    bool => Shape::Boolean,
    u8 => Shape::Integer { greatest: Some(u8::MAX.into()) },
    u32 => Shape::Integer { greatest: Some(u32::MAX.into()) },
    u64 => Shape::Integer { greatest: None },
    usize => Shape::Integer { greatest: None },
    // May be negative, as `Shape::Integer` may not.
    i64 => Shape::Number,
    f64 => Shape::Number,
    String => Shape::Text,
    PathBuf => Shape::Path,
}

impl<T: Described> Described for Option<T> {
    fn shape() -> Shape {
        T::shape()
    }

    fn about() -> &'static str {
        T::about()
    }
}

impl<T: Described> Described for Vec<T> {
    fn shape() -> Shape {
        Shape::List { item: Box::new(T::shape()), len: None }
    }

    fn about() -> &'static str {
        T::about()
    }
}

impl<T: Described, const N: usize> Described for [T; N] {
    fn shape() -> Shape {
        Shape::List { item: Box::new(T::shape()), len: Some(N) }
    }
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "`settings!` makes public structs")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::choice::choice;
    use crate::choice::names::names;
    use crate::choice::settings::settings;

    settings! {
        /// `[filter]`
        pub struct Filter {
            /// How many taps
            /// it has.
            ///
            /// At least one.
            pub taps: usize = 7,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub side: Option<Side> = None,
            /// The weights.
            pub weights: [f64; 3] = [0., 0.5, 1.],
        }
    }

    names! {
        /// Which side.
        pub enum Side {
            /// Before.
            "left" => Left,
            /// After.
            "right" => Right,
        }
    }

    choice! {
        /// `[kernel]`
        pub enum Kernel = "none" {
            /// A filter
            /// of taps.
            "filter" => Filter(Filter),
            /// Nothing.
            "none" => None,
        }
    }

    #[test]
    fn macros_describe_what_they_read() {
        let Shape::Choice(choice) = Kernel::shape() else { panic!("a choice") };
        let [filter, none] = &choice.kinds[..] else { panic!("{choice:?}") };
        assert_eq!((filter.name, plain(filter.doc)), ("filter", "A filter of taps.".to_owned()));
        assert_eq!((none.name, &none.fields[..]), ("none", &[][..]));
        assert_eq!(Kernel::default().kind(), "none");
        let [taps, side, weights] = &filter.fields[..] else { panic!("{filter:?}") };
        assert_eq!(taps.meaning(), "How many taps it has.\nAt least one.");
        assert_eq!(taps.default, Some(json!(7)));
        assert_eq!(taps.shape, Shape::Integer { greatest: None });
        assert_eq!((side.doc, &side.default), ("", &None));
        assert!(matches!(side.shape, Shape::Words([left, _]) if left.name == "left"));
        assert_eq!(weights.default, Some(json!([0., 0.5, 1.])));
        let item = Box::new(Shape::Number);
        assert_eq!(weights.shape, Shape::List { item, len: Some(3) });
    }

    #[test]
    fn links_lose_their_targets_and_tables_keep_their_brackets() {
        assert_eq!(plain("see [`a`](b) and [`c`], not `[d]`"), "see `a` and `c`, not `[d]`");
        assert_eq!(plain(" `[[a]]` at\n [1, 2]"), "`[[a]]` at [1, 2]");
    }
}
