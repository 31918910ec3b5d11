//! What a user should know about a run: what of its data is not used, and settings that cannot do what their names say.

use tealight_train::Session;
use tealight_train::task::RegisteredTask;

/// One line for each.
pub(crate) fn notes<T: RegisteredTask>(session: &Session<T>) -> Vec<String> {
    let Session { config, task, params, model, .. } = session;
    let positions = task.cost(model, &config.model, params).positions;
    task.notes().into_iter().chain(config.notes(positions.max(task.seq_len()))).collect()
}
