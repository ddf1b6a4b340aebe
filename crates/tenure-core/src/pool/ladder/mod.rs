//! What is tried when the memory at hand does not suffice, in order of what it costs others.
//!
//! ```text
//!   own and proven, classes drained     lock only                                        here
//!   harvest       events on other streams: what has completed is proven                  proof.rs     2 driver calls a stream
//!   drain         what other threads have at hand goes back; then own, proven and harvest   here         a latch a thread
//!                 again
//!   aged          much lies with raw streams that nobody has named for a while           proof.rs     waits
//!   grow          idle pages that need no wait; else new ones or a chunk; one thread at a time   growth.rs    60 us and more
//!   gather        the plots of threads that are in each other's way are given up                  here         a latch a thread
//!   wait          a block of another stream, behind an inserted wait                     waits.rs     2 driver calls
//!   anywhere      small sizes from the large zone and the other way round                here
//!   remap         idle pages mapped side by side, their old addresses left to the past   remap.rs     2 us a page
//!   proof         everything that was queued is done                                     proof.rs     waits
//!   exchange      idle pages go back, so that a growth elsewhere fits                    growth.rs    unmap, map
//!   siblings      the other pools of the device give back what is idle                   siblings.rs  waits
//!   hooks         other libraries of the process are asked to                            low_memory   theirs
//!   out of memory with every figure, and with what came of each step
//! ```
//! `prefer = footprint` puts the wait before growing. [`Rung`] names the steps, [`CONCURRENCY`] and [`FOOTPRINT`] order
//! them, [`Pool::step`] has one line for each.
//!
//! No lock is held over a driver call: what a step is about to give away is taken out of the placer first and put back if
//! the step fails.

mod growth;
mod proof;
mod remap;
mod streams;
mod waits;

use super::cache::{Lock, Which};
use super::order::{Tags, Who, cur};
use super::place::{PROVEN, UNPROVEN};
use super::serve::Asker;
use super::{Pool, Prefer, State};
use crate::error::{Error, Result, Tried};
use crate::resource::Request;
use crate::sync::atomic::Ordering;

/// Steps that change nothing lastingly may be robbed by other threads; after so many rounds the request fails.
const ROUNDS: usize = 64;

/// How often one request waits for the device: other threads may take what a proof gained.
const PROOFS: usize = 4;

/// How often one request asks the rest of the process for memory: what they say they gave may not be what it needs.
const ASKS: usize = 8;

/// What came of a step.
pub(super) enum Step {
    /// The request is served.
    Served(u64),
    /// Something changed: begin again.
    Again,
    /// Nothing to be had this way, and why.
    Nothing(&'static str),
}

/// One way to more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    AtHand,
    Harvest,
    Drain,
    Aged,
    Grow,
    Gather,
    Wait,
    Anywhere,
    Remap,
    Proof,
    Exchange,
    Siblings,
    Hooks,
}

use Rung::{Aged, Anywhere, AtHand, Drain, Exchange, Gather, Grow, Harvest, Hooks, Proof, Remap, Siblings, Wait};

/// Streams stay independent of each other as long as there is memory.
const CONCURRENCY: [Rung; 13] =
    [AtHand, Harvest, Drain, Aged, Grow, Gather, Wait, Anywhere, Remap, Proof, Exchange, Siblings, Hooks];

/// The pool stays small.
const FOOTPRINT: [Rung; 13] =
    [AtHand, Harvest, Drain, Wait, Aged, Grow, Gather, Anywhere, Remap, Proof, Exchange, Siblings, Hooks];

/// Threads are in each other's way, and streams were asked a moment ago: the pool grows first (`crowd.rs`).
const CROWD: [Rung; 13] =
    [AtHand, Drain, Aged, Grow, Harvest, Gather, Wait, Anywhere, Remap, Proof, Exchange, Siblings, Hooks];

