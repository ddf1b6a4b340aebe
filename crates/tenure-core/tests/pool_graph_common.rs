//! Captures and graphs for the pool's tests. Not a test by itself.

#![allow(missing_docs, dead_code)]

use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::MemoryResource;
use tenure_driver::sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUgraph,
    CUgraphExec,
};
use tenure_driver::{Driver, RawStream, sim};

#[path = "pool_common.rs"]
mod common;

pub(crate) use common::*;

pub(crate) const MODES: [u32; 3] =
    [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED];

pub(crate) fn driver() -> &'static Driver {
    tenure_core::device::driver().unwrap()
}

pub(crate) fn current() -> tenure_driver::Current {
    driver().device(0).unwrap().enter().unwrap()
}

pub(crate) fn begin(stream: RawStream, mode: u32) {
    driver().stream_begin_capture(stream, mode).unwrap();
}

pub(crate) fn write(stream: RawStream, ptr: u64, bytes: u64, byte: u8) {
    sim::launch(stream.as_raw(), &[], &[(ptr, bytes as usize, byte)]).unwrap();
}

pub(crate) fn verify(stream: RawStream, ptr: u64, bytes: u64, byte: u8) {
    let access = sim::Access::Verify { at: ptr, len: bytes as usize, byte };
    sim::launch_for(stream.as_raw(), std::time::Duration::ZERO, &[access]).unwrap();
}

pub(crate) fn settle() {
    tenure_core::device::prove(0).unwrap();
}

/// A graph and its executable.
pub(crate) struct Graph {
    graph: CUgraph,
    exec: CUgraphExec,
}

impl Graph {
    pub(crate) fn end(stream: RawStream) -> Self {
        let graph = driver().stream_end_capture(stream).expect("the capture is still valid");
        // SAFETY: made just now.
        let exec = unsafe { driver().graph_instantiate(graph, 0) }.unwrap();
        Self { graph, exec }
    }

    pub(crate) fn launch(&self, stream: RawStream) {
        // SAFETY: it exists, and its memory lives as long as it does.
        unsafe { driver().graph_launch(self.exec, stream) }.unwrap();
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both are this value's.
        unsafe {
            driver().graph_exec_destroy(self.exec).unwrap();
            driver().graph_destroy(self.graph).unwrap();
        }
    }
}

pub(crate) fn graph_bytes(pool: &Pool) -> u64 {
    pool.property("graph_bytes").unwrap()
}

/// The driver tells the end of a graph on a thread of its own: looks with `look` until so many arenas are left.
pub(crate) fn wait_for(pool: &Pool, arenas: u64, look: impl Fn(&Pool)) {
    for _ in 0..2000 {
        look(pool);
        if pool.property("graph_arenas") == Some(arenas) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{:?} arenas, and not {arenas}", pool.property("graph_arenas"));
}

pub(crate) fn trimmed(pool: &Pool) {
    pool.trim(0).unwrap();
}

pub(crate) fn in_graph(pool: &Pool, ptr: u64) -> bool {
    MemoryResource::capture_of(pool, ptr).is_some()
}

pub(crate) fn resource_over(options: PoolOptions) -> tenure_core::resource::Resource {
    resource(pool(options))
}
