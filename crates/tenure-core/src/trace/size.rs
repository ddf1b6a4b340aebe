//! Sizes as people write them: `"1GiB"`, `"512 MiB"`, `"1.5GB"`, `"80%"`, `"1048576"`.
//!
//! Units with an `i` count in powers of 1024, those without in powers of 1000. Single letters (`"4G"`) are refused: half
//! of the world's tools mean one thing by them and half the other, and a pool that is 7 % too small fails late.

use crate::error::{Error, Result};

/// A size as it was written: a number of bytes, or a share of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many millionths of the device's memory: `"80%"` is 800 000.
    Share(u32),
}

/// The units that are understood and their bytes.
const UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("b", 1),
    ("bytes", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl Size {
    /// Reads a size. Case and space do not matter.
    ///
    /// # Errors
    /// [`Error::Invalid`] that repeats the text and says what is understood.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "{:?} is not a size: {why}. Write bytes (1048576), a unit (512MiB, 1.5GiB, 2GB) or a share of the device's \
                 memory (80%)",
                text.chars().take(40).collect::<String>()
            ))
        };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number = number.replace('_', "");
        if number.is_empty() {
            return Err(wrong(if unit.starts_with('-') {
                "it is negative"
            } else if unit.is_empty() {
                "it is empty"
            } else {
                "it does not start with a number"
            }));
        }
        let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
        if part.contains('.') || (whole.is_empty() && part.is_empty()) {
            return Err(wrong("the number has two points or none of its digits"));
        }
        // More than nine digits after the point say nothing about bytes.
        let part = &part[..part.len().min(9)];
        let scale = 10_u128.pow(part.len() as u32);
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong("it is too large"))? };
        let part: u128 = if part.is_empty() { 0 } else { part.parse().map_err(|_| wrong("it is too large"))? };
        let scaled =
            whole.checked_mul(scale).and_then(|n| n.checked_add(part)).ok_or_else(|| wrong("it is too large"))?;

        let unit = unit.trim().to_ascii_lowercase();
        if unit == "%" {
            let millionths = scaled * 10_000 / scale;
            if millionths > 1_000_000 {
                return Err(wrong("it is more than 100%"));
            }
            return Ok(Self::Share(millionths as u32));
        }
        let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(wrong(match unit.as_str() {
                "k" | "m" | "g" | "t" => "a single letter can mean powers of 1000 or of 1024",
                _ => "the unit is unknown",
            }));
        };
        if scale != 1 && *bytes == 1 {
            return Err(wrong("a part of a byte cannot be had"));
        }
        let total = scaled.checked_mul(u128::from(*bytes)).ok_or_else(|| wrong("it is too large"))? / scale;
        u64::try_from(total).map(Self::Bytes).map_err(|_| wrong("it is too large"))
    }

    /// The size in bytes on a device with `total` bytes of memory, rounded down.
    #[must_use]
    pub fn resolve(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(millionths) => (u128::from(total) * u128::from(millionths) / 1_000_000) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match Size::parse(text) {
            Ok(Size::Bytes(n)) => n,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn numbers_and_units() {
        assert_eq!(bytes("0"), 0);
        assert_eq!(bytes("1048576"), 1 << 20);
        assert_eq!(bytes("1_000"), 1000);
        assert_eq!(bytes("512MiB"), 512 << 20);
        assert_eq!(bytes(" 1 gib "), 1 << 30);
        assert_eq!(bytes("1.5GiB"), 3 << 29);
        assert_eq!(bytes("2GB"), 2_000_000_000);
        assert_eq!(bytes(".5KiB"), 512);
        assert_eq!(bytes("18446744073709551615"), u64::MAX);
    }

    #[test]
    fn shares() {
        assert_eq!(Size::parse("80%").unwrap().resolve(1000), 800);
        assert_eq!(Size::parse("12.5 %").unwrap().resolve(1 << 20), 1 << 17);
        assert_eq!(Size::parse("100%").unwrap().resolve(u64::MAX), u64::MAX);
        assert_eq!(Size::Bytes(7).resolve(3), 7);
    }

    #[test]
    fn what_is_not_a_size_is_named() {
        for (text, part) in [
            ("lots", "does not start with a number"),
            ("", "empty"),
            ("-1", "negative"),
            ("-1GiB", "negative"),
            ("4G", "single letter"),
            ("4 parsecs", "unit is unknown"),
            ("1.2.3MiB", "two points"),
            (".", "two points"),
            ("1.5", "part of a byte"),
            ("101%", "more than 100%"),
            ("99999999999999999999999TiB", "too large"),
            ("99999999999999999999999999999999999999999999", "too large"),
            ("18446744073709551616", "too large"),
            ("1e9", "unit is unknown"),
            ("0x10", "unit is unknown"),
        ] {
            let error = Size::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains("512MiB"), "{text}: says what is understood: {error}");
        }
    }
}
