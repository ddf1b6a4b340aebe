//! Which stream is this? Asked of the driver only where nothing else can say, and never of a stream that may be dead.
//!
//! | what the call carries | key | driver calls |
//! |---|---|---|
//! | a default stream | legacy, or per-thread and the thread | none |
//! | an object | its id | is it capturing (allocation) |
//! | a raw value, alive | the driver's id | is it capturing, its id |
//! | a raw value out of a buffer's memory | none: only compared with what was booked | none |
//!
//! The question whether a stream is capturing comes first, because the driver's other questions end a capture. It neither
//! waits nor takes a lock of the driver that anything holds for long (26 ns at one thread, 30 at sixteen), so that the
//! `_try` calls may ask it of an object. Default streams are those of the pool's device, whatever device is current.

use std::cell::Cell;

use tenure_driver::{CaptureStatus, RawStream};

use crate::error::{Error, Result};
use crate::stream::StreamRef;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A stream identity; never used again once its stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) enum Key {
    /// The legacy default stream of the pool's device.
    Legacy,
    /// The default stream of one thread.
    PerThread(u64),
    /// A stream object of the process.
    Object(u64),
    /// A foreign stream, by the driver's id.
    Raw(u64),
}

impl Key {
    /// The identity as one number. Object numbers, thread numbers and the driver's ids count up from 1 and stay below 2^62.
    #[inline(always)]
    pub(in crate::pool) fn code(self) -> u64 {
        match self {
            Self::Legacy => 0,
            Self::PerThread(thread) => thread << 2 | 1,
            Self::Object(id) => id << 2 | 2,
            Self::Raw(id) => id << 2 | 3,
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Who<'a> {
    /// `None`: nobody can say which stream it is; only proven memory is for it.
    pub(in crate::pool) key: Option<Key>,
    /// As it came.
    pub(in crate::pool) stream: StreamRef<'a>,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number that no other thread of the process ever has. 0 while the thread's storage is being taken apart.
#[inline]
pub(in crate::pool) fn this_thread() -> u64 {
    THREAD
        .try_with(|cell| {
            if cell.get() == 0 {
                cell.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
            }
            cell.get()
        })
        .unwrap_or(0)
}

impl<'a> Who<'a> {
    /// The identity, if no driver call is needed to know it.
    #[inline(always)]
    pub(in crate::pool) fn known(stream: StreamRef<'a>) -> Option<Self> {
        let key = if stream.raw.is_legacy() {
            Some(Key::Legacy)
        } else if stream.raw.is_per_thread() {
            // Threads that have lost their number cannot be told apart.
            Some(this_thread()).filter(|thread| *thread != 0).map(Key::PerThread)
        } else {
            Some(Key::Object(stream.object?.id()))
        };
        Some(Self { key, stream })
    }

    /// The identity of a raw value that is alive during this call.
    ///
    /// # Errors
    /// A capturing stream; what the driver says.
    pub(in crate::pool) fn ask(stream: StreamRef<'a>, assume_no_capture: bool) -> Result<Self> {
        if stream.stored {
            return Ok(Self { key: None, stream });
        }
        if !assume_no_capture {
            refuse_capturing(stream.raw)?;
        }
        Ok(Self { key: Some(Key::Raw(crate::device::driver()?.stream_id(stream.raw)?)), stream })
    }
}

/// An error when the stream is being captured.
///
/// # Errors
/// [`Error::Unsupported`] with the word "capturing"; what the driver says.
#[inline]
pub(in crate::pool) fn refuse_capturing(raw: RawStream) -> Result<()> {
    if crate::device::driver()?.stream_capture_status(raw)? == CaptureStatus::None {
        return Ok(());
    }
    Err(Error::Unsupported(
        "the stream is capturing: eager memory is neither made nor ordered there; work on it before or after the capture"
            .to_owned(),
    ))
}
