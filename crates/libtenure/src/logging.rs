//! Logs of what passes.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tenure_abi::*;
use tenure_core::adaptor::{Logging, logging};
use tenure_core::error::{Error, Result};
use tenure_core::resource::Resource;

use crate::guard::exports;
use crate::handles::{anchor_out, named, text_out, upstream, writable, write};

fn logging<R>(resource: tenure_resource, f: impl FnOnce(&Logging) -> Result<R>) -> Result<R> {
    let named = named(resource)?;
    let logging = named.downcast::<Logging>().ok_or_else(|| {
        let kind = named.body().kind();
        Error::Unsupported(format!("the resource is a {kind} and writes no log: put a logging adaptor over it"))
    })?;
    f(logging)
}

exports! { guard:
    fn tenure_logging_create(
        above: tenure_resource, name: *const c_char, per_device: u32, out: *mut tenure_resource,
    ) {
        writable(out)?;
        let upstream = upstream(above)?;
        let given = (!name.is_null()).then(|| {
            // SAFETY: not null, hence a C string by the contract of the C ABI.
            Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
        });
        let device = match (per_device, upstream.body().device()) {
            (0, _) => None,
            (_, Some(device)) if device >= 0 => Some(device),
            _ => Some(tenure_core::device::current()?),
        };
        let log = Logging::new(upstream, &logging::file_name(given, device)?)?;
        write(out, anchor_out(Resource::new(log)?))?;
    }

    fn tenure_logging_flush(resource: tenure_resource) {
        logging(resource, Logging::flush)?;
    }

    fn tenure_logging_file_name(resource: tenure_resource, out: *mut tenure_text) {
        writable(out)?;
        let name = logging(resource, |log| Ok(log.file_name().as_os_str().as_bytes().to_vec()))?;
        text_out(String::from_utf8_lossy(&name).into_owned(), out)?;
    }
}
