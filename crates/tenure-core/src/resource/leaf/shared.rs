//! The process's one resource of each plain kind.
//!
//! Made at the first use, never destroyed: a handle that a caller drops is one of several. Making one calls no driver
//! function; the first allocation does.

use crate::error::Result;
use crate::resource::Resource;
use crate::resource::leaf::{Cuda, Managed, Pinned, System};
use crate::sync::OnceCell;

static CUDA: OnceCell<Resource> = OnceCell::new();
static MANAGED: OnceCell<Resource> = OnceCell::new();
static PINNED: OnceCell<Resource> = OnceCell::new();
static SYSTEM: OnceCell<Resource> = OnceCell::new();

/// Plain device memory, on the device of each request's stream.
///
/// # Errors
/// Only where the number of live resources of the process is at its bound.
pub fn cuda() -> Result<Resource> {
    plain().cloned()
}

/// The same without a reference of one's own: what the table falls back to.
pub(crate) fn plain() -> Result<&'static Resource> {
    CUDA.get_or_try_init(|| Resource::new(Cuda::default()))
}

/// Managed memory.
///
/// # Errors
/// Only where the number of live resources of the process is at its bound.
pub fn managed() -> Result<Resource> {
    MANAGED.get_or_try_init(|| Resource::new(Managed::default())).cloned()
}

/// Page-locked host memory.
///
/// # Errors
/// Only where the number of live resources of the process is at its bound.
pub fn pinned() -> Result<Resource> {
    PINNED.get_or_try_init(|| Resource::new(Pinned::default())).cloned()
}

/// Pageable host memory.
///
/// # Errors
/// Only where the number of live resources of the process is at its bound.
pub fn system() -> Result<Resource> {
    SYSTEM.get_or_try_init(|| Resource::new(System::default())).cloned()
}
