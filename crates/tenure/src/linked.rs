//! The feature `static`: the engine is part of this program.
//!
//! The program must publish its table, so that whatever is loaded later joins it; and it must refuse where a table is
//! published already, because two engines in one process would be two tables of current resources. Both are one question
//! to the system's loader: who is found first under the name `tenure_get_api`?
//!
//! Unsafe in this file: the declaration of the linked engine's two functions.

use std::ffi::{c_char, c_void};

use tenure_abi::tenure_api;
// Linked for its symbols.
use tenure_engine as _;

use super::load::{self, Search};
use crate::error::{LoadError, LoadFailure};

unsafe extern "C" {
    fn tenure_get_api(abi: u32) -> *const tenure_api;
    fn tenure_get_api_error() -> *const c_char;
}

/// The table of the engine in this program, if it is the one of the process.
pub(crate) fn find(mut search: Search) -> Result<&'static tenure_api, LoadError> {
    let own = tenure_get_api as unsafe extern "C" fn(u32) -> *const tenure_api as *mut c_void;
    let own_reason = tenure_get_api_error as unsafe extern "C" fn() -> *const c_char as *mut c_void;

    search.note("tenure_get_api in the global scope");
    match load::symbol(libc::RTLD_DEFAULT, load::GET_API) {
        Some(published) if published == own => {}
        Some(_) => return Err(refused(search)),
        None => {
            search.note("libtenure.so.0 among the loaded objects");
            if matches!(load::open(load::SONAME, libc::RTLD_NOLOAD), Ok(Some(_))) {
                return Err(refused(search));
            }
            return Err(search.fail(
                LoadFailure::Refused,
                "this program has the engine linked in (feature `static`) and does not publish it, so that a library loaded later \
                 would bring a second one: add println!(\"cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=tenure_get_api*\") \
                 to the program's build.rs"
                    .into(),
            ));
        }
    }
    load::ask(search, own, Some(own_reason), "the engine in this program").map_err(|mut error| {
        if error.failure == LoadFailure::Refused {
            error.message += "; ";
            error.message += WITHOUT;
        }
        error
    })
}

const WITHOUT: &str = "build this object without the feature `static`, which is for programs and not for libraries, and it will use that one";

fn refused(search: Search) -> LoadError {
    search.fail(
        LoadFailure::Refused,
        format!("another instance of tenure is at work in this process and this object has the engine linked in as well: {WITHOUT}"),
    )
}
