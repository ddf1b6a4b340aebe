//! What can go wrong, as values with fields.
//!
//! Four families that callers treat differently: *out of memory* (the only one that makes anyone retry), *misuse* (the
//! caller named the wrong thing; nothing happened), *device* (the driver said so) and *refusal* (not here, not now).
//! Each message is one sentence that says what to do next.

use std::fmt;

use tenure_driver::DriverError;

/// What is known when a request cannot be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes that are handed out by the resource.
    pub live: u64,
    /// Bytes that the resource holds from the device or its upstream.
    pub reserved: u64,
    /// The limit that was met, in bytes; 0 when none is set.
    pub limit: u64,
    /// The largest single block that the resource could still hand out.
    pub largest_free: u64,
    /// Free bytes of the device as the driver says; 0 when it was not asked.
    pub driver_free: u64,
    /// Total bytes of the device; 0 when it was not asked.
    pub driver_total: u64,
    /// The resource and what it stands on, outermost first: `"statistics > pool > cuda"`.
    pub resource: String,
    /// Bytes that the resource holds and has not handed out.
    pub cached: u64,
    /// Bytes of them that other streams may not have before the device is waited for.
    pub unproven: u64,
    /// The streams that hold most of what is cached.
    pub pending: Vec<Pending>,
    /// What was tried before giving up, in order.
    pub tried: Vec<Tried>,
    /// The id of the resource that was asked; 0 where the error did not come to a public entry.
    pub asked: u64,
    /// The driver's value of the stream that it was asked on; `None` where there was none.
    pub stream: Option<u64>,
    /// What else there is to say, a line each (`observe::notes`); empty until the request has failed for good.
    pub notes: Vec<String>,
}

/// Free memory that one stream may have at once and others only after its work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// The stream, for people.
    pub stream: String,
    /// How many bytes.
    pub bytes: u64,
}

/// One way to more memory, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// What was tried, for people.
    pub step: &'static str,
    /// What came of it.
    pub outcome: &'static str,
}

impl OutOfMemory {
    /// [`pending`](Self::pending) for people: `"stream 0x7f00 2.00 MiB, the legacy stream 1.00 MiB"`; empty without any.
    pub fn pending_text(&self) -> String {
        let all: Vec<String> = self.pending.iter().map(|p| format!("{} {}", p.stream, human(p.bytes))).collect();
        all.join(", ")
    }

    /// [`tried`](Self::tried) for people: `"growing (the limit is reached), other pools (nothing was idle there)"`.
    pub fn tried_text(&self) -> String {
        let all: Vec<String> = self.tried.iter().map(|t| format!("{} ({})", t.step, t.outcome)).collect();
        all.join(", ")
    }
}

/// What was wrong about a pointer or a request that named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MisuseKind {
    /// No live allocation starts here, as far as the named resource knows.
    UnknownPointer,
    /// The pointer lies inside a live allocation and not at its start.
    InteriorPointer,
    /// The block is live and was asked for through another resource.
    WrongResource,
    /// The size is not the one that was asked for.
    WrongSize,
    /// The alignment is not one that the block was made with.
    WrongAlignment,
    /// The block has been freed already.
    DoubleFree,
}

/// A pointer was named to a resource that has another opinion of it. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What was wrong.
    pub kind: MisuseKind,
    /// The pointer that was named.
    pub ptr: u64,
    /// The size that was named, in bytes.
    pub bytes: u64,
    /// The id of the resource that was asked.
    pub asked: u64,
    /// The id of the resource that owns the block; 0 when unknown.
    pub owner: u64,
    /// The size of the block, in bytes; 0 when unknown.
    pub owner_bytes: u64,
}

/// A payload that travels with an error and that only the face which made it can read (a Python exception, say).
///
/// Dropping it calls the face's own function.
pub struct Payload {
    /// Who can read it: a number the face chose.
    pub kind: u32,
    /// The object.
    pub data: *mut std::ffi::c_void,
    /// Called once when nobody wants the payload any more.
    pub release: Option<unsafe extern "C" fn(*mut std::ffi::c_void)>,
}

// SAFETY: a face may only attach a payload whose `release` can be called on any thread; this is part of the C ABI's
// contract (`tenure_error_payload`).
unsafe impl Send for Payload {}
// SAFETY: the payload is never read through a shared reference, only moved out.
unsafe impl Sync for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload(kind {})", self.kind)
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the maker of the payload promised that its function may be called once, on any thread.
            unsafe { release(self.data) }
        }
    }
}

