//! Looking inside: who holds what, what happened, and why a request failed.
//!
//! ```text
//!   Named, Buffer: each public entry --on?--> book     address -> bytes, tag, thread, stream, resource, stack
//!                                      |---> account   live, peak, total of each tag, thread and resource
//!                                      '---> history   the last events, where that is wanted
//!   a request that fails for good ----------> notes    what an out-of-memory error says besides its line
//!   whoever asks -------------------------> snapshot   the resources' own walks, joined with the book
//! ```
//!
//! Nothing is kept before somebody wants it: the first tag, [`observe`], or [`history::record`] begins it. What was allocated
//! before is in snapshots, which ask the resources themselves, and has no tag, thread or stack.
//!
//! # Invariants
//! * Every public entry comes by, whatever the resource: layers that call their upstream do not, so that each block is booked
//!   once, under the resource that was asked for it.
//! * An entry leaves the book before its memory can be given to anybody else: it is taken out first and put back where the
//!   free fails. So an address is never booked twice.
//! * No word is written by all threads: the book has shards by address, accounts count in stripes (`adaptor/tally.rs`), each
//!   thread keeps its tag and its account at hand, and the history is kept by groups of threads.
//! * Nothing is called under a lock: not the driver, not a resource, not who tells of stacks.
//!
//! # Cost
//! Nobody looks on: one relaxed load in an allocation or a free, the one that the tools need as well. While the book is kept:
//! the shortest way is closed, and a pair costs some 150 ns more. With stacks, what the language needs to tell them.

pub mod account;
mod book;
pub mod history;
pub mod meter;
pub mod notes;
mod oom_report;
pub mod snapshot;
mod stack;
pub mod tag;

pub use account::{By, Usage, usage};
pub use tag::{Tag, current_tag, pop_tag, push_tag};

use tenure_driver::watch;

use crate::error::{Error, MisuseKind, Result};
use crate::resource::{Batch, Freed, Named, Request};
use crate::stream::StreamRef;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, Ordering};

use book::Entry;
use history::What;

/// A tag has been opened.
const TAGS: u8 = 1;
/// [`observe`] was called.
const ASKED: u8 = 2;
/// Events are recorded.
const HISTORY: u8 = 4;
/// Their stacks, too.
const STACKS: u8 = 8;
/// The meter runs.
const METER: u8 = 16;

static WANTS: AtomicU8 = AtomicU8::new(0);
/// Held while that changes, with what follows from it.
static CHANGING: Mutex<()> = Mutex::new(());

/// Whether the book is kept. One relaxed load.
#[inline]
pub fn is_on() -> bool {
    watch::is_on(watch::OBSERVER)
}

fn wants(what: u8) -> bool {
    WANTS.load(Ordering::Relaxed) & what != 0
}

/// Whether whoever tells of stacks is called at each allocation.
pub(crate) fn asks_for_stacks() -> bool {
    wants(STACKS)
}

/// Whether events are recorded.
#[inline]
fn is_recording() -> bool {
    is_on() && wants(HISTORY)
}

/// Wants something from now on, or no more. The book is kept as long as anything is wanted.
fn want(what: u8, wanted: bool) {
    if wanted && wants(what) && is_on() {
        return;
    }
    let _changing = CHANGING.lock();
    let now = if wanted {
        WANTS.fetch_or(what, Ordering::AcqRel) | what
    } else {
        WANTS.fetch_and(!what, Ordering::AcqRel) & !what
    };
    let keep = now & (TAGS | ASKED | HISTORY | METER) != 0;
    if keep && !is_on() {
        // What a thread booked late, when the book was closed before.
        book::clear();
        watch::begin(watch::OBSERVER);
    } else if !keep && is_on() {
        watch::end(watch::OBSERVER);
        book::clear();
    }
}

/// Keeps the book from now on (`true`), or only as long as something else needs it.
pub fn observe(on: bool) {
    if !on {
        // The first tag keeps it by itself; whoever says no means the tags too.
        want(TAGS, false);
    }
    want(ASKED, on);
}

// --------------------------------------------------------------------------------------------------- the public entries

/// Books what was made, while somebody looks.
#[inline]
fn booked(named: &Named, request: &Request, stream: Option<StreamRef<'_>>, made: Result<u64>) -> Result<u64> {
    if let Ok(ptr) = &made
        && is_on()
    {
        allocated(named, *ptr, request.bytes, stream);
    }
    made
}

