//! Tests that train. They are one program, because each program with a training loop takes half a minute to build.

#[path = "../common/any_task.rs"]
mod any_task;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/configs.rs"]
mod configs;
mod fit;
mod gradients;
mod handset;
#[path = "../common/images.rs"]
mod images;
#[path = "../common/outcome.rs"]
mod outcome;
mod overfit;
mod resume;
mod swap;
#[path = "../common/tiny.rs"]
mod tiny;
#[path = "../common/weather.rs"]
mod weather;
