//! Exported folders in Tealight's format: they can be read back, and errors name the faulty key.

use std::path::Path;

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
    // Its head is that of the family of the first model, so that `transformers` has a class for it.
    folder.succeed(&["export", "runs/weather", "--to", "hf"])?;
    let architecture = json(&folder.read("hf/config.json")?)?["architectures"][0].clone();
    assert_eq!(architecture, "BertForSequenceClassification");
    let card = folder.read("hf/README.md")?;
    let python = "## Use\n\n```python\nfrom transformers import pipeline\n";
    assert!(card.contains(python) && card.contains("library_name: transformers\n"), "{card}");
    let data = card.lines().find(|line| line.contains(" by Tealight on ")).ok_or("no data")?;
    assert!(!data.contains("tokenizer"), "{data}");
    let machine = folder.path("").display().to_string();
    assert!(!card.contains(machine.trim_end_matches('/')), "{card}");
    let doctor = folder.succeed(&["doctor", "weather.toml"])?.stdout;
    assert!(doctor.contains("`transformers` has a class for it: BertFor"), "{doctor}");
    folder.succeed(&["export", "runs/weather", "--to", "own", "--format", "tealight"])?;
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

#[test]
fn a_damaged_folder_is_refused_by_every_command_that_reads_one() -> Result {
    let folder = Folder::new()?;
    let masked = ["fill-mask", "damaged", "a [MASK]"];
    let causal = ["generate", "damaged", "a"];
    let classes = ["classify", "damaged", "a"];
    let exported = ["export", "damaged", "--to", "exported", "--format", "onnx"];
    for (name, used) in [
        ("bert", masked),
        ("modernbert", masked),
        ("llama", causal),
        ("mistral", causal),
        ("ministral", causal),
        ("qwen3_windows", causal),
        ("bert_cls", classes),
        ("modernbert_cls", classes),
    ] {
        std::fs::create_dir_all(folder.path("damaged"))?;
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            let mut bytes = std::fs::read(Path::new(&golden_model(name)).join(file))?;
            if file == "model.safetensors" {
                bytes.truncate(bytes.len() - 8);
            }
            folder.write(&format!("damaged/{file}"), bytes)?;
        }
        for args in [&used[..], &exported, &["export", "damaged", "--to", "exported"]] {
            folder.refuse(args, &["`damaged/model.safetensors` has", "bytes and should have"])?;
        }
    }
    Ok(())
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
    refuse("/sizes/pad_id", json!(n), &["`sizes.pad_id` = 1000000000000 must be below"])?;
    refuse("/model/n_heads", json!(3), &["`model.n_heads` = 3 does not divide"])?;
    refuse("/model/causal", json!(true), &["`model.causal` = true"])?;
    refuse("/model/n_layers", json!("two"), &["is not the JSON that it should be", "two"])?;
    folder.write("own/tealight.json", whole.to_string())?;
    folder.succeed(&["fill-mask", "own", "[MASK]"])?;
    Ok(())
}

/// The architecture of an exported folder, its greedy continuation of a text, and what `attend` shows of it.
fn read_back(folder: &Folder, model: &str) -> Result<(Value, Value, Value)> {
    let config = json(&folder.read(&format!("{model}/config.json"))?)?;
    let ask = |args: &[&str]| -> Result<Value> { json(&folder.succeed(args)?.stdout) };
    let text = ask(&["generate", model, "It was", "--greedy", "--max-tokens", "5", "--json"])?;
    let maps = ask(&["attend", model, "It was sunny.", "--json"])?;
    Ok((config["architectures"][0].clone(), text["continuations"][0]["text"].clone(), maps))
}

/// Settings of a model that is exported as Llama or a relative.
const LLAMA: [&str; 5] = [
    "model.position={kind='rotary',base=1000}",
    "model.norm={kind='rms_norm'}",
    "model.feed_forward={kind='glu',activation='silu'}",
    "model.bias=false",
    "model.n_layers=2",
];

/// Trains such a model with one more setting.
fn train_llama(folder: &Folder, name: &str, setting: &str) -> Result {
    let mut args = vec!["train", "causal.toml", "-q", "--name", name, "--set", setting];
    args.extend(LLAMA.iter().flat_map(|setting| ["--set", setting]));
    folder.succeed(&args)?;
    Ok(())
}

