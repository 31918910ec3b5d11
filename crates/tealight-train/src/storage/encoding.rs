//! How a text is written as bytes: UTF-8, UTF-16 with a byte order mark, or Windows-1252. Bytes that are no text are
//! named by what they begin as.
//!
//! Windows-1252 contains ISO 8859-1. As nearly every sequence of bytes is Windows-1252, too, a text counts as such only
//! if it looks like a Western European one (`looks_western`); otherwise its bytes are faults.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};

/// How a text is written as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8, with or without a byte order mark.
    Utf8,
    /// UTF-16, the low byte first.
    Utf16Le,
    /// UTF-16, the high byte first.
    Utf16Be,
    /// Windows-1252.
    Windows1252,
}

impl Encoding {
    /// What a user should know: `read as windows-1252`; nothing of UTF-8.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Utf8 => None,
            Self::Utf16Le | Self::Utf16Be => Some("read as UTF-16"),
            Self::Windows1252 => Some("read as windows-1252, because it is not UTF-8"),
        }
    }

    /// The encoding that a byte order mark names, and the length of the mark.
    fn marked(start: &[u8]) -> Option<(Self, usize)> {
        match start {
            [0xEF, 0xBB, 0xBF, ..] => Some((Self::Utf8, 3)),
            [0xFF, 0xFE, ..] => Some((Self::Utf16Le, 2)),
            [0xFE, 0xFF, ..] => Some((Self::Utf16Be, 2)),
            _ => None,
        }
    }

    fn unit(self, pair: [u8; 2]) -> u16 {
        if self == Self::Utf16Be { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
    }
}

/// A text, and what is wrong with its bytes.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Without byte order mark; `\u{FFFD}` in place of what is no character.
    pub text: String,
    /// How it is written.
    pub encoding: Encoding,
    /// The first fault of each line with one, by the line counted from 1.
    pub faults: BTreeMap<usize, String>,
}

impl Decoded {
    /// The text of `bytes`.
    ///
    /// # Errors
    /// If they are no text: what they are.
    pub fn new(bytes: Vec<u8>) -> Result<Self, &'static str> {
        let (encoding, n_mark) = Encoding::marked(&bytes).unwrap_or((Encoding::Utf8, 0));
        if encoding != Encoding::Utf8 {
            return Ok(Self::of_utf_16(encoding, &bytes[n_mark..]));
        }
        if let Some(what) = binary(&bytes) {
            return Err(what);
        }
        let faults = BTreeMap::new();
        match String::from_utf8(bytes) {
            Ok(mut text) => {
                text.drain(..n_mark);
                Ok(Self { text, encoding, faults })
            }
            Err(error) if n_mark == 0 && looks_western(error.as_bytes()) => {
                let text = error.as_bytes().iter().map(|&byte| windows_1252(byte)).collect();
                Ok(Self { text, encoding: Encoding::Windows1252, faults })
            }
            Err(error) => Ok(Self::of_utf_8(&error.as_bytes()[n_mark..])),
        }
    }

    fn of_utf_8(bytes: &[u8]) -> Self {
        let mut decoded = Self::empty(Encoding::Utf8);
        let (mut line, mut column) = (1, 1);
        for chunk in bytes.utf8_chunks() {
            decoded.text.push_str(chunk.valid());
            line += chunk.valid().matches('\n').count();
            column = match chunk.valid().rfind('\n') {
                Some(at) => chunk.valid().len() - at,
                None => column + chunk.valid().len(),
            };
            if let Some(byte) = chunk.invalid().first() {
                decoded.text.push(char::REPLACEMENT_CHARACTER);
                let fault = || {
                    format!(
                        "this is not UTF-8: byte {column} of the line is {byte:#04X}; `iconv -f ENCODING -t UTF-8` converts \
                         a text"
                    )
                };
                decoded.faults.entry(line).or_insert_with(fault);
                column += chunk.invalid().len();
            }
        }
        decoded
    }

    fn of_utf_16(encoding: Encoding, bytes: &[u8]) -> Self {
        let mut decoded = Self::empty(encoding);
        let (pairs, rest) = bytes.as_chunks::<2>();
        let mut line = 1;
        for (at, unit) in
            char::decode_utf16(pairs.iter().map(|&pair| encoding.unit(pair))).enumerate()
        {
            let character = unit.unwrap_or_else(|error| {
                let unit = error.unpaired_surrogate();
                let fault = || {
                    format!(
                        "this is not UTF-16: character {} is {unit:#06X}, half of a pair",
                        at + 1
                    )
                };
                decoded.faults.entry(line).or_insert_with(fault);
                char::REPLACEMENT_CHARACTER
            });
            line += usize::from(character == '\n');
            decoded.text.push(character);
        }
        if !rest.is_empty() {
            let fault = "this is not UTF-16: the last character has one byte".to_owned();
            decoded.faults.entry(line).or_insert(fault);
        }
        decoded
    }

    fn empty(encoding: Encoding) -> Self {
        Self { text: String::new(), encoding, faults: BTreeMap::new() }
    }
}

