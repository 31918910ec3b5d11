//! Compressed files: a decompressing reader that counts and hashes the bytes on the disk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

use super::fingerprint::Fnv128;
use crate::error::{Error, Result};
use crate::storage::encoding::{Decoded, Encoding, Utf8Reader, not_text, text_of};

const BUFFER: usize = 1 << 18;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    /// `.gz` (RFC 1952)
    Gzip,
    /// `.zst` (RFC 8878)
    Zstandard,
}

impl Compression {
    /// The compression of a file with this name in lower case, and the name without the extension of the compression.
    pub(crate) fn from_name(name: &str) -> (&str, Self) {
        match name.rsplit_once('.') {
            Some((rest, "gz")) => (rest, Self::Gzip),
            Some((rest, "zst")) => (rest, Self::Zstandard),
            _ => (name, Self::None),
        }
    }

    /// The compression of a file that begins with these bytes.
    fn from_start(start: &[u8]) -> Self {
        match start {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Self::Zstandard,
            _ => Self::None,
        }
    }
}

/// Number and hash of the compressed bytes that have been read.
#[derive(Debug, Default)]
pub(crate) struct ReadProgress {
    bytes: AtomicU64,
    hash: Mutex<Fnv128>,
}

impl ReadProgress {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn hash(&self) -> u128 {
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

/// Opens a file. The progress advances as the reader is read.
pub(crate) fn open(
    path: &Path,
    compression: Compression,
) -> Result<(Box<dyn BufRead + Send>, Arc<ReadProgress>)> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let progress = Arc::new(ReadProgress::default());
    let file = BufReader::with_capacity(BUFFER, CountingFile { file, progress: progress.clone() });
    Ok((decompressed(file, compression), progress))
}

/// Opens a file of text, which the reader gives as UTF-8; the encoding is known as soon as a byte beyond ASCII is read.
///
/// # Errors
/// If it cannot be opened, or begins as no text does.
pub(crate) fn open_text(path: &Path, compression: Compression) -> Result<OpenText> {
    let (reader, progress) = open(path, compression)?;
    let encoding = Arc::new(OnceLock::new());
    let reader = Utf8Reader::new(path, reader, encoding.clone())?;
    Ok((Box::new(reader), progress, encoding))
}

/// A reader, its progress, and the encoding.
type OpenText = (Box<dyn BufRead + Send>, Arc<ReadProgress>, Arc<OnceLock<Encoding>>);

fn decompressed(
    file: impl BufRead + Send + 'static,
    compression: Compression,
) -> Box<dyn BufRead + Send> {
    match compression {
        Compression::None => Box::new(file),
        Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
        Compression::Zstandard => Box::new(BufReader::with_capacity(BUFFER, Zstandard::new(file))),
    }
}

/// The most bytes of a file that is read as a whole, decompressed: little data can decompress to very much.
pub(crate) const MAX_WHOLE: u64 = 1 << 31;

/// How many times its size a compressed file may decompress to, unless that is at most [`MAX_SMALL`] bytes. Text becomes
/// 3 to 10 times as long; only a file that repeats itself becomes more than 100 times as long.
const MAX_RATIO: u64 = 100;
/// The bytes that every compressed file may decompress to.
const MAX_SMALL: u64 = 64 << 20;

/// The text of the file in the setting `key`, read as a whole.
///
/// # Errors
/// If it cannot be read, is longer than 2 GiB, or than a compressed file of its size may be, or is no text.
pub(crate) fn decoded(key: &str, path: &Path) -> Result<Decoded> {
    let bytes = whole(path).map_err(|rule| {
        Error::config([key], format!("`{}` cannot be read: {rule}", path.display()))
    })?;
    Decoded::new(bytes).map_err(|what| not_text(path, what))
}

/// The text of a file, all of which must be characters, and its encoding; decompressed if its first bytes say that it is
/// compressed.
///
/// # Errors
/// If it cannot be read, is longer than 2 GiB, is no text, or has bytes that are no characters; then with the line.
pub fn text(path: &Path) -> Result<(String, Encoding)> {
    let bytes = whole(path);
    let bytes =
        bytes.map_err(|rule| Error::input(format!("cannot read `{}`: {rule}", path.display())))?;
    text_of(path, bytes)
}

/// All bytes of a file, decompressed if its first bytes say that it is compressed: at most 2 GiB.
pub(crate) fn whole(path: &Path) -> Result<Vec<u8>, String> {
    bytes(path, MAX_WHOLE)
}

fn bytes(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let told = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(told)?;
    // The size of a pipe is not known.
    let known = file.metadata().map_err(told)?;
    let of_size = known.is_file().then(|| known.len().saturating_mul(MAX_RATIO).max(MAX_SMALL));
    let mut file = BufReader::with_capacity(BUFFER, file);
    let compression = Compression::from_start(file.fill_buf().map_err(told)?);
    let of_size = of_size.filter(|&of_size| compression != Compression::None && of_size < limit);
    let limit = of_size.unwrap_or(limit);
    let mut bytes = Vec::new();
    let n = decompressed(file, compression).take(limit + 1).read_to_end(&mut bytes);
    if n.map_err(told)? as u64 > limit {
        let hint = match of_size {
            Some(_) => ", a hundred times as much as its compressed bytes: decompress it first",
            None => "",
        };
        return Err(format!("it has more than {} MiB of text{hint}", limit >> 20));
    }
    Ok(bytes)
}

/// The hash of the bytes of a file; `progress` receives their number so far.
pub(crate) fn hash(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<u128> {
    let (mut reader, read) = open(path, Compression::None)?;
    loop {
        let n = reader.fill_buf().map_err(Error::io("read", path))?.len();
        if n == 0 {
            return Ok(read.hash());
        }
        reader.consume(n);
        progress(read.bytes());
    }
}

struct CountingFile {
    file: File,
    progress: Arc<ReadProgress>,
}

impl Read for CountingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.progress.bytes.fetch_add(n as u64, Ordering::Relaxed);
        self.progress.hash.lock().unwrap_or_else(PoisonError::into_inner).write(&buffer[..n]);
        Ok(n)
    }
}

