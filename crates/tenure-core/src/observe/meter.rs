//! The meter: did it help? What a run held at its peak, whose it was, and how long allocating took.
//!
//! ```text
//!   allocate, deallocate --timed--> seconds in allocation
//!            |--booked--> holders (library, tag): live, peak, at the peak of all
//!            |                '--> buckets of time: the most that was live in each, and who held it
//!            '--the driver was asked for more, or 20 ms passed--> what the device has in use, what resources have reserved
//! ```
//!
//! # Invariants
//! * A block counts from its allocation to its free if it was allocated while the meter ran: its entry in the book has the
//!   meter's generation. What was out before is not counted in and not counted out.
//! * Who held what at the peak is exact: the figures of all holders are kept when the first free after a new peak comes, and
//!   until then they are the holders' own. A free counts out when it is done, so that another thread which was given the memory
//!   meanwhile may make a peak too high by that block.
//! * The lock is held for additions only; resources and the driver are asked outside it.
//!
//! # Cost
//! None while it does not run. While it runs: the book's, two readings of the clock a call, and one lock of the process.

use std::time::Instant;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::account::{self, Account};
use super::history;
use super::{METER, STACKS, is_on, want, wants};
use crate::error::{Error, Result};
use crate::resource::callback::CallbackResource;
use crate::resource::{Named, registry};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Lazy, Mutex};

/// Pairs of library and tag that are told apart; what comes later is the last one's.
const HOLDERS: usize = 256;
/// Buckets of time at most: then two become one, and each is twice as long.
const BUCKETS: usize = 1024;
/// Nanoseconds of a bucket at first.
const SHORTEST: u64 = 1_000_000;
/// Nanoseconds between two questions to the driver when it was asked for nothing.
const DRIVER_EVERY: u64 = 20_000_000;
/// Blocks that are listed as left, the largest.
const LEFT: usize = 1000;
/// Libraries at most.
const LIBRARIES: usize = 64;

/// A block as the meter knows it.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    generation: u64,
    holder: usize,
}

struct Holder {
    library: u32,
    tag: &'static Account,
    live: u64,
    count: u64,
    peak: u64,
    total_bytes: u64,
    total_count: u64,
}

#[derive(Clone, Default)]
struct Bucket {
    /// When most was live in it.
    time: u64,
    live: u64,
    reserved: u64,
    /// By holder.
    held: Vec<u64>,
}

#[derive(Clone, Copy, Default)]
struct Device {
    total: u64,
    first: u64,
    peak: u64,
}

#[derive(Default)]
struct Meter {
    generation: u64,
    begun: u64,
    ended: u64,
    holders: Vec<Holder>,
    index: FxHashMap<(u32, usize), usize>,
    live: u64,
    count: u64,
    peak: u64,
    peak_time: u64,
    at_peak: Vec<u64>,
    /// The holders' own figures are those of the peak.
    is_at_peak: bool,
    buckets: Vec<Bucket>,
    now: Bucket,
    now_began: u64,
    /// The holders' own figures are those of the bucket's most.
    is_at_most: bool,
    interval: u64,
    reserved: u64,
    peak_reserved: u64,
    devices: FxHashMap<i32, Device>,
    sampled: u64,
    grown: u64,
    /// Once it has ended: the blocks that were out.
    left: Vec<Value>,
}

static STATE: Lazy<Mutex<Meter>> = Lazy::new(|| Mutex::new(Meter::default()));
static NAMES: Lazy<Mutex<Vec<String>>> = Lazy::new(|| Mutex::new(vec![String::new()]));
/// Nanoseconds and calls: allocations, frees.
static SPENT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// What a call is.
#[derive(Clone, Copy)]
pub(super) enum Call {
    Allocate = 0,
    Free = 2,
}

/// Makes a call, and measures it while the meter runs. One that would have had to wait is made again, and is one call.
#[inline]
pub(super) fn timed<R>(call: Call, make: impl FnOnce() -> Result<R>) -> Result<R> {
    measured(call, |made| !matches!(made, Err(Error::WouldBlock)), make)
}

/// Makes a call, and measures it while the meter runs; `is_one` says whether it is counted.
#[inline]
pub(super) fn measured<R>(call: Call, is_one: impl FnOnce(&R) -> bool, make: impl FnOnce() -> R) -> R {
    if !(is_on() && wants(METER)) {
        return make();
    }
    let start = Instant::now();
    let made = make();
    let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    SPENT[call as usize].fetch_add(spent, Ordering::Relaxed);
    SPENT[call as usize + 1].fetch_add(u64::from(is_one(&made)), Ordering::Relaxed);
    made
}

