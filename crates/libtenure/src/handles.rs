//! What the opaque values of the C ABI stand for.
//!
//! A resource reference is the id of the resource; bit 63 tells a light from an anchor, so that `tenure_resource_release`
//! drops the right one. Streams and buffers live in slabs. The tags differ, so that a value of one kind is never taken for
//! another.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;

use tenure_abi::*;
use tenure_core::buffer::Buffer;
use tenure_core::chunks::Chunks;
use tenure_core::error::{Error, Payload, Result};
use tenure_core::resource::{Light, Named, Properties, Resource};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_core::sync::atomic::{AtomicPtr, Ordering};
use tenure_core::sync::{Arc, Weak};
use tenure_driver::{RawStream, process};

use crate::slab::{MANY, Slab};
use crate::tickets;

const LIGHT: u64 = 1 << 63;

pub(crate) static BUFFERS: Slab<Buffer, View, MANY> = Slab::new(2, "buffer", view);
pub(crate) static STREAMS: Slab<StreamSeat, (), MANY> = Slab::new(3, "stream", |_| ());

/// The seat of a stream object. It stays until the object ends, which may be long after the clients' last reference: a
/// buffer that names the stream can give its handle out again.
pub(crate) struct StreamSeat {
    /// Held for the clients, while they have references.
    kept: Option<Arc<StreamObject>>,
    weak: Weak<StreamObject>,
    references: u64,
}

/// What may be asked of a buffer at any time, also while an operation works on it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    pub(crate) capacity: usize,
    pub(crate) align: usize,
    pub(crate) resource: u64,
    pub(crate) raw: usize,
    pub(crate) object: u64,
    pub(crate) device: i32,
    pub(crate) properties: u32,
}

// ------------------------------------------------------------------ resources

/// The resource of a reference, for this call.
#[inline]
pub(crate) fn named(resource: tenure_resource) -> Result<Named> {
    if resource == TENURE_RESOURCE_CURRENT {
        return Err(Error::BadHandle(
            "TENURE_RESOURCE_CURRENT does not name a resource here: get one with tenure_current_get".into(),
        ));
    }
    of_reference(tickets::reference(resource)?)
}

#[inline]
fn of_reference(resource: u64) -> Result<Named> {
    Named::borrowed(resource & !LIGHT).ok_or_else(|| {
        Error::BadHandle(if resource == 0 {
            "the resource is null: pass one, or TENURE_RESOURCE_CURRENT where the call takes the current one".into()
        } else {
            "this resource handle was released already or is not one of tenure's".into()
        })
    })
}

/// The resource of a call that allocates: resolved here, once (ownership.md, rule 5).
pub(crate) fn resolved(resource: tenure_resource, stream: StreamRef<'_>) -> Result<Light> {
    if resource == TENURE_RESOURCE_CURRENT {
        return tenure_core::buffer::resolve(None, stream);
    }
    let named = named(resource)?;
    tenure_core::buffer::resolve(Some(&named), stream)
}

/// The upstream of a new resource: an anchor for it.
pub(crate) fn upstream(resource: tenure_resource) -> Result<Resource> {
    if resource == TENURE_RESOURCE_CURRENT {
        return Ok(tenure_core::current::get(-1)?.anchor());
    }
    Ok(named(resource)?.anchor())
}

pub(crate) fn anchor_out(resource: Resource) -> tenure_resource {
    tickets::issue(resource.into_raw())
}

pub(crate) fn light_out(light: Light) -> tenure_resource {
    tickets::issue(light.into_raw() | LIGHT)
}

/// Gives a client's reference back.
pub(crate) fn release(resource: tenure_resource) -> Result<()> {
    // Checked first, so that what is no reference is not used up.
    named(resource)?;
    let resource = tickets::redeem(resource)?;
    let named = of_reference(resource)?;
    if resource & LIGHT == 0 {
        return named.drop_anchor();
    }
    drop(Light::from_raw(named));
    Ok(())
}

