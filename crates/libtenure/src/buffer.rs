//! Buffers.

use std::ffi::c_void;

use tenure_abi::*;
use tenure_core::buffer::{Block, Buffer, Foreign};
use tenure_core::error::{Error, Result};
use tenure_core::resource::{Light, registry};
use tenure_core::stream::{StreamHold, StreamRef};
use tenure_core::thread::{self, Local};

use crate::guard::{exports, set};
use crate::handles::{
    BUFFERS, View, address, anchor_out, buffer_out, carried_if_right, fill, fillable, gone, kept_if_there,
    named_if_right, owner, pointer, properties_of, resolved, stream, stream_retain, writable, write,
};
use crate::library::Context;
use crate::resource::or_default;

/// Works on a buffer.
fn with<R>(buffer: tenure_buffer, f: impl FnOnce(&mut Buffer) -> Result<R>) -> Result<R> {
    BUFFERS.with(buffer, f)?
}

/// Notes that work on `stream` uses the buffer. Several threads may do so at once.
pub(crate) fn use_on(buffer: tenure_buffer, stream: StreamHold) -> Result<()> {
    let uses = BUFFERS.peek(buffer, |buffer| buffer.original())?.uses(stream);
    // What it knew already is dropped outside the lock.
    drop(BUFFERS.peek(buffer, |buffer| buffer.add_uses(uses))?);
    Ok(())
}

fn stream_value(seen: &View) -> tenure_stream {
    tenure_stream { raw: seen.raw as *mut c_void, object: seen.object }
}

/// The home stream as a reference of its own, for whoever takes the block out of its buffer.
fn stream_reference(hold: &StreamHold) -> Result<tenure_stream> {
    let handle = hold.held().map_or(0, |object| object.handle());
    if handle != 0 {
        stream_retain(handle)?;
    }
    Ok(tenure_stream { raw: hold.value().as_raw(), object: handle })
}

/// Makes a buffer of what the thread has at hand: `None`, with nothing changed, where that is not what is wanted.
///
/// # Safety
/// The stream is alive during the call; `out` is null or the address of a variable.
#[inline(always)]
unsafe fn create_at_hand(
    bytes: usize,
    alignment: usize,
    given: tenure_stream,
    resource: tenure_resource,
    out: *mut tenure_buffer,
    may_ask: bool,
    here: &Local,
) -> Option<tenure_status> {
    // SAFETY: by this function's contract.
    let (out, stream) = (unsafe { out.as_mut() }?, unsafe { carried_if_right(given) }?);
    if !may_ask && !stream.outlives_call() {
        return None;
    }
    let named = named_if_right(resource)?;
    Some(match Buffer::block_at_hand(bytes, or_default(alignment), stream, &named, here)? {
        Ok(block) => settle(&block, stream, given, named.light_of(here), out, here),
        Err(error) => set(*error),
    })
}

/// Lets a buffer in, made where it will be.
#[inline(always)]
fn settle(
    block: &Block,
    stream: StreamRef<'_>,
    given: tenure_stream,
    light: Light,
    out: &mut tenure_buffer,
    here: &Local,
) -> tenure_status {
    let properties = light.body().properties();
    let mut object = None;
    if stream.object.is_some() {
        object = kept_if_there(given);
        if object.is_none() {
            return give_up(block, StreamHold::raw(stream.raw), light, gone());
        }
    }
    let Some(vacancy) = BUFFERS.vacancy(here) else {
        return give_up(block, StreamHold::new(stream.raw, object), light, BUFFERS.full());
    };
    // Put together there and nowhere before: what is copied in wider pieces than it was written in waits for its stores.
    *out = vacancy.settle(|| Buffer::of_block(block, properties, StreamHold::new(stream.raw, object), light));
    TENURE_OK
}

#[cold]
#[inline(never)]
fn give_up(block: &Block, home: StreamHold, light: Light, error: Error) -> tenure_status {
    drop(Buffer::of_block(block, light.body().properties(), home, light));
    set(error)
}

/// The same of the current resource, whose reference is counted before it is known whether there is a block at hand. So what
/// ends meanwhile is left for `collect`.
///
/// # Safety
/// As [`create_at_hand`].
#[inline]
unsafe fn create_of_current_at_hand(
    bytes: usize,
    alignment: usize,
    given: tenure_stream,
    out: *mut tenure_buffer,
    here: &Local,
) -> Option<tenure_status> {
    // SAFETY: by this function's contract.
    let (out, stream) = (unsafe { out.as_mut() }?, unsafe { carried_if_right(given) }?);
    if !stream.outlives_call() {
        return None;
    }
    let device = stream.device().ok()??;
    let status = registry::without_waiting(|| {
        let light = tenure_core::current::get_at_hand(device)?;
        Some(match Buffer::block_at_hand(bytes, or_default(alignment), stream, &light, here)? {
            Ok(block) => settle(&block, stream, given, light, out, here),
            Err(error) => set(*error),
        })
    })?;
    Some(if status == TENURE_OK && registry::has_deferred() { TENURE_OK_COLLECT } else { status })
}

