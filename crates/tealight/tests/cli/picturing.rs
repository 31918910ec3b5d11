//! Classifiers of pictures: `train`, `evaluate`, `classify`, `attend`, `export` and `init_from`.

use std::fs;

use serde_json::{Value, json};

use crate::classifying;
use crate::program::{Folder, Outcome, Result};

/// A short run.
pub(crate) const SHAPES: &str = "\
seed = 7
[task]
kind = \"images\"
read_out = \"cls\"
cache = \"cache\"
[task.data]
kind = \"shapes\"
n_classes = 6
side = 8
smallest = 5
largest = 6
n_train = 60
n_validation = 40
[model]
d_model = 8
n_layers = 2
n_heads = 2
[model.patches]
kind = \"linear\"
size = 4
[model.position]
kind = \"learned\"
[training]
steps = 6
batch_size = 5
evaluate_every = 2
[checkpoint]
every = 2
[log]
every = 1
";

/// A PNG whose pixel in row y and column x is `pixel(y, x)`.
fn png(height: u32, width: u32, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
    let mut pixels = tiny_skia::Pixmap::new(width, height).expect("a small picture");
    for (at, place) in pixels.pixels_mut().iter_mut().zip(0..) {
        let [red, green, blue] = pixel(place / width, place % width);
        *at = tiny_skia::ColorU8::from_rgba(red, green, blue, 255).premultiply();
    }
    pixels.encode_png().expect("a PNG")
}

/// A folder with two pictures.
fn folder() -> Result<Folder> {
    let folder = Folder::new()?;
    folder.write("shapes.toml", SHAPES)?;
    folder.write("a.png", png(8, 8, |y, x| [if x > 2 && y > 3 { 255 } else { 0 }; 3]))?;
    folder.write("b.png", png(13, 11, |y, x| [(x * 20) as u8, (y * 15) as u8, 90]))?;
    Ok(folder)
}

/// With a finished run, `runs/shapes`, whose data are no longer there.
pub(crate) fn trained() -> Result<Folder> {
    let folder = folder()?;
    folder.succeed(&["train", "shapes.toml", "-q"])?;
    if folder.path("cache").exists() {
        fs::remove_dir_all(folder.path("cache"))?;
    }
    Ok(folder)
}

const PLOTS: [&str; 4] = ["confusion.svg", "confusion.png", "mistakes.svg", "mistakes.png"];

#[test]
fn a_run_of_pictures_is_trained_evaluated_and_resumed_like_any_other() -> Result {
    let folder = folder()?;
    let Outcome { stdout, stderr, .. } = folder.succeed(&["train", "shapes.toml"])?;
    for text in ["majority", "Bayes limit", "pictures held out", "class ╲ predicted"] {
        assert!(stdout.contains(text), "{stdout}");
    }
    assert!(stderr.contains("runs/shapes/plots/mistakes.png"), "{stderr}");
    let plots = |run: &str| PLOTS.map(|name| fs::read(folder.path(run).join("plots").join(name)));
    let drawn = plots("runs/shapes");
    assert!(drawn.iter().all(std::result::Result::is_ok), "{drawn:?}");
    fs::remove_dir_all(folder.path("runs/shapes/plots"))?;
    let again = folder.succeed(&["evaluate", "runs/shapes"])?;
    assert_eq!(again.stdout, stdout);
    assert_eq!(again.stderr.lines().count(), PLOTS.len(), "{}", again.stderr);
    for (one, other) in plots("runs/shapes").into_iter().zip(drawn) {
        assert!(one? == other?, "the same report gives other pictures");
    }
    let report = folder.json(&["evaluate", "runs/shapes", "--json"])?;
    let n_wrong = report["mistakes"].as_array().ok_or("mistakes")?.len();
    let sheet = folder.read("runs/shapes/plots/mistakes.svg")?;
    assert_eq!(sheet.matches("<image ").count(), n_wrong.min(40));
    assert!(report["bayes_accuracy"].is_number(), "{report}");
    assert!(folder.read("runs/shapes/plots/confusion.svg")?.contains(">saltire<"));

    folder.succeed(&["inspect", "runs/shapes"])?;
    folder.succeed(&["plot", "runs/shapes"])?;
    assert!(folder.read("runs/shapes/plots/result_accuracy.svg")?.contains("Bayes limit"));
    folder.succeed(&["train", "shapes.toml", "-q", "--name", "halves", "--stop-after", "3"])?;
    folder.succeed(&["train", "shapes.toml", "-q", "--name", "halves", "--resume"])?;
    let model = "checkpoints/step-000006/model.safetensors";
    let files = [model, "labels.json", "pictures.json", "report.json", "plots/mistakes.png"];
    folder.assert_same(["runs/shapes", "runs/halves"], &files)
}

