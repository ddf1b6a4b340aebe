//! Looking inside: tags, accounts, snapshots, history, and what an out-of-memory error has to say.

use std::ffi::{CString, c_char, c_void};

use tenure_abi::*;
use tenure_core::error::Error;
use tenure_core::observe::{self, By, history, meter, snapshot};

use crate::guard::{self, exports};
use crate::handles::{text, text_out, writable, write};

exports! { run:
    fn tenure_tag_push(name: *const c_char, out: *mut tenure_tag) {
        writable(out)?;
        // SAFETY: a C string, by the contract.
        let name = unsafe { text(name, "the tag") }?;
        // A forked child allocates nothing, and may not take a lock that another thread may have held.
        let token = if tenure_driver::process::unusable() { 0 } else { observe::push_tag(name)? };
        write(out, token)?;
    }

    fn tenure_tag_pop(tag: tenure_tag) {
        if tag != 0 && !tenure_driver::process::unusable() {
            observe::pop_tag(tag)?;
        }
    }

    fn tenure_library_set(library: u32, previous: *mut u32) first {
        let before = meter::set_library(library);
        if !previous.is_null() {
            // SAFETY: not null, and by the contract the address of a variable.
            unsafe { previous.write(before) };
        }
        Some(TENURE_OK)
    } {
        let before = meter::set_library(library);
        if !previous.is_null() {
            write(previous, before)?;
        }
    }
}

exports! { guard:
    fn tenure_observe(on: u32) {
        observe::observe(on != 0);
    }

    fn tenure_usage(by: u32, visitor: tenure_account_fn, context: *mut c_void) {
        let visitor = visitor.ok_or_else(|| Error::invalid("the visitor is null: pass a function"))?;
        let by = match by {
            TENURE_BY_TAG => By::Tag,
            TENURE_BY_THREAD => By::Thread,
            TENURE_BY_RESOURCE => By::Resource,
            other => {
                return Err(Error::invalid(format!(
                    "there is no account by {other}: TENURE_BY_TAG, TENURE_BY_THREAD and TENURE_BY_RESOURCE are known"
                )));
            }
        };
        for account in observe::usage(by) {
            let name = CString::new(account.name.replace('\0', " ")).unwrap_or_default();
            let told = tenure_account {
                size: size_of::<tenure_account>(),
                name: name.as_ptr(),
                id: account.id,
                live_bytes: account.live_bytes,
                live_count: account.live_count,
                peak_bytes: account.peak_bytes,
                peak_count: account.peak_count,
                total_bytes: account.total_bytes,
                total_count: account.total_count,
            };
            // SAFETY: by the contract of the C ABI a function that may be called with this context.
            if unsafe { visitor(context, &told) } != 0 {
                break;
            }
        }
    }

    fn tenure_memory_snapshot(out: *mut tenure_text) {
        writable(out)?;
        text_out(snapshot::text(), out)?;
    }

    fn tenure_history_record(on: u32, stacks: u32, max_entries: usize) {
        let most = if max_entries == 0 { history::DEFAULT_ENTRIES } else { max_entries };
        history::record(on != 0, stacks != 0, most)?;
    }

    fn tenure_report_begin(on: u32, stacks: u32) {
        if on == 0 {
            meter::end();
        } else {
            meter::begin(stacks != 0);
        }
    }

    fn tenure_report(out: *mut tenure_text) {
        writable(out)?;
        text_out(meter::text(), out)?;
    }

    fn tenure_library_number(name: *const c_char, out: *mut u32) {
        writable(out)?;
        // SAFETY: a C string, by the contract.
        let name = unsafe { text(name, "the library's name") }?;
        write(out, meter::library(name)?)?;
    }

    fn tenure_error_explain() {
        guard::explain();
    }
}
