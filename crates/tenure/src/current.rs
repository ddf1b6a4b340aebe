//! The table of current resources: one per process, whatever language asks or sets.
//!
//! [`get`] gives an owning reference, [`set`] the previous one; replacing an entry never harms memory that is handed out.
//! [`using`] binds an entry for this thread until its guard is dropped, on every way out.
//!
//! Code that allocates should take a resource from its caller. Where it cannot, it reads the table once, first of all, and
//! passes that very resource on to whatever it calls.
//!
//! Unsafe in this file: calls through the table of functions, and the function that it calls back.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use tenure_abi::*;

use crate::api;
use crate::device::Device;
use crate::error::{Result, check};
use crate::owner::{self, quietly};
use crate::resource::Resource;

/// The device that is current.
const CURRENT_DEVICE: i32 = -1;

/// The current resource of the device that is current, scopes of this thread included.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library; what loading the driver says.
///
/// # Examples
/// ```
/// use tenure::{Device, Pool, current};
///
/// let pool = Pool::builder(&Device::current()?).build()?;
/// let previous = current::set(&pool)?;
/// assert_eq!(&current::get()?, pool.resource());
/// current::set(&previous)?;
/// {
///     let _scope = current::using(&pool)?;
///     assert_eq!(&current::get()?, pool.resource());
/// }
/// assert_eq!(current::get()?, previous);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn get() -> Result<Resource> {
    get_of(CURRENT_DEVICE)
}

/// The current resource of `device`, scopes of this thread included.
///
/// # Errors
/// As [`get`].
pub fn get_for(device: &Device) -> Result<Resource> {
    get_of(device.ordinal())
}

fn get_of(device: i32) -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, out| unsafe { (api.current_get)(device, out) })
}

/// Replaces the current resource of the device that is current; returns the previous one. Inside a scope of this thread the
/// scope's binding is replaced, not the process's entry.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for a resource of another device; nothing changes then.
pub fn set(resource: &Resource) -> Result<Resource> {
    set_of(CURRENT_DEVICE, resource)
}

/// As [`set`], of `device`.
///
/// # Errors
/// As there.
pub fn set_for(device: &Device, resource: &Resource) -> Result<Resource> {
    set_of(device.ordinal(), resource)
}

fn set_of(device: i32, resource: &Resource) -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, previous| unsafe { (api.current_set)(device, resource.as_raw(), previous) })
}

/// Puts the plain device resource back for the device that is current; returns the previous one.
///
/// # Errors
/// As [`get`].
pub fn reset() -> Result<Resource> {
    reset_of(CURRENT_DEVICE)
}

/// As [`reset`], of `device`.
///
/// # Errors
/// As there.
pub fn reset_for(device: &Device) -> Result<Resource> {
    reset_of(device.ordinal())
}

fn reset_of(device: i32) -> Result<Resource> {
    // SAFETY: the pointer is valid for writing.
    Resource::made(|api, previous| unsafe { (api.current_reset)(device, previous) })
}

/// A binding of [`using`], which ends when this is dropped, in any order among others and on any thread.
#[must_use = "the scope ends when its guard is dropped"]
pub struct ScopeGuard {
    api: &'static tenure_api,
    scope: tenure_scope,
}

/// Binds the current resource of the device that is current, for this thread, until the guard is dropped.
///
/// # Errors
/// As [`set`].
pub fn using(resource: &Resource) -> Result<ScopeGuard> {
    using_of(CURRENT_DEVICE, resource)
}

/// As [`using`], of `device`.
///
/// # Errors
/// As there.
pub fn using_for(device: &Device, resource: &Resource) -> Result<ScopeGuard> {
    using_of(device.ordinal(), resource)
}

fn using_of(device: i32, resource: &Resource) -> Result<ScopeGuard> {
    let api = api()?;
    let mut scope = 0;
    // SAFETY: the pointer is valid for writing.
    check(api, unsafe { (api.scope_enter)(device, resource.as_raw(), &mut scope) })?;
    Ok(ScopeGuard { api, scope })
}

impl std::fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScopeGuard({:#x})", self.scope)
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        // SAFETY: the scope is left once. A failure (a forked child) leaves nothing that could be put right.
        unsafe { (self.api.scope_exit)(self.scope) };
    }
}

/// A registration of [`listen`], which ends when this is dropped.
#[must_use = "the listener is removed when this is dropped"]
pub struct Listener {
    api: &'static tenure_api,
    listener: tenure_listener,
}

type Listen = Box<dyn Fn(Device, &Resource, u64) + Send + Sync>;

/// Calls `listener` with device, resource and version whenever an entry changes: without a lock held, one call at a time
/// per device, with the newest state. The version rises with each change.
///
/// Dropping the result removes the listener; a call in flight on another thread may still end after that.
///
/// # Errors
/// [`Error::Load`](crate::Error::Load) without a library.
pub fn listen(listener: impl Fn(Device, &Resource, u64) + Send + Sync + 'static) -> Result<Listener> {
    let api = api()?;
    let listener: Listen = Box::new(listener);
    let owner = owner::keep(listener);
    let mut out = 0;
    // SAFETY: the owner keeps what the listener reads alive; the pointer is valid for writing.
    let status = unsafe { (api.listener_add)(Some(call), owner, &mut out) };
    // SAFETY: kept for this call, of this type.
    unsafe { owner::settle::<Listen>(api, status, owner)? };
    Ok(Listener { api, listener: out })
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({:#x})", self.listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: the listener is removed once.
        unsafe { (self.api.listener_remove)(self.listener) };
    }
}

unsafe extern "C" fn call(context: *mut c_void, device: i32, resource: tenure_resource, version: u64) {
    let Some(api) = crate::load::loaded() else { return };
    // The reference is borrowed for the call.
    let resource = ManuallyDrop::new(Resource::owned(api, resource));
    // SAFETY: the library passes the context that `listen` made, which its owner keeps alive.
    let listener = unsafe { owner::value::<Listen>(context) };
    let Some(listener) = listener else { return };
    quietly(|| listener(Device::known(device), &resource, version));
}
