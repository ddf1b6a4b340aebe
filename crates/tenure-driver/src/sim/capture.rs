//! Stream capture: what is recorded, and which calls end a capture.
//!
//! While a stream captures, what is put into it is recorded as a node of a graph instead of being run. An event recorded
//! on it is a place in the graph; a stream outside that waits for such an event joins the capture, silently.
//!
//! Some calls are refused while somebody captures, and end ("kill") the capture: its `cuStreamEndCapture` answers 901.
//! [`CAPTURE_RULES`] is that knowledge as data, measured on an NVIDIA H200 with driver 580 (CUDA 13.0).

use super::codes::*;
use super::graph::Graph;
use super::machine::Machine;
use super::op::Work;
use super::stream::{Point, Role, Taking};
use super::thread;
use crate::sys::{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED};

/// Calls that treat captures alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallClass {
    /// Asks about the capturing stream without touching it.
    Question,
    /// Asks the capturing stream for its id or flags, or synchronises with it.
    Identity,
    /// Concerns the whole context.
    Context,
    /// May wait for the device or change what a captured graph relies on.
    Unsafe,
    /// Work on streams that do not capture, and virtual memory.
    Free,
    /// A capturing stream waits for an event from outside.
    Isolation,
    /// An event recorded in the capture is asked or waited for by the host.
    CapturedEvent,
    /// Asks whether the legacy stream captures, while a blocking stream of its context does.
    LegacyQuestion,
    /// Any other use of the legacy stream, while a blocking stream of its context captures.
    LegacyUse,
}

/// Who calls, seen from one capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// The thread that began it, in global or thread-local mode.
    CapturingThread = 0,
    /// Another thread, and the capture is global.
    OtherThreadGlobal = 1,
    /// Another thread, and the capture is thread-local.
    OtherThreadLocal = 2,
    /// Any thread, and the capture or the caller's mode is relaxed.
    Relaxed = 3,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call works and the capture goes on.
    Works,
    /// The call answers this code; the capture goes on.
    Refused(i32),
    /// The call answers this code and the capture is over: ending it answers 901.
    Kills(i32),
}

/// One row: a class, the calls in it, and the outcome in each [`Situation`], in its order.
#[derive(Debug, Clone, Copy)]
pub struct CaptureRule {
    /// The class.
    pub class: CallClass,
    /// Calls of the table that are in it (some are in several, depending on the stream or event that they are given).
    pub calls: &'static [&'static str],
    /// What happens, by [`Situation`].
    pub outcomes: [Outcome; 4],
}

const WORKS: [Outcome; 4] = [Outcome::Works; 4];

const fn kills(code: i32) -> [Outcome; 4] {
    [Outcome::Kills(code); 4]
}

/// What a call does while some stream is capturing.
pub const CAPTURE_RULES: &[CaptureRule] = &[
    CaptureRule {
        class: CallClass::Question,
        calls: &["cuStreamIsCapturing", "cuStreamGetCaptureInfo", "cuStreamGetCtx"],
        outcomes: WORKS,
    },
    CaptureRule {
        class: CallClass::Identity,
        calls: &["cuStreamGetId", "cuStreamGetFlags", "cuStreamSynchronize", "cuStreamQuery"],
        outcomes: kills(CAPTURE_UNSUPPORTED),
    },
    CaptureRule {
        class: CallClass::Context,
        calls: &["cuCtxSynchronize", "cuCtxRecordEvent"],
        outcomes: kills(CAPTURE_UNSUPPORTED),
    },
    CaptureRule {
        class: CallClass::Unsafe,
        calls: &[
            "cuEventQuery",
            "cuEventSynchronize",
            "cuStreamQuery",
            "cuStreamSynchronize",
            "cuMemAlloc",
            "cuMemFree",
            "cuMemAllocAsync",
            "cuMemFreeAsync",
            "cuMemAllocFromPoolAsync",
            "cuMemAllocManaged",
            "cuMemHostAlloc",
            "cuMemFreeHost",
            "cuMemHostRegister",
            "cuMemHostUnregister",
            "cuMemPoolTrimTo",
            "cuMemPoolCreate",
            "cuMemPoolSetAttribute",
        ],
        outcomes: [
            Outcome::Kills(CAPTURE_UNSUPPORTED),
            Outcome::Kills(CAPTURE_UNSUPPORTED),
            Outcome::Works,
            Outcome::Works,
        ],
    },
    CaptureRule {
        class: CallClass::Free,
        calls: &[
            "cuEventRecord",
            "cuStreamWaitEvent",
            "cuEventCreate",
            "cuEventDestroy",
            "cuStreamCreate",
            "cuStreamDestroy",
            "cuMemGetInfo",
            "cuPointerGetAttribute",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
        ],
        outcomes: WORKS,
    },
    CaptureRule { class: CallClass::Isolation, calls: &["cuStreamWaitEvent"], outcomes: kills(CAPTURE_ISOLATION) },
    CaptureRule {
        class: CallClass::CapturedEvent,
        calls: &["cuEventQuery", "cuEventSynchronize"],
        outcomes: kills(CAPTURED_EVENT),
    },
    CaptureRule {
        class: CallClass::LegacyQuestion,
        calls: &["cuStreamIsCapturing", "cuStreamGetCaptureInfo"],
        outcomes: [Outcome::Refused(CAPTURE_IMPLICIT); 4],
    },
    CaptureRule {
        class: CallClass::LegacyUse,
        calls: &[
            "cuStreamGetId",
            "cuStreamGetFlags",
            "cuStreamGetCtx",
            "cuStreamSynchronize",
            "cuStreamQuery",
            "cuEventRecord",
            "cuStreamWaitEvent",
            "cuMemcpy",
            "cuMemcpyAsync",
            "cuMemcpyPeerAsync",
            "cuMemsetD8",
            "cuMemsetD8Async",
            "cuLaunchHostFunc",
        ],
        outcomes: kills(CAPTURE_IMPLICIT),
    },
];

