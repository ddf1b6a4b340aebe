//! The placer against a naive allocator: random programs, shrunk on failure.
//!
//! The naive one keeps a sorted list of live intervals and believes nothing: every piece handed out must be aligned, inside
//! what was mapped and disjoint from every other; every free must be found with the size, owner and stamp it was booked
//! with; memory freed with one tag must not be handed to who may not have that tag. Every so often the placer checks
//! itself from nothing ([`Place::check`]).

#![allow(missing_docs)]

use std::collections::BTreeMap;

use tenure_core::pool::place::{Fault, LARGE, PROVEN, Place, SMALL, UNIT, rounded_bytes, zone_of};

/// A small generator, so that a seed names a program on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        bytes: u64,
        align: u64,
        stream: u32,
    },
    Free {
        pick: u64,
        stream: u32,
    },
    Misfree {
        pick: u64,
    },
    Extend {
        pages: u64,
        zone: u8,
    },
    Shrink {
        pick: u64,
    },
    Prove {
        tag: u32,
    },
    Seal {
        tag: u32,
    },
    /// Everything proven becomes one stream's, as when it is the only one.
    Adopt {
        tag: u32,
    },
    /// What was never handed out is everyone's again.
    Untouched {
        tag: u32,
    },
    Drain,
    Consolidate,
    Feed {
        bytes: u64,
    },
}

const PAGE: u64 = 2 << 20;
const SPAN: u64 = 256 << 20;
const SMALL_BASE: u64 = 192 << 20;

fn tag(stream: u32) -> u32 {
    4 + 2 * stream
}

fn program(seed: u64, steps: usize) -> Vec<Op> {
    let mut r = Random(seed * 2 + 1);
    (0..steps)
        .map(|_| match r.below(100) {
            0..=44 => {
                let bytes = match r.below(10) {
                    0..=4 => 1 + r.below(4096),
                    5..=6 => 1 + r.below(40 << 10),
                    7..=8 => 1 + r.below(1 << 20),
                    _ => 1 + r.below(6 << 20),
                };
                let align = if r.below(8) == 0 { 256 << r.below(14) } else { 256 };
                Op::Allocate { bytes, align, stream: r.below(3) as u32 }
            }
            45..=84 => Op::Free { pick: r.next(), stream: r.below(3) as u32 },
            85..=87 => Op::Misfree { pick: r.next() },
            88..=90 => Op::Extend { pages: 1 + r.below(4), zone: r.below(4).min(1) as u8 ^ 1 },
            91..=92 => Op::Shrink { pick: r.next() },
            93 => {
                if r.below(2) == 0 {
                    Op::Adopt { tag: tag(r.below(3) as u32) }
                } else {
                    Op::Untouched { tag: tag(r.below(3) as u32) }
                }
            }
            94..=95 => Op::Prove { tag: tag(r.below(3) as u32) + r.below(2) as u32 },
            96..=97 => Op::Seal { tag: tag(r.below(3) as u32) },
            98 => {
                if r.below(2) == 0 {
                    Op::Drain
                } else {
                    Op::Consolidate
                }
            }
            _ => Op::Feed { bytes: (1 + r.below(256)) << 10 },
        })
        .collect()
}

#[derive(Clone, Copy)]
struct Live {
    bytes: u64,
    held: u64,
    owner: u64,
    stamp: u32,
}

