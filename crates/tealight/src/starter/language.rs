//! Language models of a user's text.

use std::path::Path;

use anyhow::Result;
use tealight_train::data::survey::{Corpus, corpus};

use super::machine::{Data, Machine};
use super::{about, quoted, tenth};

/// What a language model learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objective {
    Masked,
    Causal,
}

/// Texts up to this size are best learnt by characters.
const CHARACTERS: f64 = 5e6;
/// Bytes of a token, about, of a vocabulary of pieces.
const BYTES_PER_TOKEN: f64 = 4.;
const SEQ_LEN: usize = 128;
const BATCH_SIZE: usize = 16;

pub(super) fn text(objective: Objective, data: &Path, path: &str) -> Result<String> {
    let found = corpus(data)?;
    let tokenizer = Tokenizer::of(&found, objective);
    let machine = Machine::this();
    let tokens = 0.9 * found.bytes / if tokenizer.is_char { 1. } else { BYTES_PER_TOKEN };
    let size = machine.size(Data {
        tokens,
        vocab_size: tokenizer.vocab_size,
        seq_len: SEQ_LEN,
        batch_size: BATCH_SIZE,
    });
    let is_causal = objective == Objective::Causal;
    let (task, what, layout) = match objective {
        Objective::Causal => ("causal_lm", "continues text", "stream"),
        Objective::Masked => ("masked_lm", "fills masked words", "packed"),
    };
    let layout_reason = if is_causal {
        "training sequences begin anywhere in the text"
    } else {
        "documents one after another, so that no position is padding"
    };
    let model = format!(
        "causal = {is_causal}\nbias = false\ntied_output = true{}\n",
        if is_causal {
            "              # the output uses the token embedding: fewer parameters"
        } else {
            ""
        }
    );
    let reasons = machine.reasons(&size);
    let (n_files, bytes) = (found.n_files, about(found.bytes));
    let (steps, every, warmup) = (size.steps, tenth(size.steps), (size.steps / 20).max(1));
    let (d_model, n_layers, n_heads) = (size.d_model, size.n_layers, size.n_heads);
    Ok(format!(
        "\
# A model that {what}, from {n_files} file{} with about {bytes}B of text.
# `tealight explain KEY` explains each setting; `tealight doctor FILE` checks this file.

seed = 17                       # every random number is a function of this seed

[task]
kind = \"{task}\"
seq_len = {SEQ_LEN}                   # tokens that the model reads at once
sequences = \"{layout}\"            # {layout_reason}

[task.corpus]
kind = \"files\"
paths = [{path}]                # files, patterns such as \"books/*.txt\", and folders
{}
[task.tokenizer]                # trained on this text
{}
{reasons}[model]
d_model = {d_model}
n_layers = {n_layers}
n_heads = {n_heads}
{model}
[model.position]
kind = \"rotary\"

[model.norm]
kind = \"rms_norm\"

[model.feed_forward]
kind = \"glu\"
activation = \"silu\"

[optimizer]
kind = \"adamw\"
lr = 2e-3
weight_decay = 0.1

[schedule]
kind = \"cosine\"
warmup_steps = {warmup}
final_lr_ratio = 0.1            # the learning rate decays to a tenth

[training]
steps = {steps}
batch_size = {BATCH_SIZE}
max_grad_norm = 1.0
evaluate_every = {every}

[checkpoint]
every = {every}
select = \"best\"                 # small data are soon learnt by heart
",
        if n_files == 1 { "" } else { "s" },
        documents(&found, objective),
        tokenizer.text,
    ))
}

/// What a document is, and what is held out.
fn documents(found: &Corpus, objective: Objective) -> String {
    if let Some(field) = &found.field {
        let field = quoted(field);
        return format!(
            "field = {field}                  # the text of each line of .jsonl\nvalidation = 0.1                # the share of the lines that is held out\n"
        );
    }
    if objective == Objective::Causal {
        return "documents = \"file\"\nvalidation_tail = 0.1           # the last tenth of each file is held out\n".to_owned();
    }
    let (unit, reason) = if found.has_paragraphs {
        ("paragraph", "blank lines separate documents")
    } else {
        ("line", "there are no blank lines: each line is a document")
    };
    format!(
        "documents = \"{unit}\"        # {reason}\nvalidation = 0.1                # the share of the documents that is held out\n"
    )
}

struct Tokenizer {
    text: String,
    vocab_size: usize,
    is_char: bool,
}

impl Tokenizer {
    fn of(found: &Corpus, objective: Objective) -> Self {
        const MAX_CHARACTERS: usize = 500;
        let is_char = objective == Objective::Causal
            && found.bytes < CHARACTERS
            && found.n_characters < MAX_CHARACTERS;
        if is_char {
            let vocab_size = found.n_characters;
            let text = format!(
                "kind = \"char\"                   # {vocab_size} characters; \"bpe\" suits more than {}B of text\n",
                about(CHARACTERS)
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
            "kind = \"{kind}\"              # {reason}\nvocab_size = {vocab_size}               # at most; grows with the text\n"
        );
        Self { text, vocab_size, is_char }
    }
}
