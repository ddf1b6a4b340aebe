//! Resources: who makes memory and frees it.
//!
//! A [`Resource`] is an owning reference. The resource lives while a reference or an allocation of it lives, in any
//! language; the last one out closes it:
//!
//! ```text
//!   pool (Rust) ---+
//!   mr (Python) ---+---> the resource <--- every live allocation and buffer of it
//!   table entry ---+
//! ```
//!
//! References from constructors and `clone` are anchors, which are cheap to hold and not made in bulk; each allocation
//! counts by itself, so that dropping every reference with memory alive is the normal case and not a mistake.
//!
//! Unsafe in this file: calls through the table.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::hash::{Hash, Hasher};

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::stream::StreamRef;

/// The alignment of an allocation when none is asked for, in bytes.
pub const DEFAULT_ALIGNMENT: usize = 256;

/// An owning reference to a resource.
///
/// # Examples
/// ```
/// use tenure::{Device, DeviceBuffer, Pool, Stream, owner_of};
///
/// let (device, stream) = (Device::current()?, Stream::create()?);
/// let pool = Pool::builder(&device).build()?;
/// let buffer = DeviceBuffer::new_in(4096, &stream, &pool)?;
/// assert_eq!(owner_of(buffer.ptr())?, Some(pool.resource().clone()));
/// drop(pool);
/// drop(buffer); // goes home: the pool lived until here
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Resource {
    api: &'static tenure_api,
    handle: tenure_resource,
}

/// What memory of a resource can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Properties(u32);

impl Properties {
    /// Memory that kernels can use, ordered with the stream.
    pub const DEVICE: Self = Self(TENURE_DEVICE_ACCESSIBLE | TENURE_STREAM_ORDERED);
    /// Memory that the host and kernels can use.
    pub const HOST_AND_DEVICE: Self = Self(TENURE_DEVICE_ACCESSIBLE | TENURE_HOST_ACCESSIBLE);

    /// From the bits of the C ABI (`TENURE_DEVICE_ACCESSIBLE` and so on).
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits of the C ABI.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Kernels can use it.
    pub const fn device_accessible(self) -> bool {
        self.0 & TENURE_DEVICE_ACCESSIBLE != 0
    }

    /// The host can dereference it.
    pub const fn host_accessible(self) -> bool {
        self.0 & TENURE_HOST_ACCESSIBLE != 0
    }

    /// It migrates on demand.
    pub const fn managed(self) -> bool {
        self.0 & TENURE_MANAGED != 0
    }

    /// Allocation and free are ordered with the stream.
    pub const fn stream_ordered(self) -> bool {
        self.0 & TENURE_STREAM_ORDERED != 0
    }

    /// It can be given to another process.
    pub const fn exportable(self) -> bool {
        self.0 & TENURE_EXPORTABLE != 0
    }
}

/// The figures of a resource, in bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Handed out and not given back.
    pub live_bytes: u64,
    /// Held ready for the next request.
    pub cached_bytes: u64,
    /// Taken from the device or the upstream.
    pub reserved_bytes: u64,
    /// The largest single request that could be served from what is cached.
    pub largest_free_bytes: u64,
    /// The highest `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// The highest `reserved_bytes` so far.
    pub peak_reserved_bytes: u64,
    /// Number of blocks handed out and not given back.
    pub live_count: u64,
    /// Free bytes that other streams may not have before the device is waited for.
    pub unproven_bytes: u64,
    /// How often the whole device was waited for.
    pub device_proofs: u64,
    /// The memory lies in address ranges that the resource maps itself. False where it comes in pieces from the device or an
    /// upstream, as a pool's does where the device has no virtual memory management.
    pub own_ranges: bool,
}

impl Resource {
    /// Takes over a reference of the C ABI. The counterpart of [`into_raw`](Self::into_raw), for crossing a language border.
    ///
    /// # Safety
    /// `handle` must be a reference that the caller owns; it is given back when the result is dropped.
    ///
    /// # Errors
    /// [`Error::Load`] without a library, [`Error::BadHandle`] for a handle that is none; the handle stays the caller's.
    pub unsafe fn from_raw(handle: tenure_resource) -> Result<Self> {
        let api = api()?;
        let mut id = 0;
        // SAFETY: bad handles are errors; the pointer is valid for writing.
        check(api, unsafe { (api.resource_id)(handle, &mut id) })?;
        Ok(Self { api, handle })
    }

    /// Gives the reference of the C ABI out; whoever receives it gives it back with `tenure_resource_release`.
    pub fn into_raw(self) -> tenure_resource {
        std::mem::ManuallyDrop::new(self).handle
    }

