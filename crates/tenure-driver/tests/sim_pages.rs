//! Virtual ranges over physical pages on the simulated device.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::ptr::null_mut;

use sim_support::*;
use tenure_driver::sim;
use tenure_driver::sys::*;
use tenure_driver::table::Table;

const G: usize = 2 * MIB;

fn reserve(t: &Table, bytes: usize) -> u64 {
    let mut at = 0;
    ok!(t, cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    at
}

fn create(t: &Table, bytes: usize) -> u64 {
    let mut h = 0;
    ok!(t, cuMemCreate(&mut h, bytes, &prop(0), 0));
    h
}

#[test]
fn two_mappings_of_one_handle_show_the_same_bytes() {
    let (t, _lock) = setup();
    let free = free_bytes(&t);
    let va = reserve(&t, 8 * G);
    let h = create(&t, G);
    assert_eq!(free - free_bytes(&t), G);
    for at in [va, va + 4 * G as u64] {
        ok!(t, cuMemMap(at, G, 0, h, 0));
        ok!(t, cuMemSetAccess(at, G, &access(0), 1));
    }
    assert_eq!(free - free_bytes(&t), G, "pages are counted once, however often they are mapped");
    ok!(t, cuMemsetD8(va, 7, G));
    ok!(t, cuCtxSynchronize());
    assert!(bytes(va + 4 * G as u64, G).iter().all(|b| *b == 7));
    // The pages live until the handle is released and the last mapping gone.
    ok!(t, cuMemRelease(h));
    assert_eq!(cu!(t, cuMemRelease(h)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemMap(va + G as u64, G, 0, h, 0)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemUnmap(va, G));
    assert_eq!(free - free_bytes(&t), G);
    assert!(bytes(va + 4 * G as u64, 100).iter().all(|b| *b == 7));
    assert_eq!(cu!(t, cuMemAddressFree(va, 8 * G)), CUDA_ERROR_INVALID_VALUE, "something is mapped there");
    ok!(t, cuMemUnmap(va + 4 * G as u64, G));
    assert_eq!(free_bytes(&t), free);
    assert_eq!(cu!(t, cuMemAddressFree(va, G)), CUDA_ERROR_INVALID_VALUE, "only whole reservations");
    ok!(t, cuMemAddressFree(va, 8 * G));
    // New pages do not show what old ones held.
    let (va, h) = (reserve(&t, G), create(&t, G));
    ok!(t, cuMemMap(va, G, 0, h, 0));
    ok!(t, cuMemSetAccess(va, G, &access(0), 1));
    assert_eq!(bytes(va, 100), [0; 100]);
    ok!(t, cuMemUnmap(va, G));
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemAddressFree(va, G));
}

#[test]
fn handles_map_and_unmap_only_as_a_whole() {
    let (t, _lock) = setup();
    let va = reserve(&t, 16 * G);
    let (h, k) = (create(&t, 2 * G), create(&t, G));
    let at = |n: usize| va + (n * G) as u64;
    assert_eq!(cu!(t, cuMemMap(va, G, G, h, 0)), CUDA_ERROR_NOT_SUPPORTED, "a part at an offset");
    assert_eq!(cu!(t, cuMemMap(va, G, 0, h, 0)), CUDA_ERROR_NOT_SUPPORTED, "a part at the start");
    assert_eq!(cu!(t, cuMemMap(at(15), 2 * G, 0, h, 0)), CUDA_ERROR_INVALID_VALUE, "beyond the reservation");
    ok!(t, cuMemMap(va, 2 * G, 0, h, 0));
    assert_eq!(cu!(t, cuMemMap(at(1), G, 0, k, 0)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemMap(at(2), G, 0, k, 0));
    assert_eq!(cu!(t, cuMemSetAccess(at(1), G, &access(0), 1)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemSetAccess(va, 3 * G, &access(0), 1));
    // Memory stitched from several handles is one range to a copy.
    ok!(t, cuMemsetD8(va, 1, 3 * G));
    ok!(t, cuCtxSynchronize());
    assert_eq!(cu!(t, cuMemUnmap(at(1), G)), CUDA_ERROR_INVALID_VALUE, "a part of a mapping");
    assert_eq!(cu!(t, cuMemUnmap(va, 4 * G)), CUDA_ERROR_INVALID_VALUE, "with a hole");
    ok!(t, cuMemUnmap(va, 3 * G));
    assert_eq!(cu!(t, cuMemUnmap(va, 3 * G)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemRelease(k));
    ok!(t, cuMemAddressFree(va, 16 * G));
}

#[test]
fn arguments_are_checked_and_memory_is_limited() {
    let (t, _lock) = setup();
    let (mut at, mut h) = (0, 0);
    assert_eq!(cu!(t, cuMemAddressReserve(&mut at, G + 1, 0, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemAddressReserve(&mut at, 0, 0, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemAddressReserve(&mut at, G, 3, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemAddressReserve(&mut at, usize::MAX / G * G, 0, 0, 0)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(t, cuMemAddressReserve(&mut at, G, 64 * MIB, 0, 0));
    assert_eq!(at % (64 * MIB) as u64, 0);
    ok!(t, cuMemAddressFree(at, G));
    // Four tebibytes of addresses cost nothing.
    ok!(t, cuMemAddressReserve(&mut at, 4 << 40, 0, 0, 0));
    ok!(t, cuMemAddressFree(at, 4 << 40));
    assert_eq!(cu!(t, cuMemCreate(&mut h, 4096, &prop(0), 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemCreate(&mut h, G, null_mut(), 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemCreate(&mut h, G, &prop(9), 0)), CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(cu!(t, cuMemCreate(&mut h, 1 << 40, &prop(0), 0)), CUDA_ERROR_OUT_OF_MEMORY);
    let mut granularity = 0;
    ok!(t, cuMemGetAllocationGranularity(&mut granularity, &prop(0), CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    assert_eq!(granularity, G);
    // Lengths that wrap around.
    assert_eq!(cu!(t, cuMemSetAccess(G as u64, usize::MAX, &access(0), 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemUnmap(G as u64, usize::MAX - 5)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemAddressFree(G as u64, usize::MAX)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemMap(u64::MAX - 4096, G, 0, 1, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemsetD8(u64::MAX - 4096, 0, G)), CUDA_ERROR_INVALID_VALUE);
    // Plain memory and pages come from the same device.
    let free = free_bytes(&t);
    let p = alloc(&t, free - G);
    let h = create(&t, G);
    let mut k = 0;
    assert_eq!(cu!(t, cuMemCreate(&mut k, G, &prop(0), 0)), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemFree(p));
}

#[test]
fn access_is_per_device_and_needed() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let (va, h) = (reserve(&t, G), create(&t, G));
    ok!(t, cuMemMap(va, G, 0, h, 0));
    sim::launch(s, &[(va, 1)], &[]).unwrap();
    assert_eq!(cu!(t, cuStreamSynchronize(s)), CUDA_ERROR_ILLEGAL_ADDRESS, "mapped, but nobody has access");
    sim::fault(0, 0).unwrap();
    let read = CUmemAccessDesc { location: location(0), flags: CU_MEM_ACCESS_FLAGS_PROT_READ };
    ok!(t, cuMemSetAccess(va, G, &read, 1));
    sim::launch(s, &[(va, G)], &[]).unwrap();
    ok!(t, cuStreamSynchronize(s));
    sim::launch(s, &[], &[(va, 1, 1)]).unwrap();
    assert_eq!(cu!(t, cuStreamSynchronize(s)), CUDA_ERROR_ILLEGAL_ADDRESS, "read only");
    sim::fault(0, 0).unwrap();
    // The other device has none until it is given some.
    ok!(t, cuMemSetAccess(va, G, &access(0), 1));
    enter(&t, 1);
    let o = stream(&t, 1);
    sim::launch(o, &[(va, 1)], &[]).unwrap();
    assert_eq!(cu!(t, cuStreamSynchronize(o)), CUDA_ERROR_ILLEGAL_ADDRESS);
    sim::fault(1, 0).unwrap();
    ok!(t, cuMemSetAccess(va, G, &access(1), 1));
    sim::launch(o, &[], &[(va, G, 6)]).unwrap();
    ok!(t, cuStreamSynchronize(o));
    ok!(t, cuStreamDestroy(o));
    enter(&t, 0);
    assert_eq!(bytes(va, 3), [6; 3]);
    // An unmap while an operation is still to come: the operation meets an illegal address, the process lives.
    busy(s, 20);
    sim::launch(s, &[], &[(va, G, 1)]).unwrap();
    ok!(t, cuMemUnmap(va, G));
    assert_eq!(cu!(t, cuStreamSynchronize(s)), CUDA_ERROR_ILLEGAL_ADDRESS);
    sim::fault(0, 0).unwrap();
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemAddressFree(va, G));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn unmapping_waits_for_whoever_touches_the_range_now() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    const N: usize = 32;
    let (va, h) = (reserve(&t, N * G), create(&t, N * G));
    for _ in 0..20 {
        ok!(t, cuMemMap(va, N * G, 0, h, 0));
        ok!(t, cuMemSetAccess(va, N * G, &access(0), 1));
        sim::launch(s, &[], &[(va, N * G, 1)]).unwrap();
        while cu!(t, cuStreamQuery(s)) == CUDA_ERROR_NOT_READY && bytes(va, 1)[0] == 0 {}
        ok!(t, cuMemUnmap(va, N * G));
        let code = cu!(t, cuStreamSynchronize(s));
        assert!(code == 0 || code == CUDA_ERROR_ILLEGAL_ADDRESS, "{code}");
        sim::fault(0, 0).unwrap();
    }
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemAddressFree(va, N * G));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn pointers_into_ranges_are_known() {
    let (t, _lock) = setup();
    let (va, h) = (reserve(&t, 2 * G), create(&t, G));
    ok!(t, cuMemMap(va, G, 0, h, 0));
    ok!(t, cuMemSetAccess(va, G, &access(0), 1));
    let mut ordinal = -1;
    let ask = |ordinal: &mut c_int, p| {
        cu!(t, cuPointerGetAttribute((ordinal as *mut c_int).cast(), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p))
    };
    assert_eq!(ask(&mut ordinal, va + 17), 0);
    assert_eq!(ordinal, 0);
    assert_eq!(ask(&mut ordinal, va + G as u64), CUDA_ERROR_INVALID_VALUE, "reserved, not mapped");
    assert_eq!(cu!(t, cuMemFree(va)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuMemUnmap(va, G));
    ok!(t, cuMemRelease(h));
    ok!(t, cuMemAddressFree(va, 2 * G));
}
