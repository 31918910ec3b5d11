//! Incremental decoding: the text of tokens that arrive one by one.
//!
//! ```text
//! tokens     t₁ … t_a  |  t_{a+1} … t_b  |  t_{b+1} … t_n
//!            dropped      emitted            new
//! new text = decode(t_{a+1} … t_n) without its prefix decode(t_{a+1} … t_b)
//! ```
//!
//! A token cannot be decoded alone: the first token of a text loses its space, and a character may span several
//! tokens. Therefore new tokens are decoded together with the last emitted ones, which end with a complete
//! character, as in text-generation-inference (<https://github.com/huggingface/text-generation-inference>).
//!
//! Cost: each token decodes O(1) tokens; decoding the whole text again would be O(n).

use super::{Specials, Tokenizer};
use crate::error::Result;

/// The decoder's replacement for the bytes of an incomplete character.
const INCOMPLETE: char = '\u{FFFD}';

/// Decodes a growing text. Special tokens are left out.
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last emitted tokens, then the new ones.
    ids: Vec<u32>,
    /// The number of emitted tokens in `ids`.
    n_emitted: usize,
    /// Bytes of the new text that are emitted already: all but an incomplete character at its end.
    emitted: usize,
}

impl<'a> TextStream<'a> {
    /// Decodes the text after `prompt`.
    pub fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        Self { tokenizer, ids: prompt.to_vec(), n_emitted: prompt.len(), emitted: 0 }
    }

    /// Adds a token. Returns the text that has become final.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.new_text()?;
        let certain = text.trim_end_matches(INCOMPLETE).len();
        let new = text.get(self.emitted..certain).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(certain);
        // Tokens without a text are not dropped: the next one would be decoded as the first of a text.
        if certain == text.len() && !text.is_empty() {
            self.ids.drain(..self.n_emitted);
            (self.n_emitted, self.emitted) = (self.ids.len(), 0);
        }
        Ok(new)
    }

    /// The rest at the end: an incomplete character.
    pub fn rest(&self) -> Result<String> {
        Ok(self.new_text()?.get(self.emitted..).unwrap_or_default().to_owned())
    }

    fn new_text(&self) -> Result<String> {
        let (emitted, new) = self.ids.split_at(self.n_emitted);
        let before = self.tokenizer.decode(emitted, Specials::Skip)?;
        let all = self.tokenizer.decode(&self.ids, Specials::Skip)?;
        match all.strip_prefix(&before) {
            Some(text) => Ok(text.to_owned()),
            // An invalid byte can change how the decoder writes the bytes before it.
            None => self.tokenizer.decode(new, Specials::Skip),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::data::text::tokenizer::TokenizerConfig;

    const TEXT: &str = "The harbour wakes, one by one. 今日は雨です。naïve 🌧️☔ déjà vu \u{1F468}\u{200D}\u{1F469}  two";

    fn trained() -> Vec<Tokenizer> {
        let kinds = TokenizerConfig::KINDS.iter().map(|kind| kind.name);
        let kinds = kinds.filter(|kind| *kind != "file");
        let config = |kind| TokenizerConfig::default_of(kind).expect("a kind");
        let texts = || (0..11).map(|_| Ok(TEXT.to_owned()));
        kinds.map(|kind| Tokenizer::train(&config(kind), texts()).unwrap()).collect()
    }

    /// As in Llama and Gemma: words begin with `▁`, and text without a token is written as bytes.
    fn with_byte_fallback() -> Tokenizer {
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let tokens = ["<unk>", "▁", "t", "h", "e", "th", "the"].map(str::to_owned);
        let tokens = tokens.into_iter().chain(bytes);
        let vocab: serde_json::Map<String, Value> =
            tokens.enumerate().map(|(id, token)| (token, json!(id))).collect();
        let merges = [["t", "h"], ["th", "e"]];
        let json = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": null, "post_processor": null,
            "normalizer": { "type": "Sequence", "normalizers": [
                { "type": "Prepend", "prepend": "▁" },
                { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
            ] },
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
                { "type": "ByteFallback" },
                { "type": "Fuse" },
                { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
            ] },
            "model": {
                "type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": true,
                "unk_token": "<unk>",
            },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), "tokenizer.json".as_ref()).unwrap()
    }

    /// The streamed text, and the decoded whole after the prompt.
    fn streamed(tokenizer: &Tokenizer, ids: &[u32], n_prompt: usize) -> (String, String) {
        let (prompt, new) = ids.split_at(n_prompt);
        let mut stream = TextStream::after(tokenizer, prompt);
        let pieces: Vec<String> = new.iter().map(|&id| stream.push(id).unwrap()).collect();
        let streamed = pieces.concat() + &stream.rest().unwrap();
        let whole = tokenizer.decode(ids, Specials::Skip).unwrap();
        let before = tokenizer.decode(prompt, Specials::Skip).unwrap();
        (streamed, whole.strip_prefix(&before).expect("the prompt").to_owned())
    }

    #[test]
    fn what_comes_token_by_token_is_the_text_of_the_whole() {
        for tokenizer in trained().into_iter().chain([with_byte_fallback()]) {
            let ids = tokenizer.encode_plain(TEXT).unwrap();
            let prompt = tokenizer.encode_plain("The harbour").unwrap().len();
            for n_prompt in [0, prompt] {
                let (streamed, whole) = streamed(&tokenizer, &ids, n_prompt);
                assert_eq!(streamed, whole);
            }
        }
    }

    /// A special token has no text, and the token after it is not the first of a text.
    #[test]
    fn what_is_left_out_takes_no_space_with_it() {
        let [wordpiece, ..] = &trained()[..] else { panic!("WordPiece is the first") };
        let unknown = wordpiece.special().unknown.expect("[UNK]");
        let mut ids = wordpiece.encode_plain("one by one").unwrap();
        ids.insert(2, unknown);
        let (streamed, whole) = streamed(wordpiece, &ids, 1);
        assert_eq!((streamed.as_str(), whole.as_str()), (" by one", " by one"));
    }

    #[test]
    fn no_part_of_a_character_is_given_and_no_more_is_kept_than_the_last_one() {
        let byte = Tokenizer::train(&TokenizerConfig::Byte, std::iter::empty()).unwrap();
        for tokenizer in [byte, with_byte_fallback()] {
            let mut stream = TextStream::after(&tokenizer, &[]);
            for id in tokenizer.encode_plain(&"雨".repeat(101)).unwrap() {
                let text = stream.push(id).unwrap();
                assert!(!text.contains(INCOMPLETE), "{text}");
                assert!(stream.ids.len() <= 8, "{} tokens", stream.ids.len());
            }
            let ids = tokenizer.encode_plain("雨").unwrap();
            let (&last, first) = ids[ids.len() - "雨".len()..].split_last().expect("bytes");
            for &id in first {
                assert_eq!(stream.push(id).unwrap(), "");
            }
            assert!(stream.rest().unwrap().starts_with(INCOMPLETE));
            assert_eq!(stream.push(last).unwrap(), "雨");
        }
    }
}
