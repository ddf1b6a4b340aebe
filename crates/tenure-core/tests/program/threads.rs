//! Threads that really run at once, on pools and streams that they share.
//!
//! Each has a list of ops of its own; blocks go from one to another through the mail. Nothing here can be foretold but
//! this: no two live blocks overlap, no access is without order, each free is taken, and at the end all goes back. What
//! the host of one thread has learned counts for all of them (a limit of the check of order), so that this mode finds
//! less per program than turns do, and finds what turns cannot: two threads in one function.

use super::crew::enter;
use super::generate;
use super::world::World;
use super::*;

/// Runs the program of a seed on `threads` threads.
///
/// # Errors
/// What does not hold. A failure may not come again: it is not shrunk.
pub(crate) fn run(seed: u64, threads: usize) -> Result<Counts, String> {
    let mut program = generate::program(seed);
    program.settings.captures = false;
    program.settings.device = None;
    let mut world = World::new(program.settings);
    let result = together(&mut world, seed, threads);
    let result = result.and_then(|()| {
        world.crowded = false;
        world.noticed()?;
        world.finish()
    });
    if let Err(e) = result {
        world.wreck();
        return Err(format!("seed {seed} on {threads} threads: {e}"));
    }
    world.counts.programs = 1;
    Ok(world.counts)
}

fn together(world: &mut World, seed: u64, threads: usize) -> Result<(), String> {
    let worlds = (0..threads).map(|thread| world.beside(thread % THREADS)).collect::<Result<Vec<_>, _>>()?;
    let ended: Vec<(World, Result<(), String>)> = std::thread::scope(|scope| {
        let running: Vec<_> = worlds
            .into_iter()
            .enumerate()
            .map(|(thread, mut mine)| {
                scope.spawn(move || {
                    let _current = enter();
                    let ops = generate::program(seed.wrapping_mul(31).wrapping_add(thread as u64)).ops;
                    let result = ops.into_iter().enumerate().try_for_each(|(number, op)| {
                        mine.step(op).map_err(|e| format!("thread {thread}, step {number} {op:?}: {e}"))?;
                        mine.noticed()
                    });
                    // What is bound to the thread's own stream must be left to one that lives.
                    let left = result.and_then(|()| mine.leave());
                    (mine, left)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut result = Ok(());
    for (other, ended) in ended {
        world.inherit(other);
        result = result.and(ended);
    }
    world.collect_mail();
    result
}