/// Ends a buffer whose block goes to what the thread has at hand: `None`, with nothing changed, where that is not so.
#[inline(always)]
fn destroy_at_hand(buffer: tenure_buffer, here: &Local) -> Option<()> {
    let left = BUFFERS.end_if(buffer, here, |buffer| buffer.end_at_hand(here))?;
    left.end(here);
    Some(())
}

exports! { guard:
    fn tenure_buffer_create(
        bytes: usize, alignment: usize, given: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) first {
        // SAFETY: by the contract of the C ABI.
        thread::with(|here| unsafe { create_at_hand(bytes, alignment, given, resource, out, true, here) })
    } {
        writable(out)?;
        let home = stream(given)?;
        let resource = resolved(resource, home.as_carried())?;
        write(out, buffer_out(Buffer::create(bytes, alignment, home, resource)?)?)?;
    }

    fn tenure_buffer_adopt(
        ptr: *mut c_void, bytes: usize, alignment: usize, given: tenure_stream, resource: tenure_resource,
        out: *mut tenure_buffer,
    ) {
        writable(out)?;
        let home = stream(given)?;
        let resource = crate::handles::named(resource)?.light();
        write(out, buffer_out(Buffer::adopt(address(ptr), bytes, alignment, home, resource)?)?)?;
    }

    fn tenure_buffer_adopt_foreign(
        ptr: *mut c_void, bytes: usize, device: i32, given: tenure_stream, free_fn: tenure_free_fn, kept: tenure_owner,
        out: *mut tenure_buffer,
    ) {
        writable(out)?;
        let home = stream(given)?;
        let device = match device {
            TENURE_DEVICE_OF_MEMORY => {
                let default = tenure_core::device::home_or_current(home.as_carried())?;
                let asked = || tenure_core::ops::owner_device(address(ptr));
                if ptr.is_null() { default } else { tenure_core::device::on(default, asked)?.unwrap_or(default) }
            }
            -1 => -1,
            device => tenure_core::device::check(device)?,
        };
        let bits = if device == -1 { TENURE_HOST_ACCESSIBLE } else { TENURE_DEVICE_ACCESSIBLE };
        Buffer::check_foreign(address(ptr), bytes, free_fn.is_some() || kept.release.is_some())?;
        // From here on the owner is taken.
        let context = Context(kept.context, None);
        let foreign = Foreign {
            free: free_fn.map(|free| -> tenure_core::buffer::ForeignFree {
                Box::new(move |ptr, bytes, stream: StreamRef<'_>| {
                    let context = &context;
                    let stream = tenure_stream {
                        raw: stream.raw.as_raw(),
                        object: stream.object.map_or(0, |object| object.handle()),
                    };
                    // SAFETY: by the contract of the C ABI; the owner keeps the context alive.
                    unsafe { free(context.0, pointer(ptr), bytes, stream) }
                })
            }),
            owner: owner(kept),
        };
        let buffer = Buffer::adopt_foreign(address(ptr), bytes, device, home, properties_of(bits), foreign);
        write(out, buffer_out(buffer?)?)?;
    }

    fn tenure_buffer_detach(buffer: tenure_buffer, out: *mut tenure_detached) {
        // A structure that is too small would lose the block.
        // SAFETY: by the contract of the C ABI.
        unsafe { fillable(out, size_of::<tenure_detached>()) }?;
        let detached = with(buffer, |buffer| {
            // Before anything leaves the buffer.
            let home = stream_reference(buffer.home())?;
            let detached = buffer.detach().inspect_err(|_| {
                if home.object != 0 {
                    let _ = crate::handles::stream_release(home.object);
                }
            })?;
            Ok(tenure_detached {
                size: size_of::<tenure_detached>(),
                ptr: pointer(detached.ptr),
                bytes: detached.bytes,
                capacity: detached.capacity,
                alignment: detached.align,
                resource: anchor_out(detached.resource),
                stream: home,
            })
        })?;
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, detached) }?;
    }

    fn tenure_buffer_resource(buffer: tenure_buffer, out: *mut tenure_resource) {
        writable(out)?;
        let seen = BUFFERS.view(buffer)?;
        let anchor = if seen.resource == 0 {
            TENURE_RESOURCE_NULL
        } else {
            // The buffer's own light keeps the resource while this runs.
            anchor_out(crate::handles::named(seen.resource)?.anchor())
        };
        write(out, anchor)?;
    }

    fn tenure_buffer_resize(buffer: tenure_buffer, bytes: usize, given: tenure_stream) {
        let home = stream(given)?;
        with(buffer, |buffer| buffer.resize(bytes, home))?;
    }

    fn tenure_buffer_reserve(buffer: tenure_buffer, bytes: usize, given: tenure_stream) {
        let home = stream(given)?;
        with(buffer, |buffer| buffer.reserve(bytes, home))?;
    }

    fn tenure_buffer_shrink_to_fit(buffer: tenure_buffer, given: tenure_stream) {
        let home = stream(given)?;
        with(buffer, |buffer| buffer.shrink_to_fit(home))?;
    }

    fn tenure_buffer_copy(
        buffer: tenure_buffer, given: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) {
        writable(out)?;
        let home = stream(given)?;
        let resource = resolved(resource, home.as_carried())?;
        // The buffer is not taken out: others may copy it or record streams at the same time.
        let original = BUFFERS.peek(buffer, |buffer| buffer.original())?;
        let (copy, used) = original.copy(home.clone(), resource)?;
        let copy = buffer_out(copy)?;
        if let Err(error) = use_on(buffer, used) {
            // Another call has it, against the rules: then nothing may read it any more when this one returns.
            let waited = tenure_core::ops::synchronize(home.as_carried(), -1);
            drop(BUFFERS.remove(copy, |copy| copy.close(Some(home))));
            waited?;
            return Err(error);
        }
        write(out, copy)?;
    }

    fn tenure_buffer_set_stream(buffer: tenure_buffer, given: tenure_stream) {
        let home = stream(given)?;
        with(buffer, |buffer| buffer.set_stream(home))?;
    }

    fn tenure_buffer_record_stream(buffer: tenure_buffer, given: tenure_stream) {
        use_on(buffer, stream(given)?)?;
    }
}

