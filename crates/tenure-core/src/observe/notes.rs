//! What an out-of-memory error says besides its line.
//!
//! ```text
//!   1..3  who holds most         tag or library, bytes, blocks, stream, the innermost line of the stack where it is known
//!   4     what is cached         by resource
//!   5     what other streams hold back
//!   6     the largest free block
//!   7     what was tried
//!   8     the one setting with which the request would have fitted, where the books show that it would
//! ```
//!
//! A note stands only where there is something to say. Nothing is done before a request has failed for good at a public entry;
//! what a `_try_` call failed with is explained when somebody asks.
//!
//! **The advice** is what a replay of the books gives: the live blocks as they lie, the gaps between them, and the request. A
//! larger limit is named if the request fits under it and the device has the memory; mapped pages, if whole idle pages make up
//! the request; giving back what pools hold idle, if that and what the device has free suffice. Otherwise nothing is said.

use rustc_hash::FxHashMap;

use super::snapshot::{self, Layer, Picture, Seen};
use crate::error::{OutOfMemory, human};
use crate::resource::{Named, Resource, registry};

/// Notes of one error at most.
pub const MOST: usize = 8;
/// Holders that are named.
const HOLDERS: usize = 3;
/// Blocks that are looked at: enough for the largest holders, and a bound for what a failure costs.
const BLOCKS: usize = 1 << 20;
/// Bytes of a page: what a pool can map elsewhere.
const PAGE: u64 = 2 << 20;

/// One who holds memory.
pub(super) struct Holder {
    /// For people: `tag "loader"`, `library cupy`, `pool > cuda (#1a)`.
    pub(super) name: String,
    pub(super) stream: Option<u64>,
    /// The innermost frame; empty where it is not known.
    pub(super) line: String,
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

/// All that is known about a failure.
pub(super) struct Finding {
    pub(super) picture: Picture,
    pub(super) holders: Vec<Holder>,
    pub(super) device: Option<i32>,
    pub(super) advice: Option<String>,
}

/// A stream for people.
pub(super) fn stream_name(stream: Option<u64>) -> String {
    match stream {
        None => "no stream".into(),
        Some(0 | 1) => "the legacy stream".into(),
        Some(2) => "the per-thread stream".into(),
        Some(other) => format!("stream {other:#x}"),
    }
}

/// Bytes for people and for a setting.
fn exactly(bytes: u64) -> String {
    format!("{bytes} bytes ({})", human(bytes))
}

/// Works the notes out, once; writes the report where one is wanted. May call the driver.
pub fn explain(oom: &mut OutOfMemory) {
    if !oom.notes.is_empty() || tenure_driver::process::unusable() {
        return;
    }
    let finding = find(oom);
    oom.notes = notes(oom, &finding);
    super::oom_report::write(oom, &finding);
}

fn find(oom: &OutOfMemory) -> Finding {
    let picture = snapshot::look(BLOCKS, snapshot::Ask::Stores);
    let asked = registry::upgrade(oom.asked);
    let device = asked.as_ref().and_then(|resource| resource.body().device()).or_else(|| crate::device::current().ok());
    let refusing = asked.as_ref().and_then(|resource| refusing(resource, oom.limit));
    let holders = holders(&picture, device, refusing.as_ref());
    let advice = advice(oom, &picture, asked.as_deref(), refusing.as_ref(), device);
    Finding { picture, holders, device, advice }
}

/// The resource among those that `asked` stands on whose limit was met.
fn refusing(asked: &Resource, limit: u64) -> Option<Resource> {
    let mut next = (limit != 0).then(|| asked.clone())?;
    loop {
        let body = next.body();
        if ["allocation_limit", "maximum_bytes"].iter().any(|name| body.property(name) == Some(limit)) {
            return Some(next);
        }
        next = body.upstream()?.clone();
    }
}

/// Whether memory asked of `owner` comes through the resource `id`.
fn comes_through(layers: &FxHashMap<u64, u64>, owner: u64, id: u64) -> bool {
    let mut at = owner;
    // Chains are short; a bound for a picture that changed while it was taken.
    for _ in 0..64 {
        if at == id {
            return true;
        }
        match layers.get(&at) {
            Some(upstream) if *upstream != 0 => at = *upstream,
            _ => return false,
        }
    }
    false
}

fn chain(picture: &Picture) -> FxHashMap<u64, u64> {
    picture.layers.iter().map(|layer| (layer.id, layer.upstream)).collect()
}

fn of_user(seen: &Seen) -> bool {
    seen.held_by == 0
}

fn holders(picture: &Picture, device: Option<i32>, refusing: Option<&Resource>) -> Vec<Holder> {
    let chain = chain(picture);
    let kinds: FxHashMap<u64, &str> = picture.layers.iter().map(|layer| (layer.id, layer.stack.as_str())).collect();
    let mut through: FxHashMap<u64, bool> = FxHashMap::default();
    let mut found: FxHashMap<(String, Option<u64>, String), (u64, u64)> = FxHashMap::default();
    for seen in picture.blocks.iter().filter(|seen| of_user(seen)) {
        let counts = match refusing {
            Some(limit) => {
                *through.entry(seen.block.owner).or_insert_with(|| comes_through(&chain, seen.block.owner, limit.id()))
            }
            None => seen.block.device < 0 || device.is_none_or(|device| seen.block.device == device),
        };
        if !counts {
            continue;
        }
        let entry = seen.entry.as_ref();
        let tag = entry.map(|entry| entry.who.tag.name()).filter(|tag| !tag.is_empty());
        let stack = entry.and_then(|entry| entry.stack.as_deref());
        let name = match (tag, stack.and_then(|stack| stack.library())) {
            (Some(tag), _) => format!("tag {tag:?}"),
            (None, Some(library)) => format!("library {library}"),
            (None, None) => {
                let owner = seen.block.owner;
                format!("{} (#{owner:x})", kinds.get(&owner).copied().unwrap_or("a resource that is closed"))
            }
        };
        let line = stack.map_or_else(String::new, |stack| stack.top().to_owned());
        let sum = found.entry((name, seen.stream, line)).or_default();
        sum.0 += seen.block.bytes as u64;
        sum.1 += 1;
    }
    let mut all: Vec<Holder> = found
        .into_iter()
        .map(|((name, stream, line), (bytes, blocks))| Holder { name, stream, line, bytes, blocks })
        .collect();
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)).then(a.stream.cmp(&b.stream)));
    all
}

