//! Tables of settings with the default beside each key.

/// Generates structs of settings. An absent key has its default, an unknown key is an error. They are
/// [`Described`](crate::choice::describe::Described).
///
/// ```
/// tealight_model::settings! {
///     /// `[log]`
///     pub struct LogConfig {
///         /// Write a line of training metrics every this many updates.
///         pub every: u64 = 10,
///     }
/// }
///
/// assert_eq!(LogConfig::default(), LogConfig { every: 10 });
/// ```
#[macro_export]
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])?
                pub $key:ident: $type:ty = $default:expr,
            )*
        }
    )+) => {$(
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($serde)*)])? pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::choice::describe::Described for $name {
            fn about() -> &'static str {
                concat!($($about, "\n"),*)
            }

            fn shape() -> $crate::choice::describe::Shape {
                let Self { $($key,)* } = Self::default();
                $crate::choice::describe::Shape::Table(vec![
                    $($crate::choice::describe::Field::optional(
                        stringify!($key),
                        concat!($($doc, "\n"),*),
                        &$key,
                    ),)*
                ])
            }
        }
    )+};
}

pub use settings;
