//! Attention maps of a picture, laid over it: a panel for each head of a layer, or for each layer.

use anyhow::Result;
use tealight_model::models::read_out::ReadOut;
use tealight_train::inference::attention_map::AttentionMap;
use tealight_train::inference::image_classifier::{PictureMaps, Query};

use super::attention::MapSelection;
use super::bitmap::{Bitmap, colours};
use super::colour::{BLACK, Colour, FRAME, mixed, sequential};
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, Point, TITLE};

const MARGIN: f32 = 20.;
const BETWEEN: f32 = 22.;
const TOP: f32 = 66.;
const NAMES: f32 = 13.;
/// The larger side of a picture.
const SIDE: f32 = 168.;
/// The space for the two lines above a picture.
const HEAD: f32 = 36.;
const ACROSS: usize = 6;
/// Space for the colour scale.
const BAR: f32 = 70.;
/// Without `--maps`, all maps are drawn up to this number, otherwise the mean and the first few.
const MAX_MAPS: usize = 16;
const FEW_MAPS: usize = 8;

/// Panels that show the same picture.
struct Sheet<'a> {
    title: String,
    /// Whose reading the panels show.
    what: String,
    maps: &'a PictureMaps,
    /// Name and weight of each position.
    panels: Vec<(String, Vec<f32>)>,
}

/// A drawing for each layer, with its mean and its maps.
pub(crate) fn layers(
    maps: &PictureMaps,
    selection: Option<MapSelection>,
) -> Result<Vec<(String, Drawing)>> {
    let layer = |layer: &AttentionMap| -> Result<(String, Drawing)> {
        let panels = chosen(maps.query_weights(layer)?, selection);
        let title = format!("attention weights, {}", layer.name);
        Ok((file_name(&layer.name, maps), Sheet { title, what: reader(maps), maps, panels }.draw()))
    };
    maps.layers.iter().map(layer).collect()
}

/// The maps to draw with their names.
fn chosen(weights: Vec<Vec<f32>>, selection: Option<MapSelection>) -> Vec<(String, Vec<f32>)> {
    let n = weights.len();
    let (shows_mean, n_shown) = match selection {
        Some(MapSelection::Mean) => (true, 0),
        Some(MapSelection::First(first)) => (false, first.min(n)),
        Some(MapSelection::All) => (false, n),
        None if n > MAX_MAPS => (true, FEW_MAPS),
        None => (n > 1, n),
    };
    let mean = shows_mean.then(|| (format!("mean of {n} heads"), mean_of(&weights)));
    let name = |i: usize| if n == 1 { "weights".to_owned() } else { format!("head {}", i + 1) };
    let shown = weights.into_iter().take(n_shown).enumerate();
    mean.into_iter().chain(shown.map(|(i, values)| (name(i), values))).collect()
}

/// The weights of a read-out that learns them.
pub(crate) fn read_out(maps: &PictureMaps) -> Option<(String, Drawing)> {
    if maps.query != Query::ReadOut(ReadOut::Attention) {
        return None;
    }
    let panels = vec![("weights".to_owned(), maps.shares.clone())];
    let title = "weights of the read-out".to_owned();
    let what = "the share of each patch in what is classified".to_owned();
    Some(("read out".to_owned(), Sheet { title, what, maps, panels }.draw()))
}

/// The attention rollout up to each layer.
pub(crate) fn rollout(maps: &PictureMaps, rollout: &[Vec<f32>]) -> (String, Drawing) {
    let name = |n: usize| if n == 1 { "layer 1".to_owned() } else { format!("layers 1 to {n}") };
    let panels = rollout.iter().enumerate().map(|(i, values)| (name(i + 1), values.clone()));
    let title = "attention rollout".to_owned();
    let sheet = Sheet { title, what: reader(maps), maps, panels: panels.collect() };
    (file_name("rollout", maps), sheet.draw())
}

/// Whose reading the maps of layers and the rollout show.
fn reader(maps: &PictureMaps) -> String {
    match maps.query {
        Query::ReadOut(ReadOut::Cls) => "what [CLS] reads".to_owned(),
        Query::ReadOut(ReadOut::Mean) => {
            "what the patches read on average (the read-out is their mean)".to_owned()
        }
        Query::ReadOut(ReadOut::Attention) => {
            "what the patches read, weighted as the read-out weighs them".to_owned()
        }
        Query::Patch(row, column) => {
            format!("what the framed patch reads (row {row}, column {column})")
        }
    }
}

fn file_name(name: &str, maps: &PictureMaps) -> String {
    match maps.query {
        Query::ReadOut(_) => name.to_owned(),
        Query::Patch(row, column) => format!("{name} patch {row} {column}"),
    }
}

