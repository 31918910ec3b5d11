use super::phrases::{Part, parts};
use super::*;
use crate::data::weather::Distribution;

const DAY: &str = "day";
const WEATHER: &str = "weather";

fn diary(language: Languages) -> Diary {
    Diary::new(&Config { language, ..Config::default() }, 17).unwrap()
}

fn gaps(template: &str) -> Vec<&str> {
    let gap = |part| if let Part::Gap(name) = part { Some(name) } else { None };
    parts(template).filter_map(gap).collect()
}

#[test]
fn a_diary_reads_like_one() {
    let text = |language: Languages, index| diary(language).document(index).text;
    assert_eq!(
        text(Languages::English, 8),
        "Sunday was cloudy. A sunny Monday. Ate toast and felt brave. Tuesday was sunny. A sunny Wednesday \
         for chess. A cloudy Thursday in Galway."
    );
    assert_eq!(text(Languages::Both, 8), text(Languages::English, 8));
    assert_eq!(
        text(Languages::Japanese, 8),
        "日曜は曇。晴の月曜。小梅と公園へ行った。火曜は晴。晴の水曜に将棋。曇の木曜、金沢。"
    );
}

#[test]
fn a_document_is_a_function_of_seed_and_index() {
    let diary = diary(Languages::Both);
    assert_eq!(diary.document(3), diary.document(3));
    assert_ne!(diary.document(3).text, diary.document(5).text);
    let other = Diary::new(&diary.config, 18).unwrap();
    assert_ne!(diary.document(3).text, other.document(3).text);
    let subsets = [Subset::Train, Subset::Validation, Subset::Probes];
    let texts = subsets.map(|subset| diary.document_of(subset, 3).text);
    assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
}

#[test]
fn languages_take_turns() {
    let diary = diary(Languages::Both);
    let languages: Vec<_> = (0..4).map(|index| diary.document(index).language).collect();
    assert_eq!(languages, [Language::ALL, Language::ALL].concat());
}

#[test]
fn every_gap_has_a_list_and_every_list_a_gap() {
    for language in Language::ALL {
        let phrases = language.phrases();
        assert!(phrases.reports.len() >= 10 && phrases.notes.len() >= 10);
        for report in phrases.reports {
            for once in [DAY, WEATHER] {
                assert_eq!(gaps(report).iter().filter(|&&gap| gap == once).count(), 1, "{report}");
            }
        }
        let all: Vec<&str> = [phrases.reports, phrases.notes].concat();
        let mut used: Vec<&str> = all.iter().flat_map(|template| gaps(template)).collect();
        let tells = |note: &str| gaps(note).iter().any(|gap| [DAY, WEATHER].contains(gap));
        assert!(!phrases.notes.iter().any(|note| tells(note)));
        used.retain(|gap| ![DAY, WEATHER].contains(gap));
        let mut known: Vec<&str> = phrases.fillers.iter().map(|(name, _)| *name).collect();
        for names in [&mut used, &mut known] {
            names.sort_unstable();
            names.dedup();
        }
        assert_eq!(used, known);
        assert!(phrases.constant.iter().all(|name| known.contains(name)));
    }
}

/// Otherwise a weather word would not identify a day's weather.
#[test]
fn nothing_but_the_weather_uses_its_words() {
    for language in Language::ALL {
        let phrases = language.phrases();
        let lists = phrases.fillers.iter().flat_map(|(_, list)| *list);
        let all = phrases.days.iter().chain(phrases.reports).chain(phrases.notes).chain(lists);
        for phrase in all {
            assert!(phrases.weather.iter().all(|word| !phrase.contains(word)), "{phrase}");
        }
    }
}

#[test]
fn every_day_has_one_word_for_its_weather_and_can_be_masked() {
    let diary = diary(Languages::Both);
    for index in 0..100 {
        let document = diary.document(index);
        let words = document.language.weather_words();
        let found: usize = words.iter().map(|word| document.text.matches(word).count()).sum();
        assert_eq!((found, document.weather.len()), (5, 5), "{}", document.text);
        for (day, weather) in document.weather.iter().enumerate() {
            let word = words[usize::from(weather.id())];
            let masked = document.masked(day, MASK);
            assert_eq!(masked.matches(MASK).count(), 1);
            assert_eq!(masked.replace(MASK, word), document.text);
        }
    }
}

/// Otherwise the limits would be wrong.
#[test]
fn what_else_is_written_does_not_depend_on_the_weather() {
    let diary = diary(Languages::Both);
    for language in Language::ALL {
        let phrases = language.phrases();
        let stream = Stream::new(1, Purpose::Data);
        let text = |weather: u8| {
            let DiaryText { text, .. } = phrases.write(&[weather; 5], stream);
            text.replace(phrases.weather[usize::from(weather)], "")
        };
        assert!(text(0) == text(1) && text(1) == text(2));
    }
    assert_eq!(diary.config.n_days, 5);
}

#[test]
fn the_best_guess_reaches_the_limit_and_no_more() {
    const N: u64 = 20_000;
    let diary = diary(Languages::Both);
    let Limits { first, inside, last, mean } = diary.limits();
    for language in Language::ALL {
        let mut scores = [(0., 0.); 3]; // right answers, probes
        for probe in (0..N).map(|index| diary.probe(language, index)) {
            let best = best(&probe.optimal);
            let score = &mut scores[probe.place as usize];
            score.0 += f64::from(u8::from(language.weather_words()[best] == probe.answer));
            score.1 += 1.;
        }
        for (limit, (right, n)) in [first, inside, last].into_iter().zip(scores) {
            assert!((right / n - limit.accuracy).abs() < 0.02, "{limit:?} {right} of {n}");
        }
        let right: f64 = scores.iter().map(|score| score.0).sum();
        assert!((right / N as f64 - mean.accuracy).abs() < 0.01);
    }
}

fn best(distribution: &Distribution) -> usize {
    (0..3).max_by(|&a, &b| distribution[a].total_cmp(&distribution[b])).unwrap_or_default()
}

#[test]
fn a_probe_asks_for_one_word() {
    for language in Language::ALL {
        for probe in probes(3, language, 20).unwrap() {
            assert_eq!(probe.text.matches(MASK).count(), 1);
            assert_eq!(probe.language, language);
            assert_eq!(language.weather_words()[usize::from(probe.weather.id())], probe.answer);
            assert!((probe.optimal.iter().sum::<f64>() - 1.).abs() < 1e-12);
        }
    }
    let place = |index| diary(Languages::English).probe(Language::English, index).place;
    let places = [Place::First, Place::Inside, Place::Inside, Place::Inside, Place::Last];
    assert_eq!([0, 1, 2, 3, 4].map(place), places);
}

#[test]
fn sizes_out_of_range_are_named() {
    let message = |config: Config| Diary::new(&config, 0).unwrap_err().to_string();
    assert_eq!(
        message(Config { n_days: 1, ..Config::default() }),
        "`task.corpus.n_days` = 1 must be between 2 and 14"
    );
    let none = message(Config { n_documents: 0, ..Config::default() });
    assert!(none.starts_with("`task.corpus.n_documents` = 0"), "{none}");
}

#[test]
fn the_fingerprint_tells_corpora_apart() {
    let of = |n_days, seed| {
        Diary::new(&Config { n_days, ..Config::default() }, seed).unwrap().fingerprint()
    };
    assert_eq!(of(5, 1), of(5, 1));
    assert!(of(5, 1) != of(5, 2) && of(5, 1) != of(6, 1));
}
