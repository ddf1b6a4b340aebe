//! Adaptors beyond limiting and statistics, and who tells the frames of an interpreter.

use std::ffi::{CString, c_char, c_void};

use tenure_abi::*;
use tenure_core::adaptor::{Aligned, FailureCallback, OnFailure, Prefetch, ThreadSafe, Tracked, Tracking};
use tenure_core::error::{Error, Result};
use tenure_core::prefetch::{Place, prefetch};
use tenure_core::resource::leaf::{AsyncPool, SamHeadroom};
use tenure_core::resource::{Named, Resource};
use tenure_core::stack;
use tenure_core::sync::Arc;
use tenure_core::sync::atomic::{AtomicBool, Ordering};

use crate::buffer::use_on;
use crate::callback::{face_of, failed};
use crate::device::ordinal;
use crate::guard::{self, exports};
use crate::handles::{
    BUFFERS, address, anchor_out, carried, named, owner, pointer, stream, text_out, upstream, writable, write,
};
use crate::library::Context;

/// Text of an interpreter's frames beyond this is left out, in bytes.
const MOST_STACK: usize = 16 << 10;

fn tracking<R>(resource: tenure_resource, f: impl FnOnce(&Tracking) -> R) -> Result<R> {
    let named = named(resource)?;
    let tracking = named.downcast::<Tracking>().ok_or_else(|| {
        let kind = named.body().kind();
        Error::Unsupported(format!(
            "the resource is a {kind} and keeps no list of what is out: put a tracking adaptor over it"
        ))
    })?;
    Ok(f(tracking))
}

/// A user's function that is asked before a request fails.
struct Asked {
    function: unsafe extern "C" fn(*mut c_void, usize, *mut u32) -> tenure_status,
    owner: tenure_owner,
    /// Set once the resource is made: until then the owner is the caller's.
    taken: Arc<AtomicBool>,
}

// SAFETY: by the contract of the C ABI the function and the owner's may be called with this context on any thread.
unsafe impl Send for Asked {}
// SAFETY: as above.
unsafe impl Sync for Asked {}

impl OnFailure for Asked {
    fn failed(&self, bytes: usize) -> Result<bool> {
        let mut again = 0;
        drop(guard::take());
        // SAFETY: by the contract of the C ABI; `again` is valid for writing during the call.
        let status = unsafe { (self.function)(self.owner.context, bytes, &mut again) };
        if status != TENURE_OK {
            return Err(failed(status, "failure"));
        }
        Ok(again != 0)
    }

    fn context(&self) -> *mut c_void {
        self.owner.context
    }

    fn face(&self) -> u64 {
        face_of(self.owner.release)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.taken.load(Ordering::Acquire) {
            drop(owner(self.owner));
        }
    }
}

/// The face and the context of the function that a resource asks before a request fails, if it is of that kind.
pub(crate) fn asked_by(named: Named) -> Option<(u64, *mut c_void)> {
    let callback = named.downcast::<FailureCallback>()?.callback();
    Some((callback.face(), callback.context()))
}