/// The mean over all maps.
pub(crate) fn mean_of(maps: &[Vec<f32>]) -> Vec<f32> {
    let n_values = maps.first().map_or(0, Vec::len);
    let mean = |i: usize| maps.iter().map(|map| map[i]).sum::<f32>() / maps.len() as f32;
    (0..n_values).map(mean).collect()
}

impl Sheet<'_> {
    fn draw(&self) -> Drawing {
        let n = self.panels.len() + 1;
        let (across, down) = (n.min(ACROSS), n.div_ceil(ACROSS));
        let [width, height] = self.panel_size();
        // The two lines above a panel may be wider than the picture.
        let lines =
            self.panels.iter().flat_map(|(name, values)| [name.clone(), self.detail(values)]);
        let step = (font::widest(lines, NAMES).max(width) + BETWEEN, HEAD + height + BETWEEN);
        let body = step.0 * across as f32 - BETWEEN + BAR;
        let caption = self.caption();
        let texts = font::width(&self.title, TITLE).max(font::width(&caption, NAMES));
        let mut drawing = Drawing::new(
            (2. * MARGIN + body.max(texts)).ceil(),
            (TOP + down as f32 * step.1 - BETWEEN + MARGIN).ceil(),
        );
        drawing.text((MARGIN, 28.), &self.title, TITLE, Anchor::Start);
        drawing.text((MARGIN, 48.), caption, NAMES, Anchor::Start);
        let place =
            |i: usize| (MARGIN + (i % ACROSS) as f32 * step.0, TOP + (i / ACROSS) as f32 * step.1);
        drawing.text(above(place(0), 0), "picture", LABEL, Anchor::Start);
        self.bitmap(&mut drawing, place(0), Bitmap::from_picture(&self.maps.picture));
        for (index, (name, values)) in self.panels.iter().enumerate() {
            let at = place(index + 1);
            drawing.text(above(at, 0), name, LABEL, Anchor::Start);
            drawing.text(above(at, 1), self.detail(values), NAMES, Anchor::Start);
            self.bitmap(&mut drawing, at, self.tinted(values));
        }
        let right = MARGIN + across as f32 * step.0 - BETWEEN + 20.;
        bar(&mut drawing, (right, TOP + HEAD), height);
        drawing
    }

    /// Width and height of the picture in a panel.
    fn panel_size(&self) -> [f32; 2] {
        let size = self.maps.picture.size;
        let (height, width) = (size.height as f32, size.width as f32);
        [width, height].map(|side| side * SIDE / height.max(width))
    }

    /// The largest weight of a patch, and that of `[CLS]`.
    fn detail(&self, values: &[f32]) -> String {
        let (prefix, patches) = values.split_at(self.maps.grid.n_prefix);
        let cls = prefix.iter().map(|value| format!(" · [CLS] {}", percent(*value)));
        format!("max {}{}", percent(largest(patches)), cls.collect::<Vec<_>>().concat())
    }

    fn caption(&self) -> String {
        let is_negative =
            self.panels.iter().any(|(_, values)| values.iter().any(|&value| value < 0.));
        let negative = if is_negative { "; negative weights count as 0" } else { "" };
        format!(
            "{}; each map is coloured from 0 to its largest weight of a patch (max){negative}",
            self.what
        )
    }

    fn bitmap(&self, drawing: &mut Drawing, (x, y): Point, bitmap: Bitmap) {
        let [width, height] = self.panel_size();
        let (left, top) = (x, y + HEAD);
        drawing.bitmap((left, top), (width, height), bitmap);
        let Query::Patch(row, column) = self.maps.query else { return };
        let cell = (width / self.maps.grid.columns as f32, height / self.maps.grid.rows as f32);
        let (left, top) = (left + column as f32 * cell.0, top + row as f32 * cell.1);
        let (right, bottom) = (left + cell.0, top + cell.1);
        let frame = vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        drawing.line(frame, FRAME, 2.5);
    }

    /// The picture in grey under the colours of the weights.
    fn tinted(&self, values: &[f32]) -> Bitmap {
        let (grid, size) = (self.maps.grid, self.maps.picture.size);
        let patches = &values[grid.n_prefix..];
        let largest = largest(patches);
        let pixels = colours(&self.maps.picture).enumerate().map(|(at, colour)| {
            let (y, x) = (at / size.width, at % size.width);
            let (row, column) = (y * grid.rows / size.height, x * grid.columns / size.width);
            let value = patches[row * grid.columns + column];
            tint(colour, if largest > 0. { value / largest } else { 0. })
        });
        Bitmap::new(size.width, size.height, pixels)
    }
}

