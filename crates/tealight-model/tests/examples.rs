//! The programs in `examples/` do what they say.

#![expect(dead_code, reason = "the tests do not call `main`")]

use tealight_model::attention::AttentionConfig;

#[path = "../examples/swap_attention.rs"]
mod swap_attention;

#[test]
fn kinds_of_attention_are_measured() {
    for kind in ["softmax", "aft_simple", "nystrom"] {
        let attention = AttentionConfig::default_of(kind).unwrap();
        let (n_parameters, norm) = swap_attention::measure(attention).unwrap();
        assert!(
            n_parameters > 1000 && norm.is_finite() && norm > 0.,
            "{kind} {n_parameters} {norm}"
        );
    }
}
