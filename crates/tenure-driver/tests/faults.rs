//! Each driver call behind the owning types fails once: the error names it, nothing is kept, and the next try works.

use tenure_driver::sys::*;
use tenure_driver::{
    AddressRange, Device, DriverError, DriverPool, Event, HostFlags, PhysicalPages, RelaxedCapture, Sharing, Stream,
    load, sim,
};

type Outcome = Result<(), DriverError>;

fn device() -> &'static Device {
    load::prefer_sim().unwrap().device(0).unwrap()
}

/// `action` with `call` failing: that very error comes out, free memory and current context are as before, and it works
/// when tried again.
fn once(call: &'static str, code: CUresult, action: &dyn Fn() -> Outcome) {
    let state = || {
        let info = device().memory_info().unwrap();
        let mode = device().driver().exchange_capture_mode(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        (info.free, device().driver().current_ordinal().unwrap(), mode)
    };
    action().unwrap_or_else(|error| panic!("{call}: {error}"));
    let before = state();
    sim::fail_next(call, code, 0).unwrap();
    let error = action().expect_err(call);
    assert_eq!(sim::fail_clear(), 0, "{call} was called");
    assert_eq!((error.call, error.code), (call, code));
    assert_eq!(error.is_out_of_memory(), code == CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(state(), before, "{call} left something");
    action().unwrap_or_else(|error| panic!("{call} again: {error}"));
    assert_eq!(state(), before, "{call} left something");
}

fn plain() -> Outcome {
    let block = device().alloc(1 << 21)?;
    // SAFETY: never used.
    unsafe { device().free(block) }
}

fn host() -> Outcome {
    let block = device().host_alloc(4096, HostFlags::default())?;
    // SAFETY: never used.
    unsafe { device().host_free(block) }
}

fn managed() -> Outcome {
    let block = device().alloc_managed(4096)?;
    // SAFETY: never used.
    unsafe { device().free(block) }
}

fn stream() -> Outcome {
    let stream = Stream::new(device(), true)?;
    let event = Event::new(device())?;
    // SAFETY: not used after the stream.
    event.record(unsafe { stream.raw() })?;
    stream.wait_event(&event)?;
    event.query()?;
    event.synchronize()?;
    stream.synchronize()
}

fn pages() -> Outcome {
    let unit = PhysicalPages::granularity(device(), Sharing::default())?;
    let range = AddressRange::reserve(device(), unit, 0)?;
    let pages = PhysicalPages::create(device(), unit, Sharing::default())?;
    range.map(0, &pages)?;
    let access = range.set_access(0, unit, &[0]);
    // SAFETY: never used.
    let unmapped = unsafe { range.unmap(0, unit) };
    if unmapped.is_err() {
        // So that the range can go.
        // SAFETY: as above.
        unsafe { range.unmap(0, unit) }?;
    }
    access.and(unmapped)
}

fn pool() -> Outcome {
    let pool = DriverPool::create(device(), 0, Sharing::default())?;
    pool.set_release_threshold(0)?;
    let stream = Stream::new(device(), true)?;
    // SAFETY: not used after the stream.
    let raw = unsafe { stream.raw() };
    let block = pool.alloc(1 << 20, raw)?;
    // SAFETY: never used.
    let freed = unsafe { pool.free(block, raw) };
    if freed.is_err() {
        // SAFETY: as above.
        unsafe { pool.free(block, raw) }?;
    }
    stream.synchronize()?;
    let attribute = pool.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT).map(|_| ());
    pool.trim(0).and(attribute).and(freed)
}

fn proof() -> Outcome {
    device().wait_for_all_work()
}

#[test]
fn every_call_may_fail() {
    // The first failure of all: nothing is kept of a context that could not be made.
    let fresh = device();
    sim::fail_next("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, 0).unwrap();
    assert!(fresh.context().unwrap_err().is_out_of_memory());
    assert!(fresh.enter().is_ok());
    for call in ["cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceTotalMem", "cuDeviceGetAttribute"] {
        sim::fail_next(call, CUDA_ERROR_UNKNOWN, 0).unwrap();
        assert_eq!(fresh.properties().unwrap_err().call, call);
    }
    assert!(fresh.properties().is_ok());
    fresh.prepare_wait().unwrap();

    once("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, &plain);
    once("cuMemAlloc", CUDA_ERROR_LAUNCH_FAILED, &plain);
    once("cuCtxGetCurrent", CUDA_ERROR_UNKNOWN, &plain);
    once("cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT, &plain);
    once("cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN, &plain);
    once("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, &host);
    once("cuMemAllocManaged", CUDA_ERROR_OUT_OF_MEMORY, &managed);
    for call in [
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamSynchronize",
    ] {
        once(call, CUDA_ERROR_UNKNOWN, &stream);
    }
    for call in [
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
    ] {
        once(call, CUDA_ERROR_OUT_OF_MEMORY, &pages);
    }
    for call in [
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemPoolGetAttribute",
    ] {
        once(call, CUDA_ERROR_OUT_OF_MEMORY, &pool);
    }
    // The proof works without free memory, as long as the spare block is there.
    sim::fail_next("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0).unwrap();
    proof().unwrap();
    assert_eq!(sim::fail_clear(), 0, "the new spare was asked for");
    proof().unwrap();
    sim::fail_next("cuMemFree", CUDA_ERROR_LAUNCH_FAILED, 0).unwrap();
    let fault = proof().unwrap_err();
    assert!(fault.is_sticky() && fault.call == "cuMemFree");
    proof().unwrap();

    // Everything is nested rightly after all of that.
    let _outer = RelaxedCapture::enter(device().driver()).unwrap();
    plain().unwrap();
}
