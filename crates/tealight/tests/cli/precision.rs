//! `training.precision`, `--precision` and `TEALIGHT_SIMD` on the CPU.

use serde_json::Value;

use crate::program::{Folder, Outcome, Result, golden_model};

/// A model whose products are large enough to be rounded to bf16.
const WIDE: &[&str] = &["--set", "model.d_model=32", "--set", "training.batch_size=40"];

fn has_bf16() -> bool {
    tealight_ops::bf16_instructions().is_some()
}

fn train(folder: &Folder, args: &[&str]) -> Result<Outcome> {
    folder.succeed(&[&["train", "tiny.toml"], WIDE, args].concat())
}

fn model(folder: &Folder, run: &str) -> Result<Vec<u8>> {
    let path = format!("runs/{run}/checkpoints/step-000006/model.safetensors");
    Ok(std::fs::read(folder.path(&path))?)
}

#[test]
fn bf16_changes_the_numbers_where_the_cpu_has_it_and_is_reported() -> Result {
    let folder = Folder::new()?;
    train(&folder, &["--name", "exact"])?;
    let bf16 = ["--set", "training.precision=bf16"];
    let stderr = train(&folder, &[&bf16[..], &["--name", "rounded"]].concat())?.stderr;
    assert_eq!(model(&folder, "exact")? != model(&folder, "rounded")?, has_bf16());
    let manifest = folder.read_json("runs/rounded/manifest.json")?;
    assert_eq!(manifest["instructions"]["f32"], tealight_ops::instructions());
    assert_eq!(manifest["instructions"]["bf16"].as_str(), tealight_ops::bf16_instructions());
    let expected = match tealight_ops::bf16_instructions() {
        Some(name) => format!("on cpu in bf16 ({name})"),
        None => "on cpu in f32: it has no instructions that make bf16 faster".to_owned(),
    };
    assert!(stderr.contains(&expected), "{stderr}");
    Ok(())
}

#[test]
fn a_run_in_bf16_is_resumed_exactly() -> Result {
    let folder = Folder::new()?;
    let bf16 = ["--set", "training.precision=bf16"];
    let whole = train(&folder, &[&bf16[..], &["--name", "whole"]].concat())?;
    train(&folder, &[&bf16[..], &["--stop-after", "3"]].concat())?;
    let stdout = train(&folder, &[&bf16[..], &["--resume"]].concat())?.stdout;
    assert_eq!(stdout, whole.stdout);
    assert!(model(&folder, "whole")? == model(&folder, "tiny")?);
    Ok(())
}

#[test]
fn resuming_with_another_instruction_set_says_what_it_means() -> Result {
    if tealight_ops::instructions() == "portable" {
        return Ok(());
    }
    let folder = Folder::new()?;
    let mut first = folder.command(&["train", "tiny.toml", "--stop-after", "3"]);
    let outcome = Outcome::run(first.env("TEALIGHT_SIMD", "portable"))?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let stderr = folder.succeed(&["train", "tiny.toml", "--resume"])?.stderr;
    let expected = format!(
        "the run started with the instruction set portable and continues with {}",
        tealight_ops::instructions()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    Ok(())
}

#[test]
fn precisions_and_instruction_sets_that_do_not_exist_are_refused() -> Result {
    let folder = Folder::trained()?;
    folder.refuse_settings(&["training.precision=\"bf17\""], &["bf17", "f32", "tf32", "bf16"])?;
    folder.refuse(
        &["evaluate", "runs/tiny", "--precision", "bf17"],
        &["'bf17'", "--precision", "expected one of: f32, tf32, bf16"],
    )?;
    // Nothing is trained in integers.
    folder.refuse_settings(&["training.precision=\"int8\""], &["int8", "f32", "tf32", "bf16"])?;
    let mut command = folder.command(&["evaluate", "runs/tiny"]);
    let refused = Outcome::run(command.env("TEALIGHT_SIMD", "sse9"))?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("TEALIGHT_SIMD=sse9: expected one of"), "{}", refused.stderr);
    assert!(refused.stderr.contains("portable"), "{}", refused.stderr);
    Ok(())
}

