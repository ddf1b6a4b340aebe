//! Buffers: memory with an owner.
//!
//! ```text
//!   DeviceBuffer { one handle }  --->  in the library: pointer, size, capacity
//!                                       + the resource that made it       (kept alive)
//!                                       + the home stream it is freed on  (kept alive, when it is an object)
//!                                       + other streams that used it      (record_stream)
//! ```
//!
//! A buffer is freed by the resource that made it, in the order of its home stream, from whatever thread drops it and
//! whatever is current there. Nothing of that is passed by hand and nothing can be passed wrongly.
//!
//! Unsafe in this file: calls through the table.

use std::ffi::c_void;
use std::fmt;

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::foreign::{self, Free};
use crate::owner;
use crate::resource::{DEFAULT_ALIGNMENT, Properties, Resource, check_alignment};
use crate::stream::{Stream, StreamRef};

/// A buffer of bytes that owns its memory.
///
/// A buffer of no bytes calls no resource and has a null pointer; it still keeps its resource and its stream.
///
/// # Examples
/// ```
/// use tenure::{DeviceBuffer, Stream};
///
/// let stream = Stream::create()?;
/// let mut buffer = DeviceBuffer::new(5, &stream)?;
/// buffer.copy_from_host(b"hello", &stream)?;
/// let mut back = [0; 5];
/// buffer.copy_to_host(&mut back, &stream)?;
/// assert_eq!(&back, b"hello");
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct DeviceBuffer {
    pub(crate) api: &'static tenure_api,
    pub(crate) handle: tenure_buffer,
}

/// An allocation that was taken out of its buffer. Its resource still counts it as live.
///
/// Dropping this leaves the memory allocated: give it to [`Resource::deallocate`] (with `capacity` and `alignment`) or to
/// [`DeviceBuffer::adopt`].
#[derive(Debug)]
#[must_use = "the memory stays allocated until it is deallocated or adopted"]
pub struct Detached {
    /// The memory; null when there are no bytes.
    pub ptr: *mut c_void,
    /// Bytes in use.
    pub bytes: usize,
    /// Bytes allocated.
    pub capacity: usize,
    /// Alignment in bytes.
    pub alignment: usize,
    /// The resource that must free it.
    pub resource: Resource,
    /// The driver's value of the home stream.
    pub raw_stream: *mut c_void,
    /// The home stream; `None` when it was a raw value, which nothing keeps alive.
    pub stream: Option<Stream>,
}

// SAFETY: the pointers name memory of the device and a stream; neither is dereferenced here.
unsafe impl Send for Detached {}

