//! Bad input gives a clear error, and nothing changes.

mod common;

use std::ffi::c_void;

use common::{alone, second_device, simulated, skip_unless};
use tenure::{
    Callbacks, Device, DeviceBuffer, DeviceVec, Error, Limiting, Pool, Request, Resource, Result, Stream, StreamRef,
    cuda, current, misuse_count,
};

/// Any error but a defect, with something to read.
fn assert_clear(what: &str, error: &Error) {
    assert!(!matches!(error, Error::Internal(_) | Error::WouldBlock(_)), "{what}: {error:?}");
    assert!(error.to_string().len() > 10, "{what}: {error}");
}

#[test]
fn sizes_near_the_end_of_the_address_space() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let limit = Limiting::new(&pool, u64::MAX).unwrap();
    let before = pool.info().unwrap();
    let resources: [&Resource; 6] = [
        &pool,
        &limit,
        &cuda().unwrap(),
        &tenure::managed().unwrap(),
        &tenure::pinned().unwrap(),
        &tenure::system().unwrap(),
    ];
    for resource in resources {
        for bytes in [usize::MAX, usize::MAX - 255, usize::MAX / 2 + 1, 1 << 60, 1 << 50] {
            let what = format!("{bytes} of {resource:?}");
            assert_clear(&what, &DeviceBuffer::new_in(bytes, &stream, resource).unwrap_err());
            assert_clear(&what, &resource.allocate(bytes, &stream).unwrap_err());
            assert_clear(&what, &resource.allocate_sync(bytes, 256).unwrap_err());
        }
    }
    assert_eq!(pool.info().unwrap(), before);
    // Such a refusal has the figures of any other.
    let held = DeviceBuffer::new_in(1 << 20, &stream, &pool).unwrap();
    for error in [
        pool.allocate(usize::MAX, &stream).unwrap_err(),
        pool.allocate_many(&[1, usize::MAX], &stream).unwrap_err(),
        DeviceBuffer::new_in(usize::MAX, &stream, &pool).unwrap_err(),
    ] {
        let Error::OutOfMemory(oom) = error else { panic!("{error:?}") };
        assert_eq!((oom.requested, oom.live, oom.resource.as_str()), (u64::MAX, 1 << 20, "pool > cuda"));
        assert!(oom.reserved >= oom.live && oom.driver_total > 0 && oom.message.contains("does not have as much"));
    }
    drop(held);
    let error = DeviceVec::<u64>::new_in(usize::MAX / 8 + 1, &stream, &pool).unwrap_err();
    assert!(matches!(&error, Error::Invalid(m) if m.contains("elements")), "{error:?}");
    let error = DeviceVec::<u64>::new_in(usize::MAX / 8, &stream, &pool).unwrap_err();
    assert_clear("elements", &error);
    let mut vec = DeviceVec::from_host_in(&[1u64], &stream, &pool).unwrap();
    assert!(vec.resize(usize::MAX / 4, &stream).is_err());
    assert!(vec.reserve(usize::MAX / 16, &stream).is_err());
    assert_eq!(vec.to_host(&stream).unwrap(), [1]);
}

#[test]
fn alignments() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    for alignment in [0, 3, 257, 1 << 40, usize::MAX] {
        let error = pool.allocate_aligned(100, alignment, &stream).unwrap_err();
        assert!(matches!(&error, Error::Invalid(m) if m.contains(&alignment.to_string())), "{alignment}: {error:?}");
        assert!(DeviceBuffer::new_aligned_in(100, alignment, &stream, &pool).is_err());
    }
    for alignment in [1, 2, 256, 4096, 1 << 20] {
        let buffer = DeviceBuffer::new_aligned_in(100, alignment, &stream, &pool).unwrap();
        assert_eq!(buffer.ptr().addr() % alignment, 0);
    }
}

#[test]
fn no_bytes_call_nobody() {
    /// Must not be asked for anything.
    struct Nothing;
    // SAFETY: it never returns memory.
    unsafe impl Callbacks for Nothing {
        fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<*mut c_void> {
            Err(Error::callback("asked"))
        }
        unsafe fn deallocate(&self, _: *mut c_void, _: &Request, _: StreamRef<'_>) -> Result<()> {
            Err(Error::callback("asked"))
        }
    }
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let resource = Resource::from_callbacks(Nothing).unwrap();
    let mut buffer = DeviceBuffer::new_in(0, &stream, &resource).unwrap();
    assert!(buffer.ptr().is_null() && buffer.is_empty());
    buffer.copy_from_host(&[], &stream).unwrap();
    buffer.fill(1, &stream).unwrap();
    assert!(buffer.copy_in(&stream, &resource).unwrap().ptr().is_null());
    assert!(resource.allocate(0, &stream).unwrap().is_null());
    // SAFETY: there is no memory.
    unsafe { resource.deallocate(std::ptr::null_mut(), 0, 256, &stream).unwrap() };
    let vec = DeviceVec::<f32>::from_host_in(&[], &stream, &resource).unwrap();
    assert!(vec.to_host(&stream).unwrap().is_empty());
    assert!(buffer.resize(1, &stream).is_err());
    assert!(buffer.is_empty());
}

