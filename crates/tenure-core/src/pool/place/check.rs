//! The invariants of the placer, checked from nothing. For tests: linear in everything.

use super::block::{MIN_LARGE, NIL, State};
use super::ledger::{self, HELD, LIVE, PENDING, RUN};
use super::runs::class_units;
use super::{Place, UNIT};

impl Place {
    /// Checks invariants I1, I3 and I4 and every counter.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut free_seen = 0usize;
        let mut starts = Vec::new();
        let (mut live_units, mut live_count, mut mapped) = (0u64, 0u64, 0u64);
        let tags = self.tags.len();
        let (mut tag_units, mut tag_slots, mut tag_live) = (vec![0u64; tags], vec![0u64; tags], vec![0u64; tags]);
        let mut runs_seen = 0;
        let (mut spans, mut span_units) = (0, 0u64);
        let mut entries = 1;
        let mut before_end = None;
        for range in &self.ranges {
            if range.start >= range.end || before_end.is_some_and(|e| e >= range.start) {
                return Err(format!("range {range:?} is empty, or touches the one before"));
            }
            before_end = Some(range.end);
            mapped += u64::from(range.end - range.start);
            entries += 2;
            let mut at = range.start;
            let mut previous = range.head;
            let mut index = self.blocks[range.head].next;
            while index != range.tail {
                entries += 1;
                let block = self.blocks[index];
                if block.prev != previous || block.start != at || block.units == 0 {
                    return Err(format!("block {index} {block:?} does not follow {previous} at unit {at}"));
                }
                match block.state {
                    State::Free => {
                        free_seen += 1;
                        if block.start >= self.below[block.zone as usize] {
                            return Err(format!("free block {index} starts above where any is looked for"));
                        }
                        tag_units[block.tag as usize] += u64::from(block.units);
                        let p = &self.blocks[previous];
                        if p.state == State::Free && p.tag == block.tag && p.zone == block.zone {
                            return Err(format!("free blocks {previous} and {index} touch and are not one"));
                        }
                    }
                    State::Live => {
                        if block.units < MIN_LARGE {
                            return Err(format!("live block {index} is shorter than a granule"));
                        }
                        starts.push(index);
                        live_units += u64::from(block.units);
                        live_count += 1;
                        let word = self.ledger.piece(index).word();
                        if !matches!(ledger::state_of(word), LIVE | HELD) {
                            return Err(format!("block {index} is live, and the ledger says {word:#x}"));
                        }
                        self.findable(block.start, index)?;
                        tag_live[ledger::stamp_of(word) as usize] += 1;
                    }
                    State::Run => {
                        starts.push(index);
                        runs_seen += 1;
                        let run = &self.runs[block.a as usize];
                        run.check()?;
                        let units = class_units(run.class as usize);
                        if run.block != index || run.len() * units != block.units {
                            return Err(format!("run {} and block {index} disagree", block.a));
                        }
                        live_count += u64::from(run.live);
                        live_units += u64::from(run.live * units);
                        for slot in 0..run.len() {
                            let word = run.piece(slot).word();
                            let (state, stamp) = (ledger::state_of(word), ledger::stamp_of(word));
                            if matches!(state, LIVE | HELD) {
                                tag_live[stamp as usize] += 1;
                                self.findable(block.start + slot * units, index)?;
                            } else {
                                tag_slots[run.tag_of(slot) as usize] += u64::from(units);
                            }
                            if state == PENDING && (stamp == run.tag || stamp == super::PROVEN) {
                                return Err(format!("slot {slot} of run {} waits for nothing", block.a));
                            }
                        }
                        if ledger::state_of(self.ledger.piece(index).word()) != RUN {
                            return Err(format!("block {index} is a run, and the ledger does not say so"));
                        }
                        if run.live == 0 && !run.noted {
                            return Err(format!("run {} has no live slot, and nobody would look for it", block.a));
                        }
                        let listed = self.listed(run.tag, run.class as usize, block.a);
                        if listed != (run.free_count() > 0) {
                            return Err(format!("run {} is listed: {listed}, but should not be so", block.a));
                        }
                    }
                    State::Lent => {
                        if self.lent.span_of(block.start) != Some(block.start) {
                            return Err(format!("block {index} is lent, and no plot has a span there"));
                        }
                        spans += 1;
                        span_units += u64::from(block.units);
                        live_units += u64::from(block.units);
                        live_count += 1;
                        tag_live[block.tag as usize] += 1;
                    }
                    State::Spare | State::Sentinel | State::Line => {
                        return Err(format!("block {index} is {:?} in a range", block.state));
                    }
                }
                at = block.end();
                previous = index;
                index = block.next;
            }
            if at != range.end || self.blocks[range.tail].prev != previous {
                return Err(format!("the blocks of {range:?} end at {at}"));
            }
        }
        for (line, tag) in self.lent.waiting() {
            if self.blocks[line].state != State::Line || ledger::state_of(self.ledger.piece(line).word()) != HELD {
                return Err(format!("line {line} waits in an inbox, and is no piece of a plot that was freed"));
            }
            tag_live[tag as usize] += 1;
        }
        if self.lent.totals() != (spans, span_units) {
            return Err(format!("{spans} spans of {span_units} units are lent, counted {:?}", self.lent.totals()));
        }
        let mut listed = 0;
        for (number, tag) in self.tags.iter().enumerate() {
            let Some(tag) = tag else { continue };
            let mut found = Vec::new();
            for (zone, bins) in tag.bins.iter().enumerate() {
                found.extend(bins.check(&self.blocks)?.into_iter().map(|index| (zone, index)));
            }
            for (zone, index) in &found {
                let block = &self.blocks[*index];
                if block.state != State::Free || block.tag as usize != number || block.zone as usize != *zone {
                    return Err(format!("block {index} is in the lists of tag {number}: {block:?}"));
                }
            }
            listed += found.len();
            if (tag.block_units(), tag.slot_units, tag.live) != (tag_units[number], tag_slots[number], tag_live[number])
            {
                return Err(format!(
                    "tag {number} counts blocks {} slots {} live {}, found {} {} {}",
                    tag.block_units(),
                    tag.slot_units,
                    tag.live,
                    tag_units[number],
                    tag_slots[number],
                    tag_live[number]
                ));
            }
        }
        let mut spare = 0;
        for index in 1..self.blocks.len() as u32 {
            spare += usize::from(matches!(self.blocks[index].state, State::Spare | State::Line));
        }
        let mut map = self.map.all();
        map.sort_unstable();
        starts.sort_unstable();
        let used = self.runs.iter().filter(|r| r.block != NIL).count();
        let idle = self.runs.iter().filter(|r| r.block != NIL && r.live == 0).count();
        let sums = [
            ("runs without a live slot", idle as u64, self.idle_runs as u64),
            ("free blocks in the lists", listed as u64, free_seen as u64),
            ("entries", (entries + spare) as u64, self.blocks.len() as u64),
            ("runs", runs_seen, used as u64),
            ("live bytes", live_units * UNIT, self.live_bytes()),
            ("live pieces", live_count, self.live_count),
            ("mapped bytes", mapped * UNIT, self.mapped_bytes()),
        ];
        for (what, found, counted) in sums {
            if found != counted {
                return Err(format!("{what}: found {found}, counted {counted}"));
            }
        }
        let noted = self.runs.iter().filter(|r| r.noted).count();
        if noted != self.maybe_idle.len() {
            return Err(format!("{noted} runs are noted, {} listed", self.maybe_idle.len()));
        }
        if map != starts {
            return Err("the granule map does not name exactly the live blocks and runs".to_owned());
        }
        Ok(())
    }

    /// A free without the lock finds the piece.
    fn findable(&self, unit: u32, block: u32) -> Result<(), String> {
        match self.ledger.find(unit) {
            Some(found) if found.block == block => Ok(()),
            _ => Err(format!("the piece at unit {unit} of block {block} is not found without the lock")),
        }
    }

    fn listed(&self, tag: u32, class: usize, run: u32) -> bool {
        let mut index = self.tag_ref(tag).map_or(NIL, |t| t.runs[class]);
        while index != NIL {
            if index == run {
                return true;
            }
            index = self.runs[index as usize].next;
        }
        false
    }
}
