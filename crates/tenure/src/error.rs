//! What can go wrong, as values with fields.
//!
//! One enum for the whole crate. Its variants are those of the border ([`tenure_abi`]'s statuses), with the detail that
//! the library keeps per thread, plus [`Error::Load`] for the library itself. Only [`Error::OutOfMemory`] is worth
//! another try; [`Error::Ownership`] and everything else say that the caller, the device or the machine must change.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::Arc;

use tenure_abi::*;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any kind, as a user's resource may return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why the library could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadFailure {
    /// It is nowhere.
    Missing,
    /// It is there and is not a library that can be loaded, or not libtenure.
    Broken,
    /// It is older than this crate.
    WrongVersion,
    /// It gave no table: another instance is at work in this process, or it does not serve this version.
    Refused,
}

/// The library could not be found, loaded or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What kind of failure.
    pub failure: LoadFailure,
    /// One sentence that says what happened and what to do.
    pub message: String,
    /// The places that were looked at, in order.
    pub places: Vec<String>,
}

/// What is known when a request cannot be served. All figures are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What happened, in one line.
    pub message: String,
    /// Asked for.
    pub requested: u64,
    /// Handed out by the resource.
    pub live: u64,
    /// Held by the resource from its upstream or the device.
    pub reserved: u64,
    /// The limit that was met; 0 when none is set.
    pub limit: u64,
    /// The largest block that could still be handed out.
    pub largest_free: u64,
    /// Free on the device; 0 when the driver was not asked.
    pub driver_free: u64,
    /// Size of the device; 0 when the driver was not asked.
    pub driver_total: u64,
    /// The resource and what it stands on, outermost first.
    pub resource: String,
    /// Held by the resource and not handed out.
    pub cached: u64,
    /// What of it other streams may not have before the device is waited for.
    pub unproven: u64,
    /// The streams that hold most of what is cached, and how much, for people.
    pub pending: String,
    /// What was tried, in order, and what came of it, for people.
    pub tried: String,
    /// What else there is to say, at most eight lines: who holds most, what is cached, what other streams hold back, the
    /// largest free block, what was tried, and the setting that would have helped, where the books show one.
    pub notes: Vec<String>,
}

/// What was wrong about a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MisuseKind {
    /// No live allocation starts there.
    UnknownPointer,
    /// It lies inside a live allocation.
    InteriorPointer,
    /// Another resource made it.
    WrongResource,
    /// The size is not the one that was asked for.
    WrongSize,
    /// The alignment is not the one that was asked for.
    WrongAlignment,
    /// It has been freed already.
    DoubleFree,
}

/// A pointer was named that does not belong where it was named. Nothing happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// What happened, in one line.
    pub message: String,
    /// What was wrong; `None` where the library is newer and has a kind that this crate does not know.
    pub kind: Option<MisuseKind>,
    /// The pointer that was named.
    pub ptr: u64,
    /// The size that was named, in bytes.
    pub bytes: u64,
    /// The id of the resource that was asked.
    pub asked: u64,
    /// The id of the owner; 0 when unknown.
    pub owner: u64,
    /// The size of the block, in bytes; 0 when unknown.
    pub owner_bytes: u64,
}

/// The CUDA driver failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuda {
    /// What happened, in one line.
    pub message: String,
    /// The driver's code.
    pub code: i32,
    /// The name of the code, such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver call, such as `cuMemAlloc`.
    pub call: String,
}

/// A user's resource failed.
#[derive(Clone, Debug)]
pub struct Callback {
    /// What it said.
    pub message: String,
    /// Its own error, when it was written in Rust and in this very program or library.
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Any failure of tenure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No memory: the only error after which trying again can help.
    OutOfMemory(Box<OutOfMemory>),
    /// A pointer was named that does not belong where it was named. Nothing happened.
    Ownership(Box<Ownership>),
    /// The CUDA driver failed.
    Cuda(Box<Cuda>),
    /// An argument is out of range; the text says which and what to do.
    Invalid(String),
    /// This resource, device or build cannot do it; the text says what can.
    Unsupported(String),
    /// A call that must not wait would have had to. Nothing changed.
    WouldBlock(String),
    /// A handle is null, was released, or is not one of this library.
    BadHandle(String),
    /// The process is a forked child, where device memory cannot be used.
    Forked(String),
    /// The process is ending.
    Exiting(String),
    /// A user's resource failed.
    Callback(Box<Callback>),
    /// No device layer: no CUDA driver where one was asked for, or one that is broken.
    NoDevice(String),
    /// tenure itself is at fault.
    Internal(String),
    /// The library could not be found, loaded or used.
    Load(Box<LoadError>),
}

