//! The page as HTML: sections, data, scripts, styles, and the policy that allows them.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::ablation::Ablation;
use super::charts::{Chart, charts, figures, means};
use super::groups::Groups;
use super::read::RunData;
use super::series::N_STRETCHES;
use super::structure::structure;
use super::update::{clock, thinned};
use super::{attention, checkpoints, mistakes, origin, overview, results, samples, settings};
use crate::charts::base64::Base64;

/// Runs whose samples are open.
const MAX_OPEN: usize = 3;
/// Stretches of each of many runs.
const MIN_STRETCHES: usize = 60;

/// The style sheet that pages share.
pub(crate) const STYLE_OF_PAGE: &str = include_str!("assets/page.css");
const STYLE: &str = concat!(include_str!("assets/uplot.min.css"), include_str!("assets/page.css"));
const SCRIPT: &str = concat!(
    include_str!("assets/uplot.min.js"),
    include_str!("assets/data.js"),
    include_str!("assets/charts.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/attention.js"),
    include_str!("assets/live.js"),
);

/// What becomes of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    /// A file that loads nothing.
    File,
    /// A page of a server, whose `script` runs after those of the page.
    Live {
        /// JavaScript.
        script: &'a str,
    },
}

/// The page of some runs, or of an ablation and its runs.
///
/// # Errors
/// If data cannot be written as JSON.
pub(crate) fn page(
    runs: &[RunData],
    ablation: Option<&Ablation>,
    form: Form<'_>,
) -> anyhow::Result<String> {
    let groups = Groups::new(runs, ablation);
    let charts = charts(runs, &groups);
    let data = data(runs, &charts)?;
    let title = title(runs);
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                @if let Form::File = form {
                    meta http-equiv="Content-Security-Policy" content=(policy(form));
                }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (title) " · Tealight" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header { p.brand { "Tealight" } h1 { (title) } }
                main id="main" { (sections(runs, ablation, &groups, &charts)) }
                script type="application/json" id="data" { (PreEscaped(data)) }
                script { (PreEscaped(SCRIPT)) }
                @if let Form::Live { script } = form { script { (PreEscaped(script)) } }
            }
        }
    };
    Ok(document.into_string())
}

fn title(runs: &[RunData]) -> String {
    match runs {
        [run] => run.name.clone(),
        _ => format!("{} runs", runs.len()),
    }
}

