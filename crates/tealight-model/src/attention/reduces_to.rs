//! Settings at which a kind of attention does not do what its name says: `local` with a window beyond the sequence is
//! softmax attention.

/// Why a kind of attention is another one on short sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducesTo {
    /// The setting.
    pub setting: &'static str,
    /// Its value and what that does: `= 64 reaches all 10 positions of a sequence`.
    pub effect: String,
    /// What the attention is instead.
    pub instead: &'static str,
}

impl ReducesTo {
    /// Softmax attention, because a `setting` of `value` does this.
    pub(super) fn softmax(setting: &'static str, value: &impl ToString, effect: &str) -> Self {
        let effect = format!("= {} {effect}", value.to_string());
        Self { setting, effect, instead: "softmax attention" }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::ModelConfig;

    fn notes(toml: &str, len: usize) -> Vec<String> {
        let config: ModelConfig = toml::from_str(toml).unwrap();
        config.notes(len)
    }

    #[test]
    fn a_setting_that_reaches_the_whole_sequence_is_named() {
        let first = |toml: &str, len| notes(toml, len).into_iter().next();
        for (kind, setting, n, instead) in [
            ("nystrom", "n_landmarks", 7, "softmax attention"),
            ("local", "window", 7, "softmax attention"),
            ("top_k", "k", 7, "softmax attention"),
            ("aft_local", "window", 7, "AFT-full"),
        ] {
            let toml = format!("attention = {{ kind = \"{kind}\", {setting} = {n} }}");
            let note = first(&toml, n).unwrap();
            assert!(note.starts_with(&format!("`model.attention.{setting}` = 7 ")), "{note}");
            assert!(note.contains(&format!("\"{kind}\" is {instead}")), "{note}");
            assert_eq!(first(&toml, n + 1), None, "{kind}");
        }
    }

    #[test]
    fn a_threshold_of_zero_cuts_nothing() {
        let of = |settings: &str| {
            notes(&format!("attention = {{ kind = \"thresholded\", {settings} }}"), 5).len()
        };
        assert_eq!(of("threshold = 0.0"), 1);
        assert_eq!(of("threshold = 0.01"), 0);
        assert_eq!(of("threshold = 0.0, rule = \"score_cut\""), 0, "it cuts negative scores");
    }

    #[test]
    fn a_convolution_is_more_than_softmax_attention() {
        let toml = "attention = { kind = \"nystrom\", n_landmarks = 8, conv_kernel = 3 }";
        assert!(notes(toml, 8)[0].contains("softmax attention with a convolution here"));
    }

    #[test]
    fn each_layer_is_named_once() {
        let toml = "n_layers = 4\nlayers = [{}, { attention = { kind = \"local\", window = 5 } }]";
        let all = notes(toml, 5);
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].starts_with("`model.layers[1].attention.window` = 5 reaches"), "{all:?}");
    }
}
