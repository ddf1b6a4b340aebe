//! The file of a log: complete after every row, without a system call for a row.
//!
//! The end of the file is mapped into memory and shared with the system, so that a row which has been stored there is in the
//! file, whatever becomes of the process. A file has a length, though, and cannot be lengthened without a system call; so it
//! is ahead of its rows, and what lies between must mean nothing to a reader. It is the inside of a quoted field:
//!
//! ```text
//!  ...,ok,"tag"           the tags of all rows but the last are closed
//!  ...,ok,"tag            the last one's is not: it goes on, with spaces,
//!                         to the end of the file,                        "
//! ```
//!
//! A new row is stored into those spaces, where its commas and its end of line mean nothing yet. Then one byte, a quote,
//! closes the tag before it, which makes it a row with a last field that is not quoted; and one byte, the quote that opens
//! its own tag, makes that a quoted field again. A row is taken back the same way, in the other order.
//!
//! The file grows by an even number of quotes: two of them are a quote within the field, and the last one closes it as ever.
//! They become spaces two by two. It shrinks to its last row ([`LogFile::flush`]) by two quotes at the row's end, of which
//! the second is cut off.
//!
//! So the file is good CSV at each of these moments, and a process may be killed between any two instructions.
//!
//! # Invariants
//! * `tail` is where the quote goes that closes the last row's tag; [`SPARE`] bytes from there on are within the file.
//! * While `open`, the file has an even length, its last byte is a quote, all between `tail` and that is spaces, and the
//!   window reaches from `tail` to the end. Otherwise the quote and an end of line are at `tail`, and the file ends there.
//! * One [`LogFile`] per file in the process, whatever name it was opened by; another process is refused ([`open`]).
//! * A child that was forked has no mapping and writes nothing.
//! * Where somebody else empties or shortens the file it is begun anew, with the row that found out (`fault`).
//!
//! # Cost
//! A row: one lock, and a copy of some 120 bytes. Every [`STEP`] bytes three system calls. Where a file cannot be mapped, a
//! system call for each row.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fault::Guarded;
use super::row::COLUMNS;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use crate::sync::{Arc, Mutex, Weak};

/// Bytes that the file is ahead of its rows, at most: a reader sees them in one field, and Python's `csv` refuses a field of
/// more than 128 KiB.
const STEP: u64 = 96 << 10;
/// Lengths of the file are multiples of it while it is open.
const GRAIN: u64 = 4096;
/// Bytes that stay free behind a row: two quotes, and what keeps lengths even.
const SPARE: u64 = 4;
/// Mappings start at a multiple of this: the largest page size of the systems that tenure runs on.
const PAGE: u64 = 64 << 10;

/// A file that rows are written to.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Device and inode: what the file is, whatever it is called.
    identity: (u64, u64),
    sheet: Mutex<Sheet>,
}

/// The end of the file.
struct Sheet {
    tail: u64,
    /// The length of the file.
    end: u64,
    open: bool,
    window: Option<Window>,
    /// The file cannot be mapped: each row is a system call.
    single: bool,
    /// How often the file was begun anew: a place in an older one is no place in this one.
    begun: u64,
    /// Why nothing is written any more, and how many rows that has cost.
    broken: Option<(io::Error, u64)>,
}

/// A part of the file in memory.
struct Window {
    at: *mut u8,
    start: u64,
    len: usize,
    guarded: Guarded,
}

// SAFETY: the mapping is owned by this value and used under the lock of its sheet.
unsafe impl Send for Window {}

impl Window {
    fn new(file: &File, start: u64, end: u64) -> Option<Self> {
        let len = usize::try_from(end - start).ok()?;
        // SAFETY: a new mapping, at an address of the system's choice, affects nothing that exists.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                libc::off_t::try_from(start).ok()?,
            )
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        // A child must not write into its parent's file, and a fork is quicker without. Where that cannot be had, the child
        // keeps from it by itself (`LogFile::usable`).
        // SAFETY: the range is the mapping that was just made.
        unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) };
        Some(Self { at: at.cast(), start, len, guarded: Guarded::new(at.addr(), len) })
    }

    /// Where the `len` bytes from `offset` on are in memory.
    fn place(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        // SAFETY: `from` and the bytes behind it are within the mapping.
        (from.checked_add(len)? <= self.len).then(|| unsafe { self.at.add(from) })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !tenure_driver::process::forked() {
            // Before the addresses are anybody else's.
            self.guarded = Guarded::none();
            // SAFETY: the mapping is this value's and nobody uses it any more.
            unsafe { libc::munmap(self.at.cast(), self.len) };
        }
    }
}

