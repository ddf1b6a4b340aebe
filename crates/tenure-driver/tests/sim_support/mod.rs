//! What the tests of the simulated device share: a machine of known size and calls through the table.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::sync::Once;
use std::time::Duration;

use tenure_driver::sim::{self, Config, TestLock};
use tenure_driver::sys::*;
use tenure_driver::table::Table;

/// Memory of each device in these tests, in bytes.
pub const MEMORY: u64 = 256 << 20;
pub const MIB: usize = 1 << 20;

/// Calls a function of the table.
#[macro_export]
macro_rules! cu {
    ($t:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let f = $t.$name.expect("the simulated device has every call");
        // SAFETY: the tests pass pointers to live values of the right type, or null on purpose.
        unsafe { f($($arg),*) }
    }};
}

/// [`cu`] that must succeed.
#[macro_export]
macro_rules! ok {
    ($t:expr, $name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!($crate::cu!($t, $name($($arg),*)), 0, stringify!($name))
    };
}

/// A machine of two devices, alone for this test, with the context of device 0 current.
pub fn setup() -> (Table, TestLock) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| sim::configure(Config { devices: 2, memory: MEMORY }).unwrap());
    let lock = sim::test_lock();
    let t = sim::table();
    ok!(t, cuInit(0));
    enter(&t, 0);
    // The default pool gives back what another test left in it.
    ok!(t, cuCtxSynchronize());
    (t, lock)
}

/// Makes the context of a device current in this thread.
pub fn enter(t: &Table, device: i32) -> CUcontext {
    let mut c = std::ptr::null_mut();
    ok!(t, cuDevicePrimaryCtxRetain(&mut c, device));
    ok!(t, cuCtxSetCurrent(c));
    c
}

pub fn stream(t: &Table, flags: u32) -> CUstream {
    let mut s = std::ptr::null_mut();
    ok!(t, cuStreamCreate(&mut s, flags));
    s
}

pub fn event(t: &Table) -> CUevent {
    let mut e = std::ptr::null_mut();
    ok!(t, cuEventCreate(&mut e, 0));
    e
}

pub fn alloc(t: &Table, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(t, cuMemAlloc(&mut p, bytes));
    p
}

pub fn alloc_async(t: &Table, bytes: usize, s: CUstream) -> CUdeviceptr {
    let mut p = 0;
    ok!(t, cuMemAllocAsync(&mut p, bytes, s));
    p
}

/// Free bytes of the current device.
pub fn free_bytes(t: &Table) -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(t, cuMemGetInfo(&mut free, &mut total));
    assert_eq!(total as u64, MEMORY);
    free
}

pub fn busy(s: CUstream, ms: u64) {
    sim::busy(s, Duration::from_millis(ms)).unwrap();
}

/// The bytes of device memory, as the host sees them.
pub fn bytes(at: CUdeviceptr, len: usize) -> Vec<u8> {
    // SAFETY: the tests pass live memory of the simulated device, which is host memory, and wait for what writes it.
    unsafe { std::slice::from_raw_parts(at as usize as *const u8, len) }.to_vec()
}

pub fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

pub fn prop(device: i32) -> CUmemAllocationProp {
    let mut p: CUmemAllocationProp = zeroed();
    p.type_ = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = location(device);
    p
}

pub fn access(device: i32) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}
