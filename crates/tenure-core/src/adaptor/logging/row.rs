//! One row of a log, from its fields.
//!
//! ```text
//!  Thread,Time,Action,Pointer,Size,Stream, Device,Date,Nanoseconds,Stream id,Outcome,"Tag"
//!  \------- RMM's, in its form ---------/  \------- ours -------------------------------/
//! ```
//!
//! A row is made on the stack. What changes rarely, the text of the thread's number, of the second and of the day, is kept
//! per thread, so that a row costs one reading of the clock and a few divisions.

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

/// Bytes that every row but its tag fits into: twelve separators, two words of at most 20 bytes, and ten numbers.
const ROOM: usize = 224;

/// What a row says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// `allocate`, `free`, `allocate failure`, `free failure`.
    pub(super) action: &'static str,
    /// 0 where there is none.
    pub(super) ptr: u64,
    pub(super) bytes: u64,
    /// The driver's value.
    pub(super) stream: u64,
    /// -1 where nobody knows.
    pub(super) device: i32,
    /// 0 where nobody knows.
    pub(super) stream_id: u64,
    pub(super) outcome: &'static str,
}

/// A word for how a call ended.
pub(super) fn outcome(error: &Error) -> &'static str {
    if error.is_out_of_memory() {
        return "out of memory";
    }
    match error.inner() {
        Error::Misuse(_) | Error::BadHandle(_) => "misuse",
        Error::Device(_) | Error::NoDevice(_) => "device error",
        Error::Callback(..) => "callback error",
        Error::Invalid(_) => "invalid",
        Error::Unsupported(_) => "unsupported",
        Error::Forked | Error::Exiting => "process ending",
        _ => "error",
    }
}

/// A text that grows in place. What does not fit is left out: [`ROOM`] is more than any row needs.
pub(super) struct Line {
    text: [u8; ROOM],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { text: [0; ROOM], len: 0 }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        if let Some(to) = self.text.get_mut(self.len..self.len + text.len()) {
            to.copy_from_slice(text);
            self.len += text.len();
        }
    }

    #[inline]
    fn number(&mut self, value: u64) {
        self.push(itoa::Buffer::new().format(value).as_bytes());
    }

    /// As iostreams and printf write a pointer that is not null.
    #[inline]
    fn hexadecimal(&mut self, value: u64) {
        let digits = (16 - value.leading_zeros() as usize / 4).max(1);
        let mut text = *b"0x0000000000000000";
        for (at, to) in text[2..2 + digits].iter_mut().enumerate() {
            let digit = (value >> (4 * (digits - 1 - at)) & 15) as usize;
            *to = b"0123456789abcdef"[digit];
        }
        self.push(&text[..2 + digits]);
    }
}

/// What a thread keeps between two rows.
struct Stamp {
    /// The number that the system gives the thread, and a comma; made at the first row.
    thread: Vec<u8>,
    /// Nanoseconds from the monotonic clock to the wall's, in local time, as of the second that is kept.
    offset: i64,
    /// The second that `clock` and `date` show, in local time since 1970.
    second: i64,
    /// `HH:MM:SS.`
    clock: [u8; 9],
    /// `YYYY-MM-DD`
    date: [u8; 10],
}

thread_local! {
    static STAMP: RefCell<Stamp> = const {
        RefCell::new(Stamp { thread: Vec::new(), offset: 0, second: i64::MIN, clock: *b"00:00:00.", date: *b"0000-00-00" })
    };
}

