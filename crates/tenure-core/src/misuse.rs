//! Wrong frees from places that cannot return an error.
//!
//! A destructor, a deleter of DLPack, a callback of another library: what they free wrongly is reported here, once, with
//! one line, and the block stays as it is. No later, unrelated call is blamed for it.

use crate::error::Error;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// One line on stderr. Where that is closed or a pipe that nobody reads the line is lost, and nothing else: `eprintln!`
/// would panic, in a destructor.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Called with one line for each report.
pub type Handler = dyn Fn(&str) + Send + Sync;

static COUNT: AtomicU64 = AtomicU64::new(0);
static HANDLER: Mutex<Option<Arc<Handler>>> = Mutex::new(None);

/// How many wrong frees were reported so far.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Installs a handler in place of the line on stderr, or takes it away; gives the previous one.
pub fn set_handler(handler: Option<Arc<Handler>>) -> Option<Arc<Handler>> {
    std::mem::replace(&mut *HANDLER.lock(), handler)
}

/// Reports a failed free. `TENURE_ON_MISUSE=abort` ends the process instead, for finding the place in a debugger.
pub fn report(error: &Error) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let handler = HANDLER.lock().clone();
    match handler {
        Some(handler) => handler(&error.to_string()),
        None => {
            say(format_args!("tenure: a free went wrong and was not done: {error}"));
            if std::env::var_os("TENURE_ON_MISUSE").is_some_and(|v| v == "abort") {
                std::process::abort();
            }
        }
    }
}
