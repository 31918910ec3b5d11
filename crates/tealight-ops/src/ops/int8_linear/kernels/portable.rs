//! Plain loops.

use super::{Line, Strip, Sums};
use crate::ops::int8_linear::bytes::PANEL;

/// The sums of a block.
pub(super) fn sums(strip: &Strip<'_>, panels: [&[Line]; 2], sums: &mut Sums) {
    for (i, sums) in sums.0.iter_mut().take(strip.n_rows).enumerate() {
        let (fours, _) = strip.row(i).as_chunks::<4>();
        for (sums, panel) in sums.as_chunks_mut::<PANEL>().0.iter_mut().zip(panels) {
            let mut totals = [0; PANEL];
            for (four, line) in fours.iter().zip(panel) {
                let q = four.map(i32::from);
                let (columns, _) = line.0.as_chunks::<4>();
                for (total, w) in totals.iter_mut().zip(columns) {
                    let w = w.map(i32::from);
                    *total += q[0] * w[0] + q[1] * w[1] + q[2] * w[2] + q[3] * w[3];
                }
            }
            *sums = totals;
        }
    }
}
