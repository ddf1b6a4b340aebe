//! cudarc's streams and slices over tenure's memory, both ways.
//!
//! ```text
//!  tenure::Stream   <--- stream(&CudaStream)                 keeps the CudaStream alive
//!  DeviceSlice<T>   <--- alloc / zeros / from_host            memory of a tenure resource, used as a slice of cudarc's
//!      |    ^
//!      v    +----------- from_buffer(tenure::DeviceBuffer)
//!  tenure::DeviceBuffer  into_buffer
//!  tenure::DeviceBuffer <--- buffer_of(CudaSlice<T>)          memory of cudarc's, freed by cudarc when the buffer goes
//! ```
//!
//! A [`DeviceSlice`] is what a `CudaSlice` is: it has cudarc's events, gives views, is an argument of its copies
//! ([`DevicePtr`]) and, through its views, of its launches. It differs in where the memory comes from and goes to, and in
//! that an allocation that fails says who holds the memory.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use tenure_cudarc::DeviceSlice;
//!
//! let context = CudaContext::new(0)?;
//! let stream = context.new_stream()?;
//! let pool = tenure::Pool::builder(&tenure::Device::new(0)?).build()?;
//!
//! let mut numbers = DeviceSlice::from_host(&[1.0_f32, 2.0, 3.0], &stream, &pool)?;
//! stream.memset_zeros(&mut numbers)?;
//! assert_eq!(stream.clone_dtoh(&numbers)?, [0.0; 3]);
//!
//! let buffer = numbers.into_buffer(); // and from here on it is tenure's
//! drop(pool);
//! drop(buffer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! * Memory of tenure's is never given to cudarc's `free`: nothing here hands out a `CudaSlice` by value or by unique
//!   reference over it.
//! * The home stream of the memory is the slice's stream, and that stream has waited for cudarc's events when the memory is
//!   freed or leaves as a buffer.
//!
//! # What it cannot do
//! cudarc panics where there is no CUDA driver, where a driver lacks a call, and where it gets no event for a slice.
//! [`stream`] and all that allocates here look first whether tenure is on CUDA's devices, and return an [`Error`] where it is
//! not; cudarc's own functions are cudarc's.
//! Contexts other than a device's primary one are refused: tenure's memory lives there.
//!
//! # Cost
//! What tenure takes for the allocation, and two events where cudarc's event tracking is on, as in cudarc itself.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DriverError, HostSlice,
    SyncOnDrop, ValidAsZeroBits,
};
use tenure::{Device, DeviceBuffer, DeviceCopy, Resource, Stream};

pub use cudarc;

/// The page about this crate, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/libraries/cudarc.md")]
struct Page;

