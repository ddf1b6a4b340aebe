//! One row of a log, from its fields.
//!
//! ```text
//!  Thread,Time,Action,Pointer,Size,Stream, Device,Date,Nanoseconds,Stream id,Outcome,"Tag"
//!  \------- RMM's, in its form ---------/  \------- ours -------------------------------/
//! ```
//!
//! Each thread has a sheet on which it writes its rows. What changes rarely stays on it: the number of the thread, the second
//! and the day. The rest is put behind it, every piece with a copy of a fixed length that may be too long, since the next
//! piece goes over its end: so that a row costs one reading of the clock, a few multiplications and no loop to speak of.

use std::cell::RefCell;

use crate::error::Error;

/// The columns: RMM's six, and what RMM does not write.
pub const COLUMNS: [&str; 12] = [
    "Thread",
    "Time",
    "Action",
    "Pointer",
    "Size",
    "Stream",
    "Device",
    "Date",
    "Nanoseconds",
    "Stream id",
    "Outcome",
    "Tag",
];

/// Bytes that every row but its tag fits into, and the piece behind it that is too long: twelve separators, three words of at
/// most [`WORD`] bytes, and ten numbers.
const ROOM: usize = 320;
/// The longest word.
const WORD: usize = 24;

/// A word with the comma behind it, padded to one length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    text: [u8; WORD],
    len: usize,
}

impl Word {
    const fn new(word: &str) -> Self {
        let mut text = [b' '; WORD];
        let from = word.as_bytes();
        let mut at = 0;
        while at < from.len() {
            text[at] = from[at];
            at += 1;
        }
        text[at] = b',';
        Self { text, len: at + 1 }
    }
}

pub(super) static ALLOCATE: Word = Word::new("allocate");
pub(super) static FREE: Word = Word::new("free");
pub(super) static ALLOCATE_FAILURE: Word = Word::new("allocate failure");
pub(super) static FREE_FAILURE: Word = Word::new("free failure");
pub(super) static OK: Word = Word::new("ok");
static OUT_OF_MEMORY: Word = Word::new("out of memory");
static MISUSE: Word = Word::new("misuse");
static DEVICE_ERROR: Word = Word::new("device error");
static CALLBACK_ERROR: Word = Word::new("callback error");
static INVALID: Word = Word::new("invalid");
static UNSUPPORTED: Word = Word::new("unsupported");
static PROCESS_ENDING: Word = Word::new("process ending");
static ERROR: Word = Word::new("error");

/// What a row says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) action: &'static Word,
    /// 0 where there is none.
    pub(super) ptr: u64,
    pub(super) bytes: u64,
    /// The driver's value.
    pub(super) stream: u64,
    /// -1 where nobody knows.
    pub(super) device: i32,
    /// 0 where nobody knows.
    pub(super) stream_id: u64,
    pub(super) outcome: &'static Word,
}

/// A word for how a call ended.
pub(super) fn outcome(error: &Error) -> &'static Word {
    if error.is_out_of_memory() {
        return &OUT_OF_MEMORY;
    }
    match error.inner() {
        Error::Misuse(_) | Error::BadHandle(_) => &MISUSE,
        Error::Device(_) | Error::NoDevice(_) => &DEVICE_ERROR,
        Error::Callback(..) => &CALLBACK_ERROR,
        Error::Invalid(_) => &INVALID,
        Error::Unsupported(_) => &UNSUPPORTED,
        Error::Forked | Error::Exiting => &PROCESS_ENDING,
        _ => &ERROR,
    }
}

/// Where a thread writes its rows.
struct Sheet {
    /// The end of the line before, the number that the system gives the thread, a comma, `HH:MM:SS.`; then the row.
    text: [u8; ROOM],
    /// Where the row goes on; 0 before the first one.
    head: usize,
    /// Nanoseconds from the monotonic clock to the wall's, in local time, as of the second that is kept.
    offset: i64,
    /// The second that the sheet shows, in local time since 1970, in nanoseconds.
    second: i64,
    /// `YYYY-MM-DD,`
    date: [u8; 11],
}

thread_local! {
    static SHEET: RefCell<Sheet> = const { RefCell::new(Sheet::new()) };
}