#[test]
fn numbers_of_threads_that_no_machine_has_are_refused() -> Result {
    let folder = Folder::new()?;
    for value in ["abc", "0", "-4", "1025", "3000"] {
        let mut command = folder.command(&["devices"]);
        let refused = Outcome::run(command.env("RAYON_NUM_THREADS", value))?;
        refused.assert_refused(&[&format!(
            "RAYON_NUM_THREADS={value}: expected an integer from 1 to 1024"
        )]);
        assert_eq!(refused.code, Some(1), "{value}");
    }
    let mut command = folder.command(&["devices"]);
    assert_eq!(Outcome::run(command.env("RAYON_NUM_THREADS", ""))?.code, Some(0));
    Ok(())
}

#[test]
fn inference_computes_in_the_precision_that_is_asked_for() -> Result {
    let folder = Folder::new()?;
    train(&folder, &["--name", "exact"])?;
    let report = |precision: &str| {
        folder.succeed(&["evaluate", "runs/exact", "--json", "--precision", precision])
    };
    let [exact, rounded] = ["f32", "bf16"].map(report);
    assert_eq!(exact?.stdout != rounded?.stdout, has_bf16());
    let rate = ["bench", "product", "--shapes", "64x64x64", "--seconds", "0", "--precision"];
    folder.succeed(&[&rate[..], &["bf16"]].concat())?;
    Ok(())
}

/// A little rounding changes every output, and no answer.
#[test]
fn models_compute_in_int8_where_it_is_asked_for() -> Result {
    let folder = Folder::new()?;
    train(&folder, &["-q"])?;
    let models = ["bert", "gpt2", "bert_cls", "t5"].map(golden_model);
    let [bert, gpt2, classifier, t5] = models.each_ref().map(String::as_str);
    folder.write("texts.txt", "the rain\n")?;
    for args in [
        vec!["fill-mask", bert, "the [MASK] of", "--json"],
        vec!["embed", bert, "the rain", "--json"],
        vec!["classify", classifier, "the rain", "--json"],
        vec!["rerank", bert, "the rain", "the sun", "--json"],
    ] {
        let run = |precision| folder.succeed(&[&args[..], &["--precision", precision]].concat());
        let (exact, rounded) = (run("f32")?, run("int8")?);
        assert_ne!(exact.stdout, rounded.stdout, "{args:?}");
        assert!(!rounded.stderr.contains("the precision"), "{}", rounded.stderr);
    }
    let profiled = ["bench", "embed", bert, "--file", "texts.txt", "--repeats", "1", "--profile"];
    let profile = folder.succeed(&[&profiled[..], &["--precision", "int8"]].concat())?.stdout;
    assert!(profile.contains("int8_linear"), "{profile}");
    assert!(!profile.contains("\nlinear") && !profile.contains("\nmlp"), "{profile}");
    let mut report = folder.json(&["evaluate", "runs/tiny", "--json", "--precision", "int8"])?;
    let exact = folder.json(&["evaluate", "runs/tiny", "--json"])?;
    let metrics = report.as_object_mut().and_then(|report| report.remove("metrics_in_f32"));
    assert!(
        metrics.ok_or("metrics in f32")?.as_object().is_some_and(|metrics| !metrics.is_empty())
    );
    assert_ne!(report, exact);
    let shown = folder.succeed(&["evaluate", "runs/tiny", "--precision", "int8"])?.stdout;
    assert!(shown.contains("int8") && shown.contains("difference"), "{shown}");
    for args in [
        vec!["generate", gpt2, "the", "--max-tokens", "2", "--greedy"],
        vec!["translate", t5, "the rain", "--max-len", "2"],
        vec!["bench", "product", "--shapes", "3x5x7,64x64x64", "--seconds", "0"],
        vec!["bench", "fill-mask", bert, "the [MASK] of", "--repeats", "1"],
    ] {
        folder.succeed(&[&args[..], &["--precision", "int8"]].concat())?;
    }
    let vector = |precision: &str| -> Result<Vec<f64>> {
        let args = ["embed", bert, "the rain", "--json", "--precision", precision];
        Ok(serde_json::from_value(folder.json(&args)?["embedding"].clone())?)
    };
    let (exact, rounded) = (vector("f32")?, vector("int8")?);
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let norms = product(&exact, &exact) * product(&rounded, &rounded);
    let cosine = product(&exact, &rounded) / norms.sqrt();
    assert!(cosine > 0.99, "{cosine}");
    Ok(())
}

