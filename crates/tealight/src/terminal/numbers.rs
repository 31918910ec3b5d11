//! Numbers as text.

/// `1.5 GiB`
pub(crate) fn size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (bytes.max(0.), 0);
    while number >= 1024. && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1024., unit + 1);
    }
    if unit == 0 { format!("{number:.0} bytes") } else { format!("{number:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_units_of_1024() {
        let sizes = [0., 1023., 1024., 1536. * 1024., 3e9, 1e18].map(size);
        let expected = ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "2.8 GiB", "909494.7 TiB"];
        assert_eq!(sizes, expected);
    }
}
