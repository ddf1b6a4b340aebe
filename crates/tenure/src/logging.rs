//! Logs of what passes: RMM's log, and what RMM's leaves out.
//!
//! Unsafe in this file: calls through the table.

use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, check};
use crate::pool::kind;
use crate::report::take_text;
use crate::resource::Resource;

kind! {
    /// Writes a row of CSV for each allocation and free that goes through to its upstream.
    ///
    /// The first six columns are those of RMM's log (`Thread,Time,Action,Pointer,Size,Stream`), so that what reads one reads
    /// the other; then come device, day, monotonic nanoseconds, stream id, outcome and tag. Each row is in the file at once,
    /// also when the process is killed. `tenure replay` replays it.
    ///
    /// # Examples
    /// ```
    /// use tenure::{DeviceBuffer, Logging, Stream};
    ///
    /// let name = std::env::temp_dir().join(format!("tenure-doc-{}.csv", std::process::id()));
    /// let log = Logging::new(&tenure::cuda()?, &name)?;
    /// drop(DeviceBuffer::new_in(1000, &Stream::create()?, &log)?);
    /// log.flush()?;
    /// let text = std::fs::read_to_string(log.file_name()?).unwrap_or_default();
    /// assert_eq!(text.lines().count(), 3); // the header, an allocation, a free
    /// # let _ = std::fs::remove_file(&name);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Logging, "logging"
}

impl Logging {
    /// Logs what goes through to `upstream` into the file `name`, which is emptied. Adaptors of one process that name one
    /// file share it as it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the file cannot be written, or another process writes it; nothing was created.
    pub fn new(upstream: &Resource, name: impl AsRef<Path>) -> Result<Self> {
        let name = CString::new(name.as_ref().as_os_str().as_bytes())
            .map_err(|_| Error::Invalid("the name of a log file holds a zero byte".into()))?;
        Self::made(upstream, name.as_ptr(), 0)
    }

    /// Logs into the file that RMM's Python package would: the one that the environment variable `RMM_LOG_FILE` names, with
    /// `.devN` before its extension.
    ///
    /// # Errors
    /// As [`new`](Self::new), and where the variable is not set.
    pub fn from_environment(upstream: &Resource) -> Result<Self> {
        Self::made(upstream, std::ptr::null(), 1)
    }

    fn made(upstream: &Resource, name: *const c_char, per_device: u32) -> Result<Self> {
        // SAFETY: the name is null or a string, and the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.logging_create)(upstream.as_raw(), name, per_device, out) }).map(Self)
    }

    /// The absolute name of the file.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn file_name(&self) -> Result<PathBuf> {
        let api = crate::api()?;
        // SAFETY: the pointer is valid for writing.
        take_text(api, |out| unsafe { (api.logging_file_name)(self.as_raw(), out) }).map(PathBuf::from)
    }

    /// Ends the file behind its last row. Until then spaces may follow it, inside its last field.
    ///
    /// # Errors
    /// [`Error::Invalid`] where rows could not be written.
    pub fn flush(&self) -> Result<()> {
        let api = crate::api()?;
        // SAFETY: no pointers.
        check(api, unsafe { (api.logging_flush)(self.as_raw()) })
    }
}
