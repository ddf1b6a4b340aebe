//! Sharing: memory of this process in another one, and the other way round.
//!
//! ```text
//!   exporter                                                        importer
//!   Buffer --share--> Shared { what, where, handles } ==bytes, fds==> Shared --import--> Buffer
//!      |                                                                                  |
//!   its resource                                                              "imported" resource: one per mapping
//!      |                                                                                  |
//!   [ handle ][ handle ]  physical memory, counted by the driver  [ handle ][ handle ] mapped here
//! ```
//!
//! What is shared is not the block but what the driver can hand out around it, and where the block lies in there:
//!
//! | memory | handed out | who must live longer |
//! |---|---|---|
//! | a pool over ranges of its own, made with an `export_handle_type` | each physical handle under the block | nobody: the driver counts |
//! | a driver pool made with one (`cuda_async`) | the pool, and the block's place in it | the block, until its importers have freed theirs |
//! | plain chunks and plain device memory | the allocation (legacy handle) | the block, as above |
//!
//! **Order**: [`ToShare::share`] waits for the work that the buffer knows of (its home stream and every stream that was
//! recorded), so that whoever gets the handle may read at once. Later work of the two processes is theirs to order.
//!
//! **Contents**: the exporter's buffer stays the owner of its block. What it frees may serve somebody else, and an importer
//! then sees that; the importer's mapping stays valid. So a handle is good while its buffer is.
//!
//! **Invariants**: a mapping is made once per process however often it is imported (`open.rs`), belongs to one resource
//! (`imported.rs`), and goes with the last buffer of it, after its last use. A live block's handles are neither unmapped
//! nor mapped elsewhere by the pool, so that nothing needs to be pinned while they are exported.
//!
//! **Cost**: one driver call for each handle under the block (2 to 32 MiB each), and a descriptor for each where that is the
//! kind; an import maps as many.

mod imported;
mod open;
mod wire;

pub use imported::Imported;
pub use wire::Shared;

use std::os::fd::OwnedFd;

use tenure_driver::DriverError;
use tenure_driver::sys::{
    CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_SUPPORTED,
};

use crate::device;
use crate::error::{Error, Result};
use crate::resource::{Light, Named};
use crate::stream::StreamHold;

/// How memory can be handed to another process: a set of kinds, with the driver's bits where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(pub u32);

impl Kinds {
    /// None.
    pub const NONE: Self = Self(0);
    /// By file descriptor.
    pub const FD: Self = Self(1);
    /// By fabric handle, also between nodes of one NVLink domain.
    pub const FABRIC: Self = Self(8);
    /// By legacy handle (`cuIpcGetMemHandle`).
    pub const LEGACY: Self = Self(256);
    /// Whatever there is, descriptors first.
    pub const ANY: Self = Self(1 | 8 | 256);

    /// The set with these bits.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other bits; 0 is [`ANY`](Self::ANY).
    pub fn from_bits(bits: u32) -> Result<Self> {
        match bits {
            0 => Ok(Self::ANY),
            bits if bits & !Self::ANY.0 == 0 => Ok(Self(bits)),
            _ => Err(Error::invalid(format!(
                "{bits} names kinds of handles that there are not: give a sum of 1 (file descriptor), 8 (fabric) and 256 \
                 (legacy), or 0 for any"
            ))),
        }
    }

    /// Whether all of `other` are among these.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The first of them: descriptors, then fabric, then legacy handles.
    pub fn first(self) -> Option<Self> {
        [Self::FD, Self::FABRIC, Self::LEGACY].into_iter().find(|kind| self.has(*kind))
    }

