//! A program with the engine linked in (feature `static`), which whatever it loads later joins.
//!
//! Build it so that it publishes its table:
//!
//! ```text
//! cargo rustc -p tenure --example static_program --features static -- \
//!     -C link-arg='-Wl,--export-dynamic-symbol=tenure_get_api*'
//! ```
//!
//! Arguments: shared libraries to load. Of each it says what the library's own `tenure_get_api` answers.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;

use tenure::{Device, DeviceBuffer, Pool, Stream, abi};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let api = tenure::api()?;
    writeln!(out, "version {}", tenure::version()?)?;

    let stream = Stream::create()?;
    let pool = Pool::builder(&Device::current()?).build()?;
    let mut buffer = DeviceBuffer::new_in(5, &stream, &pool)?;
    drop(pool);
    buffer.copy_from_host(b"hello", &stream)?;
    let mut back = [0; 5];
    buffer.copy_to_host(&mut back, &stream)?;
    writeln!(out, "{}", String::from_utf8_lossy(&back))?;

    // SAFETY: looks for a symbol of this process.
    let published = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"tenure_get_api".as_ptr()) };
    // SAFETY: whoever exports the name states this signature.
    let joined = !published.is_null() && unsafe { ask(published) } == std::ptr::from_ref(api);
    writeln!(out, "published: {joined}")?;

    for path in std::env::args().skip(1) {
        let name = CString::new(path)?;
        // SAFETY: loads a library; its functions have the signatures that their names state.
        let answer = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into());
            }
            let get = libc::dlsym(library, c"tenure_get_api".as_ptr());
            if get.is_null() {
                "no engine".into()
            } else if get == published {
                "joined".into()
            } else if ask(get).is_null() {
                let why = libc::dlsym(library, c"tenure_get_api_error".as_ptr());
                let why: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(why);
                format!("refused: {}", CStr::from_ptr(why()).to_string_lossy())
            } else {
                "A SECOND TABLE".to_owned()
            }
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

/// # Safety
/// `get` is the address of a function `tenure_get_api`.
unsafe fn ask(get: *mut c_void) -> *const abi::tenure_api {
    // SAFETY: as the caller promises.
    unsafe {
        let get: unsafe extern "C" fn(u32) -> *const abi::tenure_api = std::mem::transmute(get);
        get(abi::TENURE_ABI_VERSION)
    }
}