fn nanoseconds(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing. Both clocks exist on every Linux; a failure leaves zeros.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * SECOND + now.tv_nsec
}

const SECOND: i64 = 1_000_000_000;

/// Calls `f` with the text of a row, from the end of the line before to the comma before its tag.
#[inline]
pub(super) fn with_text<R>(row: &Row, f: impl Fn(&[u8]) -> R) -> R {
    let own = SHEET.try_with(|sheet| {
        let mut sheet = sheet.try_borrow_mut().ok()?;
        let len = sheet.write(row);
        Some(f(&sheet.text[..len.min(ROOM)]))
    });
    match own {
        Ok(Some(done)) => done,
        // The thread's own exit hooks have run, or it is logging already: somebody who listens to our warnings allocates.
        _ => {
            let mut sheet = Sheet::new();
            let len = sheet.write(row);
            f(&sheet.text[..len.min(ROOM)])
        }
    }
}

impl Sheet {
    const fn new() -> Self {
        Self { text: [0; ROOM], head: 0, offset: 0, second: 0, date: *b"0000-00-00," }
    }

    /// Puts a piece at `at`. What does not fit is left out: [`ROOM`] is more than any row needs.
    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, piece: &[u8; N]) {
        if let Some(to) = self.text.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *to = *piece;
        }
    }

    #[inline(always)]
    fn word(&mut self, at: usize, word: &Word) -> usize {
        self.put(at, &word.text);
        at + word.len
    }

    /// A number and a comma.
    #[inline(always)]
    fn decimal(&mut self, at: usize, value: u64) -> usize {
        if value < 10 {
            self.put(at, &[b'0' + value as u8, b',']);
            return at + 2;
        }
        if value < GROUP {
            let digits = eight_digits(value);
            let zeros = digits.trailing_zeros() & !7;
            self.put(at, &((digits + ZEROS) >> zeros).to_le_bytes());
            let end = at + 8 - zeros as usize / 8;
            self.put(end, b",");
            return end + 1;
        }
        self.long_decimal(at, value)
    }

    fn long_decimal(&mut self, mut at: usize, mut value: u64) -> usize {
        if value >= GROUP * GROUP {
            at = self.decimal(at, value / (GROUP * GROUP)) - 1;
            value %= GROUP * GROUP;
            self.put(at, &(eight_digits(value / GROUP) + ZEROS).to_le_bytes());
            self.put(at + 8, &(eight_digits(value % GROUP) + ZEROS).to_le_bytes());
            at += 16;
        } else {
            at = self.decimal(at, value / GROUP) - 1;
            self.put(at, &(eight_digits(value % GROUP) + ZEROS).to_le_bytes());
            at += 8;
        }
        self.put(at, b",");
        at + 1
    }

    /// As iostreams and printf write a pointer that is not null, and a comma.
    #[inline(always)]
    fn hexadecimal(&mut self, at: usize, value: u64) -> usize {
        let digits = 16 - (value | 1).leading_zeros() as usize / 4;
        let all = u128::from(hexadecimal(value >> 32)) << 64 | u128::from(hexadecimal(value & 0xffff_ffff));
        self.put(at, b"0x");
        self.put(at + 2, &(all << (8 * (16 - digits))).to_be_bytes());
        self.put(at + 2 + digits, b",");
        at + 3 + digits
    }

    /// Reads the wall clock, and makes the texts of its second anew.
    #[cold]
    fn renew(&mut self) {
        if self.head == 0 {
            self.put(0, b"\n");
            // SAFETY: no arguments, cannot fail.
            let thread = unsafe { libc::gettid() };
            self.head = self.decimal(1, u64::try_from(thread).unwrap_or(0)) + 9;
        }
        let (wall, steady) = (nanoseconds(libc::CLOCK_REALTIME), nanoseconds(libc::CLOCK_MONOTONIC));
        let seconds = wall.div_euclid(SECOND);
        // SAFETY: a structure of integers and a pointer, for which zeros are a value; filled below.
        let mut local: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid. On failure the zeros stay, which the texts below can show.
        unsafe { libc::localtime_r(&seconds, &mut local) };
        self.offset = wall + local.tm_gmtoff * SECOND - steady;
        self.second = (seconds + local.tm_gmtoff) * SECOND;
        let two = |value: i32| two_digits(value.rem_euclid(100) as u32);
        let ([h, i], [m, n], [s, t]) = (two(local.tm_hour), two(local.tm_min), two(local.tm_sec));
        self.put(self.head - 9, &[h, i, b':', m, n, b':', s, t, b'.']);
        let year = local.tm_year + 1900;
        let ([c, d], [y, z]) = (two(year / 100), two(year));
        let ([m, n], [a, b]) = (two(local.tm_mon + 1), two(local.tm_mday));
        self.date = [c, d, y, z, b'-', m, n, b'-', a, b, b','];
    }

    /// Writes a row, and says how long it is.
    #[inline]
    fn write(&mut self, row: &Row) -> usize {
        let mut steady = nanoseconds(libc::CLOCK_MONOTONIC);
        let mut fraction = steady + self.offset - self.second;
        if self.head == 0 || !(0..SECOND).contains(&fraction) {
            self.renew();
            // Read again, so that it lies in the second that was just read, or has hardly left it.
            steady = nanoseconds(libc::CLOCK_MONOTONIC);
            fraction = (steady + self.offset - self.second).clamp(0, SECOND - 1);
        }
        let micros = fraction as u32 / 1000;
        let mut at = self.head;
        self.put(at, &((eight_digits(u64::from(micros)) + ZEROS) >> 16).to_le_bytes());
        self.put(at + 6, b",");
        at = self.word(at + 7, row.action);
        if row.ptr == 0 {
            // As printf shows null.
            self.put(at, b"(nil),");
            at += 6;
        } else {
            at = self.hexadecimal(at, row.ptr);
        }
        at = self.decimal(at, row.bytes);
        if row.stream == 0 {
            // As iostreams show null.
            self.put(at, b"0,");
            at += 2;
        } else {
            at = self.hexadecimal(at, row.stream);
        }
        at = self.number_or_nothing(at, u64::try_from(row.device).ok());
        let date = self.date;
        self.put(at, &date);
        at = self.decimal(at + 11, steady as u64);
        at = self.number_or_nothing(at, (row.stream_id != 0).then_some(row.stream_id));
        self.word(at, row.outcome)
    }

    #[inline(always)]
    fn number_or_nothing(&mut self, at: usize, value: Option<u64>) -> usize {
        match value {
            Some(value) => self.decimal(at, value),
            None => {
                self.put(at, b",");
                at + 1
            }
        }
    }
}

