//! The text of tokens that come one after another.
//!
//! ```text
//! tokens     t₁ … t_a  |  t_{a+1} … t_b  |  t_{b+1} … t_n
//!            forgotten    given              new
//! new text = decode(t_{a+1} … t_n) behind decode(t_{a+1} … t_b)
//! ```
//!
//! A token has no text of its own: the first of a text loses its space, and a character may be several
//! tokens long. So it is decoded behind those that were given last, which end with a whole character, as
//! text-generation-inference does (<https://github.com/huggingface/text-generation-inference>).
//!
//! Cost: O(1) tokens are decoded for each, where decoding the whole text again would be O(n).

use super::{Specials, Tokenizer};
use crate::error::Result;

/// What stands for bytes that are no whole character yet.
const INCOMPLETE: char = '\u{FFFD}';

/// A text that grows by a token at a time. Special tokens are left out.
#[derive(Clone, Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Those that were given last, and the new ones.
    ids: Vec<u32>,
    /// How many of them were given.
    n_given: usize,
    /// Bytes of the new ones' text that are given already, because only the last character is not whole.
    given: usize,
}

impl<'a> TextStream<'a> {
    /// The text behind `prompt`.
    pub fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        Self { tokenizer, ids: prompt.to_vec(), n_given: prompt.len(), given: 0 }
    }

    /// Takes the next token, and gives what has become certain of the text.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.new_text()?;
        let certain = text.trim_end_matches(INCOMPLETE).len();
        let fresh = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given = self.given.max(certain);
        // Tokens without a text are no place to begin at: the next would be the first of a text.
        if certain == text.len() && !text.is_empty() {
            self.ids.drain(..self.n_given);
            (self.n_given, self.given) = (self.ids.len(), 0);
        }
        Ok(fresh)
    }

    /// At the end, what no token has made whole.
    pub fn rest(&self) -> Result<String> {
        Ok(self.new_text()?.get(self.given..).unwrap_or_default().to_owned())
    }

    fn new_text(&self) -> Result<String> {
        let (given, new) = self.ids.split_at(self.n_given);
        let before = self.tokenizer.decode(given, Specials::Skip)?;
        let all = self.tokenizer.decode(&self.ids, Specials::Skip)?;
        match all.strip_prefix(&before) {
            Some(text) => Ok(text.to_owned()),
            // A byte too many can break all characters that are written as bytes.
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

    /// As Llama and Gemma have it: words begin with `▁`, and what is no token is written as its bytes.
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

    /// What comes out token by token, and what the whole has behind the prompt.
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

    /// A special token has no text, and what follows it is not the first of a text.
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