/// The text of a file, all of which must be characters.
///
/// # Errors
/// If the bytes are no text, or one of them is part of no character; then with its line.
pub fn text_of(path: &Path, bytes: Vec<u8>) -> Result<(String, Encoding)> {
    let decoded = Decoded::new(bytes).map_err(|what| not_text(path, what))?;
    match decoded.faults.into_iter().next() {
        Some((line, fault)) => Err(Error::line(path, line, fault)),
        None => Ok((decoded.text, decoded.encoding)),
    }
}

/// That the file at `path` is no text, and `what` it is.
pub(crate) fn not_text(path: &Path, what: &str) -> Error {
    Error::input(format!("`{}` is not text: {what}", path.display()))
}

/// How files begin that are no text. Letters alone are a word that a text may begin with: each has a byte of no text, or
/// so much of a version or of a header that no text has it.
const SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x7FELF", "it begins as an ELF program"),
    (b"\x89PNG\r\n", "it begins as a PNG picture"),
    (b"\xFF\xD8\xFF", "it begins as a JPEG picture"),
    (b"GIF87a", "it begins as a GIF picture"),
    (b"GIF89a", "it begins as a GIF picture"),
    (b"PK\x03\x04", "it begins as a zip archive, as .xlsx, .docx and .npz files do"),
    (b"PK\x05\x06", "it begins as an empty zip archive"),
    (b"\x1F\x8B", "it begins as a gzip file, whose name must end in .gz"),
    (b"\x28\xB5\x2F\xFD", "it begins as a Zstandard file, whose name must end in .zst"),
    (b"\xFD7zXZ\0", "it begins as an xz file"),
    (b"7z\xBC\xAF\x27\x1C", "it begins as a 7z archive"),
    (b"%PDF-1.", "it begins as a PDF document"),
    (b"%PDF-2.", "it begins as a PDF document"),
    (b"\xD0\xCF\x11\xE0", "it begins as a document of an older Office, as .xls and .doc files do"),
    (b"SQLite format 3\0", "it begins as an SQLite database"),
    // The header of the first page, in the compact protocol of Thrift, begins with a field of 32 bits.
    (b"PAR1\x15", "it begins as a Parquet table"),
    (b"ARROW1\0", "it begins as an Arrow table"),
    (b"\x93NUMPY", "it begins as an array of NumPy"),
    (b"\x89HDF", "it begins as an HDF5 file"),
];

/// What bytes are that are no text; `None` if they may be one.
fn binary(bytes: &[u8]) -> Option<&'static str> {
    let known = SIGNATURES.iter().find(|(start, _)| bytes.starts_with(start));
    let bzip2 = || is_bzip2(bytes).then_some("it begins as a bzip2 file");
    let nul = || bytes.contains(&0).then_some("it has bytes that are 0");
    known.map(|(_, what)| *what).or_else(bzip2).or_else(nul)
}

/// `BZh`, the size of blocks as a digit, and the digits of π or of √π, which begin a block or the end.
fn is_bzip2(bytes: &[u8]) -> bool {
    const BLOCK: &[u8] = &[0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
    const END: &[u8] = &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90];
    let has_start = bytes.starts_with(b"BZh") && bytes.get(3).is_some_and(u8::is_ascii_digit);
    has_start && bytes.get(4..10).is_some_and(|magic| [BLOCK, END].contains(&magic))
}

