use std::io::ErrorKind;

use super::super::checkpoint::tests::{example, rewrite_state};
use super::*;
use crate::storage::disk::fault::{Fault, at};

fn saved(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path().join("checkpoints"));
    for &step in steps {
        checkpoints.save(&example(step)).unwrap();
    }
    (directory, checkpoints)
}

fn step(checkpoints: &Checkpoints, selection: Selection) -> u64 {
    checkpoints.load(selection, &Device::Cpu).unwrap().state.step
}

#[test]
fn latest_best_and_a_step_are_found() {
    let (_directory, checkpoints) = saved(&[500, 1_000, 1_500]);
    checkpoints.mark_best(1_000).unwrap();
    assert_eq!(step(&checkpoints, Selection::Latest), 1_500);
    assert_eq!(step(&checkpoints, Selection::Best), 1_000);
    assert_eq!(step(&checkpoints, Selection::Step(500)), 500);
    assert_eq!(step_of(&checkpoints.path(500)), Some(500));
    assert_eq!(step_of(&checkpoints.path(500).join("state.json")), Some(500));
    assert_eq!(step_of(&checkpoints.directory), None);
    assert_eq!(checkpoints.steps().unwrap(), [500, 1_000, 1_500]);
    let text = fs::read_to_string(checkpoints.directory.join("best")).unwrap();
    assert_eq!(text, "step-001000\n");
}

#[test]
fn a_run_that_is_called_like_a_step_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("step-000002");
    let checkpoints = Checkpoints::new(run.join("checkpoints"));
    checkpoints.save(&example(5)).unwrap();
    fs::write(run.join("resolved.toml"), "").unwrap();
    for path in [&run, &run.join("resolved.toml"), &run.join("checkpoints")] {
        assert_eq!(step_of(path), None);
    }
    assert_eq!(step_of(&checkpoints.path(5)), Some(5));
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let (_directory, checkpoints) = saved(&[5, 7]);
    let message = |selection| checkpoints.find(selection).unwrap_err().to_string();
    let rule = "has no checkpoint `step-000006`; there are: step-000005, step-000007";
    assert!(message(Selection::Step(6)).ends_with(rule));
    assert!(message(Selection::Best).contains("no checkpoint `best`"));
    assert!(checkpoints.mark_best(6).unwrap_err().to_string().ends_with(rule));
    let (_directory, none) = saved(&[]);
    let message = none.find(Selection::Latest).unwrap_err().to_string();
    assert!(message.ends_with("has no checkpoint `latest`; there are: none"));
}

#[test]
fn the_latest_takes_the_place_of_a_best_one_that_is_not_there_yet() {
    let (_directory, checkpoints) = saved(&[5, 7]);
    let (path, note) = checkpoints.select(None, Select::Best).unwrap();
    assert_eq!(path, checkpoints.path(7));
    assert!(note.unwrap().contains("the latest one, of step 7, is used"));
    let message = checkpoints.select(Some(Selection::Best), Select::Best).unwrap_err().to_string();
    assert!(message.ends_with("step-000007; `--checkpoint latest` takes the newest"), "{message}");
    checkpoints.mark_best(5).unwrap();
    let best = (checkpoints.path(5), None);
    assert_eq!(checkpoints.select(None, Select::Best).unwrap(), best);
    assert_eq!(checkpoints.select(Some(Selection::Best), Select::Latest).unwrap(), best);
    let (_directory, none) = saved(&[]);
    let message = none.select(None, Select::Best).unwrap_err().to_string();
    assert!(message.ends_with("has no checkpoint `best`; there are: none"), "{message}");
}

#[test]
fn selections_are_read_as_they_are_written() {
    for selection in [Selection::Latest, Selection::Best, Selection::Step(500)] {
        assert_eq!(selection.to_string().parse::<Selection>().unwrap(), selection);
    }
    assert_eq!("500".parse::<Selection>().unwrap(), Selection::Step(500));
    assert!("newest".parse::<Selection>().unwrap_err().to_string().contains("`newest`"));
}

#[test]
fn pruning_keeps_the_last_ones_and_the_best() {
    let (_directory, checkpoints) = saved(&[2, 3, 5, 7, 11]);
    checkpoints.mark_best(3).unwrap();
    assert_eq!(checkpoints.prune(2).unwrap(), [2, 5]);
    assert_eq!(checkpoints.steps().unwrap(), [3, 7, 11]);
    assert_eq!(checkpoints.prune(0).unwrap(), [7]);
    assert_eq!(checkpoints.steps().unwrap(), [3, 11]);
    assert_eq!(checkpoints.prune(1).unwrap(), [0_u64; 0]);
}

