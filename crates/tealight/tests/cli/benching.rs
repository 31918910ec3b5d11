//! `bench` at small sizes: output and errors.

use crate::program::{Folder, Result, golden_model};

const SMALL: [&str; 10] = [
    "bench",
    "attention",
    "--d-model",
    "12",
    "--n-heads",
    "3",
    "--repeats",
    "2",
    "--lengths",
    "5,7,14",
];

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn every_kind_is_measured_at_every_length_and_the_last_doubling_is_shown() -> Result {
    let folder = Folder::new()?;
    let kinds = ["--kinds", "softmax,top_k:k=3"];
    let outcome = folder.succeed(&args(&[&kinds[..], &["--backward"]].concat()))?;
    let stdout = &outcome.stdout;
    let tables =
        ["Forward, time (ms):", "Forward, memory (MiB):", "Forward and backward, time (ms):"];
    for title in tables {
        let Some((_, table)) = stdout.split_once(title) else {
            if cfg!(not(target_os = "linux")) && title.contains("memory") {
                continue;
            }
            panic!("`{title}` is not in\n{stdout}");
        };
        let rows: Vec<&str> = table.trim_start().lines().take(4).collect();
        assert!(rows[0].starts_with("| kind") && rows[0].ends_with("| doubling |"), "{stdout}");
        assert!(rows[2].starts_with("| softmax  ") && rows[2].contains(" × "), "{stdout}");
        assert!(rows[3].starts_with("| top_k:k=3 |"), "{stdout}");
    }
    assert!(stdout.starts_with("One layer of d_model 12 with 3 heads, one sequence"), "{stdout}");
    assert!(outcome.stderr.contains("softmax at 14, forward and backward: "), "{}", outcome.stderr);
    assert_eq!(folder.files()?.len(), 1);
    Ok(())
}

