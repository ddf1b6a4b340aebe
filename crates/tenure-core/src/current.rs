//! The one table of current resources.
//!
//! ```text
//!   device 0   [shard][shard]...[shard]      each shard: latch, the entry as this shard sees it
//!   device 1   [shard][shard]...[shard]      get: the caller's own shard, one light taken under its latch
//!   ...                                      set: all shards, one anchor held by the table
//!
//!   thread     scope, scope, scope           `using`: the innermost scope of the device wins
//! ```
//!
//! No thread keeps a resource for later: each `get` reads the entry, so that a stale reading is impossible and a replaced
//! pool goes as soon as its last buffer does. Listeners are called without a lock, one call at a time per device, with the
//! newest entry: two racing `set` leave every follower with the last.
//!
//! # Invariants
//! * All shards of a device name the same resource whenever no `set` of it is under way; the table holds one anchor on it.
//! * A scope ends once, by its token, in any order and from any thread.
//!
//! # Cost
//! `get`: one latch that threads hardly share and one light, about 15 ns, flat over threads. `set`: all latches.

use std::cell::RefCell;

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::latch::Latch;
use crate::resource::{Light, Named, Resource, leaf};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Lazy, Mutex, Weak};

/// Most devices that one process can have entries for.
pub const MAX_DEVICES: usize = 128;
const SHARDS: usize = 16;

/// What every face is told of a change: device, the new resource, and a number that rises with each change.
pub type Listener = dyn Fn(i32, &Named, u64) + Send + Sync;

struct Entry {
    known: AtomicBool,
    /// What each reader sees. `None`: the plain device resource.
    shards: Vec<CachePadded<Latch<Option<Named>>>>,
    /// Held by `set` over all shards; owns the anchor of what the shards name.
    owner: Mutex<Option<Resource>>,
    version: AtomicU64,
    telling: Mutex<Telling>,
}

/// How far the listeners of a device have been told.
#[derive(Default)]
struct Telling {
    /// True while some thread tells them.
    running: bool,
    /// The last version that they heard.
    told: u64,
}

static TABLE: Lazy<Vec<Entry>> = Lazy::new(|| {
    (0..MAX_DEVICES)
        .map(|_| Entry {
            known: AtomicBool::new(false),
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            owner: Mutex::new(None),
            version: AtomicU64::new(1),
            telling: Mutex::new(Telling { running: false, told: 1 }),
        })
        .collect()
});

static LISTENERS: Mutex<Vec<(u64, Arc<Listener>)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
static SCOPES: Lazy<Mutex<FxHashMap<u64, Weak<ThreadScopes>>>> = Lazy::new(|| Mutex::new(FxHashMap::default()));

struct Scope {
    token: u64,
    device: i32,
    resource: Resource,
}

/// The scopes of one thread. Another thread may end one of them.
struct ThreadScopes {
    count: AtomicUsize,
    list: Mutex<Vec<Scope>>,
}

thread_local! {
    static MINE: RefCell<Option<Arc<ThreadScopes>>> = const { RefCell::new(None) };
}

fn entry(device: i32) -> Result<(&'static Entry, i32)> {
    let device = if device == -1 { crate::device::current()? } else { device };
    let entry = usize::try_from(device).ok().and_then(|d| TABLE.get(d));
    let Some(entry) = entry else {
        return Err(Error::invalid(format!("there is no device {device}: devices are counted from 0")));
    };
    if !entry.known.load(Ordering::Relaxed) {
        crate::device::check(device)?;
        entry.known.store(true, Ordering::Relaxed);
    }
    Ok((entry, device))
}

fn scoped<R>(device: i32, f: impl FnOnce(&mut Scope) -> R) -> Option<R> {
    // Cloned only where there is a scope: the usual thread has none and pays one load.
    let mine = MINE
        .try_with(|m| m.borrow().as_ref().filter(|mine| mine.count.load(Ordering::Acquire) != 0).cloned())
        .ok()??;
    let mut list = mine.list.lock();
    list.iter_mut().rev().find(|scope| scope.device == device).map(f)
}

/// [`get`] of a device that was asked for before, on a thread without a scope and where something was set: `None` where any
/// of that is not so, with nothing changed.
#[inline]
pub fn get_at_hand(device: i32) -> Option<Light> {
    let entry = Lazy::get(&TABLE)?.get(usize::try_from(device).ok()?)?;
    if !entry.known.load(Ordering::Relaxed) || tenure_driver::process::unusable() {
        return None;
    }
    let scoped = MINE.try_with(|m| m.borrow().as_ref().is_some_and(|mine| mine.count.load(Ordering::Acquire) != 0));
    if scoped != Ok(false) {
        return None;
    }
    crate::thread::with(|here| {
        let seen = entry.shards[here.number() % SHARDS].hold();
        seen.as_ref().map(|named| named.light_of(here))
    })
}

/// The current resource of a device (-1: of the current device), scopes of this thread included.
///
/// # Errors
/// An unknown device, or no device layer.
pub fn get(device: i32) -> Result<Light> {
    let (entry, device) = entry(device)?;
    if let Some(light) = scoped(device, |scope| scope.resource.light()) {
        return Ok(light);
    }
    let seen = entry.shards[crate::thread::number() % SHARDS].hold();
    if let Some(named) = *seen {
        // Under the shard's lock the table's anchor cannot go: `set` needs this lock to replace what we see.
        return Ok(named.light());
    }
    drop(seen);
    Ok(leaf::shared::plain()?.light())
}

