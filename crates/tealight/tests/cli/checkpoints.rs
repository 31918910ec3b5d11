//! Damaged runs and checkpoints, and those of newer format versions.

use std::fs;

use serde_json::{Value, json};

use crate::program::{Folder, Result};

const LAST: &str = "runs/tiny/checkpoints/step-000006";

/// A finished run with a single checkpoint, so that no other can replace it.
fn trained() -> Result<Folder> {
    let folder = Folder::trained()?;
    for step in [2, 4] {
        fs::remove_dir_all(folder.path(&format!("runs/tiny/checkpoints/step-00000{step}")))?;
    }
    Ok(folder)
}

/// Removes the digests, which format version 1 did not have, so that edited files are read.
fn forget_digests(folder: &Folder) -> Result {
    let sums = folder.path(&format!("{LAST}/SHA256SUMS"));
    if sums.exists() {
        fs::remove_file(sums)?;
        edit(folder, &format!("{LAST}/state.json"), |state| state["format_version"] = json!(1))?;
    }
    Ok(())
}

/// Asserts that `evaluate`, `forecast` and `--resume` all refuse the run.
fn nothing_takes(folder: &Folder, parts: &[&str]) -> Result {
    folder.refuse(&["evaluate", "runs/tiny"], parts)?;
    folder.refuse(&["forecast", "runs/tiny", "--start", "RCS"], parts)?;
    folder.refuse(&["train", "tiny.toml", "--resume"], parts)?;
    folder.refuse(&["train", "runs/tiny"], parts)
}

fn edit(folder: &Folder, name: &str, change: impl FnOnce(&mut Value)) -> Result {
    let mut value = serde_json::from_str(&folder.read(name)?)?;
    change(&mut value);
    folder.write(name, value.to_string())
}

/// Replaces the model by `bytes`, and its size in `state.json`.
fn replace_model(folder: &Folder, bytes: &[u8]) -> Result {
    forget_digests(folder)?;
    folder.write(&format!("{LAST}/model.safetensors"), bytes)?;
    edit(folder, &format!("{LAST}/state.json"), |state| {
        state["files"]["model.safetensors"] = json!(bytes.len());
    })
}

/// A safetensors file of one tensor, with `data` behind its header.
fn safetensors(tensor: &Value, data: &[u8]) -> Vec<u8> {
    let header = json!({ "embedding.token.weight": tensor }).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn what_is_no_run_says_what_is_missing() -> Result {
    let folder = Folder::trained()?;
    fs::create_dir(folder.path("empty"))?;
    for command in ["evaluate", "train"] {
        folder
            .refuse(&[command, "empty"], &["`empty` is not a run: there is no `manifest.json`"])?;
        folder.refuse(&[command, "runs"], &["`runs` is not a run"])?;
    }
    folder.refuse(&["inspect", "empty"], &["`empty` is no model: neither a run"])?;
    folder.refuse(&["evaluate", "tiny.toml"], &["`tiny.toml` is not a run"])?;
    folder.refuse(&["evaluate", "nowhere"], &["`nowhere`", "No such file"])?;
    let forecast = ["forecast", "nowhere", "--start", "R"];
    folder.refuse(&forecast, &["`nowhere`", "there is no such file or folder"])
}

#[test]
fn a_checkpoint_that_is_not_there_lists_those_that_are() -> Result {
    let folder = Folder::trained()?;
    let args = ["evaluate", "runs/tiny", "--checkpoint", "99999"];
    folder
        .refuse(&args, &["no checkpoint `step-099999`", "step-000002, step-000004, step-000006"])?;
    fs::remove_file(folder.path("runs/tiny/checkpoints/best"))?;
    let args = ["evaluate", "runs/tiny", "--checkpoint", "best"];
    folder.refuse(&args, &["no checkpoint `best`", "step-000006", "`--checkpoint latest`"])?;
    fs::remove_dir_all(folder.path("runs/tiny/checkpoints"))?;
    folder.refuse(&["evaluate", "runs/tiny"], &["no checkpoint `latest`", "there are: none"])
}

#[test]
fn a_run_that_was_stopped_before_its_first_evaluation_can_be_used() -> Result {
    let folder = Folder::new()?;
    let settings = ["--set", "checkpoint.select=best", "--stop-after", "1"];
    folder.succeed(&[&["train", "tiny.toml"], &settings[..]].concat())?;
    let note = "runs/tiny: there is no best checkpoint (`checkpoint.select`), so the latest one, \
                of step 1, is used";
    for args in [
        &["evaluate", "runs/tiny"][..],
        &["forecast", "runs/tiny", "--start", "RCS"],
        &["export", "runs/tiny", "--to", "exported"],
    ] {
        let stderr = folder.succeed(args)?.stderr;
        assert_eq!(stderr.matches(note).count(), 1, "{stderr}");
    }
    let args = ["evaluate", "runs/tiny", "--checkpoint", "best"];
    folder.refuse(&args, &["no checkpoint `best`", "step-000001; `--checkpoint latest` takes"])
}

#[test]
fn a_file_that_was_cut_off_is_named_with_its_sizes() -> Result {
    let folder = trained()?;
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let path = folder.path(LAST).join(file);
        let whole = fs::read(&path)?;
        for n in [0, 7, 8, 100, whole.len() - 1] {
            fs::write(&path, &whole[..n])?;
            let sizes = format!("has {n} bytes and should have {}", whole.len());
            nothing_takes(&folder, &[file, &sizes])?;
        }
        fs::write(&path, &whole)?;
    }
    fs::remove_file(folder.path(LAST).join("model.safetensors"))?;
    nothing_takes(&folder, &["is not a checkpoint: there is no `model.safetensors`"])
}

