//! Numbers as text.

/// 26179 → `26,179`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

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
    fn digits_come_in_threes() {
        assert_eq!(
            [0, 999, 1000, 26_179, 1_000_000].map(thousands),
            ["0", "999", "1,000", "26,179", "1,000,000"]
        );
    }

    #[test]
    fn sizes_are_said_in_units_of_1024() {
        let sizes = [0., 1023., 1024., 1536. * 1024., 3e9, 1e18].map(size);
        let expected = ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "2.8 GiB", "909494.7 TiB"];
        assert_eq!(sizes, expected);
    }
}
