//! Sums over micro-batches in one fixed order: a pairwise tree over their index.
//!
//! ```text
//! 0 1 2 3 4 5 6      micro-batches
//! └┬┘ └┬┘ └┬┘ │
//!  └─┬─┘   └─┬┘      a node is added up from its two halves; the left one is the larger power of two
//!    └───┬───┘
//! ```
//!
//! Floating-point addition is not associative, so the order of a sum decides its last bits. Ranks add up the subtrees
//! within their own micro-batches, and what is left is added in the same order on whichever rank; so the number of
//! ranks does not change a bit. Several partial sums are kept at a time, at most one for each level of the tree.

use std::ops::Range;

use crate::error::Result;

/// The nodes of a tree that have been added up so far, from left to right.
#[derive(Clone, Debug)]
pub(crate) struct PairwiseSum<T> {
    n_leaves: u64,
    nodes: Vec<Node<T>>,
}

/// The sum over the leaves of one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<T> {
    pub(crate) leaves: Range<u64>,
    pub(crate) sum: T,
}

impl<T> PairwiseSum<T> {
    /// No node yet of a tree with `n_leaves` leaves in all.
    pub(crate) fn new(n_leaves: u64) -> Self {
        Self { n_leaves, nodes: Vec::new() }
    }

    /// Adds a node, to the right of all others, and adds up the nodes whose two halves are there.
    pub(crate) fn push(
        &mut self,
        node: Node<T>,
        mut add: impl FnMut(T, T) -> Result<T>,
    ) -> Result<()> {
        let mut right = node;
        while let Some(left) =
            self.nodes.pop_if(|left| are_halves(&left.leaves, &right.leaves, self.n_leaves))
        {
            let leaves = left.leaves.start..right.leaves.end;
            right = Node { leaves, sum: add(left.sum, right.sum)? };
        }
        self.nodes.push(right);
        Ok(())
    }

    /// The nodes so far that are not part of a larger one.
    pub(crate) fn nodes(&self) -> &[Node<T>] {
        &self.nodes
    }

    /// The nodes that are not part of a larger one: a single one, the whole tree, once all leaves are there.
    pub(crate) fn into_nodes(self) -> Vec<Node<T>> {
        self.nodes
    }
}

/// The largest nodes whose leaves are all in `leaves`, from left to right.
pub(crate) fn nodes_within(leaves: Range<u64>, n_leaves: u64) -> Vec<Range<u64>> {
    let mut sum = PairwiseSum::new(n_leaves);
    for leaf in leaves {
        let node = Node { leaves: leaf..leaf + 1, sum: () };
        sum.push(node, |(), ()| Ok(())).expect("invariant: nothing is added");
    }
    sum.into_nodes().into_iter().map(|node| node.leaves).collect()
}

/// Whether two nodes side by side are the halves of a node of the tree.
fn are_halves(left: &Range<u64>, right: &Range<u64>, n_leaves: u64) -> bool {
    let len = right.end - left.start;
    // The node has its place among nodes of this size; only the last one of the tree may have fewer leaves.
    let size = len.next_power_of_two();
    let is_node = left.start.is_multiple_of(size) && (len == size || right.end == n_leaves);
    is_node && right.start - left.start == size / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum level by level: neighbours are added, the last of an odd number moves up.
    fn by_levels(mut terms: Vec<String>) -> String {
        while terms.len() > 1 {
            terms = terms
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => format!("({left}+{right})"),
                    odd => odd[0].clone(),
                })
                .collect();
        }
        terms.remove(0)
    }

    fn leaf(index: u64) -> Node<String> {
        Node { leaves: index..index + 1, sum: index.to_string() }
    }

    #[test]
    fn any_number_of_ranks_adds_in_the_order_of_the_levels() {
        for n_leaves in 1..40 {
            let expected = by_levels((0..n_leaves).map(|i| i.to_string()).collect());
            for n_ranks in (1..=n_leaves).filter(|n| n_leaves % n == 0) {
                let add = |left, right| Ok(format!("({left}+{right})"));
                let len = n_leaves / n_ranks;
                let mut whole = PairwiseSum::new(n_leaves);
                for rank in 0..n_ranks {
                    let own = rank * len..(rank + 1) * len;
                    let mut part = PairwiseSum::new(n_leaves);
                    for index in own.clone() {
                        part.push(leaf(index), add).unwrap();
                    }
                    let nodes = part.into_nodes();
                    let leaves: Vec<_> = nodes.iter().map(|node| node.leaves.clone()).collect();
                    assert_eq!(leaves, nodes_within(own, n_leaves));
                    for node in nodes {
                        whole.push(node, add).unwrap();
                    }
                }
                let nodes = whole.into_nodes();
                assert_eq!(nodes, [Node { leaves: 0..n_leaves, sum: expected.clone() }]);
            }
        }
    }

    #[test]
    fn a_rank_with_a_power_of_two_of_micro_batches_sends_one_sum() {
        assert_eq!(nodes_within(8..12, 16), vec![8..12; 1]);
        assert_eq!(nodes_within(3..6, 6), [3..4, 4..6]);
        assert_eq!(nodes_within(0..3, 6), [0..2, 2..3]);
    }
}
