//! Reading a log and balancing it: each free finds the allocation that it frees.
//!
//! ```text
//!   lines  --read-->  fields  --balance-->  Event { bytes, slot, stream, action }  --replay-->
//! ```
//!
//! A logged pointer says only *which* allocation a line is about, and addresses are used again and again. So while the
//! log is read, every allocation gets a *slot*, a small number that is free for reuse once the allocation is freed; the
//! replay then needs one array and no table. What the log leaves open is settled here and counted, so that a report can
//! say it:
//!
//! * a free of a pointer that the log never allocated (logging began later) is an *unknown free* and is skipped;
//! * a request of no bytes reaches no resource in tenure and is skipped, as is its free;
//! * an address that is handed out while it is live (two resources in one log, or lost lines) keeps both allocations;
//!   a free takes the oldest of the same size;
//! * a free that names another size than the allocation is replayed with the size of the allocation;
//! * a stream handle that was used again for another stream is another stream, where the log has tenure's column `Stream id`;
//! * what is live when the log ends is freed after the last event, outside of all measurements.
//!
//! Reading is linear in the length of the log; an event takes 24 bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use csv::ByteRecord;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::field::{self, Action};
use crate::error::{Error, Result};

/// The columns of a log, in the order in which RMM writes them.
pub const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// Columns of tenure's that say more: the monotonic clock in nanoseconds, and what tells streams of one handle apart.
const OURS: [&[u8]; 2] = [b"Nanoseconds", b"Stream id"];

/// One call that a replay makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Bytes asked for, or bytes of the allocation that is freed. Never 0.
    pub bytes: u64,
    /// The allocation, by a number that is reused after its free. Not used by [`Action::Failure`].
    pub slot: u32,
    /// The thread of the call, by a number below [`Log::threads`].
    pub thread: u32,
    /// The logged address, by a number below [`Log::pointers`]. Not used by [`Action::Failure`].
    pub pointer: u32,
    /// The stream of the call: an index into [`Log::streams`].
    pub stream: u16,
    /// What to do.
    pub action: Action,
}

/// A log that has been read and balanced.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Where it came from, for people.
    pub name: String,
    /// The calls in logged order.
    pub events: Vec<Event>,
    /// Number of events that were logged; those that make no call are among them.
    pub rows: u64,
    /// Number of different threads.
    pub threads: u64,
    /// The streams as they were logged, in order of appearance; null is 0.
    pub streams: Vec<u64>,
    /// Number of different addresses.
    pub pointers: u32,
    /// Number of slots: no slot of [`Log::events`] is as high.
    pub slots: u32,
    /// The most bytes that were live at once, as they were asked for.
    pub peak_live_bytes: u64,
    /// The index in [`Log::events`] of the first event after which so many were live.
    pub peak_event: usize,
    /// Requests that were refused when the log was written.
    pub failures: u64,
    /// Frees of memory that was allocated before the log began.
    pub unknown_frees: u64,
    /// Allocations of no bytes.
    pub zero_sized: u64,
    /// Allocations at an address that was live already.
    pub overlapping: u64,
    /// Frees whose size was not that of the allocation.
    pub size_mismatches: u64,
    /// Allocations that are live at the end.
    pub left_live: u64,
    /// Time between the first and the last event, in microseconds; `None` when the times could not be read.
    pub duration_us: Option<u64>,
}

/// The most streams that a log may name: each becomes a stream of the device.
pub const MAX_STREAMS: usize = 4096;