/// What can go wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// tenure's part.
    Tenure(tenure::Error),
    /// The driver's, as cudarc saw it.
    Driver(DriverError),
    /// The two do not fit together; a sentence that says what to do.
    Mismatch(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenure(e) => e.fmt(f),
            Self::Driver(e) => e.fmt(f),
            Self::Mismatch(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

impl From<tenure::Error> for Error {
    fn from(e: tenure::Error) -> Self {
        Self::Tenure(e)
    }
}

impl From<DriverError> for Error {
    fn from(e: DriverError) -> Self {
        Self::Driver(e)
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn mismatch<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Mismatch(text.into()))
}

/// Makes sure that tenure and cudarc speak of the same devices, and that the stream's context is current, as the default
/// stream needs it.
fn meet(stream: &Arc<CudaStream>) -> Result<Device> {
    if tenure::sim::is_active()? {
        return mismatch(
            "tenure is on its simulated device and cudarc is on CUDA's: unset TENURE_DEVICE, or set it to cuda",
        );
    }
    let context = stream.context();
    if !context.is_primary() {
        return mismatch(
            "the stream is of a context of its own, and tenure's memory lives in the device's primary context: make the context with CudaContext::new",
        );
    }
    context.bind_to_thread()?;
    let ordinal = i32::try_from(context.ordinal()).or_else(|_| mismatch("the number of the device is too large"))?;
    Ok(Device::new(ordinal)?)
}

/// cudarc's stream as tenure's, which keeps it alive as long as a buffer names it.
///
/// # Errors
/// [`Error::Mismatch`] as the documentation of the crate has it, and what the driver says.
pub fn stream(stream: &Arc<CudaStream>) -> Result<Stream> {
    let device = meet(stream)?;
    let raw = stream.cu_stream();
    if raw.is_null() {
        return Ok(Stream::legacy_default());
    }
    // SAFETY: the owner is the stream itself, which ends its CUstream when it is dropped.
    Ok(unsafe { Stream::wrap(raw.cast(), Some(&device), Arc::clone(stream))? })
}

/// Elements of one type in memory of a tenure resource, used as a slice of cudarc's.
pub struct DeviceSlice<T> {
    /// Not cudarc's to free: it leaves through `leak` alone. `None` only inside `take`.
    slice: Option<CudaSlice<T>>,
    /// The memory. `None` only after `take`.
    buffer: Option<DeviceBuffer>,
}

impl<T: DeviceRepr> DeviceSlice<T> {
    /// `len` elements from `resource`, in the order of `stream`.
    ///
    /// # Safety
    /// The memory is as it was: write it before it is read as `T`.
    ///
    /// # Errors
    /// [`tenure::Error::OutOfMemory`], which says who holds the memory; [`Error::Mismatch`].
    pub unsafe fn alloc(len: usize, stream: &Arc<CudaStream>, resource: &Resource) -> Result<Self> {
        let home = self::stream(stream)?;
        let Some(bytes) = len.checked_mul(size_of::<T>()) else {
            return mismatch(format!("{len} elements are more bytes than an address can count: ask for fewer"));
        };
        let buffer = DeviceBuffer::new_in(bytes, &home, resource)?;
        // SAFETY: the buffer has room for `len` elements, and its home is this stream.
        Ok(unsafe { Self::over(buffer, len, stream) })
    }

    /// `len` elements of zeros.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what cudarc says of the memset.
    pub fn zeros(len: usize, stream: &Arc<CudaStream>, resource: &Resource) -> Result<Self>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: written below; after an error nobody has it.
        let mut made = unsafe { Self::alloc(len, stream, resource)? };
        if len != 0 {
            stream.memset_zeros(&mut made)?;
        }
        Ok(made)
    }

    /// The elements of a slice of the host.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what cudarc says of the copy.
    pub fn from_host<S: HostSlice<T> + ?Sized>(
        data: &S,
        stream: &Arc<CudaStream>,
        resource: &Resource,
    ) -> Result<Self> {
        // SAFETY: written below; after an error nobody has it.
        let mut made = unsafe { Self::alloc(data.len(), stream, resource)? };
        if !data.is_empty() {
            stream.memcpy_htod(data, &mut made)?;
        }
        Ok(made)
    }
}

impl<T> DeviceSlice<T> {
    /// # Safety
    /// The buffer has room for `len` elements that are valid or not looked at, and `stream` is its home.
    unsafe fn over(buffer: DeviceBuffer, len: usize, stream: &Arc<CudaStream>) -> Self {
        // SAFETY: as the caller says. The slice never frees: it leaves through `leak`.
        let slice = unsafe { stream.upgrade_device_ptr(buffer.ptr() as CUdeviceptr, len) };
        Self { slice: Some(slice), buffer: Some(buffer) }
    }

    /// A buffer of tenure's as elements, whose home stream becomes `stream`, after the work on its old one. Bytes that make
    /// no whole element are left out.
    ///
    /// # Errors
    /// The buffer comes back when its memory is not a device's or of another device, or on what [`stream`] and the driver
    /// say.
    pub fn from_buffer(mut buffer: DeviceBuffer, stream: &Arc<CudaStream>) -> Result<Self, (DeviceBuffer, Error)>
    where
        T: DeviceCopy,
    {
        let rehome = |buffer: &mut DeviceBuffer| {
            let here = meet(stream)?;
            if !buffer.is_empty() && buffer.device() != Some(here) {
                return mismatch(format!(
                    "the buffer is of {:?} and the stream of device {}: take a stream of the buffer's device, or copy the buffer",
                    buffer.device(),
                    stream.context().ordinal()
                ));
            }
            if !buffer.is_empty() && !buffer.ptr().addr().is_multiple_of(align_of::<T>()) {
                return mismatch(format!(
                    "the buffer's address is no multiple of {}, as its elements need",
                    align_of::<T>()
                ));
            }
            let home = self::stream(stream)?;
            match buffer.stream() {
                Some(before) => home.wait(&before)?,
                // A raw stream that nothing keeps alive may be gone: only the device can be waited for.
                None => here.synchronize()?,
            }
            Ok(buffer.set_stream(&home)?)
        };
        if let Err(e) = rehome(&mut buffer) {
            return Err((buffer, e));
        }
        let len = buffer.len().checked_div(size_of::<T>()).unwrap_or(0);
        // SAFETY: any bytes are values of a `DeviceCopy`; the size and the home stream are as needed.
        Ok(unsafe { Self::over(buffer, len, stream) })
    }

    /// The memory as a buffer of tenure's. Its home is the slice's stream, which waits for what other streams of cudarc's do
    /// with it.
    pub fn into_buffer(mut self) -> DeviceBuffer {
        match self.take() {
            Some(buffer) => buffer,
            None => unreachable!("a slice has its buffer until it is taken, and this is the only owner"),
        }
    }

    fn take(&mut self) -> Option<DeviceBuffer> {
        if let Some(slice) = self.slice.take() {
            // Makes its stream wait for cudarc's events, and frees nothing.
            slice.leak();
        }
        self.buffer.take()
    }

    fn slice(&self) -> &CudaSlice<T> {
        match &self.slice {
            Some(slice) => slice,
            None => unreachable!("only `take` takes it, in the end"),
        }
    }

    fn slice_mut(&mut self) -> &mut CudaSlice<T> {
        match &mut self.slice {
            Some(slice) => slice,
            None => unreachable!("only `take` takes it, in the end"),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.slice().len()
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// cudarc's stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.slice().stream()
    }

    /// All elements, for reading: what cudarc's launches take.
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice().as_view()
    }

    /// All elements, for writing.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice_mut().as_view_mut()
    }

    /// The buffer below, to ask it for its resource, its device and its size. Work on other streams that cudarc does not
    /// know of is declared with its `record_stream`.
    pub fn buffer(&self) -> &DeviceBuffer {
        match &self.buffer {
            Some(buffer) => buffer,
            None => unreachable!("only `take` takes it, in the end"),
        }
    }
}