/// [`release`] of a light, where nothing about it must be looked at.
#[inline]
pub(crate) fn release_at_hand(resource: tenure_resource) -> bool {
    if resource & LIGHT == 0 || tickets::are_checked() || process::unusable() {
        return false;
    }
    let Some(named) = named_if_right(resource) else { return false };
    drop(Light::from_raw(named));
    true
}

pub(crate) fn property_bits(p: Properties) -> u32 {
    let mut bits = 0;
    for (set, bit) in [
        (p.device_accessible, TENURE_DEVICE_ACCESSIBLE),
        (p.host_accessible, TENURE_HOST_ACCESSIBLE),
        (p.managed, TENURE_MANAGED),
        (p.stream_ordered, TENURE_STREAM_ORDERED),
        (p.exportable, TENURE_EXPORTABLE),
    ] {
        if set {
            bits |= bit;
        }
    }
    bits
}

pub(crate) fn properties_of(bits: u32) -> Properties {
    Properties {
        device_accessible: bits & TENURE_DEVICE_ACCESSIBLE != 0,
        host_accessible: bits & TENURE_HOST_ACCESSIBLE != 0,
        managed: bits & TENURE_MANAGED != 0,
        stream_ordered: bits & TENURE_STREAM_ORDERED != 0,
        exportable: bits & TENURE_EXPORTABLE != 0,
    }
}

// ------------------------------------------------------------------ streams

/// The stream of a call, kept for its duration or longer.
pub(crate) fn stream(stream: tenure_stream) -> Result<StreamHold> {
    // SAFETY: the caller of the C ABI promises that a raw value is alive during the call; where it is kept for longer, it is
    // marked as stored and no driver call names it.
    let raw = unsafe { RawStream::from_raw(stream.raw) };
    if stream.object == 0 {
        return Ok(StreamHold::raw(raw));
    }
    let object = stream_object(stream.object)?;
    if object.raw() != raw {
        return Err(not_together());
    }
    Ok(StreamHold::object(object))
}

/// The stream of a call that keeps it no longer than it lasts: nothing is counted.
///
/// # Safety
/// The stream stays alive during the call, as the C ABI says of every stream: the lifetime of the answer is the call's.
#[inline]
pub(crate) unsafe fn carried<'a>(given: tenure_stream) -> Result<StreamRef<'a>> {
    // SAFETY: by this function's contract.
    let raw = unsafe { RawStream::from_raw(given.raw) };
    if given.object == 0 {
        return Ok(StreamRef::raw(raw));
    }
    let object = POINTERS.get(given.object).ok_or_else(gone)?;
    // SAFETY: a stream that has ended has taken its pointer away; one that is there stays alive during the call.
    let object = unsafe { &*object };
    if object.handle() != given.object {
        return Err(gone());
    }
    if object.raw() != raw {
        return Err(not_together());
    }
    Ok(StreamRef { raw, object: Some(object), stored: false })
}

/// [`carried`] where nothing about the stream is wrong.
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn carried_if_right<'a>(given: tenure_stream) -> Option<StreamRef<'a>> {
    // SAFETY: by this function's contract.
    let raw = unsafe { RawStream::from_raw(given.raw) };
    if given.object == 0 {
        return Some(StreamRef::raw(raw));
    }
    // SAFETY: as in `carried`.
    let object = unsafe { &*POINTERS.get(given.object)? };
    (object.handle() == given.object && object.raw() == raw).then_some(StreamRef {
        raw,
        object: Some(object),
        stored: false,
    })
}

/// What keeps a stream object that [`carried_if_right`] found; `None` where it has ended meanwhile, against the rules.
#[inline(always)]
pub(crate) fn kept_if_there(given: tenure_stream) -> Option<Arc<StreamObject>> {
    // SAFETY: the pointer is one of `Weak::as_ptr`, and the stream's seat keeps a weak reference for as long as the pointer is
    // there. What is made here is not dropped, since it is that one.
    let weak = ManuallyDrop::new(unsafe { Weak::from_raw(POINTERS.get(given.object)?) });
    weak.upgrade()
}