#[test]
fn a_run_that_went_back_prunes_its_past_and_not_its_abandoned_future() {
    let (_directory, checkpoints) = saved(&[2, 3, 5, 7, 4]);
    assert_eq!(step(&checkpoints, Selection::Latest), 4);
    assert_eq!(checkpoints.prune(1).unwrap(), [2, 3]);
    assert_eq!(checkpoints.steps().unwrap(), [4, 5, 7]);
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let (_directory, checkpoints) = saved(&[5]);
    let mut again = example(5);
    again.state.seed = 19;
    again.ema = None;
    checkpoints.save(&again).unwrap();
    let loaded = checkpoints.load(Selection::Step(5), &Device::Cpu).unwrap();
    assert_eq!((loaded.state.seed, loaded.ema.is_none()), (19, true));
    assert_eq!(entry_names(&checkpoints.directory).unwrap().len(), 2);
}

/// The process died while it wrote step 9, after step 7 had been removed by hand.
#[test]
fn leftovers_of_a_crash_are_ignored_then_removed() {
    let (_directory, checkpoints) = saved(&[3, 5, 7]);
    fs::remove_dir_all(checkpoints.path(7)).unwrap();
    let leftovers = [".step-000009.new.tmp", ".step-000002.tmp", ".latest.tmp"];
    let leftovers = leftovers.map(|name| checkpoints.directory.join(name));
    fs::create_dir(&leftovers[0]).unwrap();
    fs::write(leftovers[0].join("model.safetensors"), "half a mod").unwrap();
    fs::create_dir(&leftovers[1]).unwrap();
    fs::write(&leftovers[2], "step-0").unwrap();

    assert_eq!(step(&checkpoints, Selection::Latest), 5);
    assert_eq!(checkpoints.steps().unwrap(), [3, 5]);
    checkpoints.save(&example(9)).unwrap();
    assert_eq!(step(&checkpoints, Selection::Latest), 9);
    assert!(leftovers.iter().all(|path| !path.exists()));
}

#[test]
fn pointers_that_were_cut_off_or_dangle_do_not_mislead() {
    let (_directory, checkpoints) = saved(&[3, 5]);
    checkpoints.mark_best(3).unwrap();
    for name in [LATEST, BEST] {
        fs::write(checkpoints.directory.join(name), "step-0000").unwrap();
    }
    assert_eq!(step(&checkpoints, Selection::Latest), 5);
    assert_eq!(checkpoints.best().unwrap(), None);
    fs::write(checkpoints.directory.join(BEST), "step-000004\n").unwrap();
    assert!(checkpoints.find(Selection::Best).is_err());
}

/// Saves steps 3, 5 and 7, marks 5 as the best, and keeps two.
fn run(checkpoints: &Checkpoints) -> Result<u64> {
    let mut saved = 0;
    for step in [3, 5, 7] {
        checkpoints.save(&example(step))?;
        saved = step;
        if step == 5 {
            checkpoints.mark_best(5)?;
        }
        checkpoints.prune(2)?;
    }
    Ok(saved)
}

fn newest(checkpoints: &Checkpoints) -> Option<u64> {
    let NewestCheckpoint { checkpoint, damaged } = checkpoints.load_newest(&Device::Cpu).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    checkpoint.map(|checkpoint| checkpoint.state.step)
}

#[test]
fn a_process_may_die_at_any_call_and_the_last_checkpoint_is_there() {
    let mut reached = Vec::new();
    for n in 0.. {
        let (_directory, checkpoints) = saved(&[]);
        let (result, met) = at(n, Fault::Death, || run(&checkpoints));
        assert_eq!(result.is_err(), met);
        let before = newest(&checkpoints);
        // Repeating the run after the crash gives the same files as without it.
        assert_eq!(run(&checkpoints).unwrap(), 7);
        assert_eq!(checkpoints.steps().unwrap(), [5, 7]);
        assert_eq!(checkpoints.best().unwrap(), Some(5));
        let leftover = entry_names(&checkpoints.directory)
            .unwrap()
            .into_iter()
            .find(|name| name.starts_with('.'));
        assert_eq!(leftover, None);
        reached.push(before);
        if !met {
            break;
        }
    }
    assert!(reached.len() > 60, "{} calls", reached.len());
    assert!(reached.is_sorted(), "a later death lost more: {reached:?}");
    assert_eq!((reached[0], reached.last().unwrap()), (None, &Some(7)));
}

#[test]
fn a_process_may_die_while_a_checkpoint_is_replaced() {
    for n in 0.. {
        let (_directory, checkpoints) = saved(&[5]);
        let (_, met) = at(n, Fault::Death, || checkpoints.save(&example(5)));
        assert_eq!(newest(&checkpoints), Some(5), "death at call {n}");
        checkpoints.save(&example(7)).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [5, 7]);
        if !met {
            break;
        }
    }
}

