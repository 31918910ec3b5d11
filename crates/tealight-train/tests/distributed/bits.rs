//! Any number of ranks gives the bits of one process.

use std::path::Path;

use crate::common::Result;
use crate::four;
use crate::images::IMAGES;
use crate::job::run;
use crate::tiny::tiny;

const OPTIMIZERS: [&str; 7] = [
    "optimizer.kind=adamw",
    "optimizer.kind=sgd",
    "optimizer.kind=lion",
    "optimizer.kind=muon",
    "optimizer={kind='muon',row_beta=0.95}",
    "optimizer.kind=adafactor",
    "optimizer.kind=lamb",
];

/// Texts whose batches have different numbers of masked tokens.
const MASKED_LM: [&str; 5] = [
    "task={kind='masked_lm',seq_len=16}",
    "task.corpus={kind='diary',n_documents=40}",
    "task.tokenizer={kind='char'}",
    "training.early_stopping.metric=loss",
    "optimizer.kind=adamw",
];

#[test]
fn any_number_of_ranks_computes_the_same_bits() -> Result {
    for optimizer in OPTIMIZERS {
        let settings = [optimizer, "training.micro_batches=8", "training.batch_size=3"];
        let config = tiny(&settings)?;
        let whole = run(&config, &[(1, 12)])?;
        assert_eq!((whole.step, whole.trained("loss").len()), (12, 12));
        for n in [2, 4, 8] {
            let label = format!("{optimizer}, {n} ranks");
            run(&config, &[(n, 12)])?.assert_same(&whole, &label);
            let mut sharded = config.clone();
            sharded.distributed.shard_optimizer = true;
            run(&sharded, &[(n, 12)])?.assert_same(&whole, &format!("{label}, sharded"));
        }
    }
    Ok(())
}

#[test]
fn micro_batches_that_are_no_power_of_two_are_summed_in_one_order() -> Result {
    let config = tiny(&["training.micro_batches=6", "training.batch_size=3"])?;
    let whole = run(&config, &[(1, 12)])?;
    for n in [2, 3, 6] {
        run(&config, &[(n, 12)])?.assert_same(&whole, &format!("{n} ranks"));
    }
    let mut one_bucket = config.clone();
    one_bucket.distributed.bucket_mb = 1000.;
    run(&one_bucket, &[(3, 12)])?.assert_same(&whole, "one bucket");
    one_bucket.distributed.bucket_mb = 1e-6;
    run(&one_bucket, &[(2, 12)])?.assert_same(&whole, "a bucket for each parameter");
    Ok(())
}

#[test]
fn gradients_that_travel_during_the_backward_pass_are_those_after_it() -> Result {
    let kinds = ["model.attention.kind=aft_simple", "model.attention.kind=nystrom"];
    for kind in [&["model.dropout=0.1"][..], &kinds[..1], &kinds[1..]] {
        for checkpointing in ["false", "true"] {
            let checkpointing = format!("training.activation_checkpointing={checkpointing}");
            let buckets = "distributed.bucket_mb=1e-3";
            let config = four(&[kind, &[&checkpointing, buckets]].concat())?;
            let mut after = config.clone();
            after.distributed.overlap = false;
            let whole = run(&config, &[(1, 12)])?;
            run(&after, &[(2, 12)])?.assert_same(&whole, "after the pass");
            run(&config, &[(2, 12)])?.assert_same(&whole, "during the pass");
        }
    }
    Ok(())
}

#[test]
fn frozen_parameters_and_refused_graphs_change_no_bit() -> Result {
    let frozen = "training.frozen=['embedding.*', 'layer.0.*']";
    for change in [frozen, "training.cuda_graphs=true"] {
        for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
            let config = four(&[change, shard])?;
            let whole = run(&config, &[(1, 12)])?;
            run(&config, &[(4, 12)])?.assert_same(&whole, &format!("{change}, {shard}"));
        }
    }
    Ok(())
}

#[test]
fn rounded_gradients_are_the_same_with_a_sharded_optimizer() -> Result {
    let config = |shard: &str| four(&["distributed.compress=bf16", shard]);
    let whole = run(&config("distributed.shard_optimizer=false")?, &[(2, 12)])?;
    run(&config("distributed.shard_optimizer=true")?, &[(2, 12)])?.assert_same(&whole, "sharded");
    Ok(())
}

#[test]
fn uneven_counts_weigh_as_in_one_process() -> Result {
    for task in [&MASKED_LM[..], &IMAGES] {
        let mut settings = task.to_vec();
        settings.extend(["training.micro_batches=4", "training.batch_size=2"]);
        let config = tiny(&settings)?;
        let whole = run(&config, &[(1, 12)])?;
        for n in [2, 4] {
            let label = format!("{}, {n} ranks", config.task.kind());
            run(&config, &[(n, 12)])?.assert_same(&whole, &label);
        }
    }
    Ok(())
}

