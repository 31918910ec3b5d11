//! How the program writes to a terminal: in colour or not, with a moving bar or lines.

use std::io::{IsTerminal, stderr};

use clap::ColorChoice;

/// Applies `--color` to everything that is printed, the messages of the argument parser included.
///
/// Under `auto`, a terminal is written to in colour, unless `NO_COLOR` is set, `CLICOLOR` is 0 or `TERM` is `dumb`;
/// `CLICOLOR_FORCE` colours what is not a terminal. `NO_COLOR` comes first.
pub(crate) fn choose(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    // The bars ask another library.
    console::set_colors_enabled_stderr(is_coloured());
}

/// Whether stderr is written in colour.
pub(crate) fn is_coloured() -> bool {
    anstream::AutoStream::choice(&stderr()) != anstream::ColorChoice::Never
}

/// Whether stderr is a terminal that can overwrite its lines. One of `TERM=dumb` cannot.
pub(crate) fn can_redraw() -> bool {
    stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
