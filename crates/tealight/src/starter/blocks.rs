//! The blocks of models of texts, as families of `transformers` have them: so `export` can write what was trained.

/// Of ModernBERT, which a masked language model and a classifier share. The first line belongs to `[model]`.
pub(super) const MODERN_BERT: &str = r#"first_norm = false              # the embeddings are normalised already

[model.embedding]
norm = true

[model.position]
kind = "rotary"
layout = "half"                 # as in ModernBERT

[model.norm]
kind = "layer_norm"
bias = false

[model.feed_forward]
kind = "glu"
activation = "gelu"
"#;

/// The head of ModernBERT's classifiers and taggers.
pub(super) const MODERN_BERT_HEAD: &str = r#"
[model.classifier]              # the head of ModernBERT
kind = "dense"
activation = "gelu"
bias = false
norm = true
"#;

/// Of Llama, for a causal language model.
pub(super) const LLAMA: &str = r#"
[model.position]
kind = "rotary"

[model.norm]
kind = "rms_norm"

[model.feed_forward]
kind = "glu"
activation = "silu"
"#;

/// A comment above `[model]`: the class of `transformers`.
pub(super) fn exported_as(class: &str) -> String {
    format!("# `tealight export` writes it for `transformers`, as {class}.\n")
}

/// The table of a tokenizer that is trained on texts of so many letters and spaces.
pub(super) fn tokenizer(n_bytes: usize) -> String {
    let vocab_size = (n_bytes / 40).clamp(300, 16_000);
    format!(
        r#"
[task.tokenizer]                # trained on these texts
kind = "wordpiece"
vocab_size = {vocab_size} # at most; grows with the texts
"#
    )
}

/// Items from which on a tenth is enough to fit a temperature.
const MIN_CALIBRATED: f64 = 1_000.;

/// The line of `[task]` that calibrates the probabilities of a classifier, if about `n` items are enough.
pub(super) fn calibration(n: f64) -> &'static str {
    if n < MIN_CALIBRATED {
        return "";
    }
    "calibration = \"temperature\"     # after training: probabilities are as often right as they say\n"
}