fn nanoseconds(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing. Both clocks exist on every Linux; a failure leaves zeros.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

impl Stamp {
    /// Reads the wall clock and makes the texts of its second anew.
    #[cold]
    fn renew(&mut self) {
        let (wall, steady) = (nanoseconds(libc::CLOCK_REALTIME), nanoseconds(libc::CLOCK_MONOTONIC));
        let seconds = wall.div_euclid(1_000_000_000);
        // SAFETY: a structure of integers and a pointer, for which zeros are a value; filled below.
        let mut local: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid. On failure the zeros stay, which the texts below can show.
        unsafe { libc::localtime_r(&seconds, &mut local) };
        self.offset = wall + local.tm_gmtoff * 1_000_000_000 - steady;
        self.second = seconds + local.tm_gmtoff;
        let two = |to: &mut [u8], value: i32| {
            to[0] = b'0' + (value / 10 % 10) as u8;
            to[1] = b'0' + (value % 10) as u8;
        };
        two(&mut self.clock[0..2], local.tm_hour);
        two(&mut self.clock[3..5], local.tm_min);
        two(&mut self.clock[6..8], local.tm_sec);
        let year = local.tm_year + 1900;
        two(&mut self.date[0..2], year / 100);
        two(&mut self.date[2..4], year % 100);
        two(&mut self.date[5..7], local.tm_mon + 1);
        two(&mut self.date[8..10], local.tm_mday);
        if self.thread.is_empty() {
            // SAFETY: no arguments, cannot fail.
            let thread = unsafe { libc::gettid() };
            self.thread = format!("\n{thread},").into_bytes();
        }
    }
}

/// The text of a row, from the end of the line before to the comma before its tag.
pub(super) fn text(row: &Row) -> Line {
    STAMP.try_with(|stamp| stamped(row, &mut stamp.borrow_mut())).unwrap_or_else(|_| {
        // The thread's own exit hooks have run: what it kept is gone.
        let mut fresh =
            Stamp { thread: Vec::new(), offset: 0, second: i64::MIN, clock: *b"00:00:00.", date: *b"0000-00-00" };
        stamped(row, &mut fresh)
    })
}

fn stamped(row: &Row, stamp: &mut Stamp) -> Line {
    let mut steady = nanoseconds(libc::CLOCK_MONOTONIC);
    let mut wall = steady + stamp.offset;
    if wall.div_euclid(1_000_000_000) != stamp.second {
        stamp.renew();
        // Read again, so that the second is the one that was just read, or the one after it when it has just ended.
        steady = nanoseconds(libc::CLOCK_MONOTONIC);
        wall = (steady + stamp.offset).min(stamp.second.saturating_mul(1_000_000_000) + 999_999_999);
    }
    let mut line = Line::new();
    line.push(&stamp.thread);
    line.push(&stamp.clock);
    let mut micros = *b"000000,";
    let mut rest = (wall.rem_euclid(1_000_000_000) / 1000) as u32;
    for digit in micros[..6].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    line.push(&micros);
    line.push(row.action.as_bytes());
    line.push(b",");
    if row.ptr == 0 {
        // As printf shows null.
        line.push(b"(nil)");
    } else {
        line.hexadecimal(row.ptr);
    }
    line.push(b",");
    line.number(row.bytes);
    line.push(b",");
    if row.stream == 0 {
        // As iostreams show null.
        line.push(b"0");
    } else {
        line.hexadecimal(row.stream);
    }
    line.push(b",");
    if let Ok(device) = u64::try_from(row.device) {
        line.number(device);
    }
    line.push(b",");
    line.push(&stamp.date);
    line.push(b",");
    line.number(steady as u64);
    line.push(b",");
    if row.stream_id != 0 {
        line.number(row.stream_id);
    }
    line.push(b",");
    line.push(row.outcome.as_bytes());
    line.push(b",");
    line
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
        let line = text(row);
        let text = std::str::from_utf8(line.as_bytes()).expect("text");
        text.strip_prefix('\n').expect("an end of line first").split(',').map(str::to_owned).collect()
    }

    const ROW: Row = Row {
        action: "allocate",
        ptr: 0x7f00_0000_0100,
        bytes: 1 << 20,
        stream: 0x2,
        device: 3,
        stream_id: 17,
        outcome: "ok",
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
        let null = fields(&Row { ptr: 0, stream: 0, device: -1, stream_id: 0, outcome: "out of memory", ..ROW });
        assert_eq!((&*null[3], &*null[5], &*null[6], &*null[9]), ("(nil)", "0", "", ""));
    }

    #[test]
    fn the_longest_row_fits() {
        let row = Row {
            action: "allocate failure",
            ptr: u64::MAX,
            bytes: u64::MAX,
            stream: u64::MAX,
            device: i32::MAX,
            stream_id: u64::MAX,
            outcome: "callback error",
        };
        let last = fields(&row);
        assert_eq!((last.len(), &*last[10]), (COLUMNS.len(), "callback error"));
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
