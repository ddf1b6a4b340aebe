//! cudarc and tenure on a GPU. Where there is no CUDA driver each test says so and ends: cudarc has no other device.

use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;
use tenure::{Device, DeviceBuffer, Pool};
use tenure_cudarc::{DeviceSlice, Error, buffer_of};

/// A context, a stream of its own and a pool; `None` without a driver.
fn stage() -> Option<(Arc<CudaStream>, Pool)> {
    // SAFETY: opens the driver's library and nothing else.
    if !unsafe { cudarc::driver::sys::is_culib_present() } || std::env::var("TENURE_DEVICE").as_deref() == Ok("sim") {
        eprintln!("skipped: cudarc needs a CUDA driver, and there is none or TENURE_DEVICE says sim");
        return None;
    }
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    Some((stream, Pool::builder(&Device::new(0).unwrap()).build().unwrap()))
}

#[test]
fn a_slice_of_a_pool_goes_through_cudarcs_copies() {
    let Some((stream, pool)) = stage() else { return };
    let numbers: Vec<u32> = (0..10_000).collect();
    let mut slice = DeviceSlice::from_host(&numbers, &stream, &pool).unwrap();
    assert_eq!(slice.len(), 10_000);
    assert!(pool.owns(slice.buffer().ptr()).unwrap());
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), numbers);
    assert_eq!(stream.clone_dtoh(&slice.view().slice(10..20)).unwrap(), numbers[10..20]);
    stream.memset_zeros(&mut slice.view_mut().slice_mut(0..5)).unwrap();
    assert_eq!(stream.clone_dtoh(&slice).unwrap()[..6], [0, 0, 0, 0, 0, 5]);
    drop(slice);
    assert_eq!(pool.info().unwrap().live_count, 0);
    assert_eq!(tenure::misuse_count().unwrap(), 0);
}

#[test]
fn another_streams_work_comes_before_the_free() {
    let Some((stream, pool)) = stage() else { return };
    let other = stream.context().new_stream().unwrap();
    for round in 0..200_u8 {
        let bytes = vec![round; 1 << 20];
        let slice = DeviceSlice::from_host(&bytes, &stream, &pool).unwrap();
        let mut copy = DeviceSlice::<u8>::zeros(1 << 20, &other, &pool).unwrap();
        other.memcpy_dtod(&slice, &mut copy).unwrap();
        drop(slice); // while `other` reads it
        let _next = DeviceSlice::from_host(&vec![!round; 1 << 20], &stream, &pool).unwrap();
        assert_eq!(other.clone_dtoh(&copy).unwrap(), bytes);
    }
}

#[test]
fn buffers_come_and_go() {
    let Some((stream, pool)) = stage() else { return };
    let ours = tenure::Stream::create().unwrap();
    let buffer = DeviceBuffer::from_host_in(&[7_u8; 4096], &ours, &pool).unwrap();
    let address = buffer.ptr();
    let slice = DeviceSlice::<u32>::from_buffer(buffer, &stream).unwrap();
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [0x0707_0707; 1024]);
    let mut back = vec![0; 4096];
    let buffer = slice.into_buffer();
    assert_eq!(buffer.ptr(), address);
    assert_eq!(buffer.raw_stream(), stream.cu_stream().cast());
    buffer.copy_to_host(&mut back, &buffer.stream().unwrap()).unwrap();
    assert_eq!(back, [7; 4096]);
    drop(pool);
    drop((stream, buffer));
}

#[test]
fn a_slice_of_cudarcs_is_a_buffer() {
    let Some((stream, _pool)) = stage() else { return };
    let slice = stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
    let buffer = buffer_of(slice).unwrap();
    assert_eq!((buffer.len(), buffer.resource().unwrap()), (12, None));
    let mut bytes = [0; 12];
    buffer.copy_to_host(&mut bytes, &buffer.stream().unwrap()).unwrap();
    assert_eq!(bytes[4..8], 2.0_f32.to_ne_bytes());
    let slice = DeviceSlice::<f32>::from_buffer(buffer, &stream).unwrap();
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn no_elements() {
    let Some((stream, pool)) = stage() else { return };
    let slice = DeviceSlice::<u64>::zeros(0, &stream, &pool).unwrap();
    assert!(slice.is_empty());
    assert!(slice.into_buffer().is_empty());
    assert!(DeviceSlice::from_host(&[0_u8; 0], &stream, &pool).unwrap().is_empty());
    // SAFETY: never read.
    let too_many = unsafe { DeviceSlice::<u64>::alloc(usize::MAX, &stream, &pool) };
    assert!(matches!(too_many, Err(Error::Mismatch(_))));
}

#[test]
fn out_of_memory_is_tenures_error() {
    let Some((stream, pool)) = stage() else { return };
    // SAFETY: never made.
    match unsafe { DeviceSlice::<u8>::alloc(1 << 50, &stream, &pool) } {
        Err(Error::Tenure(tenure::Error::OutOfMemory(oom))) => assert_eq!(oom.requested, 1 << 50),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_context_of_its_own_is_refused() {
    let Some((_, pool)) = stage() else { return };
    let stream = CudaContext::new_non_primary(0, 0).unwrap().new_stream().unwrap();
    let refused = DeviceSlice::<u8>::zeros(1, &stream, &pool);
    assert!(matches!(refused, Err(Error::Mismatch(text)) if text.contains("primary")));
}