fn here(picture: &Picture, device: Option<i32>) -> impl Iterator<Item = &Layer> {
    picture.layers.iter().filter(move |layer| layer.device.is_none() || layer.device == device)
}

/// Layers that have ranges of their own: what an adaptor shows is its upstream's.
fn stores(picture: &Picture, device: Option<i32>) -> impl Iterator<Item = &Layer> {
    here(picture, device).filter(|layer| !layer.ranges.is_empty() || layer.upstream == 0)
}

/// Whether a stream that a pool names for people is the one that asked.
fn is_own(named: &str, asked: Option<u64>) -> bool {
    let own = stream_name(asked);
    named.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
}

fn notes(oom: &OutOfMemory, finding: &Finding) -> Vec<String> {
    let mut notes = Vec::new();
    for holder in finding.holders.iter().take(HOLDERS) {
        let blocks = if holder.blocks == 1 { "block" } else { "blocks" };
        let mut text = format!(
            "{} holds {} in {} {blocks} on {}",
            holder.name,
            human(holder.bytes),
            holder.blocks,
            stream_name(holder.stream)
        );
        if !holder.line.is_empty() {
            text.push_str(", allocated at ");
            text.push_str(&holder.line);
        }
        notes.push(text);
    }
    let mut cached: Vec<&Layer> =
        stores(&finding.picture, finding.device).filter(|layer| layer.figures().cached_bytes != 0).collect();
    cached.sort_by_key(|layer| std::cmp::Reverse(layer.figures().cached_bytes));
    if !cached.is_empty() {
        let all: Vec<String> = cached
            .iter()
            .take(HOLDERS)
            .map(|layer| format!("{} by {} (#{:x})", human(layer.figures().cached_bytes), layer.stack, layer.id))
            .collect();
        notes.push(format!("cached and not handed out: {}", all.join(", ")));
    }
    let others: Vec<String> = oom
        .pending
        .iter()
        .filter(|pending| !is_own(&pending.stream, oom.stream))
        .map(|pending| format!("{} by {}", human(pending.bytes), pending.stream))
        .collect();
    if !others.is_empty() {
        notes.push(format!("held back until other streams have done their work: {}", others.join(", ")));
    }
    if oom.largest_free != 0 || oom.reserved != 0 || oom.driver_total != 0 {
        let mut text = format!("the largest free block is {}", human(oom.largest_free));
        if oom.driver_total != 0 {
            text.push_str(&format!("; the device has {} free", human(oom.driver_free)));
        }
        notes.push(text);
    }
    if !oom.tried.is_empty() {
        notes.push(format!("tried: {}", oom.tried_text()));
    }
    if let Some(advice) = &finding.advice {
        notes.push(advice.clone());
    }
    notes.truncate(MOST);
    notes
}

