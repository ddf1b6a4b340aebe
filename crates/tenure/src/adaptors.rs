//! Adaptors: a list of what is out ([`Tracking`]), and somebody to ask before a request fails ([`FailureCallback`]).
//!
//! Unsafe in this file: calls through the table, and the functions that the library calls back.

use std::ffi::{CStr, c_void};
use std::ops::Deref;

use tenure_abi::*;

use crate::callbacks::enter;
use crate::error::{Error, Result, check};
use crate::pool::kind;
use crate::resource::Resource;
use crate::{api, owner};

kind! {
    /// Keeps a list of the blocks that are out, with the stack of each allocation where that is wanted.
    ///
    /// # Examples
    /// ```
    /// use tenure::{DeviceBuffer, Stream, Tracking};
    ///
    /// let tracking = Tracking::new(&tenure::cuda()?, false)?;
    /// let buffer = DeviceBuffer::new_in(1000, &Stream::create()?, &tracking)?;
    /// assert_eq!(tracking.outstanding()?[0].bytes, 1000);
    /// drop(buffer);
    /// assert_eq!(tracking.outstanding_text()?, "");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Tracking, "tracking"
}

/// One block that is out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tracked {
    /// Where it starts.
    pub ptr: *mut c_void,
    /// Its size in bytes, as it was asked for.
    pub bytes: usize,
    /// Where it came from: one frame a line, those of an interpreter first. Empty where stacks are not kept.
    pub stack: String,
}

impl Tracking {
    /// Keeps a list of what goes to `upstream`. With `capture_stacks` each allocation takes microseconds more.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn new(upstream: &Resource, capture_stacks: bool) -> Result<Self> {
        let stacks = u32::from(capture_stacks);
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.tracking_create)(upstream.as_raw(), stacks, out) })?.try_into()
    }

    /// Bytes that are out.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.property("allocated_bytes")
    }

    /// The blocks that are out, by address. Names of native frames are looked up now, which takes up to seconds the first
    /// time.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn outstanding(&self) -> Result<Vec<Tracked>> {
        let api = api()?;
        let mut blocks: Vec<Tracked> = Vec::new();
        // SAFETY: `take` gets the vector, which lives during the call.
        check(api, unsafe { (api.tracking_list)(self.as_raw(), Some(take), (&raw mut blocks).cast()) })?;
        Ok(blocks)
    }

    /// The same as text: `"0x7f0000000000: 1024 B"` and a line end for each block, its stack behind it where there is one.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn outstanding_text(&self) -> Result<String> {
        let api = api()?;
        crate::report::take_text(api, |out| {
            // SAFETY: the pointer is valid for writing.
            unsafe { (api.tracking_text)(self.as_raw(), out) }
        })
    }
}

unsafe extern "C" fn take(blocks: *mut c_void, block: *const tenure_tracked) -> i32 {
    let mut ended = 1;
    owner::quietly(|| {
        // SAFETY: the library passes the vector of `outstanding`, and a block that is valid during the call.
        let (blocks, block) = unsafe { (&mut *blocks.cast::<Vec<Tracked>>(), &*block) };
        // SAFETY: a string that is valid during the call.
        let stack = unsafe { CStr::from_ptr(block.stack) }.to_string_lossy().into_owned();
        blocks.push(Tracked { ptr: block.ptr, bytes: block.bytes, stack });
        ended = 0;
    });
    ended
}

kind! {
    /// Asks somebody before a request fails for want of memory.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Mutex;
    /// use tenure::{DeviceBuffer, FailureCallback, Limiting, Stream};
    ///
    /// let (stream, limited) = (Stream::create()?, Limiting::new(&tenure::cuda()?, 1 << 20)?);
    /// let cache = Mutex::new(vec![DeviceBuffer::new_in(1 << 20, &stream, &limited)?]);
    /// // Gives up what is cached, one buffer at a time, and gives up itself when nothing is left.
    /// let asking = FailureCallback::new(&limited, move |_bytes| Ok(cache.lock().is_ok_and(|mut c| c.pop().is_some())))?;
    /// let buffer = DeviceBuffer::new_in(1000, &stream, &asking)?;
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    FailureCallback, "failure_callback"
}

type OnFailure = Box<dyn Fn(usize) -> Result<bool> + Send + Sync>;

impl FailureCallback {
    /// Calls `callback` with the bytes of a request that `upstream` has no memory for: true for another try, false to give
    /// up. Without a lock, on any thread, perhaps on several at once; it may allocate and free. Its error, or its panic as an
    /// [`Error::Callback`], is what whoever asked for memory gets. No other error of the upstream asks it.
    ///
    /// "True" is believed for as long as something becomes free: 100 tries in a row before which nothing has become better
    /// (no fewer live bytes in the upstream, no larger free block, no more free memory of the device) end the request with its
    /// error. A request that the callback makes through this very resource does not ask it again.
    ///
    /// # Errors
    /// [`Error::Load`] without a library; the callback is dropped then.
    pub fn new(upstream: &Resource, callback: impl Fn(usize) -> Result<bool> + Send + Sync + 'static) -> Result<Self> {
        let api = api()?;
        let function: OnFailure = Box::new(callback);
        let owner = owner::keep(function);
        let mut made = TENURE_RESOURCE_NULL;
        // SAFETY: the owner keeps what the callback reads alive; the pointer is valid for writing.
        let status = unsafe { (api.failure_callback_create)(upstream.as_raw(), Some(asked), owner, &mut made) };
        // SAFETY: kept for this call, of this type.
        unsafe { owner::settle::<OnFailure>(api, status, owner)? };
        Resource::owned(api, made).try_into()
    }

    /// How often the callback was asked.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn asked(&self) -> Result<u64> {
        self.property("asked")
    }
}

unsafe extern "C" fn asked(context: *mut c_void, bytes: usize, again: *mut u32) -> tenure_status {
    enter(|| {
        // SAFETY: the library passes the context that `new` made, which its owner keeps alive.
        let Some(callback) = (unsafe { owner::value::<OnFailure>(context) }) else { return Ok(()) };
        let answer = callback(bytes)?;
        // SAFETY: valid for writing, says the border.
        unsafe { again.write(u32::from(answer)) };
        Ok(())
    })
}
