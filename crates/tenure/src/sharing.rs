//! Sharing: memory of one process in another.
//!
//! ```text
//!   DeviceBuffer::share --> Shared --to_bytes, fds--> any channel, SCM_RIGHTS --> Shared::from_bytes --> Shared::open
//! ```
//!
//! [`Shared`] describes memory and holds what leads there: file descriptors for memory of a [`Pool`](crate::Pool) or an
//! [`AsyncPool`](crate::AsyncPool) that was made [`exportable`](crate::PoolBuilder::exportable), bytes alone for fabric and
//! legacy handles. How bytes and descriptors travel is the program's choice: a Unix socket, or inheritance.
//!
//! **Contract.** The exporter's buffer owns its block and must live until its importers need the contents no more; of an
//! `AsyncPool` and of legacy handles, until they have dropped their buffers. Memory of a `Pool` with ranges of its own stays
//! valid where it was opened, also when the exporter has ended. [`DeviceBuffer::share`] waits for the work that the buffer
//! knows of; later work of the two processes is theirs to order.
//!
//! Unsafe in this file: calls through the table, and the arrays that they give.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use tenure_abi::*;

use crate::api;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result, check};
use crate::resource::Resource;
use crate::stream::StreamRef;

/// By what memory is handed to another process: a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kinds(u32);

impl Kinds {
    /// None.
    pub const NONE: Self = Self(0);
    /// File descriptors.
    pub const FD: Self = Self(TENURE_HANDLE_FD);
    /// Fabric handles, also between nodes of one NVLink domain.
    pub const FABRIC: Self = Self(TENURE_HANDLE_FABRIC);
    /// Legacy handles (`cuIpcGetMemHandle`).
    pub const LEGACY: Self = Self(TENURE_HANDLE_LEGACY);
    /// Whatever there is, descriptors first.
    pub const ANY: Self = Self(TENURE_HANDLE_FD | TENURE_HANDLE_FABRIC | TENURE_HANDLE_LEGACY);

    /// Whether all of `other` are among these.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Kinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::FD, "fd"), (Self::FABRIC, "fabric"), (Self::LEGACY, "legacy")];
        f.debug_set().entries(names.iter().filter(|(kind, _)| self.has(*kind)).map(|(_, name)| name)).finish()
    }
}

impl Resource {
    /// By what memory of this resource can be handed to another process.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn exports(&self) -> Result<Kinds> {
        let (api, mut out) = (api()?, 0);
        // SAFETY: the pointer is valid for writing.
        check(api, unsafe { (api.resource_exports)(self.as_raw(), &mut out) })?;
        Ok(Kinds(out))
    }
}

/// Memory of a process, described for another, with the descriptors that lead there. Does not keep the exporter's buffer.
pub struct Shared {
    data: Vec<u8>,
    fds: Vec<OwnedFd>,
    info: tenure_shared_view,
}

impl DeviceBuffer {
    /// Describes the memory for another process, by one of `kinds`. Waits for the work that the buffer knows of: on its home
    /// stream and on those that were recorded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for memory that cannot be handed out so, with the option that makes it exportable;
    /// [`Error::Invalid`] for a buffer of no bytes; what the driver says.
    ///
    /// # Examples
    /// ```
    /// use tenure::{Device, DeviceBuffer, HandleType, Pool, Shared, Stream, sharing::Kinds};
    ///
    /// let (device, stream) = (Device::current()?, Stream::create()?);
    /// let pool = Pool::builder(&device).exportable(HandleType::FileDescriptor).build()?;
    /// let mut buffer = DeviceBuffer::new_in(5, &stream, &pool)?;
    /// buffer.copy_from_host(b"hello", &stream)?;
    /// let shared = buffer.share(Kinds::ANY)?;
    /// // Another process gets these bytes, and the descriptors over a Unix socket. Here it is this one.
    /// let fds = shared.fds().map(|fd| fd.try_clone_to_owned()).collect::<Result<Vec<_>, _>>().unwrap();
    /// let opened = Shared::from_bytes(shared.to_bytes(), fds)?.open(&stream)?;
    /// let mut back = [0; 5];
    /// opened.copy_to_host(&mut back, &stream)?;
    /// assert_eq!(&back, b"hello");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn share(&self, kinds: Kinds) -> Result<Shared> {
        if kinds == Kinds::NONE {
            return Err(Error::Invalid("no kind of handle was named: name one, or Kinds::ANY".into()));
        }
        let mut out =
            tenure_shared { data: std::ptr::null_mut(), data_bytes: 0, fds: std::ptr::null_mut(), fd_count: 0 };
        // SAFETY: the pointer is valid for writing.
        check(self.api, unsafe { (self.api.buffer_share)(self.handle, kinds.0, &mut out) })?;
        // SAFETY: as long as is said, until it is given back below.
        let data = unsafe { std::slice::from_raw_parts(out.data.cast::<u8>(), out.data_bytes) }.to_vec();
        let mut fds = Vec::with_capacity(out.fd_count);
        for at in 0..out.fd_count {
            // SAFETY: as above. The descriptor is this object's from now on, and the library is told so.
            let number = unsafe { std::mem::replace(&mut *out.fds.add(at), -1) };
            // SAFETY: as above.
            fds.push(unsafe { OwnedFd::from_raw_fd(number) });
        }
        // SAFETY: filled by the library.
        unsafe { (self.api.shared_free)(&mut out) };
        Shared::from_bytes(&data, fds)
    }
}

