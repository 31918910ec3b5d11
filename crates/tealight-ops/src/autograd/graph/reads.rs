//! What nodes read: the variables and nodes that their backwards pass gradients to, known before a pass runs.
//!
//! ```text
//! first_uses(loss)[v] = the lowest number of all nodes below `loss` that read the variable v
//! ```
//!
//! **The gradient of v is final as soon as every pending node has a lower number than that.** Nothing that runs from
//! then on can add to it:
//!
//! - The pass runs pending nodes and the nodes that they read. A node is made after everything that it reads, so
//!   all their numbers are below `first_uses(loss)[v]`, and none of them reads v.
//! - [`Reads::add`] finds what [`walk`](super::walk) passes gradients to. Between nodes these go through Candle's
//!   operations: there it asks Candle for the tensors that Candle's own backward visits (`sorted_nodes`). A variable
//!   that Candle's operations read therefore counts as read by the node that uses their result.
//! - A part that is computed again hides what it reads in a closure. Its first run shows it: [`with_reads`] lists
//!   what the nodes of that run read, and the part's node counts as reading all of it. The nodes that the pass makes
//!   are those of that run again, under numbers higher than all others. They are pending until they have run, so
//!   nothing becomes final in between.
//!
//! Only the last point trusts a promise, that a part reads the same in both runs. Where that is broken, the late
//! gradient is an error in [`walk`](super::walk).
//!
//! Cost: one visit of each node. A checkpoint visits its own nodes when it is recorded, in every pass: about a
//! microsecond for a transformer block. It keeps the ids of its variables.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use candle_core::{Result, Tensor, TensorId};

use super::{Backward, COUNT, Node};

/// Variables and nodes that gradients are passed to.
#[derive(Default)]
pub(crate) struct Reads {
    variables: Vec<TensorId>,
    nodes: Vec<Arc<Node>>,
}

impl Reads {
    /// Adds the variables and nodes to which a gradient of `tensor` is passed. (Below results of nodes, Candle also
    /// lists the dummy leaf, which is nobody's parameter.)
    fn add(&mut self, tensor: &Tensor) {
        if tensor.is_variable() {
            self.variables.push(tensor.id());
        } else if let Some(node) = Node::from_tensor(tensor) {
            self.nodes.push(node);
        } else if tensor.track_op() {
            for tensor in tensor.sorted_nodes() {
                self.nodes.extend(Node::from_tensor(tensor));
                self.variables.extend(tensor.is_variable().then(|| tensor.id()));
            }
        }
    }

    /// Adds the variables and nodes to which the backward of `node` passes gradients; none if it has run.
    fn add_all_of(&mut self, node: &Node) {
        let recorded = node.recorded.lock().expect("invariant: no panic while the lock is held");
        let Some(recorded) = &*recorded else { return };
        recorded.inputs.iter().for_each(|input| self.add(input));
        if let Backward::Recompute { reads, .. } = &recorded.backward {
            self.variables.extend(&reads.variables);
            self.nodes.extend(reads.nodes.iter().cloned());
        }
    }
}

/// Visits the graph below `tensor`, down to nodes with the number `oldest`. `visit` gets first `u64::MAX` and the
/// variables that `tensor` itself reads, then for each node, the highest number first, its number and the variables
/// that it reads. Returns the nodes with numbers below `oldest` that the visited nodes read.
fn descend(
    tensor: &Tensor,
    oldest: u64,
    mut visit: impl FnMut(u64, &[TensorId]),
) -> Vec<Arc<Node>> {
    let (mut number, mut reads) = (u64::MAX, Reads::default());
    reads.add(tensor);
    let mut pending = BTreeMap::new();
    loop {
        visit(number, &reads.variables);
        reads.variables.clear();
        pending.extend(reads.nodes.drain(..).map(|node| (node.number, node)));
        let highest = pending.last_entry().filter(|highest| *highest.key() >= oldest);
        let Some(highest) = highest else { return pending.into_values().collect() };
        number = *highest.key();
        reads.add_all_of(&highest.remove());
    }
}

/// The lowest number of the nodes that read each variable below `loss`; `u64::MAX` for a variable that `loss` reads
/// without a node in between.
pub(crate) fn first_uses(loss: &Tensor) -> HashMap<TensorId, u64> {
    let mut first = HashMap::new();
    // Numbers descend, so the last one that is inserted is the lowest.
    descend(loss, 0, |number, variables| {
        first.extend(variables.iter().map(|&variable| (variable, number)));
    });
    first
}

/// The result of `f`, and what it was computed from: variables, and nodes that are older than the call.
pub(crate) fn with_reads(f: impl FnOnce() -> Result<Tensor>) -> Result<(Tensor, Reads)> {
    let oldest = COUNT.load(Ordering::Relaxed);
    let result = f()?;
    let mut variables = Vec::new();
    let nodes = descend(&result, oldest, |_, read| variables.extend(read));
    Ok((result, Reads { variables, nodes }))
}
