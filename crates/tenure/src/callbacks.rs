//! Resources written in Rust by users.
//!
//! [`Resource::from_callbacks`] turns a value into a resource that every language can use. The resource owns the value and
//! drops it when the last reference or allocation is gone. Its methods are called without any lock of tenure's held, on any
//! thread, and may allocate through other resources.
//!
//! What goes wrong inside comes back as it was made: an [`Error`] returned by [`Callbacks::allocate`] is what the caller's
//! `Result` holds, through any stack of resources and languages in between. An error of the user's own keeps its source; one
//! that came from tenure and is handed on keeps its fields; out of memory stays out of memory, with its text. A panic is
//! caught and becomes an [`Error::Callback`] with its message. An error of [`Callbacks::deallocate`] is reported and never
//! stops the free.
//!
//! Unsafe in this file: the functions that the library calls back, and the payload that carries an error through it.

use std::any::Any;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_abi::*;

use crate::device::Device;
use crate::error::{self, Callback, Error, Result, check};
use crate::owner::drop_quietly;
use crate::resource::{Properties, Resource};
use crate::stream::StreamRef;
use crate::{api, load};

/// One request, as a user's resource sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Bytes wanted, never 0.
    pub bytes: usize,
    /// Alignment in bytes, a power of two.
    pub alignment: usize,
}

/// A user's resource.
///
/// # Safety
/// [`allocate`](Self::allocate) must return memory that has the wanted size and alignment, that nobody else uses, that can
/// do what [`properties`](Self::properties) says, and that stays so until [`deallocate`](Self::deallocate) is called for it
/// and the work enqueued on that call's stream is done.
///
/// # Examples
/// ```
/// use std::ffi::c_void;
/// use tenure::{Callbacks, DeviceBuffer, Request, Resource, Result, Stream, StreamRef};
///
/// /// Hands everything on and says so.
/// struct Logged(Resource);
///
/// // SAFETY: the memory is the upstream's, unchanged.
/// unsafe impl Callbacks for Logged {
///     fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void> {
///         println!("{} bytes", request.bytes);
///         self.0.allocate_aligned(request.bytes, request.alignment, stream)
///     }
///
///     unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()> {
///         // SAFETY: as the caller of this function promises.
///         unsafe { self.0.deallocate(ptr, request.bytes, request.alignment, stream) }
///     }
/// }
///
/// let resource = Resource::from_callbacks(Logged(tenure::cuda()?))?;
/// let buffer = DeviceBuffer::new_in(1000, &Stream::create()?, &resource)?;
/// drop(resource); // the buffer keeps it, and with it the value `Logged`
/// drop(buffer);
/// # Ok::<(), tenure::Error>(())
/// ```
pub unsafe trait Callbacks: Any + Send + Sync {
    /// A short name in the field's words.
    fn kind(&self) -> &str {
        "rust"
    }

    /// What the memory can do.
    fn properties(&self) -> Properties {
        Properties::DEVICE
    }

    /// The device of the memory; `None` when it follows from the stream of each call.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Allocates, usable in the order of `stream`.
    ///
    /// # Errors
    /// Whatever the caller is to see. [`Error::out_of_memory`] is the one that makes callers try again;
    /// [`Error::callback`] carries an error of the user's own.
    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void>;

    /// Frees in the order of `stream`.
    ///
    /// # Safety
    /// `ptr` is what [`allocate`](Self::allocate) returned for the same size and alignment, it was not freed before, and
    /// only work that is enqueued before on `stream` still uses it.
    ///
    /// # Errors
    /// Reported; the block counts as freed.
    unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()>;

    /// Gives back what is cached, down to `keep_bytes`; says how many bytes went.
    ///
    /// # Errors
    /// Whatever the caller is to see.
    fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let _ = keep_bytes;
        Ok(0)
    }
}

/// What the library keeps: one type for every user's resource, so that one function drops them all and tells ours from
/// everybody else's.
type Context = Box<dyn Callbacks>;

