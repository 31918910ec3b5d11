//! Layers that act on each position by itself.

pub mod classifier_head;
pub mod dropout;
pub mod feed_forward;
pub mod linear;
pub mod norm;
