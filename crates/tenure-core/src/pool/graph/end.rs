//! The end of graphs: the driver tells that one is gone, and its pages go back.
//!
//! ```text
//!   graph, executables, last run gone --> driver: ended() sets a flag --> reap (the pool's slow path, trim, info)
//!   pool ends before its graphs ---------------------------------------> ORPHANS: any pool's slow path gives them back
//! ```
//!
//! The flag is all that the driver's callback touches, since no driver call is allowed there. No driver call is made under a lock.

use std::ffi::c_void;

use tenure_driver::CaptureInfo;

use super::super::Pool;
use super::arena::{Arena, Life};
use crate::error::Result;
use crate::resource::Resource;
use crate::resource::leaf::Cuda;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// The arena of a pool that ended before its graphs.
struct Orphan {
    arena: Arena,
    device: i32,
    /// Where its pages are shown.
    upstream: Resource,
}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());
static ORPHAN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Has the graph of a capture hold a life, whose end the driver tells.
pub(super) fn hold(info: &CaptureInfo) -> Result<Arc<Life>> {
    unsafe extern "C" fn ended(life: *mut c_void) {
        // SAFETY: the address came from `Arc::into_raw` below, and the driver calls this once.
        unsafe { Arc::from_raw(life.cast_const().cast::<Life>()) }.end();
    }
    let driver = crate::device::driver()?;
    let _relaxed = tenure_driver::RelaxedCapture::enter(driver)?;
    let life = Arc::new(Life::default());
    let held = Arc::into_raw(life.clone());
    // SAFETY: the stream of this call is capturing into this graph. `ended` sets a flag and makes no driver call.
    match unsafe { driver.graph_on_destroy(info.graph, ended, held.cast_mut().cast()) } {
        Ok(()) => Ok(life),
        Err(e) => {
            // SAFETY: the driver did not take it.
            drop(unsafe { Arc::from_raw(held) });
            Err(e.into())
        }
    }
}

impl Pool {
    /// Gives back the pages of graphs that are gone; says how many bytes. With `may_wait`, also of those whose memory eager
    /// work may still use, after a device proof.
    pub(in crate::pool) fn reap(&self, may_wait: bool) -> u64 {
        if ORPHAN_COUNT.load(Ordering::Relaxed) != 0 {
            reap_orphans(may_wait);
        }
        if self.graphs.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let over = {
            let mut table = self.graphs.table.lock();
            let over = table.take_over(may_wait);
            self.graphs.count.fetch_sub(over.len(), Ordering::Relaxed);
            over
        };
        if over.is_empty() {
            return 0;
        }
        let proved = if over.iter().any(|a| a.eager) {
            crate::device::settled(crate::device::prove(self.device))
        } else {
            Ok(())
        };
        self.settle(over, proved)
    }

    /// Gives back arenas that nothing uses any more, if that could be `proved`; says how many bytes. What cannot go now is
    /// left to the process.
    fn settle(&self, over: Vec<Arena>, proved: Result<()>) -> u64 {
        let mut failed = proved.err();
        let before: u64 = over.iter().map(Arena::reserved).sum();
        let stay: Vec<Arena> = match failed {
            Some(_) => over,
            None => over.into_iter().filter(|a| a.clear().map_err(|e| failed = Some(e)).is_err()).collect(),
        };
        let kept: u64 = stay.iter().map(Arena::reserved).sum();
        if let Some(e) = failed {
            log::warn!("tenure: the memory of {} graphs that are gone goes back later: {e}", stay.len());
        }
        self.note_reserved();
        self.leave(stay);
        before.saturating_sub(kept)
    }

    /// Leaves arenas to the process: whichever pool comes to its slow path gives them back.
    fn leave(&self, arenas: Vec<Arena>) {
        if arenas.is_empty() {
            return;
        }
        ORPHAN_COUNT.fetch_add(arenas.len(), Ordering::Relaxed);
        // They are shown in the upstream still, but no longer by this pool.
        self.note_reserved();
        if let Some(cuda) = self.upstream.downcast::<Cuda>() {
            cuda.note_pages_taken(arenas.iter().map(Arena::reserved).sum());
        }
        let orphans =
            arenas.into_iter().map(|arena| Orphan { arena, device: self.device, upstream: self.upstream.anchor() });
        ORPHANS.lock().extend(orphans);
    }

    /// The pool ends: what its graphs still need is left to the process, the rest goes. `proven` says that the device has
    /// been waited for.
    pub(in crate::pool) fn end_graphs(&mut self) {
        let table = std::mem::take(self.graphs.table.get_mut());
        self.graphs.count.store(0, Ordering::Relaxed);
        let arenas: Vec<Arena> = table.arenas.into_values().collect();
        if tenure_driver::process::unusable() {
            arenas.into_iter().for_each(Arena::forget);
            return;
        }
        let (stay, go): (Vec<_>, Vec<_>) = arenas.into_iter().partition(Arena::has_graphs);
        let wait = go.iter().any(|a| a.eager || a.live_count() > 0);
        let proved = if wait { crate::device::settled(crate::device::prove(self.device)) } else { Ok(()) };
        self.settle(go, proved);
        self.leave(stay);
    }
}

/// Gives back the arenas of ended pools whose graphs are gone.
fn reap_orphans(may_wait: bool) {
    let over: Vec<Orphan> = {
        let mut orphans = ORPHANS.lock();
        let (over, stay) = std::mem::take(&mut *orphans).into_iter().partition(|o| {
            // Of an ended pool there is nobody left who could free a block.
            let eager = o.arena.eager || o.arena.live_count() > 0;
            !o.arena.has_graphs() && (may_wait || !eager)
        });
        *orphans = stay;
        over
    };
    ORPHAN_COUNT.fetch_sub(over.len(), Ordering::Relaxed);
    for orphan in over {
        let wait = orphan.arena.eager || orphan.arena.live_count() > 0;
        let proved = if wait { crate::device::settled(crate::device::prove(orphan.device)) } else { Ok(()) };
        let before = orphan.arena.reserved();
        let gone = proved.and_then(|()| orphan.arena.clear());
        if let Some(cuda) = orphan.upstream.downcast::<Cuda>() {
            cuda.note_pages_given(before.saturating_sub(orphan.arena.reserved()));
        }
        if let Err(e) = gone {
            log::warn!("tenure: the memory of a graph that is gone goes back later: {e}");
            ORPHAN_COUNT.fetch_add(1, Ordering::Relaxed);
            ORPHANS.lock().push(orphan);
        }
    }
}
