//! The program as a person meets it: what is typed, what is printed where, and what is left on the disk.

mod ablating;
mod benching;
mod breaking;
mod checkpoints;
mod classifying;
mod combinations;
mod configuration;
mod data;
mod documentation;
mod drawing;
mod evaluating;
mod exporting;
mod forecasting;
mod inspecting;
mod languages;
mod limits;
mod listing_operations;
mod program;
mod resuming;
#[cfg(unix)]
mod surviving;
mod tokenizing;
mod training;
mod translating;