exports! { guard_release:
    fn tenure_buffer_destroy(buffer: tenure_buffer) first {
        thread::with(|here| destroy_at_hand(buffer, here)).map(|()| TENURE_OK)
    } {
        // A wrong free ends the buffer all the same: the block stays with its resource, which still counts it.
        let mut wrong = None;
        let gone = BUFFERS.remove(buffer, |buffer| match buffer.close(None) {
            Err(error @ (Error::Misuse(_) | Error::BadHandle(_))) => {
                buffer.abandon();
                wrong = Some(error);
                Ok(())
            }
            other => other,
        })?;
        drop(gone);
        if let Some(error) = wrong {
            return Err(error);
        }
    }

    fn tenure_buffer_close(buffer: tenure_buffer, given: *const tenure_stream) {
        let home = if given.is_null() {
            None
        } else {
            // SAFETY: not null, and by the contract a stream of the caller.
            Some(stream(unsafe { given.read() })?)
        };
        with(buffer, |buffer| buffer.close(home))?;
    }
}

exports! { run:
    fn tenure_buffer_view(buffer: tenure_buffer, out: *mut tenure_buffer_view) first {
        // SAFETY: by the contract of the C ABI.
        unsafe { show(buffer, out) }.ok().map(|()| TENURE_OK)
    } {
        // SAFETY: as above.
        unsafe { show(buffer, out) }?;
    }
}

/// # Safety
/// As [`fill`].
#[inline]
unsafe fn show(buffer: tenure_buffer, out: *mut tenure_buffer_view) -> Result<()> {
    writable(out)?;
    let seen = BUFFERS.view(buffer)?;
    let answer = tenure_buffer_view {
        size: size_of::<tenure_buffer_view>(),
        ptr: pointer(seen.ptr),
        bytes: seen.bytes,
        capacity: seen.capacity,
        alignment: seen.align,
        resource_id: seen.resource,
        stream: stream_value(&seen),
        device: seen.device,
        properties: seen.properties,
    };
    // SAFETY: by this function's contract.
    unsafe { fill(out, answer) }
}

exports! { try guard:
    fn tenure_buffer_try_create(
        bytes: usize, alignment: usize, given: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) first {
        // SAFETY: by the contract of the C ABI.
        thread::with(|here| unsafe {
            if resource == TENURE_RESOURCE_CURRENT {
                create_of_current_at_hand(bytes, alignment, given, out, here)
            } else {
                create_at_hand(bytes, alignment, given, resource, out, false, here)
            }
        })
    } {
        writable(out)?;
        let home = stream(given)?;
        if resource == TENURE_RESOURCE_CURRENT && (home.held().is_none() && !home.value().is_special()) {
            // Whose device that is, only the driver can say.
            return Err(Error::WouldBlock);
        }
        let resource = resolved(resource, home.as_carried())?;
        write(out, buffer_out(Buffer::try_create(bytes, alignment, home, resource)?)?)?;
    }
}

exports! { try guard_release:
    fn tenure_buffer_try_destroy(buffer: tenure_buffer) first {
        registry::without_waiting(|| thread::with(|here| destroy_at_hand(buffer, here)))
            .map(|()| if registry::has_deferred() { TENURE_OK_COLLECT } else { TENURE_OK })
    } {
        drop(BUFFERS.remove(buffer, Buffer::try_close)?);
    }
}