    /// The reference of the C ABI, which stays this object's.
    pub fn as_raw(&self) -> tenure_resource {
        self.handle
    }

    /// A reference that the library gave out.
    pub(crate) fn owned(api: &'static tenure_api, handle: tenure_resource) -> Self {
        Self { api, handle }
    }

    /// As [`owned`](Self::owned), where null means none.
    pub(crate) fn owned_or_none(api: &'static tenure_api, handle: tenure_resource) -> Option<Self> {
        (handle != TENURE_RESOURCE_NULL).then_some(Self { api, handle })
    }

    /// Runs a constructor of the table.
    pub(crate) fn made(make: impl FnOnce(&tenure_api, *mut tenure_resource) -> tenure_status) -> Result<Self> {
        let api = api()?;
        let mut handle = TENURE_RESOURCE_NULL;
        check(api, make(api, &mut handle))?;
        Ok(Self { api, handle })
    }

    /// The resource of this id, if it is alive.
    ///
    /// # Errors
    /// [`Error::Load`] without a library.
    pub fn from_id(id: u64) -> Result<Option<Self>> {
        let api = api()?;
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.resource_from_id)(id, &mut handle) })?;
        Ok(Self::owned_or_none(api, handle))
    }

    /// A number that no other resource of the process ever has; 0 when the reference is not usable (in a forked child, say).
    pub fn id(&self) -> u64 {
        let mut id = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { (self.api.resource_id)(self.handle, &mut id) };
        id
    }

    /// The kind in the field's words: `"pool"`, `"cuda"`, `"statistics"`; empty when the reference is not usable.
    pub fn kind(&self) -> String {
        let mut kind = std::ptr::null();
        // SAFETY: the pointer is valid for writing.
        let status = unsafe { (self.api.resource_kind)(self.handle, &mut kind) };
        if status != TENURE_OK || kind.is_null() {
            return String::new();
        }
        // SAFETY: a string that is valid while the resource lives, which this reference sees to.
        unsafe { CStr::from_ptr(kind) }.to_string_lossy().into_owned()
    }

    /// The device of the memory; `None` when it follows from the stream of each call.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn device(&self) -> Result<Option<Device>> {
        let mut device = -1;
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.resource_device)(self.handle, &mut device) })?;
        Ok((device >= 0).then_some(Device::known(device)))
    }

    /// What the memory can do.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn properties(&self) -> Result<Properties> {
        let mut bits = 0;
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.resource_properties)(self.handle, &mut bits) })?;
        Ok(Properties(bits))
    }

    /// The figures now.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn info(&self) -> Result<Info> {
        let mut info = tenure_info { size: size_of::<tenure_info>(), ..Default::default() };
        // SAFETY: the pointer is valid for writing `size` bytes.
        check(self.api, unsafe { (self.api.resource_info)(self.handle, &mut info) })?;
        Ok(Info {
            live_bytes: info.live_bytes,
            cached_bytes: info.cached_bytes,
            reserved_bytes: info.reserved_bytes,
            largest_free_bytes: info.largest_free_bytes,
            peak_live_bytes: info.peak_live_bytes,
            peak_reserved_bytes: info.peak_reserved_bytes,
            live_count: info.live_count,
            unproven_bytes: info.unproven_bytes,
            device_proofs: info.device_proofs,
            own_ranges: info.own_ranges != 0,
        })
    }

    /// What this resource takes its memory from; `None` for one that stands on the device or the host itself.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn upstream(&self) -> Result<Option<Self>> {
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.resource_upstream)(self.handle, &mut handle) })?;
        Ok(Self::owned_or_none(self.api, handle))
    }

    /// A named figure or setting of the concrete kind, such as `"allocation_limit"` or `"pool_size"`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] or [`Error::Invalid`] where this kind has none of this name.
    pub fn property(&self, name: &str) -> Result<u64> {
        let name = CString::new(name).map_err(|_| Error::Invalid(format!("{name:?} is not the name of a property")))?;
        let mut value = 0;
        // SAFETY: the name is a string; the pointer is valid for writing.
        check(self.api, unsafe { (self.api.resource_property)(self.handle, name.as_ptr(), &mut value) })?;
        Ok(value)
    }

    /// True when a live allocation that was asked of this very resource contains `ptr`.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the pointer is compared and never followed")]
    pub fn owns(&self, ptr: *const c_void) -> Result<bool> {
        let mut owns = 0;
        // SAFETY: the pointer is only compared; the other one is valid for writing.
        check(self.api, unsafe { (self.api.resource_owns)(self.handle, ptr, &mut owns) })?;
        Ok(owns != 0)
    }

    /// Gives back to the device or the upstream what is cached, down to `keep_bytes`; says how many bytes went.
    ///
    /// # Errors
    /// A fault of the device; what was given back before stays given back.
    pub fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let mut released = 0;
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.resource_trim)(self.handle, keep_bytes, &mut released) })?;
        Ok(released)
    }

    /// Allocates `bytes` bytes, usable in the order of `stream`. No bytes give a null pointer and call nobody.
    ///
    /// The allocation keeps the resource alive until it is given to [`deallocate`](Self::deallocate) or to
    /// [`DeviceBuffer::adopt`](crate::DeviceBuffer::adopt). Prefer a [`DeviceBuffer`](crate::DeviceBuffer), which does that
    /// by itself.
    ///
    /// # Errors
    /// Out of memory; a fault of the device; a stream of another device.
    pub fn allocate<'a>(&self, bytes: usize, stream: impl Into<StreamRef<'a>>) -> Result<*mut c_void> {
        self.allocate_aligned(bytes, DEFAULT_ALIGNMENT, stream)
    }

    /// [`allocate`](Self::allocate) with an alignment in bytes, which must be a power of two.
    ///
    /// # Errors
    /// As there, and [`Error::Invalid`] for an alignment that is none.
    #[inline]
    pub fn allocate_aligned<'a>(
        &self,
        bytes: usize,
        alignment: usize,
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<*mut c_void> {
        check_alignment(alignment)?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the stream is alive during the call; the pointer is valid for writing.
        check(self.api, unsafe { (self.api.allocate)(self.handle, bytes, alignment, stream.into().raw, &mut ptr) })?;
        Ok(ptr)
    }

    /// Frees in the order of `stream` what [`allocate`](Self::allocate) or
    /// [`allocate_aligned`](Self::allocate_aligned) returned for these `bytes` and this `alignment`.
    ///
    /// # Safety
    /// Nothing may use the memory afterwards, except work that is enqueued before the free in the order of `stream`. (That
    /// the block is this resource's, has this size and is live is *not* left to the caller: it is checked.)
    ///
    /// # Errors
    /// [`Error::Ownership`] when the block is not this resource's, not live, or of another size or alignment; nothing
    /// happens then.
    #[inline]
    pub unsafe fn deallocate<'a>(
        &self,
        ptr: *mut c_void,
        bytes: usize,
        alignment: usize,
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<()> {
        // SAFETY: the library checks the block; the caller answers for its users.
        check(self.api, unsafe { (self.api.deallocate)(self.handle, ptr, bytes, alignment, stream.into().raw) })
    }

    /// Allocates one block for each of `sizes` in one call, usable in the order of `stream`: all of them, or an error and
    /// none. No bytes give a null pointer. Each block is one like any other, of the default alignment.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// use tenure::{DEFAULT_ALIGNMENT, Device, Pool, Stream};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let pool = Pool::builder(&device).build()?;
    /// let sizes = [4096, 100, 1 << 20];
    /// let blocks = pool.allocate_many(&sizes, &stream)?;
    /// // SAFETY: nothing uses them.
    /// unsafe { pool.deallocate_many(&blocks, &sizes, DEFAULT_ALIGNMENT, &stream)? };
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn allocate_many<'a>(&self, sizes: &[usize], stream: impl Into<StreamRef<'a>>) -> Result<Vec<*mut c_void>> {
        let mut blocks = vec![std::ptr::null_mut(); sizes.len()];
        let (count, bytes, out) = (sizes.len(), sizes.as_ptr(), blocks.as_mut_ptr());
        // SAFETY: the stream is alive during the call; both arrays are as long as is said.
        check(self.api, unsafe {
            (self.api.allocate_many)(self.handle, count, bytes, DEFAULT_ALIGNMENT, stream.into().raw, out)
        })?;
        Ok(blocks)
    }

    /// Frees in the order of `stream` what [`allocate_many`](Self::allocate_many), or [`allocate`](Self::allocate) for these
    /// sizes and this `alignment`, returned. A null pointer with no bytes is passed over.
    ///
    /// Each block is checked. One that is wrong stays as it is and every other is freed, so that nothing is lost.
    ///
    /// # Safety
    /// As [`deallocate`](Self::deallocate), for each of them.
    ///
    /// # Errors
    /// That of the first block that was not freed; its place is in the message. [`Error::Invalid`], with nothing freed, where
    /// there are not as many sizes as pointers.
    pub unsafe fn deallocate_many<'a>(
        &self,
        ptrs: &[*mut c_void],
        sizes: &[usize],
        alignment: usize,
        stream: impl Into<StreamRef<'a>>,
    ) -> Result<()> {
        if ptrs.len() != sizes.len() {
            return Err(Error::Invalid(format!(
                "{} pointers and {} sizes: give one size for each block",
                ptrs.len(),
                sizes.len()
            )));
        }
        check_alignment(alignment)?;
        let (count, bytes, wrong) = (ptrs.len(), sizes.as_ptr(), std::ptr::null_mut());
        // SAFETY: the library checks the blocks; the caller answers for their users; both arrays are as long as is said.
        check(self.api, unsafe {
            (self.api.deallocate_many)(self.handle, count, ptrs.as_ptr(), bytes, alignment, stream.into().raw, wrong)
        })
    }

    /// Allocates memory that is usable on any stream at return.
    ///
    /// # Errors
    /// As [`allocate_aligned`](Self::allocate_aligned).
    pub fn allocate_sync(&self, bytes: usize, alignment: usize) -> Result<*mut c_void> {
        check_alignment(alignment)?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.allocate_sync)(self.handle, bytes, alignment, &mut ptr) })?;
        Ok(ptr)
    }

    /// Frees memory that nothing uses any more.
    ///
    /// # Safety
    /// No work may use the memory, enqueued work included.
    ///
    /// # Errors
    /// As [`deallocate`](Self::deallocate).
    pub unsafe fn deallocate_sync(&self, ptr: *mut c_void, bytes: usize, alignment: usize) -> Result<()> {
        // SAFETY: the library checks the block; the caller answers for its users.
        check(self.api, unsafe { (self.api.deallocate_sync)(self.handle, ptr, bytes, alignment) })
    }
}

