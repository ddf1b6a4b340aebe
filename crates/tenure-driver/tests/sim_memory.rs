//! Plain, managed, pinned and stream-ordered memory of the simulated device.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::ptr::null_mut;
use std::time::Duration;

use sim_support::*;
use tenure_driver::sim::{self, Access};
use tenure_driver::sys::*;
use tenure_driver::table::Table;

#[test]
fn memory_is_limited_and_counted() {
    let (t, _lock) = setup();
    let free = free_bytes(&t);
    let p = alloc(&t, 100 * MIB);
    assert_eq!(free - free_bytes(&t), 100 * MIB);
    let mut q = 7;
    assert_eq!(cu!(t, cuMemAlloc(&mut q, free)), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(cu!(t, cuMemAlloc(&mut q, usize::MAX)), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(cu!(t, cuMemAlloc(&mut q, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemAlloc(null_mut(), 1)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(q, 7, "a failed call changes nothing");
    // The other device has its own memory.
    enter(&t, 1);
    let r = alloc(&t, 200 * MIB);
    ok!(t, cuMemFree(r));
    enter(&t, 0);
    ok!(t, cuMemFree(p));
    assert_eq!(free_bytes(&t), free);
    assert_eq!(cu!(t, cuMemFree(p)), CUDA_ERROR_INVALID_VALUE, "a second free");
    assert_eq!(cu!(t, cuMemFree(0x1234)), CUDA_ERROR_INVALID_VALUE, "a pointer nobody made");
    ok!(t, cuMemFree(0));
    let p = alloc(&t, 1000);
    assert_eq!(cu!(t, cuMemFree(p + 512)), CUDA_ERROR_INVALID_VALUE, "an interior pointer");
    ok!(t, cuMemFree(p));
}

#[test]
fn copies_move_real_bytes_when_their_turn_comes() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let (p, q) = (alloc(&t, MIB), alloc(&t, MIB));
    let mut host: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let want = host.clone();
    ok!(t, cuMemcpyHtoDAsync(p, host.as_ptr().cast(), MIB, s));
    host.fill(0);
    ok!(t, cuMemcpyDtoDAsync(q, p, MIB, s));
    let mut back = vec![0u8; MIB];
    ok!(t, cuMemcpyDtoHAsync(back.as_mut_ptr().cast(), q, MIB, s));
    assert!(back == want, "copies that involve ordinary host memory are complete at return");
    // A small one is kept, and made later.
    ok!(t, cuMemsetD8Async(p, 0, MIB, s));
    ok!(t, cuStreamSynchronize(s));
    sim::schedule(1);
    busy(s, 30);
    let mut small = [9u8; 64];
    ok!(t, cuMemcpyAsync(p, small.as_ptr() as u64, 64, s));
    small.fill(1);
    assert_eq!(bytes(p, 64), [0; 64]);
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(p, 64), [9; 64]);
    // Pinned memory is asynchronous both ways.
    let mut pinned = null_mut();
    ok!(t, cuMemHostAlloc(&mut pinned, 4096, 0));
    busy(s, 30);
    ok!(t, cuMemcpyDtoHAsync(pinned, p, 64, s));
    assert_eq!(bytes(pinned as u64, 64), [0; 64]);
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(bytes(pinned as u64, 64), [9; 64]);
    sim::schedule_workers();
    // The synchronous ones.
    let mut few = [0u8; 16];
    ok!(t, cuMemsetD8(q, 5, 16));
    ok!(t, cuMemcpy(few.as_mut_ptr() as u64, q, 16));
    assert_eq!(few, [5; 16]);
    ok!(t, cuMemFreeHost(pinned));
    ok!(t, cuMemFree(p));
    assert_eq!(cu!(t, cuMemcpyDtoDAsync(q, p, 16, s)), CUDA_ERROR_INVALID_VALUE, "freed memory is seen at the call");
    assert_eq!(cu!(t, cuMemcpyAsync(q, 0, 16, s)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemsetD8Async(q, 0, MIB + 513, s)), CUDA_ERROR_INVALID_VALUE, "beyond the end");
    ok!(t, cuMemcpyDtoDAsync(q, p, 0, s));
    ok!(t, cuMemFree(q));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn copies_reach_the_memory_of_the_other_device() {
    let (t, _lock) = setup();
    let p = alloc(&t, 4096);
    ok!(t, cuMemsetD8(p, 42, 4096));
    enter(&t, 1);
    let q = alloc(&t, 4096);
    ok!(t, cuMemcpy(q, p, 4096));
    ok!(t, cuCtxSynchronize());
    assert_eq!(bytes(q, 4096), [42; 4096]);
    ok!(t, cuMemFree(q));
    enter(&t, 0);
    ok!(t, cuMemFree(p));
}

#[test]
fn a_plain_free_waits_for_the_device() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let p = alloc(&t, 4096);
    busy(s, 50);
    ok!(t, cuMemFree(p));
    assert_eq!(cu!(t, cuStreamQuery(s)), 0);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn a_plain_block_can_be_freed_in_stream_order() {
    let (t, _lock) = setup();
    // Nothing completes unless somebody waits for it.
    sim::schedule(1);
    let s = stream(&t, 1);
    let free = free_bytes(&t);
    let p = alloc(&t, MIB);
    busy(s, 1);
    ok!(t, cuMemFreeAsync(p, s));
    assert_eq!(free - free_bytes(&t), MIB);
    assert_eq!(cu!(t, cuMemFreeAsync(p, s)), CUDA_ERROR_INVALID_VALUE);
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(free_bytes(&t), free);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn a_wild_kernel_faults_the_device_for_good() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let p = alloc(&t, 4096);
    sim::launch(s, &[(p, 4096)], &[(p + 4096 * 4096, 1, 1)]).unwrap();
    assert_eq!(cu!(t, cuStreamSynchronize(s)), CUDA_ERROR_ILLEGAL_ADDRESS);
    let mut q = 0;
    assert_eq!(cu!(t, cuMemAlloc(&mut q, 1)), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(cu!(t, cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    sim::fault(0, 0).unwrap();
    ok!(t, cuCtxSynchronize());
    sim::fault(0, 719).unwrap();
    assert_eq!(cu!(t, cuMemAllocAsync(&mut q, 1, s)), 719);
    assert!(sim::fault(9, 719).unwrap_err().to_string().contains("no simulated device 9"));
    sim::fault(0, 0).unwrap();
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn pretended_kernels_read_write_and_verify() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let p = alloc(&t, 4096);
    let before = sim::mismatches();
    sim::launch(s, &[], &[(p, 4096, 3)]).unwrap();
    let check = [Access::Verify { at: p, len: 4096, byte: 3 }, Access::Write { at: p + 1, len: 1, byte: 4 }];
    sim::launch_for(s, Duration::from_millis(5), &check).unwrap();
    sim::launch_for(s, Duration::ZERO, &check[..1]).unwrap();
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(sim::mismatches(), before + 1);
    ok!(t, cuMemFree(p));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn a_device_has_one_pool_of_managed_memory_and_hints_name_what_migrates() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let pool_of = |id: i32, kind| {
        let (mut pool, mut at) = (null_mut(), CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id });
        (cu!(t, cuMemGetDefaultMemPool(&mut pool, &mut at, kind)), pool)
    };
    let (code, managed) = pool_of(0, CU_MEM_ALLOCATION_TYPE_MANAGED);
    assert_eq!((code, pool_of(0, CU_MEM_ALLOCATION_TYPE_MANAGED)), (0, (0, managed)));
    let mut default = null_mut();
    ok!(t, cuDeviceGetDefaultMemPool(&mut default, 0));
    assert_eq!(pool_of(0, CU_MEM_ALLOCATION_TYPE_PINNED), (0, default));
    assert!(managed != default && pool_of(1, CU_MEM_ALLOCATION_TYPE_MANAGED).1 != managed);
    assert_eq!(pool_of(0, 7).0, CUDA_ERROR_INVALID_VALUE);
    assert_eq!(pool_of(99, CU_MEM_ALLOCATION_TYPE_MANAGED).0, CUDA_ERROR_INVALID_DEVICE);
    // A default pool is never destroyed.
    assert_eq!(cu!(t, cuMemPoolDestroy(managed)), cu!(t, cuMemPoolDestroy(default)));

    let (mut moves, mut stays) = (0, 0);
    ok!(t, cuMemAllocFromPoolAsync(&mut moves, 1000, managed, s));
    ok!(t, cuMemAllocFromPoolAsync(&mut stays, 1000, default, s));
    let mut is_managed = [7u8; 2];
    ok!(t, cuPointerGetAttribute((&raw mut is_managed[0]).cast(), CU_POINTER_ATTRIBUTE_IS_MANAGED, moves));
    ok!(t, cuPointerGetAttribute((&raw mut is_managed[1]).cast(), CU_POINTER_ATTRIBUTE_IS_MANAGED, stays));
    assert_eq!(is_managed, [1, 0]);
    let (device, host) = (
        CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 },
        CUmemLocation { type_: CU_MEM_LOCATION_TYPE_HOST, id: 0 },
    );
    let prefer = |at, bytes, place| cu!(t, cuMemAdvise(at, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place));
    assert_eq!((prefer(moves, 1000, device), prefer(moves, 10, host)), (0, 0));
    ok!(t, cuMemPrefetchAsync(moves, 1000, host, 0, s));
    let local = [0u8; 64];
    for (at, bytes) in [(moves, 0), (moves, 2000), (stays, 10), (local.as_ptr() as u64, 64)] {
        assert_eq!(prefer(at, bytes, host), CUDA_ERROR_INVALID_VALUE, "{at:#x} {bytes}");
        assert_eq!(cu!(t, cuMemPrefetchAsync(at, bytes, host, 0, s)), CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(
        prefer(moves, 10, CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: 99 }),
        CUDA_ERROR_INVALID_DEVICE
    );
    ok!(t, cuMemFreeAsync(moves, s));
    ok!(t, cuMemFreeAsync(stays, s));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn pointers_tell_what_they_are() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let context = {
        let mut c = null_mut();
        ok!(t, cuCtxGetCurrent(&mut c));
        c
    };
    let plain = alloc(&t, 1000);
    let pooled = alloc_async(&t, 1000, s);
    let (mut managed, mut pinned) = (0, null_mut());
    ok!(t, cuMemAllocManaged(&mut managed, 1000, CU_MEM_ATTACH_GLOBAL));
    ok!(t, cuMemHostAlloc(&mut pinned, 1000, 0));
    let mut own = vec![0u8; 1000];
    ok!(t, cuMemHostRegister(own.as_mut_ptr().cast(), 1000, 0));
    assert_eq!(
        cu!(t, cuMemHostRegister(own.as_mut_ptr().wrapping_add(10).cast(), 10, 0)),
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    let all = |p: u64| {
        let (mut kind, mut managed, mut ordinal, mut c, mut start, mut size) =
            (0u32, 0u8, -9, null_mut::<c_void>(), 0u64, 0usize);
        let mut what = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_CONTEXT,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut into: [*mut c_void; 6] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut c).cast(),
            (&raw mut start).cast(),
            (&raw mut size).cast(),
        ];
        ok!(t, cuPointerGetAttributes(6, what.as_mut_ptr(), into.as_mut_ptr(), p));
        (kind, managed, ordinal, c, start, size)
    };
    assert_eq!(all(plain + 10), (CU_MEMORYTYPE_DEVICE, 0, 0, context, plain, 1000));
    assert_eq!(all(pooled + 999), (CU_MEMORYTYPE_DEVICE, 0, 0, null_mut(), pooled, 1000));
    assert_eq!(all(managed), (CU_MEMORYTYPE_DEVICE, 1, 0, context, managed, 1000));
    assert_eq!(all(pinned as u64), (CU_MEMORYTYPE_HOST, 0, 0, context, pinned as u64, 1000));
    assert_eq!(all(own.as_ptr() as u64).0, CU_MEMORYTYPE_HOST);
    assert_eq!(all(0x10), (0, 0, -2, null_mut(), 0, 0), "unknown is no error in the plural call");
    let mut kind = 0u32;
    let one = |p, kind: &mut u32| {
        cu!(t, cuPointerGetAttribute((kind as *mut u32).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p))
    };
    assert_eq!(one(0x10, &mut kind), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(one(plain + 1000, &mut kind), CUDA_ERROR_INVALID_VALUE, "one past the end");
    let (mut base, mut size) = (0, 0);
    ok!(t, cuMemGetAddressRange(&mut base, &mut size, pooled + 5));
    assert_eq!((base, size), (pooled, 1000));
    assert_eq!(cu!(t, cuMemGetAddressRange(&mut base, &mut size, 0x10)), CUDA_ERROR_NOT_FOUND);
    ok!(t, cuMemHostUnregister(own.as_mut_ptr().cast()));
    assert_eq!(cu!(t, cuMemHostUnregister(own.as_mut_ptr().cast())), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ok!(t, cuMemFreeHost(pinned));
    assert_eq!(cu!(t, cuMemFreeHost(pinned)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cu!(t, cuMemFree(plain + 1)), CUDA_ERROR_INVALID_VALUE);
    for p in [plain, pooled, managed] {
        ok!(t, cuMemFree(p));
    }
    ok!(t, cuStreamDestroy(s));
}

fn pool(t: &Table, max: usize) -> CUmemoryPool {
    let mut props: CUmemPoolProps = zeroed();
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(0);
    props.maxSize = max;
    let mut p = null_mut();
    ok!(t, cuMemPoolCreate(&mut p, &props));
    p
}

fn number(t: &Table, p: CUmemoryPool, what: CUmemPool_attribute) -> u64 {
    let mut n = 0u64;
    ok!(t, cuMemPoolGetAttribute(p, what, (&raw mut n).cast()));
    n
}

fn set_flag(t: &Table, p: CUmemoryPool, what: CUmemPool_attribute, mut on: c_int) {
    ok!(t, cuMemPoolSetAttribute(p, what, (&raw mut on).cast()));
}

fn from(t: &Table, p: CUmemoryPool, bytes: usize, s: CUstream) -> u64 {
    let mut at = 0;
    ok!(t, cuMemAllocFromPoolAsync(&mut at, bytes, p, s));
    at
}

#[test]
fn a_pool_reuses_memory_only_in_order() {
    let (t, _lock) = setup();
    // Nothing completes unless somebody waits for it.
    sim::schedule(1);
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let e = event(&t);
    let p = pool(&t, 0);
    set_flag(&t, p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    // On the same stream: at once, also while it is busy.
    let x = from(&t, p, MIB, a);
    busy(a, 1);
    ok!(t, cuMemFreeAsync(x, a));
    assert_eq!(from(&t, p, MIB, a), x);
    ok!(t, cuMemFreeAsync(x, a));
    // On another: not while the free is pending.
    let y = from(&t, p, MIB, b);
    assert_ne!(y, x);
    // After a wait for an event behind the free: yes, although nothing has completed.
    ok!(t, cuEventRecord(e, a));
    ok!(t, cuStreamWaitEvent(b, e, 0));
    assert_eq!(cu!(t, cuStreamQuery(a)), CUDA_ERROR_NOT_READY);
    assert_eq!(from(&t, p, MIB, b), x);
    ok!(t, cuMemFreeAsync(x, b));
    ok!(t, cuMemFreeAsync(y, b));
    ok!(t, cuCtxSynchronize());
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0, "above the threshold of 0 at a synchronisation");
    // Without following events: no.
    set_flag(&t, p, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    let x = from(&t, p, MIB, a);
    busy(a, 1);
    ok!(t, cuMemFreeAsync(x, a));
    ok!(t, cuEventRecord(e, a));
    ok!(t, cuStreamWaitEvent(b, e, 0));
    let y = from(&t, p, MIB, b);
    assert_ne!(y, x);
    ok!(t, cuMemFreeAsync(y, b));
    ok!(t, cuCtxSynchronize());
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuEventDestroy(e));
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn the_legacy_stream_orders_reuse_without_events() {
    let (t, _lock) = setup();
    // Nothing completes unless somebody waits for it.
    sim::schedule(1);
    let (a, free) = (stream(&t, 0), stream(&t, 1));
    let p = pool(&t, 0);
    set_flag(&t, p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    let x = from(&t, p, MIB, a);
    busy(a, 1);
    ok!(t, cuMemFreeAsync(x, a));
    assert_ne!(from(&t, p, MIB, free), x);
    assert_eq!(from(&t, p, MIB, null_mut()), x);
    ok!(t, cuMemFreeAsync(x, null_mut()));
    assert_eq!(from(&t, p, MIB, a), x);
    ok!(t, cuCtxSynchronize());
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(free));
}

#[test]
fn a_full_pool_inserts_a_wait_where_allowed() {
    let (t, _lock) = setup();
    // Nothing completes unless somebody waits for it.
    sim::schedule(1);
    let (a, b) = (stream(&t, 1), stream(&t, 1));
    let p = pool(&t, 32 * MIB);
    let x = from(&t, p, 32 * MIB, a);
    busy(a, 1);
    ok!(t, cuMemFreeAsync(x, a));
    set_flag(&t, p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    let mut y = 0;
    assert_eq!(cu!(t, cuMemAllocFromPoolAsync(&mut y, MIB, p, b)), CUDA_ERROR_OUT_OF_MEMORY);
    set_flag(&t, p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
    assert_eq!(from(&t, p, 32 * MIB, b), x);
    assert_eq!(cu!(t, cuStreamQuery(b)), CUDA_ERROR_NOT_READY, "b waits for a now");
    ok!(t, cuStreamSynchronize(b));
    assert_eq!(cu!(t, cuStreamQuery(a)), 0);
    ok!(t, cuMemFreeAsync(x, b));
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuStreamDestroy(a));
    ok!(t, cuStreamDestroy(b));
}

#[test]
fn pools_count_trim_and_end() {
    let (t, _lock) = setup();
    let free = free_bytes(&t);
    let s = stream(&t, 1);
    let p = pool(&t, 0);
    let mut keep = u64::MAX;
    ok!(t, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), u64::MAX);
    let (x, y) = (from(&t, p, MIB, s), from(&t, p, 1, s));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB as u64 + 512);
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB as u64);
    assert_eq!(free - free_bytes(&t), 32 * MIB);
    ok!(t, cuMemFreeAsync(x, s));
    assert_eq!(cu!(t, cuMemFreeAsync(x, s)), CUDA_ERROR_INVALID_VALUE, "a second free");
    ok!(t, cuMemFreeAsync(y, s));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB as u64 + 512);
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB as u64, "below the threshold it stays");
    ok!(t, cuMemPoolTrimTo(p, 0));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 32 * MIB as u64);
    let mut zero = 0u64;
    ok!(t, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, (&raw mut zero).cast()));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0);
    assert_eq!(free_bytes(&t), free);
    // A pool that is destroyed with a live block ends with it.
    let x = from(&t, p, MIB, s);
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuMemsetD8Async(x, 1, MIB, s));
    ok!(t, cuMemFreeAsync(x, s));
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(free_bytes(&t), free);
    // The default pool stays; another can be made current.
    let (mut d, mut c) = (null_mut(), null_mut());
    ok!(t, cuDeviceGetDefaultMemPool(&mut d, 0));
    assert_eq!(cu!(t, cuMemPoolDestroy(d)), CUDA_ERROR_INVALID_VALUE);
    let p = pool(&t, 0);
    ok!(t, cuDeviceSetMemPool(0, p));
    let x = alloc_async(&t, MIB, s);
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB as u64);
    ok!(t, cuMemFreeAsync(x, s));
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuDeviceGetMemPool(&mut c, 0));
    assert_eq!(c, d);
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(free_bytes(&t), free);
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn a_pool_squeezes_into_what_is_left_and_then_refuses() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let p = pool(&t, 0);
    let rest = free_bytes(&t) - 10 * MIB;
    let fill = alloc(&t, rest);
    let x = from(&t, p, 9 * MIB, s);
    let mut y = 0;
    assert_eq!(cu!(t, cuMemAllocFromPoolAsync(&mut y, 2 * MIB, p, s)), CUDA_ERROR_OUT_OF_MEMORY);
    let y = from(&t, p, MIB, s);
    ok!(t, cuMemFreeAsync(x, s));
    ok!(t, cuMemFreeAsync(y, s));
    // Whole again, without a synchronisation: the stream is idle.
    let x = from(&t, p, 10 * MIB, s);
    ok!(t, cuMemFreeAsync(x, s));
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuMemFree(fill));
    ok!(t, cuStreamDestroy(s));
}

