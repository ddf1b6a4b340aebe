//! `tenure bench`: the first costs, each beside a reference that is measured in the same run.
//!
//! A row runs in rounds of a few thousand operations that alternate with rounds of its reference, so that both see the same
//! machine; each figure is the median of its rounds. One operation is a pair (allocate and free) unless the row says
//! otherwise.
//!
//! Unsafe in this file: calls through the table, and of the system's allocator, whose blocks are all freed here.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tenure::abi::{TENURE_RESOURCE_NULL, tenure_api, tenure_resource, tenure_stream};
use tenure::{Device, DeviceBuffer, Pool, Resource, Stream, check, current};

use crate::table::Table;
use crate::{DeviceLayer, Failure};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The device layer.
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceLayer>,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Rounds for each row.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    rounds: u32,
    /// Prints JSON: an object with the device and an array of rows.
    #[arg(long)]
    json: bool,
}

/// Operations in one round.
const OPERATIONS: usize = 4096;
/// The size of a pair's block, in bytes.
const PAIR: usize = 1024;
/// Blocks that are alive in the churn.
const CHURN_LIVE: usize = 512;

/// What the rows work on.
struct Bed {
    api: &'static tenure_api,
    stream: Stream,
    raw_stream: tenure_stream,
    pool: Pool,
}

/// One measured row.
struct Row {
    name: &'static str,
    what: &'static str,
    ns: f64,
    reference: &'static str,
    reference_ns: f64,
}

type Operation<'a> = Box<dyn FnMut() -> tenure::Result<()> + 'a>;

/// What a row is: its name, what one operation does, the name of its reference, and how the two are made.
struct Plan {
    name: &'static str,
    what: &'static str,
    reference: &'static str,
    measured: fn(&Bed) -> tenure::Result<Operation<'_>>,
    compared: fn(&Bed) -> tenure::Result<Operation<'_>>,
}

const PLANS: [Plan; 6] = [
    Plan {
        name: "pair-c",
        what: "allocate + deallocate of 1 KiB through the C ABI, on a pool",
        reference: "malloc + free of 1 KiB",
        measured: pair_c,
        compared: pair_malloc,
    },
    Plan {
        name: "pair-c-try",
        what: "the same through the entries that never wait",
        reference: "malloc + free of 1 KiB",
        measured: pair_c_try,
        compared: pair_malloc,
    },
    Plan {
        name: "pair-rust",
        what: "the same through the crate tenure",
        reference: "malloc + free of 1 KiB",
        measured: pair_rust,
        compared: pair_malloc,
    },
    Plan {
        name: "churn",
        what: "one of 512 live blocks of 256 B to 1 MiB freed and another allocated, on a pool",
        reference: "the same with malloc + free",
        measured: churn,
        compared: churn_malloc,
    },
    Plan {
        name: "current",
        what: "the table read for a device: a reference to its current resource taken and given back",
        reference: "the reference alone, of a resource that is known",
        measured: read_current,
        compared: reference_alone,
    },
    Plan {
        name: "buffer-rust",
        what: "an owning buffer of 1 KiB made and dropped, on a pool",
        reference: "raw allocate + deallocate through the C ABI",
        measured: buffer_rust,
        compared: pair_c,
    },
];