#[test]
fn json_holds_every_measurement() -> Result {
    let folder = Folder::new()?;
    let more = ["--kinds", "softmax", "--json", "--causal", "--threads", "1", "--backward"];
    let json = folder.json(&args(&more))?;
    assert_eq!((&json["d_model"], &json["n_heads"]), (&12.into(), &3.into()));
    assert_eq!((&json["causal"], &json["threads"]), (&true.into(), &1.into()));
    let measurements = json["measurements"].as_array().ok_or("measurements")?;
    let lengths = measurements.iter().filter_map(|one| one["length"].as_u64());
    assert_eq!(lengths.collect::<Vec<_>>(), [5, 7, 14, 5, 7, 14]);
    for one in measurements {
        let measured = &one["measured"];
        assert!(measured["seconds"].as_f64() > Some(0.), "{one}");
        assert_eq!(measured["n_repeats"], 2);
        // Four projections of 12 × 12 with bias.
        assert_eq!(measured["n_parameters"], 4 * (12 * 12 + 12));
        assert!(measured["peak_memory_bytes"].is_u64() || cfg!(not(target_os = "linux")), "{one}");
        assert!(one["reason"].is_null());
    }
    assert_eq!(measurements[5]["pass"], "forward and backward");
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_matrix_of_weights_is_seen_in_the_memory_and_rows_of_one_are_not() -> Result {
    let folder = Folder::new()?;
    let grows_by = |kind: &str| -> Result<f64> {
        let args = ["bench", "attention", "--kinds", kind, "--lengths", "1024,2048", "--repeats"];
        let size = ["1", "--d-model", "8", "--n-heads", "8", "--json"];
        let json = folder.json(&[&args[..], &size].concat())?;
        let bytes =
            |index: usize| json["measurements"][index]["measured"]["peak_memory_bytes"].as_f64();
        let [Some(half), Some(full)] = [0, 1].map(bytes) else { panic!("{json}") };
        Ok(full - half)
    };
    let matrix = 3. * 1024_f64.powi(2) * 4.; // what 2048² numbers have more than 1024²
    let of_one = grows_by("aft_full:factorised=false")?;
    assert!((0.9..1.3).contains(&(of_one / matrix)), "{of_one} {matrix}");
    // The scores of 8 heads, 128 queries at a time.
    let of_rows = grows_by("sparsemax")?;
    assert!(of_rows < 0.2 * 8. * matrix, "{of_rows} {matrix}");
    Ok(())
}

#[test]
fn all_kinds_are_measured_or_say_why_not() -> Result {
    let folder = Folder::new()?;
    let json = folder.json(&args(&["--json"]))?;
    let measurements = json["measurements"].as_array().ok_or("measurements")?;
    assert!(measurements.len() >= 3);
    for one in measurements {
        assert_ne!(one["measured"].is_null(), one["reason"].is_null(), "{one}");
    }
    Ok(())
}

#[test]
fn a_length_that_nothing_can_hold_is_listed_with_the_reason() -> Result {
    let folder = Folder::new()?;
    let more = ["--kinds", "softmax", "--lengths", "8,1000000000"];
    let stdout = folder.succeed(&[&SMALL[..8], &more].concat())?.stdout;
    assert!(stdout.contains("\nNot measured:\n\n- softmax, forward, at 1000000000: needs about "));
    assert!(stdout.contains("GiB of memory, and "), "{stdout}");
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_refused() -> Result {
    let folder = Folder::new()?;
    let refuse = |more: &[&str], parts: &[&str]| folder.refuse(&args(more), parts);
    let parts = ["`--kinds sofmax`: unknown kind `sofmax`", "did you mean `softmax`?"];
    refuse(&["--kinds", "softmax,sofmax"], &parts)?;
    let outcome = folder.run(&args(&["--kinds", "softmax,foo"]))?;
    assert!(!outcome.stderr.contains("--set"), "{}", outcome.stderr);
    refuse(&["--kinds", "nystrom:n_landmark=3"], &["unknown key `n_landmark`", "`n_landmarks`"])?;
    refuse(&["--kinds", "top_k:k=many"], &["`model.attention.k`", "expected an integer"])?;
    refuse(&["--kinds", ""], &["names no kind of attention"])?;
    refuse(&["--kinds", "nystrom:n_landmarks=0"], &["all measurements failed"])?;
    let odd = ["bench", "attention", "--d-model", "10", "--n-heads", "3"];
    folder.refuse(&odd, &["`--n-heads 3` does not divide `--d-model 10`"])?;
    for (name, value) in [
        ("--lengths", "0"),
        ("--lengths", "5,"),
        ("--repeats", "0"),
        ("--repeats", "1000001"),
        ("--threads", "x"),
        ("--threads", "100000000"),
        ("--seconds", "-1"),
        ("--seconds", "nan"),
        ("--seconds", "inf"),
    ] {
        let outcome = folder.run(&["bench", "attention", name, value])?;
        assert_eq!(outcome.code, Some(2), "{name} {value}");
        assert!(outcome.stderr.contains("expected"), "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn a_training_step_is_measured_and_nothing_is_written() -> Result {
    let folder = Folder::new()?;
    let before = folder.files()?;
    let bench = ["bench", "train", "tiny.toml", "--steps", "3", "--warmup", "1"];
    let stdout = folder.succeed(&[&bench[..], &["--profile"]].concat())?.stdout;
    let parts =
        ["step, median", "tokens per second", "MFU", "allocations per step", "linear, back"];
    for part in [&parts[..], &["update", "batch", "all else"]].concat() {
        assert!(stdout.contains(part), "`{part}` is not in\n{stdout}");
    }
    let more = ["--json", "--threads", "1", "--set", "training.batch_size=3"];
    let json = folder.json(&[&bench[..], &more].concat())?;
    assert_eq!((&json["threads"], &json["n_steps"]), (&1.into(), &3.into()));
    assert_eq!(json["examples_per_step"], 3);
    assert!(json["loss"].as_f64().is_some_and(f64::is_finite), "{json}");
    for key in ["tokens_per_second", "model_flops_utilisation", "allocations_per_step"] {
        assert!(json[key].as_f64() > Some(0.), "{key}: {json}");
    }
    let (median, fastest) = (&json["step"]["median"], &json["step"]["fastest"]);
    assert!(median.as_f64() >= fastest.as_f64() && fastest.as_f64() > Some(0.), "{json}");
    assert!(json["profile"].is_null());
    assert_eq!(folder.files()?, before);
    Ok(())
}

#[test]
fn products_and_filled_masks_are_measured() -> Result {
    let folder = Folder::new()?;
    let product = ["bench", "product", "--shapes", "3x5x7,64x32x16", "--seconds", "0"];
    let stdout = folder.succeed(&product)?.stdout;
    assert!(stdout.contains("3x5x7 ") && stdout.contains("64x32x16 "), "{stdout}");
    let json = folder.json(&[&product[..], &["--json", "--threads", "2"]].concat())?;
    assert_eq!((&json["threads"], &json["products"][1]["shape"]), (&2.into(), &"64x32x16".into()));
    assert!(json["products"][1]["gflops"].as_f64() > Some(0.), "{json}");
    let model = golden_model("bert");
    let fill = ["bench", "fill-mask", &model, "the [MASK] of", "--repeats", "2"];
    assert!(folder.succeed(&fill)?.stdout.contains("median"));
    let json = folder.json(&[&fill[..], &["--json"]].concat())?;
    assert!(json["milliseconds"]["median"].as_f64() > Some(0.), "{json}");
    folder.refuse(&["bench", "fill-mask", &model, "no gap"], &["no gap"])
}

#[test]
fn embeddings_are_measured() -> Result {
    let (folder, model) = (Folder::new()?, golden_model("bert"));
    folder.write("texts.txt", "the rain\na king\n")?;
    let embed = ["bench", "embed", &model, "--file", "texts.txt", "--repeats", "2"];
    assert!(folder.succeed(&embed)?.stdout.contains("for 2 texts"));
    let json = folder.json(&[&embed[..], &["--json", "--profile"]].concat())?;
    assert!(json["milliseconds"]["fastest"].as_f64() > Some(0.), "{json}");
    assert!(json["profile"].as_array().is_some_and(|shares| shares.len() > 3), "{json}");
    folder.refuse(&["bench", "embed", &model, "--file", "none.txt"], &["cannot read `none.txt`"])
}

#[test]
fn time_over_length_is_drawn_and_the_crossing_said() -> Result {
    let folder = Folder::new()?;
    let more = ["--kinds", "softmax,aft_simple", "--backward", "--plot", "pictures"];
    let stdout = folder.succeed(&args(&more))?.stdout;
    assert_eq!(stdout.matches("Faster than softmax from length: aft_simple ").count(), 2);
    for name in ["forward.svg", "forward.png", "forward_and_backward.svg"] {
        assert!(folder.path("pictures").join(name).is_file(), "{name}");
    }
    let picture = folder.read("pictures/forward.svg")?;
    assert!(picture.contains("sequence length") && picture.contains("aft_simple"));
    Ok(())
}

#[test]
fn more_repeats_than_anyone_waits_for_are_refused() -> Result {
    let folder = Folder::new()?;
    for n in ["1000001", "100000000000", "18446744073709551615"] {
        for args in [
            &["bench", "fill-mask", "model", "a [MASK]", "--repeats", n][..],
            &["bench", "embed", "model", "--file", "texts.txt", "--repeats", n],
            &["bench", "comm", "--repeats", n],
            &["bench", "train", "tiny.toml", "--steps", n],
        ] {
            let outcome = folder.run(args)?;
            assert_eq!(outcome.code, Some(2), "{args:?}");
            let rule = "expected an integer from 1 to 1000000";
            assert!(outcome.stderr.contains(rule), "{}", outcome.stderr);
        }
        let outcome = folder.run(&["bench", "train", "tiny.toml", "--warmup", n])?;
        let rule = "expected an integer from 0 to 1000000";
        assert!(outcome.code == Some(2) && outcome.stderr.contains(rule), "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn what_is_no_benchmark_is_refused() -> Result {
    let folder = Folder::new()?;
    folder.refuse(&["bench", "train", "none.toml"], &["none.toml"])?;
    let setting = ["bench", "train", "tiny.toml", "--set", "model.n_heads=7"];
    folder.refuse(&setting, &["model.n_heads"])?;
    for (args, part) in [
        (["bench", "product", "--shapes", "4x5"], "MxNxK"),
        (["bench", "product", "--shapes", "4x5x0"], "MxNxK"),
        (["bench", "product", "--shapes", "4x5x99999999"], "MxNxK"),
        (["bench", "train", "--steps", "0"], "expected an integer from 1 to"),
        (["bench", "train", "--threads", "0"], "expected an integer from 1 to"),
    ] {
        let outcome = folder.run(&args)?;
        assert_eq!(outcome.code, Some(2), "{args:?}");
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    Ok(())
}