/// What happens when a call of `class` is made in `situation`.
#[must_use]
pub fn capture_outcome(class: CallClass, situation: Situation) -> Outcome {
    let rule = CAPTURE_RULES.iter().find(|r| r.class == class);
    rule.map_or(Outcome::Works, |r| r.outcomes[situation as usize])
}

/// One capture under way.
pub(super) struct Capture {
    pub(super) id: u64,
    pub(super) mode: u32,
    pub(super) owner: u64,
    pub(super) origin: u64,
    pub(super) device: usize,
    pub(super) graph: usize,
    pub(super) dead: bool,
    /// Whether a blocking stream takes part.
    pub(super) blocking: bool,
    /// The streams that take part.
    pub(super) streams: Vec<u64>,
    /// The last nodes of streams that were destroyed.
    orphans: Vec<usize>,
    /// Handles of nodes, kept for `cuStreamGetCaptureInfo`, which gives out a pointer to them.
    pub(super) told: Vec<usize>,
}

impl Capture {
    fn situation(&self) -> Situation {
        if self.mode == CU_STREAM_CAPTURE_MODE_RELAXED || thread::mode() == CU_STREAM_CAPTURE_MODE_RELAXED {
            Situation::Relaxed
        } else if self.owner == thread::id() {
            Situation::CapturingThread
        } else if self.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread::mode() == CU_STREAM_CAPTURE_MODE_GLOBAL {
            Situation::OtherThreadGlobal
        } else {
            Situation::OtherThreadLocal
        }
    }
}

