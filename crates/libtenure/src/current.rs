//! The table of current resources.

use tenure_abi::*;
use tenure_core::current;
use tenure_core::error::Error;
use tenure_core::resource::Named;
use tenure_core::sync::Arc;

use crate::guard::exports;
use crate::handles::{anchor_out, light_out, named, owner, writable, write};
use crate::library::Context;

exports! { guard:
    fn tenure_current_get(device: i32, out: *mut tenure_resource) first {
        // SAFETY: the address of a variable of the caller, where it is not null.
        let out = unsafe { out.as_mut() }?;
        *out = light_out(current::get_at_hand(device)?);
        Some(TENURE_OK)
    } {
        writable(out)?;
        write(out, light_out(current::get(device)?))?;
    }

    fn tenure_current_set(device: i32, resource: tenure_resource, previous: *mut tenure_resource) {
        let before = current::set(device, named(resource)?.anchor())?;
        if previous.is_null() {
            drop(before);
        } else {
            write(previous, anchor_out(before))?;
        }
    }

    fn tenure_current_reset(device: i32, previous: *mut tenure_resource) {
        let before = current::reset(device)?;
        if previous.is_null() {
            drop(before);
        } else {
            write(previous, anchor_out(before))?;
        }
    }

    fn tenure_scope_enter(device: i32, resource: tenure_resource, out: *mut tenure_scope) {
        writable(out)?;
        write(out, current::enter(device, named(resource)?.anchor())?)?;
    }

    fn tenure_listener_add(listener: tenure_listener_fn, given: tenure_owner, out: *mut tenure_listener) {
        writable(out)?;
        let listener = listener.ok_or_else(|| Error::invalid("the listener is null: pass a function"))?;
        let context = Context(given.context, owner(given));
        let token = current::listen(Arc::new(move |device: i32, resource: &Named, version: u64| {
            let context = &context;
            // SAFETY: the owner keeps the context alive, and it is held by this closure.
            unsafe { listener(context.0, device, resource.id(), version) }
        }));
        write(out, token)?;
    }
}

exports! { guard_release:
    fn tenure_scope_exit(scope: tenure_scope) {
        current::leave(scope)?;
    }

    fn tenure_listener_remove(listener: tenure_listener) {
        current::unlisten(listener)?;
    }
}
