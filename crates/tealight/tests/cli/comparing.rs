//! Encoders and rankers: `init`, `train`, `evaluate`, `--resume`, `export`, `embed` and `rerank`.

use std::fs;

use serde_json::{Value, json};

use crate::program::{Folder, Result, golden_model};

const THINGS: [[&str; 2]; 6] = [
    ["ship", "boat"],
    ["car", "auto"],
    ["stone", "rock"],
    ["sofa", "couch"],
    ["purse", "wallet"],
    ["jug", "pitcher"],
];

/// Pairs that name the same thing in two ways, each with a hard negative.
fn pairs(n: usize) -> String {
    let row = |at: usize| {
        let ([first, second], [_, other]) = (THINGS[at % 6], THINGS[(at + 1 + at / 6 % 5) % 6]);
        let (day, id) = (at / 6, at);
        json!({
            "anchor": format!("{first} on day {day}"),
            "positive": format!("day {day}: a {second}"),
            "negative": format!("day {day}: a {other}"),
            "id": id,
        })
        .to_string()
    };
    (0..n).map(|at| row(at) + "\n").collect()
}

const SHORT: [&str; 10] = [
    "--set",
    "training.steps=80",
    "--set",
    "training.evaluate_every=40",
    "--set",
    "checkpoint.every=20",
    "--set",
    "schedule.warmup_steps=5",
    "--set",
    "training.batch_size=16",
];

fn train(folder: &Folder, file: &str, more: &[&str]) -> Result<String> {
    let outcome = folder.succeed(&[&["train", file], &SHORT[..], more].concat())?;
    Ok(outcome.stdout + &outcome.stderr)
}

fn last(folder: &Folder, run: &str) -> Result<Vec<u8>> {
    let path = format!("runs/{run}/checkpoints/step-000080/model.safetensors");
    Ok(fs::read(folder.path(&path))?)
}

#[test]
fn an_encoder_of_ones_own_pairs_is_trained_evaluated_resumed_and_used() -> Result {
    let folder = Folder::new()?;
    folder.write("pairs.jsonl", pairs(120))?;
    folder.succeed(&["init", "embed", "--data", "pairs.jsonl", "-o", "things.toml"])?;
    let written = folder.read("things.toml")?;
    for line in ["kind = \"embed\"", "kind = \"multiple_negatives\"", "metric = \"mrr@10\""] {
        assert!(written.contains(line), "{written}");
    }
    let printed = train(&folder, "things.toml", &[])?;
    for text in [
        "step 0  validation",
        "not used: `id`",
        "words in common",
        "queries held out",
        "tealight embed runs/things",
    ] {
        assert!(printed.contains(text), "{printed}");
    }
    let summary = folder.read_json("runs/things/summary.json")?;
    assert!(summary["metrics"]["mrr@10"].as_f64().is_some_and(|mrr| mrr > 0.5), "{summary}");
    // Four micro-batches of four are compared with each other; a run that stops goes on with the same rows.
    let parts = ["--set", "training.batch_size=4", "--set", "training.micro_batches=4", "-q"];
    train(&folder, "things.toml", &[&parts[..], &["--name", "whole"]].concat())?;
    train(
        &folder,
        "things.toml",
        &[&parts[..], &["--name", "halves", "--stop-after", "33"]].concat(),
    )?;
    folder.succeed(&["train", "runs/halves", "-q"])?;
    assert_eq!(last(&folder, "whole")?, last(&folder, "halves")?);

    folder.write("others.txt", "day 3: a boat\nday 3: a rock\nday 3: a couch\n")?;
    let nearest = |model: &str| -> Result<Value> {
        folder.json(&[
            "embed",
            model,
            "ship on day 3",
            "--similar",
            "others.txt",
            "--top-k",
            "3",
            "--json",
        ])
    };
    let of_run = nearest("runs/things")?;
    assert_eq!(of_run["similar"][0]["text"], "day 3: a boat", "{of_run}");
    folder.succeed(&["export", "runs/things", "--to", "exported"])?;
    assert_eq!(nearest("exported")?, of_run);
    let config = folder.read_json("exported/config.json")?;
    assert_eq!(config["architectures"], json!(["ModernBertModel"]));
    let modules = folder.read_json("exported/modules.json")?;
    assert_eq!(modules[2]["type"], "sentence_transformers.models.Normalize");
    let card = folder.read("exported/README.md")?;
    for line in
        ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "- dense"]
    {
        assert!(card.contains(line), "{card}");
    }

    // Other data: pairs, and pairs with a score.
    folder.write("test.jsonl", pairs(30))?;
    let scored = folder.json(&["evaluate", "runs/things", "--data", "test.jsonl", "--json"])?;
    assert!(scored["mrr@10"].is_f64() && scored["n_queries"] == 30, "{scored}");
    folder
        .write("scores.csv", "a,b,score\nship,boat,5\nship,rock,0\nsofa,couch,4.5\nsofa,car,1\n")?;
    let test =
        ["--data", "scores.csv", "--text", "a", "--text-pair", "b", "--label", "score", "--json"];
    for model in ["runs/things", "exported"] {
        let scored = folder.json(&[&["evaluate", model], &test[..]].concat())?;
        assert!(scored["spearman"].is_f64() && scored["n_rows"] == 4, "{scored}");
    }
    Ok(())
}

