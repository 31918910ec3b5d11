//! Valid settings that contradict each other: errors name the keys, the values and the rule.

use crate::program::{Folder, Result};

/// `--set` arguments, and parts of the error message.
type Case<'a> = (&'a [&'a str], &'a [&'a str]);

fn all_are_refused(cases: &[Case<'_>]) -> Result {
    let folder = Folder::new()?;
    cases.iter().try_for_each(|(settings, parts)| folder.refuse_settings(settings, parts))
}

#[test]
fn models_that_cannot_be_built() -> Result {
    all_are_refused(&[
        (
            &["task.read_out=every_position"],
            &["`task.read_out` = \"every_position\" needs `model.causal` = true"],
        ),
        (
            &["task.read_out=cls", "model.causal=true"],
            &["`task.read_out` = \"cls\" needs `model.causal` = false"],
        ),
        (
            &["model.tied_output=true", "task.input=one_hot"],
            &["`model.tied_output` = true", "features"],
        ),
        (
            &["model.position=rotary", "model.d_model=9", "model.n_heads=3"],
            &["head_dim = 3 is odd", "model.n_heads=3", "model.d_model=9"],
        ),
        (
            &["model.position=sinusoidal", "model.d_model=9", "model.n_heads=3"],
            &["`model.d_model` = 9 must be even"],
        ),
        (&["model.n_heads=3"], &["`model.n_heads` = 3 does not divide `model.d_model` = 8"]),
        (&["model.max_seq_len=2"], &["`model.max_seq_len` = 2 is less than the 3 positions"]),
        (
            &["model.max_seq_len=3", "task.read_out=cls"],
            &["`model.max_seq_len` = 3 is less than the 4 positions"],
        ),
        (&["model.dropout=1.0"], &["`model.dropout` = 1 must be at least 0 and less than 1"]),
        (&["model.dropout=-0.1"], &["`model.dropout` = -0.1"]),
        (&["model.d_model=0"], &["`model.d_model` = 0 must be positive"]),
        (&["model.n_layers=0"], &["`model.n_layers` = 0 must be positive"]),
        (&["model.n_heads=0"], &["`model.n_heads` = 0 must be positive"]),
        (&["model.feed_forward={kind=\"mlp\",d_ff=0}"], &["`model.feed_forward.d_ff` = 0"]),
        (
            &["model.position={kind=\"relative\",n_buckets=7}"],
            &["`model.position.n_buckets` = 7 must be even and at least 4"],
        ),
    ])
}

#[test]
fn weather_that_cannot_be_drawn() -> Result {
    all_are_refused(&[
        (
            &["task.source={kind=\"file\",path=\"a.txt\"}", "task.regime.kind=fresh"],
            &["`task.regime.kind` = \"fresh\"", "a file cannot", "use \"examples\""],
        ),
        (&["task.source=file"], &["`task.source.path` is missing"]),
        (
            &["task.source=one_four_eight", "task.window=7"],
            &["`task.window` = 7", "`one_four_eight` forecasts day 11 from exactly 10 days"],
        ),
        (
            &["task.source={kind=\"dotmod\",probability=1.0}"],
            &["`task.source.probability` = 1.0", "from 0 to 0.99"],
        ),
        (
            &["task.source={kind=\"dotmod\",coefficients=[1,2]}"],
            &["`task.source.coefficients` = [1,2]: expected an array of 10 values"],
        ),
        (
            &["task.source={kind=\"dotmod\",coefficients=[0,1,2,3,2,1,0,1,2,-3]}"],
            &["task.source.coefficients[9]", "-3"],
        ),
        (&["task.source={kind=\"n_days\",n=0}"], &["`task.source.n` = 0", "from 1 to 15 days"]),
        (&["task.source={kind=\"n_days\",n=16}"], &["`task.source.n` = 16", "from 1 to 15 days"]),
        (
            &["task.source.initial=[0.5,0.5,0.5]"],
            &["`task.source.initial` = [0.5, 0.5, 0.5]", "sum to 1"],
        ),
        (
            &["task.source.transition=[[1,0,0],[1.5,-0.5,0],[0,0,1]]"],
            &["`task.source.transition[1]` = [1.5, -0.5, 0.0]", "at least 0 and sum to 1"],
        ),
        (&["task.window=0"], &["`task.window` = 0 must be positive"]),
        (
            &["task.regime.n_validation=60"],
            &["`task.regime.n_validation` = 60 leaves nothing to train on", "60 examples"],
        ),
        (&["task.regime.n_validation=0"], &["`task.regime.n_validation` = 0 must be positive"]),
        (&["task.label_smoothing=1.5"], &["`task.label_smoothing` = 1.5 must be at least 0"]),
    ])
}

#[test]
fn attentions_that_cannot_be_built() -> Result {
    all_are_refused(&[
        (&["model.attention={kind='top_k',k=0}"], &["`model.attention.k` = 0 must be positive"]),
        (
            &["model.attention={kind='thresholded',threshold=1.5}"],
            &["`model.attention.threshold` = 1.5"],
        ),
        (&["model.attention={kind='local',window=0}"], &["`model.attention.window` = 0 must be"]),
        (
            &["model.n_layers=2", "model.layers=[{},{attention={kind='local',window=0}}]"],
            &[
                "`model.layers[1].attention.window` = 0 must be",
                "--set model.layers=",
                "           ^",
            ],
        ),
        (&["model.attention={kind='aft_local',window=0}"], &["`model.attention.window` = 0 must"]),
        (&["model.attention={kind='aft_full',rank=0}"], &["`model.attention.rank` = 0 must be"]),
        (
            &["model.attention={kind='aft_conv',kernel_size=4}"],
            &["`model.attention.kernel_size` = 4"],
        ),
        (
            &["model.attention={kind='nystrom',n_landmarks=0}"],
            &["`model.attention.n_landmarks` = 0"],
        ),
        (&["model.attention={kind='nystrom',n_iterations=99}"], &["n_iterations` = 99"]),
        (
            &["model.attention={kind='nystrom',conv_kernel=4}"],
            &["`model.attention.conv_kernel` = 4"],
        ),
        (
            &["model.attention={kind='performer',n_random_features=0}"],
            &["`model.attention.n_random_features` = 0 must be positive"],
        ),
        (
            &["model.attention={kind='softmax',n_kv_heads=99}"],
            &["`model.attention.n_kv_heads` = 99"],
        ),
        (&["model.attention={kind='softmax',score='cosine'}"], &["cosine", "scaled_dot"]),
        (&["model.attention=nystrom", "model.causal=true"], &["\"nystrom\" cannot be causal"]),
        (&["model.attention=rwkv"], &["\"rwkv\" must be causal"]),
        (
            &["model.attention=aft_simple", "model.position=alibi"],
            &["\"aft_simple\" cannot take positions that add to the scores"],
        ),
        (&["model.cross_attention=softmax"], &["`model.cross_attention` is set, but"]),
    ])
}

#[test]
fn training_that_goes_nowhere() -> Result {
    all_are_refused(&[
        (
            &["schedule={kind=\"cosine\",warmup_steps=7}"],
            &["`schedule.warmup_steps` = 7 is longer than the run of 6 steps"],
        ),
        (
            &["schedule={kind=\"inverse_sqrt\",warmup_steps=7}"],
            &["`schedule.warmup_steps` = 7 is longer"],
        ),
        (
            &["schedule={kind=\"wsd\",warmup_steps=4,decay_steps=3}"],
            &["`schedule.decay_steps` = 3 and `schedule.warmup_steps` = 4 are longer"],
        ),
        (&["training.micro_batches=0"], &["`training.micro_batches` = 0 must be positive"]),
        (&["training.steps=0"], &["`training.steps` = 0 must be positive"]),
        (&["training.batch_size=0"], &["`training.batch_size` = 0 must be positive"]),
        (&["training.evaluate_every=0"], &["`training.evaluate_every` = 0 must be positive"]),
        (&["checkpoint.every=0"], &["`checkpoint.every` = 0 must be positive"]),
        (&["checkpoint.keep_last=0"], &["`checkpoint.keep_last` = 0 must be positive"]),
        (&["log.every=0"], &["`log.every` = 0 must be positive"]),
        (
            &["optimizer={kind=\"adamw\",lr=-1.0}"],
            &["`optimizer.lr` = -1 must be finite and above 0"],
        ),
        (&["optimizer={kind=\"adamw\",beta1=1.0}"], &["`optimizer.beta1` = 1 must be", "below 1"]),
        (
            &["optimizer={kind=\"adamw\",beta2=1.5}"],
            &["`optimizer.beta2` = 1.5 must be", "below 1"],
        ),
        (
            &["optimizer={kind=\"sgd\",nesterov=true,momentum=0.0}"],
            &["`optimizer.nesterov` = true needs an `optimizer.momentum` above 0"],
        ),
        (&["training.ema_decay=1.5"], &["`training.ema_decay` = 1.5 must be", "below 1"]),
        (&["training.max_grad_norm=0.0"], &["`training.max_grad_norm` = 0", "leave it out"]),
        (
            &["training.early_stopping.patience=0"],
            &["`training.early_stopping.patience` = 0 must be at least 1"],
        ),
        (
            &["training.early_stopping.metric=perplexity"],
            &[
                "`training.early_stopping.metric` = \"perplexity\"",
                "an evaluation gives `accuracy`, `loss`, `nll`",
            ],
        ),
    ])
}

#[test]
fn changing_a_kind_drops_the_keys_of_the_former_and_says_so() -> Result {
    let folder = Folder::new()?;
    let args = ["train", "tiny.toml", "--dry-run", "--set", "task.regime.kind=fresh"];
    let stderr = folder.succeed(&args)?.stderr;
    let reason = "is dropped: it belongs to kind `examples`, and `fresh` is set";
    for key in ["task.regime.n", "task.regime.n_validation"] {
        assert!(stderr.contains(&format!("`{key}` {reason}")), "{stderr}");
    }
    let stderr = folder.succeed(&["inspect", "tiny.toml", "--set", "task.regime=fresh"])?.stderr;
    assert!(stderr.contains(reason), "{stderr}");
    Ok(())
}
