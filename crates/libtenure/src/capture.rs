//! Captures: arenas that graphs share, scopes, and small graphs for tests.

use tenure_abi::*;
use tenure_core::device;
use tenure_core::error::{Error, Result};
use tenure_core::pool::{CaptureScope, SharedArena};
use tenure_core::stream::StreamHold;
use tenure_driver::sys::{CUgraph, CUgraphExec};
use tenure_driver::{Current, Driver};

use crate::guard::exports;
use crate::handles::{stream, writable, write};
use crate::slab::{FEW, Slab};

static ARENAS: Slab<SharedArena, (), FEW> = Slab::new(4, "shared arena", |_| ());
static GRAPHS: Slab<Graph, (), FEW> = Slab::new(6, "graph", |_| ());

fn arena(handle: tenure_shared_arena) -> Result<Option<SharedArena>> {
    if handle == 0 {
        return Ok(None);
    }
    ARENAS.peek(handle, |arena| arena.clone()).map(Some)
}

/// A graph that was captured for a test, and its executable.
struct Graph {
    driver: &'static Driver,
    graph: usize,
    exec: usize,
}

impl Graph {
    fn end(hold: &StreamHold) -> Result<Self> {
        let (driver, _current) = enter(hold)?;
        let graph = driver.stream_end_capture(hold.value())?;
        // SAFETY: made just now.
        match unsafe { driver.graph_instantiate(graph, 0) } {
            Ok(exec) => Ok(Self { driver, graph: graph.expose_provenance(), exec: exec.expose_provenance() }),
            Err(e) => {
                // SAFETY: as above; nobody has it.
                let _ = unsafe { driver.graph_destroy(graph) };
                Err(e.into())
            }
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both are this value's alone. A failure leaves them to the driver.
        unsafe {
            let _ =
                self.driver.graph_exec_destroy(std::ptr::with_exposed_provenance_mut::<()>(self.exec) as CUgraphExec);
            let _ = self.driver.graph_destroy(std::ptr::with_exposed_provenance_mut::<()>(self.graph) as CUgraph);
        }
    }
}

/// The device of a stream, current.
fn enter(hold: &StreamHold) -> Result<(&'static Driver, Current)> {
    let driver = device::driver()?;
    let current = driver.device(device::home_or_current(hold.as_carried())?)?.enter()?;
    Ok((driver, current))
}

exports! { guard:
    fn tenure_shared_arena_create(out: *mut tenure_shared_arena) {
        writable(out)?;
        write(out, ARENAS.insert(SharedArena::new())?)?;
    }

    fn tenure_capture_scope_enter(
        given: tenure_stream, arena: tenure_shared_arena, out: *mut tenure_capture_scope,
    ) {
        writable(out)?;
        write(out, CaptureScope::enter(stream(given)?, self::arena(arena)?)?.into_token())?;
    }

    fn tenure_sim_capture_begin(given: tenure_stream, mode: u32) {
        if mode > 2 {
            return Err(Error::invalid(format!(
                "the mode of a capture is {mode}: it must be 0 (global), 1 (thread-local) or 2 (relaxed)"
            )));
        }
        let hold = stream(given)?;
        let (driver, _current) = enter(&hold)?;
        driver.stream_begin_capture(hold.value(), mode)?;
    }

    fn tenure_sim_capture_end(given: tenure_stream, out: *mut tenure_graph) {
        writable(out)?;
        let graph = Graph::end(&stream(given)?)?;
        write(out, GRAPHS.insert(graph)?)?;
    }

    fn tenure_sim_graph_launch(graph: tenure_graph, given: tenure_stream) {
        let hold = stream(given)?;
        let (driver, _current) = enter(&hold)?;
        // No driver call is made under the place's lock; whoever destroys the graph meanwhile breaks his word.
        let exec = GRAPHS.peek(graph, |graph| graph.exec)?;
        // SAFETY: the executable exists, and its memory lives as long as its graph.
        unsafe { driver.graph_launch(std::ptr::with_exposed_provenance_mut::<()>(exec) as CUgraphExec, hold.value()) }?;
    }
}

exports! { guard_release:
    fn tenure_shared_arena_release(arena: tenure_shared_arena) {
        drop(ARENAS.remove(arena, |_| Ok(()))?);
    }

    fn tenure_capture_scope_exit(scope: tenure_capture_scope) {
        CaptureScope::exit(scope)?;
    }

    fn tenure_sim_graph_destroy(graph: tenure_graph) {
        drop(GRAPHS.remove(graph, |_| Ok(()))?);
    }
}