/// A temperature is fitted after training, and is part of the model that `classify` and `export` give.
#[test]
fn probabilities_of_pictures_are_calibrated() -> Result {
    let folder = folder()?;
    let train = |name: &str, calibration: &str| {
        // So few pictures are soon learnt by heart.
        let adamw = "optimizer={kind='adamw',lr=1e-2}";
        let sets = ["training.steps=60", adamw, calibration];
        let sets = sets.into_iter().flat_map(|set| ["--set", set]);
        let args = ["train", "shapes.toml", "-q", "--name", name];
        folder.succeed(&args.into_iter().chain(sets).collect::<Vec<_>>())
    };
    train("plain", "task.calibration=none")?;
    let shown = train("shapes", "task.calibration=temperature")?.stdout;
    for part in ["as trained", "confidence up to", "fitted to all pictures held out"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!folder.path("runs/plain/decision.json").exists());
    let temperature = folder.read_json("runs/shapes/decision.json")?["temperature"].take();
    let temperature = temperature.as_f64().ok_or("a temperature")?;
    let ratio = |model: &str| -> Result<f64> {
        let json = folder.json(&["classify", model, "b.png", "--json"])?;
        let scores = json.as_array().ok_or("a list")?;
        let of = |label: &str| scores.iter().find(|one| one["label"] == label)?["score"].as_f64();
        let (disc, saltire) = of("disc").zip(of("saltire")).ok_or("two probabilities")?;
        Ok((disc / saltire).ln())
    };
    let (plain, calibrated) = (ratio("runs/plain")?, ratio("runs/shapes")?);
    assert!((plain / temperature - calibrated).abs() < 1e-4, "{plain}, {calibrated}");
    assert!((plain - calibrated).abs() > 1e-2, "the temperature {temperature} is no test");
    folder.succeed(&["export", "runs/shapes", "--to", "folder"])?;
    assert!((ratio("folder")? - calibrated).abs() < 1e-5);
    Ok(())
}

#[test]
fn broken_files_end_the_run_or_are_left_out_and_counted() -> Result {
    let folder = folder()?;
    for (class, tone) in [("cat", 40), ("dog", 200)] {
        for split in ["train", "test"] {
            fs::create_dir_all(folder.path(&format!("pictures/{split}/{class}")))?;
        }
        for n in 0..4 {
            folder
                .write(&format!("pictures/train/{class}/{n}.png"), png(8, 8, |_, _| [tone; 3]))?;
        }
        folder.write(&format!("pictures/test/{class}/9.png"), png(8, 8, |_, _| [tone; 3]))?;
    }
    folder.write("pictures/train/cat/notes.png", "a text")?;
    let data = "task.data={kind=\"folders\",path=\"pictures\",validation=0.5}";
    let train = ["train", "shapes.toml", "--set", data];
    let rule = "cat/notes.png` is neither a PNG nor a JPEG";
    folder.run(&train)?.assert_refused(&[rule, "train --skip-broken"]);
    let args = [&train[..], &["--skip-broken", "--json"]].concat();
    let Outcome { stdout, stderr, .. } = folder.succeed(&args)?;
    let note = "1 file is left out, because it is no picture: ";
    assert!(stderr.contains(note) && stderr.contains(rule), "{stderr}");
    let ended: Value = serde_json::from_str(&stdout)?;
    assert!(ended["notes"][0].as_str().ok_or("a note")?.starts_with(note), "{ended}");
    // The share is for data without a folder that is held out.
    let unused = "`task.data.validation` = 0.5 is not used: the data hold out `test/cat/9.png`";
    assert!(ended["notes"][1].as_str().ok_or("a note")?.starts_with(unused), "{ended}");
    folder.refuse(&["train", "shapes.toml", "--skip-broken"], &["unknown key `skip_broken`"])
}

/// The classes of one picture, with their probabilities.
pub(crate) fn scores(list: &Value) -> Result<Vec<(String, f64)>> {
    let one = |one: &Value| Some((one["label"].as_str()?.to_owned(), one["score"].as_f64()?));
    list.as_array().ok_or("a list")?.iter().map(|it| Ok(one(it).ok_or("a score")?)).collect()
}

