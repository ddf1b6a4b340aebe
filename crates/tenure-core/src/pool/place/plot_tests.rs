//! Plots beside a naive list of intervals: random programs of two plots, their owners and others.

use std::collections::BTreeMap;

use super::block::MIN_LARGE;
use super::ledger::{LIVE, WHOLE, word};
use super::{Fault, Held, LARGE, PROVEN, Place, Plot, UNIT};

const SPAN: u64 = 64 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }
}

#[derive(Clone, Copy)]
struct Piece {
    bytes: u64,
    /// Which plot, if one, and what its owner has in hand.
    plot: Option<(usize, Held)>,
    stamp: u32,
}

/// What is handed out, and in whose order each unit was freed last.
struct World {
    place: Place,
    plots: [Option<Plot>; 2],
    live: BTreeMap<u64, Piece>,
    freed: Vec<u32>,
}

fn stamp(plot: usize) -> u32 {
    4 + 2 * plot as u32
}

impl World {
    fn new() -> Self {
        let mut place = Place::new(SPAN, SPAN);
        place.extend(0, SPAN / 2, PROVEN, LARGE);
        place.extend(SPAN / 2 + (2 << 20), SPAN / 4, PROVEN, LARGE);
        Self { place, plots: [None, None], live: BTreeMap::new(), freed: vec![PROVEN; (SPAN / UNIT) as usize] }
    }

    /// A new piece overlaps nothing and has nothing that its stream may not have.
    fn book(&mut self, offset: u64, piece: Piece) {
        let end = offset + piece.bytes;
        let before = self.live.range(..end).next_back();
        assert!(
            before.is_none_or(|(start, b)| start + b.bytes <= offset),
            "{offset} overlaps {before:?}",
            before = before.map(|b| b.0)
        );
        for unit in offset / UNIT..end / UNIT {
            let tag = self.freed[unit as usize];
            let allowed = [PROVEN, piece.stamp, piece.stamp + 1];
            assert!(allowed.contains(&tag), "unit {unit} was freed in the order of {tag}");
        }
        let entry = self.place.entry(offset).unwrap();
        assert_eq!((entry.bytes, entry.owner, entry.stamp), (piece.bytes, 9, piece.stamp));
        if piece.bytes > UNIT {
            let inside = self.place.entry(offset + piece.bytes - UNIT);
            assert_eq!(inside, Err(Fault::Interior { owner: 9, bytes: piece.bytes }));
        }
        self.live.insert(offset, piece);
    }

    fn tags(plot: usize) -> [u32; 3] {
        [stamp(plot), stamp(plot) + 1, PROVEN]
    }

    fn cut(&mut self, at: usize, units: u32) {
        let (place, tags) = (&mut self.place, Self::tags(at));
        let plot = self.plots[at].get_or_insert_with(|| place.open_plot(stamp(at)));
        place.lend_lines(plot);
        let freed = &mut self.freed;
        let held = plot.cut(units).or_else(|| {
            place.deliver(plot);
            if let Some(held) = plot.cut(units) {
                return Some(held);
            }
            if !place.lend(plot, units, units.max(2048), &tags) {
                return None;
            }
            let (start, all, _) = plot.walk(plot.spans.last()?.0).next()?;
            for unit in start..start + all {
                let tag = &mut freed[unit as usize];
                assert!(tags.contains(tag), "unit {unit} was freed in the order of {tag}");
                // From now on it counts as freed in the order of the plot's stream.
                *tag = stamp(at);
            }
            plot.cut(units)
        });
        let Some(held) = held else { return };
        // SAFETY: the placer is alive.
        unsafe { held.hand_out(word(LIVE, WHOLE, held.unit, stamp(at)), 9) };
        let piece = Piece { bytes: u64::from(units) * UNIT, plot: Some((at, held)), stamp: stamp(at) };
        self.book(u64::from(held.unit) * UNIT, piece);
    }

    fn allocate(&mut self, at: usize, bytes: u64) {
        let Some(offset) = self.place.allocate(bytes, 256, &Self::tags(at), stamp(at), 9, LARGE) else { return };
        let bytes = self.place.entry(offset).unwrap().bytes;
        self.book(offset, Piece { bytes, plot: None, stamp: stamp(at) });
    }

