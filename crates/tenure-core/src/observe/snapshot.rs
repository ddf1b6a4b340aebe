//! One picture of all memory, as JSON.
//!
//! ```text
//!   registry: each resource alive --> info, ranges, its own walk over live blocks
//!                                        joined with the book (tag, thread, stack, exact size) by address and owner
//!                                        pieces that another resource serves requests out of: `held_by`
//!   history --> events
//! ```
//!
//! The world is not stopped: each resource is asked by itself, and walks let go of their locks. What lives throughout is
//! there, once; what comes and goes meanwhile may be or not. No driver call is made under a lock.
//!
//! **Cost**: O(live blocks), some 300 bytes of text for each.

use std::collections::hash_map::Entry as Slot;
use std::fmt::Write as _;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use super::account::Account;
use super::book::{self, Entry};
use super::history::{self, Event};
use super::{HISTORY, STACKS, is_on, wants};
use crate::resource::callback::CallbackResource;
use crate::resource::registry;
use crate::resource::{Block, Info, Live};

/// The version of the format. Fields are added without a new one; one that changes its meaning makes a new one.
pub const VERSION: u32 = 1;

/// One live block with all that is known of it.
pub(super) struct Seen {
    pub(super) block: Block,
    pub(super) held: u64,
    pub(super) stream: Option<u64>,
    /// The id of the resource in whose books it is; 0 where only the public entry booked it.
    pub(super) layer: u64,
    pub(super) entry: Option<Entry>,
    /// The id of the resource that serves requests out of it; 0 for a user's.
    pub(super) held_by: u64,
}

/// One resource.
pub(super) struct Layer {
    pub(super) id: u64,
    pub(super) kind: String,
    pub(super) stack: String,
    pub(super) device: Option<i32>,
    pub(super) upstream: u64,
    /// `None` where it was not asked.
    pub(super) info: Option<Info>,
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) free: Vec<(u64, u64)>,
}

/// All of it.
pub(super) struct Picture {
    pub(super) layers: Vec<Layer>,
    pub(super) blocks: Vec<Seen>,
}

/// What lies between the live blocks of the ranges.
fn gaps(ranges: &[(u64, u64)], mut live: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    live.sort_unstable();
    let mut free = Vec::new();
    let mut blocks = live.into_iter().peekable();
    for (start, bytes) in ranges {
        let end = start.saturating_add(*bytes);
        let mut from = *start;
        while let Some((ptr, held)) = blocks.next_if(|(ptr, _)| *ptr < end) {
            if ptr > from {
                free.push((from, ptr - from));
            }
            from = from.max(ptr.saturating_add(held));
        }
        if end > from {
            free.push((from, end - from));
        }
    }
    free
}

/// Which resources are asked for their figures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// All.
    All,
    /// Those that hold memory by themselves and ask nobody: no user function is called, and no turn waited for, since who
    /// looks may be inside a call that has one.
    Stores,
}

/// All resources, without a look at blocks.
pub(super) fn layers() -> Vec<Layer> {
    look(0, Ask::Stores).layers
}

/// Looks at everything. At most `most` blocks are looked at.
pub(super) fn look(most: usize, ask: Ask) -> Picture {
    let mut layers = Vec::new();
    let mut blocks: Vec<Seen> = Vec::new();
    // An address that goes through several hands while the walks go on is there once, as it was seen last.
    let mut places: FxHashMap<(u64, u64), usize> = FxHashMap::default();
    registry::for_each(|resource| {
        let (id, body) = (resource.id(), resource.body());
        // Before the walk: it gives back what threads have at hand, and the figures are of about the same moment then.
        let ranges = body.held_ranges();
        let is_store = !ranges.is_empty() || body.upstream().is_none();
        let is_asked = ask == Ask::All || (is_store && resource.downcast::<CallbackResource>().is_none());
        let info = is_asked.then(|| body.info());
        let mut live = Vec::new();
        body.each_block(&mut |Live { block, held, stream }| {
            live.push((block.ptr, held));
            let seen = Seen { block, held, stream, layer: id, entry: None, held_by: 0 };
            match places.entry((block.ptr, block.owner)) {
                Slot::Occupied(place) => blocks[*place.get()] = seen,
                Slot::Vacant(place) if blocks.len() < most => {
                    place.insert(blocks.len());
                    blocks.push(seen);
                }
                Slot::Vacant(_) => {}
            }
        });
        let free = gaps(&ranges, live);
        layers.push(Layer {
            id,
            kind: body.kind().to_owned(),
            stack: resource.stack(),
            device: body.device(),
            upstream: body.upstream().map_or(0, |upstream| upstream.id()),
            info,
            ranges,
            free,
        });
    });
    let pieces = |layer: &'_ Layer| {
        let (id, upstream) = (layer.id, layer.upstream);
        layer.ranges.iter().map(move |(start, _)| (*start, (id, upstream))).collect::<Vec<_>>()
    };
    let holders: FxHashMap<u64, (u64, u64)> = layers.iter().flat_map(pieces).collect();
    for seen in &mut blocks {
        // A pool asks its upstream in the upstream's own name, and a user does not ask for what a pool holds.
        if let Some((holder, upstream)) = holders.get(&seen.block.ptr)
            && *upstream == seen.block.owner
        {
            seen.held_by = *holder;
            continue;
        }
        if is_on()
            && let Some(entry) = book::get(seen.block.ptr, seen.block.owner)
        {
            seen.block.bytes = entry.bytes;
            seen.stream = entry.stream.or(seen.stream);
            seen.entry = Some(entry);
        }
    }
    if is_on() {
        // What no walk shows: resources that keep no books of their own.
        for (ptr, entry) in book::all() {
            if blocks.len() >= most {
                break;
            }
            if places.contains_key(&(ptr, entry.who.owner)) {
                continue;
            }
            let block = Block { ptr, bytes: entry.bytes, owner: entry.who.owner, device: -1 };
            let (held, stream) = (entry.bytes as u64, entry.stream);
            blocks.push(Seen { block, held, stream, layer: 0, entry: Some(entry), held_by: 0 });
        }
    }
    Picture { layers, blocks }
}

