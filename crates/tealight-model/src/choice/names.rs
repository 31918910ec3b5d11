//! Settings whose value is one of a few words: an activation, a read-out, a layout.

/// A word of a [`names!`](crate::names!) setting and its summary.
pub use super::Kind;

/// A setting whose value is one of a few words. Only [`names!`](crate::names!) implements it.
pub trait Named: Sized + Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// Every word with its summary, in the order of [`Self::ALL`].
    const KINDS: &'static [Kind];

    /// The word of this value.
    fn name(self) -> &'static str;
}

/// Generates an enum whose values are words in the TOML, and a list of them with their documentation.
/// `enum Name as Other { … }`, where `Other` has the same variants, also generates `From<Name> for Other`.
///
/// ```
/// use tealight_model::names::Named;
///
/// tealight_model::names! {
///     /// Which side is padded.
///     pub enum Padding {
///         /// After the last token.
///         "right" => Right,
///         /// Before the first token.
///         "left" => Left,
///     }
/// }
///
/// assert_eq!(Padding::KINDS[1].name, "left");
/// assert_eq!(Padding::KINDS[1].summary, "Before the first token.");
/// assert_eq!(Padding::ALL, [Padding::Right, Padding::Left]);
/// ```
#[macro_export]
macro_rules! names {
    (
        $(#[doc = $about:literal])*
        $vis:vis enum $name:ident as $other:ty {
            $($(#[doc = $doc:literal])* $word:literal => $variant:ident),+ $(,)?
        }
    ) => {
        $crate::names! {
            $(#[doc = $about])*
            $vis enum $name {
                $($(#[doc = $doc])* $word => $variant),+
            }
        }

        impl From<$name> for $other {
            fn from(name: $name) -> Self {
                match name {
                    $($name::$variant => Self::$variant),+
                }
            }
        }
    };

    (
        $(#[doc = $about:literal])*
        $vis:vis enum $name:ident {
            $($(#[doc = $doc:literal])* $word:literal => $variant:ident),+ $(,)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize
        )]
        $vis enum $name {
            $($(#[doc = $doc])* #[serde(rename = $word)] $variant),+
        }

        impl $crate::names::Named for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            const KINDS: &'static [$crate::choice::Kind] = &[$($crate::choice::Kind {
                name: $word,
                summary: $crate::choice::summary(concat!($($doc),*), &[$($doc),*]),
            }),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl $crate::choice::describe::Described for $name {
            fn about() -> &'static str {
                concat!($($about, "\n"),*)
            }

            fn shape() -> $crate::choice::describe::Shape {
                $crate::choice::describe::Shape::Words(<Self as $crate::names::Named>::KINDS)
            }
        }
    };
}

pub use names;