impl Log {
    /// Reads the log in the file `path`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file that cannot be read or is no log: the text names the file, the line and what was
    /// expected there.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let wrong = |what: String| Error::invalid(format!("cannot read the log {name}: {what}"));
        let file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => wrong("there is no such file".into()),
            _ => wrong(e.to_string()),
        })?;
        let meta = file.metadata().map_err(|e| wrong(e.to_string()))?;
        if meta.is_dir() {
            return Err(wrong("it is a directory; name the CSV files in it".into()));
        }
        Self::read(&name, file)
    }

    /// Reads a log from `input`; `name` is for messages.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn read(name: &str, input: impl Read) -> Result<Self> {
        let mut input = BufReader::with_capacity(1 << 16, input);
        let start = input.fill_buf().map_err(|e| Error::invalid(format!("cannot read the log {name}: {e}")))?;
        let refuse = |what: &str| Err(Error::invalid(format!("{name} is not a log: {what}")));
        match start {
            [] => return refuse("it is empty; a log starts with the line Thread,Time,Action,Pointer,Size,Stream"),
            [0x1f, 0x8b, ..] => return refuse("it is compressed with gzip; unpack it first"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return refuse("it is compressed with zstd; unpack it first"),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return refuse("it is in UTF-16; save it as UTF-8"),
            _ if start.contains(&0) => return refuse("it holds zero bytes, so it is no text; give a CSV file"),
            _ => {}
        }
        let mut reader =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(input);
        let mut record = ByteRecord::new();
        let io = |e: csv::Error| Error::invalid(format!("cannot read the log {name}: {e}"));

        if !reader.read_byte_record(&mut record).map_err(io)? {
            return refuse("it is empty; a log starts with the line Thread,Time,Action,Pointer,Size,Stream");
        }
        let columns = columns(name, &record)?;
        let needed = columns.iter().max().map_or(0, |last| last + 1);
        let ours = OURS.map(|column| record.iter().position(|name| name.trim_ascii().eq_ignore_ascii_case(column)));
        let header = record.clone();

        let mut balance = Balance::new(name);
        while reader.read_byte_record(&mut record).map_err(io)? {
            let line = record.position().map_or(0, csv::Position::line);
            // An empty line, or the header of a second log that was appended.
            if (record.len() == 1 && record[0].is_empty()) || record.iter().eq(header.iter()) {
                continue;
            }
            let outcome = if record.len() < needed {
                Err(format!(
                    "it has {} of {needed} fields ({})",
                    record.len(),
                    shown(&record.iter().map(String::from_utf8_lossy).collect::<Vec<_>>().join(","))
                ))
            } else {
                // What RMM does not write: left out, or not a number, it says nothing.
                let ours = ours.map(|at| {
                    let text = at.and_then(|at| record.get(at)).unwrap_or_default();
                    std::str::from_utf8(text).ok().and_then(field::size)
                });
                balance.line(columns.map(|at| String::from_utf8_lossy(&record[at])), ours)
            };
            if let Err(what) = outcome {
                let last = !matches!(reader.read_byte_record(&mut record), Ok(true));
                let hint = if last {
                    "; it is the last line: if the log was cut off while it was written, delete that line to replay \
                     the rest"
                } else {
                    "; expected Thread,Time,Action,Pointer,Size,Stream as RMM's logging adaptor writes them"
                };
                return Err(Error::invalid(format!("{name}, line {line}: {what}{hint}")));
            }
        }
        balance.finish()
    }
}

/// A piece of a file in a message: short and on one line.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if text.chars().nth(60).is_some() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Where the six columns are.
fn columns(name: &str, header: &ByteRecord) -> Result<[usize; 6]> {
    let names: Vec<String> =
        header.iter().map(|f| String::from_utf8_lossy(f).trim_start_matches('\u{feff}').trim().to_owned()).collect();
    let mut at = [0; 6];
    for (column, at) in COLUMNS.iter().zip(&mut at) {
        let Some(found) = names.iter().position(|n| n.eq_ignore_ascii_case(column)) else {
            let first = shown(&names.join(","));
            return Err(Error::invalid(if names.len() >= 6 && field::action(&names[2]).is_some() {
                format!(
                    "{name} is not a log, line 1: the header is missing (found the event {first}); add the line \
                     Thread,Time,Action,Pointer,Size,Stream on top"
                )
            } else {
                format!(
                    "{name} is not a log, line 1: expected the columns Thread,Time,Action,Pointer,Size,Stream as RMM's \
                     logging adaptor writes them, found {first} (no {column})"
                )
            }));
        };
        *at = found;
    }
    Ok(at)
}

/// Finds for each free its allocation.
struct Balance {
    log: Log,
    /// The live allocations of each logged address, oldest first: slot and bytes. More than one only in odd logs.
    live: FxHashMap<u64, SmallVec<[(u32, u64); 1]>>,
    free_slots: Vec<u32>,
    /// By handle and id; the id is 0 where there is none.
    streams: FxHashMap<(u64, u64), u16>,
    threads: FxHashMap<u64, u32>,
    other_threads: FxHashMap<String, u32>,
    pointers: FxHashMap<u64, u32>,
    live_bytes: u128,
    peak: u128,
    first_time: Option<i64>,
    last_time: i64,
    times_known: bool,
    /// The first and the last reading of a monotonic clock.
    clock: Option<(u64, u64)>,
}