/// Makes an allocation of the public entry, and books it.
///
/// # Errors
/// The resource's; out of memory with its [notes].
#[inline]
pub(crate) fn allocate(
    named: &Named,
    request: &Request,
    stream: Option<StreamRef<'_>>,
    make: impl FnOnce() -> Result<u64>,
) -> Result<u64> {
    let made = meter::timed(meter::Call::Allocate, make);
    booked(named, request, stream, made).map_err(|error| failed(named, request.bytes, stream, error))
}

/// [`allocate`] for a call that neither waits nor calls anybody: what it fails with is explained when somebody asks.
///
/// # Errors
/// The resource's.
#[inline]
pub(crate) fn try_allocate(
    named: &Named,
    request: &Request,
    stream: Option<StreamRef<'_>>,
    make: impl FnOnce() -> Result<u64>,
) -> Result<u64> {
    let made = meter::timed(meter::Call::Allocate, make);
    booked(named, request, stream, made).map_err(|error| match error {
        Error::OutOfMemory(mut oom) => {
            (oom.asked, oom.stream) = (named.id(), stream_value(stream));
            Error::OutOfMemory(oom)
        }
        error => error,
    })
}

/// Makes an allocation of many blocks, and books them.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_many(
    named: &Named,
    batch: &Batch<'_>,
    stream: StreamRef<'_>,
    out: &mut [u64],
    make: impl FnOnce(&mut [u64]) -> Result<()>,
) -> Result<()> {
    if let Err(error) = meter::timed(meter::Call::Allocate, || make(out)) {
        let total = usize::try_from(batch.total()).unwrap_or(usize::MAX);
        return Err(failed(named, total, Some(stream), error));
    }
    if is_on() {
        for (at, request) in batch.requests() {
            allocated(named, out[at], request.bytes, Some(stream));
        }
    }
    Ok(())
}

/// Makes a free of the public entry, and takes the block out of the book.
///
/// # Errors
/// The resource's.
#[inline]
pub(crate) fn deallocate(
    owner: u64,
    ptr: u64,
    bytes: usize,
    stream: Option<StreamRef<'_>>,
    free: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if is_on() { deallocate_booked(owner, ptr, bytes, stream, free) } else { free() }
}

#[cold]
fn deallocate_booked(
    owner: u64,
    ptr: u64,
    bytes: usize,
    stream: Option<StreamRef<'_>>,
    free: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // Before the free: the next allocation of the address comes later, also on another thread's clock.
    let time = if wants(HISTORY) { history::now() } else { 0 };
    let entry = book::take(ptr, owner);
    let freed = meter::timed(meter::Call::Free, free);
    match (&freed, entry) {
        (Ok(()), entry) => gone(owner, ptr, bytes, stream, time, entry),
        (Err(error), Some(entry)) if !is_gone(error) => book::put_back(ptr, entry),
        // Another thread freed it in the same moment, and did not find it in the book.
        (Err(_), Some(entry)) => entry.count_out(),
        (Err(_), None) => {}
    }
    freed
}

/// Whether an error of a free says that the block is not live.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Misuse(wrong) if matches!(wrong.kind, MisuseKind::DoubleFree | MisuseKind::UnknownPointer))
}

/// Makes a free of many blocks, and takes them out of the book.
pub(crate) fn deallocate_many(
    named: &Named,
    ptrs: &[u64],
    batch: &Batch<'_>,
    stream: StreamRef<'_>,
    free: impl FnOnce() -> Freed,
) -> Freed {
    if !is_on() {
        return free();
    }
    let time = if wants(HISTORY) { history::now() } else { 0 };
    let entries: Vec<Option<Entry>> = ptrs.iter().map(|ptr| book::take(*ptr, named.id())).collect();
    let freed = meter::measured(meter::Call::Free, |_| true, free);
    for ((ptr, entry), bytes) in ptrs.iter().zip(entries).zip(batch.sizes()) {
        if *ptr == 0 {
            continue;
        }
        let Some(entry) = entry else {
            if freed.wrong.is_none() {
                gone(named.id(), *ptr, *bytes, Some(stream), time, None);
            }
            continue;
        };
        // Only the first that stayed is named; of the others the resource knows.
        let stays = freed.wrong.is_some()
            && named.body().find(*ptr).is_some_and(|block| block.ptr == *ptr && block.owner == named.id());
        if stays {
            book::put_back(*ptr, entry);
        } else {
            gone(named.id(), *ptr, *bytes, Some(stream), time, Some(entry));
        }
    }
    freed
}

