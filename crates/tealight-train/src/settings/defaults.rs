//! Tables of the configuration with the default beside each key.

/// Declares structs of settings. A key that is absent has its default; an unknown key is an error. TOML has no
/// null, so a `None` is not written.
///
/// ```text
/// settings! {
///     /// `[log]`
///     pub struct LogConfig {
///         /// Write a line of training metrics every this many updates.
///         pub every: u64 = 10,
///     }
/// }
/// ```
macro_rules! settings {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$of_key:meta])* pub $key:ident: $type:ty = $default:expr,)+
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$of_key])* pub $key: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    )+};
}

pub(crate) use settings;
