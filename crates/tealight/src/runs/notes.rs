//! Settings that cannot do what their names say.

use tealight_train::Session;
use tealight_train::task::RegisteredTask;

/// One line for each such setting of a session.
pub(crate) fn notes<T: RegisteredTask>(session: &Session<T>) -> Vec<String> {
    let Session { config, task, params, model, .. } = session;
    let positions = task.cost(model, &config.model, params).positions;
    config.notes(positions.max(task.seq_len()))
}
