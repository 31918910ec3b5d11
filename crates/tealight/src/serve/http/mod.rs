//! HTTP: connections, security, bodies, server-sent events.

pub(super) mod body;
pub(super) mod connections;
pub(super) mod events;
pub(super) mod security;
mod timed_stream;

/// A name as a part of an address, as `encodeURIComponent` writes it.
pub(super) fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}