/// Runs the command.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let filter = options.filter.as_deref().unwrap_or_default();
    let plans: Vec<_> = PLANS.iter().filter(|plan| plan.name.contains(filter)).collect();
    if plans.is_empty() {
        let names: Vec<_> = PLANS.iter().map(|plan| plan.name).collect();
        return Err(Failure::Input(format!("no row is named like {filter:?}: there are {}", names.join(", "))));
    }
    let device = Device::current()?;
    let info = device.info()?;
    let stream = Stream::create()?;
    let bed = Bed {
        api: tenure::api()?,
        raw_stream: tenure_stream { raw: stream.raw(), object: 0 },
        stream,
        pool: Pool::builder(&device).build()?,
    };
    let rows = plans.into_iter().map(|plan| measure(plan, &bed, options.rounds)).collect::<tenure::Result<Vec<_>>>()?;

    if options.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name, "what": row.what, "ns": row.ns,
                    "reference": row.reference, "reference_ns": row.reference_ns, "ratio": row.ns / row.reference_ns,
                })
            })
            .collect();
        let all = json!({"device": info.name, "library": tenure::library_path()?.to_string_lossy(), "simulated": info.simulated, "rounds": options.rounds, "rows": rows});
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    writeln!(out, "device: {}{}", info.name, if info.simulated { " (simulated)" } else { "" })?;
    writeln!(out, "library: {}", tenure::library_path()?.display())?;
    let mut table = Table::new(&["row", "ns", "reference", "ratio"], 1);
    for row in &rows {
        table.row(vec![
            row.name.into(),
            format!("{:.1}", row.ns),
            format!("{:.1}", row.reference_ns),
            format!("{:.2}", row.ns / row.reference_ns),
        ]);
    }
    table.write(out)?;
    writeln!(out)?;
    for row in &rows {
        writeln!(out, "{}: {}; reference: {}", row.name, row.what, row.reference)?;
    }
    Ok(())
}

fn measure(plan: &Plan, bed: &Bed, rounds: u32) -> tenure::Result<Row> {
    let (mut measured, mut compared) = ((plan.measured)(bed)?, (plan.compared)(bed)?);
    // What the first operations set up (pages, caches) is no cost of an operation.
    round(&mut measured)?;
    round(&mut compared)?;
    let (mut ns, mut reference_ns) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ns.push(round(&mut measured)?);
        reference_ns.push(round(&mut compared)?);
    }
    Ok(Row {
        name: plan.name,
        what: plan.what,
        ns: median(ns),
        reference: plan.reference,
        reference_ns: median(reference_ns),
    })
}

/// Nanoseconds of one operation, over a round of them.
fn round(operation: &mut Operation<'_>) -> tenure::Result<f64> {
    let start = Instant::now();
    for _ in 0..OPERATIONS {
        operation()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / OPERATIONS as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn pair_c(bed: &Bed) -> tenure::Result<Operation<'_>> {
    let (api, pool, stream) = (bed.api, bed.pool.as_raw(), bed.raw_stream);
    Ok(Box::new(move || {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the stream is alive while the bed is; the block is freed once and used by nobody.
        unsafe {
            check(api, (api.allocate)(pool, PAIR, 256, stream, &mut ptr))?;
            check(api, (api.deallocate)(pool, black_box(ptr), PAIR, 256, stream))
        }
    }))
}

fn pair_c_try(bed: &Bed) -> tenure::Result<Operation<'_>> {
    let (api, pool, stream) = (bed.api, bed.pool.as_raw(), bed.raw_stream);
    Ok(Box::new(move || {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: as in `pair_c`. What cannot be done without waiting is done by the plain entry, as a caller would.
        unsafe {
            if (api.try_allocate)(pool, PAIR, 256, stream, &mut ptr) != 0 {
                check(api, (api.allocate)(pool, PAIR, 256, stream, &mut ptr))?;
            }
            if (api.try_deallocate)(pool, black_box(ptr), PAIR, 256, stream) != 0 {
                check(api, (api.deallocate)(pool, ptr, PAIR, 256, stream))?;
            }
        }
        Ok(())
    }))
}

fn pair_rust(bed: &Bed) -> tenure::Result<Operation<'_>> {
    let (pool, stream): (&Resource, _) = (&bed.pool, &bed.stream);
    Ok(Box::new(move || {
        let ptr = black_box(pool.allocate(PAIR, stream)?);
        // SAFETY: nobody uses the block.
        unsafe { pool.deallocate(ptr, PAIR, tenure::DEFAULT_ALIGNMENT, stream) }
    }))
}

fn pair_malloc(_: &Bed) -> tenure::Result<Operation<'_>> {
    Ok(Box::new(|| {
        // SAFETY: the layout is not empty; the block is freed with the same layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(black_box(PAIR), 16);
            dealloc(black_box(alloc(layout)), layout);
        }
        Ok(())
    }))
}

