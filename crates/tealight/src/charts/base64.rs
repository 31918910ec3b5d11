//! Bytes as text (RFC 4648).

use std::fmt::{self, Write as _};

/// Writes bytes in base 64, with padding.
pub(crate) struct Base64<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Base64<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for bytes in self.0.chunks(3) {
            let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for at in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
                f.write_char(if at > bytes.len() { '=' } else { char::from(digit) })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_rfc_4648_says() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let written = texts.map(|text| Base64(text.as_bytes()).to_string());
        assert_eq!(written, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
