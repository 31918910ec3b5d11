//! Weights in bytes, and products of bytes.
//!
//! ```text
//! q, r, z = DynamicQuantizeLinear(x)           bytes, scale and zero point of all rows of x together
//! y       = MatMulInteger(q, w, z) · (r s)     w, s as tealight_ops::int8_linear rounds them
//! ```
//!
//! onnxruntime executes this pattern as one operation. Tealight itself rounds each row of x by a scale of its own, so that
//! its results differ from those of the graph within the error of rounding.

use candle_core::{Result, Tensor};
use tealight_ops::int8_linear::rounded;

use super::parameters::Scope;
use super::proto::data_type;
use super::{Graph, Type, Value, signed};

/// How a graph holds the weights of linear maps and the tables of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// As they are.
    #[default]
    F32,
    /// Rounded to integers of 8 bits, with a scale for each output, or for each token. Linear maps then multiply bytes.
    Int8,
}

/// The constants of a weight `(out, in)`.
struct Rounded {
    /// `(out, in)`
    codes: Value,
    /// `(out)`
    scales: Value,
}

impl Graph {
    /// x Wᵀ with the `weight (out, in)` of `at`: `(.., in)` → `(.., out)`
    pub(super) fn product(&self, at: &Scope<'_>, x: &Value) -> Result<Value> {
        let weight = at.tensor("weight")?;
        if self.weights == Weights::Int8 {
            let rounded =
                self.rounded(&at.name("weight.transposed"), weight, Layout::Transposed)?;
            return Ok(self.integer_product(x, &rounded.codes, &rounded.scales));
        }
        // Transposed here and not by a node: matrix products read rows of the second factor.
        Ok(self.matmul(x, &at.derived(self, "weight.transposed", &weight.t()?)?))
    }

    /// x Tᵀ with the table T of [`rows`](Self::rows): `(.., width)` → `(.., n)`
    pub(crate) fn product_with_rows(&self, at: &Scope<'_>, x: &Value) -> Result<Value> {
        // Transposed by a node, so that the file holds the table once.
        if self.weights == Weights::Int8 {
            let Rounded { codes, scales } = self.table(at)?;
            return Ok(self.integer_product(x, &self.transpose(&codes, [1, 0]), &scales));
        }
        let table = at.constant(self, "weight")?;
        Ok(self.matmul(x, &self.transpose(&table, [1, 0])))
    }

    /// The rows `ids (batch, len)` of the table `weight (n, width)` of `at`: `(batch, len, width)`
    pub(crate) fn rows(&self, at: &Scope<'_>, ids: &Value) -> Result<Value> {
        if self.weights == Weights::Int8 {
            let Rounded { codes, scales } = self.table(at)?;
            let rows = self.cast(&self.gather(&codes, ids, 0), Type::Float);
            let scales = self.unsqueeze(&self.gather(&scales, ids, 0), &[2]);
            return Ok(self.mul(&rows, &scales));
        }
        Ok(self.gather(&at.constant(self, "weight")?, ids, 0))
    }

    fn table(&self, at: &Scope<'_>) -> Result<Rounded> {
        self.rounded(&at.name("weight"), at.tensor("weight")?, Layout::Rows)
    }

    /// y of the module's formula, with `codes (in, out)` and `scales (out)`.
    fn integer_product(&self, x: &Value, codes: &Value, scales: &Value) -> Value {
        let known = self.quantized.borrow().get(&x.0).cloned();
        let [q, scale, zero] = known.unwrap_or_else(|| {
            let parts = self.nodes_of("DynamicQuantizeLinear", &[x], vec![]);
            self.quantized.borrow_mut().insert(x.0.clone(), parts.clone());
            parts
        });
        let sums = self.node("MatMulInteger", &[&q, codes, &zero], vec![]);
        self.mul(&self.cast(&sums, Type::Float), &self.mul(&scale, scales))
    }

    /// The constants of `weight (out, in)`, in bytes.
    fn rounded(&self, name: &str, weight: &Tensor, layout: Layout) -> Result<Rounded> {
        let (codes_name, scales_name) = (format!("{name}.int8"), format!("{name}.scale"));
        let known = self.constants.borrow().contains_key(&codes_name);
        if !known {
            let (n_outputs, n_inputs) = weight.dims2()?;
            let (codes, scales) = rounded(weight)?;
            let (dims, codes) = match layout {
                Layout::Rows => ([n_outputs, n_inputs], codes),
                Layout::Transposed => {
                    let column = |i| (0..n_outputs).map(move |j| j * n_inputs + i);
                    let transposed = (0..n_inputs).flat_map(column).map(|at| codes[at]).collect();
                    ([n_inputs, n_outputs], transposed)
                }
            };
            let bytes = codes.into_iter().map(i8::cast_unsigned).collect();
            let dims = dims.map(signed).to_vec();
            self.constant_of(codes_name.clone(), data_type::INT8, dims, bytes);
            let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            let dims = vec![signed(n_outputs)];
            self.constant_of(scales_name.clone(), data_type::FLOAT, dims, bytes);
        }
        let [codes, scales] = [codes_name, scales_name].map(|name| Value(name.into()));
        Ok(Rounded { codes, scales })
    }
}

/// The order of codes in a file.
#[derive(Clone, Copy)]
enum Layout {
    /// `(out, in)`
    Rows,
    /// `(in, out)`
    Transposed,
}
