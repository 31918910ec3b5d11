//! A setting that is one word of a few: an activation, a read-out, a layout.

/// One word of a [`names!`](crate::names!) setting; the same pair that a choice's kind has.
pub use super::Kind;

/// A setting that is one of a few words. Implemented by [`names!`](crate::names!) only.
pub trait Named: Sized + Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// Every word with what it means, in the order of [`Self::ALL`].
    const KINDS: &'static [Kind];
}

/// Writes an enum whose values are words in the TOML, and lists them with their documentation.
///
/// ```
/// use tealight_model::names::Named;
///
/// tealight_model::names! {
///     /// Which way to go.
///     pub enum Way {
///         /// Towards the wick.
///         "up" => Up,
///         /// Towards the table.
///         "down" => Down,
///     }
/// }
///
/// assert_eq!(Way::KINDS[1].name, "down");
/// assert_eq!(Way::KINDS[1].summary, "Towards the table.");
/// assert_eq!(Way::ALL, [Way::Up, Way::Down]);
/// ```
#[macro_export]
macro_rules! names {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[doc = $doc:literal])* $word:literal => $variant:ident),+ $(,)?
        }
    ) => {
        $(#[$meta])*
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
        }
    };
}

pub use names;
