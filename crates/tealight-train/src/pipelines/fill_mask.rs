//! Candidates for the masks of texts, by a masked language model.

use candle_core::Device;
use tealight_model::models::masked_lm::MaskedLm;
use tealight_model::{ModelConfig, ModelSpec};

use super::{Pipeline, divided};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::inference::fill_mask::{
    Budget, Candidate, MaskFiller, MaskScores, Proposals, Target, targets,
};
use crate::trained::{HfOrigin, TrainedModel};

/// A masked language model with its tokenizer.
#[derive(Debug)]
pub struct FillMask {
    model: MaskedLm,
    config: ModelConfig,
    tokenizer: Tokenizer,
    device: Device,
}

/// Texts with masks.
#[derive(Clone, Debug)]
pub struct Request {
    /// The texts, each with a mask at least.
    pub texts: Vec<String>,
    /// The number of candidates for each mask.
    pub top_k: usize,
    /// Words to score; all tokens when absent.
    pub targets: Option<Vec<String>>,
    /// The most that it may ask for; without a limit when absent.
    pub budget: Option<Budget>,
}

impl Pipeline for FillMask {
    const NAME: &'static str = "fill-mask";
    type Request = Request;
    /// The candidates for each mask of each text, best first.
    type Answer = Vec<Vec<Vec<Candidate>>>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let built = match (&model.spec, &model.hf) {
            (Some(ModelSpec::MaskedLm(spec)), _) => {
                model.build(device, |vb| MaskedLm::build(&model.config, spec, vb))?
            }
            (Some(ModelSpec::Encoder(_)), Some(HfOrigin { family, .. })) => {
                let missing = family.masked_lm_head(&model.config).join("`, `");
                let rule = format!(
                    "it is an encoder without a language-model head, which computes the probabilities of \
                     masked tokens: there is no tensor `{missing}`"
                );
                return Err(Error::unusable(&model.origin, &rule));
            }
            _ => return Err(model.wrong_kind("a masked language model")),
        };
        let (config, tokenizer) = (model.config.clone(), model.tokenizer()?.clone());
        Ok(Self { model: built, config, tokenizer, device: device.clone() })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Self::Answer>> {
        let proposals = requests.iter().map(|request| self.proposals(request));
        let proposals: Vec<Proposals> = proposals.collect::<Result<_>>()?;
        let of_text: Vec<usize> = (0..requests.len())
            .flat_map(|index| vec![index; requests[index].texts.len()])
            .collect();
        let texts: Vec<String> = requests.iter().flat_map(|one| one.texts.clone()).collect();
        let filler = self.filler();
        let encoded = filler.encode_all(&texts)?;
        let mut rest = &*encoded;
        for (request, proposals) in requests.iter().zip(&proposals) {
            let (own, others) = rest.split_at(request.texts.len());
            request.budget.map_or(Ok(()), |budget| filler.check(own, proposals, budget))?;
            rest = others;
        }
        let candidates =
            |mask: &MaskScores<'_>| filler.candidates(mask, &proposals[of_text[mask.text]]);
        let filled = filler.map_encoded(&encoded, candidates)?;
        Ok(divided(filled, requests.iter().map(|request| request.texts.len())))
    }
}

impl FillMask {
    /// The tokens that are scored for words.
    ///
    /// # Errors
    /// If no token is the beginning of a word.
    pub fn targets(&self, words: &[String]) -> Result<Vec<Target>> {
        targets(&self.tokenizer, words)
    }

    /// A text as the model reads it, with the mask token of its tokenizer.
    ///
    /// # Errors
    /// If the tokenizer has no mask token.
    pub fn with_mask_token(&self, text: &str) -> Result<String> {
        self.filler().with_mask_token(text)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model with its tokenizer.
    pub fn filler(&self) -> MaskFiller<'_> {
        MaskFiller::new(&self.model, &self.config, &self.tokenizer, &self.device)
    }

    fn proposals(&self, Request { top_k, targets, .. }: &Request) -> Result<Proposals> {
        let found = targets.as_ref().map(|words| self.targets(words)).transpose()?;
        let targets = found.map(|found| found.into_iter().map(|target| target.id).collect());
        Ok(Proposals { top_k: *top_k, targets })
    }
}