/// `task.dim` adds a linear map behind the pooling, the module `Dense` of sentence-transformers.
#[test]
fn vectors_of_another_length_are_those_of_a_linear_map() -> Result {
    let folder = Folder::new()?;
    folder.write("pairs.jsonl", pairs(60))?;
    folder.succeed(&["init", "embed", "--data", "pairs.jsonl", "-o", "things.toml"])?;
    let dim = ["--set", "task.dim=24", "--set", "training.evaluate_first=false", "-q"];
    train(&folder, "things.toml", &dim)?;
    let vector = |model: &str| folder.json(&["embed", model, "ship on day 3", "--json"]);
    let of_run = vector("runs/things")?;
    assert_eq!(of_run["embedding"].as_array().map(Vec::len), Some(24), "{of_run}");
    folder.succeed(&["export", "runs/things", "--to", "exported"])?;
    assert_eq!(vector("exported")?, of_run);
    for model in ["runs/things", "exported"] {
        let graph = format!("{}-graph", model.replace('/', "-"));
        folder.succeed(&["export", model, "--to", &graph, "--format", "onnx", "--pooled"])?;
        let bytes = std::fs::read(folder.path(&format!("{graph}/onnx/model.onnx")))?;
        for name in ["token_embeddings", "sentence_embedding", "dense.0.weight"] {
            let holds = bytes.windows(name.len()).any(|part| part == name.as_bytes());
            assert!(holds, "{graph}: {name}");
        }
    }
    let modules = folder.read_json("exported/modules.json")?;
    let folders: Vec<_> =
        modules.as_array().into_iter().flatten().map(|one| &one["path"]).collect();
    assert_eq!(folders, ["", "1_Pooling", "2_Dense", "3_Normalize"]);
    let config = folder.read_json("exported/2_Dense/config.json")?;
    assert_eq!(config["out_features"], 24);

    // Both score test data, and a run that starts from either has the map.
    let scores = |model: &str| folder.json(&["evaluate", model, "--data", "pairs.jsonl", "--json"]);
    assert_eq!(scores("exported")?["mrr@10"], scores("runs/things")?["mrr@10"]);
    for model in ["runs/things", "exported"] {
        let from = format!("init_from={model}");
        folder.write(
            "again.toml",
            "task = { kind = \"embed\", data = { path = \"pairs.jsonl\" } }\noptimizer = \"adamw\"\n",
        )?;
        let settings = ["--set", &from, "--set", "training.batch_size=8", "--dry-run"];
        let begun = folder.succeed(&[&["train", "again.toml"], &settings[..]].concat())?.stderr;
        assert!(begun.contains("initialised from") && !begun.contains("randomly"), "{begun}");
    }

    // Functions of the outputs are computed; a file that does not fit is named.
    let tanh = config.to_string().replace("linear.Identity", "activation.Tanh");
    folder.write("exported/2_Dense/config.json", &tanh)?;
    assert_ne!(vector("exported")?, of_run);
    let refuse = |config: String, parts: &[&str]| -> Result {
        folder.write("exported/2_Dense/config.json", config)?;
        folder.refuse(&["embed", "exported", "a"], &[&["2_Dense/"], parts].concat())
    };
    refuse(tanh.replace("Tanh", "GELU"), &["`activation_function`", "GELU", "not supported"])?;
    refuse(tanh.replace("\"in_features\":", "\"in_features\":1"), &["`in_features` = 1"])?;
    refuse(tanh.replace(":24", ":25"), &["no tensor `linear.weight`"])?;
    refuse(tanh.replace('{', "{\"gate\":1,"), &["`gate`"])
}