// ------------------------------------------------------------------------------------------------------------ libraries

/// The number of a library's name, the same each time. 0 is the program itself.
///
/// # Errors
/// [`Error::Invalid`] for an empty or long name, and when there are [`LIBRARIES`].
pub fn library(name: &str) -> Result<u32> {
    if name.is_empty() || name.len() > super::tag::LONGEST {
        return Err(Error::invalid(format!(
            "a library has a name of 1 to {} bytes, and this one has {}",
            super::tag::LONGEST,
            name.len()
        )));
    }
    let mut names = NAMES.lock();
    if let Some(at) = names.iter().position(|known| known == name) {
        return Ok(at as u32);
    }
    if names.len() >= LIBRARIES {
        return Err(Error::invalid(format!(
            "there are {LIBRARIES} names of libraries already: use one name for each library"
        )));
    }
    names.push(name.to_owned());
    Ok((names.len() - 1) as u32)
}

/// What this thread allocates from now on is that library's; gives what was so before. 0 is the program itself.
#[must_use = "the number is to be set again at the end"]
pub fn set_library(number: u32) -> u32 {
    account::mine(|mine| std::mem::replace(&mut mine.library, number)).unwrap_or(0)
}

// ------------------------------------------------------------------------------------------------------------- counting

impl Meter {
    fn holder(&mut self, library: u32, tag: &'static Account) -> usize {
        let key = (library, std::ptr::from_ref(tag).addr());
        if let Some(at) = self.index.get(&key) {
            return *at;
        }
        if self.holders.len() < HOLDERS {
            self.holders.push(Holder { library, tag, live: 0, count: 0, peak: 0, total_bytes: 0, total_count: 0 });
        }
        let at = self.holders.len() - 1;
        self.index.insert(key, at);
        at
    }

    fn held(&self) -> Vec<u64> {
        self.holders.iter().map(|holder| holder.live).collect()
    }

    /// Before the figures go down: what they were at the peak is kept.
    fn leave_peak(&mut self) {
        if self.is_at_peak {
            self.at_peak = self.held();
            self.is_at_peak = false;
        }
        if self.is_at_most {
            self.now.held = self.held();
            self.is_at_most = false;
        }
    }

    /// The figures have gone up, or a bucket begins.
    fn look_at_most(&mut self, time: u64) {
        if self.live > self.peak {
            (self.peak, self.peak_time, self.is_at_peak) = (self.live, time, true);
        }
        if self.live > self.now.live {
            (self.now.live, self.now.time, self.is_at_most) = (self.live, time, true);
        }
    }

    /// Ends buckets that are over.
    fn turn(&mut self, time: u64) {
        if time.saturating_sub(self.now_began) < self.interval {
            return;
        }
        if self.is_at_most {
            self.now.held = self.held();
        }
        self.now.reserved = self.now.reserved.max(self.reserved);
        let live = self.live;
        let next = Bucket { time, live, reserved: self.reserved, held: Vec::new() };
        let over = std::mem::replace(&mut self.now, next);
        self.buckets.push(over);
        self.now_began = time;
        self.is_at_most = true;
        if self.buckets.len() >= BUCKETS {
            let mut merged: Vec<Bucket> = Vec::with_capacity(BUCKETS);
            let mut all = std::mem::take(&mut self.buckets).into_iter();
            while let Some(first) = all.next() {
                let second = all.next().unwrap_or_default();
                let reserved = first.reserved.max(second.reserved);
                let most = if second.live > first.live { second } else { first };
                merged.push(Bucket { reserved, ..most });
            }
            self.buckets = merged;
            self.interval *= 2;
        }
    }

    /// Whether resources and the driver are to be asked.
    fn wants_sample(&mut self, time: u64, turned: bool) -> bool {
        let grown = tenure_driver::watch::grown();
        if grown != self.grown || turned || time.saturating_sub(self.sampled) >= DRIVER_EVERY {
            (self.grown, self.sampled) = (grown, time);
            return true;
        }
        false
    }
}