#[test]
fn a_call_may_fail_as_on_a_full_disk_and_what_was_saved_stays() {
    for kind in [ErrorKind::StorageFull, ErrorKind::PermissionDenied] {
        for n in 0.. {
            let (_directory, checkpoints) = saved(&[3]);
            let (result, met) = at(n, Fault::Failure(kind), || run(&checkpoints));
            assert_eq!(result.is_err(), met, "failure of call {n}");
            if let Err(error) = result {
                let Error::Io { source, .. } = &error else { panic!("{error}") };
                assert_eq!(source.kind(), kind);
            }
            assert!(newest(&checkpoints) >= Some(3), "failure of call {n}");
            assert_eq!(run(&checkpoints).unwrap(), 7);
            if !met {
                break;
            }
        }
    }
}

#[test]
fn what_is_damaged_is_passed_over_and_kept() {
    let (_directory, checkpoints) = saved(&[2, 3, 5, 7]);
    fs::remove_file(checkpoints.path(7).join("optimizer.safetensors")).unwrap();
    let model = checkpoints.path(5).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 4;
    fs::write(&model, &bytes).unwrap();
    let NewestCheckpoint { checkpoint, damaged } = checkpoints.load_newest(&Device::Cpu).unwrap();
    assert_eq!(checkpoint.unwrap().state.step, 3);
    let [last, first] = &damaged[..] else { panic!("{damaged:?}") };
    assert!(last.damage.ends_with("there is no `optimizer.safetensors`"), "{}", last.damage);
    assert!(first.damage.contains("model.safetensors` is damaged"), "{}", first.damage);
    assert_eq!(fs::read(first.moved_to.join("model.safetensors")).unwrap(), bytes);
    assert_eq!(checkpoints.damaged().unwrap(), [first.moved_to.clone(), last.moved_to.clone()]);
    assert_eq!((checkpoints.steps().unwrap(), newest(&checkpoints)), (vec![2, 3], Some(3)));
    // The step is reached again, and damaged again.
    checkpoints.save(&example(5)).unwrap();
    fs::write(checkpoints.path(5).join("SHA256SUMS"), "").unwrap();
    let damaged = checkpoints.load_newest(&Device::Cpu).unwrap().damaged;
    assert!(damaged[0].moved_to.ends_with("damaged-step-000005-2"), "{damaged:?}");
}

#[test]
fn a_checkpoint_without_one_of_its_files_is_damaged_whichever_it_is() {
    let (_directory, checkpoints) = saved(&[5]);
    let files = fs::read_dir(checkpoints.path(5)).unwrap();
    let names: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 5);
    for name in names {
        let (_directory, checkpoints) = saved(&[3, 5]);
        fs::remove_file(checkpoints.path(5).join(&name)).unwrap();
        assert!(checkpoint::verify(&checkpoints.path(5)).unwrap_err().is_damage(), "{name:?}");
        let NewestCheckpoint { checkpoint, damaged } =
            checkpoints.load_newest(&Device::Cpu).unwrap();
        assert_eq!((checkpoint.unwrap().state.step, damaged.len()), (3, 1), "{name:?}");
    }
}

#[test]
fn where_nothing_is_whole_nothing_is_moved() {
    let (_directory, checkpoints) = saved(&[3, 5]);
    for step in [3, 5] {
        fs::write(checkpoints.path(step).join("model.safetensors"), "").unwrap();
    }
    for _ in 0..2 {
        let message = checkpoints.load_newest(&Device::Cpu).unwrap_err().to_string();
        assert!(message.contains("is whole: ") && message.contains("step-000003/model"));
        assert_eq!(checkpoints.steps().unwrap(), [3, 5]);
    }
    let (_directory, none) = saved(&[]);
    assert_eq!(newest(&none), None);
}

#[test]
fn a_checkpoint_of_the_future_is_not_passed_over() {
    let (_directory, checkpoints) = saved(&[500, 1_000]);
    let newest = checkpoints.path(1_000);
    let text = fs::read_to_string(newest.join("state.json")).unwrap();
    let newer = text.replace("\"format_version\": 2", "\"format_version\": 9");
    rewrite_state(&newest, &newer);
    let message = checkpoints.load_newest(&Device::Cpu).unwrap_err().to_string();
    assert!(message.contains("format version 9"), "{message}");
    assert_eq!(checkpoints.steps().unwrap(), [500, 1_000]);
}

#[cfg(unix)]
#[test]
fn a_file_in_the_place_of_the_checkpoints_is_an_error_and_not_none() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(Checkpoints::new(file.path().to_owned()).steps().is_err());
}