impl Resource {
    /// Makes a resource of a value that implements [`Callbacks`].
    ///
    /// # Errors
    /// [`Error::Load`] without a library, [`Error::Invalid`] for a name or a device that cannot be; the value is dropped
    /// then.
    pub fn from_callbacks(callbacks: impl Callbacks) -> Result<Self> {
        let api = api()?;
        let kind = callbacks.kind();
        let kind = CString::new(kind)
            .map_err(|_| Error::Invalid(format!("{kind:?} is not a name for a resource: it holds a zero byte")))?;
        let vtable = tenure_resource_vtable {
            size: size_of::<tenure_resource_vtable>(),
            kind: kind.as_ptr(),
            properties: callbacks.properties().bits(),
            device: callbacks.device().map_or(-1, |device| device.ordinal()),
            allocate: Some(allocate),
            deallocate: Some(deallocate),
            trim: Some(trim),
            drop: Some(drop_context),
        };
        let context: *mut Context = Box::into_raw(Box::new(Box::new(callbacks)));
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: vtable and name are alive during the call, which copies them; the pointer is valid for writing.
        let status = unsafe { (api.callback_create)(&vtable, context.cast(), &mut handle) };
        if let Err(error) = check(api, status) {
            // SAFETY: the library takes the context only from a successful call on.
            drop_quietly(unsafe { Box::from_raw(context) });
            return Err(error);
        }
        Ok(Self::owned(api, handle))
    }

    /// The value that this resource was made of by [`from_callbacks`](Self::from_callbacks); `None` when it was made
    /// otherwise, of another type, or by another copy of this crate.
    pub fn callbacks<T: Callbacks>(&self) -> Option<&T> {
        let api = load::loaded()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writing.
        let status = unsafe { (api.callback_context)(self.as_raw(), Some(drop_context), &mut context) };
        if status != TENURE_OK || context.is_null() {
            return None;
        }
        // SAFETY: a context with our own drop function is a `Context` of ours, alive while the resource is, which `self` sees
        // to.
        let callbacks: &dyn Callbacks = unsafe { &**context.cast::<Context>() };
        (callbacks as &dyn Any).downcast_ref()
    }
}

unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: called once, with what `from_callbacks` made.
    drop_quietly(unsafe { Box::from_raw(context.cast::<Context>()) });
}

unsafe extern "C" fn allocate(
    context: *mut c_void,
    request: *const tenure_request,
    stream: tenure_stream,
    out: *mut *mut c_void,
) -> tenure_status {
    enter(|| {
        // SAFETY: the library passes our context, a request, and a stream that is alive during the call.
        let (callbacks, request, stream) = unsafe { arguments(context, request, stream) };
        let ptr = callbacks.allocate(&request, stream)?;
        // SAFETY: valid for writing, says the border.
        unsafe { out.write(ptr) };
        Ok(())
    })
}

unsafe extern "C" fn deallocate(
    context: *mut c_void,
    ptr: *mut c_void,
    request: *const tenure_request,
    stream: tenure_stream,
) -> tenure_status {
    enter(|| {
        // SAFETY: as in `allocate`; the library has checked the block against its book.
        unsafe {
            let (callbacks, request, stream) = arguments(context, request, stream);
            callbacks.deallocate(ptr, &request, stream)
        }
    })
}

unsafe extern "C" fn trim(context: *mut c_void, keep_bytes: usize, released: *mut usize) -> tenure_status {
    enter(|| {
        // SAFETY: the library passes our context.
        let callbacks = unsafe { &**context.cast::<Context>() };
        let count = callbacks.trim(keep_bytes)?;
        if !released.is_null() {
            // SAFETY: valid for writing, says the border.
            unsafe { released.write(count) };
        }
        Ok(())
    })
}

