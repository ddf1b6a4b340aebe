//! A device that is lost: by a fault that stays, and by somebody's reset. Each in its own process state: a device that
//! was reset is dead to tenure for the life of the process, so that the reset uses one of its own.

use parking_lot::{Mutex, MutexGuard};
use tenure_core::error::{Error, Result};
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_driver::sim::{self, Config};
use tenure_driver::{Driver, RawStream};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> (MutexGuard<'static, ()>, &'static Driver) {
    let guard = ONE_AT_A_TIME.lock();
    let _ = sim::configure(Config { devices: 4, memory: 64 << 20 });
    (guard, tenure_driver::load::prefer_sim().expect("the simulated device"))
}

fn resources(device: i32) -> Vec<Resource> {
    let options = AsyncOptions { device: Some(device), ..AsyncOptions::default() };
    let pool = Resource::new(AsyncPool::new(options).expect("a pool")).expect("made");
    [shared::cuda(), shared::managed(), shared::pinned(), shared::system()]
        .map(|r| r.expect("made"))
        .into_iter()
        .chain([pool])
        .collect()
}

fn object(stream: &StreamObject) -> StreamRef<'_> {
    StreamRef { raw: stream.raw(), object: Some(stream), stored: false }
}

fn code_of(result: Result<u64>) -> i32 {
    match result {
        Err(Error::Device(e)) => e.code,
        other => panic!("not a device's error: {other:?}"),
    }
}

#[test]
fn after_a_fault_that_stays_allocations_say_so_and_frees_only_book() {
    let (_guard, _) = alone();
    const ILLEGAL_ADDRESS: i32 = 700;
    let stream = StreamObject::create(1, true).expect("a stream");
    let resources = resources(1);
    let blocks: Vec<_> = resources.iter().map(|r| r.allocate(1000, 256, object(&stream)).expect("room")).collect();
    let stored = StreamRef { raw: stream.raw(), object: None, stored: true };
    let more: Vec<_> = resources.iter().map(|r| r.allocate(1000, 256, object(&stream)).expect("room")).collect();
    sim::fault(1, ILLEGAL_ADDRESS).expect("there is a device 1");
    for ((resource, ptr), other) in resources.iter().zip(&blocks).zip(&more) {
        let kind = resource.body().kind();
        if kind != "system" {
            let code = code_of(resource.allocate(1000, 256, object(&stream)));
            assert_eq!(code, ILLEGAL_ADDRESS, "{kind}");
        }
        let live = resource.body().info().live_count;
        resource.deallocate(*ptr, 1000, 256, object(&stream)).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let on = if kind == "cuda_async" { object(&stream) } else { stored };
        resource.deallocate(*other, 1000, 256, on).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(resource.body().info().live_count, live - 2, "{kind}");
        assert!(matches!(resource.deallocate(*ptr, 1000, 256, object(&stream)), Err(Error::Misuse(_))), "{kind}");
        // The other devices are none of its business.
        if kind != "cuda_async" {
            let here = StreamRef::raw(RawStream::NULL);
            let ptr = resource.allocate(1000, 256, here).expect("device 0 is well");
            resource.deallocate(ptr, 1000, 256, here).expect("mine");
        }
    }
    drop(resources);
    sim::fault(1, 0).expect("healed");
}

#[test]
fn after_a_reset_nothing_names_what_is_gone() {
    let (_guard, driver) = alone();
    const GONE: i32 = tenure_driver::sys::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    let stream = StreamObject::create(2, true).expect("a stream");
    let resources = resources(2);
    let blocks: Vec<_> = resources.iter().map(|r| r.allocate(1000, 256, object(&stream)).expect("room")).collect();
    // What cudaDeviceReset amounts to: the context goes, whoever holds it.
    let handle = driver.device(2).expect("there").handle();
    // SAFETY: this is the misbehaviour under test.
    unsafe { driver.primary_context_release(handle) }.expect("released");
    for (resource, ptr) in resources.iter().zip(&blocks) {
        let kind = resource.body().kind();
        if kind != "system" {
            assert_eq!(code_of(resource.allocate(1000, 256, object(&stream))), GONE, "{kind}");
        }
        let live = resource.body().info().live_count;
        let before = ["cuMemFree", "cuMemFreeAsync", "cuMemFreeHost", "cuStreamSynchronize"].map(sim::calls);
        let raw = StreamRef { raw: stream.raw(), object: None, stored: true };
        let named = if kind == "cuda_async" { StreamRef::DEFAULT } else { raw };
        resource.deallocate(*ptr, 1000, 256, named).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(resource.body().info().live_count, live - 1, "{kind}");
        let after = ["cuMemFree", "cuMemFreeAsync", "cuMemFreeHost", "cuStreamSynchronize"].map(sim::calls);
        assert_eq!(after, before, "{kind}: a driver call named what is gone");
    }
    drop(resources);
    // Its stream went with the context: nobody may destroy it.
    std::mem::forget(stream);
}
