//! Language models of a user's text.

use anyhow::{Result, bail};
use tealight_train::data::survey::{Corpus, corpus};

use super::base::Base;
use super::blocks::{LLAMA, MODERN_BERT, exported_as};
use super::ending::{BEST_OF_FEW, Ending};
use super::machine::{Data, Machine, Size};
use super::{UserData, about, beginning, quoted};

/// What a language model learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objective {
    Masked,
    Causal,
}

/// Texts up to this size are best learnt by characters.
const CHARACTERS: f64 = 5e6;
/// Bytes of a token, about, of a vocabulary of pieces.
const BYTES_PER_TOKEN: f64 = 4.;
const SEQ_LEN: usize = 128;
const BATCH_SIZE: usize = 16;

/// The configuration of a masked language model of the text in `data`.
pub(super) fn masked(data: &UserData<'_>) -> Result<String> {
    text(Objective::Masked, data)
}

/// The configuration of a causal language model of the text in `data`.
pub(super) fn causal(data: &UserData<'_>) -> Result<String> {
    text(Objective::Causal, data)
}

/// The configuration of a masked language model of the text in `data` that starts from `base`.
pub(super) fn masked_from(data: &UserData<'_>, base: &Base) -> Result<String> {
    from_base(Objective::Masked, data, base)
}

/// The configuration of a causal language model of the text in `data` that starts from `base`.
pub(super) fn causal_from(data: &UserData<'_>, base: &Base) -> Result<String> {
    from_base(Objective::Causal, data, base)
}

fn from_base(objective: Objective, data: &UserData<'_>, base: &Base) -> Result<String> {
    base.check_causal(objective == Objective::Causal)?;
    let found = corpus(data.file)?;
    let seq_len = base.seq_len(SEQ_LEN);
    let n_sequences = (found.bytes / BYTES_PER_TOKEN / seq_len as f64).max(1.);
    let tables = [
        base.beginning(&title(objective, &found), &[]),
        task(objective, seq_len),
        texts(&data.path, &documents(&found, objective)),
        base.ending(n_sequences, 1, "sequences", seq_len as f64).text(),
    ];
    Ok(tables.concat())
}

/// What the model does, and the text that it learns from.
fn title(objective: Objective, found: &Corpus) -> String {
    let (n_files, bytes) = (found.n_files, about(found.bytes));
    let files = if n_files == 1 { "file" } else { "files" };
    let what = match objective {
        Objective::Causal => "continues text",
        Objective::Masked => "fills masked words",
    };
    format!("A model that {what}, from {n_files} {files} with about {bytes}B of text.")
}

/// The configuration of a language model.
fn text(objective: Objective, data: &UserData<'_>) -> Result<String> {
    let found = corpus(data.file)?;
    let tokenizer = Tokenizer::for_corpus(&found, objective);
    let bytes_per_token = if tokenizer.is_char { 1. } else { BYTES_PER_TOKEN };
    // A tenth is held out, of which the model reads a sequence and predicts the token after it.
    let least = 10. * (SEQ_LEN + 1) as f64 * bytes_per_token;
    if objective == Objective::Causal && found.bytes < least {
        bail!(
            "`{}` has {:.0} bytes, which is too small for a language model: at least {least:.0} are needed, so that the tenth \
             that is held out has a sequence of {SEQ_LEN} tokens",
            data.file.display(),
            found.bytes
        );
    }
    let machine = Machine::this();
    let size = machine.size(Data {
        tokens: 0.9 * found.bytes / bytes_per_token,
        vocab_size: tokenizer.vocab_size,
        seq_len: SEQ_LEN,
        batch_size: BATCH_SIZE,
    });
    let ending = Ending {
        adamw: "lr = 2e-3\nweight_decay = 0.1".to_owned(),
        warmup_steps: (size.steps / 20).max(1),
        final_lr_ratio: ("0.1", "the learning rate decays to a tenth"),
        steps: size.steps,
        batch_size: BATCH_SIZE as u64,
        select: BEST_OF_FEW,
        ..Ending::default()
    };
    let tables = [
        beginning(&title(objective, &found)),
        task(objective, SEQ_LEN),
        texts(&data.path, &documents(&found, objective)),
        format!("\n[task.tokenizer]                # trained on this text\n{}", tokenizer.text),
        model(objective, &size, &machine.reasons(&size)),
        ending.text(),
    ];
    Ok(tables.concat())
}

