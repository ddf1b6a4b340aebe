//! Devices: their contexts, plain memory, and waiting for all of their work.
//!
//! There is one [`Device`] per ordinal, for the life of the process. Its primary context (the one that the CUDA runtime
//! and every library on it uses) is retained once, at the first call that needs it, and never released: what tenure
//! hands out may outlive any scope in which a release would be in order.
//!
//! The methods here do what a library in somebody else's process has to do around a driver call: they switch the context
//! only if another one is current, switch it back, and leave foreign stream captures alone.

use core::marker::PhantomData;

use crate::driver::{Driver, HostFlags, MemoryInfo};
use crate::error::DriverError;
use crate::load::DeviceError;
use crate::properties::Properties;
use crate::stream::RelaxedCapture;
use crate::sync::{Condvar, Mutex, OnceCell};
use crate::sys::*;

type Result<T> = core::result::Result<T, DriverError>;

/// The retained primary context.
#[derive(Debug, Clone, Copy)]
struct Context {
    raw: CUcontext,
    /// The driver's number of it, to tell a context from one that was made at its address later; 0 if unknown.
    id: u64,
}

// SAFETY: an opaque handle that only the driver follows; the driver may be called with it from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A device of this process.
#[derive(Debug)]
pub struct Device {
    driver: &'static Driver,
    ordinal: i32,
    handle: CUdevice,
    properties: OnceCell<Properties>,
    context: OnceCell<Context>,
    proofs: Mutex<Proofs>,
    /// Told when a proof has ended.
    proof_ended: Condvar,
}

/// The proofs of one device. One runs at a time, and whoever asked before it began has its answer from it.
#[derive(Debug, Default)]
struct Proofs {
    /// Number of the last one that began, and of the last that succeeded.
    begun: u64,
    done: u64,
    running: bool,
    /// The block that the next one frees.
    spare: Option<CUdeviceptr>,
}

/// Bytes of the block kept for the device proof.
const SPARE_BYTES: usize = 256;

impl Driver {
    /// The device with that ordinal. Makes no context.
    ///
    /// # Errors
    /// Code 101 (invalid device) when there is none; what the driver says.
    pub fn device(&'static self, ordinal: i32) -> Result<&'static Device> {
        let devices = match self.devices.get() {
            Some(devices) => devices,
            None => {
                // Outside the cell: two threads may both ask the driver, one list is kept.
                let list = self.list_devices()?;
                self.devices.get_or_init(|| list)
            }
        };
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| devices.get(index))
            .ok_or(DriverError::new("cuDeviceGet", CUDA_ERROR_INVALID_DEVICE))
    }

    fn list_devices(&'static self) -> Result<Box<[Device]>> {
        (0..self.device_count()?)
            .map(|ordinal| {
                Ok(Device {
                    driver: self,
                    ordinal,
                    handle: self.device_handle(ordinal)?,
                    properties: OnceCell::new(),
                    context: OnceCell::new(),
                    proofs: Mutex::new(Proofs::default()),
                    proof_ended: Condvar::new(),
                })
            })
            .collect()
    }

    /// The ordinal of the device whose context is current on this thread; `None` if none is.
    ///
    /// # Errors
    /// What the driver says.
    pub fn current_ordinal(&'static self) -> Result<Option<i32>> {
        let context = self.current_context()?;
        if context.is_null() {
            return Ok(None);
        }
        // Nearly always a primary context that we hold: no further call.
        if let Some(ordinal) = self.ordinal_of_held(context) {
            return Ok(Some(ordinal));
        }
        let handle = self.current_context_device()?;
        Ok(Some(self.ordinal_of_handle(handle)))
    }

    /// The ordinal of the device whose context is current on this thread, and 0 on a thread that has none, as in the CUDA
    /// runtime. Where the process sees one device only, the driver is not asked.
    ///
    /// # Errors
    /// What the driver says.
    #[inline]
    pub fn current_ordinal_or_first(&'static self) -> Result<i32> {
        if self.devices.get().is_some_and(|devices| devices.len() == 1) {
            return Ok(0);
        }
        Ok(self.current_ordinal()?.unwrap_or(0))
    }