impl Error {
    /// True for out of memory: the only error after which trying again, with less or later, can help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }

    /// What else there is to say about [`Error::OutOfMemory`], a line each; empty for every other error.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::OutOfMemory(e) => &e.notes,
            _ => &[],
        }
    }

    /// The status of the C ABI that says the same. A [`LoadError`] has none of its own and counts as "no device".
    pub fn status(&self) -> tenure_status {
        match self {
            Self::OutOfMemory(_) => TENURE_ERROR_OUT_OF_MEMORY,
            Self::Ownership(_) => TENURE_ERROR_OWNERSHIP,
            Self::Cuda(_) => TENURE_ERROR_CUDA,
            Self::Invalid(_) => TENURE_ERROR_INVALID_ARGUMENT,
            Self::Unsupported(_) => TENURE_ERROR_UNSUPPORTED,
            Self::WouldBlock(_) => TENURE_ERROR_WOULD_BLOCK,
            Self::BadHandle(_) => TENURE_ERROR_BAD_HANDLE,
            Self::Forked(_) => TENURE_ERROR_FORKED,
            Self::Exiting(_) => TENURE_ERROR_EXITING,
            Self::Callback(_) => TENURE_ERROR_CALLBACK,
            Self::NoDevice(_) | Self::Load(_) => TENURE_ERROR_NO_DEVICE,
            Self::Internal(_) => TENURE_ERROR_INTERNAL,
        }
    }

    /// An [`Error::OutOfMemory`] of a user's own resource, which knows no more than what was asked for.
    ///
    /// `requested` is in bytes.
    pub fn out_of_memory(requested: usize, resource: impl Into<String>) -> Self {
        let resource = resource.into();
        Self::OutOfMemory(Box::new(OutOfMemory {
            message: format!("out of memory: {requested} bytes requested from {resource}"),
            requested: requested as u64,
            resource,
            ..Default::default()
        }))
    }

    /// An [`Error::Callback`] that carries `source`.
    pub fn callback(source: impl Into<BoxError>) -> Self {
        let source: Arc<dyn std::error::Error + Send + Sync> = Arc::from(source.into());
        Self::Callback(Box::new(Callback { message: source.to_string(), source: Some(source) }))
    }

    /// What the call that has just failed on this thread with `status` says about it. For bindings.
    pub fn last(api: &tenure_api, status: tenure_status) -> Self {
        if let Some(own) = crate::callbacks::take_own_payload(api) {
            return own;
        }
        let Some(detail) = detail(api) else {
            return Self::from_parts(status, None);
        };
        Self::from_parts(status, Some(&detail))
    }

    fn from_parts(status: tenure_status, detail: Option<&tenure_error>) -> Self {
        // A detail of another status belongs to another call.
        let detail = detail.filter(|d| d.status == status);
        let message = detail
            .map(|d| text(d.message))
            .filter(|m| !m.is_empty())
            .unwrap_or_else(|| format!("the library answered status {status} and said no more"));
        match (status, detail) {
            (TENURE_ERROR_OUT_OF_MEMORY, Some(d)) => Self::OutOfMemory(Box::new(OutOfMemory {
                message,
                requested: d.requested,
                live: d.live,
                reserved: d.reserved,
                limit: d.limit,
                largest_free: d.largest_free,
                driver_free: d.driver_free,
                driver_total: d.driver_total,
                resource: text(d.resource),
                cached: d.cached,
                unproven: d.unproven,
                pending: text(d.pending),
                tried: text(d.tried),
                notes: text(d.notes).lines().map(str::to_owned).collect(),
            })),
            (TENURE_ERROR_OUT_OF_MEMORY, None) => {
                Self::OutOfMemory(Box::new(OutOfMemory { message, ..Default::default() }))
            }
            (TENURE_ERROR_OWNERSHIP, d) => Self::Ownership(Box::new(Ownership {
                message,
                kind: d.and_then(|d| misuse_kind(d.misuse_kind)),
                ptr: d.map_or(0, |d| d.ptr),
                bytes: d.map_or(0, |d| d.bytes),
                asked: d.map_or(0, |d| d.asked),
                owner: d.map_or(0, |d| d.owner),
                owner_bytes: d.map_or(0, |d| d.owner_bytes),
            })),
            (TENURE_ERROR_CUDA, d) => Self::Cuda(Box::new(Cuda {
                message,
                code: d.map_or(0, |d| d.cuda_code),
                name: d.map_or_else(String::new, |d| text(d.cuda_name)),
                call: d.map_or_else(String::new, |d| text(d.cuda_call)),
            })),
            (TENURE_ERROR_INVALID_ARGUMENT, _) => Self::Invalid(message),
            (TENURE_ERROR_UNSUPPORTED, _) => Self::Unsupported(message),
            (TENURE_ERROR_WOULD_BLOCK, _) => Self::WouldBlock(message),
            (TENURE_ERROR_BAD_HANDLE, _) => Self::BadHandle(message),
            (TENURE_ERROR_FORKED, _) => Self::Forked(message),
            (TENURE_ERROR_EXITING, _) => Self::Exiting(message),
            (TENURE_ERROR_CALLBACK, _) => Self::Callback(Box::new(Callback { message, source: None })),
            (TENURE_ERROR_NO_DEVICE, _) => Self::NoDevice(message),
            // A newer library may know statuses that this crate does not.
            _ => Self::Internal(message),
        }
    }
}

