//! The adaptors that list, ask, hint, align and take turns, as Rust uses them.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use common::alone;
use tenure::{
    Aligned, AsyncPool, Callback, Device, DeviceBuffer, Error, FailureCallback, Limiting, Pool, Prefetch, Resource,
    Statistics, Stream, ThreadSafe, Tracking, prefetch, sam_headroom,
};

fn stream() -> Stream {
    Stream::create().unwrap()
}

fn limited(bytes: u64) -> Limiting {
    Limiting::new(&tenure::cuda().unwrap(), bytes).unwrap()
}

fn out_of_memory<T: std::fmt::Debug>(result: tenure::Result<T>) -> String {
    match result {
        Err(Error::OutOfMemory(oom)) => oom.message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_out_is_listed_with_its_stack_where_that_is_wanted() {
    let _alone = alone();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let (plain, stacked) = (Tracking::new(&pool, false).unwrap(), Tracking::new(&pool, true).unwrap());
    let (a, b) = (
        DeviceBuffer::new_in(1000, &stream(), &plain).unwrap(),
        DeviceBuffer::new_in(50, &stream(), &stacked).unwrap(),
    );
    let listed = plain.outstanding().unwrap();
    assert_eq!(listed.iter().map(|t| (t.ptr, t.bytes, t.stack.as_str())).collect::<Vec<_>>(), [(a.ptr(), 1000, "")]);
    assert_eq!(plain.outstanding_text().unwrap(), format!("{:#x}: 1000 B\n", a.ptr() as usize));
    assert_eq!((plain.allocated_bytes().unwrap(), stacked.allocated_bytes().unwrap()), (1000, 50));
    assert!(stacked.outstanding().unwrap()[0].stack.contains("0x"));
    drop((a, b));
    assert!(plain.outstanding().unwrap().is_empty() && stacked.outstanding_text().unwrap().is_empty());
    assert!(Tracking::try_from(Resource::from(pool)).is_err());
}

#[test]
fn a_callback_frees_until_it_fits_and_belongs_to_the_resource() {
    let _alone = alone();
    let (stream, limited) = (stream(), limited(1000));
    let cache: Arc<Mutex<Vec<DeviceBuffer>>> = Arc::default();
    for _ in 0..4 {
        cache.lock().unwrap().push(DeviceBuffer::new_in(250, &stream, &limited).unwrap());
    }
    let held: Weak<_> = Arc::downgrade(&cache);
    let asking = FailureCallback::new(&limited, move |bytes| {
        assert!(bytes >= 700);
        let popped = cache.lock().unwrap().pop();
        Ok(popped.is_some())
    })
    .unwrap();
    let buffer = DeviceBuffer::new_in(700, &stream, &asking).unwrap();
    assert_eq!((asking.asked().unwrap(), held.upgrade().unwrap().lock().unwrap().len()), (3, 1));
    drop(asking);
    assert!(held.upgrade().is_some(), "the buffer keeps the resource, and that its callback");
    drop(buffer);
    assert!(held.upgrade().is_none());
}

#[test]
fn its_error_and_its_panic_are_the_callers_and_again_has_an_end() {
    #[derive(Debug)]
    struct Own(u32);
    impl std::fmt::Display for Own {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "the user's own {}", self.0)
        }
    }
    impl std::error::Error for Own {}
    let _alone = alone();
    let limited = limited(1000);
    let failing = FailureCallback::new(&limited, |_| Err(Error::callback(Own(7)))).unwrap();
    let top = Tracking::new(&Statistics::new(&failing).unwrap(), false).unwrap();
    match DeviceBuffer::new_in(2000, &stream(), &top) {
        Err(Error::Callback(callback)) => {
            let Callback { source: Some(source), .. } = *callback else { panic!("without its source") };
            assert_eq!(source.downcast_ref::<Own>().unwrap().0, 7);
        }
        other => panic!("{other:?}"),
    }
    let panicking = FailureCallback::new(&limited, |_| panic!("on purpose")).unwrap();
    match DeviceBuffer::new_in(2000, &stream(), &panicking) {
        Err(Error::Callback(callback)) => assert!(callback.message.contains("on purpose"), "{}", callback.message),
        other => panic!("{other:?}"),
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let endless = FailureCallback::new(&limited, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    })
    .unwrap();
    assert!(out_of_memory(DeviceBuffer::new_in(2000, &stream(), &endless)).contains("again and again"));
    assert_eq!(asked.load(Ordering::SeqCst), 100);
    // Nothing else asks.
    assert!(endless.allocate_aligned(10, 3, &stream()).is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 100);
    assert_eq!(limited.info().unwrap().live_bytes, 0);
}

#[test]
fn hints_alignments_and_turns() {
    let _alone = alone();
    let (stream, here) = (stream(), Device::current().unwrap());
    let hinted = Prefetch::new(&tenure::managed().unwrap()).unwrap();
    let buffer = DeviceBuffer::new_in(1000, &stream, &hinted).unwrap();
    if common::simulated() {
        assert_eq!((hinted.hints().unwrap(), hinted.told().unwrap()), (true, 1));
        assert!(buffer.prefetch(None, &stream).unwrap() && buffer.prefetch(Some(&here), &stream).unwrap());
        assert!(prefetch(buffer.ptr(), 10, None, &stream).unwrap());
    }
    let plain = Prefetch::new(&tenure::cuda().unwrap()).unwrap();
    let still = DeviceBuffer::new_in(1000, &stream, &plain).unwrap();
    assert!(!still.prefetch(None, &stream).unwrap() && !plain.hints().unwrap());

    let aligned = Aligned::new(&tenure::cuda().unwrap(), 1 << 16, 5000).unwrap();
    assert_eq!((aligned.alignment().unwrap(), aligned.alignment_threshold().unwrap()), (1 << 16, 5000));
    assert_eq!(DeviceBuffer::new_in(5000, &stream, &aligned).unwrap().ptr() as usize % (1 << 16), 0);
    assert!(matches!(Aligned::new(&aligned, 3, 0), Err(Error::Invalid(text)) if text.contains("alignment is 3")));

    let safe = ThreadSafe::new(&tenure::cuda().unwrap()).unwrap();
    drop(DeviceBuffer::new_in(100, &stream, &safe).unwrap());
    let sam = sam_headroom(1 << 20).unwrap();
    assert_eq!((sam.kind().as_str(), sam.property("headroom").unwrap()), ("sam_headroom", 1 << 20));
    drop(DeviceBuffer::new_in(100, &stream, &sam).unwrap());
    match AsyncPool::managed(&here) {
        Ok(managed) => {
            assert!(!managed.pool_handle().unwrap().is_null() && managed.properties().unwrap().host_accessible())
        }
        Err(Error::Unsupported(text)) => assert!(text.contains("managed"), "{text}"),
        Err(e) => panic!("{e}"),
    }
}
