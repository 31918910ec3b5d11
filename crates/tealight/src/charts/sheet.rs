//! Pictures side by side with lines of text below each.

use tealight_train::task::Captioned;

use super::bitmap::Bitmap;
use super::font;
use super::shapes::{Anchor, Drawing, LABEL, TITLE};

const MARGIN: f32 = 20.;
const TOP: f32 = 66.;
const NAMES: f32 = 13.;
/// The larger side of a picture.
const SIDE: f32 = 96.;
/// The widest line of text.
const WIDEST: f32 = 150.;
const BETWEEN: f32 = 18.;
const LINE: f32 = 16.;
const ACROSS: usize = 8;

/// Draws the pictures, eight in a row. Pixels of small pictures are enlarged as they are.
pub(super) fn draw(title: &str, caption: &str, pictures: &[Captioned]) -> Drawing {
    let across = pictures.len().clamp(1, ACROSS);
    let down = pictures.len().div_ceil(across);
    let lines: Vec<Vec<String>> = pictures
        .iter()
        .map(|one| one.lines.iter().map(|line| font::shortened(line, LABEL, WIDEST)).collect())
        .collect();
    let n_lines = lines.iter().map(Vec::len).max().unwrap_or(0) as f32;
    let cell = font::widest(lines.iter().flatten(), LABEL).max(SIDE) + BETWEEN;
    let row = SIDE + 4. + n_lines * LINE + BETWEEN;
    let texts = font::width(title, TITLE).max(font::width(caption, NAMES));
    let width = 2. * MARGIN + (across as f32 * cell - BETWEEN).max(texts);
    let mut sheet = Drawing::new(width.ceil(), (TOP + down as f32 * row + MARGIN).ceil());
    sheet.text((MARGIN, 28.), title, TITLE, Anchor::Start);
    sheet.text((MARGIN, 48.), caption, NAMES, Anchor::Start);
    for (index, (Captioned { picture, .. }, lines)) in pictures.iter().zip(&lines).enumerate() {
        let x = MARGIN + (index % across) as f32 * cell;
        let y = TOP + (index / across) as f32 * row;
        let (rows, columns) = (picture.size.height as f32, picture.size.width as f32);
        let scale = SIDE / rows.max(columns);
        let size = (columns * scale, rows * scale);
        sheet.bitmap((x, y + SIDE - size.1), size, Bitmap::from_picture(picture));
        for (line, text) in lines.iter().enumerate() {
            let baseline = y + SIDE + 4. + LINE * (line as f32 + 0.8);
            sheet.text((x, baseline), text, LABEL, Anchor::Start);
        }
    }
    sheet
}

#[cfg(test)]
mod tests {
    use tealight_model::patches::PictureSize;
    use tealight_train::task::images;

    use super::*;
    use crate::charts::{png, svg};

    #[test]
    fn every_picture_has_its_lines_below_it() {
        let size = PictureSize { height: 2, width: 3, channels: 3 };
        let picture = images::Picture::new(size, (0..18).collect());
        let captioned =
            |n: usize| Captioned { picture: picture.clone(), lines: vec![format!("n {n}"); 2] };
        let pictures: Vec<Captioned> = (0..11).map(captioned).collect();
        let sheet = draw("mistakes", "below each its class", &pictures);
        assert!(!png::write(&sheet, 2.).unwrap().is_empty());
        let svg = svg::write(&sheet);
        assert_eq!(svg.matches("<image ").count(), 11);
        assert_eq!(svg.matches(">n 10<").count(), 2);
        assert!(svg::write(&draw("no mistakes", "", &[])).contains(">no mistakes<"));
    }
}
