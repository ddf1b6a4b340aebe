//! Resources made of user functions: honest, hostile, failing, and calling themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use tenure_core::error::{Error, MisuseKind, Payload, Result};
use tenure_core::resource::callback::{CallbackResource, Callbacks, MAX_DEPTH};
use tenure_core::resource::{Info, Properties, Resource};
use tenure_core::stream::StreamRef;

const S: StreamRef<'static> = StreamRef::DEFAULT;

/// Returns what it is told to, and writes down what it is asked.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Result<u64>>>,
    frees: Mutex<Vec<(u64, usize, usize)>>,
    fail_frees: bool,
    failed: Mutex<Vec<(u64, String)>>,
}

struct Shared(Arc<Script>);

impl Callbacks for Shared {
    fn allocate(&self, _bytes: usize, _align: usize, _stream: StreamRef<'_>) -> Result<u64> {
        self.0.answers.lock().expect("unpoisoned").pop_front().unwrap_or(Ok(0))
    }

    fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        assert!(stream.is_live(), "a callback got a stream that may be dead");
        self.0.frees.lock().expect("unpoisoned").push((ptr, bytes, align));
        if self.0.fail_frees { Err(Error::Callback("no free today".into(), None)) } else { Ok(()) }
    }

    fn info(&self) -> Option<Info> {
        Some(Info { cached_bytes: 77, reserved_bytes: 1 << 20, live_bytes: 12345, ..Info::default() })
    }

    fn trim(&self, keep: usize) -> Result<usize> {
        Ok(100 - keep.min(100))
    }

    fn owns(&self, ptr: u64) -> Option<bool> {
        Some(ptr == 0xabc)
    }

    fn failed_free(&self, ptr: u64, _bytes: usize, error: Error) {
        self.0.failed.lock().expect("unpoisoned").push((ptr, error.to_string()));
    }
}

fn scripted(answers: impl IntoIterator<Item = Result<u64>>, fail_frees: bool) -> (Arc<Script>, Resource) {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let script =
        Arc::new(Script { answers: Mutex::new(answers.into_iter().collect()), fail_frees, ..Script::default() });
    let properties = Properties { device_accessible: true, ..Properties::default() };
    let body = CallbackResource::new(Box::new(Shared(script.clone())), Some(0), properties);
    (script, Resource::new(body).expect("a resource"))
}

fn frees(script: &Script) -> Vec<(u64, usize, usize)> {
    script.frees.lock().expect("unpoisoned").clone()
}

fn text_of(result: Result<u64>) -> String {
    match result {
        Err(Error::Callback(text, None)) => text,
        other => panic!("not a callback's error: {other:?}"),
    }
}

#[test]
fn a_hostile_upstream_is_not_believed() {
    let answers = [0x10000, 0, 0x20080, 0x10000, 0x10100, 0xff00, u64::MAX - 255, 0x11000].map(Ok);
    let (script, resource) = scripted(answers, false);
    let first = resource.allocate(4096, 256, S).expect("honest so far");
    let before = resource.body().info();
    assert!(text_of(resource.allocate(100, 256, S)).contains("null"));
    assert!(text_of(resource.allocate(100, 256, S)).contains("aligned"));
    assert!(text_of(resource.allocate(100, 256, S)).contains("second time"));
    assert!(text_of(resource.allocate(100, 256, S)).contains("overlap"));
    assert!(text_of(resource.allocate(512, 256, S)).contains("overlap"));
    assert!(text_of(resource.allocate(4096, 256, S)).contains("address space"));
    assert_eq!(resource.body().info(), before);
    // Given back: what is surely not the live block.
    let given_back = [(0x20080, 100, 256), (0x10100, 100, 256), (0xff00, 512, 256), (u64::MAX - 255, 4096, 256)];
    assert_eq!(frees(&script), given_back);
    let next = resource.allocate(64, 256, S).expect("beside the first");
    resource.deallocate(first, 4096, 256, S).expect("mine");
    resource.deallocate(next, 64, 256, S).expect("mine");
    assert_eq!(resource.body().info().live_bytes, 0);
}

#[test]
fn a_failed_free_is_reported_and_stands() {
    let (script, resource) = scripted([Ok(0x10000), Ok(0x10000)], true);
    let ptr = resource.allocate(100, 256, S).expect("made");
    resource.deallocate(ptr, 100, 256, S).expect("a failing callback does not stop a free");
    let failed = script.failed.lock().expect("unpoisoned").clone();
    assert_eq!(failed, [(ptr, "no free today".to_owned())]);
    assert_eq!(resource.body().property("failed_frees"), Some(1));
    assert_eq!(resource.body().info().live_count, 0);
    match resource.deallocate(ptr, 100, 256, S) {
        Err(Error::Misuse(m)) => assert_eq!(m.kind, MisuseKind::DoubleFree),
        other => panic!("{other:?}"),
    }
    // The address may come back: it is not taken for in use.
    let again = resource.allocate(100, 256, S).expect("made");
    resource.deallocate(again, 100, 256, S).expect("mine");
}