fn id_or_null(id: u64) -> Value {
    if id == 0 { Value::Null } else { id.into() }
}

fn name_or_null(account: &Account) -> Value {
    let name = account.name();
    if name.is_empty() { Value::Null } else { name.into() }
}

fn ranges(all: &[(u64, u64)]) -> Value {
    all.iter().map(|(address, size)| json!({"address": address, "size": size})).collect()
}

fn stack(frames: Option<&super::stack::Stack>) -> Value {
    frames.map_or(Value::Null, |stack| stack.frames().collect())
}

impl Layer {
    /// The figures; zeros where they were not asked.
    pub(super) fn figures(&self) -> Info {
        self.info.unwrap_or_default()
    }

    pub(super) fn json(&self) -> Value {
        let info = self.info.as_ref();
        json!({
            "id": self.id,
            "kind": self.kind,
            "stack": self.stack,
            "device": self.device,
            "upstream": id_or_null(self.upstream),
            "live_bytes": info.map(|info| info.live_bytes),
            "live_count": info.map(|info| info.live_count),
            "cached_bytes": info.map(|info| info.cached_bytes),
            "reserved_bytes": info.map(|info| info.reserved_bytes),
            "largest_free_bytes": info.map(|info| info.largest_free_bytes),
            "unproven_bytes": info.map(|info| info.unproven_bytes),
            "peak_live_bytes": info.map(|info| info.peak_live_bytes),
            "peak_reserved_bytes": info.map(|info| info.peak_reserved_bytes),
            "reserved": ranges(&self.ranges),
            "free": ranges(&self.free),
        })
    }
}

impl Seen {
    pub(super) fn json(&self) -> Value {
        let entry = self.entry.as_ref();
        json!({
            "address": self.block.ptr,
            "size": self.block.bytes,
            "held": self.held,
            "stream": self.stream,
            "device": (self.block.device >= 0).then_some(self.block.device),
            "resource": id_or_null(self.block.owner),
            "layer": id_or_null(self.layer),
            "held_by": id_or_null(self.held_by),
            "tag": entry.map_or(Value::Null, |entry| name_or_null(entry.who.tag)),
            "thread": entry.map_or(Value::Null, |entry| entry.who.thread.id().into()),
            "time_ns": entry.map_or(Value::Null, |entry| id_or_null(entry.time)),
            "frames": stack(entry.and_then(|entry| entry.stack.as_deref())),
        })
    }
}

fn event(event: &Event) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    set("time_ns", event.time.into());
    set("action", event.what.name().into());
    set("address", id_or_null(event.ptr));
    set("size", event.bytes.into());
    set("stream", event.stream.into());
    set("resource", id_or_null(event.resource));
    set("tag", name_or_null(event.tag));
    set("thread", event.thread.id().into());
    set("frames", stack(event.stack.as_deref()));
    set("detail", event.detail.as_deref().into());
    Value::Object(fields)
}

/// Appends a field whose value is a list, an entry at a time: all entries as values would take several times the room of the
/// text.
fn list(out: &mut String, name: &str, entries: impl Iterator<Item = Value>) {
    let _ = write!(out, ",\"{name}\":[");
    for (at, entry) in entries.enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{entry}");
    }
    out.push(']');
}

/// Everything, as JSON: resources, live blocks, threads and the recorded events.
pub fn text() -> String {
    let picture = look(usize::MAX, Ask::All);
    let (events, dropped) = history::events();
    let threads = super::usage(super::By::Thread);
    let head = json!({
        "format": "tenure.memory_snapshot",
        "version": VERSION,
        "time_ns": history::now(),
        "pid": std::process::id(),
        "observing": is_on(),
        "recording": wants(HISTORY),
        "stacks": wants(STACKS),
        "events_dropped": dropped,
    });
    let mut out = head.to_string();
    // Its closing brace comes last.
    out.pop();
    list(&mut out, "resources", picture.layers.iter().map(Layer::json));
    list(&mut out, "blocks", picture.blocks.iter().map(Seen::json));
    list(&mut out, "threads", threads.iter().map(|thread| json!({"id": thread.id, "name": thread.name})));
    list(&mut out, "events", events.iter().map(event));
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn what_lies_between_live_blocks_is_free() {
        let ranges = [(100, 50), (200, 10), (300, 10)];
        assert_eq!(gaps(&ranges, vec![(120, 10), (100, 5), (205, 5)]), [(105, 15), (130, 20), (200, 5), (300, 10)]);
        assert_eq!(gaps(&[], vec![(1, 2)]), []);
        assert_eq!(gaps(&[(0, 8)], vec![(0, 8)]), []);
    }
}
