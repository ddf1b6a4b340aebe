//! The rules of ownership at the level of the engine: who lives how long, who frees, what a wrong free does, one table.

#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_core::buffer::{Buffer, Foreign, resolve};
use tenure_core::current;
use tenure_core::error::{Error, MisuseKind, Result};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Block, Info, MemoryResource, Properties, Request, Resource, registry};
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_driver::RawStream;

/// Held by the tests that replace entries of the table, which is one per process.
static TABLE: tenure_core::sync::Mutex<()> = tenure_core::sync::Mutex::new(());

fn device() {
    tenure_driver::load::prefer_sim().expect("the simulated device");
}

fn default_stream() -> StreamHold {
    StreamHold::raw(RawStream::NULL)
}

/// Passes everything on and tells when it is dropped.
struct Probe {
    upstream: Resource,
    dropped: Arc<AtomicUsize>,
    freed: Arc<AtomicUsize>,
}

impl Probe {
    fn make() -> (Resource, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        device();
        let (dropped, freed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let probe = Self { upstream: shared::cuda().unwrap(), dropped: dropped.clone(), freed: freed.clone() };
        (Resource::new(probe).unwrap(), dropped, freed)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl MemoryResource for Probe {
    fn kind(&self) -> &str {
        "probe"
    }
    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        self.upstream.body().allocate(request, stream)
    }
    fn deallocate(&self, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.upstream.body().deallocate(ptr, request, stream)?;
        self.freed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn device(&self) -> Option<i32> {
        None
    }
    fn properties(&self) -> Properties {
        self.upstream.body().properties()
    }
    fn find(&self, ptr: u64) -> Option<Block> {
        self.upstream.body().find(ptr)
    }
    fn info(&self) -> Info {
        self.upstream.body().info()
    }
    fn upstream(&self) -> Option<&Resource> {
        Some(&self.upstream)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn count(n: &AtomicUsize) -> usize {
    n.load(Ordering::SeqCst)
}

#[test]
fn a_resource_lives_while_a_buffer_of_it_lives() {
    let (probe, dropped, freed) = Probe::make();
    let buffer = Buffer::create(1000, 256, default_stream(), probe.light()).unwrap();
    drop(probe);
    assert_eq!((count(&dropped), count(&freed)), (0, 0));
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert_eq!((count(&dropped), count(&freed)), (1, 1), "freed by its maker, which then closed, once");
}

#[test]
fn a_raw_allocation_keeps_its_resource() {
    let (probe, dropped, _) = Probe::make();
    let id = probe.id();
    let ptr = probe.allocate(512, 256, StreamRef::DEFAULT).unwrap();
    drop(probe);
    assert_eq!(count(&dropped), 0);
    let (owner, block) = registry::owner_of(ptr + 17).expect("the block names its resource");
    assert_eq!((owner.id(), block.ptr), (id, ptr));
    owner.deallocate(ptr, 512, 256, StreamRef::DEFAULT).unwrap();
    drop(owner);
    assert_eq!(count(&dropped), 1);
    // The address may be another test's by now.
    assert!(registry::owner_of(ptr).is_none_or(|(owner, _)| owner.id() != id));
}

#[test]
fn an_empty_buffer_holds_its_resource_too() {
    let (probe, dropped, freed) = Probe::make();
    let mut buffer = Buffer::create(0, 0, default_stream(), probe.light()).unwrap();
    drop(probe);
    assert_eq!(count(&dropped), 0);
    buffer.resize(100, default_stream()).unwrap();
    buffer.close(None).unwrap();
    assert_eq!((count(&dropped), count(&freed)), (0, 1));
    drop(buffer);
    assert_eq!((count(&dropped), count(&freed)), (1, 1));
}

#[test]
fn a_released_handle_is_an_error_for_ever() {
    let (probe, _, _) = Probe::make();
    let id = probe.into_raw();
    drop(Resource::from_raw(id).unwrap());
    assert!(registry::upgrade(id).is_none());
    assert!(matches!(Resource::from_raw(id), Err(Error::BadHandle(_))));
    // The slot is used again under another id.
    let others: Vec<_> = (0..50).map(|_| Probe::make().0).collect();
    assert!(others.iter().all(|other| other.id() != id));
    assert!(matches!(Resource::from_raw(id), Err(Error::BadHandle(_))));
}

#[test]
fn a_wrong_free_is_an_error_and_changes_nothing() {
    let (probe, _, freed) = Probe::make();
    let (other, _, _) = Probe::make();
    let stream = StreamRef::DEFAULT;
    let ptr = probe.allocate(1000, 256, stream).unwrap();
    let before = probe.references();
    let kind = |result: Result<()>| match result {
        Err(Error::Misuse(misuse)) => misuse.kind,
        other => panic!("expected misuse, got {other:?}"),
    };
    assert_eq!(kind(other.deallocate(ptr, 1000, 256, stream)), MisuseKind::WrongResource);
    assert_eq!(kind(probe.deallocate(ptr, 999, 256, stream)), MisuseKind::WrongSize);
    assert_eq!(kind(probe.deallocate(ptr + 8, 1000, 8, stream)), MisuseKind::InteriorPointer);
    assert_eq!(kind(probe.deallocate(0xdead_0000, 1000, 256, stream)), MisuseKind::UnknownPointer);
    assert_eq!(kind(probe.deallocate(ptr, 0, 256, stream)), MisuseKind::WrongSize);
    assert_eq!(count(&freed), 0);
    assert_eq!(probe.references(), before, "the block is still counted");
    probe.deallocate(ptr, 1000, 256, stream).unwrap();
    assert_eq!(kind(probe.deallocate(ptr, 1000, 256, stream)), MisuseKind::DoubleFree);
    assert_eq!(count(&freed), 1);
}

#[test]
fn adoption_needs_the_maker() {
    let (probe, dropped, freed) = Probe::make();
    let (other, _, _) = Probe::make();
    let ptr = probe.allocate(640, 256, StreamRef::DEFAULT).unwrap();
    let refuse = |result: Result<Buffer>| match result.map(|_| ()) {
        Err(Error::Misuse(misuse)) => misuse.kind,
        other => panic!("expected misuse, got {other:?}"),
    };
    assert_eq!(refuse(Buffer::adopt(ptr, 640, 256, default_stream(), other.light())), MisuseKind::WrongResource);
    assert_eq!(refuse(Buffer::adopt(ptr, 641, 256, default_stream(), probe.light())), MisuseKind::WrongSize);
    assert_eq!(refuse(Buffer::adopt(ptr + 1, 1, 256, default_stream(), probe.light())), MisuseKind::InteriorPointer);
    assert_eq!(refuse(Buffer::adopt(4096, 1, 256, default_stream(), probe.light())), MisuseKind::UnknownPointer);
    let mut buffer = Buffer::adopt(ptr, 640, 256, default_stream(), probe.light()).unwrap();
    drop(probe);
    // Out and in again: adoption is the inverse of detaching.
    let detached = buffer.detach().unwrap();
    drop(buffer);
    assert_eq!((count(&dropped), count(&freed)), (0, 0));
    let light = detached.resource.light();
    drop(detached.resource);
    drop(Buffer::adopt(detached.ptr, detached.capacity, 256, detached.home, light).unwrap());
    assert_eq!((count(&dropped), count(&freed)), (1, 1));
}

#[test]
fn foreign_memory_comes_with_an_owner() {
    device();
    let refused = Buffer::adopt_foreign(64, 8, -1, default_stream(), Properties::default(), Foreign::default());
    assert!(matches!(refused.map(|_| ()), Err(Error::Invalid(_))));
    let freed = Arc::new(AtomicUsize::new(0));
    let told = freed.clone();
    let foreign = Foreign {
        free: Some(Box::new(move |ptr, bytes, _| {
            assert_eq!((ptr, bytes), (64, 8));
            told.fetch_add(1, Ordering::SeqCst);
        })),
        owner: None,
    };
    let mut buffer = Buffer::adopt_foreign(64, 8, -1, default_stream(), Properties::default(), foreign).unwrap();
    assert!(buffer.resource().is_none());
    assert!(matches!(buffer.resize(100, default_stream()), Err(Error::Unsupported(_))));
    assert!(matches!(buffer.detach().map(|_| ()), Err(Error::Unsupported(_))));
    drop(buffer);
    assert_eq!(count(&freed), 1);
}

#[test]
fn one_table_and_a_replaced_entry_harms_nobody() {
    let _table = TABLE.lock();
    let (probe, dropped, freed) = Probe::make();
    let id = probe.id();
    let before = current::set(1, probe).unwrap();
    assert_eq!(before, shared::cuda().unwrap());
    let light = current::get(1).unwrap();
    assert_eq!(light.id(), id);
    let buffer = Buffer::create(100, 256, default_stream(), light).unwrap();
    let previous = current::reset(1).unwrap();
    assert_eq!(previous.id(), id);
    drop(previous);
    assert_eq!(count(&dropped), 0, "the buffer keeps it");
    drop(buffer);
    assert_eq!((count(&dropped), count(&freed)), (1, 1));
    assert!(matches!(current::get(77), Err(Error::Invalid(_))));
    assert!(matches!(current::get(-2), Err(Error::Invalid(_))));
}

#[test]
fn scopes_end_in_any_order_and_set_inside_changes_the_scope() {
    let _table = TABLE.lock();
    std::thread::spawn(|| {
        let (a, _, _) = Probe::make();
        let (b, _, _) = Probe::make();
        let (c, c_dropped, _) = Probe::make();
        let (ida, idb, idc) = (a.id(), b.id(), c.id());
        let base = current::get(0).unwrap().id();
        let first = current::enter(0, a).unwrap();
        let second = current::enter(0, b).unwrap();
        assert_eq!(current::get(0).unwrap().id(), idb);
        assert_eq!(current::set(0, c).unwrap().id(), idb);
        assert_eq!(current::get(0).unwrap().id(), idc);
        std::thread::spawn(move || {
            assert_eq!(current::get(0).unwrap().id(), base, "a scope belongs to its thread");
            // From another thread, and the outer one first.
            current::leave(first).unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(current::get(0).unwrap().id(), idc);
        current::leave(second).unwrap();
        assert_eq!(count(&c_dropped), 1);
        assert_eq!(current::get(0).unwrap().id(), base);
        assert!(matches!(current::leave(second), Err(Error::BadHandle(_))));
        assert!(registry::upgrade(ida).is_none());
    })
    .join()
    .unwrap();
}

#[test]
fn listeners_hear_the_newest_entry() {
    let _table = TABLE.lock();
    device();
    let heard = Arc::new(tenure_core::sync::Mutex::new(Vec::new()));
    let told = heard.clone();
    let token = current::listen(Arc::new(move |device, resource: &tenure_core::resource::Named, version| {
        if device == 1 {
            told.lock().push((resource.id(), version));
        }
    }));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..50 {
                    let (probe, _, _) = Probe::make();
                    current::set(1, probe).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let now = current::get(1).unwrap().id();
    let heard = std::mem::take(&mut *heard.lock());
    assert_eq!(heard.last().unwrap().0, now, "the last that was heard is what is there");
    assert!(heard.windows(2).all(|w| w[0].1 < w[1].1), "versions rise");
    current::unlisten(token).unwrap();
    assert!(current::unlisten(token).is_err());
    current::reset(1).unwrap();
}

#[test]
fn readers_of_the_table_never_meet_a_closed_resource() {
    let _table = TABLE.lock();
    device();
    // Ends once readers and writer have both had their turns, however the threads are scheduled.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (stop, seen) = (stop.clone(), seen.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let light = resolve(None, StreamRef::DEFAULT).unwrap();
                    let buffer = Buffer::create(64, 256, default_stream(), light).unwrap();
                    assert_ne!(buffer.resource().unwrap().body().kind(), "closed");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut replaced = 0;
    while replaced < 300 || (count(&seen) < 300 && !readers.iter().all(|r| r.is_finished())) {
        let (probe, _, _) = Probe::make();
        drop(current::set(0, probe).unwrap());
        replaced += 1;
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|r| r.join().unwrap());
    current::reset(0).unwrap();
}

#[test]
fn a_stream_object_lives_while_a_buffer_names_it() {
    device();
    let stream = StreamObject::create(0, true).unwrap();
    let weak = Arc::downgrade(&stream);
    let buffer = Buffer::create(4096, 256, StreamHold::object(stream), shared::cuda().unwrap().light()).unwrap();
    assert!(weak.upgrade().is_some());
    drop(buffer);
    assert!(weak.upgrade().is_none());
}

#[test]
fn resize_keeps_the_bytes_and_failure_changes_nothing() {
    let (probe, _, _) = Probe::make();
    let stream = StreamHold::object(StreamObject::create(0, true).unwrap());
    let mut buffer = Buffer::create(1000, 256, stream.clone(), probe.light()).unwrap();
    let mut host = vec![0u8; 1000];
    // SAFETY: both ranges live past the wait below.
    unsafe {
        tenure_core::ops::fill_async(buffer.ptr(), 0xab, 1000, stream.as_carried(), 0).unwrap();
    }
    buffer.resize(5000, stream.clone()).unwrap();
    // SAFETY: as above.
    unsafe {
        tenure_core::ops::copy_async(host.as_mut_ptr() as u64, buffer.ptr(), 1000, stream.as_carried(), 0).unwrap();
    }
    tenure_core::ops::synchronize(stream.as_carried(), 0).unwrap();
    assert!(host.iter().all(|b| *b == 0xab));
    let (ptr, capacity) = (buffer.ptr(), buffer.capacity());
    assert!(buffer.resize(1 << 50, stream.clone()).unwrap_err().is_out_of_memory());
    assert!(buffer.resize(usize::MAX, stream.clone()).unwrap_err().is_out_of_memory());
    assert_eq!((buffer.ptr(), buffer.bytes(), buffer.capacity()), (ptr, 5000, capacity));
    buffer.resize(10, stream.clone()).unwrap();
    assert_eq!((buffer.ptr(), buffer.bytes(), buffer.capacity()), (ptr, 10, capacity));
    buffer.shrink_to_fit(stream).unwrap();
    assert_eq!((buffer.bytes(), buffer.capacity()), (10, 10));
}

#[test]
fn work_on_a_recorded_stream_is_done_before_the_memory_goes() {
    // The copy on the second stream starts late. Without the wait that `record_stream` asks for, the block would be filled
    // anew by the next owner before the copy reads it.
    device();
    let home = StreamHold::object(StreamObject::create(0, true).unwrap());
    let other = StreamHold::object(StreamObject::create(0, true).unwrap());
    let pool = Resource::new(
        tenure_core::pool::Pool::new(shared::cuda().unwrap(), 0, tenure_core::pool::PoolOptions::default()).unwrap(),
    )
    .unwrap();
    let mut buffer = Buffer::create(1 << 20, 256, home.clone(), pool.light()).unwrap();
    let mut host = vec![0u8; 1 << 20];
    // SAFETY: the host vector and the blocks outlive the waits below.
    unsafe {
        tenure_core::ops::fill_async(buffer.ptr(), 1, 1 << 20, home.as_carried(), 0).unwrap();
        tenure_core::ops::order_after(other.as_carried(), home.as_carried(), 0).unwrap();
        tenure_driver::sim::busy(other.value().as_raw(), std::time::Duration::from_millis(100)).unwrap();
        tenure_core::ops::copy_async(host.as_mut_ptr() as u64, buffer.ptr(), 1 << 20, other.as_carried(), 0).unwrap();
    }
    buffer.record_stream(other.clone());
    drop(buffer);
    let next = Buffer::create(1 << 20, 256, home.clone(), pool.light()).unwrap();
    // SAFETY: as above.
    unsafe { tenure_core::ops::fill_async(next.ptr(), 2, 1 << 20, home.as_carried(), 0).unwrap() };
    tenure_core::ops::synchronize(other.as_carried(), 0).unwrap();
    tenure_core::ops::synchronize(home.as_carried(), 0).unwrap();
    assert!(host.iter().all(|b| *b == 1), "the copy read the next owner's bytes");
}