impl Rung {
    /// Its name in an out-of-memory error.
    fn name(self) -> &'static str {
        match self {
            AtHand => "own memory",
            Harvest => "what has completed on other streams",
            Drain => "what other threads have at hand",
            Aged => "streams not seen for a while",
            Grow => "growing",
            Gather => "what other threads divide",
            Wait => "another stream's memory behind a wait",
            Anywhere => "the other zone",
            Remap => "remapping idle pages",
            Proof => "waiting for the device",
            Exchange => "exchanging idle pages",
            Siblings => "other pools",
            Hooks => "other libraries",
        }
    }
}

/// One request on its way up.
pub(super) struct Climb<'a> {
    pub(super) request: &'a Request,
    who: &'a Who<'a>,
    asker: Option<Asker>,
    harvested: bool,
    drained: bool,
    /// The desks were left alone, so that the pool would grow.
    spared: bool,
    /// Threads are in each other's way.
    crowded: bool,
    aged: bool,
    proofs: usize,
    asks: usize,
    /// What came of each step the last time.
    tried: Vec<(Rung, &'static str)>,
}

impl Climb<'_> {
    pub(super) fn asker(&self) -> Option<&Asker> {
        self.asker.as_ref()
    }

    /// Counts one question to the rest of the process; false when there were too many.
    pub(super) fn may_ask(&mut self) -> bool {
        self.asks += 1;
        self.asks <= ASKS
    }

    /// Steps that are taken so often only may be taken again: others have changed what there is.
    pub(super) fn begin_again(&mut self) {
        (self.harvested, self.drained, self.aged, self.proofs) = (false, false, false, 0);
    }

    fn note(&mut self, rung: Rung, outcome: &'static str) {
        match self.tried.iter_mut().find(|(r, _)| *r == rung) {
            Some(entry) => entry.1 = outcome,
            None => self.tried.push((rung, outcome)),
        }
    }

    fn tried(&self) -> Vec<Tried> {
        self.tried.iter().map(|(rung, outcome)| Tried { step: rung.name(), outcome }).collect()
    }
}

impl Pool {
    /// Everything after the fast path.
    #[cold]
    pub(super) fn allocate_slow(&self, request: &Request, who: &Who<'_>) -> Result<u64> {
        self.reap(true);
        let served = self.climb(request, who);
        self.decay();
        served
    }