#[test]
fn handles_that_are_none() {
    let _alone = alone();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let dead = pool.as_raw();
    drop(pool);
    for handle in [0, 1, 0xdead_beef, u64::MAX - 1, dead] {
        // SAFETY: handles that are none are errors.
        let (resource, buffer) = unsafe { (Resource::from_raw(handle), DeviceBuffer::from_handle(handle)) };
        assert!(matches!(resource, Err(Error::BadHandle(_))), "{handle:#x}: {resource:?}");
        assert!(matches!(buffer, Err(Error::BadHandle(_))), "{handle:#x}: {buffer:?}");
    }
    assert_eq!(Resource::from_id(u64::MAX - 7).unwrap(), None);
    assert_eq!(misuse_count().unwrap(), 0);
}

#[test]
fn devices_that_are_not_there() {
    let _alone = alone();
    let count = Device::count().unwrap();
    for ordinal in [-2, -1, count, i32::MAX, i32::MIN] {
        let error = Device::new(ordinal).unwrap_err();
        assert!(matches!(&error, Error::Invalid(m) if m.contains(&ordinal.to_string())), "{error:?}");
    }
}

#[test]
fn a_stream_of_another_device() {
    let _alone = alone();
    let Some(one) = second_device() else {
        skip_unless(false, "two devices");
        return;
    };
    let zero = Device::new(0).unwrap();
    let pool = Pool::builder(&zero).build().unwrap();
    let here = Stream::create_on(&zero, true).unwrap();
    let there = Stream::create_on(&one, true).unwrap();
    let error = DeviceBuffer::new_in(100, &there, &pool).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    let mut buffer = DeviceBuffer::from_host_in(b"abc", &here, &pool).unwrap();
    assert!(matches!(buffer.resize(1 << 20, &there), Err(Error::Invalid(_))));
    assert_eq!((buffer.len(), buffer.stream().unwrap()), (3, here));
    assert_eq!(pool.info().unwrap().live_count, 1);
}

#[test]
fn a_home_stream_of_another_device() {
    let _alone = alone();
    let Some(one) = second_device() else {
        skip_unless(false, "two devices");
        return;
    };
    let zero = Device::new(0).unwrap();
    let pool = Pool::builder(&zero).build().unwrap();
    let there = Stream::create_on(&one, true).unwrap();
    let mut buffer = DeviceBuffer::new_in(100, &Stream::create_on(&zero, true).unwrap(), &pool).unwrap();
    let error = buffer.set_stream(&there).expect_err("the pool could not free on that stream");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    drop(buffer);
    assert_eq!(pool.info().unwrap().live_count, 0);
    assert_eq!(misuse_count().unwrap(), 0);
}

#[test]
fn contradictions_of_sizes() {
    let _alone = alone();
    let device = Device::current().unwrap();
    let error = Pool::builder(&device).initial_size(2 << 20).maximum_size(1 << 20).build().unwrap_err();
    assert_clear("initial above maximum", &error);
    let error = Pool::builder(&device).initial_size(u64::MAX).build().unwrap_err();
    assert_clear("initial of everything", &error);
    let error = Pool::builder(&device).initial_size(1 << 50).build().unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");
}

#[test]
fn slices_that_do_not_fit() {
    let _alone = alone();
    let stream = Stream::create().unwrap();
    let mut buffer = DeviceBuffer::from_host_in(b"abc", &stream, &cuda().unwrap()).unwrap();
    assert!(matches!(buffer.copy_from_host(b"abcd", &stream), Err(Error::Invalid(_))));
    assert!(matches!(buffer.copy_to_host(&mut [0; 4], &stream), Err(Error::Invalid(_))));
    let (buffer, error) = DeviceVec::<u16>::from_buffer(buffer).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert_eq!(buffer.len(), 3);
}

#[test]
fn names_that_are_none() {
    let _alone = alone();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    assert!(pool.property("no_such_figure").is_err());
    assert!(pool.property("a\0b").is_err());
    if simulated() {
        let error = tenure::sim::fail_next("cuNoSuchCall", 2, 0).unwrap_err();
        assert_clear("a call that is none", &error);
    }
    assert!(Limiting::try_from(pool.resource().clone()).is_err());
    assert!(Pool::try_from(pool.resource().clone()).is_ok());
    assert!(tenure::replay("{}", |_, _| true).is_err());
    assert!(tenure::replay("no json", |_, _| true).is_err());
    let current = current::get().unwrap();
    assert_eq!(current::get().unwrap(), current);
}