/// The baseline of line 0 or 1 above a panel.
fn above((x, y): Point, line: u8) -> Point {
    (x, y + 12. + 17. * f32::from(line))
}

fn largest(values: &[f32]) -> f32 {
    values.iter().copied().filter(|value| value.is_finite()).fold(0., f32::max)
}

fn percent(share: f32) -> String {
    let percent = 100. * share;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A pixel under the colour of a weight from 0 to 1: the more weight, the more of its colour.
fn tint(colour: Colour, weight: f32) -> Colour {
    let weight = f64::from(weight.clamp(0., 1.));
    mixed(colour.grey(), sequential(weight), 0.55 + 0.2 * weight)
}

/// The colour scale, over a pixel of middle grey.
fn bar(drawing: &mut Drawing, (x, top): Point, height: f32) {
    const STRIPES: u8 = 48;
    let stripe = height / f32::from(STRIPES);
    for i in 0..STRIPES {
        let weight = 1. - (f32::from(i) + 0.5) / f32::from(STRIPES);
        let size = (14., stripe + if i + 1 < STRIPES { 0.5 } else { 0. });
        let colour = tint(Colour(128, 128, 128), weight);
        drawing.rectangle((x, top + f32::from(i) * stripe), size, colour);
    }
    for (y, text) in [(top, "max"), (top + height, "0")] {
        drawing.line(vec![(x + 14., y), (x + 18., y)], BLACK, 1.);
        drawing.text((x + 22., y + 4.2), text, NAMES, Anchor::Start);
    }
}

#[cfg(test)]
mod tests {
    use tealight_model::patches::{Grid, PictureSize};
    use tealight_train::task::images;

    use super::*;
    use crate::charts::{png, svg};

    fn maps(query: Query) -> PictureMaps {
        let size = PictureSize { height: 4, width: 6, channels: 1 };
        let picture = images::Picture::new(size, (0..24).map(|i| i * 10).collect());
        let grid = Grid { n_prefix: 1, rows: 2, columns: 3 };
        PictureMaps {
            picture,
            grid,
            query,
            shares: vec![1., 0., 0., 0., 0., 0., 0.],
            layers: Vec::new(),
        }
    }

    #[test]
    fn the_largest_weight_of_a_patch_and_that_of_cls_are_told() {
        let maps = maps(Query::ReadOut(ReadOut::Cls));
        let weights = vec![0.5, 0.04, 0.26, 0., 0.2, 0., 0.];
        let (name, drawing) = rollout(&maps, &[weights.clone(), weights]);
        let svg = svg::write(&drawing);
        assert_eq!(name, "rollout");
        assert_eq!(svg.matches(">max 26 % · [CLS] 50 %<").count(), 2);
        assert!(svg.contains(">layers 1 to 2<") && svg.contains("what [CLS] reads"), "{svg}");
        assert_eq!(svg.matches("<image ").count(), 3);
        assert!(read_out(&maps).is_none());
        assert!(!png::write(&drawing, 1.).unwrap().is_empty());
    }

    #[test]
    fn the_heaviest_patch_has_the_brightest_colour() {
        let maps = maps(Query::Patch(1, 2));
        let (title, what) = (String::new(), String::new());
        let panels = Sheet { title, what, maps: &maps, panels: Vec::new() };
        let bitmap = panels.tinted(&[0.9, 0., 0., 0., 0., 0., 0.1]);
        let pixel = |x: u32, y: u32| {
            bitmap.pixels().pixel(x, y).map(tiny_skia::PremultipliedColorU8::green)
        };
        // Pixels 4,2 and 5,3 are in patch 1,2; pixel 3,3 is in its neighbour.
        assert!(pixel(4, 2) > pixel(3, 3) && pixel(5, 3) > pixel(3, 1));
        assert_eq!(rollout(&maps, &[]).0, "rollout patch 1 2");
    }

    #[test]
    fn each_drawing_says_whose_weights_it_shows() {
        let maps = maps(Query::ReadOut(ReadOut::Attention));
        let (_, drawing) = read_out(&maps).unwrap();
        assert!(svg::write(&drawing).contains("the share of each patch in what is classified; "));
        let (_, drawing) = rollout(&maps, &[]);
        assert!(svg::write(&drawing).contains("weighted as the read-out weighs them; "));
        let two = vec![vec![0.5; 7]; 2];
        assert_eq!(chosen(two, None)[0].0, "mean of 2 heads");
    }
}
