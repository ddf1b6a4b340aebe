//! Measurements that belong to a thread or a task.
//!
//! Unsafe in this file: calls through the table.

use tenure_abi::*;

use crate::api;
use crate::error::{Result, check};
use crate::pool::{Counters, Statistics};

/// Counts what the calling thread does through a [`Statistics`] adaptor until it is closed or dropped: its allocations, and
/// its frees, whoever had allocated. So overlapping scopes of two threads each see their own.
///
/// A scope that is opened inside another one of that adaptor counts there too. The adaptor's own counters go on beside it.
///
/// # Examples
/// ```
/// use tenure::{DeviceBuffer, Statistics, StatisticsScope, Stream};
///
/// let (stream, statistics) = (Stream::create()?, Statistics::new(&tenure::cuda()?)?);
/// let scope = StatisticsScope::open(&statistics)?;
/// let buffer = DeviceBuffer::new_in(1000, &stream, &statistics)?;
/// std::thread::scope(|s| {
///     s.spawn(|| DeviceBuffer::new_in(5000, &stream, &statistics).map(drop));
/// });
/// assert_eq!(scope.close()?.total_bytes, 1000);
/// assert_eq!(statistics.counters()?.total_bytes, 6000);
/// # drop(buffer);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a scope that is dropped at once counts nothing"]
pub struct StatisticsScope {
    handle: tenure_statistics_scope,
}

impl StatisticsScope {
    /// Opens a scope of the calling thread.
    ///
    /// # Errors
    /// [`Error::BadHandle`](crate::Error::BadHandle).
    pub fn open(statistics: &Statistics) -> Result<Self> {
        let api = api()?;
        let mut handle = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.statistics_scope_open)(statistics.as_raw(), &mut handle) })?;
        Ok(Self { handle })
    }

    /// What it has counted.
    ///
    /// # Errors
    /// [`Error::Load`](crate::Error::Load) without a library.
    pub fn counters(&self) -> Result<Counters> {
        self.ask(api()?.statistics_scope_get)
    }

    /// Closes it, and says what it has counted. Scopes that were opened inside it go on.
    ///
    /// # Errors
    /// [`Error::Load`](crate::Error::Load) without a library.
    pub fn close(self) -> Result<Counters> {
        let close = api()?.statistics_scope_close;
        let counters = self.ask(close);
        if counters.is_ok() {
            std::mem::forget(self);
        }
        counters
    }

    /// Runs `f` inside the scope on the calling thread, whichever opened it: several threads then count in one scope.
    ///
    /// # Errors
    /// [`Error::Load`](crate::Error::Load) without a library.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        /// Puts the thread back, also when `f` panics.
        struct Back(tenure_statistics_scope);

        impl Drop for Back {
            fn drop(&mut self) {
                if let Ok(api) = api() {
                    // SAFETY: a null pointer is allowed. A scope that was closed meanwhile is an error, and the thread stays
                    // out of all.
                    unsafe { (api.statistics_scope_enter)(self.0, std::ptr::null_mut()) };
                }
            }
        }

        let api = api()?;
        let mut before = 0;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.statistics_scope_enter)(self.handle, &mut before) })?;
        let back = Back(before);
        let result = f();
        drop(back);
        Ok(result)
    }

    fn ask(
        &self,
        ask: unsafe extern "C" fn(tenure_statistics_scope, *mut tenure_statistics) -> tenure_status,
    ) -> Result<Counters> {
        let mut out = tenure_statistics { size: size_of::<tenure_statistics>(), ..Default::default() };
        // SAFETY: the pointer is valid for writing `size` bytes.
        check(api()?, unsafe { ask(self.handle, &mut out) })?;
        Ok(out.into())
    }
}

impl Drop for StatisticsScope {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: a null pointer is allowed; the scope is closed once. In a forked child there is none.
            unsafe { (api.statistics_scope_close)(self.handle, std::ptr::null_mut()) };
        }
    }
}