/// Stores one byte that makes everything stored before it count.
fn publish(at: *mut u8, byte: u8) {
    // SAFETY: the caller's pointer is into a mapping that is written under its lock.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Release);
    // Nothing that comes later is stored before it either. What counts is the order of this thread's instructions: they are
    // what a kill comes between.
    compiler_fence(Ordering::SeqCst);
}

/// A row that can be taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Where the quote is that closes the tag of the row before.
    close: u64,
    /// Bytes from there to the quote that opens the row's own tag, both included.
    body: usize,
    /// Bytes of the tag.
    tag: usize,
    /// In which file.
    begun: u64,
}

/// The files that this process writes.
static FILES: Mutex<Vec<Weak<LogFile>>> = Mutex::new(Vec::new());

/// Opens a log, empties it and writes the header; a file that this process writes already is shared as it is.
///
/// # Errors
/// [`Error::Invalid`] with the name and what to do, for what cannot be opened, is no regular file, or is written by another
/// process. Nothing was created or changed.
pub(super) fn open(path: &Path) -> Result<Arc<LogFile>> {
    let path = std::path::absolute(path).map_err(|e| refused(path, &e.to_string()))?;
    // A fork must be seen from now on, also before the driver is used.
    tenure_driver::process::arm();
    let mut files = FILES.lock();
    files.retain(|file| file.strong_count() > 0);
    let (file, created) = open_or_create(&path).map_err(|e| {
        let why = match e.kind() {
            io::ErrorKind::NotFound => "its folder does not exist: make it, or choose another".to_owned(),
            io::ErrorKind::PermissionDenied => "this user may not write there: choose another folder".to_owned(),
            io::ErrorKind::IsADirectory => "it is a directory: name a file in it".to_owned(),
            _ => format!("{e}: choose another file"),
        };
        refused(&path, &why)
    })?;
    let log = begin(&path, file, &files);
    match log {
        Ok(log) => {
            files.push(Arc::downgrade(&log));
            Ok(log)
        }
        Err(error) => {
            if created {
                // It is empty and nobody knows of it.
                let _ = std::fs::remove_file(&path);
            }
            Err(error)
        }
    }
}

fn refused(path: &Path, why: &str) -> Error {
    Error::invalid(format!("the log file {} cannot be written: {why}", path.display()))
}

/// True with the file: it was not there before.
fn open_or_create(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        // `create` for a link whose target is not there.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok((options.create(true).open(path)?, false)),
        Err(e) => Err(e),
    }
}

fn begin(path: &Path, file: File, files: &[Weak<LogFile>]) -> Result<Arc<LogFile>> {
    let io = |e: io::Error| refused(path, &format!("{e}: choose another file"));
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(refused(path, "it is no regular file: a log is written at its end and read from its start"));
    }
    let identity = (meta.dev(), meta.ino());
    if let Some(known) = files.iter().filter_map(Weak::upgrade).find(|known| known.identity == identity) {
        return Ok(known);
    }
    // SAFETY: the descriptor is the file's.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0
        && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    {
        return Err(refused(
            path,
            "another process is writing it; give each process a name of its own, with its number in it for example",
        ));
    }
    let sheet = Sheet::begin(&file).map_err(io)?;
    Ok(Arc::new(LogFile { path: path.to_owned(), file, identity, sheet: Mutex::new(sheet) }))
}

/// Leaves every log of the process as its reader wants it: nothing behind the last row. For the end of the process.
pub(super) fn finish_all() {
    if !LogFile::usable() {
        return;
    }
    // Other threads may still be at work, and one may have ended with a lock held: nothing is waited for in vain.
    let Some(files) = FILES.try_lock_for(Duration::from_millis(100)) else { return };
    for file in files.iter().filter_map(Weak::upgrade) {
        if let Some(mut sheet) = file.sheet.try_lock_for(Duration::from_millis(100)) {
            let _ = sheet.trim(&file.file);
        }
    }
}

