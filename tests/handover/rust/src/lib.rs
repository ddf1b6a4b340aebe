//! The actor in Rust, over the crate `tenure`. What each function does is said in `actor.h`.
//!
//! Unsafe in this file: the functions are called through C, and take and give handles.
//!
//! # Safety
//! Of every function: handles are alive, pointers valid for what they are used for, and `why` has room for 512 bytes.

#![allow(clippy::missing_safety_doc, reason = "said once, above, for all of them")]

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure::abi::{TENURE_ERROR_INTERNAL, TENURE_OK, TENURE_RESOURCE_CURRENT};
use tenure::abi::{tenure_detached, tenure_resource, tenure_status, tenure_stream};
use tenure::{Callbacks, DEFAULT_ALIGNMENT, DeviceBuffer, Error, Request, Resource, Result, Stream, StreamRef};
use tenure::{Device, Pool, current, owner_of};

const ROOM: usize = 512;

/// Runs `body`; an error, and a panic, becomes a status and a text.
fn guarded(why: *mut c_char, body: impl FnOnce() -> Result<()>) -> tenure_status {
    let (status, text) = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => return TENURE_OK,
        Ok(Err(error)) => (error.status(), error.to_string()),
        Err(_) => (TENURE_ERROR_INTERNAL, "a panic".to_owned()),
    };
    let bytes = &text.as_bytes()[..text.len().min(ROOM - 1)];
    // SAFETY: `why` has room for 512 bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), why, bytes.len());
        why.add(bytes.len()).write(0);
    }
    status
}

/// A handle of one's own of the caller's resource.
unsafe fn lent(handle: tenure_resource) -> Result<Resource> {
    // SAFETY: never dropped, so that the reference stays the caller's.
    Ok(Resource::clone(&ManuallyDrop::new(unsafe { Resource::from_raw(handle) }?)))
}

/// The caller's buffer, for a call.
unsafe fn lent_buffer(handle: u64) -> Result<ManuallyDrop<DeviceBuffer>> {
    // SAFETY: never dropped, so that the buffer stays the caller's.
    unsafe { DeviceBuffer::from_handle(handle) }.map(ManuallyDrop::new)
}

/// What a resource of the actor's functions counts: `actor_book` of actor.h.
#[repr(C)]
pub struct Book {
    allocations: AtomicU64,
    frees: AtomicU64,
    dropped: AtomicU64,
    fail: AtomicU64,
}

struct Counting {
    upstream: Resource,
    /// Outlives the resource, says actor.h.
    book: &'static Book,
}