/// The content security policy of a page: its own scripts and styles by their hashes, pictures inside of the page, and,
/// of a live page, connections to its server.
pub(crate) fn policy(form: Form<'_>) -> String {
    let (script, connections) = match form {
        Form::File => (String::new(), ""),
        Form::Live { script } => {
            (format!(" {}", hash(script)), "; connect-src 'self'; frame-ancestors 'none'")
        }
    };
    format!(
        "default-src 'none'; style-src {}; script-src {}{script}; img-src data:; base-uri 'none'; \
         form-action 'none'{connections}",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// The digest of a script or style, in the words of a policy: `'sha256-…'`
pub(crate) fn hash(text: &str) -> String {
    format!("'sha256-{}'", Base64(&Sha256::digest(text.as_bytes())))
}

/// A section with a heading, to which the table of contents leads.
struct Section {
    id: &'static str,
    heading: &'static str,
    content: Markup,
}

/// The sections: first the answer, then the examples, then how it came about.
fn sections(
    runs: &[RunData],
    ablation: Option<&Ablation>,
    groups: &Groups,
    charts: &[Chart],
) -> Markup {
    let mut sections = Vec::new();
    let mut add = |id, heading, content: Option<Markup>| {
        sections.extend(content.map(|content| Section { id, heading, content }));
    };
    let of_ablation =
        |ablation: &Ablation| html! { (ablation.section()) (means(runs, groups, charts)) };
    add("ablation", "Ablation", ablation.map(of_ablation));
    if let [run] = runs {
        add("results", "Results", Some(results::of_one(run)));
        add("samples", "Samples", samples::of_one(run));
        add("mistakes", "Mistakes", mistakes::of_one(run));
        add("charts", "Charts", chart_section(runs, groups, charts));
        add("detail", "Results in detail", results::in_detail(run));
        add("overview", "The run", Some(overview::of_one(run)));
        add("attention", "Attention", attention::of_one(run));
        add("settings", "Settings", Some(settings::of_one(run)));
        add("again", "How to do it again", Some(origin::of_one(run)));
        add("checkpoints", "Checkpoints", Some(checkpoints::of_one(run)));
    } else if !runs.is_empty() {
        add("results", "Results", results::of_several(runs, groups));
        add("overview", "Runs", Some(overview::of_several(runs, groups)));
        add("samples", "Samples", samples_of_all(runs));
        add("charts", "Charts", chart_section(runs, groups, charts));
        add("settings", "Settings", Some(settings::of_several(runs)));
        add("again", "How to do it again", Some(each(runs, origin::of_one)));
        add("checkpoints", "Checkpoints", Some(each(runs, checkpoints::of_one)));
    }
    html! {
        nav aria-label="Sections" { ul {
            @for section in &sections { li { a href=(format!("#{}", section.id)) { (section.heading) } } }
        } }
        @for Section { id, heading, content } in &sections {
            section id=(id) aria-labelledby=(format!("{id}-heading")) {
                h2 id=(format!("{id}-heading")) { (heading) }
                (content)
            }
        }
    }
}

fn chart_section(runs: &[RunData], groups: &Groups, charts: &[Chart]) -> Option<Markup> {
    (!charts.is_empty()).then(|| {
        html! {
            // The script puts its controls here.
            div id="controls" {}
            (figures(runs, groups, charts))
        }
    })
}

/// The content of each run under its name.
fn each(runs: &[RunData], content: impl Fn(&RunData) -> Markup) -> Markup {
    html! { @for run in runs { details { summary { (run.name) } (content(run)) } } }
}

fn samples_of_all(runs: &[RunData]) -> Option<Markup> {
    let of_runs: Vec<_> =
        runs.iter().filter_map(|run| Some((run, samples::of_one(run)?))).collect();
    let is_open = of_runs.len() <= MAX_OPEN;
    (!of_runs.is_empty()).then(|| {
        html! { @for (run, content) in of_runs { details open[is_open] { summary { (run.name) } (content) } } }
    })
}

/// The data of the scripts as JSON that cannot end its element.
fn data(runs: &[RunData], charts: &[Chart]) -> anyhow::Result<String> {
    let n = (N_STRETCHES / runs.len().max(1)).max(MIN_STRETCHES);
    let of_run = |run: &RunData| {
        let series = thinned(run, n);
        json!({
            "name": run.name,
            "cursor": run.log.cursor,
            "structure": structure(run),
            "clock": clock(run, &series),
            "series": series,
            "marks": run.log.marks,
        })
    };
    let attention = runs.first().filter(|_| runs.len() == 1).and_then(|run| run.attention.as_ref());
    let attention = match attention {
        Some(Ok(attention)) => attention.data()?,
        _ => Value::Null,
    };
    let runs: Vec<Value> = runs.iter().map(of_run).collect();
    embedded(&json!({ "runs": runs, "charts": charts, "attention": attention }))
}

/// JSON without `<`, which begins the end of the element and a comment.
fn embedded(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value)?.replace('<', "\\u003c"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_json_ends_no_element_and_means_the_same() {
        let value = json!({ "name": "</script><!--<img onerror=alert(1)>" });
        let text = embedded(&value).unwrap();
        assert!(!text.contains('<'), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn scripts_and_styles_can_be_embedded() {
        assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
        assert!(
            !STYLE.contains("</style") && !STYLE.contains("url(") && !STYLE.contains("@import")
        );
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch("]
        {
            let own = &SCRIPT[include_str!("assets/uplot.min.js").len()..];
            assert!(!own.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn the_policy_of_a_file_allows_no_connection_and_that_of_a_server_its_own() {
        let (file, live) = (policy(Form::File), policy(Form::Live { script: "1" }));
        assert!(file.starts_with("default-src 'none'; ") && !file.contains("connect-src"));
        assert!(!file.contains("unsafe"));
        // printf 1 | openssl dgst -sha256 -binary | base64
        assert!(live.contains("'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"), "{live}");
        assert!(live.ends_with("connect-src 'self'; frame-ancestors 'none'"));
    }
}
