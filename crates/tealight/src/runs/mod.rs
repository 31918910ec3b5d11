//! Configurations and runs as the commands use them.

pub(crate) mod config;
pub(crate) mod ended;
pub(crate) mod input_warnings;
pub(crate) mod job;
pub(crate) mod last_lines;
pub(crate) mod load;
pub(crate) mod notes;
pub(crate) mod number_format;
pub(crate) mod origin;
pub(crate) mod resources;
pub(crate) mod summary;
pub(crate) mod teacher;
pub(crate) mod test_data;
pub(crate) mod training;
