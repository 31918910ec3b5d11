//! HTTP: connections, security, bodies, server-sent events.

pub(super) mod body;
pub(super) mod connections;
pub(super) mod events;
pub(super) mod security;
mod unstalled;
