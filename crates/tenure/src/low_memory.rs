//! Asking the rest of the process for memory, and being asked.
//!
//! Where a pool is about to fail it first makes the other pools of the device give back what is idle, then calls the hooks
//! of this module, then fails. The other way round, a library that needs memory calls [`give_back`].
//!
//! Unsafe in this file: calls through the table.

use std::ffi::c_void;

use tenure_abi::*;

use crate::callbacks::enter;
use crate::device::Device;
use crate::error::{Result, check};
use crate::{api, owner};

/// A registration of [`on_low_memory`], which ends when this is dropped.
#[must_use = "the hook is removed when this is dropped"]
pub struct Hook {
    api: &'static tenure_api,
    hook: tenure_low_memory_hook,
}

type Function = Box<dyn Fn(Device, u64) -> Result<u64> + Send + Sync>;

/// Calls `hook` with a device and the bytes that are wanted there whenever a pool is about to fail; it says how many bytes it
/// freed. Without a lock, on any thread, perhaps on several at once; it may free, allocate and register, and what fails in
/// here calls nobody. An error or a panic of it is noted and stops nothing.
///
/// Dropping the result removes the hook; a call in flight on another thread may still end after that.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library.
///
/// # Examples
/// ```
/// use tenure::low_memory::on_low_memory;
///
/// let hook = on_low_memory(|device, bytes| {
///     // Free what a cache of yours holds on `device`.
///     let _ = (device, bytes);
///     Ok(0)
/// })?;
/// drop(hook);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn on_low_memory(hook: impl Fn(Device, u64) -> Result<u64> + Send + Sync + 'static) -> Result<Hook> {
    let api = api()?;
    let function: Function = Box::new(hook);
    let owner = owner::keep(function);
    let mut out = 0;
    // SAFETY: the owner keeps what the hook reads alive; the pointer is valid for writing.
    let status = unsafe { (api.low_memory_add)(Some(call), owner, &mut out) };
    // SAFETY: kept for this call, of this type.
    unsafe { owner::settle::<Function>(api, status, owner)? };
    Ok(Hook { api, hook: out })
}

/// Makes the pools of `device` give back idle memory until `bytes` bytes went, or all that is idle with 0; says how many did.
/// May wait for the device. Release thresholds do not count.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for an unknown device, [`Error::Load`](crate::Error::Load) without a library.
pub fn give_back(device: &Device, bytes: u64) -> Result<u64> {
    let api = api()?;
    let mut released = 0;
    // SAFETY: the pointer is valid for writing.
    check(api, unsafe { (api.low_memory)(device.ordinal(), bytes, &mut released) })?;
    Ok(released)
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({:#x})", self.hook)
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // SAFETY: the hook is removed once.
        unsafe { (self.api.low_memory_remove)(self.hook) };
    }
}

unsafe extern "C" fn call(context: *mut c_void, device: i32, bytes: u64, released: *mut u64) -> tenure_status {
    enter(|| {
        // SAFETY: the library passes the context that `on_low_memory` made, which its owner keeps alive.
        let Some(hook) = (unsafe { owner::value::<Function>(context) }) else { return Ok(()) };
        let freed = hook(Device::known(device), bytes)?;
        // SAFETY: valid for writing, says the border.
        unsafe { released.write(freed) };
        Ok(())
    })
}
