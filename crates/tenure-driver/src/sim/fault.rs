//! Faults on demand and the count of calls.
//!
//! [`fail_next`] makes one future call of a name answer a code without doing anything, which no real device can; it is
//! how every failure path of the library is walked. Counts are kept per name and cost one relaxed increment.

use std::collections::BTreeMap;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceCell};
use crate::table::{CALL_COUNT, CALLS, CallId};

use super::SimError;

static COUNTS: [AtomicU64; CALL_COUNT] = [const { AtomicU64::new(0) }; CALL_COUNT];
static ARMED: AtomicUsize = AtomicUsize::new(0);
static PLANS: Mutex<Vec<Plan>> = Mutex::new(Vec::new());
static WATCH: OnceCell<fn(&'static str)> = OnceCell::new();

struct Plan {
    call: usize,
    code: i32,
    after: u64,
}

fn index(call: &str) -> Result<usize, SimError> {
    CALLS.iter().position(|c| c.name == call).ok_or_else(|| SimError::UnknownCall { call: call.to_owned() })
}

/// Counts a call and says whether it must fail, and how.
pub(super) fn enter(call: CallId) -> Option<i32> {
    let at = call as usize;
    COUNTS[at].fetch_add(1, Ordering::Relaxed);
    if ARMED.load(Ordering::Acquire) == 0 {
        return None;
    }
    if let Some(watch) = WATCH.get() {
        watch(CALLS[at].name);
    }
    let mut plans = PLANS.lock();
    let mut hit = None;
    for (i, plan) in plans.iter_mut().enumerate() {
        if plan.call != at {
            continue;
        }
        if plan.after > 0 {
            plan.after -= 1;
        } else if hit.is_none() {
            hit = Some((i, plan.code));
        }
    }
    hit.map(|(i, code)| {
        plans.remove(i);
        arm(&plans);
        code
    })
}

/// Makes a future call fail: the one after `after` further calls of `call` (0: the next one) answers `code` and does
/// nothing. Several plans may be armed at once; each counts by itself.
///
/// # Errors
///
/// [`SimError::UnknownCall`] when the table has no call of that name; [`SimError::NotAFailure`] for code 0.
pub fn fail_next(call: &str, code: i32, after: u64) -> Result<(), SimError> {
    let call = index(call)?;
    if code == 0 {
        return Err(SimError::NotAFailure);
    }
    let mut plans = PLANS.lock();
    plans.push(Plan { call, code, after });
    arm(&plans);
    Ok(())
}

/// Forgets every plan of [`fail_next`] that has not struck, and returns how many there were.
pub fn fail_clear() -> usize {
    let mut plans = PLANS.lock();
    let forgotten = std::mem::take(&mut *plans).len();
    arm(&plans);
    forgotten
}

/// From now on `watch` is called with the name of each call that the process makes, on its thread and before the call does
/// anything. The first watch stays. It makes no call itself.
pub fn watch_calls(watch: fn(&'static str)) {
    let _ = WATCH.set(watch);
    arm(&PLANS.lock());
}

/// Calls are looked at while something is planned or somebody watches.
fn arm(plans: &[Plan]) {
    ARMED.store(plans.len() + usize::from(WATCH.get().is_some()), Ordering::Release);
}

/// How often `call` was called since the start or the last [`reset_calls`], failed calls included. 0 for a name that is
/// not in the table.
#[must_use]
pub fn calls(call: &str) -> u64 {
    index(call).map_or(0, |at| COUNTS[at].load(Ordering::Relaxed))
}

/// The counts of all calls that were called at all, by name.
#[must_use]
pub fn calls_all() -> BTreeMap<&'static str, u64> {
    let counts = CALLS.iter().zip(&COUNTS).map(|(c, n)| (c.name, n.load(Ordering::Relaxed)));
    counts.filter(|(_, n)| *n > 0).collect()
}

/// Sets all counts to 0.
pub fn reset_calls() {
    for n in &COUNTS {
        n.store(0, Ordering::Relaxed);
    }
}
