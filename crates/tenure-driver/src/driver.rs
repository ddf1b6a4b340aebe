//! A checked method for each driver call.
//!
//! ```text
//!   method --> may this process call? --> is the call there? --> count (if on) --> the driver --> code != 0: DriverError
//!               one load, 1 ns             one load              one load
//! ```
//!
//! The methods are as thin as that: they retry nothing, switch no context, take no lock. Calls that work on "the current
//! device" say so; [`crate::Device`] has the forms that switch.
//!
//! # What is `unsafe`
//!
//! * Addresses are numbers. Giving one *back*, and copying to or from one, is `unsafe`, since somebody else may use it.
//! * Handles given to safe methods are live ones: [`RawStream`](crate::RawStream) promises that where it is made, the
//!   owning types ([`crate::Stream`], [`crate::Event`], [`crate::DriverPool`]) by their lifetime. A driver call on a
//!   destroyed stream is a segmentation fault.

mod context;
mod graph;
mod memory;
mod pages;
mod pools;
mod stream;

use core::ffi::CStr;

use crate::error::DriverError;
use crate::process;
use crate::sync::OnceCell;
use crate::sys::*;
use crate::table::{CallId, Table};

pub use graph::CaptureInfo;
pub use memory::{HostFlags, MemoryInfo, PointerInfo};

type Result<T> = core::result::Result<T, DriverError>;

/// Makes a driver call; an `unsafe` expression of type `Result<(), DriverError>`.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $driver.entry($crate::table::CallId::$name, $driver.table.$name) {
            Ok(function) => $crate::error::DriverError::check($crate::table::CallId::$name, function($($argument),*)),
            Err(error) => Err(error),
        }
    };
}
pub(crate) use call;

/// The driver of this process: CUDA's, or the simulated device behind the same table.
///
/// Got from [`Driver::get`]. Whatever uses it asks for properties ([`crate::Device::properties`]), never for the kind:
/// [`is_simulated`](Driver::is_simulated) is for what is printed, and for refusing to give addresses to other libraries.
#[derive(Debug)]
pub struct Driver {
    table: Table,
    version: OnceCell<i32>,
    library: String,
    by_hand: bool,
    simulated: bool,
    pub(crate) devices: OnceCell<Box<[crate::device::Device]>>,
}

impl Driver {
    pub(crate) fn new(table: Table, by_hand: bool, library: String, simulated: bool) -> Self {
        Self { table, version: OnceCell::new(), library, by_hand, simulated, devices: OnceCell::new() }
    }

    /// The function to call, if this process may call it and the driver has it.
    #[inline]
    fn entry<F: Copy>(&self, call: CallId, function: Option<F>) -> Result<F> {
        if let Err(why) = process::check() {
            return Err(DriverError::unusable(call.name(), why));
        }
        match function {
            Some(function) => {
                crate::calls::note(call);
                Ok(function)
            }
            None => Err(DriverError::absent(call.name())),
        }
    }

    /// The table itself, for a call that has no method here. Such a call is made without any of this module's checks.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether the driver has the call of that name.
    #[must_use]
    pub fn has(&self, call: &str) -> bool {
        self.table.has(call)
    }

    /// What was loaded, for people to read.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Whether this is the simulated device: its addresses are host memory, which no other GPU library can use.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Whether the user chose this device (`TENURE_DEVICE=sim`, [`crate::load::prefer_sim`]); true for CUDA.
    #[must_use]
    pub fn is_chosen_by_hand(&self) -> bool {
        self.by_hand
    }

    /// The newest CUDA that the driver serves, as 1000 x major + 10 x minor.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version.get().copied().unwrap_or(0)
    }

    pub(crate) fn init(&self) -> Result<()> {
        // SAFETY: takes a number; the only flag value that exists is 0.
        unsafe { call!(self, cuInit(0)) }
    }

    pub(crate) fn read_version(&self) -> Result<()> {
        let mut version = 0;
        // SAFETY: the driver writes one integer.
        unsafe { call!(self, cuDriverGetVersion(&mut version)) }?;
        self.version.get_or_init(|| version);
        Ok(())
    }

    /// The driver's name of a code.
    pub(crate) fn error_name(&self, code: CUresult) -> Option<&'static str> {
        let mut text = core::ptr::null();
        // SAFETY: the driver writes the address of a text of its own.
        unsafe { call!(self, cuGetErrorName(code, &mut text)) }.ok()?;
        // SAFETY: the address came from the driver.
        unsafe { static_text(text) }
    }

    /// The driver's description of a code.
    pub(crate) fn error_text(&self, code: CUresult) -> Option<&'static str> {
        let mut text = core::ptr::null();
        // SAFETY: the driver writes the address of a text of its own.
        unsafe { call!(self, cuGetErrorString(code, &mut text)) }.ok()?;
        // SAFETY: the address came from the driver.
        unsafe { static_text(text) }
    }
}

/// A text in the driver's constant data.
///
/// # Safety
///
/// `text` is null or the address of a C string that lives as long as the process: the driver is never unloaded.
unsafe fn static_text(text: *const c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and a constant C string by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok().filter(|text| !text.is_empty())
}
