//! Settings that are tables with `kind = "…"`: which attention, which task, which optimizer.
//!
//! ```text
//! [model.attention]
//! kind = "nystrom"       selects the variant; `attention = "nystrom"` is short for a table with this key only
//! n_landmarks = 32       all other keys belong to the variant's `Config`
//! ```
//!
//! [`choice!`](crate::choice!) generates the enum; serde serializes it, a generic function deserializes it.
//! Serde's internally tagged enums buffer the whole table until they find the tag, which loses line
//! numbers and unknown keys. Here `kind` must be the first key that the deserializer yields (the
//! configuration reader of `tealight-train` ensures this, and serialization writes it first), and the
//! rest of the table is deserialized directly into the variant's `Config`.

use serde::{Deserialize, Deserializer};

pub mod describe;
pub mod names;
mod read;
pub mod settings;

#[doc(hidden)]
pub use self::read::deserialize;

/// One value of a choice's `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The value of `kind` in the TOML.
    pub name: &'static str,
    /// The first paragraph of the variant's documentation, on one line.
    pub summary: &'static str,
}

/// A setting that is a table with `kind = "…"`. Only [`choice!`](crate::choice!) implements it.
pub trait Choice: Sized {
    /// Every kind, in the order of the variants.
    const KINDS: &'static [Kind];

    /// The names of [`Self::KINDS`], as serde's errors take them.
    #[doc(hidden)]
    const NAMES: &'static [&'static str];

    /// The kind with all its settings at their defaults; `None` if there is no such kind.
    #[doc(hidden)]
    fn of_kind(kind: &str) -> Option<Self>;

    /// Deserializes the settings of `kind`. Fails with serde's error about an unknown variant if `kind` is not in
    /// [`Self::KINDS`].
    #[doc(hidden)]
    fn read<'de, D: Deserializer<'de>>(kind: &str, settings: D) -> Result<Self, D::Error>;
}