#[test]
fn pictures_are_classified_as_by_the_pipeline_of_transformers() -> Result {
    let folder = trained()?;
    let ask = |args: &[&str]| folder.json(&[&["classify", "runs/shapes", "--json"], args].concat());
    let only = ask(&["a.png"])?;
    let five = scores(&only)?;
    assert_eq!(five.len(), 5, "{only}");
    assert!(five.is_sorted_by(|a, b| a.1 >= b.1), "{only}");
    let all = scores(&ask(&["a.png", "--top-k", "9"])?)?;
    assert_eq!(all[..5], five);
    assert!((all.iter().map(|one| one.1).sum::<f64>() - 1.).abs() < 1e-6, "{all:?}");
    let both = ask(&["a.png", "b.png"])?;
    assert_eq!(both.as_array().map(Vec::len), Some(2), "{both}");
    // A batch of another size may round otherwise.
    for (own, other) in scores(&both[0])?.iter().zip(&five) {
        assert!(own.0 == other.0 && (own.1 - other.1).abs() < 1e-6, "{own:?} {other:?}");
    }
    let text = folder.succeed(&["classify", "runs/shapes", "b.png", "--top-k", "2"])?.stdout;
    let first = &scores(&both[1])?[0];
    assert!(text.starts_with(&format!("b.png   {} {:.1} %", first.0, 100. * first.1)), "{text}");
    assert_eq!(text.matches('%').count(), 2, "{text}");
    // Other ways to name the same pictures.
    fs::create_dir_all(folder.path("all/inner"))?;
    fs::copy(folder.path("a.png"), folder.path("all/A.PNG"))?;
    fs::copy(folder.path("b.png"), folder.path("all/inner/b.png"))?;
    folder.write("all/notes.txt", "no picture")?;
    assert_eq!(ask(&["all"])?, both);
    folder.write("list.txt", "a.png\n\nb.png\n")?;
    assert_eq!(ask(&["--file", "list.txt"])?, both);
    let args = ["classify", "runs/shapes", "-", "--json"];
    let piped = folder.run_with_input(&args, "a.png\nb.png\n")?.stdout;
    assert_eq!(serde_json::from_str::<Value>(&piped)?, both);
    Ok(())
}

#[test]
fn texts_for_pictures_and_pictures_for_texts_are_refused() -> Result {
    let folder = trained()?;
    let refuse = |args: &[&str], parts: &[&str]| {
        folder.refuse(&[&args[..1], &["runs/shapes"], &args[1..]].concat(), parts)
    };
    folder.write("text.png", "a text that is called .png")?;
    folder.write("empty.jpg", "")?;
    let whole = fs::read(folder.path("b.png"))?;
    folder.write("half.png", &whole[..whole.len() / 2])?;
    refuse(
        &["classify", "a sunny day"],
        &["`a sunny day` is no file: `runs/shapes`, a classifier of pictures"],
    )?;
    refuse(&["classify", "a.png", "--pair", "x"], &["`--pair` is for texts"])?;
    refuse(&["classify", "a.png", "--top-k", "0"], &["--top-k"])?;
    refuse(&["classify", "a.png", "text.png"], &["`text.png`: is neither a PNG nor a JPEG"])?;
    refuse(&["classify", "empty.jpg"], &["`empty.jpg`: is empty"])?;
    refuse(&["classify", "half.png"], &["`half.png`: is a broken PNG"])?;
    folder.write("line.png", png(1, 3_000_000, |_, _| [0; 3]))?;
    refuse(&["classify", "line.png"], &["`line.png`: has 1 × 3000000 pixels, and with 8 on"])?;
    fs::create_dir(folder.path("none"))?;
    refuse(&["classify", "none"], &["`none` has no file that ends in .png"])?;
    refuse(&["attend", "a sunny day"], &["`a sunny day` is no file"])?;
    refuse(&["attend", "half.png"], &["`half.png`: is a broken PNG"])?;
    refuse(&["attend", "a.png", "--patch", "2,0"], &["there is no patch 2,0", "rows 0 to 1"])?;
    refuse(&["attend", "a.png", "--patch", "2"], &["a row and a column"])?;
    refuse(&["attend", "a.png", "--rollout", "--json"], &["cannot be used with"])?;
    refuse(&["fill-mask", "[MASK]"], &["a classifier of pictures"])?;

    let texts = classifying::trained()?;
    fs::copy(folder.path("a.png"), texts.path("a.png"))?;
    let parts = ["`a.png` is a picture", "`runs/texts` is"];
    texts.refuse(&["classify", "runs/texts", "a.png"], &parts)?;
    texts.refuse(&["attend", "runs/texts", "a.png"], &parts)?;
    texts.refuse(
        &["attend", "runs/texts", "az", "--patch", "0,0"],
        &["`--patch` is for pictures"],
    )?;
    texts.refuse(&["attend", "runs/texts", "az", "--rollout"], &["`--rollout` is for pictures"])
}