/// Whether bytes that are not UTF-8 are probably a Western European text in Windows-1252: hardly a sequence of UTF-8,
/// no byte that such texts do not have, at least three letters of ASCII for each byte beyond it, and in no line four letters
/// beyond it in a row. Of texts in other alphabets, most letters are beyond ASCII, and stand side by side.
fn looks_western(bytes: &[u8]) -> bool {
    let is_unusual =
        |byte: &u8| matches!(byte, 0x81 | 0x83 | 0x88 | 0x8D | 0x8F | 0x90 | 0x98 | 0x9D | 0xFF);
    let n_beyond = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    let n_letters = bytes.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    // Marks such as quotes are below the letters.
    let has_foreign_word = bytes.split(|&byte| byte < 0xC0).any(|letters| letters.len() > 3);
    if bytes.iter().any(is_unusual) || has_foreign_word || 3 * n_beyond > n_letters {
        return false;
    }
    let (mut n_utf_8, mut n_others) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        n_utf_8 += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        n_others += usize::from(!chunk.invalid().is_empty());
    }
    // Two letters in a row are a sequence of UTF-8 by chance.
    n_utf_8 * 10 <= n_others
}

/// The character of a byte in Windows-1252, as <https://encoding.spec.whatwg.org/#windows-1252> has it.
fn windows_1252(byte: u8) -> char {
    const FROM_0X80: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž',
        '\u{8F}', '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}',
        'ž', 'Ÿ',
    ];
    match byte {
        0x80..=0x9F => FROM_0X80[usize::from(byte - 0x80)],
        _ => char::from(byte),
    }
}

/// A reader of text that gives UTF-8 whatever it is written in. The encoding is decided where the first byte beyond
/// ASCII is read; bytes that are neither encoding pass as they are, and are not UTF-8.
pub(crate) struct Utf8Reader<R> {
    source: R,
    encoding: Arc<OnceLock<Encoding>>,
    /// Converted bytes, of which those from `at` on have not been read.
    converted: Vec<u8>,
    at: usize,
    /// Of UTF-16: the bytes of an incomplete character.
    rest: Vec<u8>,
}

impl<R: BufRead> Utf8Reader<R> {
    /// Reads the text at `path` from `source`; `encoding` is set when it is decided.
    ///
    /// # Errors
    /// If it begins as no text does.
    pub(crate) fn new(
        path: &Path,
        mut source: R,
        encoding: Arc<OnceLock<Encoding>>,
    ) -> Result<Self> {
        // A fault of the disk or of the compression is told by the first reading, with its line.
        let start = source.fill_buf().unwrap_or_default();
        let mark = Encoding::marked(start);
        if !matches!(mark, Some((Encoding::Utf16Le | Encoding::Utf16Be, _)))
            && let Some(what) = binary(start)
        {
            return Err(not_text(path, what));
        }
        if let Some((marked, n)) = mark {
            encoding.get_or_init(|| marked);
            source.consume(n);
        }
        Ok(Self { source, encoding, converted: Vec::new(), at: 0, rest: Vec::new() })
    }

    /// Converts the next bytes; there are none at the end.
    fn convert(&mut self, encoding: Encoding) -> io::Result<()> {
        (self.at, self.converted) = (0, Vec::new());
        let bytes = self.source.fill_buf()?;
        let n = bytes.len();
        let text: String = if encoding == Encoding::Windows1252 {
            bytes.iter().map(|&byte| windows_1252(byte)).collect()
        } else {
            let is_end = n == 0;
            self.rest.extend_from_slice(bytes);
            let (pairs, odd) = self.rest.as_chunks::<2>();
            let mut units: Vec<u16> = pairs.iter().map(|&pair| encoding.unit(pair)).collect();
            let mut rest = odd.to_vec();
            // The first half of a pair waits for the second.
            if let (false, Some(0xD800..=0xDBFF)) = (is_end, units.last()) {
                rest.splice(0..0, pairs[pairs.len() - 1]);
                units.pop();
            }
            let text = String::from_utf16(&units);
            self.rest = rest;
            if is_end && !self.rest.is_empty() {
                return Err(io::Error::other(
                    "this is not UTF-16: the last character has one byte",
                ));
            }
            text.map_err(|_| io::Error::other("this is not UTF-16: half of a pair stands alone"))?
        };
        self.source.consume(n);
        self.converted = text.into_bytes();
        Ok(())
    }
}

