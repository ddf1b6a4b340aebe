//! What stands at each door: no panic unwinds through the border, each failure becomes a status, and the detail of the last
//! one is kept per thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tenure_abi::*;
use tenure_core::error::{Error, MisuseKind, Payload, Result};
use tenure_core::resource::registry;
use tenure_driver::process;

use crate::instance;

/// The last error of a thread, and its texts once they were asked for.
#[derive(Default)]
struct Last {
    error: Option<Error>,
    /// True while the texts are those of `error`: a client may read them until the next failing call.
    told: bool,
    message: CString,
    name: CString,
    call: CString,
    resource: CString,
    pending: CString,
    tried: CString,
    notes: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last::default());
}

/// Runs the body of an exported function. In a forked child it is not run: locks may be held there by threads that do not
/// exist (ownership.md, rule 8).
pub(crate) fn guard(body: impl FnOnce() -> Result<()>) -> tenure_status {
    if process::forked() {
        return set(Error::Forked);
    }
    run(body)
}

/// Runs the short way of a function, which says `None` to be taken the whole way instead. Nothing is checked here that the
/// whole way checks again; a panic takes it, too.
#[inline]
pub(crate) fn at_hand<R>(body: impl FnOnce() -> Option<R>) -> Option<R> {
    if !instance::is_checked() {
        return None;
    }
    catch_unwind(AssertUnwindSafe(body)).ok().flatten()
}

/// Runs the body of a function that gives something back: in a forked child and while the process ends it only returns.
pub(crate) fn guard_release(body: impl FnOnce() -> Result<()>) -> tenure_status {
    if process::unusable() {
        return TENURE_OK;
    }
    run(body)
}

/// Runs a body that takes no lock, or none that it would wait for in a forked child.
pub(crate) fn run(body: impl FnOnce() -> Result<()>) -> tenure_status {
    match catch_unwind(AssertUnwindSafe(|| instance::check().and_then(|()| body()))) {
        Ok(Ok(())) => TENURE_OK,
        Ok(Err(error)) => set(error),
        Err(panic) => set(Error::Internal(text_of(&*panic))),
    }
}

/// Runs `guarded`, the body of a `_try_` function in its guard: resources whose last reference goes are left for `collect`.
pub(crate) fn without_waiting(guarded: impl FnOnce() -> tenure_status) -> tenure_status {
    let status = registry::without_waiting(guarded);
    if status == TENURE_OK && registry::has_deferred() { TENURE_OK_COLLECT } else { status }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// The status of an error.
pub(crate) fn status_of(error: &Error) -> tenure_status {
    match error {
        Error::OneOf(one) => status_of(&one.error),
        Error::OutOfMemory(_) | Error::CallbackOutOfMemory(..) => TENURE_ERROR_OUT_OF_MEMORY,
        Error::Misuse(_) => TENURE_ERROR_OWNERSHIP,
        Error::Device(e) if e.is_out_of_memory() => TENURE_ERROR_OUT_OF_MEMORY,
        Error::Device(e) if e.is_forked() => TENURE_ERROR_FORKED,
        Error::Device(e) if e.is_exiting() => TENURE_ERROR_EXITING,
        Error::Device(_) => TENURE_ERROR_CUDA,
        Error::NoDevice(_) => TENURE_ERROR_NO_DEVICE,
        Error::Invalid(_) => TENURE_ERROR_INVALID_ARGUMENT,
        Error::Unsupported(_) => TENURE_ERROR_UNSUPPORTED,
        Error::WouldBlock => TENURE_ERROR_WOULD_BLOCK,
        Error::BadHandle(_) => TENURE_ERROR_BAD_HANDLE,
        Error::Forked => TENURE_ERROR_FORKED,
        Error::Exiting => TENURE_ERROR_EXITING,
        Error::Callback(..) => TENURE_ERROR_CALLBACK,
        Error::Internal(_) => TENURE_ERROR_INTERNAL,
    }
}

/// Keeps an error as the thread's last one.
pub(crate) fn set(error: Error) -> tenure_status {
    let status = status_of(&error);
    // The old one may carry a payload whose release enters another language, which may call us: no borrow is held here, and
    // what goes wrong there does not take the place of this error.
    drop(take());
    drop(keep(error, false));
    status
}

/// Keeps an error; gives the one that stood there.
fn keep(error: Error, told: bool) -> Option<Error> {
    let keep = |last: &RefCell<Last>| {
        let mut last = last.try_borrow_mut().ok()?;
        last.told &= told;
        last.error.replace(error)
    };
    LAST.try_with(keep).ok().flatten()
}

/// Takes the thread's last error.
pub(crate) fn take() -> Option<Error> {
    LAST.try_with(|last| last.try_borrow_mut().ok().and_then(|mut last| last.error.take())).ok().flatten()
}

/// Calls `f` with the thread's last error, if there is one.
pub(crate) fn with_last<R>(f: impl FnOnce(&Error) -> R) -> Option<R> {
    let error = take()?;
    let result = f(&error);
    drop(keep(error, true));
    Some(result)
}

/// Works out what else there is to say about the last error, if that is out of memory. The error stays the last one.
pub(crate) fn explain() {
    // Taken out meanwhile: explaining calls the driver, and may call a user's resource, which may fail in its own way.
    let Some(mut error) = take() else { return };
    if let Error::OutOfMemory(oom) = error.inner_mut() {
        tenure_core::observe::notes::explain(oom);
    }
    drop(keep(error, false));
}

/// An error that a callback told of by `tenure_error_set`.
pub(crate) fn set_by_callback(status: tenure_status, message: String, payload: Option<Payload>) -> Result<()> {
    let error = match status {
        TENURE_ERROR_OUT_OF_MEMORY => Error::CallbackOutOfMemory(message, payload),
        TENURE_OK => return Err(Error::invalid("status 0 is not an error")),
        TENURE_ERROR_INVALID_ARGUMENT => Error::Invalid(message),
        TENURE_ERROR_UNSUPPORTED => Error::Unsupported(message),
        TENURE_ERROR_WOULD_BLOCK => Error::WouldBlock,
        TENURE_ERROR_EXITING => Error::Exiting,
        _ => Error::Callback(message, payload),
    };
    set(error);
    Ok(())
}

/// Takes the payload of the last error, if it is of this kind.
pub(crate) fn take_payload(kind: u32) -> Option<*mut c_void> {
    let mut error = take()?;
    let mut data = None;
    if let Error::Callback(_, payload) | Error::CallbackOutOfMemory(_, payload) = error.inner_mut()
        && payload.as_ref().is_some_and(|p| p.kind == kind)
        && let Some(mut taken) = payload.take()
    {
        data = Some(taken.data);
        taken.release = None;
    }
    drop(keep(error, true));
    data
}

fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|b| *b != 0);
    CString::new(bytes).unwrap_or_default()
}

