//! Adaptors: a list of what is out ([`Tracking`]), somebody to ask before a request fails ([`FailureCallback`]), hints where
//! memory will be needed ([`Prefetch`]), a larger alignment ([`Aligned`]), and one call at a time ([`ThreadSafe`]).
//!
//! Unsafe in this file: calls through the table, and the functions that the library calls back.

use std::ffi::{CStr, c_void};
use std::ops::Deref;

use tenure_abi::*;

use crate::buffer::DeviceBuffer;
use crate::callbacks::enter;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::pool::kind;
use crate::resource::Resource;
use crate::stream::StreamRef;
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

kind! {
    /// Moves memory that migrates to the device of each request's stream. A hint and nothing else.
    ///
    /// # Examples
    /// ```
    /// use tenure::{DeviceBuffer, Prefetch, Stream};
    ///
    /// let hinted = Prefetch::new(&tenure::managed()?)?;
    /// let buffer = DeviceBuffer::new_in(1000, &Stream::create()?, &hinted)?;
    /// println!("the driver was told {} times", hinted.told()?);
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Prefetch, "prefetch"
}

impl Prefetch {
    /// Moves what `upstream` makes, if it migrates, to where it is going to be used.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn new(upstream: &Resource) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.prefetch_create)(upstream.as_raw(), out) })?.try_into()
    }

    /// Whether memory of the upstream migrates, so that the driver is told anything at all.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn hints(&self) -> Result<bool> {
        Ok(self.property("hints")? != 0)
    }

    /// How often the driver was told.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn told(&self) -> Result<u64> {
        self.property("told")
    }
}

kind! {
    /// Raises the alignment of what is large enough.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Aligned, DeviceBuffer, Stream};
    ///
    /// let aligned = Aligned::new(&tenure::cuda()?, 64 << 10, 1 << 20)?;
    /// let buffer = DeviceBuffer::new_in(1 << 20, &Stream::create()?, &aligned)?;
    /// assert_eq!(buffer.ptr() as usize % (64 << 10), 0);
    /// # drop(buffer);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    Aligned, "aligned"
}

impl Aligned {
    /// Aligns blocks of `threshold` bytes and more to `alignment`, which is raised to 256 where it is less.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an alignment that is no power of two, or larger than 2 MiB.
    pub fn new(upstream: &Resource, alignment: usize, threshold: usize) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.aligned_create)(upstream.as_raw(), alignment, threshold, out) })?
            .try_into()
    }

    /// The alignment, in bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn alignment(&self) -> Result<u64> {
        self.property("alignment")
    }

    /// What is smaller than this is not aligned any further, in bytes.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn alignment_threshold(&self) -> Result<u64> {
        self.property("alignment_threshold")
    }
}

kind! {
    /// One call at a time for an upstream of user functions that cannot take more. Every resource of tenure's own can.
    ThreadSafe, "thread_safe"
}

impl ThreadSafe {
    /// Lets one call at a time through to `upstream`, whose functions may come back to this resource on the same thread.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn new(upstream: &Resource) -> Result<Self> {
        // SAFETY: the pointer is valid for writing.
        Resource::made(|api, out| unsafe { (api.thread_safe_create)(upstream.as_raw(), out) })?.try_into()
    }
}

/// Memory of the system's allocator that is at home on the device of each request as far as that has more than `headroom`
/// bytes free, and on the host beyond. A hint: where devices cannot use memory of the host it is that of
/// [`system`](crate::system), and the property `"hints"` is 0.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn sam_headroom(headroom: u64) -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.sam_headroom_create)(headroom, out) })
}

/// Asks the driver to move memory to `device`, or to the host (`None`), in the order of `stream`; says whether it was asked. A
/// hint is no error where memory does not migrate, the device or the driver lacks it, or the stream is capturing.
///
/// # Errors
/// [`Error::Load`] without a library.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the driver is asked about the pointer, and never follows it here")]
pub fn prefetch<'a>(
    ptr: *const c_void,
    bytes: usize,
    device: Option<&Device>,
    stream: impl Into<StreamRef<'a>>,
) -> Result<bool> {
    let api = api()?;
    let mut told = 0;
    // SAFETY: the stream is alive during the call; the pointer is valid for writing.
    check(api, unsafe { (api.prefetch)(ptr, bytes, place(device), stream.into().raw, &mut told) })?;
    Ok(told != 0)
}

fn place(device: Option<&Device>) -> i32 {
    device.map_or(TENURE_HOST, Device::ordinal)
}

impl DeviceBuffer {
    /// Asks the driver to move the memory to `device`, or to the host (`None`), in the order of `stream`; says whether it was
    /// asked. A hint is no error where memory does not migrate or the device lacks it. The stream is
    /// [recorded](DeviceBuffer::record_stream) then, if it is not the home.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn prefetch<'a>(&self, device: Option<&Device>, stream: impl Into<StreamRef<'a>>) -> Result<bool> {
        let api = api()?;
        let (mut told, stream) = (0, stream.into().raw);
        // SAFETY: the stream is alive during the call; the pointers are valid.
        check(api, unsafe { (api.buffer_prefetch)(self.handle, place(device), &stream, &mut told) })?;
        Ok(told != 0)
    }
}