/// The table of the task.
fn task(objective: Objective, seq_len: usize) -> String {
    let (kind, layout, reason) = match objective {
        Objective::Causal => {
            ("causal_lm", "stream", "training sequences begin anywhere in the text")
        }
        Objective::Masked => {
            ("masked_lm", "packed", "documents one after another, so that no position is padding")
        }
    };
    format!(
        r#"
[task]
kind = "{kind}"
seq_len = {seq_len}                   # tokens that the model reads at once
sequences = "{layout}"            # {reason}
"#
    )
}

/// The table of the text, of which `documents` are the last lines.
fn texts(path: &str, documents: &str) -> String {
    format!(
        r#"
[task.corpus]
kind = "files"
paths = [{path}]                # files, patterns such as "books/*.txt", and folders
{documents}"#
    )
}

/// The tables of the model, below the `reasons` for its size.
fn model(objective: Objective, size: &Size, reasons: &str) -> String {
    let Size { d_model, n_layers, n_heads, .. } = size;
    let (is_causal, class, blocks) = match objective {
        Objective::Causal => (true, "LlamaForCausalLM", LLAMA),
        Objective::Masked => (false, "ModernBertForMaskedLM", MODERN_BERT),
    };
    let exported = exported_as(class);
    format!(
        "
{reasons}{exported}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
causal = {is_causal}
bias = false
tied_output = true              # the output uses the token embedding: fewer parameters
{blocks}"
    )
}

/// What a document is, and what is held out.
fn documents(found: &Corpus, objective: Objective) -> String {
    if let Some(field) = &found.field {
        let field = quoted(field);
        return format!(
            "field = {field}                  # the text of each line of .jsonl\n\
             validation = 0.1                # the share of the lines that is held out\n"
        );
    }
    if objective == Objective::Causal {
        let text = r#"documents = "file"
validation_tail = 0.1           # the last tenth of each file is held out
"#;
        return text.to_owned();
    }
    let (unit, reason) = if found.has_paragraphs {
        ("paragraph", "blank lines separate documents")
    } else {
        ("line", "there are no blank lines: each line is a document")
    };
    format!(
        r#"documents = "{unit}"        # {reason}
validation = 0.1                # the share of the documents that is held out
"#
    )
}

/// How a language model reads its text.
struct Tokenizer {
    /// The lines of its table.
    text: String,
    vocab_size: usize,
    is_char: bool,
}

impl Tokenizer {
    /// Characters for a model that continues little text; otherwise pieces of words.
    fn for_corpus(found: &Corpus, objective: Objective) -> Self {
        const MAX_CHARACTERS: usize = 500;
        let is_char = objective == Objective::Causal
            && found.bytes < CHARACTERS
            && found.n_characters < MAX_CHARACTERS;
        if is_char {
            let vocab_size = found.n_characters;
            let limit = about(CHARACTERS);
            let text = format!(
                r#"kind = "char"                   # {vocab_size} characters; "bpe" suits more than {limit}B of text
"#
            );
            return Self { text, vocab_size, is_char };
        }
        let vocab_size = ((found.bytes / 500.) as usize).clamp(1000, 16_000);
        let (kind, reason) = match (objective, found.has_spaces) {
            (_, false) => ("unigram", "for text without spaces between words"),
            (Objective::Causal, true) => ("bpe", "frequent strings of bytes, as in GPT-2"),
            (Objective::Masked, true) => ("wordpiece", "words and their pieces, as in BERT"),
        };
        let text = format!(
            r#"kind = "{kind}"              # {reason}
vocab_size = {vocab_size}               # at most; grows with the text
"#
        );
        Self { text, vocab_size, is_char }
    }
}