/// Whether the numbers of a JSON list sum to 1.
fn sums_to_one(list: &Value) -> bool {
    let numbers = list.as_array().into_iter().flatten().filter_map(Value::as_f64);
    (numbers.sum::<f64>() - 1.).abs() < 1e-5
}

#[test]
fn what_cls_reads_is_drawn_over_the_picture_layer_by_layer() -> Result {
    let folder = trained()?;
    let drawn = folder.succeed(&["attend", "runs/shapes", "b.png"])?;
    let names = ["layer_1", "layer_2", "rollout"];
    let files = names.iter().flat_map(|name| {
        ["svg", "png"].map(|ending| format!("runs/shapes/attention/{name}.{ending}"))
    });
    assert_eq!(drawn.stdout.lines().collect::<Vec<_>>(), files.collect::<Vec<_>>());
    let svg = folder.read("runs/shapes/attention/layer_2.svg")?;
    for word in ["what [CLS] reads", ">picture<", ">mean of 2 heads<", ">head 1<", ">head 2<"] {
        assert!(svg.contains(word), "{word}\n{svg}");
    }
    assert_eq!(svg.matches("<image ").count(), 4);

    let json = folder.json(&["attend", "runs/shapes", "b.png", "--json"])?;
    assert_eq!((&json["rows"], &json["columns"]), (&json!(2), &json!(2)));
    assert_eq!(json["query"], json!({ "read_out": "cls" }));
    assert_eq!(json["query_shares"], json!([1.0, 0.0, 0.0, 0.0, 0.0]));
    for (layer, of_layer) in json["layers"].as_array().ok_or("layers")?.iter().enumerate() {
        for head in 0..2 {
            assert_eq!(of_layer["reads"][head], of_layer["weights"][head][0], "layer {layer}");
            assert!(sums_to_one(&of_layer["reads"][head]), "{of_layer}");
        }
        assert!(sums_to_one(&json["rollout"][layer]), "{json}");
    }
    let positions = &json["layers"][0]["positions"];
    assert_eq!((&positions[0], &positions[1]), (&json!("[CLS]"), &json!("0,0")));
    let text = folder.succeed(&["attend", "runs/shapes", "b.png", "--text"])?.stdout;
    assert!(text.starts_with("layer 1, mean of 2 maps, in percent\n [CLS]"), "{text}");
    // A heading, [CLS] and two rows, for each layer and the rollout.
    assert_eq!(text.lines().count(), 12, "{text}");
    Ok(())
}

#[test]
fn a_patch_is_chosen_and_the_rollout_alone_is_drawn() -> Result {
    let folder = trained()?;
    let of_patch = ["attend", "runs/shapes", "a.png", "--patch", "1,0", "-o", "out"];
    let drawn = folder.succeed(&[&of_patch[..], &["--rollout"]].concat())?.stdout;
    assert_eq!(drawn, "out/rollout_patch_1_0.svg\nout/rollout_patch_1_0.png\n");
    let json = folder.json(&["attend", "runs/shapes", "a.png", "--patch", "1,0", "--json"])?;
    assert_eq!(json["query_shares"], json!([0.0, 0.0, 0.0, 1.0, 0.0]));
    assert_eq!(json["layers"][1]["reads"][1], json["layers"][1]["weights"][1][3]);

    let other = |name: &str, settings: &[&str]| {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let args = ["train", "shapes.toml", "-q", "--name", name].into_iter().chain(sets);
        folder.succeed(&args.collect::<Vec<_>>())
    };
    // Without [CLS]: the mean of all queries, or as the read-out weighs them.
    other("mean", &["task.read_out=mean"])?;
    let json = folder.json(&["attend", "runs/mean", "a.png", "--json"])?;
    assert_eq!(json["query_shares"], json!([0.25, 0.25, 0.25, 0.25]));
    other("pooled", &["task.read_out=attention"])?;
    let drawn = folder.succeed(&["attend", "runs/pooled", "a.png"])?.stdout;
    assert!(drawn.contains("read_out.png"), "{drawn}");
    // Its weights are no shares.
    let settings = ["model.attention=retention", "model.causal=true", "task.read_out=mean"];
    other("retention", &settings)?;
    let outcome = folder.succeed(&["attend", "runs/retention", "a.png"])?;
    assert!(outcome.stderr.contains("attention rollout needs weights"), "{}", outcome.stderr);
    assert!(!outcome.stdout.contains("rollout"), "{}", outcome.stdout);
    folder.refuse(
        &["attend", "runs/retention", "a.png", "--rollout"],
        &["attention rollout needs weights whose rows sum to 1"],
    )
}