#[test]
fn a_file_that_is_no_safetensors_file_is_refused() -> Result {
    let folder = trained()?;
    let refused = "`runs/tiny/checkpoints/step-000006/model.safetensors` ";
    let header_of = |size: u64| [&size.to_le_bytes()[..], b"{}"].concat();
    for bytes in [
        b"garbage, and more of it".to_vec(),
        Vec::new(),
        vec![0; 64],
        vec![255; 64],
        header_of(1 << 63),
        header_of(99_000_000),
        header_of(u64::MAX),
        safetensors(&json!({"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}), &[0; 8]),
        safetensors(&json!({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}), &[0; 8]),
        safetensors(&json!({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}), &[0; 8]),
        safetensors(&json!({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}), &[0; 8]),
        safetensors(
            &json!({"dtype": "F32", "shape": [1_u64 << 40, 1_u64 << 30], "data_offsets": [0, 8]}),
            &[0; 8],
        ),
    ] {
        replace_model(&folder, &bytes)?;
        nothing_takes(&folder, &[refused])?;
    }
    Ok(())
}

#[test]
fn a_header_that_claims_a_huge_file_allocates_nothing() -> Result {
    let folder = trained()?;
    let n = 1_u64 << 60;
    let tensor = json!({"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]});
    replace_model(&folder, &safetensors(&tensor, &[0; 8]))?;
    nothing_takes(&folder, &["model.safetensors` has", "should have 46116860184273"])
}

#[test]
fn tensors_that_do_not_fit_the_configuration_are_named_with_the_files() -> Result {
    let folder = Folder::trained()?;
    let resolved = folder.read("runs/tiny/resolved.toml")?;
    folder.write("runs/tiny/resolved.toml", resolved.replace("d_model = 8", "d_model = 16"))?;
    let parts = [
        "step-000006` does not fit `runs/tiny/resolved.toml`",
        "`embedding.token.weight`",
        "(3, 8)",
        "(3, 16)",
    ];
    folder.refuse(&["evaluate", "runs/tiny"], &parts)?;
    folder.refuse(&["train", "runs/tiny"], &parts)?;
    folder.write("runs/tiny/resolved.toml", resolved)?;
    let other = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    replace_model(&folder, &safetensors(&other, &[]))?;
    nothing_takes(&folder, &["does not fit `runs/tiny/resolved.toml`", "`embedding.token.weight`"])
}

/// A window of 0 once divided by zero in `forecast`.
#[test]
fn a_run_is_held_to_the_limits_of_a_configuration() -> Result {
    let folder = Folder::trained()?;
    let file = "runs/tiny/resolved.toml";
    let resolved = folder.read(file)?;
    for (from, to, part) in [
        ("window = 3", "window = 0", "`task.window` = 0 must be positive"),
        ("d_model = 8", "d_model = 1000000000000", "`model.d_model` = 1000000000000 must be"),
    ] {
        assert!(resolved.contains(from), "{resolved}");
        folder.write(file, resolved.replace(from, to))?;
        let parts = ["`runs/tiny/resolved.toml`", part];
        folder.refuse(&["forecast", "runs/tiny", "--start", "RCS"], &parts)?;
        folder.refuse(&["export", "runs/tiny", "--to", "out"], &parts)?;
    }
    Ok(())
}

#[test]
fn formats_of_the_future_are_refused() -> Result {
    for file in [&*format!("{LAST}/state.json"), "runs/tiny/manifest.json"] {
        let folder = trained()?;
        forget_digests(&folder)?;
        edit(&folder, file, |document| {
            document["format_version"] = json!(99);
            document["hologram"] = json!(true);
        })?;
        let version = "has format version 99, and this version reads up to ";
        if file.contains("manifest") {
            folder.refuse(&["inspect", "runs/tiny"], &[file, version])?;
        }
        nothing_takes(&folder, &[file, version])?;
    }
    Ok(())
}

#[test]
fn documents_that_are_no_json_are_named() -> Result {
    for file in [&*format!("{LAST}/state.json"), "runs/tiny/manifest.json"] {
        let folder = trained()?;
        forget_digests(&folder)?;
        for content in
            ["", "{", "[]", "null", "{\"format_version\": -1}", "{\"format_version\": 1}"]
        {
            folder.write(file, content)?;
            nothing_takes(&folder, &[file])?;
        }
    }
    Ok(())
}

#[test]
fn a_resolved_configuration_that_was_edited_wrongly_is_shown_at_its_line() -> Result {
    let folder = Folder::trained()?;
    let resolved = folder.read("runs/tiny/resolved.toml")?;
    folder.write("runs/tiny/resolved.toml", resolved.replace("n_heads = 2", "n_heads = 3"))?;
    let parts = ["`model.n_heads` = 3 does not divide", "runs/tiny/resolved.toml:"];
    folder.refuse(&["evaluate", "runs/tiny"], &parts)?;
    folder.refuse(&["inspect", "runs/tiny"], &parts)
}
