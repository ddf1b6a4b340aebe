//! What of other processes is open here: mappings, and the table that finds them again.
//!
//! **Invariants**: the table names resources by their ids and keeps none alive; a mapping ends after everything that used it
//! (its resource has waited), or not at all where the process is ending. No lock is held while the driver is called: of two
//! threads that open the same memory at once, the second one's mapping goes again.

use rustc_hash::FxHashMap;

use tenure_driver::sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_DEVICE, CUipcMemHandle, CUmemAccessDesc,
    CUmemFabricHandle, CUmemLocation, CUmemPoolPtrExportData, CUmemoryPool,
};
use tenure_driver::{AddressRange, Device, PhysicalPages};

use std::os::fd::AsRawFd;

use super::wire::token;
use super::{Handle, Imported, Kinds, Shared};
use crate::buffer::Buffer;
use crate::device;
use crate::error::{Error, Result};
use crate::resource::{Resource, registry};
use crate::stream::StreamHold;
use crate::sync::{Arc, Mutex, OnceCell, Weak};

/// What is the same memory: who made it, by which kind of handle, which pieces, and the place in an opened pool; and for which
/// device it is mapped, which of a fabric handle is the importer's choice.
type Key = ([u8; 16], u32, Vec<u64>, Option<[u8; 64]>, i32);

/// A pool of an exporter: its process and its number there; and the device that it was opened for.
type PoolKey = ([u8; 16], u64, i32);

static OPEN: OnceCell<Mutex<FxHashMap<Key, u64>>> = OnceCell::new();
/// Opened pools, each once.
static POOLS: OnceCell<Mutex<FxHashMap<PoolKey, Weak<OpenPool>>>> = OnceCell::new();

/// Memory of another process, mapped.
pub(super) struct Mapping {
    device: &'static Device,
    base: u64,
    bytes: u64,
    way: Way,
}

enum Way {
    /// Pages in a range of our own; both go when it is dropped, mappings first.
    Pages { range: AddressRange, _pages: Vec<PhysicalPages> },
    /// A legacy handle.
    Legacy,
    /// A block of an opened pool, which stays open meanwhile.
    Pool(#[expect(dead_code, reason = "kept open")] Arc<OpenPool>),
}

/// A driver pool of another process.
struct OpenPool {
    device: &'static Device,
    /// `CUmemoryPool`, as a number.
    pool: u64,
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        if tenure_driver::process::unusable() {
            return;
        }
        // SAFETY: opened by this value alone, and every block of it has been freed before.
        if let Err(e) = unsafe { self.device.driver().pool_destroy(self.pool as CUmemoryPool) } {
            log::warn!("tenure: a pool of another process could not be closed: {e}");
        }
    }
}