/// Where a client wants memory to be; `None` where there is no device at all, hence nothing to move.
fn place(device: i32) -> Result<Option<Place>> {
    if device == TENURE_HOST {
        return Ok(Some(Place::Host));
    }
    match ordinal(device) {
        Ok(device) => Ok(Some(Place::Device(device))),
        Err(Error::NoDevice(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Says whether the driver was asked, to a client that wants to know.
fn tell(told: *mut u32, asked: bool) -> Result<()> {
    if told.is_null() { Ok(()) } else { write(told, u32::from(asked)) }
}

/// Shows one block to a client; says whether it wants more.
fn show(
    block: &Tracked,
    visit: unsafe extern "C" fn(*mut c_void, *const tenure_tracked) -> i32,
    context: *mut c_void,
) -> bool {
    let mut text = block.stack.as_ref().map(|stack| stack.lines().join("\n")).unwrap_or_default();
    text.retain(|c| c != '\0');
    let text = CString::new(text).unwrap_or_default();
    let shown = tenure_tracked {
        size: size_of::<tenure_tracked>(),
        ptr: pointer(block.ptr),
        bytes: block.bytes,
        stack: text.as_ptr(),
    };
    // SAFETY: by the contract of the C ABI; block and text live during the call.
    unsafe { visit(context, &shown) == 0 }
}

exports! { guard:
    fn tenure_tracking_create(above: tenure_resource, capture_stacks: u32, out: *mut tenure_resource) {
        writable(out)?;
        let tracking = Tracking::new(upstream(above)?, capture_stacks != 0);
        write(out, anchor_out(Resource::new(tracking)?))?;
    }

    fn tenure_tracking_list(resource: tenure_resource, visit: tenure_tracked_fn, context: *mut c_void) {
        let visit = visit.ok_or_else(|| Error::invalid("the function is null: pass one that gets the blocks"))?;
        let blocks = tracking(resource, Tracking::outstanding)?;
        let _all = blocks.iter().all(|block| show(block, visit, context));
    }

    fn tenure_tracking_text(resource: tenure_resource, out: *mut tenure_text) {
        writable(out)?;
        text_out(tracking(resource, Tracking::outstanding_text)?, out)?;
    }

    fn tenure_failure_callback_create(
        above: tenure_resource, callback: tenure_failure_fn, given: tenure_owner, out: *mut tenure_resource,
    ) {
        writable(out)?;
        let function = callback.ok_or_else(|| Error::invalid("the callback is null: pass a function"))?;
        let taken = Arc::new(AtomicBool::new(false));
        let asked = Asked { function, owner: given, taken: taken.clone() };
        let resource = Resource::new(FailureCallback::new(upstream(above)?, Box::new(asked)))?;
        taken.store(true, Ordering::Release);
        write(out, anchor_out(resource))?;
    }

    fn tenure_prefetch_create(above: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(Resource::new(Prefetch::new(upstream(above)?))?))?;
    }

    fn tenure_aligned_create(
        above: tenure_resource, alignment: usize, threshold: usize, out: *mut tenure_resource,
    ) {
        writable(out)?;
        write(out, anchor_out(Resource::new(Aligned::new(upstream(above)?, alignment, threshold)?)?))?;
    }

    fn tenure_thread_safe_create(above: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(Resource::new(ThreadSafe::new(upstream(above)?))?))?;
    }

    fn tenure_sam_headroom_create(headroom: u64, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(Resource::new(SamHeadroom::new(headroom))?))?;
    }

    fn tenure_async_managed_create(device: i32, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(Resource::new(AsyncPool::managed_of_default(ordinal(device)?)?)?))?;
    }

    fn tenure_prefetch(ptr: *const c_void, bytes: usize, device: i32, given: tenure_stream, told: *mut u32) {
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        let asked = match place(device)? {
            Some(place) => prefetch(address(ptr), bytes, place, stream)?,
            None => false,
        };
        tell(told, asked)?;
    }

    fn tenure_buffer_prefetch(
        buffer: tenure_buffer, device: i32, given: *const tenure_stream, told: *mut u32,
    ) {
        let (ptr, bytes, home) = BUFFERS.peek(buffer, |buffer| (buffer.ptr(), buffer.bytes(), buffer.home().clone()))?;
        let Some(place) = place(device)? else { return tell(told, false) };
        if given.is_null() {
            let asked = home.can_be_named() && prefetch(ptr, bytes, place, home.as_stored())?;
            return tell(told, asked);
        }
        // SAFETY: not null, and by the contract of the C ABI a stream that is alive during the call.
        let given = unsafe { *given };
        // SAFETY: as above.
        let asked = prefetch(ptr, bytes, place, unsafe { carried(given) }?)?;
        if asked {
            use_on(buffer, stream(given)?)?;
        }
        tell(told, asked)?;
    }

    fn tenure_stack_set_source(source: tenure_stack_fn, given: tenure_owner) {
        let previous = match source {
            None => stack::set_source(None),
            Some(source) => {
                let context = Context(given.context, owner(given));
                stack::set_source(Some(Arc::new(move || {
                    let context = &context;
                    let mut text = vec![0u8; MOST_STACK];
                    // SAFETY: the owner keeps the context alive, and it is held by this closure; the text has room for as
                    // much as is said.
                    let bytes = unsafe { source(context.0, text.as_mut_ptr().cast::<c_char>(), text.len()) };
                    text.truncate(bytes);
                    String::from_utf8_lossy(&text).into_owned()
                })))
            }
        };
        // Outside the lock: what it holds may go with it.
        drop(previous);
    }
}
