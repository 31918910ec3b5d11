//! Charts and heat maps, written as SVG and PNG.
//!
//! ```text
//! metrics, attention maps, reports ─► LineChart, DotChart, HeatMaps, … ─► Drawing (shapes) ─► svg.rs, png.rs
//! ```
//!
//! Series differ by colour, dashes and marker, so that charts are readable in black and white and by
//! colour-blind readers. SVG keeps text as text. PNG draws text with the embedded font, DejaVu Sans
//! reduced to European scripts and weather symbols.

pub(crate) mod attention;
pub(crate) mod axis;
pub(crate) mod base64;
mod bitmap;
mod colour;
mod confusion;
pub(crate) mod dots;
pub(crate) mod files;
mod font;
mod heat;
pub(crate) mod illustrations;
pub(crate) mod lines;
pub(crate) mod metrics;
pub(crate) mod over_picture;
pub(crate) mod png;
pub(crate) mod reliability;
pub(crate) mod shapes;
mod sheet;
mod style;
pub(crate) mod svg;
