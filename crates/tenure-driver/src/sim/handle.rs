//! Handle values and what stands behind them.
//!
//! The driver hands out addresses of its own structures and gives the address of a destroyed stream to the next one
//! created. [`Slots`] does the same: a value says kind and slot, destroyed slots are reused last in, first out, and there
//! is deliberately no generation in it, so that a program which keeps a dead handle meets here what it would meet there.
//!
//! Cost: all operations are O(1).

/// One kind of handle: its number and its name in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    Context = 1,
    Stream = 2,
    Event = 3,
    Pool = 4,
    Graph = 5,
    Exec = 6,
    UserObject = 7,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Context => "context",
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Pool => "memory pool",
            Kind::Graph => "graph",
            Kind::Exec => "executable graph",
            Kind::UserObject => "user object",
        }
    }

    const fn base(self) -> usize {
        // An address that looks like one of the user's half, far from small integers and from the special handles.
        0x7c00_0000_0000 + ((self as usize) << 36)
    }
}

const STRIDE: usize = 64;

/// The live things of one kind, by handle value.
pub(super) struct Slots<T> {
    kind: Kind,
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) const fn new(kind: Kind) -> Self {
        Slots { kind, items: Vec::new(), free: Vec::new() }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Stores `item` and returns its handle value: that of the thing destroyed last, if there is one.
    pub(super) fn insert(&mut self, item: T) -> usize {
        let at = match self.free.pop() {
            Some(at) => at as usize,
            None => {
                self.items.push(None);
                self.items.len() - 1
            }
        };
        self.items[at] = Some(item);
        self.kind.base() + (at + 1) * STRIDE
    }

    fn index(&self, handle: usize) -> Option<usize> {
        let at = handle.checked_sub(self.kind.base())?;
        if at % STRIDE != 0 { None } else { (at / STRIDE).checked_sub(1) }
    }

    pub(super) fn get(&self, handle: usize) -> Option<&T> {
        self.items.get(self.index(handle)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        let at = self.index(handle)?;
        self.items.get_mut(at)?.as_mut()
    }

    pub(super) fn remove(&mut self, handle: usize) -> Option<T> {
        let at = self.index(handle)?;
        let item = self.items.get_mut(at)?.take()?;
        self.free.push(at as u32);
        Some(item)
    }

    /// Whether this value was issued once and its thing is gone: the message differs.
    pub(super) fn was_issued(&self, handle: usize) -> bool {
        self.index(handle).is_some_and(|at| at < self.items.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let base = self.kind.base();
        self.items.iter().enumerate().filter_map(move |(at, i)| Some((base + (at + 1) * STRIDE, i.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_values_come_back_last_in_first_out() {
        let mut s = Slots::new(Kind::Stream);
        let (a, b, c) = (s.insert('a'), s.insert('b'), s.insert('c'));
        assert_eq!(s.remove(a), Some('a'));
        assert_eq!(s.remove(c), Some('c'));
        assert_eq!(s.remove(c), None, "a second destroy finds nothing");
        assert_eq!(s.insert('d'), c);
        assert_eq!(s.insert('e'), a);
        assert_eq!((s.get(b), s.get(c), s.get(a)), (Some(&'b'), Some(&'d'), Some(&'e')));
        assert!(!s.was_issued(a + 1) && s.get(a + 1).is_none() && s.get(0).is_none() && s.get(usize::MAX).is_none());
    }
}