/// Replaces the current resource of a device (-1: of the current device); inside a scope of this thread, the scope's
/// binding. Gives the previous one.
///
/// # Errors
/// An unknown device, or a resource of another device; nothing changed.
pub fn set(device: i32, resource: Resource) -> Result<Resource> {
    let (entry, device) = entry(device)?;
    check_device(&resource, device)?;
    let mut resource = Some(resource);
    let id = resource.as_ref().map_or(0, |resource| resource.id());
    let replaced = scoped(device, |scope| resource.take().map(|new| std::mem::replace(&mut scope.resource, new)));
    if let Some(Some(previous)) = replaced {
        crate::observe::current_event(id, device);
        return Ok(previous);
    }
    let previous = exchange(entry, resource)?;
    crate::observe::current_event(id, device);
    tell(entry, device);
    Ok(previous)
}

/// Puts the plain device resource back and gives the previous one.
///
/// # Errors
/// An unknown device.
pub fn reset(device: i32) -> Result<Resource> {
    let (entry, device) = entry(device)?;
    if scoped(device, |_| ()).is_some() {
        return set(device, leaf::shared::cuda()?);
    }
    let previous = exchange(entry, None)?;
    crate::observe::current_event(leaf::shared::plain()?.id(), device);
    tell(entry, device);
    Ok(previous)
}

fn check_device(resource: &Named, device: i32) -> Result<()> {
    match resource.body().device() {
        Some(own) if own >= 0 && own != device => Err(Error::invalid(format!(
            "a resource of device {own} cannot be the current one of device {device}: make one on that device"
        ))),
        _ => Ok(()),
    }
}

fn exchange(entry: &'static Entry, resource: Option<Resource>) -> Result<Resource> {
    let plain = leaf::shared::cuda()?;
    let mut owner = entry.owner.lock();
    let named = resource.as_ref().map(|r| **r);
    let mut shards: Vec<_> = entry.shards.iter().map(|shard| shard.hold()).collect();
    for shard in &mut shards {
        **shard = named;
    }
    drop(shards);
    entry.version.fetch_add(1, Ordering::AcqRel);
    Ok(std::mem::replace(&mut *owner, resource).unwrap_or(plain))
}

/// Tells the listeners. Whoever finds another thread telling leaves it to that one, which looks again before it ends; and
/// whoever comes after another thread has told of this change too has nothing to tell.
fn tell(entry: &'static Entry, device: i32) {
    {
        let mut telling = entry.telling.lock();
        if telling.running {
            return;
        }
        telling.running = true;
    }
    loop {
        let (now, version) = {
            let owner = entry.owner.lock();
            (owner.as_ref().map(|r| r.light()), entry.version.load(Ordering::Acquire))
        };
        {
            let mut telling = entry.telling.lock();
            if version == telling.told {
                if entry.version.load(Ordering::Acquire) == version {
                    telling.running = false;
                    return;
                }
                continue;
            }
            telling.told = version;
        }
        let now = match now {
            Some(light) => light,
            None => match leaf::shared::plain() {
                Ok(plain) => plain.light(),
                Err(_) => continue,
            },
        };
        let listeners: Vec<_> = LISTENERS.lock().iter().map(|(_, f)| f.clone()).collect();
        for listener in listeners {
            listener(device, &now, version);
        }
    }
}

/// Calls `listener` whenever an entry changes, until [`unlisten`].
pub fn listen(listener: Arc<Listener>) -> u64 {
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    LISTENERS.lock().push((token, listener));
    token
}

/// Ends a listener. A call of it that is under way on another thread may still end after this.
///
/// # Errors
/// An unknown or ended one.
pub fn unlisten(token: u64) -> Result<()> {
    let removed = {
        let mut listeners = LISTENERS.lock();
        let position = listeners.iter().position(|(t, _)| *t == token);
        position.map(|i| listeners.remove(i))
    };
    removed.map(drop).ok_or_else(|| Error::BadHandle("this listener is null or was removed already".into()))
}

/// Binds the current resource of a device (-1: of the current device) for this thread until [`leave`].
///
/// # Errors
/// An unknown device, or a resource of another device.
pub fn enter(device: i32, resource: Resource) -> Result<u64> {
    let (_, device) = entry(device)?;
    check_device(&resource, device)?;
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    let mine = MINE
        .try_with(|mine| {
            mine.borrow_mut()
                .get_or_insert_with(|| {
                    Arc::new(ThreadScopes { count: AtomicUsize::new(0), list: Mutex::new(Vec::new()) })
                })
                .clone()
        })
        .map_err(|_| Error::invalid("this thread is ending: open the scope earlier"))?;
    SCOPES.lock().insert(token, Arc::downgrade(&mine));
    let mut list = mine.list.lock();
    list.push(Scope { token, device, resource });
    mine.count.store(list.len(), Ordering::Release);
    Ok(token)
}

/// Ends a scope, in any order and from any thread. Ending one whose thread has ended does nothing.
///
/// # Errors
/// An unknown or ended one.
pub fn leave(token: u64) -> Result<()> {
    let thread = SCOPES
        .lock()
        .remove(&token)
        .ok_or_else(|| Error::BadHandle("this scope is null or was left already: each scope is left once".into()))?;
    let ended = thread.upgrade().and_then(|thread| {
        let mut list = thread.list.lock();
        let position = list.iter().position(|scope| scope.token == token)?;
        let scope = list.remove(position);
        thread.count.store(list.len(), Ordering::Release);
        Some(scope)
    });
    // The resource may go with it, which needs that no lock is held.
    drop(ended);
    Ok(())
}
