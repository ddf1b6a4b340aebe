//! A block allocated and freed at once: the fast path itself.
//!
//! Unsafe in this file: the promise that no stream here captures.

use std::hint::black_box;

use tenure::{DEFAULT_ALIGNMENT, Pool, Resource};

use super::super::bed::{Calls, Given, Kind};
use super::super::plan::{Begin, Op, Plan, Scene, Target, scene};
use super::{MALLOC, malloc};

const THEME: &str = "pair";
const SIZES: [(&str, usize); 4] = [("256B", 256), ("64KiB", 64 << 10), ("4MiB", 4 << 20), ("256MiB", 256 << 20)];

/// By what name, on which stream, with which promise, and what is asked of it.
const KINDS: [(&str, Kind, bool, f64); 5] = [
    ("own", Kind::Own, false, 80.0),
    ("registered", Kind::Registered, false, 80.0),
    ("raw", Kind::Raw, false, 110.0),
    ("default", Kind::Default, false, 50.0),
    ("nocapture", Kind::Own, true, 50.0),
];

pub(super) struct State {
    pub(super) pool: Resource,
    pub(super) stream: Given,
    pub(super) bytes: usize,
}

pub(super) fn rows() -> Vec<Plan> {
    let mut rows = Vec::new();
    for (name, kind, promised, target) in KINDS {
        for (label, bytes) in SIZES {
            let what = match name {
                "own" => "a stream that tenure made",
                "registered" => "a foreign stream as an object with its owner",
                "raw" => "a foreign stream by its value",
                "default" => "the legacy default stream",
                _ => "a stream that tenure made, on a pool with assume_no_capture",
            };
            let plan = Plan::new(
                THEME,
                format!("{THEME}-{name}-{label}"),
                format!("allocate + deallocate of {label} through the C ABI on {what}"),
                move |bed| {
                    let mut builder = Pool::builder(&bed.device);
                    if promised {
                        // SAFETY: no row captures.
                        builder = unsafe { builder.assume_no_capture() };
                    }
                    let state = State { pool: builder.build()?.into(), stream: Given::new(kind)?, bytes };
                    scene(state, c)
                },
                MALLOC,
                malloc,
            );
            rows.push(plan.target(Target::Nanoseconds(target)).needs(bytes as u64 * 2));
        }
    }
    for (name, operation) in [("try", try_c as Begin<State>), ("rust", rust)] {
        let what = if name == "try" { "the entries that never wait" } else { "the crate tenure" };
        let plan = Plan::new(
            THEME,
            format!("{THEME}-{name}-256B"),
            format!("allocate + deallocate of 256 B through {what} on a stream that tenure made"),
            move |bed| stage(bed.pool()?, operation),
            MALLOC,
            malloc,
        );
        rows.push(plan.target(Target::Nanoseconds(80.0)));
    }
    rows
}

fn stage(pool: Resource, operation: Begin<State>) -> tenure::Result<Box<dyn Scene>> {
    scene(State { pool, stream: Given::new(Kind::Own)?, bytes: 256 }, operation)
}

/// A pair through the C ABI.
pub(super) fn c(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream, bytes) = (Calls::new(&state.pool)?, state.stream.abi(), state.bytes);
    Ok(Box::new(move || {
        let ptr = calls.allocate(bytes, stream)?;
        calls.free(black_box(ptr), bytes, stream)
    }))
}

fn try_c(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream, bytes) = (Calls::new(&state.pool)?, state.stream.abi(), state.bytes);
    Ok(Box::new(move || {
        let ptr = calls.try_allocate(bytes, stream)?;
        calls.try_free(black_box(ptr), bytes, stream)
    }))
}

/// A pair through the crate.
pub(super) fn rust(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let (pool, stream, bytes) = (&state.pool, state.stream.stream(), state.bytes);
    Ok(Box::new(move || {
        let ptr = black_box(pool.allocate(bytes, stream)?);
        // SAFETY: nobody uses the block.
        unsafe { pool.deallocate(ptr, bytes, DEFAULT_ALIGNMENT, stream) }
    }))
}