/// Decodes consecutive Zstandard frames (RFC 8878, §3.1) and verifies their optional checksums.
struct Zstandard<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstandard<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Starts the next frame that is not skippable; false at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstandard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let decoded = self.decoder.decode_blocks(&mut self.source, UptoBlocks(1));
                decoded.map_err(io::Error::other)?;
            }
            let n = self.decoder.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            if let Some(expected) = self.decoder.get_checksum_from_data()
                && self.decoder.get_calculated_checksum().is_some_and(|actual| actual != expected)
            {
                return Err(io::Error::other("the checksum of a frame is wrong"));
            }
            self.in_frame = false;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstandard(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn read(bytes: &[u8], compression: Compression) -> io::Result<(Vec<u8>, Arc<ReadProgress>)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let (mut reader, progress) = open(file.path(), compression).unwrap();
        let mut content = Vec::new();
        reader.read_to_end(&mut content)?;
        Ok((content, progress))
    }

    fn text() -> Vec<u8> {
        (0..40_000).flat_map(|n| format!("{n} ").into_bytes()).collect()
    }

    #[test]
    fn files_are_decompressed_and_what_is_on_the_disk_is_counted() {
        let text = text();
        let skipped = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for (bytes, compression) in [
            (text.clone(), Compression::None),
            (gzip(&text), Compression::Gzip),
            ([gzip(&text[..70_000]), gzip(&text[70_000..])].concat(), Compression::Gzip),
            (zstandard(&text), Compression::Zstandard),
            (
                [zstandard(&text[..70_000]), skipped, zstandard(&text[70_000..])].concat(),
                Compression::Zstandard,
            ),
        ] {
            let (content, progress) = read(&bytes, compression).unwrap();
            assert!(content == text, "{compression:?}");
            assert_eq!(progress.bytes(), bytes.len() as u64);
            let mut hash = Fnv128::default();
            hash.write(&bytes);
            assert_eq!(progress.hash(), hash.finish());
        }
    }

    #[test]
    fn what_is_cut_off_or_changed_is_an_error_wherever_it_is() {
        let text = text();
        for (whole, compression) in
            [(gzip(&text), Compression::Gzip), (zstandard(&text), Compression::Zstandard)]
        {
            for n in [1, 3, 7, whole.len() / 2, whole.len() - 5, whole.len() - 1] {
                assert!(read(&whole[..n], compression).is_err(), "{n} bytes of {compression:?}");
            }
            for at in (0..whole.len()).step_by(whole.len() / 40) {
                let mut changed = whole.clone();
                changed[at] ^= 0x15;
                // Some bytes have no effect, such as the time in a header; none may change the text.
                if let Ok((content, _)) = read(&changed, compression) {
                    assert!(content == text, "byte {at} of {compression:?}");
                }
            }
        }
    }

    #[test]
    fn a_file_is_read_whole_only_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        // Little data that decompress to much, under a name that does not say so.
        std::fs::write(&path, gzip(&vec![b' '; 3 << 20])).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 16);
        assert_eq!(bytes(&path, 3 << 20).unwrap().len(), 3 << 20);
        assert_eq!(bytes(&path, 2 << 20).unwrap_err(), "it has more than 2 MiB of text");
        // 600 KB once took 876 MB.
        std::fs::write(&path, gzip(&vec![b' '; 65 << 20])).unwrap();
        let error = whole(&path).unwrap_err();
        assert!(error.starts_with("it has more than 64 MiB of text, a hundred times"), "{error}");
        let error = decoded("task.data.path", &folder.path().join("b.csv")).unwrap_err();
        assert!(error.to_string().contains("b.csv` cannot be read: No such file"), "{error}");
    }
}