/// A correlation or an F1 needs the predictions of all batches, which the ranks divide among them; a weighted loss is
/// divided by the weights of the texts of all ranks.
#[test]
fn scores_of_all_predictions_are_those_of_one_process() -> Result {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    for (objective, weights, file, settings, metric) in [
        ("regression", "equal", "my_ratings.csv", "label='rating'", "spearmanr"),
        ("labels", "balanced", "my_labels.jsonl", "label='labels'", "micro_f1"),
        (
            "classes",
            // Whose sums are rounded.
            "{kind='listed',weights=[0.7,1.9]}",
            "my_text_pairs.jsonl",
            "text_pair='text_pair'",
            "matthews_correlation",
        ),
    ] {
        // Four texts in a batch of an evaluation.
        let task = format!("task={{kind='classify',objective='{objective}',seq_len=4096}}");
        let path = format!("task.data={{path='{}',{settings}}}", data.join(file).display());
        let weights = format!("task.class_weights={weights}");
        let best = format!("checkpoint.metric={metric}");
        let config = four(&[
            &task,
            &path,
            &weights,
            &best,
            "task.tokenizer={kind='byte'}",
            "training.early_stopping.metric=loss",
        ])?;
        let whole = run(&config, &[(1, 12)])?;
        let evaluated = whole.metrics.iter().filter(|line| line.contains_key(metric));
        assert!(evaluated.count() >= 2, "{metric}: {:?}", whole.metrics);
        for (n, stops) in [(2, vec![(2, 12)]), (4, vec![(4, 5), (1, 9), (2, 12)])] {
            run(&config, &stops)?.assert_same(&whole, &format!("{objective}, {n} ranks"));
        }
    }
    Ok(())
}

/// The F1 of entities needs the predictions of all sentences, and weights those of the words of all ranks.
#[test]
fn a_tagger_is_the_same_on_any_number_of_ranks() -> Result {
    let config = four(&[
        "task={kind='tag',seq_len=64,class_weights='balanced'}",
        "task.data={generated='visits',n_generated=60}",
        "task.tokenizer={kind='char'}",
        "checkpoint.metric=f1",
        "training.early_stopping.metric=loss",
    ])?;
    let whole = run(&config, &[(1, 12)])?;
    assert!(whole.metrics.iter().filter(|line| line.contains_key("f1")).count() >= 2);
    for (n, stops) in [(2, vec![(2, 12)]), (4, vec![(4, 5), (1, 9), (2, 12)])] {
        run(&config, &stops)?.assert_same(&whole, &format!("{n} ranks"));
    }
    Ok(())
}

/// A loss that compares the rows of all micro-batches needs the vectors of all ranks.
#[test]
fn rows_are_compared_alike_on_any_number_of_ranks() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("triplets.csv");
    // Two rows share a positive.
    let line = |n: u32| format!("a{n},b{},c{n}\n", n / 2);
    let lines: String = (0..60).map(line).collect();
    std::fs::write(&path, format!("anchor,positive,negative\n{lines}"))?;
    for loss in ["multiple_negatives", "triplet"] {
        let config = four(&[
            &format!("task={{kind='embed',seq_len=64,loss='{loss}'}}"),
            &format!("task.data={{path='{}'}}", path.display()),
            "task.tokenizer={kind='char'}",
            "training.batch_size=2",
            "checkpoint.metric=mrr@10",
            "training.early_stopping.metric=loss",
        ])?;
        let whole = run(&config, &[(1, 12)])?;
        assert!(whole.metrics.iter().filter(|line| line.contains_key("mrr@10")).count() >= 2);
        for (n, stops) in [(2, vec![(2, 12)]), (4, vec![(4, 5), (1, 9), (2, 12)])] {
            run(&config, &stops)?.assert_same(&whole, &format!("{loss}, {n} ranks"));
        }
    }
    Ok(())
}

#[test]
fn a_run_is_resumed_by_any_number_of_ranks() -> Result {
    for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
        let config = tiny(&["training.micro_batches=4", shard])?;
        let whole = run(&config, &[(1, 12)])?;
        run(&config, &[(4, 3), (1, 5), (2, 12)])?.assert_same(&whole, shard);
    }
    Ok(())
}

#[test]
fn gradients_in_bf16_are_repeatable_and_not_those_in_f32() -> Result {
    let settings = ["training.micro_batches=4", "training.steps=4"];
    let exact = run(&tiny(&settings)?, &[(2, 4)])?;
    let rounded = tiny(&[settings[0], settings[1], "distributed.compress=bf16"])?;
    let first = run(&rounded, &[(2, 4)])?;
    run(&rounded, &[(2, 4)])?.assert_same(&first, "again");
    let (exact, rounded) = (exact.trained("loss"), first.trained("loss"));
    assert_eq!(exact[0], rounded[0]);
    assert!(exact[3] != rounded[3] && (exact[3] - rounded[3]).abs() < 1e-2);
    Ok(())
}