/// Counts a block in.
pub(super) fn count_in(named: &Named, bytes: usize, tag: &'static Account) -> Option<Mark> {
    if !wants(METER) {
        return None;
    }
    let library = account::mine(|mine| mine.library).unwrap_or(0);
    let time = history::now();
    let (mark, sample) = {
        let mut state = STATE.lock();
        let meter = &mut *state;
        if meter.ended != 0 {
            // It is ending: what is told of the end has been said.
            return None;
        }
        let before = meter.buckets.len();
        meter.turn(time);
        let at = meter.holder(library, tag);
        let bytes = bytes as u64;
        let holder = &mut meter.holders[at];
        holder.live += bytes;
        holder.count += 1;
        holder.peak = holder.peak.max(holder.live);
        holder.total_bytes += bytes;
        holder.total_count += 1;
        meter.live += bytes;
        meter.count += 1;
        meter.look_at_most(time);
        let turned = meter.buckets.len() != before;
        (Mark { generation: meter.generation, holder: at }, meter.wants_sample(time, turned))
    };
    if sample {
        look(named.body().device());
    }
    Some(mark)
}

/// Counts a block out.
pub(super) fn count_out(mark: Mark, bytes: usize) {
    let time = history::now();
    let mut state = STATE.lock();
    let meter = &mut *state;
    if mark.generation != meter.generation || meter.ended != 0 {
        return;
    }
    meter.turn(time);
    meter.leave_peak();
    let bytes = bytes as u64;
    if let Some(holder) = meter.holders.get_mut(mark.holder) {
        holder.live = holder.live.saturating_sub(bytes);
        holder.count = holder.count.saturating_sub(1);
    }
    meter.live = meter.live.saturating_sub(bytes);
    meter.count = meter.count.saturating_sub(1);
}

/// What resources have of the driver and of the host, each byte once: a pool's memory that its upstream counts too is the
/// pool's.
fn reserved() -> u64 {
    let mut stores: FxHashMap<u64, (u64, u64)> = FxHashMap::default();
    let mut above: FxHashMap<u64, u64> = FxHashMap::default();
    registry::for_each(|resource| {
        let body = resource.body();
        let upstream = body.upstream().map_or(0, |upstream| upstream.id());
        above.insert(resource.id(), upstream);
        let is_store = upstream == 0 || !body.held_ranges().is_empty();
        if is_store && resource.downcast::<CallbackResource>().is_none() {
            stores.insert(resource.id(), (body.reserved_bytes(), 0));
        }
    });
    let all: Vec<(u64, u64)> = stores.iter().map(|(id, (bytes, _))| (*id, *bytes)).collect();
    for (id, bytes) in all {
        let mut at = above.get(&id).copied().unwrap_or(0);
        while at != 0 {
            if let Some((_, taken)) = stores.get_mut(&at) {
                *taken += bytes;
                break;
            }
            at = above.get(&at).copied().unwrap_or(0);
        }
    }
    stores.values().map(|(bytes, taken)| bytes.saturating_sub(*taken)).sum()
}

/// Asks resources and the driver.
fn look(device: Option<i32>) {
    let reserved = reserved();
    // A resource of no device serves the current one, where the driver was asked for anything at all.
    let device =
        device.or_else(|| (tenure_driver::watch::grown() != 0).then(|| crate::device::current().ok()).flatten());
    let asked = device.filter(|device| *device >= 0).and_then(|device| {
        let (free, total) = crate::device::memory_info(device).ok()?;
        Some((device, total.saturating_sub(free), total))
    });
    let mut meter = STATE.lock();
    meter.reserved = reserved;
    meter.peak_reserved = meter.peak_reserved.max(reserved);
    meter.now.reserved = meter.now.reserved.max(reserved);
    if let Some((device, used, total)) = asked {
        let known = meter.devices.entry(device).or_insert(Device { total, first: used, peak: used });
        known.peak = known.peak.max(used);
    }
}

// --------------------------------------------------------------------------------------------------------- for a reader

/// Begins to count, with what was counted before forgotten; with `stacks` who allocates is known by line where somebody tells.
pub fn begin(stacks: bool) {
    {
        let time = history::now();
        let mut state = STATE.lock();
        let generation = state.generation + 1;
        let grown = tenure_driver::watch::grown();
        *state = Meter {
            generation,
            begun: time,
            now_began: time,
            interval: SHORTEST,
            grown,
            is_at_most: true,
            now: Bucket { time, ..Bucket::default() },
            ..Meter::default()
        };
    }
    for spent in &SPENT {
        spent.store(0, Ordering::Relaxed);
    }
    want(METER, true);
    want(STACKS, stacks);
}

/// Counts no more; what was counted stays to be read.
pub fn end() {
    let names = NAMES.lock().clone();
    let generation = STATE.lock().generation;
    let left = left(&names, generation);
    {
        let mut meter = STATE.lock();
        if meter.generation != 0 && meter.ended == 0 {
            // Before the book is closed, which counts everything out.
            (meter.ended, meter.left) = (history::now(), left);
        }
    }
    want(STACKS, false);
    want(METER, false);
}