    /// The ordinal of the device of a live context.
    pub(crate) fn ordinal_of_context(&'static self, context: CUcontext) -> Result<i32> {
        if let Some(ordinal) = self.ordinal_of_held(context) {
            return Ok(ordinal);
        }
        // SAFETY: the caller has the context from the driver, of a stream that is alive.
        unsafe { self.push_context(context) }?;
        let handle = self.current_context_device();
        if self.pop_context().is_err() {
            // Once more for a failure that passes: the caller's context must be current again.
            self.pop_context()?;
        }
        Ok(self.ordinal_of_handle(handle?))
    }

    fn ordinal_of_held(&self, context: CUcontext) -> Option<i32> {
        self.devices
            .get()?
            .iter()
            .find(|device| device.context.get().is_some_and(|held| held.raw == context))
            .map(|device| device.ordinal)
    }

    fn ordinal_of_handle(&self, handle: CUdevice) -> i32 {
        self.devices
            .get()
            .and_then(|devices| devices.iter().find(|device| device.handle == handle))
            // The driver numbers devices by their ordinals.
            .map_or(handle, |device| device.ordinal)
    }
}

/// The ordinal of the device whose context is current on this thread; `None` if none is. Loads the driver.
///
/// # Errors
/// Why there is no driver; what the driver says.
pub fn current_device() -> core::result::Result<Option<i32>, DeviceError> {
    Ok(Driver::get()?.current_ordinal()?)
}

/// Calls `f` with the device current; see [`Device::with_context`].
///
/// # Errors
/// Why the context cannot be made current; `f` is not called then.
pub fn with_context<R>(device: &'static Device, f: impl FnOnce() -> R) -> Result<R> {
    device.with_context(f)
}