#[test]
fn many_threads_allocate_and_free_without_overlap() {
    let (t, _lock) = setup();
    let p = pool(&t, 0) as usize;
    let before = sim::mismatches();
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            scope.spawn(move || {
                enter(&t, 0);
                let s = stream(&t, 1);
                let mut live = Vec::new();
                for i in 0..400usize {
                    let len = 256 + (i * 7919 + usize::from(n) * 104_729) % 60_000;
                    let byte = n * 50 + (i % 50) as u8;
                    let at = from(&t, p as CUmemoryPool, len, s);
                    sim::launch(s, &[], &[(at, len, byte)]).unwrap();
                    live.push((at, len, byte));
                    if live.len() > 20 {
                        let (at, len, byte) = live.swap_remove(i % 20);
                        sim::launch_for(s, Duration::ZERO, &[Access::Verify { at, len, byte }]).unwrap();
                        ok!(t, cuMemFreeAsync(at, s));
                    }
                }
                for (at, _, _) in live {
                    ok!(t, cuMemFreeAsync(at, s));
                }
                ok!(t, cuStreamSynchronize(s));
                ok!(t, cuStreamDestroy(s));
            });
        }
    });
    assert_eq!(sim::mismatches(), before);
    ok!(t, cuMemPoolDestroy(p as CUmemoryPool));
}

