//! Accounts: what each tag, thread and resource has, had at most, and had in all.
//!
//! ```text
//!   tag "loader"  ---\
//!   thread 7      ----+--> a tally each: stripes, so that threads which share a tag share no word
//!   resource #1a  ---/
//! ```
//!
//! An account is made once and never given back, so that an entry of the book can name it without counting. There are
//! [`MOST`] of each kind at most; the place of a thread that has ended, or of a resource that is closed, goes to another once
//! nothing of it is live. What comes when all places are taken goes to one account for all the rest.
//!
//! **Cost**: three calls of a tally for each allocation and each free. Four KiB an account.

use std::cell::RefCell;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::tag::Scopes;
use crate::adaptor::tally::{Counters, Tally};
use crate::resource::Named;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Lazy, Mutex};

/// Accounts of one kind.
pub const MOST: usize = 1024;

/// What figures are asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The tag that was open.
    Tag,
    /// The thread that allocated.
    Thread,
    /// The resource that was asked.
    Resource,
}

/// The figures of one account. Sizes are in bytes, as they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The tag (empty: none was open), the thread's name, the resource's kinds.
    pub name: String,
    /// The number of the thread at the operating system, the id of the resource; 0 for tags.
    pub id: u64,
    /// Bytes that are live.
    pub live_bytes: u64,
    /// Blocks that are live.
    pub live_count: u64,
    /// The most bytes that were live at once; too low by at most 1 MiB for each other thread that allocates.
    pub peak_bytes: u64,
    /// The most blocks that were live at once.
    pub peak_count: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
    /// Number of allocations.
    pub total_count: u64,
}

/// One account.
pub(super) struct Account {
    /// What it is found by; 0 for tags and for all the rest.
    key: AtomicU64,
    name: Mutex<String>,
    id: AtomicU64,
    /// Its thread has ended.
    ended: AtomicBool,
    tally: Tally,
}

impl Account {
    fn new(key: u64, name: String, id: u64) -> &'static Self {
        Box::leak(Box::new(Self {
            key: AtomicU64::new(key),
            name: Mutex::new(name),
            id: AtomicU64::new(id),
            ended: AtomicBool::new(false),
            tally: Tally::default(),
        }))
    }

    pub(super) fn name(&self) -> String {
        self.name.lock().clone()
    }

    pub(super) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    fn usage(&self) -> Usage {
        let Counters { bytes, allocations } = self.tally.counters();
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        Usage {
            name: self.name(),
            id: self.id(),
            live_bytes: unsigned(bytes.value),
            live_count: unsigned(allocations.value),
            peak_bytes: unsigned(bytes.peak),
            peak_count: unsigned(allocations.peak),
            total_bytes: unsigned(bytes.total),
            total_count: unsigned(allocations.total),
        }
    }
}

/// The accounts that one block counts in.
#[derive(Clone, Copy)]
pub(super) struct Who {
    /// The id of the resource.
    pub(super) owner: u64,
    pub(super) tag: &'static Account,
    pub(super) thread: &'static Account,
    pub(super) resource: &'static Account,
}

impl Who {
    pub(super) fn count_in(&self, bytes: usize) {
        for account in [self.tag, self.thread, self.resource] {
            account.tally.hold().add(bytes as i64);
        }
    }

    pub(super) fn count_out(&self, bytes: usize) {
        for account in [self.tag, self.thread, self.resource] {
            account.tally.hold().subtract(bytes as i64);
        }
    }
}

/// All accounts of one kind.
struct Kind {
    all: Vec<&'static Account>,
    by_key: FxHashMap<u64, &'static Account>,
    by_name: FxHashMap<String, &'static Account>,
    rest: &'static Account,
}

impl Kind {
    fn new(rest: &str) -> Self {
        Self {
            all: Vec::new(),
            by_key: FxHashMap::default(),
            by_name: FxHashMap::default(),
            rest: Account::new(0, rest.to_owned(), 0),
        }
    }

    /// A place for another one; `None` where all are taken.
    fn place(&mut self, is_over: impl Fn(&Account) -> bool) -> Option<Option<&'static Account>> {
        if self.all.len() < MOST {
            return Some(None);
        }
        let over = self.all.iter().find(|account| is_over(account) && account.usage().live_count == 0)?;
        self.by_key.remove(&over.key.load(Ordering::Relaxed));
        Some(Some(over))
    }

    /// The account of a key, made by `describe` (a name and a number for people) if need be.
    fn of_key(
        &mut self,
        key: u64,
        is_over: impl Fn(&Account) -> bool,
        describe: impl FnOnce() -> (String, u64),
    ) -> &'static Account {
        if let Some(account) = self.by_key.get(&key) {
            return account;
        }
        let account = match self.place(is_over) {
            None => return self.rest,
            Some(None) => {
                let (name, id) = describe();
                let account = Account::new(key, name, id);
                self.all.push(account);
                account
            }
            Some(Some(again)) => {
                let (name, id) = describe();
                again.tally.clear();
                *again.name.lock() = name;
                again.id.store(id, Ordering::Relaxed);
                again.ended.store(false, Ordering::Relaxed);
                again.key.store(key, Ordering::Relaxed);
                again
            }
        };
        self.by_key.insert(key, account);
        account
    }
}