/// Runs the program without instructions for bf16, as if the CPU had none.
fn without_bf16(folder: &Folder, args: &[&str]) -> Result<Outcome> {
    let mut command = folder.command(args);
    let vectors = match tealight_ops::instructions() {
        "amx_bf16" => "avx512",
        others => others,
    };
    let outcome = Outcome::run(command.env("TEALIGHT_SIMD", vectors))?;
    assert_eq!(outcome.code, Some(0), "{args:?}\n{}", outcome.stderr);
    Ok(outcome)
}

/// What a command says that is asked for bf16 and computes in f32 on the CPU.
const NO_BF16: &str = "the precision bf16 is asked for, but cpu computes in f32: it has no \
                       instructions that make bf16 faster\n";

#[test]
fn a_precision_that_the_cpu_lacks_is_said_once_by_every_command() -> Result {
    let folder = Folder::new()?;
    train(&folder, &["-q", "--set", "training.precision=bf16"])?;
    folder.write("texts.txt", "the rain\n")?;
    let models = ["bert", "gpt2", "bert_cls", "t5"].map(golden_model);
    let [bert, gpt2, classifier, t5] = models.each_ref().map(String::as_str);
    let bf16 = ["--precision", "bf16"];
    let product = ["bench", "product", "--shapes", "3x5x7", "--seconds", "0", "--threads", "1"];
    let attention =
        ["bench", "attention", "--kinds", "softmax", "--lengths", "5", "--repeats", "1"];
    let size = ["--d-model", "6", "--n-heads", "2"];
    for args in [
        vec!["fill-mask", bert, "the [MASK] of"],
        vec!["embed", bert, "the rain"],
        vec!["generate", gpt2, "the", "--max-tokens", "2"],
        vec!["classify", classifier, "the rain"],
        vec!["translate", t5, "the rain", "--max-len", "2"],
        vec!["bench", "fill-mask", bert, "the [MASK] of", "--repeats", "1"],
        vec!["bench", "embed", bert, "--file", "texts.txt", "--repeats", "1"],
        product.to_vec(),
        [&attention[..], &size].concat(),
        vec!["evaluate", "runs/tiny"],
    ] {
        let asked = if args[0] == "evaluate" { args.clone() } else { [&args[..], &bf16].concat() };
        let without = without_bf16(&folder, &asked)?;
        assert_eq!(without.stderr.matches(NO_BF16).count(), 1, "{args:?}\n{}", without.stderr);
        let here = folder.succeed(&asked)?.stderr;
        assert_eq!(here.contains(NO_BF16), !has_bf16(), "{args:?}\n{here}");
        let exact = folder.succeed(&[&args[..], &["--precision", "f32"]].concat())?.stderr;
        assert!(!exact.contains("the precision"), "{args:?}\n{exact}");
    }
    Ok(())
}

#[test]
fn benchmarks_report_the_precision_that_they_computed_in() -> Result {
    let folder = Folder::new()?;
    let json = |outcome: Outcome| -> Result<Value> { Ok(serde_json::from_str(&outcome.stdout)?) };
    let product = ["bench", "product", "--shapes", "3x5x7", "--seconds", "0", "--json"];
    for precision in ["bf16", "tf32"] {
        let args = [&product[..], &["--precision", precision]].concat();
        let json = json(without_bf16(&folder, &args)?)?;
        assert_eq!((&json["precision"], &json["computed_in"]), (&precision.into(), &"f32".into()));
    }
    let here = folder.json(&[&product[..], &["--precision", "bf16"]].concat())?;
    assert_eq!(here["computed_in"], if has_bf16() { "bf16" } else { "f32" });

    let steps = ["bench", "train", "tiny.toml", "--steps", "2", "--precision"];
    let measured = without_bf16(&folder, &[&steps[..], &["bf16", "--json"]].concat())?;
    assert_eq!(measured.stderr, NO_BF16);
    let measured = json(measured)?;
    assert_eq!((&measured["precision"], &measured["computed_in"]), (&"bf16".into(), &"f32".into()));
    let shown = without_bf16(&folder, &[&steps[..], &["tf32"]].concat())?;
    assert!(shown.stdout.contains(", on cpu in f32 ("), "{}", shown.stdout);
    assert!(shown.stderr.contains("tf32 is a format of NVIDIA GPUs"), "{}", shown.stderr);
    Ok(())
}
