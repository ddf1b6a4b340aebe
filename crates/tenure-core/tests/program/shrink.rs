//! From a program that fails to a short one that still does.
//!
//! Greedy: parts of the list are left out, from halves down to single ops, for as long as anything goes (Zeller's delta
//! debugging without its book-keeping, since runs are cheap); then settings and arguments become simpler.

use super::crew::Crew;
use super::*;

/// How many runs shrinking may take.
const RUNS: usize = 6000;

struct Shrinker<'a> {
    crew: &'a mut Crew,
    best: Program,
    error: String,
    left: usize,
}

impl Shrinker<'_> {
    /// Keeps the candidate if it fails too.
    fn fails(&mut self, candidate: Program) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        match self.crew.run(&candidate) {
            Ok(_) => false,
            Err(error) => {
                (self.best, self.error) = (candidate, error);
                true
            }
        }
    }

    fn shorter(&mut self) {
        let mut part = self.best.ops.len().div_ceil(2);
        while part > 0 {
            // From the end: what comes last depends on most.
            let mut end = self.best.ops.len();
            while end > 0 {
                let start = end.saturating_sub(part);
                let mut candidate = self.best.clone();
                candidate.ops.drain(start..end);
                self.fails(candidate);
                end = start.min(self.best.ops.len());
            }
            part /= 2;
        }
    }

    fn simpler(&mut self) {
        for index in 0..self.best.ops.len() {
            let Some(op) = self.best.ops.get(index).copied() else { break };
            for other in alternatives(op) {
                let mut candidate = self.best.clone();
                candidate.ops[index] = other;
                if other != self.best.ops[index] && self.fails(candidate) {
                    break;
                }
            }
        }
        let plain = Setup { initial: 0, maximum: None, footprint: false, chunks: false, liar: false, threshold: 0 };
        let settings = self.best.settings;
        let [first, second] = settings.pools;
        for other in [
            Settings { bytes: false, ..settings },
            Settings { device: None, ..settings },
            Settings { captures: false, ..settings },
            Settings { aligned: false, ..settings },
            Settings { schedule: 0, ..settings },
            Settings { pools: [first, plain], ..settings },
            Settings { pools: [plain, second], ..settings },
            Settings { pools: [Setup { initial: 0, ..first }, second], ..settings },
            Settings { pools: [Setup { footprint: false, ..first }, second], ..settings },
            Settings { pools: [Setup { chunks: false, ..first }, second], ..settings },
            Settings { pools: [Setup { liar: false, ..first }, second], ..settings },
            Settings { pools: [Setup { threshold: 0, ..first }, second], ..settings },
            Settings { pools: [Setup { maximum: Some(4 * MIB), ..first }, second], ..settings },
        ] {
            // One at a time: which of them matters is what one wants to know.
            let merged = merge(self.best.settings, settings, other);
            if merged != self.best.settings {
                let ops = self.best.ops.clone();
                self.fails(Program { settings: merged, ops });
            }
        }
    }
}

/// `best` with what `other` has changed against `base`.
fn merge(best: Settings, base: Settings, other: Settings) -> Settings {
    let pool = |i: usize| {
        let (b, o, n) = (base.pools[i], other.pools[i], best.pools[i]);
        Setup {
            initial: if o.initial == b.initial { n.initial } else { o.initial },
            maximum: if o.maximum == b.maximum { n.maximum } else { o.maximum },
            footprint: if o.footprint == b.footprint { n.footprint } else { o.footprint },
            chunks: if o.chunks == b.chunks { n.chunks } else { o.chunks },
            liar: if o.liar == b.liar { n.liar } else { o.liar },
            threshold: if o.threshold == b.threshold { n.threshold } else { o.threshold },
        }
    };
    Settings {
        schedule: if other.schedule == base.schedule { best.schedule } else { other.schedule },
        pools: [pool(0), pool(1)],
        bytes: if other.bytes == base.bytes { best.bytes } else { other.bytes },
        captures: if other.captures == base.captures { best.captures } else { other.captures },
        aligned: if other.aligned == base.aligned { best.aligned } else { other.aligned },
        device: if other.device == base.device { best.device } else { other.device },
    }
}

/// Simpler forms of an op, the simplest first.
fn alternatives(op: Op) -> Vec<Op> {
    let small = [0u16, 1, 2, 3, 4];
    match op {
        Allocate { pool, bytes, align, stream, how } => {
            let sizes = [256, 4096, 40 << 10, MIB, 2 * MIB, 4 * MIB, bytes.next_multiple_of(MIB), bytes];
            let mut found: Vec<Op> = sizes
                .into_iter()
                .filter(|b| *b <= bytes)
                .map(|bytes| Allocate { pool, bytes, align: 256, stream, how: Object })
                .collect();
            found.push(Allocate { pool, bytes, align: 256, stream, how });
            found.push(Allocate { pool, bytes, align, stream, how: Object });
            found.push(Allocate { pool: 0, bytes, align, stream, how });
            found
        }
        Idle { pool, bytes, stream } => [256, 4096, 40 << 10, MIB, 2 * MIB]
            .into_iter()
            .filter(|b| *b < bytes)
            .map(|bytes| Idle { pool, bytes, stream })
            .collect(),
        Use { block } => small.into_iter().filter(|b| *b < block).map(|block| Use { block }).collect(),
        Move { block, to } => small.into_iter().filter(|b| *b < block).map(|block| Move { block, to }).collect(),
        Free { block, how } => small
            .into_iter()
            .filter(|b| *b <= block)
            .flat_map(|block| [Free { block, how: Object }, Free { block, how }])
            .collect(),
        FreeShared { block, by, on } => {
            small.into_iter().filter(|b| *b < block).map(|block| FreeShared { block, by, on }).collect()
        }
        Run { steps } => (1..steps).map(|steps| Run { steps }).collect(),
        Trim { pool, keep } if keep > 0 => vec![Trim { pool, keep: 0 }],
        Fail { call, code, after } => (0..after).map(|after| Fail { call, code, after }).collect(),
        _ => Vec::new(),
    }
}

/// The shortest program found that fails, and how.
pub(crate) fn shrink(crew: &mut Crew, program: Program) -> (Program, String) {
    let error = match crew.run(&program) {
        Ok(_) => "it did not fail again: what the process did before has a part in it".to_owned(),
        Err(error) => error,
    };
    let mut shrinker = Shrinker { crew, best: program, error, left: RUNS };
    // Each makes more of the other possible.
    for _ in 0..4 {
        let before = format!("{:?}", shrinker.best);
        shrinker.shorter();
        shrinker.simpler();
        if format!("{:?}", shrinker.best) == before {
            break;
        }
    }
    (shrinker.best, shrinker.error)
}