    fn climb(&self, request: &Request, who: &Who<'_>) -> Result<u64> {
        let bytes = request.bytes as u64;
        if bytes > self.ceiling {
            // No wait and no growth can help.
            return Err(self.out_of_memory(bytes, Vec::new()));
        }
        let asker = self.asker(who)?;
        let mut climb = Climb {
            request,
            who,
            asker,
            harvested: false,
            drained: false,
            spared: false,
            crowded: self.plots.in_turns() || self.cache.drawer(Lock::Wait).is_some_and(|drawer| drawer.is_crowded()),
            aged: false,
            proofs: 0,
            asks: 0,
            tried: Vec::new(),
        };
        let hurried = climb.crowded && !self.plots.may_ask();
        let rungs = match self.options.prefer {
            Prefer::Concurrency if hurried => &CROWD,
            Prefer::Concurrency => &CONCURRENCY,
            Prefer::Footprint => &FOOTPRINT,
        };
        let mut rounds = 0;
        'again: while rounds < ROUNDS {
            rounds += 1;
            if self.harvest_due.load(Ordering::Relaxed) && self.harvest_due.swap(false, Ordering::Relaxed) && !hurried {
                climb.harvested = true;
                if let Err(e) = self.harvest(&climb) {
                    return Err(self.failed(e, Harvest, climb));
                }
            }
            for rung in rungs {
                match self.step(*rung, &mut climb) {
                    Ok(Step::Served(ptr)) => return Ok(ptr),
                    Ok(Step::Again) => {
                        climb.note(*rung, "done, and not enough");
                        continue 'again;
                    }
                    Ok(Step::Nothing(why)) => climb.note(*rung, why),
                    Err(e) => return Err(self.failed(e, *rung, climb)),
                }
            }
            break;
        }
        Err(self.out_of_memory(bytes, climb.tried()))
    }

    /// The error of a step, in its final form.
    fn failed(&self, error: Error, rung: Rung, mut climb: Climb<'_>) -> Error {
        if !error.is_out_of_memory() || matches!(error, Error::OutOfMemory(_)) {
            return error;
        }
        climb.note(rung, "the driver had no memory for it");
        self.out_of_memory(climb.request.bytes as u64, climb.tried())
    }

    /// One step. Those that change little lastingly are taken so often only.
    fn step(&self, rung: Rung, climb: &mut Climb<'_>) -> Result<Step> {
        match rung {
            AtHand => Ok(self.at_hand(climb)),
            Harvest if !std::mem::replace(&mut climb.harvested, true) => self.harvest(climb),
            Aged if !std::mem::replace(&mut climb.aged, true) => self.prove_aged(climb),
            Drain if !std::mem::replace(&mut climb.drained, true) && self.drain(self.to_drain(climb)) => {
                climb.harvested = false;
                Ok(Step::Again)
            }
            Gather if self.drain(if std::mem::take(&mut climb.spared) { Which::All } else { Which::Plots }) => {
                self.plots.gave_up();
                climb.harvested = false;
                Ok(Step::Again)
            }
            Gather => Ok(Step::Nothing("there is none")),
            Harvest | Drain | Aged => Ok(Step::Nothing("done before")),
            Grow => self.grow(climb),
            Wait => self.take_behind_wait(climb),
            Anywhere => Ok(self.anywhere(climb)),
            Remap => self.remap(climb),
            Proof => self.prove_all(climb),
            Exchange => self.exchange(climb),
            Siblings => self.ask_siblings(climb),
            Hooks => self.ask_hooks(climb),
        }
    }

    /// What goes back before the pool grows: what threads have at hand and what they divide. A crowd gives up plots only that
    /// hardly anything is left in, and every other time its desks are left alone: the pool had better grow.
    fn to_drain(&self, climb: &mut Climb<'_>) -> Which {
        if !climb.crowded {
            return if self.cache.plots().0 > 0 { Which::All } else { Which::Pieces };
        }
        climb.spared = true;
        if !self.plots.may_empty() {
            // Not even looked at: that alone stops every thread for a moment.
            Which::Left
        } else if self.cache.plots().1 > 0 {
            Which::Idle
        } else {
            Which::Pieces
        }
    }

    /// The tags and the stamp of an asker.
    pub(super) fn stamp(state: &mut State, asker: Option<&Asker>) -> (Tags, u32) {
        match asker {
            Some(asker) => {
                let record = state.record_of(asker);
                (state.records.tags(record), cur(record))
            }
            // Nobody may ask who this is: only what is proven for everyone will do.
            None => {
                state.end_sole();
                (Tags::from_slice(&[PROVEN]), UNPROVEN)
            }
        }
    }

    fn at_hand(&self, climb: &Climb<'_>) -> Step {
        let mut state = self.lock();
        let (tags, stamp) = Self::stamp(&mut state, climb.asker());
        if let Some(offset) = state.take_drained(climb.request, &tags, stamp) {
            drop(state);
            return Step::Served(self.pages.ptr_of(offset));
        }
        Step::Nothing("no block is large enough")
    }

    fn anywhere(&self, climb: &Climb<'_>) -> Step {
        let mut state = self.lock();
        let (tags, stamp) = Self::stamp(&mut state, climb.asker());
        let Some(offset) = state.take_anywhere(climb.request, &tags, stamp) else {
            return Step::Nothing("no block is large enough");
        };
        drop(state);
        Step::Served(self.pages.ptr_of(offset))
    }
}
