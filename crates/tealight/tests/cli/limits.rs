//! Excessive sizes and numbers: no panic, and no allocation that ends the process.

use crate::program::{Folder, Result};

#[test]
fn sizes_that_no_machine_holds_are_refused_by_name() -> Result {
    let folder = Folder::new()?;
    let huge = ["1048577000", "1000000000000000", "1000000000000000000", "18446744073709551615"];
    for n in huge {
        for key in ["model.d_model", "model.n_layers", "model.max_seq_len"] {
            folder.refuse_settings(
                &[&format!("{key}={n}")],
                &[&format!("`{key}` = {n} must be at most")],
            )?;
        }
        for key in ["training.batch_size", "task.window", "task.regime.n"] {
            folder.refuse_settings(
                &[&format!("{key}={n}")],
                &[&format!("`{key}` = {n} must be at most")],
            )?;
        }
        let d_ff = format!("model.feed_forward={{kind=\"glu\",d_ff={n}}}");
        folder.refuse_settings(&[&d_ff], &[&format!("`model.feed_forward.d_ff` = {n}")])?;
        let relative = format!("model.position={{kind=\"relative\",n_buckets={n}}}");
        folder.refuse_settings(&[&relative], &[&format!("`model.position.n_buckets` = {n}")])?;
        let fresh = format!("task.regime={{kind=\"fresh\",n_validation={n}}}");
        folder.refuse_settings(&[&fresh], &[&format!("`task.regime.n_validation` = {n}")])?;
    }
    Ok(())
}

#[test]
fn products_of_sizes_are_refused_too() -> Result {
    let folder = Folder::new()?;
    let model = ["model.d_model=1000000", "model.n_layers=1000"];
    folder.refuse_settings(&model, &["`model.d_model` = 1000000", "`model.n_layers` = 1000"])?;
    folder
        .refuse(&["inspect", "tiny.toml", "--set", model[0], "--set", model[1]], &["parameters"])?;
    let batch = ["training.batch_size=1000000", "model.d_model=2048", "task.window=366"];
    let parts = ["`training.batch_size` = 1000000", "GiB of memory", "`training.micro_batches`"];
    folder.refuse_settings(&batch, &parts)
}

#[test]
fn more_memory_than_there_is_is_refused_where_the_system_says_so() -> Result {
    let folder = Folder::new()?;
    // 2.6 TB of parameters.
    let args =
        ["inspect", "tiny.toml", "--set", "model.d_model=100000", "--set", "model.n_layers=2"];
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory")
        .is_ok_and(|mode| mode.trim() == "0")
    {
        folder.refuse(&args, &["`model.d_model` = 100000", "GiB of memory"])?;
    }
    Ok(())
}

#[test]
fn long_runs_and_large_seeds_are_fine() -> Result {
    let folder = Folder::new()?;
    for setting in [
        "training.steps=9223372036854775807",
        "training.micro_batches=9223372036854775807",
        "training.evaluate_every=18446744073709551615",
        "seed=18446744073709551615",
        "checkpoint.keep_last=18446744073709551615",
        "training.early_stopping.patience=18446744073709551615",
    ] {
        folder.succeed(&["train", "tiny.toml", "--dry-run", "--set", setting])?;
    }
    let parts = ["`seed`: the number is too large", "and 18446744073709551615"];
    folder.refuse_settings(&["seed=18446744073709551616"], &parts)?;
    folder.refuse_settings(
        &["training.steps=1e18"],
        &["`training.steps` = 1e18: expected an integer"],
    )
}

/// All float settings: a `--set` argument with `#` in place of the value, and the key.
const FLOATS: [(&str, &str); 26] = [
    ("model.dropout=#", "model.dropout"),
    ("task.label_smoothing=#", "task.label_smoothing"),
    ("training.max_grad_norm=#", "training.max_grad_norm"),
    ("training.ema_decay=#", "training.ema_decay"),
    ("training.early_stopping.min_delta=#", "training.early_stopping.min_delta"),
    ("optimizer={kind=\"adamw\",lr=#}", "optimizer.lr"),
    ("optimizer={kind=\"adamw\",beta1=#}", "optimizer.beta1"),
    ("optimizer={kind=\"adamw\",beta2=#}", "optimizer.beta2"),
    ("optimizer={kind=\"adamw\",epsilon=#}", "optimizer.epsilon"),
    ("optimizer={kind=\"adamw\",weight_decay=#}", "optimizer.weight_decay"),
    ("optimizer={kind=\"sgd\",lr=#}", "optimizer.lr"),
    ("optimizer={kind=\"sgd\",momentum=#}", "optimizer.momentum"),
    ("schedule={kind=\"linear\",final_lr_ratio=#}", "schedule.final_lr_ratio"),
    ("schedule={kind=\"wsd\",final_lr_ratio=#}", "schedule.final_lr_ratio"),
    ("model.position={kind=\"scalar\",length=#}", "model.position.length"),
    ("model.position={kind=\"sinusoidal\",base=#}", "model.position.base"),
    ("model.position={kind=\"learned\",std=#}", "model.position.std"),
    ("model.position={kind=\"rotary\",base=#}", "model.position.base"),
    (
        "model.position={kind=\"rotary\",scaling={kind=\"linear\",factor=#}}",
        "model.position.scaling.factor",
    ),
    (
        "model.attention={kind=\"softmax\",qk_norm=true,qk_norm_epsilon=#}",
        "model.attention.qk_norm_epsilon",
    ),
    ("model.norm={kind=\"layer_norm\",epsilon=#}", "model.norm.epsilon"),
    ("model.norm={kind=\"rms_norm\",epsilon=#}", "model.norm.epsilon"),
    ("model.init={kind=\"fan_in\",embedding_std=#}", "model.init.embedding_std"),
    ("model.init={kind=\"normal\",std=#}", "model.init.std"),
    ("task.source={kind=\"dotmod\",probability=#}", "task.source.probability"),
    ("task.source.initial=[#,0.5,0.5]", "task.source.initial"),
];

#[test]
fn floats_that_are_no_numbers_are_refused_by_name() -> Result {
    let folder = Folder::new()?;
    for (setting, key) in FLOATS {
        for value in ["nan", "inf", "-inf"] {
            let parts = [&*format!("`{key}` = "), "must", "="];
            let parts = if key.starts_with("task.source") { &parts[..1] } else { &parts[..2] };
            folder.refuse_settings(&[&setting.replace('#', value)], parts)?;
        }
        folder.refuse_settings(&[&setting.replace('#', "1e400")], &["the number is too large"])?;
        folder.refuse_settings(&[&setting.replace('#', "true")], &["expected a number"])?;
    }
    Ok(())
}

#[test]
fn floats_that_are_too_large_to_train_with_end_in_a_message() -> Result {
    for (index, (setting, _)) in FLOATS.iter().enumerate() {
        let folder = Folder::new()?;
        for value in ["1e308", "1e-320"] {
            let setting = setting.replace('#', value);
            let name = format!("run-{index}");
            let args = ["train", "tiny.toml", "-q", "--name", &name, "--set", &setting];
            let outcome = folder.run(&args)?;
            if outcome.code != Some(0) {
                outcome.assert_refused(&[]);
            }
        }
    }
    Ok(())
}
