//! Looking inside: tags, accounts, snapshots, history, reports of a run.
//!
//! ```
//! use tenure::{DeviceBuffer, Stream, observe};
//!
//! let stream = Stream::create()?;
//! let buffer = {
//!     let _tag = observe::tag("loader")?;
//!     DeviceBuffer::new(1 << 20, &stream)?
//! };
//! let loader = observe::usage(observe::By::Tag)?.into_iter().find(|account| account.name == "loader");
//! assert_eq!(loader.map(|account| account.live_bytes), Some(1 << 20));
//! assert!(observe::memory_snapshot()?.contains("\"loader\""));
//! drop(buffer);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! Nothing is kept before the first tag, [`observe`], [`record_history`], or [`report_begin`]. The fields of a snapshot are described in
//! `docs/looking-inside.md`.
//!
//! Unsafe in this file: calls through the table, and the function that it calls back.

use std::ffi::{CString, c_void};
use std::marker::PhantomData;

use tenure_abi::*;

use crate::api;
use crate::error::{Error, Result, check, text};
use crate::report::take_text;

/// A tag of [`tag`], which ends when this is dropped. It belongs to the thread that opened it.
#[must_use = "the tag ends when its guard is dropped"]
pub struct Tag {
    api: &'static tenure_api,
    tag: tenure_tag,
    _thread: PhantomData<*const ()>,
}

/// Opens a tag: what this thread allocates counts under `name` until the guard is dropped. Tags nest; the innermost counts.
///
/// # Errors
/// [`Error::Invalid`] for a name that is empty, longer than 256 bytes, or has a zero byte; [`Error::Load`] without a library.
pub fn tag(name: &str) -> Result<Tag> {
    let api = api()?;
    let name = CString::new(name).map_err(|_| Error::Invalid("a tag cannot have a zero byte".into()))?;
    let mut tag = 0;
    // SAFETY: a C string; the pointer is valid for writing.
    check(api, unsafe { (api.tag_push)(name.as_ptr(), &mut tag) })?;
    Ok(Tag { api, tag, _thread: PhantomData })
}

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tag({:#x})", self.tag)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        // SAFETY: ended once, on the thread that opened it.
        unsafe { (self.api.tag_pop)(self.tag) };
    }
}

/// Books who allocates what from now on, or no more.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn observe(on: bool) -> Result<()> {
    let api = api()?;
    // SAFETY: takes an integer.
    check(api, unsafe { (api.observe)(u32::from(on)) })
}

/// What figures are asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// The tag that was open.
    Tag,
    /// The thread that allocated.
    Thread,
    /// The resource that was asked.
    Resource,
}

/// What one tag, thread or resource has and had. All figures but the counts are bytes, as they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The tag (empty: none was open), the thread's name, the resource and what it stands on.
    pub name: String,
    /// The operating system's number of the thread, the id of the resource; 0 for tags.
    pub id: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_count: u64,
    /// The most bytes that were live at once; too low by at most 1 MiB for each other thread that allocates.
    pub peak_bytes: u64,
    /// The most blocks that were live at once.
    pub peak_count: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
    /// Number of all allocations.
    pub total_count: u64,
}

unsafe extern "C" fn visit(context: *mut c_void, account: *const tenure_account) -> i32 {
    // SAFETY: the context is the list of `usage` below, and the account is valid during the call.
    let (list, account) = unsafe { (&mut *context.cast::<Vec<Usage>>(), &*account) };
    list.push(Usage {
        name: text(account.name),
        id: account.id,
        live_bytes: account.live_bytes,
        live_count: account.live_count,
        peak_bytes: account.peak_bytes,
        peak_count: account.peak_count,
        total_bytes: account.total_bytes,
        total_count: account.total_count,
    });
    0
}

/// The figures of each tag, thread or resource that allocated since the book was begun, those with most live bytes first.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn usage(by: By) -> Result<Vec<Usage>> {
    let api = api()?;
    let by = match by {
        By::Tag => TENURE_BY_TAG,
        By::Thread => TENURE_BY_THREAD,
        By::Resource => TENURE_BY_RESOURCE,
    };
    let mut list: Vec<Usage> = Vec::new();
    // SAFETY: the function is called during this call only, with this list.
    check(api, unsafe { (api.usage)(by, Some(visit), (&raw mut list).cast()) })?;
    Ok(list)
}