/// Runs a program; says what went wrong, if anything did.
fn run(ops: &[Op]) -> Result<u64, String> {
    let mut place = Place::new(SPAN, SMALL_BASE);
    let mut live: BTreeMap<u64, Live> = BTreeMap::new();
    // Per unit: in whose order it was freed last.
    let mut freed: Vec<u32> = vec![PROVEN; (SPAN / UNIT) as usize];
    let mut ends = [0, SMALL_BASE];
    let mut served = 0;
    for (step, op) in ops.iter().enumerate() {
        let fail = |text: String| Err(format!("step {step} {op:?}: {text}"));
        match *op {
            Op::Allocate { bytes, align, stream } => {
                let stamp = tag(stream);
                let tags = [stamp, stamp + 1, PROVEN];
                let owner = 100 + u64::from(stream);
                let zone = zone_of(bytes);
                let found = place
                    .allocate(bytes, align, &tags, stamp, owner, zone)
                    .or_else(|| place.allocate(bytes, align, &tags, stamp, owner, zone ^ 1));
                let Some(offset) = found else { continue };
                served += 1;
                let held = place.entry(offset).map_or(0, |e| e.held);
                let end = offset + held;
                if held < rounded_bytes(bytes) {
                    return fail(format!("{held} bytes do not hold {bytes}"));
                }
                if offset % align != 0 {
                    return fail(format!("offset {offset} is not aligned"));
                }
                if !place.mapped().any(|(start, length)| start <= offset && end <= start + length) {
                    return fail(format!("{offset}..{end} is not mapped"));
                }
                let before = live.range(..end).next_back();
                if before.is_some_and(|(start, l)| start + l.held > offset) {
                    return fail(format!("{offset}..{end} overlaps {before:?}", before = before.map(|b| b.0)));
                }
                let units = (offset / UNIT) as usize..(end / UNIT) as usize;
                if let Some(of) = freed[units].iter().find(|of| !tags.contains(of)) {
                    return fail(format!("memory of tag {of} went to {stamp}"));
                }
                live.insert(offset, Live { bytes: rounded_bytes(bytes), held, owner, stamp });
            }
            Op::Free { pick, stream } => {
                let Some((offset, what)) = nth(&live, pick) else { continue };
                let entry = match place.entry(offset) {
                    Ok(entry) => entry,
                    Err(fault) => return fail(format!("{offset} is live and was not found: {fault:?}")),
                };
                if (entry.offset, entry.bytes, entry.owner, entry.stamp) != (offset, what.bytes, what.owner, what.stamp)
                {
                    return fail(format!("{entry:?} is not what was booked"));
                }
                place.free(&entry, tag(stream));
                live.remove(&offset);
                freed[(offset / UNIT) as usize..((offset + what.held) / UNIT) as usize].fill(tag(stream));
                if !matches!(place.entry(offset), Err(Fault::Freed)) {
                    return fail("freed twice and not noticed".into());
                }
            }
            Op::Misfree { pick } => {
                if let Some((offset, what)) = nth(&live, pick)
                    && what.held > UNIT
                {
                    let inside = offset + UNIT + pick % (what.held - UNIT);
                    match place.entry(inside) {
                        Err(Fault::Interior { owner, bytes }) if (owner, bytes) == (what.owner, what.bytes) => {}
                        other => return fail(format!("inside a live block: {other:?}")),
                    }
                }
                if place.entry(SPAN + pick % SPAN).is_ok() || place.entry(SMALL_BASE - UNIT).is_ok() {
                    return fail("something lives outside".into());
                }
            }
            Op::Extend { pages, zone } => {
                let end = &mut ends[zone as usize];
                let limit = if zone == LARGE { SMALL_BASE } else { SPAN };
                if *end + pages * PAGE > limit || place.mapped_bytes() > 48 << 20 {
                    continue;
                }
                place.extend(*end, pages * PAGE, PROVEN, zone);
                *end += pages * PAGE;
            }
            Op::Shrink { pick } => {
                let free = place.free_blocks(PROVEN);
                if free.is_empty() {
                    continue;
                }
                let (offset, bytes) = free[pick as usize % free.len()];
                let first = offset.next_multiple_of(PAGE);
                if first + PAGE > offset + bytes {
                    continue;
                }
                if !place.shrink(first, PAGE) {
                    return fail(format!("a free page at {first} could not be taken out"));
                }
                if place.shrink(first, PAGE) {
                    return fail("a page was taken out twice".into());
                }
                // It comes back, elsewhere in time: sometimes at once.
                if pick % 3 == 0 {
                    place.extend(first, PAGE, PROVEN, if first < SMALL_BASE { LARGE } else { SMALL });
                }
            }
            Op::Prove { tag } => {
                place.relabel(tag, PROVEN, true);
                freed.iter_mut().filter(|of| **of == tag).for_each(|of| *of = PROVEN);
            }
            Op::Seal { tag } => {
                place.relabel(tag, tag + 1, true);
                freed.iter_mut().filter(|of| **of == tag).for_each(|of| *of = tag + 1);
            }
            // Neither changes who had what last: the one only takes away, the other must know what was never had.
            Op::Adopt { tag } => place.relabel(PROVEN, tag, true),
            Op::Untouched { tag } => place.prove_untouched(tag),
            Op::Drain => {
                place.drain();
            }
            Op::Consolidate => place.consolidate(),
            Op::Feed { bytes } => {
                place.feed(bytes, &[PROVEN, tag(0)]);
            }
        }
        if step % 64 == 0 || step + 1 == ops.len() {
            if let Err(text) = place.check() {
                return fail(text);
            }
            let sum: u64 = live.values().map(|l| l.held).sum();
            if place.live_count() != live.len() as u64 || place.live_bytes() != sum {
                return fail("the counters do not agree with the naive allocator".into());
            }
        }
    }
    // I6: all freed and proven, one free block per mapped run and zone; everything can go back.
    for (offset, _) in live {
        let entry = place.entry(offset).map_err(|f| format!("at the end: {f:?}"))?;
        place.free(&entry, tag(0));
    }
    for stream in 0..3 {
        place.relabel(tag(stream), PROVEN, true);
        place.relabel(tag(stream) + 1, PROVEN, true);
    }
    place.consolidate();
    place.check()?;
    let mapped: Vec<(u64, u64)> = place.mapped().collect();
    if place.free_blocks(PROVEN) != mapped || place.live_bytes() != 0 {
        return Err(format!("all is free, and {:?} is not {mapped:?}", place.free_blocks(PROVEN)));
    }
    for (offset, bytes) in mapped {
        if !place.shrink(offset, bytes) {
            return Err("an idle range could not be taken out".into());
        }
    }
    place.check()?;
    if place.mapped_bytes() == 0 { Ok(served) } else { Err("something stayed mapped".into()) }
}