impl LogFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this process may write the file: a forked child may not.
    fn usable() -> bool {
        !tenure_driver::process::forked()
    }

    /// Writes a row: `text` from the end of the line before to the comma before its tag, and the tag without its quotes.
    /// `None` where it could not be written.
    pub(super) fn append(&self, text: &[u8], tag: &[u8]) -> Option<Place> {
        if !Self::usable() {
            return None;
        }
        self.sheet.lock().append(&self.file, text, tag)
    }

    /// Takes a row back: no reader will see it.
    pub(super) fn retract(&self, place: Place) {
        if Self::usable() {
            self.sheet.lock().retract(&self.file, place);
        }
    }

    /// Ends the file behind the last row.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the name, the reason, and the number of rows that are missing.
    pub(super) fn flush(&self) -> Result<()> {
        if !Self::usable() {
            return Ok(());
        }
        let mut sheet = self.sheet.lock();
        let trimmed = sheet.trim(&self.file);
        if let Some((error, lost)) = &sheet.broken {
            let path = self.path.display();
            return Err(Error::invalid(format!(
                "the log file {path} could not be written on: {error}; it lacks the last {lost} rows: make room and log to another file"
            )));
        }
        trimmed.map_err(|e| refused(&self.path, &e.to_string()))
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        if Self::usable() {
            let _ = self.sheet.get_mut().trim(&self.file);
        }
    }
}

impl Sheet {
    /// Empties the file and writes the header.
    fn begin(file: &File) -> io::Result<Self> {
        let mut header = COLUMNS.join(",");
        // The last field of every line is quoted, since the file goes on inside it.
        header.insert(header.len() - COLUMNS[COLUMNS.len() - 1].len(), '"');
        header.push_str("\"\n");
        file.set_len(0)?;
        file.write_all_at(header.as_bytes(), 0)?;
        let end = header.len() as u64;
        Ok(Self { tail: end - 2, end, open: false, window: None, single: false, broken: None, begun: 0 })
    }

    /// Begins anew where somebody else has shortened the file.
    fn check(&mut self, file: &File) -> io::Result<()> {
        if file.metadata()?.len() < self.end {
            log::warn!("tenure: somebody has shortened a log file while it was written; it is begun anew");
            *self = Self { begun: self.begun + 1, ..Self::begin(file)? };
        }
        Ok(())
    }

    fn append(&mut self, file: &File, text: &[u8], tag: &[u8]) -> Option<Place> {
        let place = self.store(file, text, tag);
        if self.window.as_ref().is_some_and(|window| window.guarded.faulted()) {
            // The row went nowhere.
            if let Err(error) = self.check(file) {
                self.broken = Some((error, 1));
                return None;
            }
            return self.store(file, text, tag);
        }
        place
    }