/// All memory as JSON: resources, live blocks, threads, and the recorded events.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn memory_snapshot() -> Result<String> {
    let api = api()?;
    take_text(api, |out| {
        // SAFETY: the pointer is valid for writing.
        unsafe { (api.memory_snapshot)(out) }
    })
}

/// Records events from now on, the last `max_entries` of them (0: 100 000); what was recorded before is forgotten. With
/// `stacks`, where something in the process can tell stacks: Python can.
///
/// # Errors
/// [`Error::Invalid`] for a number that is too large; [`Error::Load`] without a library.
pub fn record_history(stacks: bool, max_entries: usize) -> Result<()> {
    let api = api()?;
    // SAFETY: takes integers.
    check(api, unsafe { (api.history_record)(1, u32::from(stacks), max_entries) })
}

/// Records no more. What was recorded stays for snapshots.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn end_history() -> Result<()> {
    let api = api()?;
    // SAFETY: takes integers.
    check(api, unsafe { (api.history_record)(0, 0, 0) })
}

/// Counts for a report from now on, with what was counted before forgotten. With `stacks`, with lines of who allocates, where
/// something in the process can tell them: Python can.
///
/// While it counts, each call costs two readings of the clock, the book and one lock of the process more.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn report_begin(stacks: bool) -> Result<()> {
    let api = api()?;
    // SAFETY: takes integers.
    check(api, unsafe { (api.report_begin)(1, u32::from(stacks)) })
}

/// Counts no more. What was counted stays to be read.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn report_end() -> Result<()> {
    let api = api()?;
    // SAFETY: takes integers.
    check(api, unsafe { (api.report_begin)(0, 0) })
}

/// What was counted, as JSON: the peak and who held what at it, what was reserved, the time spent in allocation, and the blocks
/// that are out. `tenure view` and `tenure stats` read it from a file; `docs/tools.md` says what the figures are.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn report() -> Result<String> {
    let api = api()?;
    take_text(api, |out| {
        // SAFETY: the pointer is valid for writing.
        unsafe { (api.report)(out) }
    })
}

/// A library that allocates from tenure, as reports name it.
///
/// ```
/// use tenure::{DeviceBuffer, Stream, observe};
///
/// let mine = observe::Library::named("my library")?;
/// observe::report_begin(false)?;
/// let buffer = {
///     let _here = mine.enter()?;
///     DeviceBuffer::new(1 << 20, &Stream::create()?)?
/// };
/// assert!(observe::report()?.contains("\"my library\""));
/// observe::report_end()?;
/// drop(buffer);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Library(u32);

impl Library {
    /// The library of that name, the same for the same name.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty, longer than 256 bytes, or has a zero byte, and where a process has 63
    /// already; [`Error::Load`] without a library.
    pub fn named(name: &str) -> Result<Self> {
        let api = api()?;
        let name = CString::new(name).map_err(|_| Error::Invalid("a library's name cannot have a zero byte".into()))?;
        let mut number = 0;
        // SAFETY: a C string; the pointer is valid for writing.
        check(api, unsafe { (api.library_number)(name.as_ptr(), &mut number) })?;
        Ok(Self(number))
    }

    /// What this thread allocates is this library's until the guard is dropped. Guards nest and go in the reverse order.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn enter(self) -> Result<InLibrary> {
        let api = api()?;
        let mut previous = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.library_set)(self.0, &mut previous) })?;
        Ok(InLibrary { api, previous, _thread: PhantomData })
    }
}

/// The guard of [`Library::enter`]. It belongs to the thread that entered.
#[must_use = "the library is left when its guard is dropped"]
pub struct InLibrary {
    api: &'static tenure_api,
    previous: u32,
    _thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for InLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InLibrary").field("previous", &self.previous).finish_non_exhaustive()
    }
}

impl Drop for InLibrary {
    fn drop(&mut self) {
        // SAFETY: takes an integer; null is allowed for what was so before.
        unsafe { (self.api.library_set)(self.previous, std::ptr::null_mut()) };
    }
}
