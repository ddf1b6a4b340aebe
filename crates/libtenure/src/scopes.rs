//! Measurements that belong to a thread or a task.

use std::collections::HashMap;

use tenure_abi::*;
use tenure_core::adaptor::{Scope, Statistics, scopes};
use tenure_core::error::{Error, Result};
use tenure_core::sync::{Arc, Lazy, Mutex};

use crate::guard::exports;
use crate::handles::{fill, fillable, writable, write};
use crate::resource::{statistics, statistics_of};

/// The open scopes by their numbers.
static SCOPES: Lazy<Mutex<HashMap<tenure_statistics_scope, Arc<Scope>>>> = Lazy::new(|| Mutex::new(HashMap::new()));

fn unknown() -> Error {
    Error::BadHandle("this scope is null or was closed already: each scope is closed once".into())
}

fn scope(handle: tenure_statistics_scope) -> Result<Arc<Scope>> {
    SCOPES.lock().get(&handle).cloned().ok_or_else(unknown)
}

exports! { guard:
    fn tenure_statistics_scope_open(resource: tenure_resource, out: *mut tenure_statistics_scope) {
        writable(out)?;
        let scope = statistics(resource, |s: &Statistics| Ok(s.open_scope()))?;
        let handle = scope.id();
        SCOPES.lock().insert(handle, scope);
        write(out, handle)?;
    }

    fn tenure_statistics_scope_get(given: tenure_statistics_scope, out: *mut tenure_statistics) {
        // SAFETY: by the contract of the C ABI.
        unsafe { fillable(out, size_of::<usize>()) }?;
        let counters = scope(given)?.counters();
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, statistics_of(counters)) }?;
    }

    fn tenure_statistics_scope_close(given: tenure_statistics_scope, out: *mut tenure_statistics) {
        if !out.is_null() {
            // SAFETY: not null, and by the contract of the C ABI.
            unsafe { fillable(out, size_of::<usize>()) }?;
        }
        let closed = SCOPES.lock().remove(&given);
        let counters = closed.ok_or_else(unknown)?.close();
        if !out.is_null() {
            // SAFETY: not null, and by the contract of the C ABI.
            unsafe { fill(out, statistics_of(counters)) }?;
        }
    }

    fn tenure_statistics_scope_enter(given: tenure_statistics_scope, previous: *mut tenure_statistics_scope) {
        let next = if given == 0 { None } else { Some(scope(given)?) };
        let before = scopes::enter(next);
        if !previous.is_null() {
            write(previous, before.map_or(0, |scope| scope.id()))?;
        }
    }
}
