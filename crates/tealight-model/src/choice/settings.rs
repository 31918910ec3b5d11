//! Tables of settings with the default beside each key.

/// Generates structs of settings. An absent key has its default, an unknown key is an error.
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
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$of_key:meta])* pub $key:ident: $type:ty = $default:expr,)*
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$of_key])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    )+};
}

pub use settings;
