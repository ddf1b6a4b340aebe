//! `TENURE_CHECK=handles`: finds who gives a reference back twice.
//!
//! Normally all references to a resource that are not light have one value, its id, so that an over-release among sharers
//! cannot be told from a release. Under this setting every reference that leaves the library gets a value of its own, which
//! is good for one release; a second one is an error at the place where it happens. It costs a lock and a map entry per
//! reference, and is meant for test suites and for the search after such a fault.

use std::collections::HashMap;

use tenure_core::error::{Error, Result};
use tenure_core::sync::{Lazy, Mutex};

/// Tells a ticket from an id; no tag of another kind of handle has this bit.
const TICKET: u64 = 1 << 62;

static CHECKED: Lazy<bool> =
    Lazy::new(|| std::env::var("TENURE_CHECK").is_ok_and(|v| v.split(',').any(|word| word.trim() == "handles")));

#[derive(Default)]
struct Tickets {
    last: u64,
    /// Ticket to the reference that it stands for.
    open: HashMap<u64, u64>,
}

static TICKETS: Lazy<Mutex<Tickets>> = Lazy::new(Mutex::default);

/// Whether every reference has a value of its own.
#[inline]
pub(crate) fn are_checked() -> bool {
    *CHECKED
}

/// The value that leaves the library for a reference.
#[inline]
pub(crate) fn issue(reference: u64) -> u64 {
    if *CHECKED { ticket(reference) } else { reference }
}

#[cold]
fn ticket(reference: u64) -> u64 {
    let mut tickets = TICKETS.lock();
    tickets.last += 1;
    let ticket = TICKET | tickets.last;
    tickets.open.insert(ticket, reference);
    ticket
}

fn used() -> Error {
    Error::BadHandle(
        "this reference to a resource was released before (found by TENURE_CHECK=handles): the place that calls now, or the \
         one that released it first, has no right to it"
            .into(),
    )
}

/// The reference that a value stands for.
#[inline]
pub(crate) fn reference(handle: u64) -> Result<u64> {
    if handle & TICKET == 0 || handle >> 62 != 1 { Ok(handle) } else { opened(handle) }
}

#[cold]
fn opened(ticket: u64) -> Result<u64> {
    TICKETS.lock().open.get(&ticket).copied().ok_or_else(used)
}

/// The same, for the release of the reference.
pub(crate) fn redeem(handle: u64) -> Result<u64> {
    if handle & TICKET == 0 || handle >> 62 != 1 {
        if *CHECKED {
            return Err(Error::BadHandle(
                "this value names a resource and is no reference of its own (an id, or what a listener was given): whoever \
                 releases it takes somebody else's reference (found by TENURE_CHECK=handles)"
                    .into(),
            ));
        }
        return Ok(handle);
    }
    TICKETS.lock().open.remove(&handle).ok_or_else(used)
}