/// Generates an enum of kinds and implements [`Choice`], `Serialize` and `Deserialize` for it.
///
/// A variant holds the kind's `Config` (which is `Clone`, `Debug`, `Default`, `PartialEq`, `Serialize`,
/// [`Described`](crate::choice::describe::Described) and `Deserialize` with `deny_unknown_fields`, as those of
/// [`settings!`](crate::settings!)), or nothing. The first paragraph of its
/// documentation becomes [`Kind::summary`](crate::choice::Kind::summary).
///
/// `enum Name = "kind" { … }` also implements `Default`: that kind with all its settings at their defaults.
/// `enum Name: Trait { … }`, where every `Config` implements `Trait`, also generates
/// `Name::settings`, which returns the settings as `&dyn Trait`; those of a variant that holds nothing are
/// [`NoSettings`].
///
/// ```
/// tealight_model::settings! {
///     /// `kind = "dropout"`
///     pub struct Dropout {
///         /// The share of activations that is zeroed.
///         pub probability: f64 = 0.1,
///     }
/// }
///
/// tealight_model::choice! {
///     /// `[model.regularizer]`: how overfitting is reduced.
///     enum Regularizer = "none" {
///         /// Zeroes activations at random.
///         "dropout" => Dropout(Dropout),
///         /// No regularization.
///         "none" => None,
///     }
/// }
///
/// assert_eq!(Regularizer::default_of("dropout"), Some(Regularizer::Dropout(Dropout::default())));
/// assert_eq!(Regularizer::default().kind(), "none");
/// assert_eq!(Regularizer::KINDS[1].summary, "No regularization.");
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        $vis:vis enum $name:ident : $settings:ident $(= $default:literal)? {
            $($(#[doc = $doc:literal])* $kind:literal => $variant:ident $(($config:ty))?),+ $(,)?
        }
    ) => {
        $crate::choice! {
            $(#[doc = $about])*
            $vis enum $name $(= $default)? {
                $($(#[doc = $doc])* $kind => $variant $(($config))?),+
            }
        }

        impl $name {
            /// The settings of this value's kind, behind the trait that all kinds implement.
            $vis fn settings(&self) -> &dyn $settings {
                match self {
                    $(Self::$variant $(($crate::choice!(@named config, $config)))? => {
                        $crate::choice!(@settings $(config, $config)?)
                    })+
                }
            }
        }
    };

    (
        $(#[doc = $about:literal])*
        $vis:vis enum $name:ident $(= $default:literal)? {
            $($(#[doc = $doc:literal])* $kind:literal => $variant:ident $(($config:ty))?),+ $(,)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize)]
        #[serde(tag = "kind")]
        $vis enum $name {
            $($(#[doc = $doc])* #[serde(rename = $kind)] $variant $(($config))?),+
        }

        impl $name {
            /// Every kind, in the order of the variants.
            $vis const KINDS: &'static [$crate::choice::Kind] = &[$($crate::choice::Kind {
                name: $kind,
                summary: $crate::choice::summary(concat!($($doc),*), &[$($doc),*]),
            }),+];

            /// The name of this value's kind: the value of `kind` in the TOML.
            $vis const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $kind),+
                }
            }

            /// The kind with all its settings at their defaults; `None` if there is no such kind.
            $vis fn default_of(kind: &str) -> Option<Self> {
                match kind {
                    $($kind => Some(Self::$variant $((<$config>::default()))?),)+
                    _ => None,
                }
            }
        }

        $(impl Default for $name {
            fn default() -> Self {
                Self::default_of($default).expect("invariant: the default is one of the kinds")
            }
        })?

        impl $crate::choice::Choice for $name {
            const KINDS: &'static [$crate::choice::Kind] = Self::KINDS;

            const NAMES: &'static [&'static str] = &[$($kind),+];

            fn of_kind(kind: &str) -> Option<Self> {
                Self::default_of(kind)
            }

            fn read<'de, D: ::serde::Deserializer<'de>>(
                kind: &str,
                settings: D,
            ) -> ::std::result::Result<Self, D::Error> {
                match kind {
                    $($kind => $crate::choice!(@read settings, $variant $(($config))?),)+
                    _ => Err(::serde::de::Error::unknown_variant(kind, Self::NAMES)),
                }
            }
        }

        impl $crate::choice::describe::Described for $name {
            fn about() -> &'static str {
                concat!($($about, "\n"),*)
            }

            fn shape() -> $crate::choice::describe::Shape {
                $crate::choice::describe::Shape::Choice($crate::choice::describe::Alternatives {
                    type_name: ::std::any::type_name::<Self>(),
                    kinds: vec![$($crate::choice::describe::Alternative {
                        name: $kind,
                        doc: concat!($($doc, "\n"),*),
                        fields: $crate::choice!(@fields $(($config))?),
                    }),+],
                })
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                $crate::choice::deserialize(deserializer)
            }
        }
    };

    (@named $name:ident, $config:ty) => {
        $name
    };

    (@settings) => {
        &$crate::choice::NoSettings {}
    };
    (@settings $name:ident, $config:ty) => {
        $name
    };

    (@fields) => {
        ::std::vec::Vec::new()
    };
    (@fields ($config:ty)) => {
        <$config as $crate::choice::describe::Described>::shape().into_fields()
    };

    (@read $settings:ident, $variant:ident) => {
        <$crate::choice::NoSettings as ::serde::Deserialize>::deserialize($settings)
            .map(|_| Self::$variant)
    };
    (@read $settings:ident, $variant:ident ($config:ty)) => {
        <$config as ::serde::Deserialize>::deserialize($settings).map(Self::$variant)
    };
}

pub use choice;

/// The first paragraph of a doc comment; `doc` is the concatenation of `lines`.
#[doc(hidden)]
pub const fn summary(doc: &'static str, lines: &[&str]) -> &'static str {
    let (mut line, mut length) = (0, 0);
    while line < lines.len() && !lines[line].is_empty() {
        length += lines[line].len();
        line += 1;
    }
    doc.split_at(length).0.trim_ascii()
}

/// The settings of a kind without settings: an empty table, so that every key is rejected as unknown.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

#[cfg(test)]
#[expect(unreachable_pub, reason = "`settings!` makes public structs")]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::choice::settings::settings;

    settings! {
        pub struct Nystrom {
            pub n_landmarks: usize = 0,
            pub pinv: Option<Pinv> = None,
        }

        pub struct Pinv {
            pub n_iterations: usize = 0,
        }
    }

    choice! {
        /// `[attention]`: how positions attend to each other.
        enum Attention {
            /// Softmax over landmarks
            /// (Xiong et al. 2021).
            ///
            /// Not part of the summary.
            "nystrom" => Nystrom(Nystrom),
            /// No attention.
            "none" => None,
            "undocumented" => Undocumented,
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Model {
        attention: Attention,
        d_model: usize,
    }

    fn model(attention: Attention) -> Model {
        Model { attention, d_model: 33 }
    }

    fn read(attention: &str) -> Model {
        toml::from_str(&format!("d_model = 33\n{attention}")).unwrap()
    }

    /// The error message and the text at its span.
    fn error(text: &str) -> (String, String) {
        let error = toml::from_str::<Model>(text).unwrap_err();
        (error.message().to_string(), text[error.span().unwrap()].to_string())
    }

    /// Access through the trait, as in `tealight inspect --list`.
    fn kinds<C: Choice>() -> Vec<(&'static str, &'static str)> {
        C::KINDS.iter().map(|kind| (kind.name, kind.summary)).collect()
    }

    #[test]
    fn kinds_carry_the_first_paragraph_of_their_documentation() {
        let expected = [
            ("nystrom", "Softmax over landmarks (Xiong et al. 2021)."),
            ("none", "No attention."),
            ("undocumented", ""),
        ];
        assert_eq!(kinds::<Attention>(), expected);
    }

    #[test]
    fn every_kind_has_a_default_that_survives_toml() {
        for kind in Attention::KINDS {
            let written = model(Attention::default_of(kind.name).unwrap());
            assert_eq!(written.attention.kind(), kind.name);
            let text = toml::to_string(&written).unwrap();
            assert_eq!(toml::from_str::<Model>(&text).unwrap(), written, "{text}");
        }
        assert_eq!(Attention::default_of("softmax"), None);
    }

    #[test]
    fn kind_is_written_first_and_tables_last() {
        let pinv = Some(Pinv { n_iterations: 5 });
        let text = toml::to_string(&model(Attention::Nystrom(Nystrom { n_landmarks: 7, pinv })));
        let expected = "d_model = 33\n\n[attention]\nkind = \"nystrom\"\nn_landmarks = 7\n\n\
                        [attention.pinv]\nn_iterations = 5\n";
        assert_eq!(text.unwrap(), expected);
    }

    #[test]
    fn table_short_form_and_nested_settings_are_read() {
        let nystrom = |n_landmarks, pinv| model(Attention::Nystrom(Nystrom { n_landmarks, pinv }));
        assert_eq!(read("attention = 'none'"), model(Attention::None));
        assert_eq!(read("attention = 'nystrom'"), nystrom(0, None));
        assert_eq!(read("[attention]\nkind = 'nystrom'\nn_landmarks = 7"), nystrom(7, None));
        let pinv = Some(Pinv { n_iterations: 5 });
        let nested = "attention = { kind = 'nystrom', pinv.n_iterations = 5 }";
        assert_eq!(read(nested), nystrom(0, pinv));
    }

    #[test]
    fn an_unknown_kind_points_at_its_value() {
        let rule = "unknown variant `nystrm`, expected one of `nystrom`, `none`, `undocumented`";
        for text in ["attention = 'nystrm'", "attention.kind = 'nystrm'"] {
            assert_eq!(error(text), (rule.into(), "'nystrm'".into()));
        }
    }

    #[test]
    fn a_missing_kind_lists_the_kinds() {
        let (message, text) = error("[attention]\nn_landmarks = 7");
        let rule = "unknown variant ``, expected one of `nystrom`, `none`, `undocumented`";
        assert_eq!((message.as_str(), text.as_str()), (rule, "[attention]"));
        assert_eq!(error("attention = {}").1, "{}");
    }

    #[test]
    fn unknown_keys_and_wrong_types_keep_their_place() {
        let (message, text) = error("[attention]\nkind = 'nystrom'\nn_landmark = 7");
        assert_eq!(message, "unknown field `n_landmark`, expected `n_landmarks` or `pinv`");
        assert_eq!(text, "n_landmark");
        let (message, text) = error("[attention]\nkind = 'nystrom'\npinv = { n_iterations = 'x' }");
        assert_eq!(message, "invalid type: string \"x\", expected usize");
        assert_eq!(text, "'x'");
        let (message, text) = error("[attention]\nkind = 'none'\nn_landmarks = 7");
        assert_eq!(message, "unknown field `n_landmarks`, there are no fields");
        assert_eq!(text, "n_landmarks");
    }

    #[test]
    fn values_other_than_tables_and_names_are_refused() {
        let rule = "invalid type: integer `5`, expected a table with `kind` or the name of a kind";
        assert_eq!(error("attention = 5"), (rule.into(), "5".into()));
        assert_eq!(error("attention.kind = 5").0, "invalid type: integer `5`, expected a string");
    }
}