impl<T> Drop for DeviceSlice<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> fmt::Debug for DeviceSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSlice").field("len", &self.len()).field("buffer", self.buffer()).finish()
    }
}

impl<T> cudarc::driver::DeviceSlice<T> for DeviceSlice<T> {
    fn len(&self) -> usize {
        self.slice().len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice().stream()
    }
}

impl<T> DevicePtr<T> for DeviceSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice().device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for DeviceSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice_mut().device_ptr_mut(stream)
    }
}

/// A slice of cudarc's as a buffer of tenure's, which owns it: cudarc frees it when the buffer goes. The home is the slice's
/// stream, which waits for what other streams of cudarc's do with it.
///
/// # Errors
/// As [`stream`]; the slice is dropped then.
pub fn buffer_of<T: 'static>(mut slice: CudaSlice<T>) -> Result<DeviceBuffer> {
    let theirs = Arc::clone(slice.stream());
    let device = meet(&theirs)?;
    let home = stream(&theirs)?;
    let bytes = slice.num_bytes();
    // As for writing: after the reads and the writes of other streams.
    let (ptr, done) = slice.device_ptr_mut(&theirs);
    drop(done);
    let ptr = if bytes == 0 { std::ptr::null_mut() } else { ptr as *mut std::ffi::c_void };
    // SAFETY: the slice keeps its memory until it is dropped, and nobody else has it.
    Ok(unsafe { DeviceBuffer::adopt_with_owner(ptr, bytes, Some(&device), &home, slice)? })
}
