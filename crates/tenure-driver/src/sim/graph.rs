//! Graphs made by captures, their executables, and user objects.
//!
//! A graph holds the recorded operations with their edges. A launch is one operation of its stream: it runs the nodes one
//! after another, in the recorded order or, under a seeded schedule, in a random one that respects the edges. Launches
//! of one executable follow each other.
//!
//! A user object that a graph retains is destroyed when the graph, its executables and their running launches are all
//! gone, by a function that the device calls on the host. Memory allocated while captured lives equally long.

use std::collections::{BTreeMap, HashSet};

use super::codes::*;
use super::handle::Kind;
use super::machine::Machine;
use super::memory::{LARGE, Owner};
use super::op::{HostFn, Work};
use super::queue::Callback;
use super::stream::{Clock, Point};
use crate::sync::Arc;

#[derive(Clone)]
struct Node {
    work: Work,
    then: Vec<Work>,
    deps: Vec<usize>,
}

/// What a graph and its executables keep alive.
#[derive(Clone, Default)]
struct Held {
    /// References to user objects, by handle.
    objects: BTreeMap<usize, u32>,
    /// The memory allocated while captured, shared by the graph and its executables.
    memory: Option<Arc<GraphMemory>>,
}

struct GraphMemory {
    id: u64,
    segments: crate::sync::Mutex<Vec<u64>>,
}

#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    held: Held,
}

impl Graph {
    pub(super) fn add(&mut self, work: Work, then: Vec<Work>, deps: Vec<usize>) -> usize {
        self.nodes.push(Node { work, then, deps });
        self.nodes.len() - 1
    }

    /// The nodes and everything before them.
    pub(super) fn ancestors(&self, nodes: &[usize]) -> HashSet<usize> {
        let mut seen: HashSet<usize> = nodes.iter().copied().collect();
        let mut todo: Vec<usize> = nodes.to_vec();
        while let Some(n) = todo.pop() {
            for d in self.nodes.get(n).map(|n| n.deps.as_slice()).unwrap_or_default() {
                if seen.insert(*d) {
                    todo.push(*d);
                }
            }
        }
        seen
    }
}

pub(super) struct Exec {
    nodes: Arc<[Node]>,
    held: Held,
    running: usize,
    destroyed: bool,
    last: Option<Point>,
    /// Everything that was before the ends of its launches.
    clock: Clock,
}

pub(super) struct UserObject {
    destroy: HostFn,
    data: usize,
    references: u32,
}

impl Machine {
    pub(super) fn graph(&mut self, handle: usize) -> Result<&mut Graph, i32> {
        if handle == 0 {
            return Err(INVALID_VALUE);
        }
        if self.graphs.get(handle).is_none() {
            let issued = self.graphs.was_issued(handle);
            return Err(self.bad_handle(Kind::Graph, handle, issued));
        }
        self.graphs.get_mut(handle).ok_or(INVALID_VALUE)
    }

    fn exec_number(&mut self, handle: usize) -> Result<u64, i32> {
        if handle == 0 {
            return Err(INVALID_VALUE);
        }
        match self.exec_handles.get(handle) {
            Some(id) => Ok(*id),
            None => {
                let issued = self.exec_handles.was_issued(handle);
                Err(self.bad_handle(Kind::Exec, handle, issued))
            }
        }
    }

    fn object(&mut self, handle: usize) -> Result<&mut UserObject, i32> {
        if handle == 0 {
            return Err(INVALID_VALUE);
        }
        if self.objects.get(handle).is_none() {
            let issued = self.objects.was_issued(handle);
            return Err(self.bad_handle(Kind::UserObject, handle, issued));
        }
        self.objects.get_mut(handle).ok_or(INVALID_VALUE)
    }

    pub(super) fn graph_destroy(&mut self, handle: usize) -> Result<(), i32> {
        self.graph(handle)?;
        if self.captures.values().any(|c| c.graph == handle) {
            return Err(INVALID_VALUE);
        }
        if let Some(g) = self.graphs.remove(handle) {
            self.let_go(g.held);
        }
        Ok(())
    }

    pub(super) fn instantiate(&mut self, graph: usize) -> Result<usize, i32> {
        let g = self.graph(graph)?;
        let (nodes, held): (Arc<[Node]>, Held) = (g.nodes.clone().into(), g.held.clone());
        for (object, n) in &held.objects {
            if let Some(o) = self.objects.get_mut(*object) {
                o.references += n;
            }
        }
        self.next_exec += 1;
        let id = self.next_exec;
        self.execs.insert(id, Exec { nodes, held, running: 0, destroyed: false, last: None, clock: Clock::default() });
        Ok(self.exec_handles.insert(id))
    }

    pub(super) fn exec_destroy(&mut self, handle: usize) -> Result<(), i32> {
        let id = self.exec_number(handle)?;
        self.exec_handles.remove(handle);
        if let Some(e) = self.execs.get_mut(&id) {
            e.destroyed = true;
        }
        self.exec_end(id);
        Ok(())
    }