/// # Safety
/// `context` is one of ours, `request` readable, and what `stream` names alive during `'a`.
unsafe fn arguments<'a>(
    context: *mut c_void,
    request: *const tenure_request,
    stream: tenure_stream,
) -> (&'a dyn Callbacks, Request, StreamRef<'a>) {
    // SAFETY: as the caller promises.
    unsafe {
        let request = &*request;
        (
            &**context.cast::<Context>(),
            Request { bytes: request.bytes, alignment: request.alignment },
            StreamRef::from_abi(stream),
        )
    }
}

/// Runs a user's function: nothing unwinds from here, and whatever it returns is told to the library.
pub(crate) fn enter(call: impl FnOnce() -> Result<()>) -> tenure_status {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("a callback written in Rust panicked: {}", said.unwrap_or("(no message)"));
        drop_quietly(panic);
        Err(Error::Callback(Box::new(Callback { message, source: None })))
    });
    match result {
        Ok(()) => TENURE_OK,
        Err(error) => tell(error),
    }
}

/// Makes `error` this thread's last error.
fn tell(error: Error) -> tenure_status {
    let status = error.status();
    // The library has called us, so that it is loaded.
    let Some(api) = load::loaded() else { return status };
    let message = error.to_string();
    // An error that was handed on from a call into the library is still this thread's last one, with all its fields and
    // perhaps with the payload of another language. It must not be replaced by a copy that has less.
    if let Some(detail) = error::detail(api)
        && detail.status == status
        && error::text(detail.message) == message
    {
        return status;
    }
    // Where another language must be able to tell what happened, the status says it; everything else is an error of a
    // callback, and Rust finds the very value in the payload.
    let status = match status {
        TENURE_ERROR_OUT_OF_MEMORY
        | TENURE_ERROR_INVALID_ARGUMENT
        | TENURE_ERROR_UNSUPPORTED
        | TENURE_ERROR_EXITING => status,
        _ => TENURE_ERROR_CALLBACK,
    };
    let text = CString::new(message.replace('\0', "")).unwrap_or_default();
    let (payload, release) = match status {
        TENURE_ERROR_CALLBACK => {
            let payload = Box::new(OwnPayload { tag: &raw const TAG, release: release_payload, error });
            (Box::into_raw(payload).cast::<c_void>(), Some(release_payload as unsafe extern "C" fn(*mut c_void)))
        }
        _ => (std::ptr::null_mut(), None),
    };
    let kind = if payload.is_null() { 0 } else { PAYLOAD_KIND };
    // SAFETY: text is a string that the library copies; the payload is its from here on.
    unsafe { (api.error_set)(status, CStr::as_ptr(&text), kind, payload, release) };
    status
}

/// Who can read our payloads: any copy of this crate, which then looks at the tag.
const PAYLOAD_KIND: u32 = u32::from_be_bytes(*b"rust");

/// The address of this is different in each copy of this crate in the process. Two copies may come from two compilers, so
/// that only the copy which made an error may read it.
static TAG: u8 = 0;

/// An error of ours on its way through the library. The first two fields are read by every copy of this crate.
#[repr(C)]
struct OwnPayload {
    tag: *const u8,
    release: unsafe extern "C" fn(*mut c_void),
    error: Error,
}

/// Frees a payload that nobody wants.
unsafe extern "C" fn release_payload(payload: *mut c_void) {
    // SAFETY: called once, with what `tell` made.
    drop_quietly(unsafe { Box::from_raw(payload.cast::<OwnPayload>()) });
}

/// Takes the Rust error out of this thread's detail, if it has one of this very copy of the crate.
pub(crate) fn take_own_payload(api: &tenure_api) -> Option<Error> {
    let mut payload = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { (api.error_take_payload)(PAYLOAD_KIND, &mut payload) };
    if status != TENURE_OK || payload.is_null() {
        return None;
    }
    // SAFETY: a payload of our kind starts with the first fields of `OwnPayload`, whoever made it, and is ours alone now.
    unsafe {
        let payload = payload.cast::<OwnPayload>();
        if std::ptr::eq((*payload).tag, &raw const TAG) {
            return Some(Box::from_raw(payload).error);
        }
        ((*payload).release)(payload.cast());
    }
    None
}
