//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A number of bytes that can be read from text and shown to people.
///
/// `B`, `kB`, `MB`, `GB`, `TB` are powers of 1000 and `KiB`, `MiB`, `GiB`, `TiB` powers of 1024, in any case and with or
/// without a space; a bare number is bytes. A percentage needs to know of what: [`Bytes::parse_of`].
///
/// # Examples
/// ```
/// use tenure::Bytes;
///
/// let size: Bytes = "1.5 GiB".parse()?;
/// assert_eq!(size.get(), 3 << 29);
/// assert_eq!(Bytes::parse_of("80%", 1000)?.get(), 800);
/// assert_eq!(size.to_string(), "1.50 GiB");
/// assert!("lots".parse::<Bytes>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// This many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Reads a size, or a percentage of `total` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the text is neither, is negative, or means more than 2^64 bytes or 100 %.
    pub fn parse_of(text: &str, total: u64) -> Result<Self> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return text.parse();
        };
        match percent.trim().parse::<f64>() {
            Ok(value) if (0.0..=100.0).contains(&value) => Ok(Self((total as f64 * value / 100.0) as u64)),
            _ => {
                Err(Error::Invalid(format!("{text:?} is not a share of the memory: give 0% to 100%, such as \"80%\"")))
            }
        }
    }
}

/// The factor of a unit, in lower case.
fn factor(unit: &str) -> Option<u64> {
    Some(match unit {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    })
}

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            |why: &str| Error::Invalid(format!("{text:?} is not a size ({why}): write it as \"512MiB\" or \"2GB\""));
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor = match factor(&unit.trim().to_ascii_lowercase()) {
            Some(factor) => factor,
            None if unit.trim() == "%" => return Err(invalid("a percentage has no meaning here")),
            None => return Err(invalid("the unit is not known")),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(|| invalid("more than 2^64 bytes"));
        }
        let value = number.parse::<f64>().map_err(|_| invalid("no number"))? * factor as f64;
        // 2^64 as a float: everything below it fits.
        if value < u64::MAX as f64 { Ok(Self(value as u64)) } else { Err(invalid("more than 2^64 bytes")) }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.2} {}", UNITS[unit]) }
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("1kB", 1000),
            ("1 KiB", 1024),
            ("2gib", 2 << 30),
            ("0.5MiB", 1 << 19),
            (" 3 TB ", 3_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap().get(), bytes, "{text}");
        }
        assert_eq!(Bytes::parse_of("12.5%", 800).unwrap().get(), 100);
        assert_eq!(Bytes::parse_of("1KiB", 800).unwrap().get(), 1024);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "lots", "-1", "1.2.3", "GiB", "1 XB", "80%", "1e3", "18446744073709551616", "99999999TiB", "NaN", "."]
        {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(matches!(&error, Error::Invalid(m) if m.contains("512MiB")), "{text}: {error}");
        }
        for text in ["101%", "-1%", "%", "NaN%"] {
            assert!(Bytes::parse_of(text, 100).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(Bytes::new(0).to_string(), "0 B");
        assert_eq!(Bytes::new(1023).to_string(), "1023 B");
        assert_eq!(Bytes::new(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes::new(u64::MAX).to_string(), "16777216.00 TiB");
    }
}