/// The resource of a reference, where that is alive and named as usual.
#[inline(always)]
pub(crate) fn named_if_right(resource: tenure_resource) -> Option<Named> {
    Named::borrowed(resource & !LIGHT)
}

/// Where the stream objects are, by the index in their handles: read without a lock.
struct Pointers(Chunks<AtomicPtr<StreamObject>, 256, MANY>);

static POINTERS: Pointers = Pointers(Chunks::new());

impl Pointers {
    #[inline(always)]
    fn get(&self, handle: u64) -> Option<*const StreamObject> {
        let object = self.0.get(STREAMS.index(handle)?)?.load(Ordering::Acquire);
        (!object.is_null()).then_some(object.cast_const())
    }

    fn set(&self, handle: u64, object: *const StreamObject) {
        let place = STREAMS.index(handle).and_then(|index| self.0.reach(index, |_| AtomicPtr::default()));
        if let Some(place) = place {
            place.store(object.cast_mut(), Ordering::Release);
        }
    }
}

fn not_together() -> Error {
    Error::invalid(
        "the raw value and the object of the stream do not belong together: pass the structure as tenure made it",
    )
}

#[cold]
pub(crate) fn gone() -> Error {
    Error::BadHandle("this stream has ended: nothing holds it any more".into())
}

fn stream_object(handle: tenure_stream_object) -> Result<Arc<StreamObject>> {
    STREAMS.peek(handle, |seat| seat.weak.upgrade())?.ok_or_else(gone)
}

/// Seats a stream object; the client holds one reference.
pub(crate) fn stream_out(object: Arc<StreamObject>) -> Result<tenure_stream> {
    let raw = object.raw().as_raw();
    let weak = Arc::downgrade(&object);
    let pointer = weak.as_ptr();
    let seat = StreamSeat { weak, kept: Some(object.clone()), references: 1 };
    let handle = STREAMS.insert(seat)?;
    object.seat(handle, |handle| {
        POINTERS.set(handle, std::ptr::null());
        // Only the seat goes; what it kept has gone before, or this would not run.
        let _ = STREAMS.remove(handle, |_| Ok(()));
    });
    POINTERS.set(handle, pointer);
    Ok(tenure_stream { raw, object: handle })
}

pub(crate) fn stream_retain(handle: tenure_stream_object) -> Result<()> {
    let object = stream_object(handle)?;
    STREAMS.peek(handle, |seat| {
        seat.references += 1;
        seat.kept = Some(object);
    })
}

pub(crate) fn stream_release(handle: tenure_stream_object) -> Result<()> {
    let ended = STREAMS.peek(handle, |seat| match seat.references {
        0 => Err(Error::BadHandle("this stream was released already: each reference is released once".into())),
        1 => {
            seat.references = 0;
            Ok(seat.kept.take())
        }
        _ => {
            seat.references -= 1;
            Ok(None)
        }
    })??;
    // Outside the seat's lock: the object may end here.
    drop(ended);
    Ok(())
}

// ------------------------------------------------------------------ buffers

pub(crate) fn view(buffer: &Buffer) -> View {
    View {
        ptr: buffer.ptr(),
        bytes: buffer.bytes(),
        capacity: buffer.capacity(),
        align: buffer.align(),
        resource: buffer.resource().map_or(0, Named::id),
        raw: buffer.home().value().addr(),
        object: buffer.home().held().map_or(0, |object| object.handle()),
        device: buffer.device(),
        properties: property_bits(buffer.properties()),
    }
}

#[inline]
pub(crate) fn buffer_out(buffer: Buffer) -> Result<tenure_buffer> {
    BUFFERS.insert(buffer)
}

// ------------------------------------------------------------------ pointers of the caller