impl Mapping {
    pub(super) fn device(&self) -> i32 {
        self.device.ordinal()
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn open(shared: &Shared, device: &'static Device) -> Result<Self> {
        if let Some(pointer) = &shared.pointer {
            return Self::of_pool(shared, pointer, device);
        }
        match shared.pieces.first().map(|piece| &piece.handle) {
            Some(Handle::Legacy(handle)) => Self::of_legacy(shared, handle, device),
            _ => Self::of_pages(shared, device),
        }
    }

    fn of_pages(shared: &Shared, device: &'static Device) -> Result<Self> {
        let mut pages = Vec::with_capacity(shared.pieces.len());
        for piece in &shared.pieces {
            let bytes = usize::try_from(piece.bytes).map_err(|_| too_large())?;
            pages.push(match &piece.handle {
                Handle::Fd(fd) => PhysicalPages::import_fd(device, fd.as_raw_fd(), bytes),
                Handle::Fabric(data) | Handle::Legacy(data) => {
                    PhysicalPages::import_fabric(device, &CUmemFabricHandle { data: *data }, bytes)
                }
            }?);
        }
        // At most the sum that was checked when the handle was read.
        let bytes: u64 = shared.pieces.iter().map(|piece| piece.bytes).sum();
        let room = usize::try_from(bytes).map_err(|_| too_large())?;
        let range = AddressRange::reserve(device, room, 0)?;
        let mut done = 0;
        let mapped = pages.iter().try_for_each(|pages| {
            range.map(done, pages)?;
            done += pages.bytes();
            Ok(())
        });
        let mapped = mapped.and_then(|()| range.set_access(0, room, &[device.ordinal()]));
        if let Err(e) = mapped {
            if done > 0 {
                // SAFETY: nobody has been given an address of it.
                let _ = unsafe { range.unmap(0, done) };
            }
            return Err(e.into());
        }
        Ok(Self { device, base: range.base(), bytes, way: Way::Pages { range, _pages: pages } })
    }

    fn of_legacy(shared: &Shared, handle: &[u8; 64], device: &'static Device) -> Result<Self> {
        let bytes = shared.pieces.first().map_or(0, |piece| piece.bytes);
        let base =
            device::on(device.ordinal(), || Ok(device.driver().ipc_open(CUipcMemHandle { reserved: *handle })?))?;
        Ok(Self { device, base, bytes, way: Way::Legacy })
    }

    fn of_pool(shared: &Shared, pointer: &[u8; 64], device: &'static Device) -> Result<Self> {
        let pool = OpenPool::get(shared, device)?;
        let data = CUmemPoolPtrExportData { reserved: *pointer };
        // SAFETY: opened by `OpenPool`, which is held.
        let open = || Ok(unsafe { device.driver().pool_import_pointer(pool.pool as CUmemoryPool, &data) }?);
        let base = device::on(device.ordinal(), open)?;
        let bytes = shared.pieces.first().map_or(0, |piece| piece.bytes);
        Ok(Self { device, base, bytes, way: Way::Pool(pool) })
    }
}

impl OpenPool {
    fn get(shared: &Shared, device: &'static Device) -> Result<Arc<Self>> {
        let Some(piece) = shared.pieces.first() else { return Err(too_large()) };
        let key = (shared.token, piece.serial, device.ordinal());
        let table = POOLS.get_or_init(Mutex::default);
        if let Some(open) = table.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(open);
        }
        let driver = device.driver();
        let pool = device::on(device.ordinal(), || {
            let pool = match &piece.handle {
                Handle::Fd(fd) => driver.pool_import_fd(fd.as_raw_fd()),
                Handle::Fabric(data) | Handle::Legacy(data) => {
                    driver.pool_import_fabric(&CUmemFabricHandle { data: *data })
                }
            }?;
            let open = Self { device, pool: pool as u64 };
            let access = CUmemAccessDesc {
                location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device.ordinal() },
                flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: opened just now.
            if let Err(e) = unsafe { driver.pool_set_access(pool, &[access]) } {
                // The pool's own device mostly has access without that.
                log::debug!("tenure: the access to an opened pool was not set: {e}");
            }
            Ok(open)
        })?;
        let pool = Arc::new(pool);
        let mut table = table.lock();
        table.retain(|_, open| open.strong_count() > 0);
        match table.get(&key).and_then(Weak::upgrade) {
            // Another thread was faster: ours goes when this returns, after the lock.
            Some(open) => {
                drop(table);
                Ok(open)
            }
            None => {
                table.insert(key, Arc::downgrade(&pool));
                Ok(pool)
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if tenure_driver::process::unusable() {
            return;
        }
        let ended = device::on(self.device.ordinal(), || match &self.way {
            // SAFETY: the resource has waited for each of its buffers, and nobody else has these addresses.
            Way::Pages { range, .. } => Ok(unsafe { range.unmap(0, range.bytes()) }?),
            // SAFETY: as above; it came from `ipc_open`.
            Way::Legacy => Ok(unsafe { self.device.driver().ipc_close(self.base) }?),
            // SAFETY: as above; it came from the opened pool.
            Way::Pool(_) => Ok(unsafe { self.device.driver().mem_free(self.base) }?),
        });
        if let Err(e) = device::settled(ended) {
            log::warn!("tenure: memory of another process stays mapped at {:#x}: {e}", self.base);
        }
    }
}

fn too_large() -> Error {
    Error::invalid("the handle names more memory than an address can: pass it as it was made")
}

/// The device here that the memory lies on. A fabric handle may be of another node: then `wanted` says where it is mapped.
fn device_for(shared: &Shared, wanted: Option<i32>) -> Result<&'static Device> {
    let driver = device::driver()?;
    let mut home = None;
    for ordinal in 0..device::count()? {
        if driver.device(ordinal)?.properties()?.uuid == shared.uuid {
            home = Some(ordinal);
            break;
        }
    }
    let wanted = wanted.map(device::check).transpose()?;
    let ordinal = match (home, wanted) {
        (Some(home), Some(wanted)) if home != wanted => {
            return Err(Error::invalid(format!(
                "the memory lies on device {home} and was to be opened on device {wanted}: leave the device out, or name {home}"
            )));
        }
        (Some(home), _) => home,
        (None, wanted) if shared.kind == Kinds::FABRIC => wanted.map_or_else(device::current, Ok)?,
        (None, _) => {
            return Err(Error::Unsupported(format!(
                "the memory that process {} shares lies on device {}, which this process does not see: start it with that \
                 device visible (CUDA_VISIBLE_DEVICES)",
                shared.pid,
                uuid_text(&shared.uuid)
            )));
        }
    };
    Ok(driver.device(ordinal)?)
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A buffer of the memory behind a handle, with `home` as its home stream. What the exporter wrote before it shared is there.
///
/// # Errors
/// [`Error::Unsupported`] for memory of a device that is not visible here, and in the exporting process itself where the
/// driver does not open its own memory again; [`Error::Invalid`] for another device than the memory's; what the driver says,
/// for a closed descriptor, say. Nothing is left behind.
pub fn import(shared: &Shared, device: Option<i32>, home: StreamHold) -> Result<Buffer> {
    device::alive()?;
    let device = device_for(shared, device)?;
    if shared.token == token() && (shared.pointer.is_some() || shared.kind == Kinds::LEGACY) {
        return Err(Error::Unsupported(
            "the handle is of this very process, where the driver does not open such memory again: use the buffer that was \
             shared"
                .into(),
        ));
    }
    let bytes = usize::try_from(shared.bytes).map_err(|_| too_large())?;
    let serials = shared.pieces.iter().map(|piece| piece.serial).collect();
    let key: Key = (shared.token, shared.kind.0, serials, shared.pointer, device.ordinal());
    let resource = resource_for(key, shared, device)?;
    Buffer::of_imported(bytes, home, resource.light(), |request| {
        let imported = resource.downcast::<Imported>();
        imported.ok_or_else(too_large)?.lend(shared.offset, request)
    })
}

fn resource_for(key: Key, shared: &Shared, device: &'static Device) -> Result<Resource> {
    let table = OPEN.get_or_init(Mutex::default);
    let known = table.lock().get(&key).copied();
    if let Some(resource) = known.and_then(registry::upgrade) {
        return Ok(resource);
    }
    let mapping = Mapping::open(shared, device).map_err(|e| explain(e, shared))?;
    let made = Resource::new(Imported::new(mapping, shared.pid))?;
    // Outside of the lock: a resource that goes calls the driver.
    let mut faster = None;
    {
        let mut table = table.lock();
        match table.get(&key).copied().and_then(registry::upgrade) {
            Some(other) => faster = Some(other),
            None => {
                table.retain(|_, id| crate::resource::Named::borrowed(*id).is_some());
                table.insert(key, made.id());
            }
        }
    }
    Ok(faster.unwrap_or(made))
}

/// Says what can be behind a refusal of the driver.
fn explain(error: Error, shared: &Shared) -> Error {
    match error {
        Error::Device(e) if !e.is_sticky() && !e.is_out_of_memory() => Error::Invalid(format!(
            "memory that process {} shares by {} cannot be opened ({e}): the descriptor may be closed or another one, or the \
             exporter has ended or freed the memory",
            shared.pid,
            shared.kind.text()
        )),
        other => other,
    }
}
