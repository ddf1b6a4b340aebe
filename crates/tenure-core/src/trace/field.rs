//! The fields of one line of a log, in each form that RMM has written them.
//!
//! | field | forms |
//! |---|---|
//! | thread | a number, decimal or `0x` hexadecimal (older builds wrote the pthread handle) |
//! | time | `15:47:02.841961`, `15:47:02:841961` (before the point was chosen), `2021-03-05 15:47:02.841961`, seconds since 1970 |
//! | action | `allocate`, `free`, `allocate failure`; `deallocate` as the documentation has it; tenure's `free failure` |
//! | pointer | `0x…`, hexadecimal without a prefix, `(nil)` as glibc prints null, `0` |
//! | size | decimal bytes |
//! | stream | decimal (`0`, `1`, `2` for the special ones), `0x…`, `(nil)` |

/// What a line says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// Memory was handed out.
    Allocate,
    /// Memory was given back.
    Free,
    /// A request was refused; the pointer is null.
    Failure,
}

/// Reads an action. `Some(None)` is an action that is known and means nothing for a replay.
pub(super) fn action(text: &str) -> Option<Option<Action>> {
    let is = |name: &str| text.eq_ignore_ascii_case(name);
    if is("allocate") || is("alloc") {
        Some(Some(Action::Allocate))
    } else if is("free") || is("deallocate") {
        Some(Some(Action::Free))
    } else if is("allocate failure") || is("allocate_failure") {
        Some(Some(Action::Failure))
    } else if is("resize") || is("free failure") {
        Some(None)
    } else {
        None
    }
}

fn is_null(text: &str) -> bool {
    ["(nil)", "nil", "null", "nullptr", "(null)"].iter().any(|name| text.eq_ignore_ascii_case(name))
}

fn hex(text: &str) -> Option<u64> {
    // `from_str_radix` takes a sign, which no log has.
    if text.starts_with(['+', '-']) { None } else { u64::from_str_radix(text, 16).ok() }
}

