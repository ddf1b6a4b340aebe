//! The Python extension module of tenure, a client of its table of functions.
//!
//! ```text
//!  tenure (Python)   tenure.mr   tenure.sim      python/tenure: names, stubs, exceptions
//!          \             |          /
//!           tenure._tenure                       this crate: buffer, resource, stream, current, callback
//!                  |  the table of functions
//!           libtenure.so.0                       the engine, one per process
//! ```
//!
//! # Rules that hold in all files
//! * The interpreter lock is never held while a call may wait, call the driver or call user code: the `_try_` function
//!   comes first, and where it would block the plain one is called without the lock ([`gil`]).
//! * Nothing of the engine's needs Python to be freed, and what needs it (callables, owners) is left alone once the
//!   interpreter is going.
//! * The module never links the engine: it opens `libtenure.so.0` at import ([`table`]), and that makes no driver call.

#![deny(missing_docs)]

mod adaptors;
mod arrow;
mod bins;
mod border;
mod buffer;
mod buffer_copy;
mod buffer_export;
mod by_address;
mod callback;
mod capsule;
mod capture;
mod cuda_core;
mod cupy;
mod current;
mod dlpack;
mod dlpack_api;
mod errors;
mod figures;
mod foreign;
mod gil;
mod keeper;
mod kinds;
mod logging;
mod low_memory;
mod observe;
mod pointers;
mod resource;
mod scopes;
mod sharing;
mod sim;
mod size;
mod stacks;
mod stream;
mod stream_pool;
mod table;
mod torch;
mod torch_cxx;
mod vectorcall;

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The engine's state and this module's are one per process; a second interpreter would share them by accident.
fn refuse_sub_interpreters() -> PyResult<()> {
    // SAFETY: called during an import, so with a thread state.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "tenure cannot be imported in a sub-interpreter: its table of current resources is one per process and belongs to the main interpreter; \
         import it there, or use processes or threads",
    ))
}

/// The module `tenure._tenure`.
#[pymodule]
fn _tenure(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_sub_interpreters()?;
    let py = module.py();
    let api = table::open()?;
    gil::watch_forks();
    stream::register(module)?;
    stream_pool::register(module)?;
    kinds::register(module)?;
    current::register(module)?;
    buffer::register(module)?;
    pointers::register(module)?;
    border::register(module)?;
    capture::register(module)?;
    sim::register(module)?;
    low_memory::register(module)?;
    stacks::register(py)?;
    observe::register(module)?;
    cuda_core::register(module)?;
    cupy::register(module)?;
    torch::register(module)?;
    scopes::register(module)?;
    sharing::register(module)?;
    module.add_class::<figures::MemoryInfo>()?;
    module.add_class::<figures::Statistics>()?;
    module.add_function(wrap_pyfunction!(resource::owner_of, module)?)?;
    module.add_function(wrap_pyfunction!(resource::misuse_count, module)?)?;
    module.add_function(wrap_pyfunction!(callback::_references, module)?)?;
    module.add_function(wrap_pyfunction!(resource::_wrap_resource, module)?)?;
    module.add_function(wrap_pyfunction!(resource::_borrow_resource, module)?)?;
    module.add_function(wrap_pyfunction!(resource::_retain_resource, module)?)?;
    module.add_function(wrap_pyfunction!(errors::_raise_for_status, module)?)?;
    module.add_function(wrap_pyfunction!(dlpack::from_dlpack, module)?)?;
    module.add_function(wrap_pyfunction!(foreign::from_cuda_array_interface, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::from_arrow, module)?)?;

    // SAFETY: the table lives as long as the process, and has no destructor.
    let capsule =
        unsafe { PyCapsule::new_with_pointer(py, NonNull::from(api).cast::<c_void>(), c"tenure._tenure._C_API")? };
    module.add("_C_API", capsule)?;

    // Registered at import, hence run after the hooks of whatever imported tenure.
    let exit = wrap_pyfunction!(gil::_interpreter_exit, module)?;
    py.import("atexit")?.call_method1("register", (exit,))?;
    Ok(())
}