/// At the border 0 stands for the default; here the default has functions of its own, so that 0 is a mistake.
#[inline]
pub(crate) fn check_alignment(alignment: usize) -> Result<()> {
    if alignment == 0 {
        return Err(Error::Invalid("alignment 0 is not usable: give a power of two, such as 256".into()));
    }
    Ok(())
}

/// Who was asked for the smallest live allocation around `ptr`; `None` when nobody knows it.
///
/// The answer owns the resource: it cannot go while the answer is held.
///
/// # Errors
/// [`Error::Load`] without a library.
pub fn owner_of(ptr: *const c_void) -> Result<Option<Resource>> {
    Ok(block_of(ptr)?.map(|block| block.resource))
}

/// A live allocation.
#[derive(Debug)]
pub struct Block {
    /// The resource that was asked for it.
    pub resource: Resource,
    /// Where it starts.
    pub base: *mut c_void,
    /// Its size in bytes.
    pub bytes: usize,
}

/// The smallest live allocation around `ptr`; `None` when nobody knows it.
///
/// # Errors
/// [`Error::Load`] without a library.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the pointer is compared and never followed")]
pub fn block_of(ptr: *const c_void) -> Result<Option<Block>> {
    let api = api()?;
    let (mut handle, mut base, mut bytes) = (TENURE_RESOURCE_NULL, std::ptr::null_mut(), 0);
    // SAFETY: the pointer is only compared; the others are valid for writing.
    check(api, unsafe { (api.owner_of)(ptr, &mut handle, &mut base, &mut bytes) })?;
    Ok(Resource::owned_or_none(api, handle).map(|resource| Block { resource, base, bytes }))
}

impl Clone for Resource {
    /// Another reference to the same resource. Where none can be had (in a forked child) the clone is an empty reference,
    /// whose use is an [`Error::BadHandle`].
    fn clone(&self) -> Self {
        let mut handle = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing.
        let status = unsafe { (self.api.resource_retain)(self.handle, &mut handle) };
        Self { api: self.api, handle: if status == TENURE_OK { handle } else { TENURE_RESOURCE_NULL } }
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        if self.handle != TENURE_RESOURCE_NULL {
            // SAFETY: this reference is given back once. A failure (a forked child, the end of the process) frees nothing.
            let status = unsafe { (self.api.resource_release)(self.handle) };
            crate::misuse::report_if_misuse(self.api, status);
        }
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        if self.handle == other.handle {
            return true;
        }
        let mut same = 0;
        // SAFETY: the pointer is valid for writing.
        let status = unsafe { (self.api.resource_same)(self.handle, other.handle, &mut same) };
        status == TENURE_OK && same != 0
    }
}

impl Eq for Resource {}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({} #{:x})", self.kind(), self.id())
    }
}