/// Writes a result.
pub(crate) fn write<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("the out-pointer is null: pass the address of a variable for the result"));
    }
    // SAFETY: not null, and by the contract of the C ABI the address of a variable of this type.
    unsafe { out.write(value) };
    Ok(())
}

/// Checks an out-pointer before anything is done for it.
pub(crate) fn writable<T>(out: *mut T) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("the out-pointer is null: pass the address of a variable for the result"));
    }
    Ok(())
}

/// Checks the size field of a structure before anything is done for it: at least `least` bytes.
///
/// # Safety
/// As [`fill`].
pub(crate) unsafe fn fillable<T>(out: *mut T, least: usize) -> Result<()> {
    writable(out)?;
    // SAFETY: every structure that is filled starts with a usize.
    let known = unsafe { out.cast::<usize>().read() };
    if known < least || known > 1 << 16 {
        return Err(Error::invalid(format!(
            "the size field of the structure is {known}: set it to sizeof of the structure"
        )));
    }
    Ok(())
}

/// Fills a structure that starts with its size, as far as the caller knows it.
///
/// # Safety
/// `out` is null or points to a `T` of the caller's version, whose first field holds its size in bytes.
pub(crate) unsafe fn fill<T>(out: *mut T, mut value: T) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe { fillable(out, size_of::<usize>()) }?;
    // SAFETY: every structure that is filled starts with a usize.
    let known = unsafe { out.cast::<usize>().read() };
    // SAFETY: the first field of `value` is the size; it stays the caller's.
    unsafe { (&raw mut value).cast::<usize>().write(known) };
    let bytes = known.min(size_of::<T>());
    // SAFETY: both are at least `bytes` long.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), out.cast::<u8>(), bytes) };
    Ok(())
}

/// Reads an options structure that starts with its size; what an older client does not know is as by default. Null gives the
/// defaults.
///
/// # Safety
/// `options` is null or as in [`sized`].
pub(crate) unsafe fn options<T: Copy + Default>(options: *const T) -> Result<T> {
    if options.is_null() {
        return Ok(T::default());
    }
    // SAFETY: by this function's contract.
    unsafe { sized(options, T::default(), "options") }
}

/// Reads a structure of the caller that starts with its size, over a `value` that says what an older client does not know.
///
/// # Safety
/// `given` points to a `T` of the caller's version, whose first field holds its size in bytes.
pub(crate) unsafe fn sized<T: Copy>(given: *const T, mut value: T, what: &str) -> Result<T> {
    // SAFETY: every structure that is read starts with a usize.
    let known = unsafe { given.cast::<usize>().read() };
    if known < size_of::<usize>() || known > 1 << 16 {
        return Err(Error::invalid(format!(
            "the size field of the {what} is {known}: set it to sizeof of the structure"
        )));
    }
    let bytes = known.min(size_of::<T>());
    // SAFETY: both are at least `bytes` long.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut value).cast::<u8>(), bytes) };
    Ok(value)
}

/// A C string of the caller.
///
/// # Safety
/// `text` is null or a C string that lives during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::invalid(format!("{what} is null: pass a C string")));
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// Hands text to the client.
pub(crate) fn text_out(text: String, out: *mut tenure_text) -> Result<()> {
    writable(out)?;
    let mut bytes = text.into_bytes();
    bytes.retain(|b| *b != 0);
    let size = bytes.len();
    bytes.push(0);
    let data = Box::into_raw(bytes.into_boxed_slice()).cast::<c_char>();
    write(out, tenure_text { data, size })
}

/// The payload that keeps a foreign owner alive.
pub(crate) fn owner(owner: tenure_owner) -> Option<Payload> {
    owner.release?;
    Some(Payload { kind: 0, data: owner.context, release: owner.release })
}

/// A pointer of the caller as the engine has it.
pub(crate) fn address<T>(ptr: *const T) -> u64 {
    ptr as usize as u64
}

/// An address of the engine as the caller has it.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}