/// A sequence of numbers that is the same in each run (xorshift64).
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A slot, and a size between 256 bytes and 1 MiB whose logarithm is evenly spread.
    fn slot_and_size(&mut self) -> (usize, usize) {
        let random = self.next();
        let shift = 8 + (random >> 32) as usize % 12;
        (random as usize % CHURN_LIVE, (1 << shift) + (random >> 48) as usize % (1 << shift))
    }
}

/// Blocks of a resource that are freed when the row is done.
struct LiveBlocks<'a> {
    bed: &'a Bed,
    blocks: Vec<(*mut c_void, usize)>,
}

impl LiveBlocks<'_> {
    fn replace(&mut self, slot: usize, size: usize) -> tenure::Result<()> {
        let (pool, stream): (&Resource, _) = (&self.bed.pool, &self.bed.stream);
        let (ptr, old) = std::mem::replace(&mut self.blocks[slot], (std::ptr::null_mut(), 0));
        if !ptr.is_null() {
            // SAFETY: the block is this pool's, of this size, and used by nobody.
            unsafe { pool.deallocate(ptr, old, tenure::DEFAULT_ALIGNMENT, stream)? };
        }
        if size != 0 {
            self.blocks[slot] = (pool.allocate(size, stream)?, size);
        }
        Ok(())
    }
}

impl Drop for LiveBlocks<'_> {
    fn drop(&mut self) {
        for slot in 0..self.blocks.len() {
            // A failure was reported by the operation before; there is nothing to add.
            let _ = self.replace(slot, 0);
        }
    }
}

fn churn(bed: &Bed) -> tenure::Result<Operation<'_>> {
    let mut live = LiveBlocks { bed, blocks: vec![(std::ptr::null_mut(), 0); CHURN_LIVE] };
    let mut sequence = Sequence(0x9e37_79b9_7f4a_7c15);
    Ok(Box::new(move || {
        let (slot, size) = sequence.slot_and_size();
        live.replace(slot, size)
    }))
}

fn churn_malloc(_: &Bed) -> tenure::Result<Operation<'_>> {
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); CHURN_LIVE];
    let mut sequence = Sequence(0x9e37_79b9_7f4a_7c15);
    Ok(Box::new(move || {
        let (slot, size) = sequence.slot_and_size();
        blocks[slot] = Vec::new();
        blocks[slot] = black_box(Vec::with_capacity(size));
        Ok(())
    }))
}

/// Puts the entry of the table back that was there before.
struct Entry {
    device: Device,
    before: Resource,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The entry was there before, so that it is accepted again.
        let _ = current::set_for(&self.device, &self.before);
    }
}

fn read_current(bed: &Bed) -> tenure::Result<Operation<'_>> {
    // A pool is current, as it is where reading matters; the entry is put back when the row ends.
    let device = Device::current()?;
    let before = current::set_for(&device, &bed.pool)?;
    let (api, ordinal, entry) = (bed.api, device.ordinal(), Entry { device, before });
    Ok(Box::new(move || {
        let _replaced = &entry;
        let mut resource: tenure_resource = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing; the reference is given back once.
        unsafe {
            check(api, (api.current_get)(ordinal, &mut resource))?;
            check(api, (api.resource_release)(black_box(resource)))
        }
    }))
}

fn reference_alone(bed: &Bed) -> tenure::Result<Operation<'_>> {
    let (api, pool) = (bed.api, bed.pool.as_raw());
    Ok(Box::new(move || {
        let mut resource: tenure_resource = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing; the reference is given back once.
        unsafe {
            check(api, (api.resource_retain_light)(pool, &mut resource))?;
            check(api, (api.resource_release)(black_box(resource)))
        }
    }))
}

fn buffer_rust(bed: &Bed) -> tenure::Result<Operation<'_>> {
    Ok(Box::new(move || {
        drop(black_box(DeviceBuffer::new_in(PAIR, &bed.stream, &bed.pool)?));
        Ok(())
    }))
}
