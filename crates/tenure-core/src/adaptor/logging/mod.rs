//! Writes a row of CSV for each allocation and each free that passes: RMM's log, and what RMM's leaves out.
//!
//! ```text
//!  allocate:  upstream, then the row       so that the row of a free, which comes
//!  free:      the row, then the upstream   first, is before that of the next owner
//! ```
//!
//! | column | holds |
//! |---|---|
//! | `Thread` | the number that the system gives the thread |
//! | `Time` | local wall time, `HH:MM:SS.` and microseconds |
//! | `Action` | `allocate`, `free`, `allocate failure`; `free failure` for a free that was refused |
//! | `Pointer` | hexadecimal; `(nil)` for a failure |
//! | `Size` | bytes asked for |
//! | `Stream` | the driver's handle, hexadecimal; `0` for null |
//! | `Device` | the device's ordinal |
//! | `Date` | the local day, `YYYY-MM-DD` |
//! | `Nanoseconds` | the monotonic clock: it orders rows across midnight and time changes |
//! | `Stream id` | a number that no other stream gets, where a handle is used again; empty for default streams |
//! | `Outcome` | `ok`, or a word for what went wrong |
//! | `Tag` | what the program calls its work; always quoted |
//!
//! # Order
//! The rows about one address are in the order in which it had its owners: the row of a free stands before the memory goes
//! back, that of an allocation is written after it came. So a log can be replayed ([`crate::trace`]), whatever the threads
//! did. The free that the upstream does not want to do without waiting is not logged: its row is taken back.
//!
//! # Which file
//! [`Logging::new`] takes a name as it is; [`file_name`] makes one as RMM's Python package does: `RMM_LOG_FILE` where none is
//! given, `.devN` before the extension. Two adaptors of a process that name one file share it, and the second does not empty
//! it. A file that another process is writing is refused. `file` says how every row is in the file at once.
//!
//! # Cost
//! About 70 ns a row, 140 ns for an allocation and its free, of which a reading of the clock takes 20 each; on average twice
//! that, since the system needs 2 us for each page of the file. Threads that log to one file take turns for the time of a copy
//! of 120 bytes.

use std::any::Any;
use std::path::{Path, PathBuf};

use self::file::{LogFile, Place};
use self::row::{Row, Word};
use crate::adaptor::limiting::sign;
use crate::error::{Error, Result};
use crate::resource::{Block, Info, MemoryResource, Properties, Request, Resource};
use crate::stream::StreamRef;
use crate::sync::Arc;
use crate::thread::Local;

mod fault;
mod file;
mod row;

pub use row::COLUMNS;

/// The variable that names the log where nobody else does.
pub const VARIABLE: &str = "RMM_LOG_FILE";

/// Logs what passes through it.
pub struct Logging {
    upstream: Resource,
    /// The upstream's; `None` where each call's stream says it.
    device: Option<i32>,
    file: Arc<LogFile>,
}

impl std::fmt::Debug for Logging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logging({})", self.file_name().display())
    }
}

/// The name of a log: `given`, or what `RMM_LOG_FILE` says; with `.devN` before the extension where a `device` is given.
///
/// # Errors
/// [`Error::Invalid`] when there is no name.
pub fn file_name(given: Option<&Path>, device: Option<i32>) -> Result<PathBuf> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => PathBuf::from(std::env::var_os(VARIABLE).unwrap_or_default()),
    };
    if name.as_os_str().is_empty() {
        return Err(Error::invalid(
            "a log needs a file: pass log_file_name, or set the environment variable RMM_LOG_FILE",
        ));
    }
    let Some(device) = device else { return Ok(name) };
    let mut last = name.file_stem().unwrap_or_default().to_owned();
    last.push(format!(".dev{device}"));
    if let Some(extension) = name.extension() {
        last.push(".");
        last.push(extension);
    }
    Ok(name.with_file_name(last))
}

/// Leaves the logs of the process without anything behind their last rows. For the end of the process.
pub fn finish_all() {
    file::finish_all();
}

impl Logging {
    /// Logs what passes to `upstream` into the file `name`, which is emptied.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file that cannot be written; nothing was created.
    pub fn new(upstream: Resource, name: &Path) -> Result<Self> {
        let file = file::open(name)?;
        let device = upstream.body().device();
        Ok(Self { upstream, device, file })
    }

    /// The absolute name of the file.
    pub fn file_name(&self) -> &Path {
        self.file.path()
    }

    /// Ends the file behind the last row. Every row is in the file without it, followed by spaces.
    ///
    /// # Errors
    /// [`Error::Invalid`] when rows could not be written.
    pub fn flush(&self) -> Result<()> {
        self.file.flush()
    }

    /// Writes a row. `ask`: the driver may be asked about a stream that nobody else knows.
    #[inline]
    fn log(
        &self,
        action: &'static Word,
        ptr: u64,
        request: &Request,
        stream: StreamRef<'_>,
        ask: bool,
    ) -> Option<Place> {
        self.write(action, ptr, request, stream, ask, &row::OK)
    }

