//! The checksum of a file: CRC-32 as in PNG and gzip.

use std::io::{self, Read};

use crc::{CRC_32_ISO_HDLC, Crc, Digest, Table};

/// A checksum that is computed piece by piece.
pub(crate) type Crc32 = Digest<'static, u32, Table<16>>;

pub(crate) static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);

/// The checksum of the bytes of `file` that are still to be read. It is read, not mapped: mapped pages would count as
/// memory of this process.
pub(super) fn rest_of(file: &mut impl Read) -> io::Result<u32> {
    let mut digest = CRC.digest();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finalize()),
            n => digest.update(&buffer[..n]),
        }
    }
}
