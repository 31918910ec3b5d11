//! Pictures: what a chart consists of, written as SVG and as PNG.
//!
//! ```text
//! numbers ─► LineChart, DotChart, HeatMaps ─► Picture (shapes) ─► svg.rs, png.rs
//! ```
//!
//! A picture is white, and its series differ by colour, dash and marker, so that it can be printed in
//! grey and read with any eyes. SVG text is text: whatever the reader's fonts have is shown. A PNG has the
//! glyphs of the embedded font, DejaVu Sans reduced to European scripts and the weather.

pub(crate) mod attention;
mod axis;
mod colour;
pub(crate) mod dots;
pub(crate) mod files;
mod font;
mod heat;
pub(crate) mod lines;
pub(crate) mod metrics;
mod png;
pub(crate) mod shapes;
mod style;
mod svg;