fn prefixed(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

/// Reads a pointer. A number without a prefix is hexadecimal: that is what printf's `%p` writes on some platforms, and a
/// pointer serves only to tell allocations apart.
pub(super) fn pointer(text: &str) -> Option<u64> {
    if is_null(text) { Some(0) } else { hex(prefixed(text).unwrap_or(text)) }
}

/// Reads a size in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Reads a stream.
pub(super) fn stream(text: &str) -> Option<u64> {
    if is_null(text) {
        return Some(0);
    }
    match prefixed(text) {
        Some(digits) => hex(digits),
        None => size(text).or_else(|| hex(text)),
    }
}

/// Reads a time, in microseconds since midnight or since 1970. A form that is not known is `None`: a replay goes by the
/// order of the lines and needs no time.
pub(crate) fn time(text: &str) -> Option<i64> {
    let text = text.trim_end_matches('Z');
    let (day, clock) = match text.split_once([' ', 'T']) {
        Some((date, clock)) => (days(date)?, clock.trim()),
        None => (0, text),
    };
    let mut parts = clock.splitn(3, ':');
    let first = parts.next()?;
    let Some(minutes) = parts.next() else {
        return seconds(first);
    };
    let hours: i64 = small(first, 24)?;
    let minutes: i64 = small(minutes, 59)?;
    let rest = parts.next()?;
    let seconds = match rest.split_once(':') {
        Some((whole, micros)) => fraction(whole, micros)?,
        None => seconds(rest)?,
    };
    if !(0..=60_999_999).contains(&seconds) {
        return None;
    }
    Some(((day * 24 + hours) * 60 + minutes) * 60_000_000 + seconds)
}

fn small(text: &str, most: i64) -> Option<i64> {
    if text.is_empty() || text.len() > 2 {
        return None;
    }
    let value = size(text)? as i64;
    (value <= most).then_some(value)
}

/// Seconds with a fraction, in microseconds.
fn seconds(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    fraction(whole, part)
}

fn fraction(whole: &str, part: &str) -> Option<i64> {
    if whole.is_empty() {
        return None;
    }
    let whole = i64::try_from(size(whole)?).ok()?;
    if !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let micros = part.bytes().chain(std::iter::repeat(b'0')).take(6).fold(0, |n, b| n * 10 + i64::from(b - b'0'));
    whole.checked_mul(1_000_000)?.checked_add(micros)
}

/// Days since 1970 of `2021-03-05` (also with slashes), by Howard Hinnant's `days_from_civil`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split(['-', '/']);
    let year = i64::try_from(size(parts.next().filter(|y| y.len() == 4)?)?).ok()?;
    let month = small(parts.next()?, 12).filter(|m| *m >= 1)?;
    let day = small(parts.next()?, 31).filter(|d| *d >= 1)?;
    if parts.next().is_some() {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions() {
        assert_eq!(action("allocate"), Some(Some(Action::Allocate)));
        assert_eq!(action("free"), Some(Some(Action::Free)));
        assert_eq!(action("deallocate"), Some(Some(Action::Free)));
        assert_eq!(action("allocate failure"), Some(Some(Action::Failure)));
        assert_eq!(action("Allocate Failure"), Some(Some(Action::Failure)));
        assert_eq!(action("resize"), Some(None));
        assert_eq!(action("free failure"), Some(None), "the block is still live");
        assert_eq!(action("grow"), None);
        assert_eq!(action(""), None);
    }

    #[test]
    fn pointers() {
        assert_eq!(pointer("0x302000000"), Some(0x3_0200_0000));
        assert_eq!(pointer("0XAB"), Some(0xab));
        assert_eq!(pointer("302000000"), Some(0x3_0200_0000));
        assert_eq!(pointer("(nil)"), Some(0));
        assert_eq!(pointer("0"), Some(0));
        assert_eq!(pointer("0x"), None);
        assert_eq!(pointer("-1"), None);
        assert_eq!(pointer("0x-1"), None);
        assert_eq!(pointer("0x1ffffffffffffffff"), None);
        assert_eq!(pointer("here"), None);
    }

    #[test]
    fn streams() {
        assert_eq!(stream("0"), Some(0));
        assert_eq!(stream("(nil)"), Some(0));
        assert_eq!(stream("0x0"), Some(0));
        assert_eq!(stream("2"), Some(2));
        assert_eq!(stream("0x2"), Some(2));
        assert_eq!(stream("10"), Some(10));
        assert_eq!(stream("0x10"), Some(16));
        assert_eq!(stream("7efa14014630"), Some(0x7efa_1401_4630));
        assert_eq!(stream(""), None);
        assert_eq!(stream("main"), None);
    }

    #[test]
    fn sizes() {
        assert_eq!(size("0"), Some(0));
        assert_eq!(size("18446744073709551615"), Some(u64::MAX));
        assert_eq!(size("18446744073709551616"), None);
        assert_eq!(size("-5"), None);
        assert_eq!(size("+5"), None);
        assert_eq!(size("1.5"), None);
        assert_eq!(size(""), None);
    }

    #[test]
    fn times_of_each_form() {
        let noon = 12 * 3600 * 1_000_000;
        assert_eq!(time("12:00:00.000001"), Some(noon + 1));
        assert_eq!(time("12:00:00:000001"), Some(noon + 1));
        assert_eq!(time("12:00:00"), Some(noon));
        assert_eq!(time("12:00:00.5"), Some(noon + 500_000));
        assert_eq!(time("1970-01-02 12:00:00.000001"), Some(86_400_000_000 + noon + 1));
        assert_eq!(time("1970-01-01T12:00:00Z"), Some(noon));
        assert_eq!(time("2024-02-29 00:00:00"), Some(1_709_164_800_000_000));
        assert_eq!(time("1634567890.123456"), Some(1_634_567_890_123_456));
        for text in
            ["", "noon", "25:00:00", "12:60:00", "12:00", "12:00:00:x", "1970-13-01 00:00:00", "12:00:99.0", "-1"]
        {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
