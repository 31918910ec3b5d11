//! Recurrences.

use super::{Attribute, Graph, GraphProto, Value, signed, untyped};

impl Graph {
    /// Runs `step` along axis 1 of `inputs`, from the `states` at the start: (states, slices of the inputs without
    /// that axis) → (states, output). The outputs of all steps form axis 1 of the result.
    pub(crate) fn scan<const S: usize, const N: usize>(
        &self,
        states: [&Value; S],
        inputs: [&Value; N],
        step: impl FnOnce([Value; S], [Value; N]) -> ([Value; S], Value),
    ) -> Value {
        let outer = self.nodes.take();
        let quantized = self.quantized.take();
        let states_in = [(); S].map(|()| Value(self.fresh("state").into()));
        let slices = [(); N].map(|()| Value(self.fresh("slice").into()));
        let (states_out, output) = step(states_in.clone(), slices.clone());
        // What the body has rounded is known in the body alone.
        self.quantized.replace(quantized);
        let body = GraphProto {
            node: self.nodes.replace(outer),
            name: self.fresh("step"),
            initializer: Vec::new(),
            input: states_in.iter().chain(&slices).map(untyped).collect(),
            output: states_out.iter().chain([&output]).map(untyped).collect(),
        };
        let settings = vec![
            ("body", Attribute::Graph(body)),
            ("num_scan_inputs", Attribute::Int(signed(N))),
            ("scan_input_axes", Attribute::Ints(vec![1; N])),
            ("scan_output_axes", Attribute::Ints(vec![1])),
        ];
        let all: Vec<&Value> = states.into_iter().chain(inputs).collect();
        // The states at the end come first, and are not used.
        let outputs: Vec<String> = (0..=S).map(|_| self.fresh("Scan")).collect();
        self.push("Scan", &all, &outputs, settings);
        Value(outputs[S].as_str().into())
    }
}