    fn write(
        &self,
        action: &'static Word,
        ptr: u64,
        request: &Request,
        stream: StreamRef<'_>,
        ask: bool,
        outcome: &'static Word,
    ) -> Option<Place> {
        let device = match (self.device, stream.object) {
            (Some(device), _) => device,
            (None, Some(object)) => object.device(),
            (None, None) => crate::device::current().unwrap_or(-1),
        };
        let stream_id = match stream.object {
            Some(object) if !stream.raw.is_special() => object.id(),
            None if ask => asked(stream).unwrap_or(0),
            _ => 0,
        };
        let raw = stream.raw.addr() as u64;
        let row = Row { action, ptr, bytes: request.bytes as u64, stream: raw, device, stream_id, outcome };
        let tag = crate::observe::current_tag().map(|tag| row::escaped(&tag));
        row::with_text(&row, |text| self.file.append(text, tag.as_deref().unwrap_or_default()))
    }

    fn allocated(&self, request: &Request, stream: StreamRef<'_>, ask: bool, made: Result<u64>) -> Result<u64> {
        match made {
            Ok(ptr) => {
                self.log(&row::ALLOCATE, ptr, request, stream, ask);
                Ok(ptr)
            }
            Err(Error::WouldBlock) => Err(Error::WouldBlock),
            Err(error) => {
                self.write(&row::ALLOCATE_FAILURE, 0, request, stream, ask, row::outcome(&error));
                Err(sign(error, self.kind()))
            }
        }
    }

    /// Logs a free and does it.
    fn free(
        &self,
        ptr: u64,
        request: &Request,
        stream: StreamRef<'_>,
        ask: bool,
        free: impl FnOnce(&dyn MemoryResource) -> Result<()>,
    ) -> Result<()> {
        let place = self.log(&row::FREE, ptr, request, stream, ask);
        free(self.upstream.body()).inspect_err(|error| {
            if let Some(place) = place {
                self.file.retract(place);
            }
            if !matches!(error, Error::WouldBlock) {
                self.write(&row::FREE_FAILURE, ptr, request, stream, ask, row::outcome(error));
            }
        })
    }
}

/// The driver's number of a stream that came as a raw value. Most questions end a capture that is under way, so that it is
/// asked about that first.
fn asked(stream: StreamRef<'_>) -> Option<u64> {
    if stream.stored || stream.raw.is_special() {
        return None;
    }
    let driver = crate::device::driver().ok()?;
    let capturing = !driver.stream_capture_status(stream.raw).ok()?.is_none();
    if capturing { None } else { driver.stream_id(stream.raw).ok() }
}

impl MemoryResource for Logging {
    fn kind(&self) -> &'static str {
        "logging"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(request, stream, true, self.upstream.body().allocate(request, stream))
    }

    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, stream, true, |upstream| upstream.deallocate(ptr, request, stream))
    }

    #[inline]
    fn allocate_at_hand(
        &self,
        request: &Request,
        stream: StreamRef<'_>,
        here: &Local,
    ) -> Option<Result<u64, Box<Error>>> {
        let made = self.upstream.body().allocate_at_hand(request, stream, here)?;
        if let Ok(ptr) = &made {
            self.log(&row::ALLOCATE, *ptr, request, stream, false);
        }
        Some(made)
    }

    #[inline]
    fn deallocate_at_hand(&self, ptr: u64, request: &Request, stream: StreamRef<'_>, here: &Local) -> bool {
        let place = self.log(&row::FREE, ptr, request, stream, false);
        let done = self.upstream.body().deallocate_at_hand(ptr, request, stream, here);
        if let (false, Some(place)) = (done, place) {
            self.file.retract(place);
        }
        done
    }

    fn try_allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.allocated(request, stream, false, self.upstream.body().try_allocate(request, stream))
    }

    fn try_deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.free(ptr, request, stream, false, |upstream| upstream.try_deallocate(ptr, request, stream))
    }

    fn allocate_sync(&self, request: &Request) -> Result<u64> {
        self.allocated(request, StreamRef::DEFAULT, false, self.upstream.body().allocate_sync(request))
    }

    fn deallocate_sync(&self, ptr: u64, request: &Request) -> Result<()> {
        self.free(ptr, request, StreamRef::DEFAULT, false, |upstream| upstream.deallocate_sync(ptr, request))
    }

    fn device(&self) -> Option<i32> {
        self.upstream.body().device()
    }

    fn properties(&self) -> Properties {
        self.upstream.body().properties()
    }

    fn find(&self, ptr: u64) -> Option<Block> {
        self.upstream.body().find(ptr)
    }

    fn info(&self) -> Info {
        self.upstream.body().info()
    }

    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        self.upstream.body().trim(keep_bytes)
    }

    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_stands_before_the_extension() {
        let name = |given: &str, device| file_name(Some(Path::new(given)), device).expect("a name");
        assert_eq!(name("/a/rmm.log", Some(0)), Path::new("/a/rmm.dev0.log"));
        assert_eq!(name("log, with comma.csv", Some(12)), Path::new("log, with comma.dev12.csv"));
        assert_eq!(name("a.b/plain", Some(1)), Path::new("a.b/plain.dev1"));
        assert_eq!(name("a/.hidden", Some(1)), Path::new("a/.hidden.dev1"));
        assert_eq!(name("a/b.csv", None), Path::new("a/b.csv"));
        assert!(file_name(Some(Path::new("")), None).unwrap_err().to_string().contains("RMM_LOG_FILE"));
    }
}
