//! The order between a buffer's streams, and which streams it may have.
//!
//! A default stream means the device's whose memory it is about (`default` below), whichever is current. Where the two
//! devices of a copy differ, or another device is current when a use is declared, the default stream of that other device is
//! named by an object of its own.

use crate::buffer::Buffer;
use crate::device;
use crate::error::{Error, Result};
use crate::ops;
use crate::resource::{DEFAULT_ALIGNMENT, Light, Named};
use crate::stream::{StreamHold, StreamObject, StreamRef};

/// What a copy needs to know of a buffer. Whoever has it sees to it that the buffer keeps its block meanwhile.
#[derive(Clone, Debug)]
pub struct Original {
    pub(super) ptr: u64,
    pub(super) bytes: usize,
    pub(super) align: usize,
    pub(super) default: i32,
    pub(super) home: StreamHold,
}

impl Original {
    /// What is to be recorded when `stream`, which the caller carries, is declared as used.
    pub fn uses(&self, stream: StreamHold) -> [Option<StreamHold>; 2] {
        let other = default_of_current(self.default, &stream);
        [Some(stream.located()), other]
    }

    /// A copy made on `stream` under `resource`, and the stream that the original must record as used: the default stream of
    /// the copy's device, where that is another one.
    ///
    /// # Errors
    /// Those of an allocation and of a copy; nothing is left behind.
    pub fn copy(&self, stream: StreamHold, resource: Light) -> Result<(Buffer, StreamHold)> {
        let mut copy = Buffer::create(self.bytes, self.align.max(DEFAULT_ALIGNMENT), stream.clone(), resource)?;
        let is_default = stream.held().is_none() && stream.value().is_special();
        let on = if is_default && copy.default >= 0 && copy.default != self.default {
            StreamHold::object(StreamObject::immortal(stream.value(), copy.default))
        } else {
            stream.clone()
        };
        if self.bytes != 0 {
            let copied = order_before(&self.home, on.as_carried(), self.default).and_then(|()| {
                // SAFETY: both blocks are live; the copy's home is this stream, and the original records it as used.
                unsafe { ops::copy_async(copy.ptr, self.ptr, self.bytes, on.as_carried(), copy.default) }
            });
            if let Err(error) = copied {
                // A failure is reported when the copy is dropped.
                let _ = copy.close(Some(stream));
                return Err(error);
            }
        }
        Ok((copy, on))
    }
}

/// Orders work on `stream` after everything that was ordered with `home`; default streams are those of `default`.
pub(super) fn order_before(home: &StreamHold, stream: StreamRef<'_>, default: i32) -> Result<()> {
    let carries_home = home.value() == stream.raw && home.is_of_this_thread();
    if carries_home && home.held().map(|o| o.id()) == stream.object.map(StreamObject::id) {
        return Ok(());
    }
    if carries_home && home.held().is_some() && !stream.raw.is_special() {
        // The home is alive, so that its value is no other stream's: the caller carries it, by its value only.
        return Ok(());
    }
    if home.can_be_named() {
        if ops::order_unless_capturing(stream, home.as_stored(), default)? {
            return Ok(());
        }
        return Err(Error::Unsupported(
            "the stream or the buffer's own is capturing, and an order between the two would end the capture or make the \
             other a part of it: work on the buffer before or after the capture"
                .into(),
        ));
    }
    if carries_home && home.held().is_none() {
        // The caller carries the very value that the buffer keeps: it is alive and the same stream, or the handle was
        // reissued, which only happens after the old stream's work is done or by a caller who broke rule 6.
        return Ok(());
    }
    ops::wait_device(home.device().unwrap_or(default))
}

/// For frees: `lost` where the device is lost for good or was never there, so that nothing can be waited for.
pub(super) fn done<T>(result: Result<T>, lost: T) -> Result<T> {
    match result {
        Err(Error::Device(e)) if e.is_sticky() || e.is_context_gone() => Ok(lost),
        Err(Error::NoDevice(_)) => Ok(lost),
        other => other,
    }
}

/// The default stream of the current device, where `stream` is a default one and a buffer takes it for another device's.
pub(super) fn default_of_current(default: i32, stream: &StreamHold) -> Option<StreamHold> {
    if stream.held().is_some() || !stream.value().is_special() {
        return None;
    }
    let now = device::current().ok().filter(|now| *now != default)?;
    Some(StreamHold::object(StreamObject::immortal(stream.value(), now)))
}

/// The device whose default streams a buffer means.
pub(super) fn default_of(device: i32, home: &StreamHold) -> i32 {
    if device >= 0 {
        return device;
    }
    // Memory of the host: what its maker took the stream for.
    match home.as_carried().device() {
        Ok(Some(device)) => device,
        _ => -1,
    }
}

/// A resource of one device frees on streams of that device.
pub(super) fn check_device(resource: &Named, home: &StreamHold) -> Result<()> {
    let Some(own) = resource.body().device().filter(|own| *own >= 0) else { return Ok(()) };
    if home.held().is_none() && home.value().is_special() {
        return Ok(());
    }
    match home.as_carried().device()? {
        Some(other) if other != own => Err(Error::invalid(format!(
            "the stream belongs to device {other} and the buffer's {} resource to device {own}: use a stream of device \
             {own} as the home, and record_stream for work elsewhere",
            resource.body().kind()
        ))),
        _ => Ok(()),
    }
}

/// A resource that must name a living stream when it frees is not given one that may be dead by then.
pub(super) fn check_home(resource: &Named, home: &StreamHold) -> Result<()> {
    if home.as_stored().is_live() || !resource.body().needs_live_stream() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a {} resource frees on the stream itself, and nothing keeps this raw stream alive until then: pass a stream object, \
         or state stream_outlives_buffer when the resource is made",
        resource.body().kind()
    )))
}
