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
