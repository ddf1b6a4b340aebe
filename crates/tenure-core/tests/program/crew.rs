//! The threads of a program, which take turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tenure_core::pool::Pool;
use tenure_core::resource::registry;
use tenure_driver::sim;

use super::world::World;
use super::*;

type Turn = (Box<World>, Op);
type Told = (Box<World>, Result<(), String>);

struct Member {
    turns: SyncSender<Turn>,
    told: Receiver<Told>,
    thread: JoinHandle<()>,
}

/// Threads that are there when a program wants them, and are kept from program to program.
#[derive(Default)]
pub(crate) struct Crew {
    members: [Option<Member>; THREADS],
}

/// Driver calls that were made while the lock of a pool was held.
pub(super) static LOCKED: AtomicU64 = AtomicU64::new(0);
/// Threads take turns now: a lock that is held is held by whoever calls the driver.
static TURNS: AtomicBool = AtomicBool::new(false);

/// Looks at every pool when the driver is called (I8).
fn watch(_call: &'static str) {
    if TURNS.load(Ordering::Relaxed) {
        registry::for_each(|resource| {
            if resource.downcast::<Pool>().is_some_and(Pool::is_locked) {
                LOCKED.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Makes device 0 current on this thread, as a program that launches kernels does.
pub(crate) fn enter() -> tenure_driver::Current {
    tenure_core::device::driver().unwrap().device(0).unwrap().enter().unwrap()
}

/// A step; a panic of the library is a failure like others.
fn step(world: &mut World, op: Op) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| world.step(op))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("with something that is no text")))
    })
}

impl Member {
    fn start() -> Self {
        let (turns, inbox) = sync_channel::<Turn>(1);
        let (outbox, told) = sync_channel::<Told>(1);
        let thread = std::thread::spawn(move || {
            let _current = enter();
            while let Ok((mut world, op)) = inbox.recv() {
                let result = step(&mut world, op);
                if outbox.send((world, result)).is_err() {
                    break;
                }
            }
        });
        Self { turns, told, thread }
    }
}

impl Crew {
    /// Makes a step on a thread.
    fn step(&mut self, world: Box<World>, thread: usize, op: Op) -> Told {
        let mut world = world;
        let acting = std::mem::replace(&mut world.current, thread);
        let (mut world, result) = if thread == 0 {
            let result = step(&mut world, op);
            (world, result)
        } else {
            let member = self.members[thread].get_or_insert_with(Member::start);
            member.turns.send((world, op)).unwrap();
            member.told.recv().unwrap()
        };
        world.current = acting;
        (world, result)
    }

    /// Ends a thread, and waits until it has ended.
    fn end(&mut self, thread: usize) {
        if let Some(member) = self.members[thread].take() {
            drop(member.turns);
            member.thread.join().unwrap();
        }
    }

    /// Runs a program to its end, or to the first thing that does not hold.
    ///
    /// # Errors
    /// The step and what does not hold.
    pub(crate) fn run(&mut self, program: &Program) -> Result<Counts, String> {
        sim::watch_calls(watch);
        TURNS.store(true, Ordering::Relaxed);
        let done = self.run_through(program);
        TURNS.store(false, Ordering::Relaxed);
        done
    }

    fn run_through(&mut self, program: &Program) -> Result<Counts, String> {
        let mut world = Box::new(World::new(program.settings));
        world.counts.programs = 1;
        for (number, op) in program.ops.iter().enumerate() {
            let result;
            (world, result) = self.perform(world, *op);
            let result = result.and_then(|()| world.noticed()).and_then(|()| match number % 8 {
                7 => (0..2).try_for_each(|pool| world.check(pool, false)),
                _ => Ok(()),
            });
            if let Err(e) = result {
                world.wreck();
                return Err(format!("step {number} {op:?}: {e}"));
            }
        }
        // An end of the capture under way, on the thread that began it.
        let ended;
        let thread = world.thread_for(End);
        (world, ended) = self.step(world, thread, End);
        // The end is this thread's: what others' default streams have is freed without naming them.
        world.current = 0;
        let finished = ended.and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| world.finish())).unwrap_or_else(|_| Err("panicked at the end".into()))
        });
        if let Err(e) = finished {
            world.wreck();
            return Err(e);
        }
        Ok(world.counts)
    }

    fn perform(&mut self, mut world: Box<World>, op: Op) -> Told {
        match op {
            On { thread } => {
                world.current = usize::from(thread) % THREADS;
                (world, Ok(()))
            }
            EndThread { thread } => {
                let thread = usize::from(thread) % THREADS;
                if thread == 0 {
                    return (world, Ok(()));
                }
                let mut result = Ok(());
                if world.captures_on(thread) {
                    (world, result) = self.step(world, thread, End);
                }
                self.end(thread);
                world.end_thread(thread);
                (world, result)
            }
            _ => {
                let thread = world.thread_for(op);
                self.step(world, thread, op)
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        (0..THREADS).for_each(|thread| self.end(thread));
    }
}