static TAGS: Lazy<Mutex<Kind>> = Lazy::new(|| Mutex::new(Kind::new("(other tags)")));
static THREADS: Lazy<Mutex<Kind>> = Lazy::new(|| Mutex::new(Kind::new("(other threads)")));
static RESOURCES: Lazy<Mutex<Kind>> = Lazy::new(|| Mutex::new(Kind::new("(other resources)")));
/// The account of what is allocated while no tag is open.
static UNTAGGED: Lazy<&'static Account> = Lazy::new(|| Account::new(0, String::new(), 0));

/// The account of a tag.
pub(super) fn of_tag(name: &str) -> &'static Account {
    let mut tags = TAGS.lock();
    if let Some(account) = tags.by_name.get(name) {
        return account;
    }
    if tags.all.len() >= MOST {
        return tags.rest;
    }
    let account = Account::new(0, name.to_owned(), 0);
    tags.all.push(account);
    tags.by_name.insert(name.to_owned(), account);
    account
}

/// The number that the operating system has for this thread, and the name it was given.
fn this_thread() -> (String, u64) {
    // SAFETY: takes no argument and cannot fail.
    let id = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    let mut name = [0u8; 32];
    // SAFETY: the array is as long as is said; it ends with a zero byte whatever is written.
    let named = unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    let name = if named == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { String::new() };
    (name, id)
}

/// What a thread has at hand.
#[derive(Default)]
pub(super) struct Mine {
    thread: Option<&'static Account>,
    /// The resource used last.
    resource: Option<(u64, &'static Account)>,
    pub(super) scopes: Scopes,
    /// The library that allocates; 0: the program itself.
    pub(super) library: u32,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(thread) = self.thread {
            thread.ended.store(true, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = RefCell::new(Mine::default());
}

/// Works on what this thread has at hand; `None` on a thread that is ending.
pub(super) fn mine<R>(f: impl FnOnce(&mut Mine) -> R) -> Option<R> {
    MINE.try_with(|mine| mine.try_borrow_mut().ok().map(|mut mine| f(&mut mine))).ok().flatten()
}

/// The accounts of a block that this thread asks of a resource now.
pub(super) fn here(resource: u64) -> Who {
    let found = mine(|mine| {
        let thread = *mine.thread.get_or_insert_with(|| {
            let key = crate::stream::this_thread();
            THREADS.lock().of_key(key, |account| account.ended.load(Ordering::Relaxed), this_thread)
        });
        let tag = mine.scopes.open().unwrap_or(*UNTAGGED);
        let account = match mine.resource {
            // The place may have gone to another resource meanwhile.
            Some((id, account)) if id == resource && account.key.load(Ordering::Relaxed) == id => account,
            _ => {
                let account = of_resource(resource);
                mine.resource = Some((resource, account));
                account
            }
        };
        Who { owner: resource, tag, thread, resource: account }
    });
    found.unwrap_or_else(|| Who {
        owner: resource,
        tag: *UNTAGGED,
        thread: THREADS.lock().rest,
        resource: of_resource(resource),
    })
}

fn of_resource(id: u64) -> &'static Account {
    if let Some(known) = RESOURCES.lock().by_key.get(&id) {
        return known;
    }
    // Outside the lock: a resource of user functions tells its kind by itself.
    let name = Named::borrowed(id).map_or_else(String::new, |named| named.stack());
    RESOURCES.lock().of_key(id, |account| Named::borrowed(account.key.load(Ordering::Relaxed)).is_none(), || (name, id))
}

/// The figures of all accounts of a kind that ever counted anything, those with most live bytes first.
pub fn usage(by: By) -> Vec<Usage> {
    let accounts: SmallVec<[&'static Account; 16]> = {
        let kind = match by {
            By::Tag => TAGS.lock(),
            By::Thread => THREADS.lock(),
            By::Resource => RESOURCES.lock(),
        };
        let untagged = (by == By::Tag).then_some(*UNTAGGED);
        kind.all.iter().copied().chain([kind.rest]).chain(untagged).collect()
    };
    let mut all: Vec<Usage> =
        accounts.iter().map(|account| account.usage()).filter(|usage| usage.total_count != 0).collect();
    all.sort_by(|a, b| b.live_bytes.cmp(&a.live_bytes).then(b.peak_bytes.cmp(&a.peak_bytes)).then(a.name.cmp(&b.name)));
    all
}
