//! The shapes: which pixels of a square they cover.
//!
//! ```text
//! x, y ∈ [−1, 1]: the centre of a pixel, from the middle of the square      w = 2.4 / size, at least .34
//!
//! disc      x² + y² ≤ 1               diamond   |x| + |y| ≤ 1
//! saltire   ||x| − |y|| ≤ w           frame     max(|x|, |y|) ≥ 1 − w
//! square    everything                ring      (1 − w)² ≤ x² + y² ≤ 1
//! cross     min(|x|, |y|) ≤ w / 2     triangle  |x| ≤ (1 + y) / 2
//! ```

/// The names of the shapes.
pub const NAMES: [&str; 8] =
    ["disc", "saltire", "square", "cross", "diamond", "frame", "ring", "triangle"];

/// A shape of one size.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    pub(super) size: usize,
    /// A bit for each pixel; bit 0 is the leftmost.
    pub(super) rows: Vec<u64>,
    /// Its white pixels.
    pub(super) area: u32,
}

impl Mask {
    pub(super) fn new(class: usize, size: usize) -> Self {
        // Pixel centres lie half a pixel inside of the square.
        let at = |index: usize| (2. * index as f64 + 1.) / size as f64 - 1.;
        let covers = covering(NAMES[class], (2.4 / size as f64).max(0.34));
        let row = |y: usize| {
            let columns = (0..size).filter(|&x| covers(at(x), at(y)));
            columns.fold(0, |bits, column| bits | 1 << column)
        };
        let rows: Vec<u64> = (0..size).map(row).collect();
        let area = rows.iter().map(|row| row.count_ones()).sum();
        Self { size, rows, area }
    }

    /// How many white pixels a picture has where the shape, `left` pixels from its edge, has one.
    pub(super) fn overlap(&self, picture: &[u64], left: usize) -> u32 {
        let rows = picture.iter().zip(&self.rows);
        rows.map(|(picture, shape)| (picture & (shape << left)).count_ones()).sum()
    }
}

/// Whether the shape covers the point (x, y).
fn covering(name: &str, width: f64) -> impl Fn(f64, f64) -> bool {
    let within: fn(f64, f64, f64) -> bool = match name {
        "disc" => |x, y, _| x * x + y * y <= 1.,
        "saltire" => |x, y, w| (x.abs() - y.abs()).abs() <= w,
        "cross" => |x, y, w| x.abs().min(y.abs()) <= w / 2.,
        "diamond" => |x, y, _| x.abs() + y.abs() <= 1.,
        "frame" => |x, y, w| x.abs().max(y.abs()) >= 1. - w,
        "ring" => |x, y, w| (1. - w) * (1. - w) <= x * x + y * y && x * x + y * y <= 1.,
        "triangle" => |x, y, _| x.abs() <= f64::midpoint(1., y),
        _ => |_, _, _| true,
    };
    move |x, y| within(x, y, width)
}
