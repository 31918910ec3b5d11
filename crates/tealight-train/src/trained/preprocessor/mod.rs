//! `preprocessor_config.json`: how `transformers` prepares pictures.
//!
//! ```text
//! resize to `size`   → cut out `crop_size`   → v · rescale_factor          → (x − image_mean) / image_std
//! do_resize            do_center_crop          do_rescale                    do_normalize
//! ```
//!
//! All on 8-bit values up to the rescaling, as Pillow computes. Older files have a number or a list as `size`, and
//! `feature_extractor_type` instead of `image_processor_type`. Without this file, `image_processor` of
//! `processor_config.json` is read, where `transformers` 5 writes the settings of an image processor that is a part of
//! another one.

mod keys;
mod values;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tealight_model::patches::PictureSize;

use keys::Keys;

use super::weight_files::read_json_text;
use crate::data::images::{Colour, Filter, Fit};
use crate::error::{Error, Result};
use crate::inference::image_classifier::{Preprocessing, Resize};

/// The file.
pub(crate) const FILE: &str = "preprocessor_config.json";

/// The file of a processor with several parts, and the part that prepares pictures.
const PROCESSOR_FILE: &str = "processor_config.json";
const PART: &str = "image_processor";

/// Pillow's numbers of the filters.
const FILTERS: [(u64, Filter); 2] = [(2, Filter::Bilinear), (3, Filter::Bicubic)];

/// Reads the file in `folder` for a model of pictures of this size, with notes for the user; `None` if there is none.
pub(super) fn read(
    folder: &Path,
    size: PictureSize,
) -> Result<Option<(Preprocessing, Vec<String>)>> {
    let Some((path, keys)) = keys(folder)? else { return Ok(None) };
    Keys::new(keys).preprocessing(size).map(Some).map_err(|rule| Error::unusable(&path, &rule))
}

/// The settings, and the file that they are in.
fn keys(folder: &Path) -> Result<Option<(PathBuf, Map<String, Value>)>> {
    let (path, whole) = (folder.join(FILE), folder.join(PROCESSOR_FILE));
    let object = |path: &Path| -> Result<Map<String, Value>> {
        serde_json::from_str(&read_json_text(path)?).map_err(Error::json(path))
    };
    if path.exists() {
        let keys = object(&path)?;
        return Ok(Some((path, keys)));
    }
    if !whole.exists() {
        return Ok(None);
    }
    match object(&whole)?.remove(PART) {
        Some(Value::Object(keys)) => Ok(Some((whole, keys))),
        _ => Err(Error::unusable(&whole, &format!("it has no `{PART}`"))),
    }
}

/// The content of the file, and notes on what it says differently.
pub(crate) fn write(preprocessing: &Preprocessing) -> (Map<String, Value>, Vec<String>) {
    let Preprocessing { height, width, fit, filter, colour, mean, deviation, .. } = preprocessing;
    let sides = |[height, width]: [usize; 2]| json!({ "height": height, "width": width });
    let own = [*height, *width];
    let mut notes = Vec::new();
    let (size, crop) = match (preprocessing.resize, fit) {
        (Some(Resize::Never), _) => (None, Some(own)),
        (Some(Resize::To(size)), _) => (Some(sides(size)), (size != own).then_some(own)),
        (Some(Resize::ShorterSide(n)), _) => (Some(json!({ "shortest_edge": n })), Some(own)),
        (None, Fit::Crop) if height == width => {
            (Some(json!({ "shortest_edge": height })), Some(own))
        }
        (None, Fit::Crop) => {
            notes.push(
                "transformers stretches pictures of other proportions instead of cutting them"
                    .to_owned(),
            );
            (Some(sides(own)), None)
        }
        (None, Fit::Stretch) => (Some(sides(own)), None),
    };
    if *colour == Colour::Grey {
        notes.push(
            "the image-classification pipeline of transformers reads pictures in colour: \
                    convert them to grey (\"L\") and call the image processor and the model"
                .to_owned(),
        );
    }
    let class = if crop.is_some() { "CLIPImageProcessor" } else { "ViTImageProcessor" };
    let resample = FILTERS.iter().find(|(_, known)| known == filter).map(|(number, _)| number);
    let mut written = json!({
        "image_processor_type": class,
        "do_resize": size.is_some(),
        "resample": resample,
        "do_center_crop": crop.is_some(),
        "do_rescale": true,
        "rescale_factor": 1. / 255.,
        "do_normalize": true,
        "image_mean": as_f64(mean),
        "image_std": as_f64(deviation),
    });
    if let Some(size) = size {
        written["size"] = size;
    }
    if let Some(crop) = crop {
        written["crop_size"] = sides(crop);
        // The class would convert to colour.
        written["do_convert_rgb"] = json!(*colour == Colour::Rgb);
    }
    (written.as_object().cloned().unwrap_or_default(), notes)
}

/// The shortest decimal numbers that are read as these.
fn as_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| value.to_string().parse().unwrap_or(f64::from(*value))).collect()
}

#[cfg(test)]
mod tests;