/// Models with rotary positions could once be exported to nothing that transformers reads.
#[test]
fn a_rotary_decoder_is_exported_as_the_family_that_computes_the_same() -> Result {
    let folder = trained("causal")?;
    for (attention, class) in [
        ("{kind='softmax',n_kv_heads=1}", "LlamaForCausalLM"),
        ("{kind='local',window=3}", "MistralForCausalLM"),
        ("{kind='softmax',qk_norm=true}", "Qwen3ForCausalLM"),
    ] {
        let name = class.to_lowercase();
        train_llama(&folder, &name, &format!("model.attention={attention}"))?;
        let run = format!("runs/{name}");
        export(&folder, &run, &name, "hf")?;
        let (architecture, _, maps) = read_back(&folder, &name)?;
        assert_eq!(architecture, class);
        let before = json(&folder.succeed(&["attend", &run, "It was sunny.", "--json"])?.stdout)?;
        assert_near(&before, &maps, class);
    }
    Ok(())
}

/// Asserts that two values differ only in the last digits of their numbers.
fn assert_near(a: &Value, b: &Value, label: &str) {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            assert!((a - b).abs() < 1e-5, "{label}: {a} {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{label}");
            a.iter().zip(b).for_each(|(a, b)| assert_near(a, b, label));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{label}");
            a.iter().for_each(|(key, a)| assert_near(a, &b[key], label));
        }
        (a, b) => assert_eq!(a, b, "{label}"),
    }
}

/// The template once added the end token, after which `transformers` began another text.
#[test]
fn an_exported_tokenizer_writes_a_prompt_as_training_does() -> Result {
    let folder = trained("causal")?;
    for (layout, begin) in [("stream", None), ("padded", Some(2)), ("packed", Some(2))] {
        train_llama(&folder, layout, &format!("task.sequences='{layout}'"))?;
        for format in ["hf", "tealight", "onnx"] {
            let to = format!("{layout}_{format}");
            export(&folder, &format!("runs/{layout}"), &to, format)?;
            let file = format!("{to}/tokenizer.json");
            let ids = |options: &[&str]| -> Result<Vec<Value>> {
                let args = [&["tokenizer", "encode", &file, "It was", "--json"], options].concat();
                let encoded = folder.json(&args)?;
                Ok(encoded["texts"][0]["ids"].as_array().ok_or("ids")?.clone())
            };
            let begin = begin.map(|id: u64| json!(id));
            let expected: Vec<Value> = begin.into_iter().chain(ids(&["--plain"])?).collect();
            assert_eq!(ids(&[])?, expected, "{to}");
        }
    }
    Ok(())
}