/// Bytes of whole pages that are free in a layer.
fn idle_pages(layer: &Layer) -> u64 {
    let pages = |(start, bytes): &(u64, u64)| {
        let (first, end) = (start.next_multiple_of(PAGE), (start + bytes) / PAGE * PAGE);
        end.saturating_sub(first)
    };
    layer.free.iter().map(pages).sum()
}

/// The setting with which the request would have been served.
fn advice(
    oom: &OutOfMemory,
    picture: &Picture,
    asked: Option<&Named>,
    refusing: Option<&Resource>,
    device: Option<i32>,
) -> Option<String> {
    let asked = asked?;
    let requested = oom.requested;
    // What no device of this size could serve, no setting can.
    let (free, total) = crate::device::memory_info(device?).ok()?;
    if requested > total {
        return None;
    }
    let chain = chain(picture);
    let layer = |id: u64| picture.layers.iter().find(|layer| layer.id == id);
    if let Some(limit) = refusing {
        let below = |seen: &&Seen| of_user(seen) && comes_through(&chain, seen.block.owner, limit.id());
        if limit.body().property("allocation_limit").is_some() {
            let need = oom.live.checked_add(requested)?;
            let upstream = layer(limit.body().upstream()?.id());
            let room = free.saturating_add(upstream.map_or(0, |layer| layer.figures().cached_bytes));
            return (need > oom.limit && requested <= room)
                .then(|| format!("with allocation_limit={} it would have been served", exactly(need)));
        }
        let live: u64 = picture.blocks.iter().filter(below).map(|seen| seen.held).sum();
        let need = live.checked_add(requested.next_multiple_of(PAGE))?.next_multiple_of(PAGE);
        let pool = layer(limit.id())?;
        if need <= oom.limit {
            return mapped(pool, limit, requested, oom.limit, device?);
        }
        // The pool gives back what is idle before it grows, so that the device must have what lies beyond.
        let grown = need.max(pool.figures().reserved_bytes.saturating_add(requested.next_multiple_of(PAGE)));
        return (grown - pool.figures().reserved_bytes <= free)
            .then(|| format!("with maximum_pool_size={} it would have been served", exactly(grown)));
    }
    if let Some(pool) = layer(asked.id()).filter(|layer| !layer.ranges.is_empty())
        && let Some(advice) = mapped(pool, asked, requested, total, device?)
    {
        return Some(advice);
    }
    // What other pools keep idle; a pool that fails has asked them already.
    if stores(picture, device).any(|layer| layer.id == asked.id() && !layer.ranges.is_empty()) {
        return None;
    }
    let idle: u64 = stores(picture, device).filter(|layer| !layer.ranges.is_empty()).map(idle_pages).sum();
    (free < requested && idle != 0 && requested <= free.saturating_add(idle)).then(|| {
        format!(
            "pools of this device keep {} idle in whole pages: with release_threshold=0 and a trim, or after \
             low_memory(), it would have been served",
            human(idle)
        )
    })
}

/// A pool over chunks of an upstream, whose idle pages make up the request and lie apart: where a pool maps pages by itself
/// it puts them side by side.
fn mapped(pool: &Layer, named: &Named, requested: u64, limit: u64, device: i32) -> Option<String> {
    let idle = idle_pages(pool);
    let fits = pool.figures().live_bytes.saturating_add(requested) <= limit && idle >= requested.next_multiple_of(PAGE);
    if !fits || named.body().property("own_ranges") != Some(0) {
        return None;
    }
    let can_map = crate::device::driver().ok()?.device(device).ok()?.properties().ok()?.capabilities.virtual_memory;
    let over_plain = named.body().upstream()?.body().kind() == "cuda";
    can_map.then(|| {
        let setting = if over_plain { "without plain_chunks" } else { "as a pool over the plain device resource" };
        format!(
            "{setting} it would have been served: {} of the pool are idle in whole pages, apart from each other",
            human(idle)
        )
    })
}
