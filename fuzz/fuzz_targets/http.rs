#![no_main]

use std::path::Path;

use tealight::Rehearsal;

thread_local! {
    /// A server of a run and of small models of five tasks, which are loaded when the first request names them.
    static SERVER: Rehearsal = {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let models = crates.join("tealight-train/tests/golden/models");
        let names = ["bert", "bert_ner", "bert_pair_cls", "gpt2", "vit"];
        let run = crates.join("tealight/tests/formats/v1/tiny");
        let paths: Vec<_> = names.map(|name| models.join(name)).into_iter().chain([run]).collect();
        Rehearsal::new(&paths).expect("the models are there")
    };
}

// Refusals are answers. A panic of a model's thread ends the target, although the server would go on.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let answer = SERVER.with(|server| server.answer(bytes));
    let status = answer.expect("answers are whole and not longer than the budget");
    assert_ne!(status, Some(500), "a fault of the server");
});