/// Fills the caller's structure from the thread's last error.
pub(crate) fn describe(out: &mut tenure_error) {
    let size = out.size;
    let filled = LAST.try_with(|last| {
        let Ok(mut last) = last.try_borrow_mut() else { return };
        let Last { error, told, message, name, call, resource, pending, tried, notes } = &mut *last;
        let fresh = !std::mem::replace(told, true);
        let tell = |text: &mut CString, new: &dyn Fn() -> String| {
            if fresh {
                *text = c_string(new());
            }
        };
        let mut detail = empty(size);
        if let Some(error) = error.as_ref() {
            tell(message, &|| error.to_string());
            detail.status = status_of(error);
            match error.inner() {
                Error::OutOfMemory(oom) => {
                    tell(resource, &|| oom.resource.clone());
                    detail.requested = oom.requested;
                    detail.live = oom.live;
                    detail.reserved = oom.reserved;
                    detail.limit = oom.limit;
                    detail.largest_free = oom.largest_free;
                    detail.driver_free = oom.driver_free;
                    detail.driver_total = oom.driver_total;
                    detail.resource = resource.as_ptr();
                    tell(pending, &|| oom.pending_text());
                    tell(tried, &|| oom.tried_text());
                    detail.cached = oom.cached;
                    detail.unproven = oom.unproven;
                    detail.pending = pending.as_ptr();
                    detail.tried = tried.as_ptr();
                    tell(notes, &|| oom.notes.join("\n"));
                    detail.notes = notes.as_ptr();
                }
                Error::Misuse(misuse) => {
                    detail.ptr = misuse.ptr;
                    detail.bytes = misuse.bytes;
                    detail.asked = misuse.asked;
                    detail.owner = misuse.owner;
                    detail.owner_bytes = misuse.owner_bytes;
                    detail.misuse_kind = match misuse.kind {
                        MisuseKind::UnknownPointer => 1,
                        MisuseKind::InteriorPointer => 2,
                        MisuseKind::WrongResource => 3,
                        MisuseKind::WrongSize => 4,
                        MisuseKind::WrongAlignment => 5,
                        MisuseKind::DoubleFree => 6,
                    };
                }
                Error::Device(device) => {
                    tell(name, &|| device.name().into());
                    tell(call, &|| device.call.into());
                    detail.cuda_code = device.code;
                    detail.cuda_name = name.as_ptr();
                    detail.cuda_call = call.as_ptr();
                }
                Error::Callback(_, Some(payload)) | Error::CallbackOutOfMemory(_, Some(payload)) => {
                    detail.payload_kind = payload.kind
                }
                _ => {}
            }
            detail.message = message.as_ptr();
        }
        *out = detail;
    });
    if filled.is_err() {
        *out = empty(size);
    }
}

fn empty(size: usize) -> tenure_error {
    const NOTHING: *const c_char = c"".as_ptr();
    tenure_error {
        size,
        status: TENURE_OK,
        cuda_code: 0,
        message: NOTHING,
        cuda_name: NOTHING,
        cuda_call: NOTHING,
        requested: 0,
        live: 0,
        reserved: 0,
        limit: 0,
        largest_free: 0,
        driver_free: 0,
        driver_total: 0,
        resource: NOTHING,
        ptr: 0,
        bytes: 0,
        asked: 0,
        owner: 0,
        owner_bytes: 0,
        payload_kind: 0,
        misuse_kind: 0,
        cached: 0,
        unproven: 0,
        pending: NOTHING,
        tried: NOTHING,
        notes: NOTHING,
    }
}

/// Exported functions of one file, each with the guard that is named first: `guard` for what works on the engine,
/// `guard_release` for what gives something back, `run` for what may be asked at any time; and `try` in front of one for
/// functions that never wait. A block after `first` is the function's short way ([`at_hand`]).
macro_rules! exports {
    (try $guard:ident: $($rest:tt)*) => { $crate::guard::exports!(@ (|body| $crate::guard::without_waiting(|| $crate::guard::$guard(body))) $($rest)*); };
    ($guard:ident: $($rest:tt)*) => { $crate::guard::exports!(@ ($crate::guard::$guard) $($rest)*); };
    (@ $guard:tt $( fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(first $first:block)? $body:block )*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the C ABI; its text is in `tenure-abi`.")]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> tenure_abi::tenure_status {
                $(
                    if let Some(status) = $crate::guard::at_hand(|| $first) {
                        return status;
                    }
                )?
                $guard(|| { $body; Ok(()) })
            }
        )*
    };
}

pub(crate) use exports;
