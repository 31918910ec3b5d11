//! `/play`: texts, pictures and days, and what one or two models make of them.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use maud::{Markup, html};

use super::page;
use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;

const SCRIPT: &str = include_str!("assets/play.js");

pub(in crate::serve) async fn show(State(app): State<Shared>, uri: Uri) -> Result<Response, Fault> {
    beside(move || of_models(&app, &uri)).await
}

fn of_models(app: &App, uri: &Uri) -> Response {
    let names: Vec<String> = app.catalogue.items().into_iter().map(|item| item.name).collect();
    let query = uri.query().unwrap_or_default();
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("model="));
    let asked = asked.map(decoded);
    let first = names.iter().find(|name| Some(*name) == asked.as_ref()).or(names.first());
    let main = html! {
        noscript { p { "The playground needs JavaScript; the API does not." } }
        div .choices {
            (choice("model", &names, first))
            (choice("another model beside it", &names, None))
        }
        div id="for-texts" hidden {
            label for="text" { "Text" }
            textarea id="text" spellcheck="false" {}
        }
        div id="for-pictures" hidden {
            label { "Picture" input type="file" id="picture" accept="image/png,image/jpeg"; }
        }
        p .dim id="about" role="status" {}
        button type="button" id="another" hidden { "Another example" }
        // The script puts a panel here for each model that is chosen.
        div .columns id="columns" {}
    };
    page("Playground", &main, SCRIPT)
}

/// A list of models to choose from.
fn choice(label: &str, names: &[String], chosen: Option<&String>) -> Markup {
    html! {
        select .model aria-label=(label) {
            option value="" selected[chosen.is_none()] { "– " (label) " –" }
            @for name in names {
                option value=(name) selected[chosen == Some(name)] { (name) }
            }
        }
    }
}

/// A part of a query with its `%` sequences decoded; what is no UTF-8 becomes a name that does not exist.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%');
        let byte = hex.and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn a_name_is_read_as_browsers_write_it() {
        for (text, name) in
            [("a%20b", "a b"), ("%E9%9B%A8", "雨"), ("100%", "100%"), ("%zz%4", "%zz%4")]
        {
            assert_eq!(decoded(text), name);
        }
    }
}
