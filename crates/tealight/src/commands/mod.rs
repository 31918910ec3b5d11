//! One file per subcommand.

pub(crate) mod attend;
pub(crate) mod checkpoint;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod evaluate;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fill_mask;
pub(crate) mod forecast;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod plot;
pub(crate) mod report;
pub(crate) mod schema;
pub(crate) mod tokenizer;
pub(crate) mod train;
pub(crate) mod translate;
pub(crate) mod verify_resume;
