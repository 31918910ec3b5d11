//! Pages that follow runs.