    /// For people.
    pub fn text(self) -> String {
        let names = [(Self::FD, "file descriptor"), (Self::FABRIC, "fabric"), (Self::LEGACY, "legacy")];
        let names: Vec<&str> = names.iter().filter(|(kind, _)| self.has(*kind)).map(|(_, name)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// What the driver hands out for one piece of memory.
#[derive(Debug)]
pub enum Handle {
    /// A descriptor.
    Fd(OwnedFd),
    /// A fabric handle.
    Fabric([u8; 64]),
    /// A legacy handle.
    Legacy([u8; 64]),
}

/// One piece of what is handed out.
#[derive(Debug)]
pub struct Piece {
    /// Its length in bytes.
    pub bytes: u64,
    /// A number that no other piece of this process has, so that an importer knows it again.
    pub serial: u64,
    /// What leads there.
    pub handle: Handle,
}

/// What a resource hands out around a range of its memory.
#[derive(Debug)]
pub struct Parts {
    /// Where the range starts in the pieces, in bytes.
    pub offset: u64,
    /// One after the other; of an opened pool, the pool.
    pub pieces: Vec<Piece>,
    /// Of an opened pool: the block's place in it.
    pub pointer: Option<[u8; 64]>,
}

/// What sharing a buffer needs to know of it. Whoever has it sees to it that the buffer keeps its block meanwhile.
pub struct ToShare {
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    pub(crate) device: i32,
    pub(crate) default: i32,
    pub(crate) resource: Option<Light>,
    pub(crate) streams: Vec<StreamHold>,
}

impl ToShare {
    /// A description of the memory that another process can open, by one of the `wanted` kinds. Waits for the work that the
    /// buffer knows of.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the memory cannot be shared so: the message says which option to give; an empty buffer;
    /// what the driver says. Nothing is left behind.
    pub fn share(&self, wanted: Kinds) -> Result<Shared> {
        device::alive()?;
        if self.bytes == 0 {
            return Err(Error::invalid(
                "the buffer has no bytes, so that there is nothing to share: share one that has",
            ));
        }
        if self.device < 0 {
            return Err(Error::Unsupported(
                "memory of the host is not shared by the driver: use shared memory of the operating system, or copy the \
                 buffer to a device"
                    .into(),
            ));
        }
        let parts = match self.parts(wanted)? {
            Some(parts) => parts,
            None => return Err(self.refusal(wanted)),
        };
        for stream in &self.streams {
            device::wait_stream_ref(stream.as_stored(), stream.device().unwrap_or(self.default))?;
        }
        let uuid = device::driver()?.device(self.device)?.properties()?.uuid;
        Ok(Shared::new(uuid, self.bytes as u64, parts))
    }

    fn parts(&self, wanted: Kinds) -> Result<Option<Parts>> {
        if let Some(resource) = &self.resource
            && let Some(parts) = resource.body().share(self.ptr, self.bytes, wanted)?
        {
            return Ok(Some(parts));
        }
        if !wanted.has(Kinds::LEGACY) { Ok(None) } else { legacy(self.device, self.ptr) }
    }

    fn refusal(&self, wanted: Kinds) -> Error {
        let can = self.resource.as_ref().map_or(Kinds::NONE, |resource| Kinds(resource.body().exports()));
        let kind = self.resource.as_ref().map_or("foreign", |resource| resource.body().kind());
        if can != Kinds::NONE {
            return Error::Unsupported(format!(
                "memory of this {kind} resource cannot be handed out as asked ({}): it can as {}; choose the kind when the \
                 resource is made (export_handle_type)",
                wanted.text(),
                can.text()
            ));
        }
        Error::Unsupported(format!(
            "memory of this {kind} resource is not exportable: make the pool with export_handle_type=\"fd\" (or \"fabric\"), \
             the driver's pool (CudaAsyncMemoryResource) with enable_ipc=True, or a pool with pages=\"driver\" for legacy \
             handles, and allocate from that"
        ))
    }
}

/// A legacy handle of the allocation around an address; `None` where the driver gives none for this memory.
///
/// # Errors
/// What the driver says of anything else: a lost device, a lack of memory.
pub(crate) fn legacy(device: i32, ptr: u64) -> Result<Option<Parts>> {
    // How the driver says no: of memory that has no such handle, and where the system has none at all. The first is also its
    // answer to a question that is newer than it.
    let no = |e: &DriverError| matches!(e.code, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED);
    let driver = device::driver()?;
    device::on(device, || {
        match driver.pointer_attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) {
            Ok(0) => return Ok(None),
            Err(e) if !no(&e) => return Err(e.into()),
            // A driver too old for the question cannot say no to it: then the handle itself is asked for.
            Ok(_) | Err(_) => {}
        }
        let (base, bytes) = driver.address_range(ptr)?;
        let handle = match driver.ipc_handle(base) {
            Ok(handle) => handle,
            Err(e) if no(&e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let serial = driver.pointer_attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, base)?;
        let piece = Piece { bytes: bytes as u64, serial, handle: Handle::Legacy(handle.reserved) };
        Ok(Some(Parts { offset: ptr - base, pieces: vec![piece], pointer: None }))
    })
}

/// Refuses a kind of handle that a device's pages cannot be handed out by.
///
/// # Errors
/// [`Error::Unsupported`], which names the device and what it can do.
pub fn require_pages(device: i32, kinds: Kinds) -> Result<()> {
    let can = device::driver()?.device(device)?.properties()?.capabilities;
    let mut have = Kinds::NONE;
    if can.page_fds {
        have.0 |= Kinds::FD.0;
    }
    if can.page_fabric {
        have.0 |= Kinds::FABRIC.0;
    }
    if have.has(kinds) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "device {device} cannot hand its memory out as asked (export_handle_type: {}); it can as: {}",
        kinds.text(),
        have.text()
    )))
}

/// The kinds of handles that memory of a resource can be handed out by.
pub fn exports(resource: &Named) -> Kinds {
    Kinds(resource.body().exports())
}

pub use open::import;
