//! `forecast`: sampling, greedy decoding and beam search.

use serde_json::Value;

use crate::program::{Folder, Result};

fn forecast(folder: &Folder, args: &[&str]) -> Result<String> {
    let outcome = folder.succeed(&[&["forecast", "runs/tiny"], args].concat())?;
    assert_eq!(outcome.stderr, "");
    Ok(outcome.stdout)
}

fn json(folder: &Folder, args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&forecast(folder, &[args, &["--json"]].concat())?)?)
}

fn log_probabilities(forecast: &Value) -> Result<Vec<f64>> {
    let sequences = forecast["sequences"].as_array().ok_or("an array")?;
    let of = |sequence: &Value| sequence["log_probability"].as_f64().ok_or("a number");
    Ok(sequences.iter().map(of).collect::<std::result::Result<_, _>>()?)
}

#[test]
fn the_seed_decides() -> Result {
    let folder = Folder::trained()?;
    let mut forecasts = Vec::new();
    for seed in ["0", "1", "2", "3", "18446744073709551615"] {
        let args = ["--start", "RCS", "--days", "14", "--seed", seed];
        let days = forecast(&folder, &args)?;
        assert_eq!(days, forecast(&folder, &args)?, "{seed}");
        forecasts.push(days);
    }
    assert_eq!(forecast(&folder, &["--start", "RCS", "--days", "14"])?, forecasts[0]);
    forecasts.sort();
    forecasts.dedup();
    assert!(forecasts.len() > 1, "{forecasts:?}");
    Ok(())
}

#[test]
fn at_temperature_zero_the_likeliest_day_is_taken() -> Result {
    let folder = Folder::trained()?;
    let take =
        |args: &[&str]| forecast(&folder, &[&["--start", "RCS", "--days", "9"], args].concat());
    let greedy = take(&["--temperature", "0"])?;
    for args in [
        &["--temperature", "0", "--seed", "7"][..],
        &["--top-k", "1", "--seed", "3"],
        &["--temperature", "1e-300", "--seed", "5"],
        &["--beams", "1"],
    ] {
        assert_eq!(take(args)?, greedy, "{args:?}");
    }
    take(&["--temperature", "1e300"])?;
    Ok(())
}

#[test]
fn beams_come_likeliest_first_and_enough_of_them_are_all_there_is() -> Result {
    let folder = Folder::trained()?;
    let args = ["--start", "RCS", "--days", "5", "--beams", "4"];
    let some = log_probabilities(&json(&folder, &args)?)?;
    assert!(some.len() == 4 && some.is_sorted_by(|a, b| a >= b), "{some:?}");
    let all = json(&folder, &["--start", "RCS", "--days", "2", "--beams", "1000"])?;
    let all = log_probabilities(&all)?;
    let total: f64 = all.iter().map(|log_probability| log_probability.exp()).sum();
    assert!(all.len() == 9 && (total - 1.).abs() < 1e-9, "{all:?}");
    let text = forecast(&folder, &args)?;
    assert_eq!(
        text.lines().filter(|line| line.starts_with("🌧️☁️☀️ → ") && line.ends_with('%')).count(),
        4
    );
    Ok(())
}

#[test]
fn json_has_the_next_day_the_sequences_and_what_is_unknown() -> Result {
    let folder = Folder::trained()?;
    let forecast = json(&folder, &["--start", "RCS", "--days", "4"])?;
    assert!(forecast.as_object().ok_or("an object")?.keys().eq(["next", "sequences", "n_unknown"]));
    let next = forecast["next"].as_object().ok_or("an object")?;
    assert!(next.keys().eq(["rain", "cloud", "sun"]), "{forecast}");
    let total: f64 = next.values().filter_map(Value::as_f64).sum();
    assert!((total - 1.).abs() < 1e-9, "{forecast}");
    assert_eq!(forecast["n_unknown"], 0);
    let sequence = &forecast["sequences"][0];
    let days = sequence["days"].as_array().ok_or("an array")?;
    assert!(days.len() == 4 && days.iter().all(|day| day.as_u64().is_some_and(|day| day < 3)));
    let emoji = ["🌧\u{FE0F}", "☁\u{FE0F}", "☀\u{FE0F}"];
    let written: String =
        days.iter().filter_map(Value::as_u64).map(|day| emoji[day as usize]).collect();
    assert_eq!(sequence["emoji"], written);
    assert!(log_probabilities(&forecast)?[0] < 0.);
    Ok(())
}