fn nth(live: &BTreeMap<u64, Live>, pick: u64) -> Option<(u64, Live)> {
    let (offset, what) = live.iter().nth((pick % (live.len().max(1) as u64)) as usize)?;
    Some((*offset, *what))
}

/// Leaves out what the failure does not need.
fn shrink(mut ops: Vec<Op>) -> (Vec<Op>, String) {
    let mut error = run(&ops).err().unwrap_or_default();
    let mut part = ops.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut shorter = ops.clone();
            shorter.drain(at..(at + part).min(shorter.len()));
            match run(&shorter) {
                Err(e) => (ops, error) = (shorter, e),
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    (ops, error)
}

#[test]
#[allow(clippy::print_stdout, reason = "a soak says how much it has checked")]
fn random_programs_agree_with_a_naive_allocator() {
    let seeds = std::env::var("TENURE_SOAK_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let (mut served, mut steps) = (0, 0);
    for seed in 1..=seeds {
        let ops = program(seed, 2000);
        steps += ops.len();
        match run(&ops) {
            Ok(n) => served += n,
            Err(_) => {
                let (small, error) = shrink(ops);
                panic!("seed {seed}: {error}\n{small:#?}");
            }
        }
    }
    println!("{seeds} programs of the placer, {steps} steps beside a naive allocator");
    // A program that allocates nothing proves nothing.
    assert!(served > steps as u64 / 5, "{served} of {steps} steps were served allocations");
}

#[test]
fn a_remainder_merges_back_with_what_it_was_cut_from() {
    let mut place = Place::new(SPAN, SMALL_BASE);
    place.extend(0, 8 << 20, PROVEN, LARGE);
    let a = place.allocate(1 << 20, 256, &[PROVEN], 4, 1, LARGE).unwrap();
    let b = place.allocate(1 << 20, 256, &[PROVEN], 4, 1, LARGE).unwrap();
    assert_eq!((a, b), (0, 1 << 20));
    for offset in [a, b] {
        let entry = place.entry(offset).unwrap();
        place.free(&entry, PROVEN);
    }
    assert_eq!(place.free_blocks(PROVEN), [(0, 8 << 20)]);
    assert_eq!(place.peak_bytes(), 2 << 20);
}

#[test]
fn a_tag_is_a_wall_until_it_is_proven() {
    let mut place = Place::new(SPAN, SMALL_BASE);
    place.extend(0, 4 << 20, PROVEN, LARGE);
    let all = place.allocate(4 << 20, 256, &[PROVEN], 4, 1, LARGE).unwrap();
    let entry = place.entry(all).unwrap();
    place.free(&entry, 6);
    assert_eq!(place.allocate(4 << 20, 256, &[4, PROVEN], 4, 1, LARGE), None);
    assert_eq!(place.tag_bytes(6), 4 << 20);
    place.relabel(6, PROVEN, true);
    assert_eq!(place.allocate(4 << 20, 256, &[4, PROVEN], 4, 1, LARGE), Some(0));
}

#[test]
fn a_slot_freed_by_another_stream_waits_for_its_proof() {
    let mut place = Place::new(SPAN, SMALL_BASE);
    place.extend(SMALL_BASE, 2 << 20, PROVEN, SMALL);
    let tags = [4, PROVEN];
    let slots: Vec<u64> = (0..16).filter_map(|_| place.allocate(1000, 256, &tags, 4, 1, SMALL)).collect();
    assert_eq!(slots.len(), 16);
    let entry = place.entry(slots[3]).unwrap();
    place.free(&entry, 6);
    for _ in 0..64 {
        assert_ne!(place.allocate(1000, 256, &tags, 4, 1, SMALL), Some(slots[3]), "stream 6 has not passed");
    }
    place.relabel(6, PROVEN, true);
    assert!((0..200).any(|_| place.allocate(1000, 256, &tags, 4, 1, SMALL) == Some(slots[3])));
    place.check().unwrap();
}

#[test]
fn the_only_block_that_fits_is_found_however_many_stand_before_it() {
    let mut place = Place::new(SPAN, SPAN);
    place.extend(0, SPAN / 2, PROVEN, LARGE);
    let tags = [tag(0), PROVEN];
    let mut take = |units: u64| place.allocate(units * UNIT, 256, &tags, tag(0), 7, LARGE).unwrap();
    // All in one list of sizes, with something live between them. The longest is freed first, so that it is last in it.
    let blocks: Vec<u64> = (0..40).map(|n| (take(if n == 0 { 1007 } else { 992 }), take(200)).0).collect();
    let mut rest = Vec::new();
    while let Some(offset) = place.allocate(1008 * UNIT, 256, &tags, tag(0), 7, LARGE) {
        rest.push(offset);
    }
    for offset in &blocks {
        let entry = place.entry(*offset).unwrap();
        assert!(place.free(&entry, tag(0)));
    }
    assert_eq!(place.allocate(1007 * UNIT, 256, &tags, tag(0), 7, LARGE), Some(blocks[0]));
    place.check().unwrap();
}

#[test]
fn whole_pages_of_free_blocks_are_counted_by_tag_and_zone() {
    const PAGE: u64 = 2 << 20;
    let mut place = Place::new(1 << 30, 1 << 29);
    place.extend(0, 12 * PAGE, PROVEN, LARGE);
    place.extend(1 << 29, 3 * PAGE, tag(1), SMALL);
    let count = |place: &Place, tags: &[u32]| [LARGE, SMALL].map(|zone| place.whole_pages(tags, zone, PAGE) / PAGE);
    assert_eq!(count(&place, &[PROVEN]), [12, 0]);
    assert_eq!(count(&place, &[PROVEN, tag(1)]), [12, 3]);
    assert_eq!(count(&place, &[tag(2)]), [0, 0]);
    // Two and a half pages, then one page: what is left begins in the middle of the fourth.
    let first = place.allocate(2 * PAGE + PAGE / 2, UNIT, &[PROVEN], tag(1), 1, LARGE).unwrap();
    let second = place.allocate(PAGE, UNIT, &[PROVEN], tag(1), 1, LARGE).unwrap();
    assert_eq!((first, second), (0, 2 * PAGE + PAGE / 2));
    assert_eq!(count(&place, &[PROVEN]), [8, 0]);
    // Free for somebody else, in whole pages or not.
    let first = place.entry(first).unwrap();
    assert!(place.free(&first, tag(2)));
    assert_eq!((count(&place, &[PROVEN]), count(&place, &[tag(2)])), ([8, 0], [2, 0]));
    let second = place.entry(second).unwrap();
    assert!(place.free(&second, tag(3)));
    assert_eq!(count(&place, &[tag(3)]), [0, 0], "a page long, and no whole page");
}