fn name_of(names: &[String], library: u32) -> Value {
    names.get(library as usize).filter(|name| !name.is_empty()).map_or(Value::Null, |name| name.as_str().into())
}

fn tag_of(tag: &Account) -> Value {
    let name = tag.name();
    if name.is_empty() { Value::Null } else { name.into() }
}

/// The block of the book, for those who are left.
fn left(names: &[String], generation: u64) -> Vec<Value> {
    let mut all: Vec<_> = super::book::all()
        .into_iter()
        .filter_map(|(ptr, entry)| Some((ptr, entry.mark.filter(|mark| mark.generation == generation)?, entry)))
        .collect();
    all.sort_by_key(|(_, _, entry)| std::cmp::Reverse(entry.bytes));
    all.truncate(LEFT);
    let libraries: Vec<u32> = STATE.lock().holders.iter().map(|holder| holder.library).collect();
    all.iter()
        .map(|(ptr, mark, entry)| {
            json!({
                "address": ptr,
                "size": entry.bytes,
                "stream": entry.stream,
                "library": libraries.get(mark.holder).map_or(Value::Null, |library| name_of(names, *library)),
                "tag": tag_of(entry.who.tag),
                "thread": entry.who.thread.name(),
                "resource": entry.who.resource.name(),
                "frames": entry.stack.as_deref().map(|stack| stack.frames().collect::<Vec<_>>()),
            })
        })
        .collect()
}

/// What was counted, as JSON. `docs/tools.md` has the fields.
pub fn text() -> String {
    let devices: Vec<i32> = STATE.lock().devices.keys().copied().collect();
    look(None);
    for device in devices {
        look(Some(device));
    }
    let names = NAMES.lock().clone();
    let generation = STATE.lock().generation;
    let left = if STATE.lock().ended == 0 { left(&names, generation) } else { STATE.lock().left.clone() };
    let resources: Vec<Value> = super::snapshot::layers().iter().map(super::snapshot::Layer::json).collect();
    let now = history::now();
    let meter = STATE.lock();
    let at_peak = if meter.is_at_peak { meter.held() } else { meter.at_peak.clone() };
    let holders: Vec<Value> = meter
        .holders
        .iter()
        .enumerate()
        .map(|(at, holder)| {
            json!({
                "library": name_of(&names, holder.library),
                "tag": tag_of(holder.tag),
                "live_bytes": holder.live,
                "live_count": holder.count,
                "peak_bytes": holder.peak,
                "at_peak_bytes": at_peak.get(at).copied().unwrap_or(0),
                "total_bytes": holder.total_bytes,
                "total_count": holder.total_count,
            })
        })
        .collect();
    let mut last = meter.now.clone();
    if meter.is_at_most {
        last.held = meter.held();
    }
    let timeline: Vec<Value> = meter
        .buckets
        .iter()
        .chain([&last])
        .map(|bucket| {
            json!({
                "time_ns": bucket.time,
                "live_bytes": bucket.live,
                "reserved_bytes": bucket.reserved,
                "held": bucket.held,
            })
        })
        .collect();
    let devices: Vec<Value> = meter
        .devices
        .iter()
        .map(|(device, known)| {
            json!({
                "device": device,
                "total_bytes": known.total,
                "first_used_bytes": known.first,
                "peak_used_bytes": known.peak,
            })
        })
        .collect();
    let spent = |at: usize| SPENT[at].load(Ordering::Relaxed);
    json!({
        "format": "tenure.report",
        "version": 1,
        "pid": std::process::id(),
        "counting": meter.generation != 0 && meter.ended == 0,
        "stacks": wants(STACKS),
        "begun_ns": meter.begun,
        "time_ns": if meter.ended == 0 { now } else { meter.ended },
        "peak_live_bytes": meter.peak,
        "peak_time_ns": meter.peak_time,
        "live_bytes": meter.live,
        "live_count": meter.count,
        "reserved_bytes": meter.reserved,
        "peak_reserved_bytes": meter.peak_reserved,
        "allocate_ns": spent(0),
        "allocate_calls": spent(1),
        "free_ns": spent(2),
        "free_calls": spent(3),
        "devices": devices,
        "holders": holders,
        "timeline": timeline,
        "left": left,
        "resources": resources,
    })
    .to_string()
}
