//! What the rows of a model's parameters stand for.

use tealight_model::patches::Grid;

use crate::data::text::tokenizer::Tokenizer;
use crate::inference::labels::Labels;

/// What the rows of a model's parameters stand for, as its task tells; `None` where the model has no such rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowMeanings<'a> {
    /// The tokens of its embedding.
    pub tokenizer: Option<&'a Tokenizer>,
    /// The labels of its outputs.
    pub labels: Option<&'a Labels>,
    /// Where the patches of pictures are among its positions.
    pub grid: Option<Grid>,
}
