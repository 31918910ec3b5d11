//! `tealight schema`: the JSON Schema of a configuration.

use anyhow::Result;
use tealight_train::config::schema::json_schema;

use crate::terminal::output::print_indented_json;

pub(crate) fn run() -> Result<()> {
    print_indented_json(&json_schema())
}