impl DeviceBuffer {
    /// A buffer of `bytes` bytes of the current resource of the stream's device, usable in the order of `stream`, which
    /// becomes its home. The bytes have no defined value.
    ///
    /// # Errors
    /// Out of memory; a fault of the device; [`Error::Load`] without a library.
    #[inline]
    pub fn new<'a>(bytes: usize, stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        Self::make(|api, out| {
            // SAFETY: the stream is alive during the call; the pointer is valid for writing.
            unsafe { (api.buffer_create)(bytes, DEFAULT_ALIGNMENT, stream.into().raw, TENURE_RESOURCE_CURRENT, out) }
        })
    }

    /// A buffer of `bytes` bytes of `resource`.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::Invalid`] for a stream of another device.
    #[inline]
    pub fn new_in<'a>(bytes: usize, stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        Self::new_aligned_in(bytes, DEFAULT_ALIGNMENT, stream, resource)
    }

    /// A buffer of `bytes` bytes of `resource` with an alignment in bytes, which must be a power of two.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in), and [`Error::Invalid`] for an alignment that is none.
    #[inline]
    pub fn new_aligned_in<'a>(
        bytes: usize,
        alignment: usize,
        stream: impl Into<StreamRef<'a>>,
        resource: &Resource,
    ) -> Result<Self> {
        check_alignment(alignment)?;
        Self::make(|api, out| {
            // SAFETY: the stream is alive during the call; the pointer is valid for writing.
            unsafe { (api.buffer_create)(bytes, alignment, stream.into().raw, resource.as_raw(), out) }
        })
    }

    /// A buffer that holds a copy of `data`, made in the order of `stream` and complete at return.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in).
    pub fn from_host_in<'a>(data: &[u8], stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        let stream = stream.into();
        let mut buffer = Self::new_in(data.len(), stream, resource)?;
        buffer.copy_from_host(data, stream)?;
        Ok(buffer)
    }

    /// A buffer of `resource` for each of `sizes`, made in one call: all of them, or an error and none. Each lives and goes by
    /// itself.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in).
    ///
    /// # Examples
    /// ```
    /// use tenure::{Device, DeviceBuffer, Pool, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let pool = Pool::builder(&device).build()?;
    /// let buffers = DeviceBuffer::many_in(&[4096, 0, 1 << 20], &stream, &pool)?;
    /// assert_eq!(buffers.iter().map(DeviceBuffer::len).collect::<Vec<_>>(), [4096, 0, 1 << 20]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn many_in<'a>(sizes: &[usize], stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Vec<Self>> {
        let api = api()?;
        let mut handles = vec![0; sizes.len()];
        let (count, bytes, out) = (sizes.len(), sizes.as_ptr(), handles.as_mut_ptr());
        // SAFETY: the stream is alive during the call; both arrays are as long as is said.
        check(api, unsafe {
            (api.buffer_create_many)(count, bytes, DEFAULT_ALIGNMENT, stream.into().raw, resource.as_raw(), out)
        })?;
        Ok(handles.into_iter().map(|handle| Self { api, handle }).collect())
    }

    #[inline]
    fn make(make: impl FnOnce(&tenure_api, *mut tenure_buffer) -> tenure_status) -> Result<Self> {
        let api = api()?;
        let mut handle = 0;
        check(api, make(api, &mut handle))?;
        Ok(Self { api, handle })
    }

    /// Takes over a block that `resource` made for these `bytes` and this `alignment`; it will be freed in the order of
    /// `stream`. The inverse of [`detach`](Self::detach).
    ///
    /// # Safety
    /// Nobody else may free the block or hold it in another buffer. (That `resource` made it is checked.)
    ///
    /// # Errors
    /// [`Error::Ownership`] when `resource` did not make it, or not so; the block stays the caller's.
    pub unsafe fn adopt<'a>(
        ptr: *mut c_void,
        bytes: usize,
        alignment: usize,
        stream: impl Into<StreamRef<'a>>,
        resource: &Resource,
    ) -> Result<Self> {
        check_alignment(alignment)?;
        Self::make(|api, out| {
            // SAFETY: the library checks the block; the stream is alive during the call; the pointer is valid for writing.
            unsafe { (api.buffer_adopt)(ptr, bytes, alignment, stream.into().raw, resource.as_raw(), out) }
        })
    }

    /// Makes a buffer of memory that no resource of tenure's made and that `owner` keeps alive. `owner` is dropped when the
    /// buffer goes, on any thread. `device` `None`: memory of the host.
    ///
    /// # Safety
    /// `ptr` must be `bytes` bytes that are valid, and used by nobody else, until `owner` is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`]; `owner` is dropped then.
    pub unsafe fn adopt_with_owner<'a>(
        ptr: *mut c_void,
        bytes: usize,
        device: Option<&Device>,
        stream: impl Into<StreamRef<'a>>,
        owner: impl std::any::Any + Send,
    ) -> Result<Self> {
        let api = api()?;
        // SAFETY: the caller answers for the memory.
        unsafe { Self::adopt_foreign(api, ptr, bytes, device, stream.into(), None, owner) }
    }

    /// Makes a buffer of memory that no resource of tenure's made and that `free` frees: it is called once, with pointer,
    /// size and home stream, when the buffer goes, on any thread. `device` `None`: memory of the host.
    ///
    /// # Safety
    /// `ptr` must be `bytes` bytes that are valid, and used by nobody else, until `free` is called.
    ///
    /// # Errors
    /// [`Error::Invalid`]; the memory stays the caller's then, and `free` is dropped without a call.
    pub unsafe fn adopt_with_free<'a>(
        ptr: *mut c_void,
        bytes: usize,
        device: Option<&Device>,
        stream: impl Into<StreamRef<'a>>,
        free: impl FnOnce(*mut c_void, usize, StreamRef<'_>) + Send + 'static,
    ) -> Result<Self> {
        let api = api()?;
        let free: Free = Box::new(free);
        // SAFETY: the caller answers for the memory.
        unsafe { Self::adopt_foreign(api, ptr, bytes, device, stream.into(), Some(foreign::call), free) }
    }

    /// # Safety
    /// The memory must live until `owner` is dropped, which is what `free` expects where it is given.
    unsafe fn adopt_foreign<T: Send>(
        api: &'static tenure_api,
        ptr: *mut c_void,
        bytes: usize,
        device: Option<&Device>,
        stream: StreamRef<'_>,
        free: tenure_free_fn,
        owner: T,
    ) -> Result<Self> {
        let device = device.map_or(-1, Device::ordinal);
        let owner = owner::keep(owner);
        let mut handle = 0;
        // SAFETY: the stream is alive during the call; the pointer is valid for writing; the caller answers for the memory.
        let status = unsafe { (api.buffer_adopt_foreign)(ptr, bytes, device, stream.raw, free, owner, &mut handle) };
        // SAFETY: kept for this call, of this type.
        unsafe { owner::settle::<T>(api, status, owner)? };
        Ok(Self { api, handle })
    }

    /// Takes over a buffer of the C ABI, such as one that another language gave away. It crosses with its resource, stream
    /// and device.
    ///
    /// # Safety
    /// `handle` must be a buffer that the caller owns.
    ///
    /// # Errors
    /// [`Error::BadHandle`] for a handle that is none.
    pub unsafe fn from_handle(handle: u64) -> Result<Self> {
        let buffer = Self { api: api()?, handle };
        match buffer.view() {
            Ok(_) => Ok(buffer),
            Err(error) => {
                // Whatever it is, it is not ours to free.
                std::mem::forget(buffer);
                Err(error)
            }
        }
    }

    /// Gives the buffer out as a handle of the C ABI; whoever receives it frees it (`tenure_buffer_destroy`, or a buffer of
    /// its language).
    pub fn into_handle(self) -> u64 {
        std::mem::ManuallyDrop::new(self).handle
    }

    /// The handle, which stays this object's.
    pub fn as_handle(&self) -> u64 {
        self.handle
    }

    fn view(&self) -> Result<tenure_buffer_view> {
        let mut view = tenure_buffer_view {
            size: size_of::<tenure_buffer_view>(),
            ptr: std::ptr::null_mut(),
            bytes: 0,
            capacity: 0,
            alignment: 0,
            resource_id: 0,
            stream: tenure_stream { raw: std::ptr::null_mut(), object: 0 },
            device: -1,
            properties: 0,
        };
        // SAFETY: the pointer is valid for writing `size` bytes.
        check(self.api, unsafe { (self.api.buffer_view)(self.handle, &mut view) })?;
        Ok(view)
    }

    /// The memory, for kernels; null when the buffer has no bytes. Where it is
    /// [accessible to the host](Properties::host_accessible), the home stream must be waited for before it is read.
    pub fn ptr(&self) -> *mut c_void {
        self.view().map_or(std::ptr::null_mut(), |view| view.ptr)
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.view().map_or(0, |view| view.bytes)
    }

    /// True when it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.view().map_or(0, |view| view.capacity)
    }

    /// Alignment in bytes that was asked for.
    pub fn alignment(&self) -> usize {
        self.view().map_or(0, |view| view.alignment)
    }

    /// The device of the memory; `None` for memory of the host.
    pub fn device(&self) -> Option<Device> {
        self.view().ok().filter(|view| view.device >= 0).map(|view| Device::known(view.device))
    }

    /// What the memory can do.
    pub fn properties(&self) -> Properties {
        self.view().map_or(Properties::default(), |view| Properties::from_bits(view.properties))
    }

    /// The home stream, in whose order the buffer will be freed; `None` when it came as a raw value, of which nobody knows
    /// whether it is still alive ([`raw_stream`](Self::raw_stream)).
    pub fn stream(&self) -> Option<Stream> {
        let view = self.view().ok()?;
        // SAFETY: an object that this buffer names is alive while the buffer holds it, hence during this call; a raw value is
        // refused by `to_stream`.
        unsafe { StreamRef::from_abi(view.stream) }.to_stream()
    }

    /// The driver's value of the home stream.
    pub fn raw_stream(&self) -> *mut c_void {
        self.view().map_or(std::ptr::null_mut(), |view| view.stream.raw)
    }

    /// The resource that made the memory; `None` when it was adopted with an owner or a free function.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn resource(&self) -> Result<Option<Resource>> {
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.buffer_resource)(self.handle, &mut handle) })?;
        Ok(Resource::owned_or_none(self.api, handle))
    }

    /// Makes the buffer `bytes` bytes long. Within the capacity nothing moves; beyond it a new block of the same resource is
    /// made and the bytes are copied, on `stream`, which becomes the home.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in); the buffer is as it was then.
    pub fn resize<'a>(&mut self, bytes: usize, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_resize)(self.handle, bytes, stream.into().raw) })
    }

    /// Makes sure of a capacity of `bytes` bytes.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn reserve<'a>(&mut self, bytes: usize, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_reserve)(self.handle, bytes, stream.into().raw) })
    }

    /// Reduces the capacity to the size.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn shrink_to_fit<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_shrink_to_fit)(self.handle, stream.into().raw) })
    }

    /// A copy, made in the order of `stream`, of the current resource of the stream's device.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn copy<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        self.copy_under(stream.into(), TENURE_RESOURCE_CURRENT)
    }

    /// A copy, made in the order of `stream`, of `resource`.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in).
    pub fn copy_in<'a>(&self, stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        self.copy_under(stream.into(), resource.as_raw())
    }

    fn copy_under(&self, stream: StreamRef<'_>, resource: tenure_resource) -> Result<Self> {
        // SAFETY: the stream is alive during the call; the pointer is valid for writing.
        Self::make(|api, out| unsafe { (api.buffer_copy)(self.handle, stream.raw, resource, out) })
    }

    /// Makes `stream` the home. The old home stays among the streams that used the buffer: nothing is waited for and nothing
    /// is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device.
    pub fn set_stream<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_set_stream)(self.handle, stream.into().raw) })
    }

    /// Says that work on `stream` uses the buffer: its memory is not reused before all work that is enqueued on `stream`
    /// until the free is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device.
    pub fn record_stream<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_record_stream)(self.handle, stream.into().raw) })
    }

    /// Copies `data` to the start of the buffer, in the order of `stream`; complete at return.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `data` is longer than the buffer; a fault of the device.
    pub fn copy_from_host<'a>(&mut self, data: &[u8], stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let stream = stream.into();
        let ptr = self.room_for(data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        stream.refuse_capturing()?;
        // SAFETY: both ends have the bytes, and both outlive the copy, which is waited for.
        check(self.api, unsafe { (self.api.copy_async)(ptr, data.as_ptr().cast(), data.len(), stream.raw) })?;
        stream.synchronize()
    }

    /// Copies the first bytes of the buffer to `data`, in the order of `stream`; complete at return.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `data` is longer than the buffer; a fault of the device.
    pub fn copy_to_host<'a>(&self, data: &mut [u8], stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let stream = stream.into();
        let ptr = self.room_for(data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        stream.refuse_capturing()?;
        // SAFETY: both ends have the bytes, and both outlive the copy, which is waited for.
        check(self.api, unsafe { (self.api.copy_async)(data.as_mut_ptr().cast(), ptr, data.len(), stream.raw) })?;
        stream.synchronize()
    }

    fn room_for(&self, bytes: usize) -> Result<*mut c_void> {
        let view = self.view()?;
        if bytes > view.bytes {
            return Err(Error::Invalid(format!(
                "{bytes} bytes of the host do not match the buffer's {}: pass a slice that is not longer, or resize the buffer",
                view.bytes
            )));
        }
        Ok(view.ptr)
    }

    /// Sets every byte to `value`, in the order of `stream`. Does not wait.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn fill<'a>(&mut self, value: u8, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let view = self.view()?;
        if view.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the buffer has the bytes and is freed in stream order; the stream is alive during the call.
        check(self.api, unsafe { (self.api.fill_async)(view.ptr, value, view.bytes, stream.into().raw) })
    }

    /// Frees the memory now and says what came of it, which a drop cannot.
    ///
    /// # Errors
    /// [`Error::Ownership`] when somebody else has freed the block already; a fault of the device.
    pub fn close(self) -> Result<()> {
        // SAFETY: null means the home stream.
        let closed = unsafe { (self.api.buffer_close)(self.handle, std::ptr::null()) };
        check(self.api, closed)
    }

    /// As [`close`](Self::close), in the order of `stream`, which becomes the home before.
    ///
    /// # Errors
    /// As there.
    pub fn close_on<'a>(self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let stream = stream.into().raw;
        // SAFETY: the stream is alive during the call.
        check(self.api, unsafe { (self.api.buffer_close)(self.handle, &stream) })
    }

    /// Takes the allocation out: it stays counted on its resource, and whoever takes it frees it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a buffer that was adopted with an owner; the buffer comes back with the error.
    pub fn detach(self) -> Result<Detached, (Self, Error)> {
        let mut out = tenure_detached {
            size: size_of::<tenure_detached>(),
            ptr: std::ptr::null_mut(),
            bytes: 0,
            capacity: 0,
            alignment: 0,
            resource: TENURE_RESOURCE_NULL,
            stream: tenure_stream { raw: std::ptr::null_mut(), object: 0 },
        };
        // SAFETY: the pointer is valid for writing `size` bytes.
        if let Err(error) = check(self.api, unsafe { (self.api.buffer_detach)(self.handle, &mut out) }) {
            return Err((self, error));
        }
        // A reference to a stream object came along; a default stream needs none.
        // SAFETY: the value is only looked at.
        let kept = unsafe { StreamRef::from_abi(out.stream) }.is_kept();
        Ok(Detached {
            ptr: out.ptr,
            bytes: out.bytes,
            capacity: out.capacity,
            alignment: out.alignment,
            resource: Resource::owned(self.api, out.resource),
            raw_stream: out.stream.raw,
            stream: kept.then_some(Stream { raw: out.stream }),
        })
    }
}

impl Drop for DeviceBuffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer ends once.
        let status = unsafe { (self.api.buffer_destroy)(self.handle) };
        crate::misuse::report_if_misuse(self.api, status);
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.view() {
            Ok(view) => f
                .debug_struct("DeviceBuffer")
                .field("ptr", &view.ptr)
                .field("len", &view.bytes)
                .field("capacity", &view.capacity)
                .field("resource", &format_args!("#{:x}", view.resource_id))
                .finish_non_exhaustive(),
            Err(error) => write!(f, "DeviceBuffer({error})"),
        }
    }
}
