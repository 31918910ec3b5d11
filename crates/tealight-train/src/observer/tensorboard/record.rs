//! The TFRecord format: a sequence of messages in a file
//! (<https://www.tensorflow.org/tutorials/load_data/tfrecord>).
//!
//! ```text
//! length u64 | masked CRC-32C of the length u32 | message | masked CRC-32C of the message u32
//! masked(crc) = ((crc >> 15) | (crc << 17)) + 0xa282ead8          all little-endian
//! ```

use crc::{CRC_32_ISCSI, Crc, Table};

/// CRC-32C (Castagnoli).
const CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// Encodes a message as a record.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(message.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(message);
    record.extend_from_slice(&masked(message).to_le_bytes());
    record
}

fn masked(bytes: &[u8]) -> u32 {
    CASTAGNOLI.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Decodes the messages of a file and checks their checksums.
    pub(in super::super) fn read(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_at(8);
            let (checksum, rest) = rest.split_at(4);
            assert_eq!(checksum, masked(length).to_le_bytes());
            let length = u64::from_le_bytes(length.try_into().unwrap());
            let (message, rest) = rest.split_at(length as usize);
            let (checksum, rest) = rest.split_at(4);
            assert_eq!(checksum, masked(message).to_le_bytes());
            messages.push(message.to_vec());
            bytes = rest;
        }
        messages
    }

    #[test]
    fn the_checksum_is_that_of_rfc_3720() {
        // Appendix B.4: 32 bytes of zeros, and of ones.
        assert_eq!(CASTAGNOLI.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CASTAGNOLI.checksum(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn records_are_read_back() {
        let messages = [vec![], vec![7], vec![3; 1000]];
        let file: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
        assert_eq!(read(&file), messages);
    }
}
