//! End-to-end tests of the binary: arguments, output, exit codes and files.

mod ablating;
mod atlas;
mod benching;
#[cfg(unix)]
mod book;
mod breaking;
mod checkpoints;
mod classifying;
mod clustering;
mod combinations;
mod comparing;
mod configuration;
mod conventions;
mod data;
mod diverging;
mod documentation;
mod drawing;
mod embedding;
mod evaluating;
mod exporting;
mod forecasting;
#[cfg(unix)]
mod foreign_runs;
mod imitating;
mod inspecting;
mod languages;
mod learning;
mod limits;
mod listing_operations;
mod picture_folders;
mod picturing;
mod precision;
mod program;
mod reports;
mod resuming;
mod serving;
mod shipped;
mod starting;
#[cfg(unix)]
mod surviving;
mod tagging;
mod tokenizing;
mod training;
mod translating;