#[test]
fn hard_negatives_are_mined_and_trained_with() -> Result {
    let folder = Folder::new()?;
    let row = |at: usize| {
        let ([first, second], day) = (THINGS[at % 6], at / 6);
        format!("the {first} of day {day},day {day}: a {second}\n")
    };
    let rows: Vec<String> = (0..60).map(row).collect();
    let rows = rows.concat();
    folder.write("pairs.csv", format!("question,answer\n{rows}"))?;
    folder.succeed(&["init", "embed", "--data", "pairs.csv", "-o", "things.toml"])?;
    train(&folder, "things.toml", &["-q"])?;
    let mine = ["mine", "runs/things", "--data", "pairs.csv", "-o", "hard.jsonl"];
    let mined = folder.succeed(&[&mine[..], &["--negatives", "2", "--margin", "-2"]].concat())?;
    assert!(mined.stderr.contains("120 negatives of 60 pairs, from 60 texts"), "{}", mined.stderr);
    let lines = folder.read("hard.jsonl")?;
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line)?;
        let negatives: Vec<_> = row["negative"].as_array().into_iter().flatten().collect();
        assert!(negatives.len() == 2 && !negatives.contains(&&row["answer"]), "{row}");
    }
    folder.refuse(&mine, &["`hard.jsonl` exists", "--force"])?;
    // No cosine is above 1, so that none is 3 below that of the positive.
    folder.refuse(
        &[&mine[..], &["--force", "--margin", "3"]].concat(),
        &["no pair has a negative"],
    )?;
    folder.refuse(
        &[&mine[..], &["--force", "--skip", "100"]].concat(),
        &["`--skip` 100", "`--depth` 100"],
    )?;
    folder.refuse(&[&mine[..], &["--force", "--margin", "nan"]].concat(), &["--margin"])?;
    assert_eq!(folder.read("hard.jsonl")?, lines);
    folder.write("labelled.csv", "question,answer,label\na,b,1\nc,d,0\n")?;
    let labelled = ["mine", "runs/things", "--data", "labelled.csv", "-o", "a.jsonl"];
    folder.refuse(&labelled, &["labels in its column `label`"])?;
    folder.succeed(&["init", "embed", "--data", "hard.jsonl", "-o", "hard.toml"])?;
    assert!(train(&folder, "hard.toml", &[])?.contains("queries held out"));
    folder.refuse(&["mine", "runs/things", "--data", "none.csv", "-o", "a.jsonl"], &["none.csv"])
}

