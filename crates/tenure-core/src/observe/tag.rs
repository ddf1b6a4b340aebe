//! Tags: what a program calls the part of it that allocates.
//!
//! ```text
//!   thread    "step"  >  "loader"          the innermost that is open counts
//! ```
//!
//! A scope belongs to the thread that opened it, and ends once, in any order. Faces with tasks (Python) open and end scopes
//! as their tasks come and go.
//!
//! **Cost**: opening one looks a name up under a lock, unless it is the one that this thread opened last.

use smallvec::SmallVec;

use super::account::{self, Account};
use super::{TAGS, want};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a tag at most.
pub const LONGEST: usize = 256;

/// The scopes that a thread has open.
#[derive(Default)]
pub(super) struct Scopes {
    open: SmallVec<[(u64, &'static Account); 4]>,
    /// The tag opened last, by name.
    last: Option<(String, &'static Account)>,
}

impl Scopes {
    /// The account of the innermost one.
    pub(super) fn open(&self) -> Option<&'static Account> {
        self.open.last().map(|(_, account)| *account)
    }
}

/// Opens a scope of this thread: what it allocates counts under `name` until [`pop_tag`]. From the first one on the book is
/// kept.
///
/// # Errors
/// [`Error::Invalid`] for a name that is empty or longer than [`LONGEST`] bytes.
pub fn push_tag(name: &str) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if name.is_empty() || name.len() > LONGEST {
        return Err(Error::invalid(format!(
            "a tag is a name of 1 to {LONGEST} bytes, and this one has {}: give a short name for what the code does",
            name.len()
        )));
    }
    want(TAGS, true);
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    account::mine(|mine| {
        let scopes = &mut mine.scopes;
        let account = match &scopes.last {
            Some((known, account)) if known == name => *account,
            _ => {
                let account = account::of_tag(name);
                scopes.last = Some((name.to_owned(), account));
                account
            }
        };
        scopes.open.push((token, account));
    })
    .ok_or_else(|| Error::invalid("this thread is ending: open the tag earlier"))?;
    Ok(token)
}

/// Ends a scope of this thread.
///
/// # Errors
/// [`Error::BadHandle`] for one that is not open on this thread; nothing changed.
pub fn pop_tag(token: u64) -> Result<()> {
    let ended = account::mine(|mine| {
        let open = &mut mine.scopes.open;
        let at = open.iter().rposition(|(other, _)| *other == token)?;
        open.remove(at);
        Some(())
    });
    match ended {
        Some(None) => Err(Error::BadHandle(
            "this tag is not open on this thread: each is ended once, on the thread that opened it".into(),
        )),
        // A thread that is ending has no tags any more.
        _ => Ok(()),
    }
}

/// The name of this thread's innermost tag, for whoever writes logs.
pub fn current_tag() -> Option<String> {
    if !super::is_on() {
        return None;
    }
    account::mine(|mine| mine.scopes.open().map(Account::name)).flatten()
}

/// A tag that is open until this is dropped.
#[derive(Debug)]
#[must_use = "the tag ends when this is dropped"]
pub struct Tag {
    token: u64,
    /// It belongs to its thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Tag {
    /// Opens a tag.
    ///
    /// # Errors
    /// As [`push_tag`].
    pub fn open(name: &str) -> Result<Self> {
        Ok(Self { token: push_tag(name)?, _thread: std::marker::PhantomData })
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let _ = pop_tag(self.token);
    }
}
