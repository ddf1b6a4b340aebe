//! Where in the program a call came from.
//!
//! ```text
//!   capture   the frames of an interpreter, innermost first, as its face tells them   (a source that the face has set)
//!             addresses of native frames                                              (no names: a few microseconds)
//!   lines     the same for people: names, files and lines of the native frames are looked up now, and not before
//! ```
//!
//! # Rules
//! * Nothing here runs unless somebody asked for stacks.
//! * The source is called without a lock, on the thread whose stack is taken, and may enter its interpreter: it is user code
//!   to everything that must not wait.
//! * Names are looked up without a lock of the engine's.
//!
//! # Cost
//! Of a capture: 1 to 10 us for native frames, and what the interpreter takes. Of the lines: the debug information of each
//! library that a frame lies in is read once per process, which takes up to seconds for a large one; frames seen before cost
//! a lookup.
//!
//! Unsafe here: the walk over the native frames.

use std::ffi::c_void;
use std::fmt::Write as _;

use rustc_hash::FxHashMap;

use crate::sync::{Arc, Lazy, Mutex, RwLock};

/// Tells the frames of an interpreter that are on this thread now: a line for each, `file:line function`, the innermost first;
/// empty without any.
pub type Source = dyn Fn() -> String + Send + Sync;

/// Frames beyond this many are left out.
const MOST: usize = 128;

static SOURCE: RwLock<Option<Arc<Source>>> = RwLock::new(None);

/// Sets who tells the frames of an interpreter, and gives the one before.
pub fn set_source(source: Option<Arc<Source>>) -> Option<Arc<Source>> {
    std::mem::replace(&mut *SOURCE.write(), source)
}

/// The frames of an interpreter that are on this thread now, as its face tells them.
pub(crate) fn interpreted() -> String {
    let source = SOURCE.read().clone();
    source.map(|source| source()).unwrap_or_default()
}

/// The frames of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    interpreted: Box<str>,
    native: Box<[usize]>,
}

impl Stack {
    /// The frames of this thread. Whoever calls this holds no lock.
    #[cold]
    #[inline(never)]
    pub fn capture() -> Self {
        let interpreted = interpreted().into_boxed_str();
        let mut native = Vec::with_capacity(32);
        // SAFETY: the unwinder of the systems that are supported may run on several threads at once; what the crate leaves
        // unsynchronised is the resolving of names, which does not happen here.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                native.push(frame.ip() as usize);
                native.len() < MOST
            });
        }
        Self { interpreted, native: native.into_boxed_slice() }
    }

    /// The frames for people, innermost first: those of the interpreter, then the native ones from the door
    /// of the library on.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.interpreted.lines().map(|line| format!("  {line}")).collect();
        let native: Vec<(usize, Arc<[String]>)> =
            self.native.iter().filter(|ip| **ip != 0).map(|ip| (*ip, names_of(*ip))).collect();
        let outside = native.iter().position(|(_, names)| names.iter().any(|name| is_door(name)));
        let outside = outside.or_else(|| native.iter().position(|(_, names)| !names.iter().all(|name| is_own(name))));
        for (ip, names) in &native[outside.unwrap_or(0)..] {
            lines.extend(names.iter().map(|name| format!("  {ip:#x}: {name}")));
        }
        lines
    }
}

/// The names of frames that were looked up before: a program asks for the same ones again and again.
static NAMES: Lazy<Mutex<FxHashMap<usize, Arc<[String]>>>> = Lazy::new(Mutex::default);

/// Frames whose names are kept.
const KEPT: usize = 1 << 16;

/// The functions of a frame, inlined ones first.
fn names_of(ip: usize) -> Arc<[String]> {
    if let Some(known) = NAMES.lock().get(&ip) {
        return known.clone();
    }
    let mut names = Vec::new();
    // The address is that of the instruction after the call.
    backtrace::resolve(ip.wrapping_sub(1) as *mut c_void, |symbol| names.push(text_of(symbol)));
    if names.is_empty() {
        names.push("(no name)".to_owned());
    }
    let names: Arc<[String]> = names.into();
    let mut known = NAMES.lock();
    // Libraries may come and go at the same addresses: what is old is looked up again sooner or later.
    if known.len() >= KEPT {
        known.clear();
    }
    known.insert(ip, names.clone());
    names
}

/// Whether a frame is a function of the C interface: what lies below it is the engine.
fn is_door(name: &str) -> bool {
    let word = name.split(' ').next().unwrap_or(name);
    word.starts_with("tenure_") && !word.contains("::")
}

/// Whether a frame is one of the walk itself or of the engine, where its functions are called as they are.
fn is_own(name: &str) -> bool {
    ["backtrace::", "tenure_core::", "<tenure_core::"].iter().any(|start| name.starts_with(start))
}

fn text_of(symbol: &backtrace::Symbol) -> String {
    let mut text = symbol.name().map_or_else(|| "(no name)".to_owned(), |name| format!("{name:#}"));
    if let Some(file) = symbol.filename() {
        // Writing into a string does not fail.
        let _ = write!(text, " at {}:{}", file.display(), symbol.lineno().unwrap_or(0));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_with_a_name() -> Stack {
        std::hint::black_box(Stack::capture())
    }

    #[test]
    fn a_stack_names_who_called_and_asks_the_interpreter_first() {
        let before = set_source(Some(Arc::new(|| "a.py:1 f\n".to_owned())));
        let stack = a_function_with_a_name();
        set_source(before);
        let lines = stack.lines();
        assert_eq!(lines[0], "  a.py:1 f");
        assert!(stack.native.len() > 3, "{lines:?}");
        assert_eq!(a_function_with_a_name().interpreted.len(), 0);
    }
}
