//! Each call of the Rust part of docs/allocating-calls.md with its resource named, while the current one refuses.

mod common;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::alone;
use tenure::{
    Arena, AsyncPool, Callbacks, DEFAULT_ALIGNMENT, Device, DeviceBuffer, DeviceScalar, DeviceVec, Error, FixedSize,
    Pool, Request, Resource, Result, Stream, StreamRef, current,
};

const BYTES: usize = 1000;

/// Refuses, and counts who came.
struct Refusing(Arc<AtomicUsize>);

// SAFETY: it hands out no memory.
unsafe impl Callbacks for Refusing {
    fn allocate(&self, _: &Request, _: StreamRef<'_>) -> Result<*mut c_void> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::callback("the current resource was asked"))
    }

    unsafe fn deallocate(&self, _: *mut c_void, _: &Request, _: StreamRef<'_>) -> Result<()> {
        Ok(())
    }
}

type Call = fn(&Stream, &Resource) -> Result<()>;

fn buffer(stream: &Stream, resource: &Resource) -> Result<DeviceBuffer> {
    DeviceBuffer::new_in(BYTES, stream, resource)
}

/// Raw memory, given back at once.
fn gives_back(resource: &Resource, ptr: *mut c_void, stream: &Stream) -> Result<()> {
    // SAFETY: allocated just now with this size and alignment, and unused.
    unsafe { resource.deallocate(ptr, BYTES, DEFAULT_ALIGNMENT, stream) }
}

