//! Texts as tokens, in one tensor.

use candle_core::{Device, Tensor};
use tealight_model::Mask;
use tealight_model::embedding::Input;

use super::encoder::Tokens;
use crate::data::padded_to;
use crate::error::Result;

/// Texts as tokens, on the device.
#[derive(Debug)]
pub(crate) struct Rows {
    /// `(batch, longest)`
    pub(crate) ids: Tensor,
    /// `(batch, longest)`; `None` where all are 0.
    pub(crate) type_ids: Option<Tensor>,
    pub(crate) mask: Mask,
    /// Without padding.
    pub(crate) n_tokens: u64,
}

impl Rows {
    /// Rows padded with `pad` to the longest, and to `width` at least.
    pub(crate) fn new(rows: &[&Tokens], width: usize, pad: u32, device: &Device) -> Result<Self> {
        let ids: Vec<_> = rows.iter().map(|row| row.ids.clone()).collect();
        let n_tokens = ids.iter().map(|ids| ids.len() as u64).sum();
        let (ids, mask) = padded_to(width, &ids, pad, device)?;
        let types = || rows.iter().map(|row| row.type_ids.clone()).collect::<Vec<_>>();
        let has_types = rows.iter().any(|row| !row.type_ids.is_empty());
        let type_ids = has_types.then(|| padded_to(ids.dim(1)?, &types(), 0, device));
        let type_ids = type_ids.transpose()?.map(|(type_ids, _)| type_ids);
        Ok(Self { ids, type_ids, mask, n_tokens })
    }

    pub(crate) fn input(&self) -> Input<'_> {
        Input::Tokens { input_ids: &self.ids, token_type_ids: self.type_ids.as_ref() }
    }
}
