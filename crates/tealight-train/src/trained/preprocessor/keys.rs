//! The keys of the file, and the classes of `transformers` whose defaults it may leave out.

use serde_json::{Map, Value, json};
use tealight_model::patches::PictureSize;

use super::FILTERS;
use super::values::{channel_numbers, only_key, side, sides};
use crate::data::images::{Filter, Normalisation};
use crate::inference::image_classifier::{Preprocessing, Resize};

/// Keys without effect on a single picture in memory.
const IGNORED: [&str; 18] = [
    "auto_map",
    "crop_pct",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "feature_extractor_type",
    "image_processor_type",
    "image_seq_length",
    "input_data_format",
    "num_channels",
    "pad_size",
    "processor_class",
    "return_tensors",
    "use_fast",
    "use_square_size",
    "_valid_processor_keys",
];

/// The settings of a class of `transformers` that its files may leave out.
struct Class {
    name: &'static str,
    size: [u64; 2],
    /// Whether a number as `size` is that of the shorter side.
    is_shorter_side: bool,
    crop: Option<u64>,
    filter: u64,
    mean: [f64; 3],
    deviation: [f64; 3],
}

const HALF: [f64; 3] = [0.5; 3];

/// The classes that prepare pictures as above and do nothing else, without `Fast` and `Pil` at the end of their names.
const CLASSES: [Class; 3] = [
    Class {
        name: "ViT",
        size: [224; 2],
        is_shorter_side: false,
        crop: None,
        filter: 2,
        mean: HALF,
        deviation: HALF,
    },
    Class {
        name: "DeiT",
        size: [256; 2],
        is_shorter_side: false,
        crop: Some(224),
        filter: 3,
        mean: HALF,
        deviation: HALF,
    },
    Class {
        name: "CLIP",
        size: [224; 2],
        is_shorter_side: true,
        crop: Some(224),
        filter: 3,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
    },
];

/// The keys of the file that have not been read yet.
pub(super) struct Keys(Map<String, Value>);

type Read<T> = std::result::Result<T, String>;

impl Keys {
    pub(super) fn new(keys: Map<String, Value>) -> Self {
        Self(keys)
    }

    pub(super) fn preprocessing(
        mut self,
        picture: PictureSize,
    ) -> Read<(Preprocessing, Vec<String>)> {
        let class = self.class()?;
        let resizes = self.switch("do_resize", true)?;
        let resize = if resizes { self.resize(class)? } else { Resize::Never };
        let filter = self.filter(class)?;
        let is_cropped = self.switch("do_center_crop", class.crop.is_some())?;
        let crop = is_cropped.then(|| self.crop(class)).transpose()?;
        let own = [picture.height, picture.width];
        let given = match (crop, resize) {
            (Some(crop), _) => Some(crop),
            (None, Resize::To(size)) => Some(size),
            (None, Resize::Never) => None,
            (None, Resize::ShorterSide(_)) => {
                return Err(
                    "`size` keeps the proportions of a picture, and `do_center_crop` is false: \
                            a model reads pictures of one size"
                        .to_owned(),
                );
            }
        };
        if let Some([rows, columns]) = given.filter(|given| *given != own) {
            let key = if crop.is_some() { "crop_size" } else { "size" };
            return Err(format!(
                "`{key}` gives {rows} × {columns} pixels, and the model reads {picture}"
            ));
        }
        let normalisation = self.normalisation(class, picture.channels)?;
        // What is switched off may have settings.
        for (key, is_used) in [("size", resizes), ("crop_size", is_cropped)] {
            if !is_used {
                self.take(key);
            }
        }
        let notes = self.finish()?;
        let resize = if resize == Resize::To(own) { None } else { Some(resize) };
        let preprocessing = Preprocessing::of_hugging_face(picture, resize, filter, normalisation);
        Ok((preprocessing, notes))
    }

    fn class(&mut self) -> Read<&'static Class> {
        let mut class = &CLASSES[0];
        for key in ["image_processor_type", "feature_extractor_type"] {
            let Some(value) = self.0.get(key) else { continue };
            let name = value.as_str().unwrap_or_default();
            let stem =
                ["Fast", "Pil"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let stem = ["ImageProcessor", "FeatureExtractor"]
                .iter()
                .find_map(|end| stem.strip_suffix(end));
            let found = CLASSES.iter().find(|class| stem == Some(class.name));
            class = found.ok_or_else(|| {
                let known: Vec<_> =
                    CLASSES.iter().map(|one| format!("{}ImageProcessor", one.name)).collect();
                format!("`{key}` = {value} is unknown, expected one of {}", known.join(", "))
            })?;
        }
        Ok(class)
    }