#[test]
fn an_error_of_an_allocation_comes_back_as_it_was_made() {
    static RELEASED: OnceLock<usize> = OnceLock::new();
    unsafe extern "C" fn release(data: *mut std::ffi::c_void) {
        RELEASED.set(data as usize).expect("once");
    }
    let payload = Payload { kind: 9, data: 0x1234 as *mut _, release: Some(release) };
    let (script, resource) = scripted([Err(Error::Callback("ValueError: no".into(), Some(payload)))], false);
    match resource.allocate(100, 256, S) {
        Err(Error::Callback(text, Some(payload))) => {
            assert_eq!((text.as_str(), payload.kind, payload.data as usize), ("ValueError: no", 9, 0x1234));
            assert!(RELEASED.get().is_none());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(RELEASED.get(), Some(&0x1234));
    assert_eq!(resource.body().info().live_count, 0);
    assert!(frees(&script).is_empty());
}

#[test]
fn wrong_frees_do_not_reach_the_user() {
    let (script, resource) = scripted([Ok(0x10000)], false);
    let (_, other) = scripted([], false);
    let ptr = resource.allocate(100, 256, S).expect("made");
    for (named, at, bytes) in [(&resource, ptr, 99), (&resource, ptr + 1, 100), (&resource, 5, 100), (&other, ptr, 100)]
    {
        assert!(matches!(named.deallocate(at, bytes, 256, S), Err(Error::Misuse(_))));
    }
    assert!(frees(&script).is_empty());
    // With another alignment that the address has: right, and the user sees the one of the allocation.
    resource.deallocate(ptr, 100, 16, S).expect("mine");
    assert_eq!(frees(&script), [(ptr, 100, 256)]);
}

#[test]
fn a_stored_stream_is_never_passed_on() {
    let (script, resource) = scripted([Ok(0x10000)], false);
    let ptr = resource.allocate(100, 256, S).expect("made");
    // A value that no stream has: any driver call on it would be noticed.
    // SAFETY: never passed to the driver, which is what this test shows.
    let dead = unsafe { tenure_driver::RawStream::from_raw(0xdead_0000usize as *mut _) };
    resource
        .deallocate(ptr, 100, 256, StreamRef { raw: dead, object: None, stored: true })
        .expect("freed after a wait for the device");
    assert_eq!(frees(&script).len(), 1);
}

#[test]
fn figures_are_the_books_and_the_users() {
    let (_, resource) = scripted([Ok(0x10000)], false);
    let ptr = resource.allocate(100, 256, S).expect("made");
    let info = resource.body().info();
    assert_eq!((info.live_bytes, info.live_count), (100, 1));
    assert_eq!((info.cached_bytes, info.reserved_bytes), (77, 1 << 20));
    assert_eq!(resource.body().trim(30).expect("trimmed"), 70);
    let body: &CallbackResource = resource.downcast().expect("its own type");
    assert!(body.owns(ptr + 99).expect("asked"));
    assert!(body.owns(0xabc).expect("asked"), "the user says so");
    assert!(!body.owns(0xabd).expect("asked"));
    resource.deallocate(ptr, 100, 256, S).expect("mine");
}

/// Allocates from the resource that it is the function of.
#[derive(Default)]
struct Selfish {
    target: OnceLock<Resource>,
    deepest: Mutex<u32>,
}

impl Callbacks for Arc2 {
    fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        *self.0.deepest.lock().expect("unpoisoned") += 1;
        self.0.target.get().expect("set").allocate(bytes, align, stream)
    }

    fn deallocate(&self, _: u64, _: usize, _: usize, _: StreamRef<'_>) -> Result<()> {
        Ok(())
    }
}

struct Arc2(Arc<Selfish>);

#[test]
fn a_resource_that_calls_itself_gets_an_error_and_works_on() {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let selfish = Arc::new(Selfish::default());
    let body = CallbackResource::new(Box::new(Arc2(selfish.clone())), Some(0), Properties::default());
    let resource = Resource::new(body).expect("made");
    selfish.target.set(resource.clone()).expect("once");
    for _ in 0..2 {
        *selfish.deepest.lock().expect("unpoisoned") = 0;
        match resource.allocate(100, 256, S) {
            Err(Error::Invalid(text)) => assert!(text.contains("deep"), "{text}"),
            other => panic!("{other:?}"),
        }
        // The depth is left again: the second round gets as far as the first.
        assert_eq!(*selfish.deepest.lock().expect("unpoisoned"), MAX_DEPTH);
    }
    // A resource that has nothing to do with it works on the same thread.
    let (_, other) = scripted([Ok(0x10000)], false);
    let ptr = other.allocate(8, 256, S).expect("made");
    other.deallocate(ptr, 8, 256, S).expect("mine");
}

#[test]
fn callbacks_are_dropped_with_the_last_allocation() {
    let (script, resource) = scripted([Ok(0x10000)], false);
    let ptr = resource.allocate(100, 256, S).expect("made");
    let id = resource.id();
    drop(resource);
    assert_eq!(Arc::strong_count(&script), 2, "the allocation keeps the functions");
    let again = tenure_core::resource::registry::upgrade(id).expect("alive by its allocation");
    again.deallocate(ptr, 100, 256, S).expect("mine");
    drop(again);
    assert_eq!(Arc::strong_count(&script), 1);
    assert!(tenure_core::resource::registry::upgrade(id).is_none());
}