    fn store(&mut self, file: &File, text: &[u8], tag: &[u8]) -> Option<Place> {
        if let Some((_, lost)) = &mut self.broken {
            *lost += 1;
            return None;
        }
        // Quote, text, quote, tag.
        let row = 2 + text.len() + tag.len();
        if (!self.open || self.tail + row as u64 + SPARE > self.end)
            && !self.single
            && let Err(error) = self.lengthen(file, row)
        {
            log::warn!("tenure: a log file cannot be written on, and nothing more is logged to it: {error}");
            self.broken = Some((error, 1));
            return None;
        }
        let place = Place { close: self.tail, body: 2 + text.len(), tag: tag.len(), begun: self.begun };
        match self.window.as_ref().filter(|_| self.open).and_then(|window| window.place(self.tail, row)) {
            Some(close) => {
                // SAFETY: the row is within the mapping; the lock is held.
                unsafe {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), close.add(1), text.len());
                    publish(close, b'"');
                    let own = close.add(1 + text.len());
                    publish(own, b'"');
                    std::ptr::copy_nonoverlapping(tag.as_ptr(), own.add(1), tag.len());
                }
            }
            None => {
                let mut whole = Vec::with_capacity(row + 2);
                whole.push(b'"');
                whole.extend_from_slice(text);
                whole.push(b'"');
                whole.extend_from_slice(tag);
                whole.extend_from_slice(b"\"\n");
                if let Err(error) = file.write_all_at(&whole, self.tail) {
                    self.broken = Some((error, 1));
                    return None;
                }
                self.end = self.tail + whole.len() as u64;
            }
        }
        self.tail += row as u64;
        Some(place)
    }

    /// Makes room for `row` bytes behind the last row, and maps it.
    #[cold]
    fn lengthen(&mut self, file: &File, row: usize) -> io::Result<()> {
        self.check(file)?;
        if !self.open {
            // The end of the line goes, so that a quote is the last byte; and that makes the length even.
            if self.tail.is_multiple_of(2) {
                file.write_all_at(b" \"", self.tail)?;
                self.end = self.tail + 2;
            } else {
                file.set_len(self.tail + 1)?;
                self.end = self.tail + 1;
            }
        }
        let before = self.end;
        let end = (self.tail + row as u64 + STEP).next_multiple_of(GRAIN);
        // Written, not skipped: the system then has the room, and a full disk is an error here, not a signal later. What of
        // it is there when the process is killed is whole pages, hence an even number of quotes.
        let grown = file.write_all_at(&vec![b'"'; (end - before) as usize], before);
        let window = match grown {
            Ok(()) => Window::new(file, self.tail - self.tail % PAGE, end),
            Err(error) => {
                let _ = file.set_len(before);
                self.open = true;
                self.trim(file)?;
                return Err(error);
            }
        };
        let spaces = (end - before) as usize;
        match window.as_ref().and_then(|window| window.place(before - 1, spaces)) {
            // SAFETY: within the mapping; the lock is held.
            Some(at) => unsafe { blank_in_pairs(at, spaces) },
            // Not to be had for this file: row by row, then.
            None => {
                file.set_len(before)?;
                self.open = true;
                self.single = true;
                return self.trim(file);
            }
        }
        (self.end, self.open, self.window) = (end, true, window);
        Ok(())
    }

    fn retract(&mut self, file: &File, place: Place) {
        if place.begun != self.begun {
            return;
        }
        let whole = place.body + place.tag;
        let last = self.tail == place.close + whole as u64;
        match self.window.as_ref().and_then(|window| window.place(place.close, whole)) {
            Some(close) if self.open => {
                // SAFETY: all within the mapping; the lock is held.
                unsafe {
                    let own = close.add(place.body - 1);
                    close.add(place.body).write_bytes(b' ', place.tag);
                    publish(own, b' ');
                    publish(close, b' ');
                    close.add(1).write_bytes(b' ', place.body - 2);
                }
                if last {
                    self.tail = place.close;
                }
            }
            // The tag of the row before goes on to the quote that closes this one's.
            _ => {
                if let Err(error) = file.write_all_at(&vec![b' '; whole], place.close) {
                    log::warn!("tenure: a row of a log file cannot be taken back: {error}");
                }
            }
        }
    }

    /// Ends the file behind the last row.
    fn trim(&mut self, file: &File) -> io::Result<()> {
        self.check(file)?;
        if !self.open {
            return Ok(());
        }
        if let Some(at) = self.window.as_ref().and_then(|window| window.place(self.tail, 2))
            && self.tail + 2 < self.end
        {
            // Two quotes are a quote within the field, so that it still ends at the end of the file; and when the file is
            // cut between them, the first of them ends it.
            // SAFETY: within the mapping; the lock is held.
            unsafe { store_two(at, b'"') };
            file.set_len(self.tail + 1)?;
            self.end = self.tail + 1;
        }
        self.close(file)
    }

    /// Ends the line of the last row in an open file of which nothing, or one space, lies between its tag and the last quote.
    fn close(&mut self, file: &File) -> io::Result<()> {
        self.open = false;
        if self.end == self.tail + 1 {
            file.write_all_at(b"\n", self.end)?;
        } else {
            file.write_all_at(b"\"\n", self.tail)?;
        }
        self.end = self.tail + 2;
        Ok(())
    }
}

/// Stores two bytes at once.
///
/// # Safety
/// `at` and the byte behind it are in a mapping whose lock is held.
unsafe fn store_two(at: *mut u8, byte: u8) {
    // One instruction on every processor that tenure runs on, aligned or not.
    // SAFETY: as the caller says.
    unsafe { at.cast::<u16>().write_unaligned(u16::from_ne_bytes([byte; 2])) };
    compiler_fence(Ordering::SeqCst);
}

/// Makes `count` bytes, an even number, spaces, in instructions of which each stores an even number of them.
///
/// # Safety
/// The bytes are in a mapping whose lock is held.
unsafe fn blank_in_pairs(at: *mut u8, count: usize) {
    let mut done = 0;
    while done + 8 <= count {
        // SAFETY: as the caller says.
        unsafe { at.add(done).cast::<u64>().write_unaligned(u64::from_ne_bytes([b' '; 8])) };
        // Else the loop would become a copy that may be interrupted after any byte.
        compiler_fence(Ordering::SeqCst);
        done += 8;
    }
    while done + 2 <= count {
        // SAFETY: as the caller says.
        unsafe { store_two(at.add(done), b' ') };
        done += 2;
    }
}