    pub(super) fn launch(&mut self, handle: usize, uid: u64) -> Result<(), i32> {
        let id = self.exec_number(handle)?;
        if self.capture_of(uid).is_some() {
            // A graph inside a graph is not simulated.
            return Err(NOT_SUPPORTED);
        }
        let e = self.execs.get_mut(&id).ok_or(INVALID_VALUE)?;
        e.running += 1;
        let extra: Vec<Point> = e.last.into_iter().collect();
        match self.submit(uid, Work::Graph { exec: id }, Vec::new(), &extra) {
            Ok(point) => {
                if let Some(e) = self.execs.get_mut(&id) {
                    e.last = point;
                }
                Ok(())
            }
            Err(code) => {
                self.launch_ended(id, &Clock::default());
                Err(code)
            }
        }
    }

    /// The operations of one launch, last first.
    pub(super) fn expand(&mut self, exec: u64) -> Vec<Work> {
        let Some(nodes) = self.execs.get(&exec).map(|e| Arc::clone(&e.nodes)) else {
            return Vec::new();
        };
        let mut missing: Vec<usize> = nodes.iter().map(|n| n.deps.len()).collect();
        let mut free: Vec<usize> = (0..nodes.len()).filter(|n| missing[*n] == 0).collect();
        let mut order = Vec::with_capacity(nodes.len());
        while !free.is_empty() {
            let at = self.choose(free.len());
            let n = free.remove(at);
            order.push(nodes[n].work.clone());
            order.extend(nodes[n].then.iter().rev().cloned());
            for (later, node) in nodes.iter().enumerate() {
                let hits = node.deps.iter().filter(|d| **d == n).count();
                if hits > 0 {
                    missing[later] -= hits;
                    if missing[later] == 0 {
                        free.push(later);
                    }
                }
            }
        }
        order.reverse();
        order
    }

    pub(super) fn launch_ended(&mut self, exec: u64, clock: &Clock) {
        if let Some(e) = self.execs.get_mut(&exec) {
            e.running -= 1;
            e.clock.join(clock);
        }
        self.exec_end(exec);
    }

    fn exec_end(&mut self, id: u64) {
        let over = self.execs.get(&id).is_some_and(|e| e.destroyed && e.running == 0);
        if over && let Some(e) = self.execs.remove(&id) {
            // The destructor of a user object tells the host that the launches are over.
            self.learn(&e.clock);
            self.let_go(e.held);
        }
    }

    fn let_go(&mut self, held: Held) {
        for (object, n) in held.objects {
            self.object_release(object, n);
        }
        if let Some(memory) = held.memory.and_then(Arc::into_inner) {
            let mine = |b: &super::memory::Block| b.owner == Owner::Graph(memory.id);
            self.memory.blocks.retain(|_, b| !mine(b));
            for at in memory.segments.into_inner() {
                self.give_segment(at);
            }
        }
    }

    pub(super) fn object_create(&mut self, destroy: HostFn, data: usize, references: u32) -> usize {
        self.objects.insert(UserObject { destroy, data, references })
    }

    /// Gives references back; with the last one the destructor is owed.
    fn object_release(&mut self, handle: usize, n: u32) {
        let Some(o) = self.objects.get_mut(handle) else {
            return;
        };
        o.references = o.references.saturating_sub(n);
        if o.references == 0
            && let Some(o) = self.objects.remove(handle)
        {
            self.owe(Callback { function: o.destroy, data: o.data, then: None });
        }
    }

    pub(super) fn object_release_checked(&mut self, handle: usize, n: u32) -> Result<(), i32> {
        let o = self.object(handle)?;
        if n == 0 || n > o.references {
            return Err(INVALID_VALUE);
        }
        self.object_release(handle, n);
        Ok(())
    }

    /// A graph takes `n` references: new ones, or with `moved` the caller's.
    pub(super) fn graph_retain(&mut self, graph: usize, object: usize, n: u32, moved: bool) -> Result<(), i32> {
        self.graph(graph)?;
        let o = self.object(object)?;
        if n == 0 || (moved && n > o.references) {
            return Err(INVALID_VALUE);
        }
        if !moved {
            o.references = o.references.checked_add(n).ok_or(INVALID_VALUE)?;
        }
        *self.graph(graph)?.held.objects.entry(object).or_default() += n;
        Ok(())
    }

    /// Allocates on a capturing stream: memory that lives as long as the graph and its executables.
    pub(super) fn graph_alloc(&mut self, uid: u64, bytes: u64) -> Result<u64, i32> {
        let Some(c) = self.capture_of(uid) else {
            return Err(ILLEGAL_STATE);
        };
        if c.dead {
            return Err(CAPTURE_INVALIDATED);
        }
        let (id, graph, device) = (c.id, c.graph, c.device);
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let taken = bytes.checked_next_multiple_of(LARGE).ok_or(OUT_OF_MEMORY)?;
        let at = self.take_segment(device, taken)?;
        self.memory.add(at, bytes, taken, device, Owner::Graph(id));
        let held = &mut self.graph(graph)?.held;
        let memory = held
            .memory
            .get_or_insert_with(|| Arc::new(GraphMemory { id, segments: crate::sync::Mutex::new(Vec::new()) }));
        memory.segments.lock().push(at);
        self.submit(uid, Work::Marker, Vec::new(), &[])?;
        Ok(at)
    }
}
