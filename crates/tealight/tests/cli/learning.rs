//! `explain`, `schema`, and the hints of error messages.

use serde_json::json;

use crate::program::{Folder, Result};

#[test]
fn a_setting_is_explained_with_type_default_range_and_example() -> Result {
    let folder = Folder::new()?;
    let text = folder.succeed(&["explain", "model.attention.window"])?.stdout;
    for part in
        ["type     an integer", "`model.attention` = \"local\"", "[model.attention]\n", "window = "]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = folder.succeed(&["explain", "training.batch_size"])?.stdout;
    for part in ["default  64", "range    must be positive", "[training]\n    batch_size = 64"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = folder.succeed(&["explain", "training.precision"])?.stdout;
    assert!(text.contains("    tf32  On an NVIDIA GPU"), "{text}");
    let text = folder.succeed(&["explain", "model.attention"])?.stdout;
    assert!(text.contains("default  \"softmax\"") && text.contains("    nystrom "), "{text}");
    let text = folder.succeed(&["explain", "model.attention.local"])?.stdout;
    assert!(text.contains("Beltagy") && text.contains("    window"), "{text}");
    let text = folder.succeed(&["explain"])?.stdout;
    assert!(text.contains("    optimizer ") && text.contains("    seed = 0 "), "{text}");
    Ok(())
}

/// What is printed as an example is read without complaint.
#[test]
fn examples_of_explanations_are_valid() -> Result {
    let folder = Folder::new()?;
    for key in
        ["model.attention.window", "training.precision", "schedule.warmup_steps", "model.d_model"]
    {
        let text = folder.succeed(&["explain", key])?.stdout;
        let example = text.split("\nexample\n").nth(1).ok_or("an example")?;
        let example = example.split("\n\n").next().unwrap_or_default();
        folder.write("a.toml", format!("task = \"weather\"\n{example}"))?;
        folder.succeed(&["train", "a.toml", "--dry-run"])?;
    }
    Ok(())
}

#[test]
fn an_unknown_key_suggests_known_ones() -> Result {
    let folder = Folder::new()?;
    folder.refuse(&["explain", "window"], &["no setting `window`", "`model.attention.window`"])?;
    folder.refuse(&["explain", "training.step"], &["did you mean `training.steps`?"])?;
    folder.refuse(&["explain", ""], &["`tealight explain` lists"])
}

#[test]
fn an_error_names_the_command_that_explains_the_setting() -> Result {
    let folder = Folder::new()?;
    let cases = [
        ("model.n_head=2", "`tealight explain model.n_heads`"),
        ("model.n_heads=two", "`tealight explain model.n_heads`"),
        ("model.n_heads=7", "`tealight explain model.n_heads`"),
        ("model.attention=sofmax", "`tealight explain model.attention`"),
        ("training.precision=f8", "`tealight explain training.precision`"),
        ("training.batch_size=0", "`tealight explain training.batch_size`"),
    ];
    for (setting, help) in cases {
        folder.refuse_settings(&[setting], &[help])?;
    }
    Ok(())
}

#[test]
fn the_schema_is_one_json_object() -> Result {
    let schema = Folder::new()?.json(&["schema"])?;
    assert_eq!(schema["$schema"], json!("https://json-schema.org/draft/2020-12/schema"));
    assert_eq!(schema["properties"]["seed"]["default"], json!(0));
    Ok(())
}