    fn resize(&mut self, class: &Class) -> Read<Resize> {
        let Some(value) = self.take("size") else {
            let side = class.size[0] as usize;
            let shorter = Resize::ShorterSide(side);
            return Ok(if class.is_shorter_side { shorter } else { Resize::To([side; 2]) });
        };
        if let (Some(n), true) = (side(&value), class.is_shorter_side) {
            return Ok(Resize::ShorterSide(n));
        }
        if let Some(n) = only_key(&value, "shortest_edge") {
            return Ok(Resize::ShorterSide(n));
        }
        sides(&value).map(Resize::To).ok_or_else(|| {
            format!("`size` = {value} must be a number, {{\"height\", \"width\"}} or {{\"shortest_edge\"}}")
        })
    }

    fn crop(&mut self, class: &Class) -> Read<[usize; 2]> {
        match (self.take("crop_size"), class.crop) {
            (Some(value), _) => sides(&value).ok_or_else(|| {
                format!("`crop_size` = {value} must be a number or {{\"height\", \"width\"}}")
            }),
            (None, Some(side)) => Ok([side as usize; 2]),
            (None, None) => Err("`do_center_crop` is true, and there is no `crop_size`".to_owned()),
        }
    }

    fn filter(&mut self, class: &Class) -> Read<Filter> {
        let number = self.take("resample").unwrap_or(json!(class.filter));
        let found = FILTERS.iter().find(|(known, _)| number.as_u64() == Some(*known));
        found.map(|(_, filter)| *filter).ok_or_else(|| {
            format!("`resample` = {number} is not supported, only 2 (bilinear) and 3 (bicubic) are")
        })
    }

    /// (v · factor − m) / s as (v / 255 − mean) / deviation.
    fn normalisation(&mut self, class: &Class, channels: usize) -> Read<Normalisation> {
        let factor = match self.take("rescale_factor") {
            Some(value) => value
                .as_f64()
                .filter(|factor| factor.is_normal() && *factor > 0.)
                .ok_or_else(|| format!("`rescale_factor` = {value} must be a positive number"))?,
            None => 1. / 255.,
        };
        let factor = if self.switch("do_rescale", true)? { factor } else { 1. };
        let numbers = |value: Option<Value>, key: &str, default: [f64; 3]| {
            channel_numbers(value, channels, default).ok_or_else(|| {
                format!("`{key}` must have a number for each of {channels} channels")
            })
        };
        let mean = numbers(self.take("image_mean"), "image_mean", class.mean)?;
        let deviation = numbers(self.take("image_std"), "image_std", class.deviation)?;
        if deviation.iter().any(|value| *value <= 0.) {
            return Err("`image_std` must be positive".to_owned());
        }
        let (mean, deviation) = if self.switch("do_normalize", true)? {
            (mean, deviation)
        } else {
            (vec![0.; channels], vec![1.; channels])
        };
        let scaled =
            |values: Vec<f64>| values.iter().map(|x| (x / (255. * factor)) as f32).collect();
        Ok(Normalisation { mean: scaled(mean), deviation: scaled(deviation) })
    }

    fn switch(&mut self, key: &str, default: bool) -> Read<bool> {
        match self.take(key) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(value) => Err(format!("`{key}` = {value} must be true or false")),
        }
    }

    /// Removes a key; null is none.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }

    /// Refuses padding, and notes keys that are unknown.
    fn finish(mut self) -> Read<Vec<String>> {
        if self.switch("do_pad", false)? {
            return Err("`do_pad` = true is not supported".to_owned());
        }
        let is_unknown = |(key, value): &(&String, &Value)| {
            !IGNORED.contains(&key.as_str()) && !value.is_null() && **value != json!(false)
        };
        let unknown = self.0.iter().filter(is_unknown);
        Ok(unknown
            .map(|(key, _)| format!("`{key}` of the image processor is unknown and ignored"))
            .collect())
    }
}