impl Balance {
    fn new(name: &str) -> Self {
        Self {
            log: Log { name: name.to_owned(), ..Log::default() },
            live: FxHashMap::default(),
            free_slots: Vec::new(),
            streams: FxHashMap::default(),
            threads: FxHashMap::default(),
            other_threads: FxHashMap::default(),
            pointers: FxHashMap::default(),
            live_bytes: 0,
            peak: 0,
            first_time: None,
            last_time: 0,
            times_known: true,
            clock: None,
        }
    }

    /// Takes one line. An error says what is wrong with it, without the line's number.
    fn line(&mut self, fields: [std::borrow::Cow<'_, str>; 6], ours: [Option<u64>; 2]) -> Result<(), String> {
        let [nanoseconds, stream_id] = ours;
        let [thread, time, action, pointer, size, stream] = fields.each_ref().map(|f| f.as_ref());
        let Some(action) = field::action(action) else {
            return Err(format!("the action {} is none of allocate, free, allocate failure", shown(action)));
        };
        let Some(pointer) = field::pointer(pointer) else {
            return Err(format!("the pointer {} is neither hexadecimal nor (nil)", shown(pointer)));
        };
        let Some(bytes) = field::size(size) else {
            return Err(format!("the size {} is not a number of bytes below 2^64", shown(size)));
        };
        let Some(stream) = field::stream(stream) else {
            return Err(format!("the stream {} is neither a number nor (nil)", shown(stream)));
        };
        let Some(action) = action else { return Ok(()) };

        let next = self.log.threads;
        let number = u32::try_from(next).map_err(|_| "more than 2^32 threads are named".to_owned())?;
        let thread = match field::pointer(thread) {
            Some(thread) => *self.threads.entry(thread).or_insert(number),
            None if thread.is_empty() => return Err("the thread is empty".into()),
            None => match self.other_threads.get(thread) {
                Some(known) => *known,
                None => *self.other_threads.entry(thread.to_owned()).or_insert(number),
            },
        };
        self.log.threads = (self.threads.len() + self.other_threads.len()) as u64;
        match field::time(time) {
            Some(time) => {
                self.first_time.get_or_insert(time);
                self.last_time = time;
            }
            None => self.times_known = false,
        }
        if let Some(now) = nanoseconds {
            self.clock = Some((self.clock.map_or(now, |(first, _)| first), now));
        }
        let stream = self.stream(stream, stream_id.unwrap_or(0))?;
        self.log.rows += 1;
        match action {
            Action::Failure => {
                self.log.failures += 1;
                if bytes != 0 {
                    self.log.events.push(Event { bytes, slot: 0, thread, pointer: 0, stream, action });
                }
            }
            Action::Allocate if bytes == 0 => self.log.zero_sized += 1,
            Action::Allocate => self.allocate(thread, pointer, bytes, stream)?,
            Action::Free => self.free(thread, pointer, bytes, stream),
        }
        Ok(())
    }

    fn stream(&mut self, logged: u64, id: u64) -> Result<u16, String> {
        if let Some(at) = self.streams.get(&(logged, id)) {
            return Ok(*at);
        }
        let at = self.log.streams.len();
        if at >= MAX_STREAMS {
            return Err(format!(
                "it names one more than {MAX_STREAMS} different streams, which no device is asked for"
            ));
        }
        self.log.streams.push(logged);
        self.streams.insert((logged, id), at as u16);
        Ok(at as u16)
    }

    fn allocate(&mut self, thread: u32, pointer: u64, bytes: u64, stream: u16) -> Result<(), String> {
        let number = u32::try_from(self.pointers.len()).map_err(|_| "more than 2^32 addresses are named".to_owned())?;
        let number = *self.pointers.entry(pointer).or_insert(number);
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.log.slots;
                self.log.slots = slot.checked_add(1).ok_or("more than 2^32 allocations are live at once")?;
                slot
            }
        };
        let here = self.live.entry(pointer).or_default();
        if !here.is_empty() {
            self.log.overlapping += 1;
        }
        here.push((slot, bytes));
        self.live_bytes += u128::from(bytes);
        if self.live_bytes > self.peak {
            self.peak = self.live_bytes;
            self.log.peak_event = self.log.events.len();
        }
        self.log.events.push(Event { bytes, slot, thread, pointer: number, stream, action: Action::Allocate });
        Ok(())
    }

    fn free(&mut self, thread: u32, pointer: u64, bytes: u64, stream: u16) {
        // What is live has a number.
        let number = self.pointers.get(&pointer).copied();
        let (Some(here), Some(number)) = (self.live.get_mut(&pointer), number) else {
            // The free of a request of no bytes names no allocation; any other one is older than the log.
            if bytes != 0 {
                self.log.unknown_frees += 1;
            }
            return;
        };
        let at = here.iter().position(|(_, size)| *size == bytes).unwrap_or(0);
        let (slot, size) = here.remove(at);
        if here.is_empty() {
            self.live.remove(&pointer);
        }
        if size != bytes {
            self.log.size_mismatches += 1;
        }
        self.live_bytes -= u128::from(size);
        self.free_slots.push(slot);
        self.log.events.push(Event { bytes: size, slot, thread, pointer: number, stream, action: Action::Free });
    }

    fn finish(mut self) -> Result<Log> {
        let mut log = self.log;
        if log.rows == 0 {
            return Err(Error::invalid(format!(
                "{} holds a header and no events: there is nothing to replay (was the log flushed before the program \
                 ended?)",
                log.name
            )));
        }
        log.pointers = self.pointers.len() as u32;
        log.peak_live_bytes = u64::try_from(self.peak).unwrap_or(u64::MAX);
        log.left_live = self.live.values().map(|here| here.len() as u64).sum();
        if let Some((first, last)) = self.clock {
            log.duration_us = Some(last.saturating_sub(first) / 1000);
        } else if let (true, Some(first)) = (self.times_known, self.first_time) {
            let mut span = self.last_time - first;
            if span < 0 {
                // A clock without a date that has passed midnight.
                span += 24 * 3600 * 1_000_000;
            }
            log.duration_us = u64::try_from(span).ok();
        }
        log.events.shrink_to_fit();
        self.live.clear();
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn read(lines: &str) -> Log {
        Log::read("x.csv", format!("{HEADER}{lines}").as_bytes()).unwrap()
    }

    fn refused(text: impl AsRef<[u8]>) -> String {
        Log::read("x.csv", text.as_ref()).unwrap_err().to_string()
    }

    #[test]
    fn frees_find_their_allocations_and_slots_are_reused() {
        let log = read(
            "1,16:00:00.000001,allocate,0x10,100,0\n1,16:00:00.000002,allocate,0x20,50,0x7f00\n\
             2,16:00:00.000003,free,0x10,100,0x7f00\n2,16:00:00.000013,allocate,0x10,200,(nil)\n",
        );
        let e = |bytes, slot, thread, pointer, stream, action| Event { bytes, slot, thread, pointer, stream, action };
        assert_eq!(
            log.events,
            [
                e(100, 0, 0, 0, 0, Action::Allocate),
                e(50, 1, 0, 1, 1, Action::Allocate),
                e(100, 0, 1, 0, 1, Action::Free),
                e(200, 0, 1, 0, 0, Action::Allocate),
            ]
        );
        assert_eq!((log.rows, log.threads, log.slots, log.pointers), (4, 2, 2, 2));
        assert_eq!(size_of::<Event>(), 24);
        assert_eq!(log.streams, [0, 0x7f00], "(nil) and 0 are the same stream");
        assert_eq!((log.peak_live_bytes, log.peak_event, log.left_live), (250, 3, 2));
        assert_eq!(log.duration_us, Some(12));
    }

    #[test]
    fn an_unknown_free_is_counted_and_skipped() {
        let log = read("1,16:00:00.0,free,0x99,100,0\n1,16:00:00.0,allocate,0x10,1,0\n");
        assert_eq!((log.unknown_frees, log.rows, log.events.len()), (1, 2, 1));
    }

    #[test]
    fn requests_of_no_bytes_make_no_call() {
        let log = read("1,16:00:00.0,allocate,(nil),0,0\n1,16:00:00.0,free,(nil),0,0\n1,16:00:00.0,allocate,0x1,1,0\n");
        assert_eq!((log.zero_sized, log.unknown_frees, log.rows, log.events.len()), (1, 0, 3, 1));
    }

    #[test]
    fn failures_are_kept_and_are_not_live() {
        let log = read("1,16:00:00.0,allocate failure,(nil),4096,0\n1,16:00:00.0,allocate,0x10,1,0\n");
        assert_eq!(log.failures, 1);
        assert_eq!(log.events[0].action, Action::Failure);
        assert_eq!((log.peak_live_bytes, log.peak_event), (1, 1));
    }

    #[test]
    fn one_address_twice_keeps_both() {
        let log = read(
            "1,0,allocate,0x10,100,0\n1,0,allocate,0x10,50,0\n1,0,free,0x10,50,0\n1,0,free,0x10,100,0\n\
             1,0,free,0x10,100,0\n",
        );
        assert_eq!((log.overlapping, log.unknown_frees, log.left_live), (1, 1, 0));
        assert_eq!(log.events[2].slot, log.events[1].slot, "the free of 50 bytes takes the allocation of 50 bytes");
    }

    #[test]
    fn a_free_of_another_size_frees_the_allocation() {
        let log = read("1,0,allocate,0x10,100,0\n1,0,free,0x10,7,0\n");
        assert_eq!((log.size_mismatches, log.left_live, log.events[1].bytes), (1, 0, 100));
    }

    #[test]
    fn forms_of_lines_that_are_the_same() {
        let plain = read("1,16:00:00.000001,allocate,0x10,100,0x7f\n1,16:00:00.000002,free,0x10,100,0x7f\n");
        for text in [
            // CRLF, a byte order mark, spaces, quotes, a missing end of the last line, extra columns, another order,
            // empty lines, the older form of the time, the header of a second log
            format!("{HEADER}1,16:00:00.000001,allocate,0x10,100,0x7f\n1,16:00:00.000002,free,0x10,100,0x7f\n")
                .replace('\n', "\r\n"),
            format!("\u{feff}{HEADER}1,16:00:00:000001,allocate,0x10,100,0x7f\n1,16:00:00:000002,free,0x10,100,0x7f"),
            "Thread, Time, Action, Pointer, Size, Stream\n1, 16:00:00.000001, allocate, 0x10, 100, 0x7f\n\n   \n\
             \"1\",\"16:00:00.000002\",\"free\",\"0x10\",\"100\",\"0x7f\"\n"
                .into(),
            "Thread,Time,Action,Pointer,Size,Stream,Tag\n1,16:00:00.000001,allocate,10,100,7f,a\n\
             1,16:00:00.000002,deallocate,0X10,100,127,b,c\n"
                .into(),
            "time,thread,stream,size,pointer,action\n16:00:00.000001,1,0x7f,100,0x10,allocate\n\
             16:00:00.000002,1,0x7f,100,0x10,free\n"
                .into(),
            format!(
                "{HEADER}1,2021-01-01 16:00:00.000001,allocate,0x10,100,0x7f\n{HEADER}\
                 1,2021-01-01 16:00:00.000002,free,0x10,100,0x7f\n"
            ),
        ] {
            let log = Log::read("x.csv", text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(log.events, plain.events, "{text}");
            assert_eq!(log.streams, plain.streams, "{text}");
            assert_eq!(log.duration_us, Some(1), "{text}");
        }
    }

    #[test]
    fn what_tenure_adds_tells_streams_and_days_apart() {
        let header = "Thread,Time,Action,Pointer,Size,Stream,Device,Date,Nanoseconds,Stream id,Outcome,\"Tag\"\n";
        let rows = "1,10:00:00.0,allocate,0x1,5,0x7f,0,2026-01-01,1000,1,ok,\"a, \"\"b\"\"\"\n\
                    1,11:00:00.0,free,0x1,6,0x7f,0,2026-01-01,2000,1,misuse,\"\"\n\
                    1,10:00:00.0,allocate failure,(nil),9,0x7f,0,2026-01-03,3001000,2,out of memory,\"\"\n\
                    1,10:00:00.0,allocate,0x2,5,0,0,2026-01-03,4001000,,ok,\"   \n 1,10:00:00.0,alloc   \"\n";
        let log = Log::read("x.csv", format!("{header}{rows}").as_bytes()).unwrap();
        assert_eq!((log.rows, log.failures, log.left_live, log.size_mismatches), (4, 1, 1, 1));
        assert_eq!(log.streams, [0x7f, 0x7f, 0], "one handle, two streams");
        assert_eq!(log.duration_us, Some(4000));
    }

    #[test]
    fn a_clock_may_pass_midnight_and_an_unknown_one_is_no_error() {
        assert_eq!(read("1,23:59:59.9,allocate,0x1,1,0\n1,00:00:00.1,free,0x1,1,0\n").duration_us, Some(200_000));
        assert_eq!(read("1,tea time,allocate,0x1,1,0\n").duration_us, None);
    }

    #[test]
    fn what_is_no_log_is_named_with_its_line() {
        let wrong = |line: &str| refused(format!("{HEADER}1,0,allocate,0x1,1,0\n{line}\n1,0,free,0x1,1,0\n"));
        for (text, parts) in [
            (refused(""), &["empty", "Thread,Time"][..]),
            (refused("\n\n"), &["empty"]),
            (refused(HEADER), &["no events"]),
            (refused("hello\nworld\n"), &["line 1", "Thread,Time,Action,Pointer,Size,Stream", "\"hello\""]),
            (refused("Thread;Time;Action;Pointer;Size;Stream\n"), &["line 1", "no Thread"]),
            (refused("Thread,Time,Action,Pointer,Size\n"), &["line 1", "no Stream"]),
            (refused("1,16:00:00.0,allocate,0x1,1,0\n"), &["header is missing", "on top"]),
            (refused([0x1f, 0x8b, 8, 0]), &["gzip"]),
            (refused([0xff, 0xfe, b'T', 0]), &["UTF-16"]),
            (refused(b"\x7fELF\x02\x01\x01\0\0\0"), &["zero bytes"]),
            (refused([0xc3, 0x28, 0xa0, b'\n']), &["line 1", "expected the columns"]),
            (wrong("1,0,grow,0x1,1,0"), &["x.csv, line 3", "\"grow\"", "allocate failure"]),
            (wrong("1,0,allocate,here,1,0"), &["line 3", "pointer \"here\""]),
            (wrong("1,0,allocate,0x1,-1,0"), &["line 3", "size \"-1\""]),
            (wrong("1,0,allocate,0x1,1GiB,0"), &["line 3", "size \"1GiB\""]),
            (wrong("1,0,allocate,0x1,1,main"), &["line 3", "stream \"main\""]),
            (wrong("1,0,allocate,0x1"), &["line 3", "4 of 6 fields", "expected Thread"]),
            (wrong(",0,allocate,0x1,1,0"), &["line 3", "thread is empty"]),
        ] {
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in: {text}");
            }
            assert!(!text.contains('\n'), "one line: {text}");
        }
    }

    #[test]
    fn a_log_that_was_cut_off_says_so_wherever_the_cut_is() {
        let whole = format!("{HEADER}1,16:00:00.0,allocate,0x10,100,0x7f\n1,16:00:00.0,free,0x10,100,0x7f\n");
        let last = whole[..whole.len() - 1].rfind('\n').unwrap() + 1;
        // Up to the start of the last field every cut leaves a line that cannot be an event; a cut in the last field
        // leaves a good line with another stream.
        for cut in last + 1..whole.len() - 4 {
            let text = refused(&whole[..cut]);
            assert!(text.contains("line 3") && text.contains("last line"), "{:?}: {text}", &whole[last..cut]);
        }
        assert!(refused(&whole[..20]).contains("line 1"));
    }

    #[test]
    fn any_thread_name_counts() {
        let log = read("main,0,allocate,0x1,1,0\nworker,0,allocate,0x2,1,0\n7,0,allocate,0x3,1,0\n7,0,free,0x3,1,0\n");
        assert_eq!(log.threads, 3);
    }

    #[test]
    fn sizes_near_the_end_of_the_range_are_read() {
        let log = read(&format!("1,0,allocate,0x1,{0},0\n1,0,allocate,0x2,{0},0\n1,0,free,0x1,{0},0\n", u64::MAX));
        assert_eq!(log.peak_live_bytes, u64::MAX);
    }

    #[test]
    fn a_file_that_is_not_there_or_is_a_directory() {
        let missing = Log::open(Path::new("no/such/log.csv")).unwrap_err().to_string();
        assert!(missing.contains("no such file") && missing.contains("no/such/log.csv"), "{missing}");
        let directory = Log::open(Path::new(".")).unwrap_err().to_string();
        assert!(directory.contains("directory"), "{directory}");
    }
}