/// The detail of this thread's last failing call.
pub(crate) fn detail(api: &tenure_api) -> Option<tenure_error> {
    // SAFETY: the structure is made of integers and pointers, for all of which zero is a value.
    let mut detail: tenure_error = unsafe { std::mem::zeroed() };
    detail.size = size_of::<tenure_error>();
    // SAFETY: the pointer is valid for writing `size` bytes.
    let status = unsafe { (api.error_get)(&mut detail) };
    (status == TENURE_OK).then_some(detail)
}

/// A string of the library's, or the empty one.
pub(crate) fn text(data: *const c_char) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: the border promises that a string that is not null ends with a zero byte and is valid until the next failing
    // call on this thread; it is copied here.
    unsafe { CStr::from_ptr(data) }.to_string_lossy().into_owned()
}

fn misuse_kind(kind: u32) -> Option<MisuseKind> {
    Some(match kind {
        1 => MisuseKind::UnknownPointer,
        2 => MisuseKind::InteriorPointer,
        3 => MisuseKind::WrongResource,
        4 => MisuseKind::WrongSize,
        5 => MisuseKind::WrongAlignment,
        6 => MisuseKind::DoubleFree,
        _ => return None,
    })
}

/// Turns a status into a result, reading this thread's detail on failure. For bindings.
///
/// # Errors
/// The error that the last failing call on this thread described.
#[inline]
pub fn check(api: &tenure_api, status: tenure_status) -> Result<()> {
    if status == TENURE_OK { Ok(()) } else { failed(api, status) }
}

#[cold]
fn failed(api: &tenure_api, status: tenure_status) -> Result<()> {
    if status == TENURE_OK_COLLECT {
        // SAFETY: no lock of ours is held here.
        unsafe { (api.collect)() };
        return Ok(());
    }
    Err(Error::last(api, status))
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.places.is_empty() {
            write!(f, "; looked at: {}", self.places.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(e) => f.write_str(&e.message),
            Self::Ownership(e) => f.write_str(&e.message),
            Self::Cuda(e) => f.write_str(&e.message),
            Self::Callback(e) => f.write_str(&e.message),
            Self::Invalid(m)
            | Self::Unsupported(m)
            | Self::WouldBlock(m)
            | Self::BadHandle(m)
            | Self::Forked(m)
            | Self::Exiting(m)
            | Self::NoDevice(m)
            | Self::Internal(m) => f.write_str(m),
            Self::Load(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Callback(e) => e.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static)),
            _ => None,
        }
    }
}