/// Any failure of the engine.
#[derive(Debug)]
pub enum Error {
    /// No memory: the only error after which trying again can help.
    OutOfMemory(Box<OutOfMemory>),
    /// A pointer was named that does not belong where it was named. Nothing happened.
    Misuse(Misuse),
    /// The driver failed.
    Device(DriverError),
    /// The device layer could not be loaded or used at all.
    NoDevice(String),
    /// An argument is out of its range; the text says which and what to do.
    Invalid(String),
    /// This resource or machine cannot do what was asked; the text says what can.
    Unsupported(String),
    /// The call would have to wait or to call the driver or user code, and was made through a `_try` entry.
    WouldBlock,
    /// A handle is null, was released, or was made by something else.
    BadHandle(String),
    /// The process is a forked child: device memory cannot be used here.
    Forked,
    /// The process is ending: no memory is handed out any more.
    Exiting,
    /// A user's callback failed; the text is its message and the payload its own error.
    Callback(String, Option<Payload>),
    /// A user's callback says that it is out of memory; as [`Callback`](Self::Callback) otherwise.
    CallbackOutOfMemory(String, Option<Payload>),
    /// One of many blocks that one call named was wrong; the others were done.
    OneOf(Box<OneOf>),
    /// A defect of tenure itself.
    Internal(String),
}

/// Which of many.
#[derive(Debug)]
pub struct OneOf {
    /// Its place among them, from 0.
    pub at: usize,
    /// How many were named.
    pub count: usize,
    /// How many were freed all the same.
    pub freed: usize,
    /// What was wrong about it.
    pub error: Error,
}

/// A result of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Invalid`] with this text.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }

    /// True for out of memory, whoever reports it.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::CallbackOutOfMemory(..) => true,
            Self::Device(e) => e.is_out_of_memory(),
            Self::OneOf(one) => one.error.is_out_of_memory(),
            _ => false,
        }
    }

    /// The error itself, where it is one of many.
    pub fn inner(&self) -> &Self {
        match self {
            Self::OneOf(one) => one.error.inner(),
            other => other,
        }
    }

    /// [`inner`](Self::inner), to take its payload.
    pub fn inner_mut(&mut self) -> &mut Self {
        match self {
            Self::OneOf(one) => one.error.inner_mut(),
            other => other,
        }
    }
}

impl From<DriverError> for Error {
    fn from(e: DriverError) -> Self {
        Self::Device(e)
    }
}

/// `n` bytes for a person: `1.50 GiB`.
pub fn human(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} requested from {}; live {}, reserved {}, largest free block {}",
            human(self.requested),
            if self.resource.is_empty() { "the device" } else { &self.resource },
            human(self.live),
            human(self.reserved),
            human(self.largest_free)
        )?;
        if self.limit != 0 {
            write!(f, ", limit {}", human(self.limit))?;
        }
        if self.driver_total != 0 {
            write!(f, "; the device has {} free of {}", human(self.driver_free), human(self.driver_total))?;
        }
        if self.cached != 0 {
            write!(f, "; cached {}", human(self.cached))?;
            if !self.pending.is_empty() {
                write!(f, ", of which {}", self.pending_text())?;
            }
        }
        if !self.tried.is_empty() {
            write!(f, "; tried: {}", self.tried_text())
        } else if self.limit != 0 && self.requested > self.limit {
            f.write_str("; nothing was tried, since the request is above the limit")
        } else if self.driver_total != 0 && self.requested > self.driver_total {
            f.write_str("; nothing was tried, since the device does not have as much")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            MisuseKind::UnknownPointer => "no live allocation starts there (freed already, or never made by it)",
            MisuseKind::InteriorPointer => "it lies inside a live allocation: pass the pointer that allocate returned",
            MisuseKind::WrongResource => "another resource made it: free it through that one",
            MisuseKind::WrongSize => "the size is not the one it was allocated with",
            MisuseKind::WrongAlignment => "the alignment is not the one it was allocated with",
            MisuseKind::DoubleFree => "it has been freed already",
        };
        write!(f, "pointer {:#x} ({} bytes) named to resource #{:x}: {what}", self.ptr, self.bytes, self.asked)?;
        if self.owner != 0 && self.owner != self.asked {
            write!(f, "; its owner is resource #{:x}", self.owner)?;
        }
        if self.owner_bytes != 0 && self.kind != MisuseKind::WrongResource {
            write!(f, "; the block has {} bytes", self.owner_bytes)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(e) => e.fmt(f),
            Self::Misuse(e) => e.fmt(f),
            Self::Device(e) => e.fmt(f),
            Self::NoDevice(t)
            | Self::Invalid(t)
            | Self::Unsupported(t)
            | Self::BadHandle(t)
            | Self::Callback(t, _)
            | Self::CallbackOutOfMemory(t, _) => f.write_str(t),
            Self::WouldBlock => f.write_str("the call would have to wait; use the entry without _try"),
            Self::Forked => f.write_str(
                "this process was forked after tenure had used a device: device memory cannot be used in the child; \
                 start the child with spawn or forkserver instead",
            ),
            Self::Exiting => f.write_str("the process is ending: no memory is handed out any more"),
            Self::OneOf(one) => {
                write!(
                    f,
                    "block {} of {} (counted from 0) was not freed, while {} were: {}",
                    one.at, one.count, one.freed, one.error
                )
            }
            Self::Internal(t) => write!(f, "tenure is at fault here, please report it: {t}"),
        }
    }
}

impl std::error::Error for Error {}