#[test]
fn scored_pairs_and_further_evaluations_are_read_and_mistakes_named() -> Result {
    let folder = Folder::new()?;
    let row = |at: usize| format!("word{},word{},{}\n", at % 7, at % 5, at % 6);
    let rows: Vec<String> = (0..60).map(row).collect();
    let rows = rows.concat();
    folder.write("scored.csv", format!("sentence1,sentence2,score\n{rows}"))?;
    folder.succeed(&["init", "embed", "--data", "scored.csv", "-o", "scored.toml"])?;
    assert!(folder.read("scored.toml")?.contains("kind = \"cosent\""));
    fs::create_dir_all(folder.path("faq/qrels"))?;
    folder.write(
        "faq/corpus.jsonl",
        "{\"_id\":\"a\",\"title\":\"\",\"text\":\"word1\"}\n{\"_id\":\"b\",\"text\":\"word2\"}\n",
    )?;
    folder.write("faq/queries.jsonl", "{\"_id\":\"q\",\"text\":\"word1\"}\n")?;
    folder.write("faq/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\ta\t1\n")?;
    let further = [
        "--set",
        "task.similarity=[{path='scored.csv',text='sentence1',text_pair='sentence2',label='score'}]",
        "--set",
        "task.retrieval=[{folder='faq'}]",
        "--set",
        "training.steps=4",
        "--set",
        "schedule.warmup_steps=1",
        "-q",
    ];
    train(&folder, "scored.toml", &further)?;
    let metrics = folder.read("runs/scored/metrics.jsonl")?;
    for name in ["\"spearman\"", "\"scored/pearson\"", "\"faq/ndcg@10\""] {
        assert!(metrics.contains(name), "{metrics}");
    }

    folder.write("faq/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\tz\t1\n")?;
    let unknown = [&["train", "scored.toml", "--name", "other"], &further[..]].concat();
    folder.refuse(&unknown, &["`qrels` name the document \"z\", which is in no file"])?;
    let with = |setting: &str| {
        ["train", "scored.toml", "--name", "bad", "--set"]
            .into_iter()
            .map(str::to_owned)
            .chain([setting.to_owned()])
            .collect::<Vec<_>>()
    };
    for (setting, rule) in [
        (
            "task.loss={kind='cosine'}",
            "`score` is 2, and the loss \"cosine\" needs a number from -1 to 1",
        ),
        ("task.loss={kind='contrastive'}", "and the loss \"contrastive\" needs 0 or 1"),
        ("task.loss={kind='triplet'}", "it has no negative"),
        (
            "task.data.duplicates=wait",
            "`task.data.duplicates` has no effect under `task.loss.kind` = \"cosent\"",
        ),
        (
            "task.matryoshka.dims=[4096]",
            "`task.matryoshka.dims` has 4096, and a vector has `model.d_model`",
        ),
        (
            "task.data.anchor=first",
            "there is no column `first` among `sentence1`, `sentence2`, `score`",
        ),
    ] {
        let args = with(setting);
        folder.refuse(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[rule])?;
    }
    Ok(())
}

#[test]
fn an_encoder_starts_from_a_folder_and_names_what_it_cannot_do() -> Result {
    let folder = Folder::new()?;
    folder.write("pairs.jsonl", pairs(120))?;
    for model in ["bert", "modernbert"] {
        let from = golden_model(model);
        folder.succeed(&[
            "init",
            "embed",
            "--data",
            "pairs.jsonl",
            "--from",
            &from,
            "-o",
            "tuned.toml",
            "--force",
        ])?;
        let short =
            ["--set", "training.steps=4", "--set", "schedule.warmup_steps=1", "--name", model];
        let trained = folder.succeed(&[&["train", "tuned.toml"], &short[..]].concat())?;
        assert!(trained.stderr.contains("initialised"), "{}", trained.stderr);
        folder.succeed(&["export", &format!("runs/{model}"), "--to", &format!("{model}-out")])?;
        let class = folder.read_json(&format!("{model}-out/config.json"))?;
        assert!(
            class["architectures"][0].as_str().is_some_and(|name| name.ends_with("Model")),
            "{class}"
        );
    }
    folder.write(
        "same.jsonl",
        "{\"anchor\":\"a\",\"positive\":\"b\"}\n{\"anchor\":\"c\",\"positive\":\"b\"}\n".repeat(9),
    )?;
    let file = "[task]\nkind = \"embed\"\n[task.data]\npath = \"pairs.jsonl\"\n[task.tokenizer]\nkind = \"char\"\n";
    folder.write("plain.toml", file)?;
    for (settings, rule) in [
        (
            &["training.batch_size=1", "task.data.negatives=[]"][..],
            "`training.batch_size` = 1, and `task.loss.kind` = \"multiple_negatives\" compares",
        ),
        (
            &[
                "task.data.path=same.jsonl",
                "task.data.validation_path=pairs.jsonl",
                "training.batch_size=4",
            ],
            "have the text \"b\" in common, and a step takes one of them: it cannot have 4 rows. Lower",
        ),
        (
            &["task.data.self_positive=true"],
            "`task.data.self_positive` = true compares a text with itself",
        ),
    ] {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let args: Vec<&str> = ["train", "plain.toml", "--set", "model.dropout=0.0"]
            .into_iter()
            .chain(settings)
            .collect();
        folder.refuse(&args, &[rule])?;
    }
    Ok(())
}