impl Device {
    /// The device with that ordinal; loads the driver. Makes no context.
    ///
    /// # Errors
    /// Why there is no driver; code 101 when there is no such device.
    pub fn get(ordinal: i32) -> core::result::Result<&'static Device, DeviceError> {
        Ok(Driver::get()?.device(ordinal)?)
    }

    /// Number of devices that this process sees; loads the driver.
    ///
    /// # Errors
    /// Why there is no driver; what the driver says.
    pub fn count() -> core::result::Result<i32, DeviceError> {
        Ok(Driver::get()?.device_count()?)
    }

    /// Its driver.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Its ordinal, from 0.
    #[must_use]
    #[inline]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The driver's number of it.
    #[must_use]
    pub fn handle(&self) -> CUdevice {
        self.handle
    }

    /// What it is and can do. Asked once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn properties(&self) -> Result<&Properties> {
        if let Some(known) = self.properties.get() {
            return Ok(known);
        }
        let properties = Properties::of(self.driver(), self.handle)?;
        Ok(self.properties.get_or_init(|| properties))
    }

    // ---------------------------------------------------------------------------------------------------------- context

    /// The primary context; made and retained at the first call.
    ///
    /// # Errors
    /// What the driver says. A failure is not kept: the next call tries again.
    #[inline]
    pub fn context(&self) -> Result<CUcontext> {
        match self.context.get() {
            Some(context) => Ok(context.raw),
            None => self.retain(),
        }
    }

    #[cold]
    fn retain(&self) -> Result<CUcontext> {
        let driver = self.driver();
        let raw = driver.primary_context_retain(self.handle)?;
        // SAFETY: retained just now.
        let id = unsafe { driver.context_id(raw) }.unwrap_or(0);
        let mut first = false;
        let kept = self.context.get_or_init(|| {
            first = true;
            Context { raw, id }
        });
        if !first {
            // SAFETY: another thread was first; this reference is one too many.
            let _ = unsafe { driver.primary_context_release(self.handle) };
        }
        Ok(kept.raw)
    }

    /// Whether the primary context that was retained still is the one it was: false after somebody reset or destroyed
    /// it. What was made in it is gone then, and its handles must not be used. True before the first use.
    ///
    /// # Errors
    /// What the driver says.
    pub fn context_is_alive(&self) -> Result<bool> {
        let Some(context) = self.context.get() else {
            return Ok(true);
        };
        let driver = self.driver();
        if context.id == 0 {
            return Ok(driver.primary_context_state(self.handle)?.1);
        }
        // One question is enough (measured on CUDA 13): while the context is gone the driver answers 709, and once it was
        // made anew, with another number.
        // SAFETY: the driver keeps one address for the primary context of a device, whether the context exists or not.
        match unsafe { driver.context_id(context.raw) } {
            Ok(id) => Ok(id == context.id),
            Err(error) if error.is_context_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the device current on this thread until the guard is dropped. One query (14 ns) when it is already.
    ///
    /// # Errors
    /// Why the context cannot be made or made current.
    #[inline]
    pub fn enter(&self) -> Result<Current> {
        let context = self.context()?;
        let driver = self.driver();
        let switched = driver.current_context()? != context;
        if switched {
            // SAFETY: retained for the life of the process.
            unsafe { driver.push_context(context) }?;
        }
        Ok(Current {
            driver,
            pushed: if switched { context } else { core::ptr::null_mut() },
            on_this_thread: PhantomData,
        })
    }

    /// Calls `f` with the device current on this thread; what was current before is current again afterwards, also when
    /// `f` unwinds.
    ///
    /// # Errors
    /// Why the context cannot be made current; `f` is not called then.
    pub fn with_context<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let _current = self.enter()?;
        Ok(f())
    }

    /// Calls `f` with the device current and captures of other streams protected.
    fn quietly<R>(&self, f: impl FnOnce(&'static Driver) -> Result<R>) -> Result<R> {
        let driver = self.driver();
        let _current = self.enter()?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        f(driver)
    }

    // ----------------------------------------------------------------------------------------------------------- memory

    /// Allocates plain memory of this device; usable on any stream at return.
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        self.quietly(|driver| driver.mem_alloc(bytes))
    }

    /// Frees memory of [`alloc`](Self::alloc) or [`alloc_managed`](Self::alloc_managed). Waits for all work of the device.
    ///
    /// # Safety
    ///
    /// Nobody uses the memory from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn free(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: by this function's contract.
        self.quietly(|driver| unsafe { driver.mem_free(address) })
    }

    /// Allocates managed memory on this device.
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn alloc_managed(&self, bytes: usize) -> Result<CUdeviceptr> {
        self.quietly(|driver| driver.mem_alloc_managed(bytes))
    }

    /// Allocates pinned host memory in the context of this device.
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn host_alloc(&self, bytes: usize, flags: HostFlags) -> Result<*mut c_void> {
        self.quietly(|driver| driver.host_alloc(bytes, flags))
    }

    /// Frees memory of [`host_alloc`](Self::host_alloc).
    ///
    /// # Safety
    ///
    /// The address came from there, and nobody, the device included, uses the memory from now on.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn host_free(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: by this function's contract.
        self.quietly(|driver| unsafe { driver.host_free(address) })
    }

    /// Free and total memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.quietly(|driver| driver.mem_info())
    }

    /// Waits for all work of this device's context with `cuCtxSynchronize`, which *ends captures* in it.
    /// [`wait_for_all_work`](Self::wait_for_all_work) does not.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        self.driver().synchronize_context()
    }

    // ------------------------------------------------------------------------------------------------------ device proof

    /// Makes sure that the block which [`wait_for_all_work`](Self::wait_for_all_work) frees is there, so that it works
    /// when the device has no free memory.
    ///
    /// # Errors
    /// [Out of memory](DriverError::is_out_of_memory); what the driver says.
    pub fn prepare_wait(&self) -> Result<()> {
        if self.proofs.lock().spare.is_some() {
            return Ok(());
        }
        self.refuse_dead()?;
        self.keep_spare(self.alloc(SPARE_BYTES)?);
        Ok(())
    }

    /// Keeps a block as the spare, or frees it if there is one.
    fn keep_spare(&self, block: CUdeviceptr) {
        {
            let mut proofs = self.proofs.lock();
            if proofs.spare.is_none() {
                proofs.spare = Some(block);
                return;
            }
        }
        // SAFETY: made for this purpose; nobody else has its address. A failure loses 256 bytes.
        let _ = unsafe { self.free(block) };
    }

    /// The device proof: returns when all work that was queued on any stream of this device before the call is done, and
    /// leaves captures alone. It frees a plain block of 256 bytes, which the driver lets wait for everything (streams
    /// destroyed while busy and default streams of ended threads included), and takes a new one.
    ///
    /// One proof runs at a time, and threads that ask meanwhile share the next one. While it waits, other threads' driver
    /// calls may wait too: the caller holds no lock.
    ///
    /// # Errors
    /// What the driver says, faults of earlier work included; code 709 when somebody has reset the device. Nothing is
    /// proven then, and nothing is lost. Out of memory only where [`prepare_wait`](Self::prepare_wait) was not called.
    pub fn wait_for_all_work(&self) -> Result<()> {
        self.refuse_dead()?;
        let (number, spare) = {
            let mut proofs = self.proofs.lock();
            // One that has begun already may have missed work that was queued since.
            let needed = proofs.begun + 1;
            while proofs.running {
                self.proof_ended.wait(&mut proofs);
                if proofs.done >= needed {
                    return Ok(());
                }
            }
            proofs.running = true;
            proofs.begun += 1;
            (proofs.begun, proofs.spare.take())
        };
        let proved = self.free_spare(spare);
        {
            let mut proofs = self.proofs.lock();
            proofs.running = false;
            if proved.is_ok() {
                proofs.done = number;
            }
        }
        self.proof_ended.notify_all();
        proved
    }

    /// One proof, with no lock held.
    fn free_spare(&self, spare: Option<CUdeviceptr>) -> Result<()> {
        let block = match spare {
            Some(block) => block,
            None => self.alloc(SPARE_BYTES)?,
        };
        // SAFETY: a spare block holds nothing; it was taken out of the list, so that this call alone frees it.
        if let Err(error) = unsafe { self.free(block) } {
            // After a fault that stays the driver may have freed it all the same: the address is nobody's any more.
            if !error.is_sticky() && !error.is_context_gone() {
                self.keep_spare(block);
            }
            return Err(error);
        }
        // The next one, while memory is there. A failure costs the next proof an allocation.
        if let Ok(next) = self.alloc(SPARE_BYTES) {
            self.keep_spare(next);
        }
        Ok(())
    }

    /// After a reset of the device (`cudaDeviceReset`) nothing that was made before exists any more: its addresses and
    /// handles may be somebody else's by now, and no driver call may name them.
    ///
    /// # Errors
    /// Code 709 then; what the driver says.
    pub fn refuse_dead(&self) -> Result<()> {
        if self.context_is_alive()? {
            return Ok(());
        }
        Err(DriverError::new("cuCtxGetId", CUDA_ERROR_CONTEXT_IS_DESTROYED))
    }
}

/// A device is current on this thread while this lives. Guards end in the reverse order in which they were made.
#[derive(Debug)]
#[must_use = "the device is current only while this lives"]
pub struct Current {
    driver: &'static Driver,
    /// What must be popped again; null when the device was current already.
    pushed: CUcontext,
    on_this_thread: PhantomData<*mut ()>,
}

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if self.pushed.is_null() || self.driver.pop_context().is_ok() {
            return;
        }
        // It fails when the process ends or is a forked child, or somebody destroyed the context meanwhile, which pops it.
        // Once more for a failure that passes, if the context is still there: what was current is the caller's business.
        if self.driver.current_context().is_ok_and(|now| now == self.pushed) {
            let _ = self.driver.pop_context();
        }
    }
}