#[test]
fn a_device_can_shrink_and_grow_back() {
    let (t, _lock) = setup();
    let p = alloc(&t, 100 * MIB);
    let used = MEMORY as usize - free_bytes(&t);
    sim::set_memory(0, used as u64 + 1024).unwrap();
    let (mut free, mut total) = (0, 0);
    ok!(t, cuMemGetInfo(&mut free, &mut total));
    assert_eq!((free, total), (1024, used + 1024));
    let mut q = 0;
    assert_eq!(cu!(t, cuMemAlloc(&mut q, 2048)), CUDA_ERROR_OUT_OF_MEMORY);
    let text = sim::set_memory(0, 1).unwrap_err().to_string();
    assert!(text.contains("are in use"), "{text}");
    assert!(sim::set_memory(0, MEMORY + 1).is_err());
    assert!(sim::set_memory(2, MEMORY).unwrap_err().to_string().contains("no simulated device 2"));
    sim::set_memory(0, MEMORY).unwrap();
    ok!(t, cuMemFree(p));
}

#[test]
fn chunks_that_lie_side_by_side_go_back_one_by_one() {
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    let p = pool(&t, 0);
    let mut keep = u64::MAX;
    ok!(t, cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()));
    let blocks: Vec<_> = (0..4).map(|_| from(&t, p, 32 * MIB, s)).collect();
    for at in blocks {
        ok!(t, cuMemFreeAsync(at, s));
    }
    ok!(t, cuStreamSynchronize(s));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 128 * MIB as u64);
    ok!(t, cuMemPoolTrimTo(p, 70 * MIB));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 96 * MIB as u64, "whole chunks, not below 70 MiB");
    ok!(t, cuMemPoolTrimTo(p, 0));
    assert_eq!(number(&t, p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    ok!(t, cuMemPoolDestroy(p));
    ok!(t, cuStreamDestroy(s));
}

/// What the 64 bytes of an opened pool's block say is believed only as far as the memory goes that is behind the descriptor:
/// what lies beyond would end the process when it is touched.
#[test]
fn a_block_of_an_opened_pool_lies_in_its_memory() {
    let (t, _lock) = setup();
    let mut props: CUmemPoolProps = zeroed();
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(0);
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let (mut p, mut opened) = (null_mut(), null_mut());
    ok!(t, cuMemPoolCreate(&mut p, &props));
    let s = stream(&t, 1);
    let block = from(&t, p, MIB, s);
    let mut fd: c_int = -1;
    ok!(t, cuMemPoolExportToShareableHandle((&raw mut fd).cast(), p, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    let number = std::ptr::without_provenance_mut(fd as usize);
    ok!(t, cuMemPoolImportFromShareableHandle(&mut opened, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    let mut data: CUmemPoolPtrExportData = zeroed();
    ok!(t, cuMemPoolExportPointer(&mut data, block));
    let mut at = 0;
    // The device, the offset and the length, each as something that is not there.
    for (word, value) in [(16, 1_u64), (24, 1 << 45), (32, 1 << 45)] {
        let mut wrong = data;
        wrong.reserved[word..word + 8].copy_from_slice(&value.to_le_bytes());
        let said = cu!(t, cuMemPoolImportPointer(&mut at, opened, &mut wrong));
        assert_eq!((said, at), (CUDA_ERROR_INVALID_VALUE, 0), "word at {word}");
    }
    ok!(t, cuMemPoolImportPointer(&mut at, opened, &mut data));
    ok!(t, cuMemFree(at));
    ok!(t, cuMemFree(block));
    ok!(t, cuMemPoolDestroy(opened));
    ok!(t, cuMemPoolDestroy(p));
    // SAFETY: this test's own.
    unsafe { libc::close(fd) };
}