/// Calls that take a resource, or use their buffer's.
const NAMED: &[(&str, Call)] = &[
    ("buffer::DeviceBuffer::new_in", |s, r| buffer(s, r).map(drop)),
    ("buffer::DeviceBuffer::new_aligned_in", |s, r| DeviceBuffer::new_aligned_in(BYTES, 4096, s, r).map(drop)),
    ("buffer::DeviceBuffer::from_host_in", |s, r| DeviceBuffer::from_host_in(&[1; BYTES], s, r).map(drop)),
    ("buffer::DeviceBuffer::resize", |s, r| buffer(s, r)?.resize(5 * BYTES, s)),
    ("buffer::DeviceBuffer::reserve", |s, r| buffer(s, r)?.reserve(5 * BYTES, s)),
    ("buffer::DeviceBuffer::shrink_to_fit", |s, r| {
        let mut buffer = buffer(s, r)?;
        buffer.resize(10, s)?;
        buffer.shrink_to_fit(s)
    }),
    ("buffer::DeviceBuffer::copy_in", |s, r| buffer(s, r)?.copy_in(s, r).map(drop)),
    ("typed::DeviceVec::new_in", |s, r| DeviceVec::<u32>::new_in(BYTES, s, r).map(drop)),
    ("typed::DeviceVec::from_host_in", |s, r| DeviceVec::from_host_in(&[7u32; 10], s, r).map(drop)),
    ("typed::DeviceVec::resize", |s, r| DeviceVec::<u32>::new_in(1, s, r)?.resize(BYTES, s)),
    ("typed::DeviceVec::reserve", |s, r| DeviceVec::<u32>::new_in(1, s, r)?.reserve(BYTES, s)),
    ("typed::DeviceVec::copy_in", |s, r| DeviceVec::<u32>::new_in(BYTES, s, r)?.copy_in(s, r).map(drop)),
    ("typed::DeviceScalar::new_in", |s, r| DeviceScalar::new_in(3.5f64, s, r).map(drop)),
    ("resource::Resource::allocate", |s, r| gives_back(r, r.allocate(BYTES, s)?, s)),
    ("resource::Resource::allocate_aligned", |s, r| gives_back(r, r.allocate_aligned(BYTES, 256, s)?, s)),
    ("resource::Resource::allocate_sync", |s, r| gives_back(r, r.allocate_sync(BYTES, 256)?, s)),
    ("resource::Resource::allocate_many", |s, r| {
        r.allocate_many(&[BYTES, BYTES], s)?.into_iter().try_for_each(|ptr| gives_back(r, ptr, s))
    }),
    ("buffer::DeviceBuffer::many_in", |s, r| DeviceBuffer::many_in(&[BYTES, 0], s, r).map(drop)),
    ("pool::PoolBuilder::build", |s, r| {
        let pool = Pool::builder(&Device::current()?).upstream(r).plain_chunks(true).initial_size(1 << 21).build()?;
        // Growth as well.
        DeviceBuffer::new_in(1 << 23, s, &pool).map(drop)
    }),
    ("bins::FixedSizeBuilder::build", |s, r| {
        let blocks = FixedSize::builder(&Device::current()?).upstream(r).block_size(1 << 20).blocks_to_preallocate(2);
        let blocks = blocks.build()?;
        let all: Result<Vec<_>> = (0..3).map(|_| DeviceBuffer::new_in(BYTES, s, &blocks)).collect();
        all.map(drop)
    }),
    ("bins::ArenaBuilder::build", |s, r| {
        let arena = Arena::builder(&Device::current()?).upstream(r).arena_size(1 << 21).build()?;
        DeviceBuffer::new_in(BYTES, s, &arena).map(drop)
    }),
    ("pool::AsyncPoolBuilder::build", |s, _| {
        let pool = AsyncPool::builder(&Device::current()?).initial_size(1 << 20).build()?;
        DeviceBuffer::new_in(BYTES, s, &pool).map(drop)
    }),
    ("report::replay", |_, _| {
        let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/gnn_train.dev0.csv");
        tenure::replay(&format!(r#"{{"log": "{log}", "resource": "cuda", "repeat": 1}}"#), |_, _| true).map(drop)
    }),
];

/// Those that take the current one, each of which has a twin above.
const CURRENT: &[(&str, Call)] = &[
    ("buffer::DeviceBuffer::new", |s, _| DeviceBuffer::new(BYTES, s).map(drop)),
    ("buffer::DeviceBuffer::copy", |s, r| buffer(s, r)?.copy(s).map(drop)),
    ("typed::DeviceVec::new", |s, _| DeviceVec::<u32>::new(BYTES, s).map(drop)),
    ("typed::DeviceVec::from_host", |s, _| DeviceVec::from_host(&[7u32; 10], s).map(drop)),
    ("typed::DeviceScalar::new", |s, _| DeviceScalar::new(3.5f64, s).map(drop)),
];

#[test]
fn each_call_asks_the_named_resource_only() {
    let _alone = alone();
    let asked = Arc::new(AtomicUsize::new(0));
    let stream = Stream::create().unwrap();
    let pool = Pool::builder(&Device::current().unwrap()).build().unwrap();
    let resources = [tenure::cuda().unwrap(), pool.resource().clone(), tenure::pinned().unwrap()];
    let before = current::set(&Resource::from_callbacks(Refusing(asked.clone())).unwrap()).unwrap();
    for resource in &resources {
        for (name, call) in NAMED {
            call(&stream, resource).unwrap_or_else(|e| panic!("{name} under {}: {e}", resource.kind()));
            assert_eq!(asked.load(Ordering::SeqCst), 0, "{name} under {}", resource.kind());
        }
    }
    // The net holds: without a name, each of these meets the refusing one, once.
    for (times, (name, call)) in CURRENT.iter().enumerate() {
        let error = call(&stream, &resources[0]).expect_err(name);
        assert!(error.to_string().contains("was asked"), "{name}: {error}");
        assert_eq!(asked.load(Ordering::SeqCst), times + 1, "{name}");
    }
    drop(current::set(&before).unwrap());
}

#[test]
fn each_row_of_the_page_is_called() {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/allocating_calls.toml");
    let text = std::fs::read_to_string(table).unwrap();
    let mut rows: Vec<&str> =
        text.split("[[rust]]").skip(1).filter_map(|row| row.split("call = \"").nth(1)?.split('"').next()).collect();
    let mut called: Vec<&str> = NAMED.iter().chain(CURRENT).map(|(name, _)| *name).collect();
    rows.sort_unstable();
    called.sort_unstable();
    assert_eq!(rows, called);
}
