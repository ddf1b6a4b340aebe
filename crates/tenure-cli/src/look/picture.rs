//! What all kinds of files say, in one form. Sizes are in bytes, times in nanoseconds from the first.

use std::collections::HashMap;

/// A library with a tag, or whatever else a file tells holders apart by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    pub(crate) library: String,
    pub(crate) tag: String,
    pub(crate) live: u64,
    pub(crate) live_count: u64,
    pub(crate) peak: u64,
    pub(crate) at_peak: u64,
    pub(crate) total: u64,
    pub(crate) total_count: u64,
}

/// A moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Point {
    pub(crate) time: u64,
    pub(crate) live: u64,
    /// 0 where the file does not say.
    pub(crate) reserved: u64,
    /// By holder.
    pub(crate) held: Vec<u64>,
}

/// A block that is out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) library: String,
    pub(crate) tag: String,
    /// The innermost frame, or the best that is known.
    pub(crate) maker: String,
}

/// All of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// What it is: "report", "log", "snapshot", "out of memory".
    pub(crate) kind: &'static str,
    /// Lines that say what it is about.
    pub(crate) about: Vec<String>,
    /// Figures with their names, as they are shown: sizes in bytes.
    pub(crate) figures: Vec<(&'static str, Figure)>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) timeline: Vec<Point>,
    pub(crate) left: Vec<Block>,
    /// How many are out, where more are out than are listed.
    pub(crate) left_count: u64,
    pub(crate) left_bytes: u64,
}

/// A figure and its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    Bytes(u64),
    Count(u64),
    Seconds(f64),
}

impl Figure {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => size(bytes),
            Self::Count(count) => count.to_string(),
            Self::Seconds(seconds) => format!("{seconds:.3} s"),
        }
    }
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}

/// What is said for an empty name.
pub(crate) fn or(name: &str, otherwise: &str) -> String {
    if name.is_empty() { otherwise.to_owned() } else { name.to_owned() }
}

impl Picture {
    /// Holders by a part of their name, those with most at the peak first, and whose each holder is.
    pub(crate) fn grouped(&self, name: impl Fn(&Holder) -> String) -> (Vec<(String, Holder)>, Vec<usize>) {
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut groups: Vec<(String, Holder)> = Vec::new();
        let mut whose = Vec::new();
        for holder in &self.holders {
            let key = name(holder);
            let at = *places.entry(key.clone()).or_insert_with(|| {
                groups.push((key, Holder::default()));
                groups.len() - 1
            });
            let sum = &mut groups[at].1;
            sum.live += holder.live;
            sum.live_count += holder.live_count;
            sum.peak += holder.peak;
            sum.at_peak += holder.at_peak;
            sum.total += holder.total;
            sum.total_count += holder.total_count;
            whose.push(at);
        }
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&groups[*a], &groups[*b]);
            b.1.at_peak.cmp(&a.1.at_peak).then(b.1.peak.cmp(&a.1.peak)).then(a.0.cmp(&b.0))
        });
        let mut rank = vec![0; order.len()];
        for (place, at) in order.iter().enumerate() {
            rank[*at] = place;
        }
        let sorted = order.iter().map(|at| groups[*at].clone()).collect();
        (sorted, whose.iter().map(|at| rank[*at]).collect())
    }

    /// Who made what is out: maker, blocks, bytes; most bytes first.
    pub(crate) fn makers(&self) -> Vec<(String, u64, u64)> {
        let mut all: HashMap<&str, (u64, u64)> = HashMap::new();
        for block in &self.left {
            let one = all.entry(&block.maker).or_default();
            one.0 += 1;
            one.1 += block.size;
        }
        let mut sorted: Vec<_> =
            all.into_iter().map(|(name, (count, bytes))| (name.to_owned(), count, bytes)).collect();
        sorted.sort_by(|a, b| b.2.cmp(&a.2).then(a.0.cmp(&b.0)));
        sorted
    }

    /// What the series of the timeline are told apart by: libraries where there are several, else tags.
    pub(crate) fn series(&self) -> (&'static str, Vec<(String, Holder)>, Vec<usize>) {
        let (libraries, whose) = self.grouped(|holder| or(&holder.library, "the program"));
        if libraries.len() > 1 {
            return ("library", libraries, whose);
        }
        let (tags, whose) = self.grouped(|holder| or(&holder.tag, "no tag"));
        ("tag", tags, whose)
    }
}

/// Follows holders through events, for files that have these and no timeline.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    pub(crate) picture: Picture,
    places: HashMap<(String, String), usize>,
    live: HashMap<u64, (u64, usize)>,
    total: u64,
    peak: u64,
}

/// Points of a timeline at most.
const POINTS: usize = 2000;

impl Follower {
    pub(crate) fn allocate(&mut self, time: u64, address: u64, size: u64, library: &str, tag: &str) {
        // Given out again without a free: a log that began late, or lost rows.
        self.free(time, address);
        let key = (library.to_owned(), tag.to_owned());
        let picture = &mut self.picture;
        let at = *self.places.entry(key).or_insert_with(|| {
            picture.holders.push(Holder { library: library.to_owned(), tag: tag.to_owned(), ..Holder::default() });
            picture.holders.len() - 1
        });
        self.live.insert(address, (size, at));
        let holder = &mut self.picture.holders[at];
        holder.live = holder.live.saturating_add(size);
        holder.live_count += 1;
        holder.peak = holder.peak.max(holder.live);
        holder.total = holder.total.saturating_add(size);
        holder.total_count += 1;
        self.total = self.total.saturating_add(size);
        if self.total > self.peak {
            self.peak = self.total;
            for holder in &mut self.picture.holders {
                holder.at_peak = holder.live;
            }
        }
        self.point(time);
    }

    /// Whether it was out.
    pub(crate) fn free(&mut self, time: u64, address: u64) -> bool {
        let Some((size, at)) = self.live.remove(&address) else { return false };
        let holder = &mut self.picture.holders[at];
        holder.live = holder.live.saturating_sub(size);
        holder.live_count = holder.live_count.saturating_sub(1);
        self.total = self.total.saturating_sub(size);
        self.point(time);
        true
    }

    fn point(&mut self, time: u64) {
        let held = self.picture.holders.iter().map(|holder| holder.live).collect();
        self.picture.timeline.push(Point { time, live: self.total, reserved: 0, held });
        if self.picture.timeline.len() >= POINTS * 2 {
            // Of each two neighbours the higher one stays.
            let points = std::mem::take(&mut self.picture.timeline);
            self.picture.timeline =
                points.chunks(2).filter_map(|pair| pair.iter().max_by_key(|point| point.live).cloned()).collect();
        }
    }

    /// All of it; what is out is left.
    pub(crate) fn end(mut self) -> (Picture, u64) {
        let picture = &mut self.picture;
        for (address, (size, at)) in &self.live {
            let holder = &picture.holders[*at];
            let maker = match (holder.library.as_str(), holder.tag.as_str()) {
                ("", "") => "no tag".to_owned(),
                ("", tag) => format!("tag {tag}"),
                (library, "") => library.to_owned(),
                (library, tag) => format!("{library}, tag {tag}"),
            };
            let (library, tag) = (holder.library.clone(), holder.tag.clone());
            picture.left.push(Block { address: *address, size: *size, library, tag, maker });
        }
        picture.left.sort_by(|a, b| b.size.cmp(&a.size).then(a.address.cmp(&b.address)));
        (picture.left_count, picture.left_bytes) = (self.live.len() as u64, self.total);
        (self.picture, self.peak)
    }
}