#[test]
fn fewer_days_than_the_window_and_more_are_fine() -> Result {
    let folder = Folder::trained()?;
    let two = forecast(&folder, &["--start", "RC"])?;
    assert!(two.contains("(the model's window has 1 more day"), "{two}");
    let three = json(&folder, &["--start", "RCS", "--days", "9"])?;
    assert_eq!(three["n_unknown"], 0);
    // Days before the window are ignored.
    let thirty = format!("{}RCS", "SSC".repeat(9));
    assert_eq!(json(&folder, &["--start", &thirty, "--days", "9"])?, three);
    Ok(())
}

#[test]
fn a_causal_model_needs_no_past() -> Result {
    let folder = Folder::new()?;
    let settings = ["--set", "model.causal=true", "--set", "task.read_out=every_position"];
    folder.succeed(&[&["train", "tiny.toml", "-q"], &settings[..]].concat())?;
    assert_eq!(json(&folder, &["--start", "R"])?["n_unknown"], 0);
    Ok(())
}

#[test]
fn emoji_are_read_with_and_without_variation_selectors() -> Result {
    let folder = Folder::trained()?;
    let letters = json(&folder, &["--start", "rCs"])?;
    for start in ["🌧☁☀", "🌧\u{FE0F}☁\u{FE0F}☀\u{FE0F}", "🌧\u{FE0F}☁☀", " 🌧, ☁, ☀ ", "R\nC\nS"]
    {
        assert_eq!(json(&folder, &["--start", start])?, letters, "{start:?}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_forecast_is_refused() -> Result {
    let folder = Folder::trained()?;
    let cases: [(&[&str], &[&str]); 13] = [
        (
            &["--start", "RCX"],
            &["cannot parse `--start` as weather", "column 3", "`X` is neither rain"],
        ),
        (&["--start", "🌈"], &["cannot parse `--start` as weather", "`🌈`"]),
        (&["--start", ""], &["`--start` is empty", "R C S"]),
        (&["--start", " ,\n"], &["`--start` is empty"]),
        (&["--start", "R", "--days", "0"], &["--days", "expected a positive integer"]),
        (&["--start", "R", "--days", "999999999999"], &["`--days` = 999999999999 must be at most"]),
        (&["--start", "R", "--beams", "0"], &["--beams", "expected a positive integer"]),
        (
            &["--start", "R", "--beams", "999999999999"],
            &["`--beams` = 999999999999 must be at most"],
        ),
        (&["--start", "R", "--top-k", "0"], &["--top-k", "expected a positive integer"]),
        (
            &["--start", "R", "--temperature", "-1"],
            &["--temperature", "expected a number, 0 or more"],
        ),
        (
            &["--start", "R", "--temperature", "nan"],
            &["--temperature", "expected a number, 0 or more"],
        ),
        (
            &["--start", "R", "--temperature", "inf"],
            &["--temperature", "expected a number, 0 or more"],
        ),
        (&["--start", "R", "--beams", "2", "--seed", "1"], &["'--beams <N>' cannot be used with"]),
    ];
    for (args, parts) in cases {
        folder.refuse(&[&["forecast", "runs/tiny"], args].concat(), parts)?;
    }
    Ok(())
}

#[test]
fn a_model_that_is_sure_of_the_wrong_days_still_forecasts() -> Result {
    let folder = Folder::new()?;
    let wild = "optimizer={kind=\"sgd\",lr=3000.0}";
    folder.succeed(&["train", "tiny.toml", "-q", "--set", wild, "--set", "training.steps=1"])?;
    for start in ["RCSRCSRRRCCCSSSRSRSCSC", "R"] {
        for args in [&["--days", "30"][..], &["--days", "3", "--beams", "1000"]] {
            let forecast = json(&folder, &[&["--start", start], args].concat())?;
            assert!(forecast["next"]["rain"].is_number(), "{forecast}");
        }
    }
    Ok(())
}
