//! Buffers with a type: [`DeviceVec`] and [`DeviceScalar`] over [`DeviceBuffer`].
//!
//! They add the multiplication by the element's size, which is checked, and nothing else: the memory below is a
//! [`DeviceBuffer`] and can be had as one.
//!
//! Unsafe in this file: slices of elements seen as bytes, which [`DeviceCopy`] allows.

use std::fmt;
use std::marker::PhantomData;

use crate::buffer::DeviceBuffer;
use crate::error::{Error, Result};
use crate::resource::Resource;
use crate::stream::StreamRef;

/// A type whose values are bytes: what a copy to or from the device may carry.
///
/// # Safety
/// Every pattern of bytes must be a value of the type, it must have no padding, and it must mean the same on the device (no
/// pointers of the host, no references).
pub unsafe trait DeviceCopy: Copy + 'static {}

macro_rules! device_copy {
    ($($name:ty)*) => { $(
        // SAFETY: a number: every pattern is a value, and there is no padding.
        unsafe impl DeviceCopy for $name {}
    )* };
}

device_copy!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array has the patterns of its elements and adds no padding.
unsafe impl<T: DeviceCopy, const N: usize> DeviceCopy for [T; N] {}

/// The bytes of elements.
fn as_bytes<T: DeviceCopy>(data: &[T]) -> &[u8] {
    // SAFETY: a `DeviceCopy` has no padding, so that all bytes have a value.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of elements, for writing.
fn as_bytes_mut<T: DeviceCopy>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bytes is a value.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// The size of `len` elements in bytes.
fn size_of_elements<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| {
        Error::Invalid(format!(
            "{len} elements of {} bytes are more bytes than an address can count: ask for fewer elements",
            size_of::<T>()
        ))
    })
}

/// Elements of one type in memory of a resource.
///
/// # Examples
/// ```
/// use tenure::{DeviceVec, Stream};
///
/// let stream = Stream::create()?;
/// let numbers = DeviceVec::from_host(&[1.0f32, 2.0, 3.0], &stream)?;
/// assert_eq!(numbers.len(), 3);
/// assert_eq!(numbers.to_host(&stream)?, [1.0, 2.0, 3.0]);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct DeviceVec<T> {
    buffer: DeviceBuffer,
    element: PhantomData<T>,
}

impl<T: DeviceCopy> DeviceVec<T> {
    /// `len` elements of the current resource of the stream's device. They have no defined value.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`]; [`Error::Invalid`] when the size in bytes overflows.
    pub fn new<'a>(len: usize, stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        Ok(Self::over(DeviceBuffer::new(size_of_elements::<T>(len)?, stream)?))
    }

    /// `len` elements of `resource`. They have no defined value.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new_in`]; [`Error::Invalid`] when the size in bytes overflows.
    pub fn new_in<'a>(len: usize, stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        Ok(Self::over(DeviceBuffer::new_in(size_of_elements::<T>(len)?, stream, resource)?))
    }

    /// A copy of `data`, of the current resource of the stream's device; complete at return.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_host<'a>(data: &[T], stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        let stream = stream.into();
        let mut vec = Self::new(data.len(), stream)?;
        vec.copy_from_host(data, stream)?;
        Ok(vec)
    }

    /// A copy of `data`, of `resource`; complete at return.
    ///
    /// # Errors
    /// As [`new_in`](Self::new_in).
    pub fn from_host_in<'a>(data: &[T], stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        let stream = stream.into();
        let mut vec = Self::new_in(data.len(), stream, resource)?;
        vec.copy_from_host(data, stream)?;
        Ok(vec)
    }

    /// Sees a buffer as elements.
    ///
    /// # Errors
    /// The buffer comes back when its size is no multiple of the element's, or its address is not aligned for it.
    pub fn from_buffer(buffer: DeviceBuffer) -> Result<Self, (DeviceBuffer, Error)> {
        let (len, ptr) = (buffer.len(), buffer.ptr());
        let (size, align) = (size_of::<T>(), align_of::<T>());
        if (size == 0 && len == 0 || size != 0 && len % size == 0) && ptr.addr() % align == 0 {
            return Ok(Self::over(buffer));
        }
        let error = Error::Invalid(format!(
            "a buffer of {len} bytes at {ptr:p} cannot be seen as elements of {size} bytes aligned to {align}: pass one whose size \
             is a multiple and whose address is aligned"
        ));
        Err((buffer, error))
    }

    fn over(buffer: DeviceBuffer) -> Self {
        Self { buffer, element: PhantomData }
    }

    /// The memory below.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// The memory below, as a buffer of bytes.
    pub fn into_buffer(self) -> DeviceBuffer {
        self.buffer
    }

    /// The first element, for kernels; null when there is none.
    pub fn ptr(&self) -> *mut T {
        self.buffer.ptr().cast()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.buffer.len().checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// True when there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of elements that fit without a new block.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity().checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// Makes it `len` elements long; see [`DeviceBuffer::resize`].
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] when the size in bytes overflows.
    pub fn resize<'a>(&mut self, len: usize, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.resize(size_of_elements::<T>(len)?, stream)
    }

    /// Makes sure of a capacity of `len` elements; see [`DeviceBuffer::reserve`].
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] when the size in bytes overflows.
    pub fn reserve<'a>(&mut self, len: usize, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.reserve(size_of_elements::<T>(len)?, stream)
    }

    /// Copies `data` to the first elements; complete at return.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `data` is longer; a fault of the device.
    pub fn copy_from_host<'a>(&mut self, data: &[T], stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.copy_from_host(as_bytes(data), stream)
    }

    /// Copies the first elements to `data`; complete at return.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `data` is longer; a fault of the device.
    pub fn copy_to_host<'a>(&self, data: &mut [T], stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.copy_to_host(as_bytes_mut(data), stream)
    }

    /// All elements, copied in the order of `stream`; complete at return.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn to_host<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<Vec<T>> {
        // SAFETY: every pattern of bytes is a value, zeros included.
        let mut data = vec![unsafe { std::mem::zeroed::<T>() }; self.len()];
        self.copy_to_host(&mut data, stream)?;
        Ok(data)
    }

    /// A copy of `resource`, made in the order of `stream`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_in`].
    pub fn copy_in<'a>(&self, stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        Ok(Self::over(self.buffer.copy_in(stream, resource)?))
    }

    /// As [`DeviceBuffer::set_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn set_stream<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.set_stream(stream)
    }

    /// As [`DeviceBuffer::record_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn record_stream<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.buffer.record_stream(stream)
    }
}

