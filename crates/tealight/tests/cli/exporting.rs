//! Exported folders in Tealight's format: they can be read back, and errors name the faulty key.

use serde_json::{Value, json};

use crate::languages::{json, train_classifier, trained};
use crate::program::{Folder, Result, golden_model};

fn export(folder: &Folder, model: &str, to: &str, format: &str) -> Result {
    folder.succeed(&["export", model, "--to", to, "--format", format])?;
    Ok(())
}

/// `translate` once refused the exported folder as no encoder-decoder.
#[test]
fn an_encoder_decoder_that_is_exported_translates_as_before() -> Result {
    let (folder, t5) = (Folder::new()?, golden_model("t5"));
    let translate = |model: &str| -> Result<Value> {
        let args = ["translate", model, "the", "--max-len", "5", "--json"];
        json(&folder.succeed(&args)?.stdout)
    };
    export(&folder, &t5, "own", "tealight")?;
    assert_eq!(translate("own")?, translate(&t5)?);
    assert!(folder.read("own/README.md")?.contains("tealight translate FOLDER"));
    // Back to the format of transformers.
    export(&folder, "own", "t5", "hf")?;
    export(&folder, &t5, "direct", "hf")?;
    assert_eq!(json(&folder.read("t5/config.json")?)?, json(&folder.read("direct/config.json")?)?);
    assert_eq!(translate("t5")?, translate(&t5)?);
    Ok(())
}

/// The model card once suggested commands that refused the folder.
#[test]
fn a_classifier_that_is_exported_classifies_and_begins_a_run() -> Result {
    let folder = trained("masked")?;
    train_classifier(&folder, "weather", "runs/masked")?;
    folder.succeed(&["export", "runs/weather", "--to", "own"])?;
    let card = folder.read("own/README.md")?;
    assert!(card.contains("pipeline_tag: text-classification"), "{card}");
    assert!(card.contains("tealight classify FOLDER"), "{card}");
    let ask = |command: &str, model: &str| -> Result<Value> {
        json(&folder.succeed(&[command, model, "It was sunny.", "--json"])?.stdout)
    };
    for command in ["classify", "attend"] {
        assert_eq!(ask(command, "own")?, ask(command, "runs/weather")?);
    }
    let begun = train_classifier(&folder, "further", "own")?;
    assert!(begun.stderr.contains("initialised from own"), "{}", begun.stderr);
    folder.refuse(&["fill-mask", "own", "[MASK]"], &["a classifier of texts", "masked"])?;
    std::fs::remove_file(folder.path("own/labels.json"))?;
    folder.refuse(&["classify", "own", "It was sunny."], &["cannot read `own/labels.json`"])
}

/// A rotary table of 10¹² positions once ended the process.
#[test]
fn a_folder_is_held_to_the_limits_of_a_configuration_and_named() -> Result {
    let folder = trained("masked")?;
    export(&folder, "runs/masked", "own", "tealight")?;
    let whole = json(&folder.read("own/tealight.json")?)?;
    let refuse = |pointer: &str, value: Value, parts: &[&str]| -> Result {
        let mut changed = whole.clone();
        *changed.pointer_mut(pointer).ok_or("a key")? = value;
        folder.write("own/tealight.json", changed.to_string())?;
        let parts = [&["`own/tealight.json`"], parts].concat();
        folder.refuse(&["fill-mask", "own", "[MASK]"], &parts)
    };
    let n = 1_000_000_000_000_u64;
    let at_most = "= 1000000000000 must be at most 1048576";
    refuse("/model/max_seq_len", json!(n), &["`model.max_seq_len`", at_most])?;
    refuse("/model/d_model", json!(n), &["`model.d_model`", at_most])?;
    refuse("/sizes/seq_len", json!(n), &["`sizes.seq_len`", at_most])?;
    refuse("/model/n_heads", json!(3), &["`model.n_heads` = 3 does not divide"])?;
    refuse("/model/causal", json!(true), &["`model.causal` = true"])?;
    refuse("/model/n_layers", json!("two"), &["is not the JSON that it should be", "two"])?;
    folder.write("own/tealight.json", whole.to_string())?;
    folder.succeed(&["fill-mask", "own", "[MASK]"])?;
    Ok(())
}