#[inline(always)]
fn two_digits(value: u32) -> [u8; 2] {
    [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]
}

/// What numbers are split by, so that each part has eight digits.
const GROUP: u64 = 100_000_000;
/// Eight digits 0 as text.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight decimal digits of a number below 10^8, the first in the lowest byte: halves, then quarters, then digits, all
/// parts of one step in one multiplication. Paul Khuong, "How to print integers really fast" (pvk.ca, 2017).
#[inline(always)]
fn eight_digits(value: u64) -> u64 {
    // Two numbers below 10^4, 32 bits apart.
    let halves = (value / 10_000) | ((value % 10_000) << 32);
    // Four below 100, 16 bits apart: 10486 / 2^20 is near enough to 1 / 100 for them.
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (halves - 100 * hundreds) << 16;
    // Eight below 10: 103 / 2^10 is near enough to 1 / 10.
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - 10 * tens) << 8
}

/// The eight hexadecimal digits of a number below 2^32, the first in the highest byte: each nibble in a byte of its own, then
/// all bytes at once made digits, with what lies between `9` and `a` added where a nibble is above 9.
#[inline(always)]
fn hexadecimal(value: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let value = (value | value << 16) & 0x0000_ffff_0000_ffff;
    let value = (value | value << 8) & 0x00ff_00ff_00ff_00ff;
    let value = (value | value << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = ((value + 6 * EACH) >> 4) & EACH;
    value + 0x30 * EACH + letters * 0x27
}

/// A tag as it stands between its quotes: quotes are doubled, and what would end the line or the text is a space. Cut where
/// it is longer than a name should be.
pub(super) fn escaped(tag: &str) -> Vec<u8> {
    const LONGEST: usize = 256;
    let mut text = Vec::with_capacity(tag.len().min(LONGEST));
    for (at, c) in tag.char_indices() {
        if at >= LONGEST {
            break;
        }
        match c {
            '"' => text.extend_from_slice(b"\"\""),
            c if c.is_control() => text.push(b' '),
            c => text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(row: &Row) -> Vec<String> {
        let line = with_text(row, <[u8]>::to_vec);
        let text = std::str::from_utf8(&line).expect("text");
        text.strip_prefix('\n').expect("an end of line first").split(',').map(str::to_owned).collect()
    }

    const ROW: Row = Row {
        action: &ALLOCATE,
        ptr: 0x7f00_0000_0100,
        bytes: 1 << 20,
        stream: 0x2,
        device: 3,
        stream_id: 17,
        outcome: &OK,
    };

    #[test]
    fn a_row_has_rmms_fields_first_and_each_in_its_form() {
        let row = fields(&ROW);
        assert_eq!(row.len(), COLUMNS.len(), "the last is empty: the tag follows");
        // SAFETY: no arguments.
        assert_eq!(row[0], unsafe { libc::gettid() }.to_string());
        assert_eq!((row[1].len(), &row[1][8..9]), (15, "."), "{}", row[1]);
        assert_eq!(row[2..7], ["allocate", "0x7f0000000100", "1048576", "0x2", "3"]);
        assert_eq!((row[7].len(), row[7].matches('-').count()), (10, 2));
        assert_eq!(row[9..], ["17", "ok", ""]);
        let null = fields(&Row { ptr: 0, stream: 0, device: -1, stream_id: 0, outcome: &OUT_OF_MEMORY, ..ROW });
        assert_eq!((&*null[3], &*null[5], &*null[6], &*null[9]), ("(nil)", "0", "", ""));
    }

    #[test]
    fn the_longest_row_fits() {
        let row = Row {
            action: &ALLOCATE_FAILURE,
            ptr: u64::MAX,
            bytes: u64::MAX,
            stream: u64::MAX,
            device: i32::MAX,
            stream_id: u64::MAX,
            outcome: &CALLBACK_ERROR,
        };
        let last = fields(&row);
        assert_eq!((last.len(), &*last[10]), (COLUMNS.len(), "callback error"));
    }

    #[test]
    fn numbers_of_every_length_are_written_as_others_write_them() {
        let mut value = 1_u64;
        for n in 0..400_u64 {
            for value in [value, value - 1, u64::MAX - value] {
                let row = fields(&Row { ptr: value, bytes: value, stream: value, stream_id: value, ..ROW });
                assert_eq!(row[4], value.to_string());
                if value != 0 {
                    assert_eq!((&row[3], &row[5], &row[9]), (&format!("{value:#x}"), &format!("{value:#x}"), &row[4]));
                }
            }
            value = value.wrapping_mul(3).wrapping_add(n).max(1);
        }
    }

    #[test]
    fn the_clock_is_the_one_of_the_wall_and_never_runs_back() {
        let mut last = 0;
        for _ in 0..1000 {
            let row = fields(&ROW);
            let nanoseconds: i64 = row[8].parse().expect("a number");
            assert!(nanoseconds >= last, "{nanoseconds} after {last}");
            last = nanoseconds;
        }
        let written = crate::trace::time(&format!("{} {}", fields(&ROW)[7], fields(&ROW)[1])).expect("a time");
        let mut now: libc::time_t = 0;
        // SAFETY: valid for writing; zeros are a value of the structure.
        let offset = unsafe {
            libc::time(&mut now);
            let mut local: libc::tm = std::mem::zeroed();
            libc::localtime_r(&now, &mut local);
            local.tm_gmtoff
        };
        assert!((written / 1_000_000 - (now + offset)).abs() <= 2, "{written} is not about {now}");
    }

    #[test]
    fn a_tag_is_made_fit_for_its_quotes() {
        assert_eq!(escaped("a, b"), b"a, b");
        assert_eq!(escaped("say \"hi\"\nand\0go"), b"say \"\"hi\"\" and go");
        assert!(escaped(&"é".repeat(1000)).len() <= 258);
    }
}
