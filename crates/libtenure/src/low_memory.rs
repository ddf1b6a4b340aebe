//! Asking the rest of the process for memory, and being asked.

use tenure_abi::*;
use tenure_core::error::Error;
use tenure_core::low_memory;
use tenure_core::sync::Arc;

use crate::callback::failed;
use crate::guard::{self, exports};
use crate::handles::{owner, writable, write};
use crate::library::Context;

exports! { guard:
    fn tenure_low_memory_add(hook: tenure_low_memory_fn, given: tenure_owner, out: *mut tenure_low_memory_hook) {
        writable(out)?;
        let hook = hook.ok_or_else(|| Error::invalid("the hook is null: pass a function"))?;
        let context = Context(given.context, owner(given));
        let token = low_memory::register(Arc::new(move |device: i32, bytes: u64| {
            let context = &context;
            let mut released = 0;
            drop(guard::take());
            // SAFETY: the owner keeps the context alive, and it is held by this closure; the pointer is valid for writing.
            let status = unsafe { hook(context.0, device, bytes, &mut released) };
            if status != TENURE_OK {
                return Err(failed(status, "low-memory"));
            }
            Ok(released)
        }));
        write(out, token)?;
    }

    fn tenure_low_memory(device: i32, bytes: u64, released: *mut u64) {
        let went = low_memory::give_back(device, bytes)?;
        if !released.is_null() {
            write(released, went)?;
        }
    }
}

exports! { guard_release:
    fn tenure_low_memory_remove(hook: tenure_low_memory_hook) {
        low_memory::unregister(hook)?;
    }
}