impl Counting {
    fn obey(&self, order: u64) -> Result<()> {
        if self.book.fail.compare_exchange(order, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Err(Error::callback("refused by Rust"));
        }
        Ok(())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.book.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: the memory is the upstream's, unchanged.
unsafe impl Callbacks for Counting {
    fn kind(&self) -> &str {
        "counting"
    }

    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void> {
        self.obey(1)?;
        self.book.allocations.fetch_add(1, Ordering::SeqCst);
        self.upstream.allocate_aligned(request.bytes, request.alignment, stream)
    }

    unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        // SAFETY: as the caller of this function promises.
        unsafe { self.upstream.deallocate(ptr, request.bytes, request.alignment, stream)? };
        self.book.frees.fetch_add(1, Ordering::SeqCst);
        self.obey(2)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_pool(
    upstream: tenure_resource,
    out: *mut tenure_resource,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let upstream = unsafe { lent(upstream) }?;
        let pool = Pool::builder(&Device::current()?).upstream(&upstream).build()?;
        // SAFETY: said at the top.
        unsafe { out.write(pool.resource().clone().into_raw()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_callback(
    upstream: tenure_resource,
    book: *const Book,
    out: *mut tenure_resource,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let (upstream, book) = unsafe { (lent(upstream)?, &*book) };
        let made = Resource::from_callbacks(Counting { upstream, book })?;
        // SAFETY: said at the top.
        unsafe { out.write(made.into_raw()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_release(resource: tenure_resource, why: *mut c_char) -> tenure_status {
    // SAFETY: said at the top; the reference is given to this function.
    guarded(why, || unsafe { Resource::from_raw(resource) }.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_make(
    bytes: usize,
    value: u8,
    stream: tenure_stream,
    resource: tenure_resource,
    out: *mut u64,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // Resolved once: the very handle is used for everything that follows.
        let resolved = if resource == TENURE_RESOURCE_CURRENT {
            current::get()?
        } else {
            // SAFETY: said at the top.
            unsafe { lent(resource) }?
        };
        // SAFETY: said at the top.
        let stream = unsafe { StreamRef::from_abi(stream) };
        let mut made = DeviceBuffer::new_in(bytes, stream, &resolved)?;
        made.fill(value, stream)?;
        // SAFETY: said at the top.
        unsafe { out.write(made.into_handle()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_read(buffer: u64, to: *mut u8, bytes: usize, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let (buffer, to) = unsafe { (lent_buffer(buffer)?, std::slice::from_raw_parts_mut(to, bytes)) };
        let mine = Stream::create()?;
        if let Some(home) = buffer.stream() {
            mine.wait(&home)?;
        }
        buffer.record_stream(&mine)?;
        buffer.copy_to_host(to, &mine)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_free(buffer: u64, elsewhere: u32, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let taken = unsafe { DeviceBuffer::from_handle(buffer) }?;
        if elsewhere == 0 {
            return taken.close();
        }
        std::thread::spawn(move || taken.close()).join().unwrap_or_else(|_| Err(Error::Internal("a panic".into())))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_detach(buffer: u64, out: *mut tenure_detached, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let taken = unsafe { DeviceBuffer::from_handle(buffer) }?;
        let parts = taken.detach().map_err(|(_, error)| error)?;
        let stream = tenure_stream { raw: parts.raw_stream, object: 0 };
        let detached = tenure_detached {
            size: size_of::<tenure_detached>(),
            ptr: parts.ptr,
            bytes: parts.bytes,
            capacity: parts.capacity,
            alignment: parts.alignment,
            resource: parts.resource.into_raw(),
            stream: parts.stream.map_or(stream, Stream::into_handle),
        };
        // SAFETY: said at the top.
        unsafe { out.write(detached) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_adopt(
    ptr: *mut c_void,
    bytes: usize,
    stream: tenure_stream,
    resource: tenure_resource,
    out: *mut u64,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let adopted = unsafe {
            DeviceBuffer::adopt(ptr, bytes, DEFAULT_ALIGNMENT, StreamRef::from_abi(stream), &lent(resource)?)
        }?;
        // SAFETY: said at the top.
        unsafe { out.write(adopted.into_handle()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_allocate(
    resource: tenure_resource,
    bytes: usize,
    stream: tenure_stream,
    out: *mut *mut c_void,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        unsafe { out.write(lent(resource)?.allocate(bytes, StreamRef::from_abi(stream))?) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_deallocate(
    resource: tenure_resource,
    ptr: *mut c_void,
    bytes: usize,
    stream: tenure_stream,
    why: *mut c_char,
) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top; that a wrong free is refused is what the scenes show.
        unsafe { lent(resource)?.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, StreamRef::from_abi(stream)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_owner_of(ptr: *mut c_void, id: *mut u64, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        let owner = owner_of(ptr)?.map_or(0, |owner| owner.id());
        // SAFETY: said at the top.
        unsafe { id.write(owner) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_set_current(resource: tenure_resource, why: *mut c_char) -> tenure_status {
    // SAFETY: said at the top.
    guarded(why, || current::set(&unsafe { lent(resource) }?).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_current_id(id: *mut u64, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        unsafe { id.write(current::get()?.id()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_scope(resource: tenure_resource, body: extern "C" fn(), why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let _scope = current::using(&unsafe { lent(resource) }?)?;
        body();
        Ok(())
    })
}

/// Rust drops no statics: what is here is alive when the process ends.
static KEPT: Mutex<Option<(DeviceBuffer, Resource)>> = Mutex::new(None);

#[unsafe(no_mangle)]
unsafe extern "C" fn actor_keep(buffer: u64, resource: tenure_resource, why: *mut c_char) -> tenure_status {
    guarded(why, || {
        // SAFETY: said at the top.
        let kept = unsafe { (DeviceBuffer::from_handle(buffer)?, Resource::from_raw(resource)?) };
        *KEPT.lock().map_err(|_| Error::Internal("a panic".into()))? = Some(kept);
        Ok(())
    })
}
