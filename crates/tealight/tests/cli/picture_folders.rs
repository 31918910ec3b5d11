//! Classifiers of pictures in the folders of `transformers` and ONNX: read, written, and begun with.

use std::fs;

use serde_json::{Value, json};

use crate::picturing::{SHAPES, scores, trained};
use crate::program::{Folder, Result, golden_model};

/// The largest difference from a score of the pipeline of transformers.
const SCORE: f64 = 1e-5;

#[test]
fn folders_of_transformers_classify_as_its_pipeline_does() -> Result {
    let folder = Folder::new()?;
    for name in ["vit", "vit_gray"] {
        let model = golden_model(name);
        let recorded: Value =
            serde_json::from_str(&fs::read_to_string(format!("{model}/expected.json"))?)?;
        for image in recorded["images"].as_array().ok_or("images")? {
            let file = image["file"].as_str().ok_or("a file")?;
            let picture = format!("{model}/{file}");
            let args = ["classify", &model, &picture, "--top-k", "9", "--json"];
            let (given, expected) = (scores(&folder.json(&args)?)?, scores(&image["output"])?);
            assert_eq!(given.len(), expected.len(), "{name}, {file}");
            for (given, expected) in given.iter().zip(&expected) {
                assert_eq!(given.0, expected.0, "{name}, {file}");
                let off = (given.1 - expected.1).abs();
                assert!(off <= SCORE, "{name}, {file}, {}: off by {off}", given.0);
            }
        }
    }
    Ok(())
}

#[test]
fn a_folder_of_transformers_is_written_as_it_was_and_attends() -> Result {
    let (folder, vit) = (Folder::new()?, golden_model("vit"));
    let picture = format!("{vit}/large.png");
    let ask = |model: &str| folder.json(&["classify", model, &picture, "--json"]);
    for (from, to, format) in
        [(&*vit, "again", "hf"), ("again", "own", "tealight"), ("own", "back", "hf")]
    {
        folder.succeed(&["export", from, "--to", to, "--format", format])?;
        assert_eq!(ask(to)?, ask(&vit)?, "{to}");
    }
    let files = ["preprocessor_config.json", "model.safetensors"];
    folder.assert_same(["again", "back"], &files)?;
    let written = folder.read_json("again/preprocessor_config.json")?;
    let given: Value =
        serde_json::from_str(&fs::read_to_string(format!("{vit}/preprocessor_config.json"))?)?;
    for (key, value) in given.as_object().ok_or("an object")? {
        assert_eq!(&written[key], value, "{key}");
    }
    let maps = folder.json(&["attend", &vit, &picture, "--json"])?;
    assert_eq!((&maps["rows"], &maps["columns"]), (&json!(4), &json!(3)));
    let drawn = folder.succeed(&["attend", &vit, &picture, "--output", "maps"])?.stdout;
    assert!(drawn.ends_with("maps/rollout.svg\nmaps/rollout.png\n"), "{drawn}");
    Ok(())
}

#[test]
fn a_run_is_exported_for_transformers_and_onnx_with_its_preprocessing() -> Result {
    let folder = trained()?;
    let export = ["export", "runs/shapes", "--to"];
    let notes = folder.succeed(&[&export[..], &["hf", "--format", "hf"]].concat())?.stderr;
    assert!(notes.contains("reads pictures in colour"), "{notes}");
    let config = folder.read_json("hf/config.json")?;
    assert_eq!(config["architectures"][0], "ViTForImageClassification");
    assert_eq!((&config["image_size"], &config["num_channels"]), (&json!(8), &json!(1)));
    let prepared = folder.read_json("hf/preprocessor_config.json")?;
    assert_eq!(prepared["size"], json!({ "shortest_edge": 8 }));
    assert_eq!(prepared["crop_size"], json!({ "height": 8, "width": 8 }));
    let ask = |model| folder.json(&["classify", model, "a.png", "b.png", "--json"]);
    assert_eq!(ask("hf")?, ask("runs/shapes")?);

    folder.succeed(&[&export[..], &["onnx", "--format", "onnx"]].concat())?;
    assert!(folder.path("onnx/onnx/model.onnx").is_file());
    for name in ["config.json", "preprocessor_config.json"] {
        assert_eq!(
            folder.read_json(&format!("onnx/{name}"))?,
            folder.read_json(&format!("hf/{name}"))?
        );
    }
    let changed = |key: &str, value: Value, part: &str| -> Result {
        let mut changed = prepared.clone();
        changed[key] = value;
        folder.write("hf/preprocessor_config.json", changed.to_string())?;
        folder.refuse(&["classify", "hf", "a.png"], &["`hf/preprocessor_config.json`: ", part])
    };
    changed("resample", json!(1), "`resample` = 1 is not supported")?;
    changed(
        "crop_size",
        json!(7),
        "`crop_size` gives 7 × 7 pixels, and the model reads 8 × 8 pixels",
    )?;
    changed(
        "image_mean",
        json!([0.5, 0.5]),
        "`image_mean` must have a number for each of 1 channels",
    )?;
    fs::remove_file(folder.path("hf/preprocessor_config.json"))?;
    let missing = ["does not say how pictures are prepared", "`preprocessor_config.json`"];
    folder.refuse(&["classify", "hf", "a.png"], &missing)
}

#[test]
fn learned_positions_are_interpolated_for_pictures_of_another_size() -> Result {
    let folder = trained()?;
    let task = SHAPES.split("[model]").next().ok_or("a task")?;
    let training = SHAPES.split("[training]").nth(1).ok_or("settings")?;
    let begin = |name: &str, task: &str| -> Result<String> {
        let text = format!("init_from = \"runs/shapes\"\n{task}[training]{training}");
        folder.write(name, text)?;
        Ok(folder.run(&["train", name])?.stderr)
    };
    let large = task.replace("side = 8", "side = 12").replace("cache =", "size = 12\ncache =");
    let log = begin("large.toml", &large)?;
    assert!(log.contains("initialised from runs/shapes: 40 tensors\n"), "{log}");
    let sizes = folder.read_json("runs/large/manifest.json")?;
    assert_eq!(sizes["sizes"]["height"], json!(12), "{sizes}");
    // Without [CLS] there is no position for it.
    let mean = task.replace("\"cls\"", "\"mean\"");
    let other = begin("other.toml", &mean)?;
    assert!(other.contains("`task.read_out` = \"mean\", not \"cls\""), "{other}");
    let allowed =
        format!("init_from = {{ path = \"runs/shapes\", allow = [\"task.read_out\"] }}\n{mean}");
    folder.write("other.toml", format!("{allowed}[training]{training}"))?;
    let other = folder.run(&["train", "other.toml"])?.stderr;
    assert!(other.contains("`init_from`: positions of a model with 1 vectors before"), "{other}");
    let text = task.replace("kind = \"shapes\"", "kind = \"weather\"");
    assert!(begin("text.toml", &text)?.contains("error: "));
    Ok(())
}
