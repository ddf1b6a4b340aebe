//! The interpreter's frames of blocks and events, equal ones kept once.
//!
//! [`stack`](crate::stack) asks for them at each allocation while they are wanted, on the thread that allocates and without a
//! lock; who tells may take a lock of its own (Python's), so that calls which promise not to wait refuse meanwhile
//! (`tools::may_not_wait`).

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::{FxHashMap, FxHasher};

use crate::sync::{Arc, Lazy, Mutex, Weak};

/// One stack.
#[derive(Debug)]
pub(super) struct Stack {
    text: String,
}

impl Stack {
    /// The frames, the innermost first.
    pub(super) fn frames(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    /// The innermost frame.
    pub(super) fn top(&self) -> &str {
        self.frames().next().unwrap_or("")
    }

    /// The library that the innermost frame belongs to, where its file is one of an installed package's.
    pub(super) fn library(&self) -> Option<&str> {
        let inside = ["/site-packages/", "/dist-packages/"];
        let top = self.top();
        let after = inside.iter().find_map(|folder| top.split_once(folder)).map(|(_, after)| after)?;
        let name = after.split(['/', ':']).next()?;
        Some(name.strip_suffix(".py").unwrap_or(name))
    }
}

const SHARDS: usize = 16;

type Shard = Mutex<FxHashMap<u64, Weak<Stack>>>;

static KNOWN: Lazy<Vec<Shard>> = Lazy::new(|| (0..SHARDS).map(|_| Shard::default()).collect());

/// The stack of this thread, if somebody can tell it.
pub(super) fn here() -> Option<Arc<Stack>> {
    let text = crate::stack::interpreted();
    if text.is_empty() {
        return None;
    }
    let hash = BuildHasherDefault::<FxHasher>::default().hash_one(&text);
    let mut known = KNOWN[hash as usize % SHARDS].lock();
    if let Some(stack) = known.get(&hash).and_then(Weak::upgrade)
        && stack.text == text
    {
        return Some(stack);
    }
    // Where none is used any more, its place is not either.
    if known.len() >= 1024 && known.len().is_power_of_two() {
        known.retain(|_, stack| stack.strong_count() > 0);
    }
    let stack = Arc::new(Stack { text });
    known.insert(hash, Arc::downgrade(&stack));
    Some(stack)
}