#[test]
fn an_exported_classifier_classifies_attends_and_begins_a_run() -> Result {
    let folder = trained()?;
    folder.succeed(&["export", "runs/shapes", "--to", "own", "--format", "tealight"])?;
    let card = folder.read("own/README.md")?;
    assert!(card.contains("pipeline_tag: image-classification"), "{card}");
    assert!(card.contains("tealight classify FOLDER picture.png"), "{card}");
    for args in [&["classify", "M", "a.png", "b.png"][..], &["attend", "M", "b.png"]] {
        let ask = |model| {
            let args: Vec<&str> =
                args.iter().map(|&arg| if arg == "M" { model } else { arg }).collect();
            folder.json(&[&args[..], &["--json"]].concat())
        };
        assert_eq!(ask("own")?, ask("runs/shapes")?);
        assert_eq!(ask("runs/shapes/checkpoints/step-000006")?, ask("runs/shapes")?);
    }
    folder.refuse(&["attend", "own", "a.png"], &["`--output DIR` is required"])?;
    folder.refuse(&["fill-mask", "own", "[MASK]"], &["a classifier of pictures", "masked"])?;
    folder.refuse(&["generate", "own"], &["a classifier of pictures"])?;

    // Settings of the model and its preprocessing, but not its classes, are those of the folder.
    let task = SHAPES.split("[model]").next().ok_or("a task")?;
    let training = SHAPES.split("[training]").nth(1).ok_or("settings")?;
    let begun = |name: &str, n_classes: usize| -> Result<String> {
        let task = task.replace("n_classes = 6", &format!("n_classes = {n_classes}"));
        let text = format!("init_from = \"own\"\n{task}[training]{training}");
        folder.write(&format!("{name}.toml"), text)?;
        Ok(folder.succeed(&["train", &format!("{name}.toml")])?.stderr)
    };
    let same = begun("same", 6)?;
    assert!(same.contains("initialised from own") && !same.contains("randomly"), "{same}");
    let other = begun("other", 4)?;
    assert!(other.contains("; labels: 4 as in the model"), "{other}");
    let [own, its] =
        ["shapes", "same"].map(|name| folder.read_json(&format!("runs/{name}/pictures.json")));
    assert_eq!(own?, its?);
    fs::remove_file(folder.path("own/pictures.json"))?;
    folder.refuse(&["classify", "own", "a.png"], &["cannot read `own/pictures.json`"])
}

#[test]
fn a_folder_whose_files_disagree_is_named() -> Result {
    let folder = trained()?;
    folder.succeed(&["export", "runs/shapes", "--to", "own", "--format", "tealight"])?;
    let whole = folder.read_json("own/pictures.json")?;
    let refuse = |key: &str, value: Value, part: &str| -> Result {
        let mut changed = whole.clone();
        changed[key] = value;
        folder.write("own/pictures.json", changed.to_string())?;
        folder.refuse(&["classify", "own", "a.png"], &["`own", part])
    };
    refuse("height", json!(12), "12 × 8 pixels")?;
    refuse("height", json!(1_000_000), "`height` = 1000000 must be from 1 to 4096")?;
    refuse("mean", json!([0.5, 0.5]), "`mean` and `deviation` need 1 numbers each")?;
    refuse("deviation", json!([0.0]), "`deviation` positive")?;
    refuse("colour", json!("blue"), "blue")?;
    Ok(())
}
