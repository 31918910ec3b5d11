//! Classifiers of a user's pictures.

use std::path::PathBuf;

use anyhow::{Result, bail};
use tealight_train::data::survey::{PictureFiles, PictureFormat, pictures};

use super::base::Base;
use super::blocks::{calibration, exported_as};
use super::ending::{Ending, TO_ZERO};
use super::machine::Work;
use super::{UserData, about, beginning, quoted};

const BATCH_SIZE: u64 = 32;
/// Tokens of a picture in most pretrained models: 224 pixels in patches of 16.
const N_PATCHES: f64 = 197.;

/// The configuration of a classifier of the pictures in `data`.
pub(super) fn text(data: &UserData<'_>) -> Result<String> {
    let PictureFiles { format, n, height, is_grey } = pictures(data.file)?;
    if let PictureFormat::Folders { n_classes: n_classes @ ..2, .. } = format {
        bail!(
            "`{}` has {n_classes} class folders with pictures, and a classifier needs two: expected <class>/1.jpg",
            data.file.display()
        );
    }
    let (source, what) = source(&format, &data.path);
    let colour = match (&format, is_grey) {
        (PictureFormat::Idx { .. } | PictureFormat::Cifar, _) => "",
        (_, true) => "colour = \"grey\"                 # as all pictures that were looked at\n",
        (_, false) => "colour = \"rgb\"                  # or \"grey\"\n",
    };
    let title = title(n, &what);
    // Time grows with the number of patches. Strokes are recognised from large patches; photos are not.
    let (size, patch) = match height {
        Some(height) if height <= 20 => (16, 4),
        Some(height) if height <= 40 => {
            let size = height.next_multiple_of(4);
            (size, if is_grey { size / 4 } else { 4 })
        }
        _ => (64, 8),
    };
    let seen = height.map_or("unknown".to_owned(), |height| format!("{height} pixels"));
    let (d_model, n_layers, n_heads, epochs, lr) = match n {
        n if n < 2_000. => (64, if is_grey { 4 } else { 2 }, 4, 30., "2e-3"),
        n if n < 20_000. => (64, 4, 4, 15., "2e-3"),
        _ => (128, 4, 4, 10., "1e-3"),
    };
    // Few pictures need as many updates as more of them; augmentation varies each.
    let steps = (epochs * n / BATCH_SIZE as f64).clamp(2_000., 20_000.) as u64;
    let ending = Ending {
        adamw: format!("lr = {lr}\nweight_decay = 0.05"),
        warmup_steps: (steps / 20).max(1),
        final_lr_ratio: TO_ZERO,
        steps,
        passes: format!("{epochs} times through the pictures, within 2,000 to 20,000 steps"),
        batch_size: BATCH_SIZE,
        select: ("\"best\"", ""),
        ..Ending::default()
    };
    let ending =
        ending.timed(Work { d_model, n_layers, n_tokens: (size / patch).pow(2) as f64 + 1. });
    let task = task(&source, &format!("{colour}{}", calibration(n)), size, &seen);
    let tables = [
        beginning(&title),
        task,
        model(d_model, n_layers, n_heads),
        patches(size, patch),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The configuration of a classifier of the pictures in `data` that starts from `base`.
pub(super) fn from_base(data: &UserData<'_>, base: &Base) -> Result<String> {
    let PictureFiles { format, n, .. } = pictures(data.file)?;
    let (source, what) = source(&format, &data.path);
    let calibration = calibration(n);
    let task = format!("\n[task]\nkind = \"images\"\n{calibration}\n[task.data]\n{source}");
    let epochs = if n < 2_000. { 10 } else { 3 };
    let ending = base.ending(n, epochs, "pictures", N_PATCHES).text();
    Ok([base.beginning(&title(n, &what), &[]), task, ending].concat())
}

/// What the model tells.
fn title(n: f64, what: &str) -> String {
    let n = about(n);
    format!("A model that tells the class of a picture, from about {n} pictures: {what}.")
}

/// The tables of the task: the pictures, which become `size` pixels wide and high, and how they are varied. `more` are
/// further lines of `[task]`.
fn task(source: &str, more: &str, size: usize, seen: &str) -> String {
    let padding = size / 8;
    format!(
        r#"
[task]
kind = "images"
read_out = "cls"                # the first token; or "mean", "attention", which no class of `transformers` has
size = {size}                       # pixels of each side; the height of the first picture is {seen}
{more}
[task.data]
{source}
[task.augment]                  # other pictures in each epoch, of the same classes
crop_padding = {padding}
horizontal_flip = false         # true where a mirrored picture has the same class, as with photos
"#
    )
}

/// The table of the model.
fn model(d_model: usize, n_layers: usize, n_heads: usize) -> String {
    let exported = exported_as("ViTForImageClassification");
    format!(
        "
# Few pictures teach no large model: the width follows their number.
{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
"
    )
}

/// The tables of the tokens of a picture of `size` pixels, and of their positions.
fn patches(size: usize, patch: usize) -> String {
    let tokens = (size / patch).pow(2);
    format!(
        r#"
[model.patches]
kind = "linear"
size = {patch}                        # {tokens} patches in a picture; smaller ones see more and take longer

[model.position]
kind = "learned"
"#
    )
}

/// The settings of `[task.data]`, and what the data are.
fn source(format: &PictureFormat, path: &str) -> (String, String) {
    let held_out = "validation = 0.1                # the share of each class that is held out\n";
    match format {
        PictureFormat::Folders { n_classes, has_held_out } => {
            let held_out = if *has_held_out { "" } else { held_out };
            let what = format!("{n_classes} class folders");
            (format!("kind = \"folders\"\npath = {path}\n{held_out}"), what)
        }
        PictureFormat::Archive => {
            let text = format!(
                "kind = \"archive\"\npath = {path}               # of class folders; without a folder test/, val/ or validation/ a tenth is held out\n"
            );
            (text, "an archive".to_owned())
        }
        PictureFormat::Idx { train, validation } => {
            let named = |prefix: &str, [images, labels]: &[PathBuf; 2]| {
                let [images, labels] = [images, labels].map(|path| quoted(&path.to_string_lossy()));
                format!("{prefix}images = {images}\n{prefix}labels = {labels}\n")
            };
            let others = validation
                .as_ref()
                .map_or_else(|| held_out.to_owned(), |files| named("validation_", files));
            let text = format!("kind = \"idx\"\n{}{others}", named("", train));
            (text, "files of the form of MNIST".to_owned())
        }
        PictureFormat::Cifar => {
            (format!("kind = \"cifar\"\npath = {path}\n"), "the files of CIFAR".to_owned())
        }
    }
}
