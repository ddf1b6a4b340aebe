//! Sizes as people write them.

/// Reads `"1GiB"`, `"512 MB"`, `"4096"`: a number, perhaps with a fraction, and a unit. Units are B, KB, MB, GB, TB
/// (powers of 1000), KiB, MiB, GiB, TiB and K, M, G, T (powers of 1024), in any case.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let (power, base) = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => (0, 1024.0),
        "k" | "kib" => (1, 1024.0),
        "m" | "mib" => (2, 1024.0),
        "g" | "gib" => (3, 1024.0),
        "t" | "tib" => (4, 1024.0),
        "kb" => (1, 1000.0),
        "mb" => (2, 1000.0),
        "gb" => (3, 1000.0),
        "tb" => (4, 1000.0),
        _ => return None,
    };
    let bytes = number * f64::powi(base, power);
    // Above this a sum of sizes could wrap; no machine has as much.
    (bytes.is_finite() && bytes < 9.0e18).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        assert_eq!(parse("1GiB"), Some(1 << 30));
        assert_eq!(parse(" 512 MB "), Some(512_000_000));
        assert_eq!(parse("1.5k"), Some(1536));
        assert_eq!(parse("4096"), Some(4096));
        for bad in ["", "lots", "GiB", "-1", "1XB", "1e400", "99999999TiB", "1.2.3"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
