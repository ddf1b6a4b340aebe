//! Asking the rest of the process for memory, being asked, and the settings of a pool that go with it.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{alone, simulated, skip_unless};
use tenure::low_memory::{give_back, on_low_memory};
use tenure::{Device, DeviceBuffer, Error, Pool, Stream};

const MIB: u64 = 1 << 20;

#[test]
fn a_hook_is_asked_before_a_pool_fails() {
    let _alone = alone();
    if skip_unless(simulated(), "a device that nobody else uses") {
        return;
    }
    let device = Device::current().unwrap();
    let pool = Pool::builder(&device).maximum_size(16 * MIB).build().unwrap();
    let stream = Stream::create().unwrap();
    let cache = Arc::new(Mutex::new(Some(DeviceBuffer::new_in(12 << 20, &stream, &pool).unwrap())));
    let asked = Arc::new(AtomicUsize::new(0));
    let hook = {
        let (cache, asked, device) = (cache.clone(), asked.clone(), device.ordinal());
        on_low_memory(move |on, bytes| {
            asked.fetch_add(1, Ordering::SeqCst);
            assert_eq!(on.ordinal(), device);
            assert!(bytes >= 8 * MIB, "{bytes}");
            Ok(cache.lock().unwrap().take().map_or(0, |buffer| buffer.capacity() as u64))
        })
        .unwrap()
    };
    let failing = on_low_memory(|_, _| Err(Error::Invalid("it went wrong".into()))).unwrap();
    let panicking = on_low_memory(|_, _| panic!("on purpose")).unwrap();
    let buffer = DeviceBuffer::new_in(8 << 20, &stream, &pool).expect("the cache gives way");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let Err(Error::OutOfMemory(oom)) = DeviceBuffer::new_in(12 << 20, &stream, &pool) else {
        panic!("it does not fit")
    };
    assert_eq!((oom.limit, oom.live, oom.cached), (16 * MIB, 8 * MIB, oom.reserved - 8 * MIB));
    assert!(oom.tried.contains("growing (the limit is reached)"), "{}", oom.tried);
    assert!(oom.tried.contains("other libraries (nothing came of it)"), "{}", oom.tried);
    assert!(oom.message.contains(&oom.tried), "{}", oom.message);
    drop((hook, failing, panicking));
    assert_eq!(Arc::strong_count(&asked), 1, "what the hook held is gone");
    drop(buffer);
    let idle = pool.info().unwrap().cached_bytes;
    assert_eq!(give_back(&device, 0).unwrap(), idle);
    assert_eq!(pool.info().unwrap().reserved_bytes, 0);
}

#[test]
fn a_pool_is_made_as_it_is_told() {
    let _alone = alone();
    if skip_unless(simulated(), "a device that nobody else uses") {
        return;
    }
    let device = Device::current().unwrap();
    let pool = Pool::builder(&device)
        .remap(false)
        .grow_ahead(true)
        .decay(Duration::from_millis(30))
        .chunk_size(4 * MIB)
        .peer(&Device::new(1).unwrap())
        .build()
        .unwrap();
    for (name, value) in
        [("remap", 0), ("grow_ahead", 1), ("decay_ms", 30), ("chunk_bytes", 4 * MIB), ("own_ranges", 1), ("peers", 2)]
    {
        assert_eq!(pool.property(name).unwrap(), value, "{name}");
    }
    let stream = Stream::create().unwrap();
    drop(DeviceBuffer::new_in(1 << 20, &stream, &pool).unwrap());
    assert!(pool.info().unwrap().reserved_bytes >= 4 * MIB);
    let end = Instant::now() + Duration::from_secs(10);
    while pool.info().unwrap().reserved_bytes > 0 {
        assert!(Instant::now() < end, "what is idle goes by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        matches!(Pool::builder(&device).rdma(true).build(), Err(Error::Unsupported(text)) if text.contains("rdma"))
    );
    let plain = Pool::builder(&device).build().unwrap();
    assert_eq!(plain.property("remap").unwrap(), 1);
    for bytes in [3 * MIB, 1, 2 << 30] {
        let Err(Error::Invalid(text)) = Pool::builder(&device).chunk_size(bytes).build() else { panic!("{bytes}") };
        assert!(text.contains("chunk_bytes"), "{text}");
    }
}