    /// By the desk that has the plot where it is `own`, else by somebody else in the order of `tag`.
    fn free(&mut self, pick: u64, own: bool, tag: u32) {
        let Some((&offset, &piece)) = self.live.iter().nth(pick as usize % self.live.len().max(1)) else { return };
        self.live.remove(&offset);
        let entry = self.place.entry(offset).unwrap();
        let mut tag = tag;
        match piece.plot {
            Some((at, held)) if own && self.plots[at].as_ref().is_some_and(|plot| plot.owns(&held)) => {
                let found = self.place.ledger().find(held.unit).map(|found| found.piece.claim(entry.word, 9));
                assert_eq!(found, Some(true));
                tag = stamp(at);
                if let Some(plot) = &mut self.plots[at] {
                    plot.take_back(&held);
                }
            }
            _ => assert!(self.place.free(&entry, tag)),
        }
        for unit in offset / UNIT..(offset + piece.bytes) / UNIT {
            self.freed[unit as usize] = tag;
        }
        assert_eq!(self.place.entry(offset), Err(Fault::Freed));
        assert!(!self.place.free(&entry, tag), "freed twice");
    }

    fn give_up(&mut self, at: usize) {
        if let Some(plot) = self.plots[at].take() {
            self.place.take_plot(plot, stamp(at));
        }
    }

    fn relabel(&mut self, from: u32, to: u32) {
        self.place.relabel(from, to, true);
        // What a plot has of its own tag keeps it, and counts as freed later: that is what it is for the asker of a proof.
        let in_plots: Vec<(u64, u64)> = self
            .plots
            .iter()
            .flatten()
            .flat_map(|plot| plot.spans.iter().flat_map(|(first, _)| plot.walk(*first)))
            .filter(|(_, _, line)| line.is_none())
            .map(|(start, units, _)| (u64::from(start), u64::from(units)))
            .collect();
        let kept = |unit: u64| in_plots.iter().any(|(start, units)| (*start..start + units).contains(&unit));
        for unit in 0..self.freed.len() {
            if self.freed[unit] == from && !kept(unit as u64) {
                self.freed[unit] = to;
            }
        }
    }

    fn check(&self) {
        self.place.check().unwrap();
        self.plots.iter().flatten().for_each(|plot| plot.check().unwrap());
    }
}

#[test]
fn random_programs_agree_with_a_naive_list() {
    for seed in 1..400 {
        let (mut r, mut world) = (Random(seed * 2 + 1), World::new());
        for _ in 0..400 {
            let at = r.below(2) as usize;
            match r.below(20) {
                0..=7 => world.cut(at, MIN_LARGE + r.below(3000) as u32),
                8 => world.allocate(at, 1 + r.below(1 << 20)),
                9..=13 => world.free(r.below(1 << 30), true, stamp(at)),
                14..=16 => world.free(r.below(1 << 30), false, stamp(at)),
                17 => world.free(r.below(1 << 30), false, stamp(at) + 1),
                18 => {
                    world.relabel(stamp(at) + r.below(2) as u32, if r.below(2) == 0 { PROVEN } else { stamp(at) + 1 })
                }
                _ if r.below(4) == 0 => world.give_up(at),
                _ => world.check(),
            }
        }
        world.check();
        while !world.live.is_empty() {
            world.free(0, seed % 2 == 0, stamp(seed as usize % 2));
        }
        (0..2).for_each(|at| world.give_up(at));
        for tag in 4..8 {
            world.place.relabel(tag, PROVEN, true);
        }
        world.place.drain();
        world.check();
        assert_eq!((world.place.live_bytes(), world.place.live_count()), (0, 0));
        assert_eq!(world.place.free_blocks(PROVEN).len(), 2, "one free block for each range");
        for tag in 4..8 {
            assert!(world.place.tag_unused(tag));
        }
    }
}

#[test]
fn what_waits_in_an_inbox_keeps_its_record_and_changes_its_tag_with_it() {
    let mut world = World::new();
    world.cut(0, 1000);
    world.free(0, false, stamp(1));
    assert!(!world.place.tag_unused(stamp(1)), "a record with something in an inbox must not be dropped");
    world.relabel(stamp(1), stamp(1) + 1);
    assert!(world.place.tag_unused(stamp(1)) && !world.place.tag_unused(stamp(1) + 1));
    world.check();
    world.give_up(0);
    assert_eq!(world.place.tag_block_bytes(stamp(1) + 1), 1000 * UNIT);
    world.check();
}
