//! From a program that fails to a short one that still does.
//!
//! ```text
//!   program --> edit --> run --> fails with the same kind of message? keep it, else undo
//!                ^                                                        |
//!                +--------------------------------------------------------+
//! ```
//!
//! Greedy: parts of the list are left out, from halves down to single ops, for as long as anything goes (Zeller's delta
//! debugging without its book-keeping, since runs are cheap); then settings and arguments become simpler.
//!
//! **The same failure.** A candidate that fails in another way is not kept: it would lead away from what was found.
//!
//! **A clean machine for each run.** What fails may leave the device in an error that it does not come back from, or memory
//! that nobody has. So whoever can has each candidate run in a process of its own: an [`Edit`] is short as text, and the
//! seed and the edits made so far say what a candidate is.

use super::*;

/// How many runs shrinking may take.
const RUNS: usize = 6000;

/// One change that makes a program shorter or plainer.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// These ops are left out.
    Without(usize, usize),
    /// An op takes one of its [`alternatives`].
    Other(usize, usize),
    /// One of [`PLAINER`].
    Plainer(usize),
}

impl std::fmt::Display for Edit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Without(start, end) => write!(f, "w{start}.{end}"),
            Self::Other(index, other) => write!(f, "o{index}.{other}"),
            Self::Plainer(setting) => write!(f, "p{setting}.0"),
        }
    }
}

impl Edit {
    fn parse(text: &str) -> Option<Self> {
        let (first, second) = text.get(1..)?.split_once('.')?;
        let (first, second) = (first.parse().ok()?, second.parse().ok()?);
        match text.get(..1)? {
            "w" => Some(Self::Without(first, second)),
            "o" => Some(Self::Other(first, second)),
            "p" => Some(Self::Plainer(first)),
            _ => None,
        }
    }

    /// Says whether that changed anything.
    fn apply(self, program: &mut Program) -> bool {
        match self {
            Self::Without(start, end) if start < end && end <= program.ops.len() => {
                program.ops.drain(start..end);
                true
            }
            Self::Other(index, other) => {
                let Some(op) = program.ops.get_mut(index) else { return false };
                let Some(new) = alternatives(*op).get(other).copied() else { return false };
                std::mem::replace(op, new) != new
            }
            Self::Plainer(setting) => {
                let before = program.settings;
                if let Some(plainer) = PLAINER.get(setting) {
                    plainer(&mut program.settings);
                }
                program.settings != before
            }
            Self::Without(..) => false,
        }
    }
}

/// The program with the edits of a text made.
pub(crate) fn edited(mut program: Program, edits: &str) -> Option<Program> {
    for edit in edits.split(',').filter(|edit| !edit.is_empty()) {
        Edit::parse(edit)?.apply(&mut program);
    }
    Some(program)
}

/// Settings made plainer, one at a time: which of them matters is what one wants to know.
const PLAINER: [fn(&mut Settings); 15] = [
    |s| s.bytes = false,
    |s| s.plots = false,
    |s| s.device = None,
    |s| s.captures = false,
    |s| s.aligned = false,
    |s| s.schedule = 0,
    |s| s.pools[1] = PLAIN,
    |s| s.pools[0] = PLAIN,
    |s| s.pools[0].initial = 0,
    |s| s.pools[0].footprint = false,
    |s| s.pools[0].chunks = false,
    |s| s.pools[0].liar = false,
    |s| s.pools[0].threshold = 0,
    |s| s.pools[0].maximum = Some(4 * MIB),
    |s| s.pools[0].maximum = Some(8 * MIB),
];

const PLAIN: Setup = Setup { initial: 0, maximum: None, footprint: false, chunks: false, liar: false, threshold: 0 };

/// What a failure is, apart from the step and the figures in it: two with one kind are taken for the same.
fn kind(error: &str) -> String {
    if let Some(code) = sticky(error) {
        // Whichever call comes next tells it.
        return format!("the device is in error {code}");
    }
    let mut text = error;
    if let Some((_, rest)) = error.strip_prefix("step ").and_then(|rest| rest.split_once(' ')) {
        let has_arguments = rest.split_once(':').is_some_and(|(op, _)| op.contains('{'));
        let end = if has_arguments { "}: " } else { ": " };
        text = rest.split_once(end).map_or(rest, |(_, message)| message);
    }
    let text = text.split(['[', '{']).next().unwrap_or_default();
    let word = |word: &str| if word.contains(|c: char| c.is_ascii_digit()) { "#".to_owned() } else { word.to_owned() };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The code that a message tells where the device does not come back from it.
pub(crate) fn sticky(error: &str) -> Option<u32> {
    let digits = error.split("code ").nth(1)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok().filter(|code| (700..720).contains(code))
}

/// Runs a candidate, which is also told as edits of the program that shrinking began with: how it fails, if it does.
pub(crate) type Runner<'a> = dyn FnMut(&Program, &str) -> Option<String> + 'a;

struct Shrinker<'a, 'b> {
    run: &'a mut Runner<'b>,
    kind: String,
    best: Program,
    edits: String,
    error: String,
    left: usize,
}

impl Shrinker<'_, '_> {
    /// Makes the edit, and keeps it if the program fails as before. False where it does not.
    fn edit(&mut self, edit: Edit) -> bool {
        let mut candidate = self.best.clone();
        if self.left == 0 || !edit.apply(&mut candidate) {
            return false;
        }
        self.left -= 1;
        let edits = format!("{},{edit}", self.edits);
        match (self.run)(&candidate, &edits) {
            Some(error) if kind(&error) == self.kind => {
                (self.best, self.edits, self.error) = (candidate, edits, error);
                true
            }
            _ => false,
        }
    }

    fn shorter(&mut self) {
        let mut part = self.best.ops.len().div_ceil(2);
        while part > 0 {
            // From the end: what comes last depends on most.
            let mut end = self.best.ops.len();
            while end > 0 {
                let start = end.saturating_sub(part);
                self.edit(Edit::Without(start, end));
                end = start.min(self.best.ops.len());
            }
            part /= 2;
        }
    }

    fn simpler(&mut self) {
        for index in 0..self.best.ops.len() {
            let Some(op) = self.best.ops.get(index).copied() else { break };
            for other in 0..alternatives(op).len() {
                if self.edit(Edit::Other(index, other)) {
                    break;
                }
            }
        }
        for setting in 0..PLAINER.len() {
            self.edit(Edit::Plainer(setting));
        }
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

/// The shortest program found that fails as `program` does, and how. `run` runs a candidate.
pub(crate) fn shrink(program: Program, run: &mut Runner<'_>) -> (Program, String) {
    let Some(error) = run(&program, "") else {
        return (program, "it did not fail again: what the process did before has a part in it".to_owned());
    };
    let mut shrinker = Shrinker { run, kind: kind(&error), best: program, edits: String::new(), error, left: RUNS };
    // Each makes more of the other possible.
    for _ in 0..4 {
        let before = shrinker.edits.clone();
        shrinker.shorter();
        shrinker.simpler();
        if shrinker.edits == before {
            break;
        }
    }
    (shrinker.best, shrinker.error)
}
