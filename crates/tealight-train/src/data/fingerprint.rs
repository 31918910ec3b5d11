//! FNV-1a (Fowler, Noll & Vo 1991): a hash that is the same on every machine and in every version of Tealight.

/// The 64-bit hash of `bytes`.
pub fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The 64-bit hash of texts, each behind its length in eight bytes, so that no two lists of texts are hashed alike by
/// construction.
#[derive(Debug, Default)]
pub(crate) struct TextHash(Vec<u8>);

impl TextHash {
    /// Adds a text.
    pub(crate) fn add(&mut self, text: &str) {
        self.0.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    /// The hash of all texts so far.
    pub(crate) fn finish(self) -> u64 {
        fnv_1a(self.0)
    }
}

/// The 128-bit hash, computed incrementally. Two random files collide with probability 2⁻¹²⁸; the hash is not
/// cryptographic, so collisions can be constructed.
#[derive(Clone, Copy, Debug)]
pub struct Fnv128(u128);

impl Default for Fnv128 {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv128 {
    /// The FNV prime, 2⁸⁸ + 13B₁₆.
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;

    /// Adds `bytes`.
    pub fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(Self::PRIME);
        }
    }

    /// The hash of `bytes`.
    pub fn hash(bytes: &[u8]) -> u128 {
        let mut hash = Self::default();
        hash.write(bytes);
        hash.finish()
    }

    /// The hash of all bytes so far.
    pub fn finish(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // Test vectors of <http://www.isthe.com/chongo/tech/comp/fnv/>.
        assert_eq!(fnv_1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv_1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_long_hash_is_the_published_one_however_the_bytes_are_cut() {
        let hash = |pieces: &[&[u8]]| {
            let mut hash = Fnv128::default();
            for piece in pieces {
                hash.write(piece);
            }
            hash.finish()
        };
        assert_eq!(hash(&[]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(&[b"a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash(&[b"foo", b"", b"bar"]), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