impl<T> fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceVec<{}>({:?})", std::any::type_name::<T>(), self.buffer)
    }
}

/// One value in memory of a resource.
///
/// # Examples
/// ```
/// use tenure::{DeviceScalar, Stream};
///
/// let stream = Stream::create()?;
/// let mut sum = DeviceScalar::new(7u64, &stream)?;
/// sum.set(&8, &stream)?;
/// assert_eq!(sum.get(&stream)?, 8);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct DeviceScalar<T> {
    vec: DeviceVec<T>,
}

impl<T: DeviceCopy> DeviceScalar<T> {
    /// `value`, in memory of the current resource of the stream's device.
    ///
    /// # Errors
    /// As [`DeviceVec::new`].
    pub fn new<'a>(value: T, stream: impl Into<StreamRef<'a>>) -> Result<Self> {
        Ok(Self { vec: DeviceVec::from_host(&[value], stream)? })
    }

    /// `value`, in memory of `resource`.
    ///
    /// # Errors
    /// As [`DeviceVec::new_in`].
    pub fn new_in<'a>(value: T, stream: impl Into<StreamRef<'a>>, resource: &Resource) -> Result<Self> {
        Ok(Self { vec: DeviceVec::from_host_in(&[value], stream, resource)? })
    }

    /// The value, copied in the order of `stream`; complete at return.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn get<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<T> {
        // SAFETY: every pattern of bytes is a value, zeros included.
        let mut value = unsafe { std::mem::zeroed::<T>() };
        self.vec.copy_to_host(std::slice::from_mut(&mut value), stream)?;
        Ok(value)
    }

    /// Copies `value` to the device in the order of `stream`; complete at return.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn set<'a>(&mut self, value: &T, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.vec.copy_from_host(std::slice::from_ref(value), stream)
    }

    /// Where the value is, for kernels.
    pub fn ptr(&self) -> *mut T {
        self.vec.ptr()
    }

    /// The memory below.
    pub fn buffer(&self) -> &DeviceBuffer {
        self.vec.buffer()
    }

    /// As [`DeviceBuffer::set_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn set_stream<'a>(&mut self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        self.vec.set_stream(stream)
    }
}

impl<T> fmt::Debug for DeviceScalar<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceScalar<{}>({:?})", std::any::type_name::<T>(), self.vec.buffer)
    }
}
