//! Runs that come from elsewhere: links, named pipes and devices in place of their files.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::program::{Folder, Result, golden_model};

/// `report` wrote through the link and replaced what the user had there.
#[test]
fn nothing_is_written_through_a_link_in_a_run() -> Result {
    let folder = Folder::new()?;
    folder.succeed(&["train", "tiny.toml", "--stop-after", "2"])?;
    folder.write("mine", "mine")?;
    let link = |name: &str| -> Result { Ok(symlink("../../mine", folder.path(name))?) };
    link("runs/tiny/.report.html.tmp")?;
    folder.succeed(&["report", "runs/tiny"])?;
    assert_eq!(folder.read("mine")?, "mine");
    assert!(folder.read("runs/tiny/report.html")?.starts_with("<!"));
    for name in [".lock", "metrics.jsonl", "samples.jsonl"] {
        let (path, mine) = (folder.path(&format!("runs/tiny/{name}")), folder.path("mine"));
        fs::rename(&path, &mine)?;
        let before = folder.read("mine")?;
        link(&format!("runs/tiny/{name}"))?;
        let outcome = folder.run(&["train", "runs/tiny"])?;
        assert_ne!(outcome.code, Some(0), "{name}");
        assert!(outcome.stderr.contains(&format!("{name}`: it is a link")), "{}", outcome.stderr);
        assert_eq!(folder.read("mine")?, before);
        fs::remove_file(&path)?;
        fs::rename(&mine, &path)?;
    }
    folder.succeed(&["train", "runs/tiny"])?;
    Ok(())
}

#[test]
fn checkpoints_and_pictures_are_not_written_into_a_linked_folder() -> Result {
    let folder = Folder::trained()?;
    fs::create_dir(folder.path("pictures"))?;
    let days = "RCSRCSRCSR";
    for (name, words) in
        [("plots", &["plot", "runs/tiny"][..]), ("attention", &["attend", "runs/tiny", days])]
    {
        let at = folder.path(&format!("runs/tiny/{name}"));
        let _ = fs::remove_dir_all(&at);
        symlink("../../pictures", &at)?;
        folder.refuse(words, &[&format!("{name}`: it is a link")])?;
        fs::remove_file(&at)?;
    }
    let checkpoints = folder.path("runs/tiny/checkpoints");
    fs::rename(&checkpoints, folder.path("elsewhere"))?;
    symlink("../../elsewhere", &checkpoints)?;
    folder.succeed(&["evaluate", "runs/tiny"])?;
    for words in [&["checkpoint", "prune", "runs/tiny", "--keep", "1"][..], &["train", "runs/tiny"]]
    {
        folder.refuse(words, &["checkpoints`: it is a link"])?;
    }
    Ok(())
}

/// As many pictures as there were files were read into the page.
#[test]
fn a_page_has_few_pictures_of_a_run() -> Result {
    let folder = Folder::trained()?;
    fs::create_dir_all(folder.path("runs/tiny/samples"))?;
    let mut lines = Vec::new();
    for example in 0..100 {
        folder.write(&format!("runs/tiny/samples/{example}.png"), "a picture")?;
        lines.push(format!("{{\"step\":1,\"example\":{example},\"input\":\"\"}}\n"));
    }
    folder.write("runs/tiny/samples.jsonl", lines.concat())?;
    folder.succeed(&["report", "runs/tiny"])?;
    let page = folder.read("runs/tiny/report.html")?;
    assert_eq!(page.matches("data:image/png").count(), 32);
    Ok(())
}

/// They were told to be missing.
#[test]
fn a_pipe_or_a_folder_in_place_of_a_file_of_a_model_is_refused_by_name() -> Result {
    let folder = Folder::new()?;
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    for (name, is_pipe) in files.into_iter().flat_map(|name| [(name, true), (name, false)]) {
        fs::create_dir(folder.path("model"))?;
        for file in fs::read_dir(golden_model("bert"))? {
            let file = file?;
            if file.file_name() != name {
                fs::copy(file.path(), folder.path("model").join(file.file_name()))?;
            }
        }
        let path = folder.path("model").join(name);
        if is_pipe {
            assert!(Command::new("mkfifo").arg(&path).status()?.success());
        } else {
            fs::create_dir(&path)?;
        }
        let said = format!("{name}`: it is no regular file");
        // `refuse` reads all files of the folder, and would wait for a writer.
        folder.run(&["fill-mask", "model", "a [MASK]"])?.assert_refused(&[&said]);
        fs::remove_dir_all(folder.path("model"))?;
    }
    Ok(())
}

/// A named pipe made `report` wait for ever, a device filled the memory.
#[test]
fn a_pipe_or_a_device_in_place_of_a_file_is_refused_by_name() -> Result {
    let folder = Folder::trained()?;
    let needed = ["metrics.jsonl", "report.json", "resolved.toml", "manifest.json"];
    for name in needed.into_iter().chain(["summary.json", "samples.jsonl"]) {
        let path = folder.path(&format!("runs/tiny/{name}"));
        let kept = fs::read(&path).ok();
        for device in ["pipe", "/dev/zero"] {
            let _ = fs::remove_file(&path);
            match device {
                "pipe" => assert!(Command::new("mkfifo").arg(&path).status()?.success()),
                device => symlink(device, &path)?,
            }
            let outcome = folder.run(&["report", "runs/tiny"])?;
            let is_named = outcome.stderr.contains(&format!("{name}`: it is no regular file"));
            assert!(is_named || outcome.code == Some(0), "{name} {device}: {}", outcome.stderr);
            assert!(is_named || !needed.contains(&name), "{name} {device}");
        }
        fs::remove_file(&path)?;
        if let Some(kept) = kept {
            fs::write(&path, kept)?;
        }
    }
    Ok(())
}
