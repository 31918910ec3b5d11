//! The pages: the list of runs and models, a run, the playground.
//!
//! A page is a skeleton with scripts of ours; everything else comes from the API as JSON and is set as text. Styles and
//! scripts are allowed by their digests alone.

pub(super) mod index;
pub(super) mod playground;
pub(super) mod run;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::http::security::policy_of_page;

const STYLE: &str = include_str!("assets/style.css");
const COMMON: &str = include_str!("assets/common.js");

/// A page with a script.
fn page(title: &str, main: &Markup, script: &str) -> Response {
    let text = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · tealight" }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    nav { a href="/" { "runs and models" } " · " a href="/play" { "playground" } }
                }
                main { (main) }
                script { (PreEscaped(COMMON)) }
                script { (PreEscaped(script)) }
            }
        }
    };
    let policy = policy_of_page(&[COMMON, script], &[STYLE]);
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, text.into_string()).into_response()
}
