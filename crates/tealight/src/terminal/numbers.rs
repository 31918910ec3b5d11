//! Numbers formatted for tables and messages.

/// Bytes in a mebibyte.
pub(crate) const MEBIBYTE: f64 = 1_048_576.;

/// `1.5 GiB`
pub(crate) fn format_bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (bytes.max(0.), 0);
    while number >= 1024. && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1024., unit + 1);
    }
    if unit == 0 { format!("{number:.0} bytes") } else { format!("{number:.1} {}", UNITS[unit]) }
}

/// `1 run`, `2 runs`
pub(crate) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// `42.0 s`, `12 min`, `3.5 h`
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120. => format!("{s:.1} s"),
        s if s < 7200. => format!("{:.0} min", s / 60.),
        s => format!("{:.1} h", s / 3600.),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_of_1024() {
        let sizes = [0., 1023., 1024., 1536. * 1024., 3e9, 1e18].map(format_bytes);
        let expected = ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "2.8 GiB", "909494.7 TiB"];
        assert_eq!(sizes, expected);
    }
}