impl Shared {
    /// What [`to_bytes`](Self::to_bytes) gave in the other process, with the descriptors that came beside it, in their order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes that are no handle or not a whole one, and for another number of descriptors.
    pub fn from_bytes(data: &[u8], fds: Vec<OwnedFd>) -> Result<Self> {
        let api = api()?;
        let mut info = tenure_shared_view { size: size_of::<tenure_shared_view>(), ..Default::default() };
        // SAFETY: the bytes are alive during the call; `info` is valid for writing, and its size is set.
        check(api, unsafe { (api.shared_info)(data.as_ptr().cast(), data.len(), &mut info) })?;
        if info.fd_count != fds.len() as u64 {
            return Err(Error::Invalid(format!(
                "the handle comes with {} file descriptors and {} were given: pass all of them, in their order",
                info.fd_count,
                fds.len()
            )));
        }
        Ok(Self { data: data.to_vec(), fds, info })
    }

    /// Everything but the descriptors.
    pub fn to_bytes(&self) -> &[u8] {
        &self.data
    }

    /// The descriptors that must travel beside the bytes, in this order.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.fds.iter().map(OwnedFd::as_fd)
    }

    /// The size of the shared memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.info.bytes
    }

    /// By what it is handed out.
    pub fn kind(&self) -> Kinds {
        Kinds(self.info.kind)
    }

    /// The process that shares it.
    pub fn pid(&self) -> u32 {
        self.info.pid
    }

    /// The device that it lies on.
    pub fn uuid(&self) -> [u8; 16] {
        self.info.uuid
    }

    /// A buffer of the memory, on the device that it lies on, with `stream` as its home. However often one piece of memory is
    /// opened in a process, it is mapped once; the mapping goes with the last buffer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where that device is not visible, or for legacy handles and driver pools of this very process;
    /// [`Error::Invalid`] for a closed or wrong descriptor; what the driver says.
    pub fn open<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<DeviceBuffer> {
        self.open_at(-1, stream.into())
    }

    /// [`open`](Self::open) on a device of the caller's choice, which fabric handles of another node need.
    ///
    /// # Errors
    /// As `open`; [`Error::Invalid`] where the memory lies on another device of this node.
    pub fn open_on<'a>(&self, device: &Device, stream: impl Into<StreamRef<'a>>) -> Result<DeviceBuffer> {
        self.open_at(device.ordinal(), stream.into())
    }

    fn open_at(&self, device: i32, stream: StreamRef<'_>) -> Result<DeviceBuffer> {
        let (api, mut handle) = (api()?, 0);
        let fds: Vec<RawFd> = self.fds.iter().map(AsRawFd::as_raw_fd).collect();
        let (data, bytes) = (self.data.as_ptr().cast(), self.data.len());
        // SAFETY: both arrays are as long as is said; the stream is alive during the call; the pointer is valid for writing.
        check(api, unsafe {
            (api.buffer_import)(data, bytes, fds.as_ptr(), fds.len(), device, stream.raw, &mut handle)
        })?;
        Ok(DeviceBuffer { api, handle })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("bytes", &self.info.bytes)
            .field("kind", &self.kind())
            .field("pid", &self.info.pid)
            .finish_non_exhaustive()
    }
}