impl<R: BufRead> BufRead for Utf8Reader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.encoding.get().is_none() {
            let bytes = self.source.fill_buf()?;
            if !bytes.is_ascii() {
                // The last character may be cut off.
                let may_be_utf_8 = str::from_utf8(bytes)
                    .map_or_else(|error| error.error_len().is_none(), |_| true);
                let is_western = !may_be_utf_8 && looks_western(bytes);
                let decided = if is_western { Encoding::Windows1252 } else { Encoding::Utf8 };
                self.encoding.get_or_init(|| decided);
            }
        }
        match self.encoding.get().copied() {
            None | Some(Encoding::Utf8) => self.source.fill_buf(),
            Some(encoding) => {
                // Half a character makes no byte: more is read, unless that was the end.
                while self.at == self.converted.len() && !self.source.fill_buf()?.is_empty() {
                    self.convert(encoding)?;
                }
                if self.at == self.converted.len() && !self.rest.is_empty() {
                    self.convert(encoding)?;
                }
                Ok(&self.converted[self.at..])
            }
        }
    }

    fn consume(&mut self, n: usize) {
        match self.encoding.get() {
            None | Some(Encoding::Utf8) => self.source.consume(n),
            Some(_) => self.at += n,
        }
    }
}

impl<R: BufRead> Read for Utf8Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buffer)?;
        self.consume(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRENCH: &str = "L’été dernier, nous avons visité « le château » près de la rivière…\nCœur à prendre : 5 €\n";

    fn as_windows_1252(text: &str) -> Vec<u8> {
        let byte = |c| (0..=255).find(|&byte| windows_1252(byte) == c).unwrap();
        text.chars().map(byte).collect()
    }

    fn as_utf_16(text: &str, to_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        ['\u{FEFF}']
            .into_iter()
            .chain(text.chars())
            .collect::<String>()
            .encode_utf16()
            .flat_map(to_bytes)
            .collect()
    }

    /// The text by way of both readers; the second gets two bytes at a time, and then a few more.
    fn read(bytes: &[u8]) -> [Result<(String, Encoding), String>; 2] {
        let path = Path::new("a.txt");
        let whole = text_of(path, bytes.to_vec()).map_err(|error| error.to_string());
        let decided = Arc::new(OnceLock::new());
        let source = io::BufReader::with_capacity(63, bytes);
        let streamed = Utf8Reader::new(path, source, decided.clone());
        let streamed = streamed.map_err(|error| error.to_string()).and_then(|mut reader| {
            let mut text = String::new();
            reader.read_to_string(&mut text).map_err(|error| error.to_string())?;
            Ok((text, decided.get().copied().unwrap_or(Encoding::Utf8)))
        });
        [whole, streamed]
    }

    #[test]
    fn a_text_is_the_same_in_every_encoding() {
        let text = FRENCH.repeat(40);
        for (bytes, encoding) in [
            (text.clone().into_bytes(), Encoding::Utf8),
            (format!("\u{FEFF}{text}").into_bytes(), Encoding::Utf8),
            (as_utf_16(&text, u16::to_le_bytes), Encoding::Utf16Le),
            (as_utf_16(&text, u16::to_be_bytes), Encoding::Utf16Be),
            (as_windows_1252(&text), Encoding::Windows1252),
        ] {
            for read in read(&bytes) {
                assert!(read == Ok((text.clone(), encoding)), "{encoding:?} {read:?}");
            }
        }
        // What is UTF-8 by chance, in a long text.
        let mixed = format!("{text}Ã© ");
        assert_eq!(read(&as_windows_1252(&mixed))[0], Ok((mixed, Encoding::Windows1252)));
        // Pairs of surrogates at every place of the buffer.
        let smiles = "a😀晴".repeat(50);
        for shift in 0..4 {
            let text = "x".repeat(shift) + &smiles;
            for read in read(&as_utf_16(&text, u16::to_le_bytes)) {
                assert_eq!(read, Ok((text.clone(), Encoding::Utf16Le)));
            }
        }
    }

    #[test]
    fn other_alphabets_are_not_taken_for_windows_1252() {
        // "テスト" in Shift JIS, "Привет" in Windows-1251, "你好" in GBK, UTF-8 that is cut off, a stray byte.
        let sjis: &[u8] = b"\x83\x65\x83\x58\x83\x67";
        let (cyrillic, gbk): (&[u8], &[u8]) = (b"\xCF\xF0\xE8\xE2\xE5\xF2", b"\xC4\xE3\xBA\xC3");
        for bytes in
            [sjis, cyrillic, gbk, "é and cut off é".as_bytes().split_last().unwrap().1, b"ab\xFFcd"]
        {
            let decoded = Decoded::new(bytes.to_vec()).unwrap();
            assert_eq!((decoded.encoding, decoded.faults.len()), (Encoding::Utf8, 1), "{bytes:?}");
            let [whole, streamed] = read(bytes);
            assert!(whole.is_err() && streamed.is_err(), "{whole:?} {streamed:?}");
        }
    }

    /// They were read as windows-1252, because most of the text is English.
    #[test]
    fn some_lines_in_another_alphabet_are_faults() {
        let english = "a line of an English text,neg\n".repeat(20).into_bytes();
        let russian = b"\xCF\xF0\xE8\xE2\xE5\xF2, \xEC\xE8\xF0,pos\n";
        let decoded = Decoded::new([&english[..], russian].concat()).unwrap();
        assert_eq!(decoded.encoding, Encoding::Utf8);
        assert_eq!(decoded.faults.keys().collect::<Vec<_>>(), [&21]);
        let french = as_windows_1252("Cœur à louer : 5 €,neg\n« Où ça ? »,pos\n");
        let decoded = Decoded::new([&english[..], &french].concat()).unwrap();
        assert_eq!(decoded.encoding, Encoding::Windows1252);
    }

    #[test]
    fn a_fault_is_named_with_its_line_and_byte() {
        let of = |bytes: &[u8]| read(bytes)[0].clone().unwrap_err();
        let rule =
            "`a.txt`, line 2: this is not UTF-8: byte 4 of the line is 0xFF; `iconv -f ENCODING";
        assert!(of(b"one\ntwo\xFF\xFE").starts_with(rule));
        let cut_off = of("é\né".as_bytes().split_last().unwrap().1);
        assert!(
            cut_off.contains("line 2: this is not UTF-8: byte 1 of the line is 0xC3"),
            "{cut_off}"
        );
        let odd = "`a.txt`, line 2: this is not UTF-16: the last character has one byte";
        assert_eq!(of(b"\xFF\xFEa\0\n\0b"), odd);
        let half = of(b"\xFF\xFEa\0\x00\xD8b\0");
        assert!(half.contains("character 2 is 0xD800, half of a pair"), "{half}");
    }

    #[test]
    fn a_word_with_the_letters_of_a_signature_is_text() {
        for text in
            ["BZh is a format,x", "BZh9,x", "PAR1 was late,x", "GIF8 pictures,x", "%PDF- is a mark"]
        {
            for read in read(text.as_bytes()) {
                assert_eq!(read, Ok((text.to_owned(), Encoding::Utf8)));
            }
        }
    }

    #[test]
    fn what_is_no_text_is_named_by_its_beginning() {
        for (bytes, what) in [
            (&b"\x7FELF\x02\x01"[..], "it begins as an ELF program"),
            (b"\x89PNG\r\n\x1A\n", "it begins as a PNG picture"),
            (b"PK\x03\x04abc", "it begins as a zip archive"),
            (b"PAR1\x15\x04", "it begins as a Parquet table"),
            (b"BZh91AY&SYabc", "it begins as a bzip2 file"),
            (b"BZh9\x17rE8P\x90abc", "it begins as a bzip2 file"),
            (b"GIF89a\x01", "it begins as a GIF picture"),
            (b"%PDF-1.7", "it begins as a PDF document"),
            (b"text with a \0", "it has bytes that are 0"),
        ] {
            for read in read(bytes) {
                let error = read.unwrap_err();
                assert!(error.starts_with(&format!("`a.txt` is not text: {what}")), "{error}");
            }
        }
    }
}