impl Machine {
    /// Applies the rules to the captures that `concerns` selects: kills those that the call kills.
    ///
    /// # Errors
    ///
    /// The code that the call must answer.
    pub(super) fn judge(&mut self, class: CallClass, concerns: impl Fn(&Capture) -> bool) -> Result<(), i32> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        for c in self.captures.values_mut().filter(|c| concerns(c)) {
            match capture_outcome(class, c.situation()) {
                Outcome::Works => {}
                Outcome::Refused(code) => result = Err(code),
                Outcome::Kills(code) => {
                    c.dead = true;
                    result = Err(code);
                }
            }
        }
        result
    }

    /// The rule for calls that are unsafe beside any capture of the process.
    pub(super) fn judge_unsafe(&mut self) -> Result<(), i32> {
        self.judge(CallClass::Unsafe, |_| true)
    }

    /// The rule for a call of a class that concerns one stream: the capture it takes part in, or, for the legacy stream,
    /// those of blocking streams.
    pub(super) fn judge_stream(&mut self, uid: u64, own: CallClass, legacy: CallClass) -> Result<(), i32> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let s = self.stream(uid)?;
        let (device, role, taking) = (s.device, s.role, s.taking.as_ref().map(|t| t.capture));
        if role == Role::Legacy {
            self.judge(legacy, |c| c.device == device && c.blocking)
        } else if let Some(id) = taking {
            self.judge(own, |c| c.id == id)
        } else {
            Ok(())
        }
    }

    /// The capture that a stream takes part in.
    pub(super) fn capture_of(&self, uid: u64) -> Option<&Capture> {
        let id = self.streams.get(&uid)?.taking.as_ref()?.capture;
        self.captures.get(&id)
    }

    /// Puts an operation into a stream, or into the graph that the stream captures (then the answer is `None`).
    pub(super) fn submit(
        &mut self,
        uid: u64,
        work: Work,
        then: Vec<Work>,
        extra: &[Point],
    ) -> Result<Option<Point>, i32> {
        if self.captures.is_empty() {
            return Ok(Some(self.enqueue(uid, work, then, extra)));
        }
        self.judge_stream(uid, CallClass::Question, CallClass::LegacyUse)?;
        let Some(c) = self.capture_of(uid) else {
            return Ok(Some(self.enqueue(uid, work, then, extra)));
        };
        if c.dead {
            return Err(CAPTURE_INVALIDATED);
        }
        let graph = c.graph;
        // A record is an edge, not a node.
        if !matches!(work, Work::Record { .. }) {
            let tail = self.stream(uid)?.taking.as_ref().map(|t| t.tail.clone()).unwrap_or_default();
            let node = self.graph(graph)?.add(work, then, tail);
            if let Some(t) = &mut self.stream(uid)?.taking {
                t.tail = vec![node];
            }
        }
        Ok(None)
    }

    pub(super) fn begin_capture(&mut self, uid: u64, mode: u32) -> Result<(), i32> {
        if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(INVALID_VALUE);
        }
        let s = self.stream(uid)?;
        if s.role == Role::Legacy {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if s.taking.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let (device, blocking) = (s.device, s.blocking);
        self.next_capture += 1;
        let id = self.next_capture;
        let graph = self.graphs.insert(Graph::default());
        self.stream(uid)?.taking = Some(Taking { capture: id, tail: Vec::new() });
        let capture = Capture {
            id,
            mode,
            owner: thread::id(),
            origin: uid,
            device,
            graph,
            dead: false,
            blocking,
            streams: vec![uid],
            orphans: Vec::new(),
            told: Vec::new(),
        };
        self.captures.insert(id, capture);
        Ok(())
    }

    /// A stream waits for an event of a capture: it joins, or adds an edge.
    pub(super) fn join_capture(&mut self, uid: u64, capture: u64, nodes: &[usize]) -> Result<(), i32> {
        let s = self.stream(uid)?;
        let (role, blocking, other) = (s.role, s.blocking, s.taking.as_ref().map(|t| t.capture));
        let Some(c) = self.captures.get_mut(&capture) else {
            return Err(INVALID_VALUE);
        };
        if c.dead {
            return Err(CAPTURE_INVALIDATED);
        }
        if role == Role::Legacy {
            c.dead = true;
            return Err(CAPTURE_IMPLICIT);
        }
        match other {
            None => {
                c.blocking |= blocking;
                c.streams.push(uid);
                self.stream(uid)?.taking = Some(Taking { capture, tail: nodes.to_vec() });
            }
            Some(own) if own == capture => {
                if let Some(t) = &mut self.stream(uid)?.taking {
                    let new = nodes.iter().filter(|n| !t.tail.contains(n)).copied().collect::<Vec<_>>();
                    t.tail.extend(new);
                }
            }
            Some(own) => {
                c.dead = true;
                if let Some(c) = self.captures.get_mut(&own) {
                    c.dead = true;
                }
                return Err(CAPTURE_MERGE);
            }
        }
        Ok(())
    }

    /// A stream that takes part in a capture is destroyed. With its origin the capture disappears; of another stream
    /// only what it recorded stays, and must be joined like that of the others.
    pub(super) fn leave_capture(&mut self, uid: u64) {
        let Some(taking) = self.streams.get_mut(&uid).and_then(|s| s.taking.take()) else { return };
        let Some(c) = self.captures.get_mut(&taking.capture) else { return };
        c.streams.retain(|s| *s != uid);
        c.orphans.extend(taking.tail);
        if c.origin == uid
            && let Some(c) = self.captures.remove(&taking.capture)
        {
            for s in &c.streams {
                if let Some(s) = self.streams.get_mut(s) {
                    s.taking = None;
                }
            }
            self.graph_destroy(c.graph).ok();
        }
    }

    /// Ends the capture that began on a stream and returns its graph.
    pub(super) fn end_capture(&mut self, uid: u64) -> Result<usize, i32> {
        let Some(c) = self.capture_of(uid) else {
            return Err(ILLEGAL_STATE);
        };
        let id = c.id;
        let wrong = c.mode != CU_STREAM_CAPTURE_MODE_RELAXED && c.owner != thread::id();
        if c.origin != uid {
            if let Some(c) = self.captures.get_mut(&id) {
                c.dead = true;
            }
            return Err(CAPTURE_UNMATCHED);
        }
        let Some(c) = self.captures.remove(&id) else {
            return Err(ILLEGAL_STATE);
        };
        let mut tails = Vec::new();
        for s in &c.streams {
            if let Some(s) = self.streams.get_mut(s) {
                tails.push(s.taking.take().map(|t| t.tail).unwrap_or_default());
            }
        }
        let joined = self.graphs.get(c.graph).is_some_and(|g| {
            let (origin, others) = tails.split_first().map_or((&[][..], &[][..]), |(a, b)| (&a[..], b));
            let before = g.ancestors(origin);
            others.iter().flatten().chain(&c.orphans).all(|n| before.contains(n))
        });
        let verdict = if wrong {
            // Over as well, although nobody has the graph.
            Err(CAPTURE_WRONG_THREAD)
        } else if c.dead {
            Err(CAPTURE_INVALIDATED)
        } else if !joined {
            Err(CAPTURE_UNJOINED)
        } else {
            Ok(())
        };
        if let Err(code) = verdict {
            self.graph_destroy(c.graph)?;
            return Err(code);
        }
        Ok(c.graph)
    }
}
