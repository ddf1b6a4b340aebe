//! A call reads the table of current resources once, before anything else (rule 5).
//!
//! The current resource is one of user functions that replaces itself by a trap in the middle of the call. Whatever reads
//! the table a second time, on whatever path, meets the trap.

#![allow(missing_docs)]

mod scenario;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use scenario::{LEGACY, MIB, machine, stream};
use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::buffer::{Buffer, resolve};
use tenure_core::current;
use tenure_core::error::{Error, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::callback::{CallbackResource, Callbacks};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Properties, Resource};
use tenure_core::stream::{StreamHold, StreamRef};

/// Refuses, and counts who came.
struct Trap(Arc<AtomicUsize>);

impl Callbacks for Trap {
    fn kind(&self) -> &str {
        "trap"
    }
    fn allocate(&self, _: usize, _: usize, _: StreamRef<'_>) -> Result<u64> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::Callback("the table was read twice".into(), None))
    }
    fn deallocate(&self, _: u64, _: usize, _: usize, _: StreamRef<'_>) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::Callback("the table was read twice".into(), None))
    }
}

/// Puts the trap into the table whenever it is asked for something, then serves from plain memory.
struct Switch {
    plain: Resource,
    trap: Resource,
    calls: Arc<AtomicUsize>,
}

impl Switch {
    fn flip(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        for device in 0..2 {
            drop(current::set(device, self.trap.clone())?);
        }
        Ok(())
    }
}

impl Callbacks for Switch {
    fn kind(&self) -> &str {
        "switch"
    }
    fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        self.flip()?;
        self.plain.allocate(bytes, align, stream)
    }
    fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        self.flip()?;
        self.plain.deallocate(ptr, bytes, align, stream)
    }
}

struct Set {
    switch: Resource,
    trapped: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

fn set() -> Set {
    let (trapped, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let properties = Properties { device_accessible: true, ..Properties::default() };
    let made = |callbacks: Box<dyn Callbacks>| {
        Resource::new(CallbackResource::new(callbacks, None, properties)).expect("a resource")
    };
    let trap = made(Box::new(Trap(trapped.clone())));
    let plain = shared::cuda().expect("plain memory");
    let switch = made(Box::new(Switch { plain, trap, calls: calls.clone() }));
    Set { switch, trapped, calls }
}

/// Runs `call` with `resource` current, and checks that only that one was asked.
fn once(set: &Set, resource: &Resource, call: impl FnOnce(&StreamHold)) {
    let home = stream(0).expect("a stream");
    drop(current::set(0, resource.clone()).expect("set"));
    let before = set.calls.load(Ordering::SeqCst);
    call(&home);
    assert!(set.calls.load(Ordering::SeqCst) > before, "the switch was in the way");
    assert_eq!(set.trapped.load(Ordering::SeqCst), 0, "something read the table again");
    for device in 0..2 {
        drop(current::reset(device).expect("reset"));
    }
}

#[test]
fn what_is_current_when_a_call_begins_serves_all_of_it() {
    let _machine = machine();
    let set = set();
    let limiting = Resource::new(Limiting::new(set.switch.clone(), 64 << 20)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting)).expect("made");
    let pool = |options: PoolOptions, up: &Resource| {
        Resource::new(Pool::new(up.clone(), 0, options).expect("a pool")).expect("made")
    };
    let bounded = PoolOptions { maximum_bytes: Some(16 << 20), ..PoolOptions::default() };
    let stacks = [set.switch.clone(), statistics.clone(), pool(bounded, &set.switch), pool(bounded, &statistics)];
    for resource in &stacks {
        let kind = resource.stack();
        once(&set, resource, |home| {
            // Made, and everything that a buffer does later, under what was current at its making.
            let light = resolve(None, home.as_carried()).expect("current");
            let mut buffer = Buffer::create(MIB, 256, home.clone(), light).expect(&kind);
            assert_eq!(buffer.resource(), Some(&**resource), "{kind}");
            buffer.resize(3 * MIB, home.clone()).expect(&kind);
            buffer.reserve(5 * MIB, home.clone()).expect(&kind);
            buffer.shrink_to_fit(home.clone()).expect(&kind);
            let named = buffer.copy(home.clone(), resource.light()).expect(&kind);
            assert_eq!(named.resource(), Some(&**resource), "{kind}");
            buffer.close(None).expect(&kind);
        });
        once(&set, resource, |home| {
            // A raw allocation, and one that waits.
            let ptr = resource.allocate(6 * MIB, 256, home.as_carried()).expect(&kind);
            resource.deallocate(ptr, 6 * MIB, 256, home.as_carried()).expect(&kind);
            let ptr = resource.allocate_sync(7 * MIB, 256).expect(&kind);
            resource.deallocate_sync(ptr, 7 * MIB, 256).expect(&kind);
            resource.body().trim(0).expect(&kind);
            let ptr = resource.allocate(MIB, 256, LEGACY).expect(&kind);
            resource.deallocate(ptr, MIB, 256, LEGACY).expect(&kind);
        });
    }
    // The ends of things too: pools give their chunks back to the resource they came from.
    once(&set, &set.switch.clone(), |_| drop(stacks));
    drop(statistics);
    assert_eq!(set.trapped.load(Ordering::SeqCst), 0);
}

#[test]
fn the_trap_is_where_a_second_reading_would_be() {
    // The test above can fail: a call that resolves twice meets the trap.
    let _machine = machine();
    let set = set();
    drop(current::set(0, set.switch.clone()).expect("set"));
    let first = resolve(None, LEGACY).expect("current");
    let home = scenario::legacy();
    let buffer = Buffer::create(MIB, 256, home.clone(), first).expect("served");
    let second = resolve(None, LEGACY).expect("current");
    assert!(Buffer::create(MIB, 256, home, second).is_err());
    assert_eq!(set.trapped.load(Ordering::SeqCst), 1);
    drop(buffer);
    drop(current::reset(0).expect("reset"));
    drop(current::reset(1).expect("reset"));
}