/// An exported model could once write special tokens that its run never writes, so its probabilities were others.
#[test]
fn an_exported_model_continues_a_prompt_as_its_run_does() -> Result {
    let folder = trained("causal")?;
    for (layout, begin) in [("stream", 3), ("padded", 2)] {
        train_llama(&folder, layout, &format!("task.sequences='{layout}'"))?;
        let (run, again) = (format!("runs/{layout}"), format!("{layout}_again"));
        export(&folder, &run, layout, "hf")?;
        export(&folder, layout, &again, "hf")?;
        for to in [layout, &again] {
            let expected = json!({
                "bos_token_id": begin, "eos_token_id": 3, "pad_token_id": 0,
                "suppress_tokens": [0, 1, 2, 4],
            });
            assert_eq!(folder.read_json(&format!("{to}/generation_config.json"))?, expected);
            for prompt in ["It was", ""] {
                for options in [&["--greedy"][..], &["--seed", "5", "-n", "2"]] {
                    let ask = |model: &str| -> Result<Value> {
                        let args = ["generate", model, prompt, "--max-tokens", "12", "--json"];
                        folder.json(&[&args, options].concat())
                    };
                    assert_near(&ask(&run)?, &ask(to)?, to);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn tokens_that_a_folder_suppresses_are_never_written() -> Result {
    let folder = trained("causal")?;
    train_llama(&folder, "llama", "task.sequences='stream'")?;
    export(&folder, "runs/llama", "llama", "hf")?;
    let config = folder.read_json("llama/config.json")?;
    let vocab_size = config["vocab_size"].as_u64().ok_or("a size")?;
    let suppress = |ids: Value| {
        let keys = json!({ "suppress_tokens": ids, "temperature": 0.5 });
        folder.write("llama/generation_config.json", keys.to_string())
    };
    let all_but_the_end: Vec<u64> = (0..vocab_size).filter(|id| *id != 3).collect();
    suppress(json!(all_but_the_end))?;
    let written = folder.json(&["generate", "llama", "It was", "--json"])?;
    assert_eq!(written["continuations"][0]["ended_by"], "end", "{written}");
    suppress(json!([0, vocab_size]))?;
    let rule = format!("generation_config.json`: `suppress_tokens` has {vocab_size}, and the ids");
    folder.refuse(&["generate", "llama", "It was"], &[&rule])
}

#[test]
fn a_decoder_of_transformers_is_fine_tuned_inspected_and_exported_as_its_family() -> Result {
    let folder = Folder::new()?;
    for (model, class) in [
        ("llama", "LlamaForCausalLM"),
        ("llama_rope3", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("mamba2", "Mamba2ForCausalLM"),
        ("olmo_hybrid", "OlmoHybridForCausalLM"),
    ] {
        let config = format!(
            "seed = 9\ninit_from = '{}'\n[task]\nkind = \"causal_lm\"\nseq_len = 32\n\
             [task.corpus]\nkind = \"diary\"\nn_documents = 40\nn_validation = 6\nn_days = 2\n\
             [training]\nsteps = 1\nbatch_size = 5\n[optimizer]\nkind = \"adamw\"\nlr = 1e-9\n",
            golden_model(model)
        );
        let file = format!("{model}.toml");
        folder.write(&file, config)?;
        let shown = folder.succeed(&["inspect", &file])?.stdout;
        assert!(shown.contains("layer.1.attention.output.weight"), "{shown}");
        let outcome = folder.succeed(&["train", &file])?;
        assert!(outcome.stderr.contains("initialised from "), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("randomly initialised"), "{}", outcome.stderr);
        export(&folder, &format!("runs/{model}"), model, "hf")?;
        export(&folder, &golden_model(model), &format!("{model}_alone"), "hf")?;
        let (architecture, text, maps) = read_back(&folder, model)?;
        let (_, before, maps_before) = read_back(&folder, &format!("{model}_alone"))?;
        assert_eq!((architecture, text), (json!(class), before));
        assert_near(&maps, &maps_before, model);
    }
    Ok(())
}

/// Without them, `transformers` passed token types to models that have none, and none to those that have some.
#[test]
fn a_tokenizer_is_written_with_the_inputs_of_its_model() -> Result {
    let folder = Folder::new()?;
    for model in ["bert", "bert_pair_cls", "roberta", "distilbert", "modernbert", "gpt2", "llama"] {
        export(&folder, &golden_model(model), model, "hf")?;
        let theirs = folder.read(&format!("{}/tokenizer_config.json", golden_model(model)))?;
        let ours = folder.read(&format!("{model}/tokenizer_config.json"))?;
        let [ours, theirs] =
            [json(&ours)?, json(&theirs)?].map(|one| one["model_input_names"].clone());
        assert!(ours.is_array() && ours == theirs, "{model}: {ours}, not {theirs}");
    }
    Ok(())
}

/// The graph is beside what transformers.js and Optimum read to choose a class.
#[test]
fn a_graph_of_onnx_is_written_with_its_configuration_and_tokenizer() -> Result {
    let folder = Folder::new()?;
    let names = |path: &str| -> Result<Vec<u8>> { Ok(std::fs::read(folder.path(path))?) };
    let holds = |bytes: &[u8], name: &str| bytes.windows(name.len()).any(|x| x == name.as_bytes());
    export(&folder, &golden_model("bert"), "bert", "onnx")?;
    let graph = names("bert/onnx/model.onnx")?;
    for name in ["input_ids", "attention_mask", "token_type_ids", "logits"] {
        assert!(holds(&graph, name), "{name}");
    }
    export(&folder, &golden_model("bert"), "hf", "hf")?;
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(folder.read(&format!("bert/{file}"))?, folder.read(&format!("hf/{file}"))?);
    }
    assert!(folder.read("bert/README.md")?.contains("library_name: onnx"));
    let gpt2 = ["export", &golden_model("gpt2"), "--to", "gpt2", "--format", "onnx", "--cache"];
    folder.succeed(&gpt2)?;
    let graph = names("gpt2/onnx/model.onnx")?;
    assert!(holds(&graph, "past_key_values.1.key") && holds(&graph, "present.0.value"));
    Ok(())
}

#[test]
fn a_graph_in_int8_is_smaller_and_has_another_name() -> Result {
    let folder = Folder::new()?;
    let bert = golden_model("bert");
    let to = |folder: &'static str| ["export", &bert, "--format", "onnx", "--to", folder];
    folder.succeed(&to("f32"))?;
    folder.succeed(&[&to("int8")[..], &["--quantize", "int8"]].concat())?;
    let size = |path: &str| -> Result<u64> { Ok(folder.path(path).metadata()?.len()) };
    let (exact, rounded) = (size("f32/onnx/model.onnx")?, size("int8/onnx/model_quantized.onnx")?);
    assert!(rounded < exact * 2 / 3, "{rounded} and {exact} bytes");
    assert!(!folder.path("int8/onnx/model.onnx").exists());
    assert!(folder.read("int8/README.md")?.contains("onnx/model_quantized.onnx"));
    Ok(())
}

#[test]
fn what_no_graph_is_written_for_is_named() -> Result {
    let folder = Folder::new()?;
    let refuse = |model: &str, options: &[&str], parts: &[&str]| -> Result {
        let model = golden_model(model);
        let args = [&["export", &model, "--to", "onnx"], options].concat();
        folder.refuse(&args, parts)?;
        assert!(!folder.path("onnx").exists());
        Ok(())
    };
    let onnx = ["--format", "onnx"];
    refuse("t5", &onnx, &["config.json", "an encoder-decoder cannot be written as ONNX"])?;
    let with_cache = ["--format", "onnx", "--cache"];
    refuse("bert", &with_cache, &["only a causal language model has a cache"])?;
    refuse("gpt2", &["--cache"], &["`--cache` needs `--format onnx`"])?;
    let pooled = ["--format", "onnx", "--pooled"];
    refuse("gpt2", &pooled, &["config.json", "only the hidden states of an encoder are pooled"])?;
    refuse("bert", &["--pooled"], &["`--pooled` needs `--format onnx`"])?;
    refuse("bert", &["--quantize", "int8"], &["`--quantize` needs `--format onnx`"])?;
    refuse("bert", &["--format", "onnx", "--quantize", "int4"], &["'int4'", "int8"])
}

/// AFT has no class in transformers, and no keys and values to keep.
#[test]
fn a_model_without_a_class_is_written_without_a_configuration() -> Result {
    let folder = Folder::new()?;
    folder.write("aft.toml", CAUSAL_AFT)?;
    folder.succeed(&["train", "aft.toml", "-q"])?;
    let outcome = folder.succeed(&["export", "runs/aft", "--to", "own", "--format", "onnx"])?;
    assert!(outcome.stderr.contains("model.attention.kind"), "{}", outcome.stderr);
    assert!(
        folder.path("own/onnx/model.onnx").exists() && folder.path("own/tokenizer.json").exists()
    );
    assert!(!folder.path("own/config.json").exists());
    let with_cache = ["export", "runs/aft", "--to", "cached", "--format", "onnx", "--cache"];
    folder.refuse(&with_cache, &["a cache of `model.attention.kind` = \"aft_simple\""])
}

const CAUSAL_AFT: &str = "\
seed = 7
[task]
kind = \"causal_lm\"
seq_len = 16
[task.corpus]
kind = \"diary\"
n_documents = 40
n_validation = 6
n_days = 2
[task.tokenizer]
kind = \"char\"
[model]
d_model = 8
n_layers = 1
n_heads = 2
causal = true
attention = { kind = \"aft_simple\" }
[training]
steps = 1
batch_size = 2
[checkpoint]
every = 1
";
