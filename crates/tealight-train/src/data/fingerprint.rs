//! FNV-1a (Fowler, Noll & Vo 1991): a hash that is the same on every machine and in every version.

/// The hash of the bytes.
pub fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
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
}