/// Queries about things, each with passages of which one is about the same thing.
fn judged(n: usize) -> String {
    let rows = |at: usize| {
        let [query, answer] = THINGS[at % 6];
        let [_, other] = THINGS[(at + 1 + at / 6 % 5) % 6];
        format!("{query} {at},the {answer} is here,1\n{query} {at},the {other} is here,0\n")
    };
    let rows: String = (0..n).map(rows).collect();
    format!("query,passage,label\n{rows}")
}

#[test]
fn a_ranker_of_ones_own_passages_is_trained_evaluated_and_used() -> Result {
    let folder = Folder::new()?;
    folder.write("judged.csv", judged(90))?;
    folder.succeed(&["init", "rerank", "--data", "judged.csv", "-o", "ranks.toml"])?;
    let written = folder.read("ranks.toml")?;
    for line in ["kind = \"rerank\"", "kind = \"binary\"", "metric = \"map\""] {
        assert!(written.contains(line), "{written}");
    }
    let steps = ["--set", "training.steps=80"];
    let printed = train(&folder, "ranks.toml", &steps)?;
    for text in ["MAP", "words in common", "passages held out", "tealight rerank runs/ranks"] {
        assert!(printed.contains(text), "{printed}");
    }
    let summary = folder.read_json("runs/ranks/summary.json")?;
    assert!(summary["metrics"]["map"].as_f64().is_some_and(|map| map > 0.8), "{summary}");
    let rank = |model: &str| -> Result<Value> {
        folder.json(&["rerank", model, "ship 3", "the rock is here", "the boat is here", "--json"])
    };
    let of_run = rank("runs/ranks")?;
    assert_eq!(of_run[0]["index"], 1, "{of_run}");
    let score = of_run[0]["score"].as_f64().unwrap_or_default();
    assert!((0.5..=1.).contains(&score), "{of_run}");
    folder.succeed(&["export", "runs/ranks", "--to", "exported"])?;
    let again = rank("exported")?;
    assert!((again[0]["score"].as_f64().unwrap_or_default() - score).abs() < 1e-6, "{again}");
    let config = folder.read_json("exported/config.json")?;
    assert_eq!(config["architectures"], json!(["ModernBertForSequenceClassification"]));
    let sigmoid = "torch.nn.modules.activation.Sigmoid";
    assert_eq!(config["sentence_transformers"]["activation_fn"], sigmoid);
    folder.write("test.csv", judged(12))?;
    let scored = folder.json(&["evaluate", "runs/ranks", "--data", "test.csv", "--json"])?;
    assert!(scored["map"].is_f64() && scored["n_queries"] == 12, "{scored}");
    // Of another loss, the output is the score, also in a folder of Tealight's own format.
    let other = [
        "--set",
        "task.loss={kind='rank_net'}",
        "--set",
        "model.attention=aft_simple",
        "--set",
        "model.position={kind='learned'}",
        "-q",
        "--name",
        "grades",
    ];
    train(&folder, "ranks.toml", &[&steps[..], &other].concat())?;
    folder.succeed(&["export", "runs/grades", "--to", "own"])?;
    let (run, own) = (rank("runs/grades")?, rank("own")?);
    assert_eq!(run, own);
    let stated = folder.read_json("own/config_sentence_transformers.json")?;
    assert_eq!(stated["activation_fn"], "torch.nn.modules.linear.Identity");
    // A classifier of several outputs gives no score to train on: its head is left out.
    let from = golden_model("bert_pair_cls");
    folder.succeed(&[
        "init",
        "rerank",
        "--data",
        "judged.csv",
        "--from",
        &from,
        "-o",
        "tuned.toml",
    ])?;
    let short = ["--set", "training.steps=4", "--set", "schedule.warmup_steps=1"];
    folder.succeed(&[&["train", "tuned.toml"], &short[..]].concat())?;
    Ok(())
}