fn stream_value(stream: Option<StreamRef<'_>>) -> Option<u64> {
    stream.map(|stream| stream.raw.addr() as u64)
}

#[cold]
fn allocated(named: &Named, ptr: u64, bytes: usize, stream: Option<StreamRef<'_>>) {
    if ptr == 0 {
        return;
    }
    // Before any lock: whoever tells of it may allocate and free.
    let stack = if wants(STACKS) { stack::here() } else { None };
    let who = account::here(named.id());
    let stream = stream_value(stream);
    let recording = wants(HISTORY);
    let time = if recording { history::now() } else { 0 };
    if recording {
        history::note(history::Event {
            time,
            what: What::Allocate,
            ptr,
            bytes: bytes as u64,
            stream,
            resource: named.id(),
            thread: who.thread,
            tag: who.tag,
            stack: stack.clone(),
            detail: None,
        });
    }
    let mark = meter::count_in(named, bytes, who.tag);
    book::enter(ptr, Entry { bytes, stream, time, who, stack, mark });
}

fn gone(owner: u64, ptr: u64, bytes: usize, stream: Option<StreamRef<'_>>, time: u64, entry: Option<Entry>) {
    if time != 0 && wants(HISTORY) {
        let who = account::here(owner);
        let bytes = entry.as_ref().map_or(bytes, |entry| entry.bytes);
        history::note(history::Event {
            what: What::Free,
            time,
            ptr,
            bytes: bytes as u64,
            stream: stream_value(stream),
            // Whose memory it was, not who happened to free it.
            tag: entry.as_ref().map_or(who.tag, |entry| entry.who.tag),
            ..history::Event::of(owner, who)
        });
    }
    if let Some(entry) = entry {
        entry.count_out();
    }
}

/// A request was refused before it came to the resource. One for more than any machine has is out of memory, with the
/// resource's figures like any other.
#[cold]
pub(crate) fn beyond(named: &Named, stream: Option<StreamRef<'_>>, error: Error) -> Error {
    let Error::OutOfMemory(known) = &error else { return error };
    let (body, bytes) = (named.body(), known.requested as usize);
    let device = body.device().unwrap_or(-1);
    let request = Request { bytes, align: 1, owner: named.id(), flags: 0 };
    let mut error = crate::device::out_of_memory(&request, &named.stack(), &body.info(), device);
    if let Error::OutOfMemory(oom) = &mut error {
        oom.limit = body.property("maximum_bytes").unwrap_or(0);
    }
    failed(named, bytes, stream, error)
}

/// A request of the public entry has failed for good.
#[cold]
fn failed(named: &Named, bytes: usize, stream: Option<StreamRef<'_>>, mut error: Error) -> Error {
    let unwell = matches!(error, Error::WouldBlock | Error::Forked | Error::Exiting);
    if unwell || tenure_driver::process::unusable() {
        return error;
    }
    if is_recording() {
        let who = account::here(named.id());
        let stack = if wants(STACKS) { stack::here() } else { None };
        history::note(history::Event {
            what: What::Failure,
            bytes: bytes as u64,
            stream: stream_value(stream),
            stack,
            detail: Some(error.to_string().into()),
            ..history::Event::of(named.id(), who)
        });
    }
    if let Error::OutOfMemory(oom) = &mut error {
        (oom.asked, oom.stream) = (named.id(), stream_value(stream));
        notes::explain(oom);
    }
    error
}

// -------------------------------------------------------------------------------------------------------- other events

/// A resource was made (or closed, `made` false).
#[inline]
pub(crate) fn resource_event(id: u64, kind: &str, made: bool) {
    if is_recording() {
        simple_event(id, if made { What::ResourceCreate } else { What::ResourceClose }, 0, kind.to_owned());
    }
}

/// Memory was given back by a trim.
#[inline]
pub(crate) fn trim_event(id: u64, released: usize) {
    if is_recording() {
        simple_event(id, What::Trim, released as u64, String::new());
    }
}

/// A device's current resource was set.
#[inline]
pub(crate) fn current_event(id: u64, device: i32) {
    if is_recording() {
        simple_event(id, What::SetCurrent, 0, format!("device {device}"));
    }
}

#[cold]
fn simple_event(id: u64, what: What, bytes: u64, detail: String) {
    let who = account::here(id);
    let detail = (!detail.is_empty()).then(|| detail.into());
    history::note(history::Event { what, bytes, detail, ..history::Event::of(id, who) });
}
