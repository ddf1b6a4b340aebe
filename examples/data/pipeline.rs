//! Records `pipeline.dev0.csv`: a program whose memory is freed on other streams than it was allocated on.
//!
//! ```text
//!   loader 0 --batches--+                                   each thread has a stream of its own; an arrow hands buffers on:
//!   loader 1 --batches--+--> joiner --tables--> writer      the receiver's stream waits for the sender's, and the receiver
//!   loader 2 --batches--+                                   frees what it was given on its own stream
//! ```
//!
//! Loaders bring batches of three columns (keys, values, validity) to the device; the joiner takes some of them in the order
//! in which they come, copies them into one table, and hands it to the writer, which brings it back to the host and checks
//! it. The lines are in the form of RMM's logging adaptor. A free is logged before it happens and an allocation after it, so
//! that an address is never logged as handed out while it is live.
//!
//!     TENURE_DEVICE=sim cargo run --release -p tenure-cli --example pipeline -- examples/data/pipeline.dev0.csv
//!
//! Unsafe in this file: a resource that hands everything on, and copies between buffers that are alive on streams that wait.

use std::ffi::c_void;
use std::io::{BufWriter, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure::{Callbacks, Device, DeviceBuffer, Pool, Request, Resource, Result, Stream, StreamRef, check};

const LOADERS: usize = 3;
/// Batches of each loader.
const BATCHES: usize = 120;
/// Batches that wait for the joiner at most.
const WAITING: usize = 4;

/// Writes a line for each call and hands it on.
struct Recorded {
    upstream: Resource,
    log: Arc<Mutex<BufWriter<std::fs::File>>>,
}

impl Recorded {
    fn line(&self, action: &str, ptr: *mut c_void, bytes: usize, stream: StreamRef<'_>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, us) = (time.as_secs() % 86_400, time.subsec_micros());
        let clock = format!("{:02}:{:02}:{:02}.{us:06}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        // SAFETY: no argument.
        let thread = unsafe { libc::gettid() };
        let mut log = self.log.lock().unwrap_or_else(|e| e.into_inner());
        // A line that cannot be written is found out at the end, by the flush.
        let _ = writeln!(log, "{thread},{clock},{action},{ptr:p},{bytes},{:p}", stream.raw());
    }
}

// SAFETY: the memory is the upstream's, unchanged.
unsafe impl Callbacks for Recorded {
    fn allocate(&self, request: &Request, stream: StreamRef<'_>) -> Result<*mut c_void> {
        let ptr = self.upstream.allocate_aligned(request.bytes, request.alignment, stream)?;
        self.line("allocate", ptr, request.bytes, stream);
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: *mut c_void, request: &Request, stream: StreamRef<'_>) -> Result<()> {
        self.line("free", ptr, request.bytes, stream);
        // SAFETY: as the caller of this function promises.
        unsafe { self.upstream.deallocate(ptr, request.bytes, request.alignment, stream) }
    }
}

/// Buffers that are ready in the order of a stream.
struct Handed {
    columns: Vec<DeviceBuffer>,
    stream: Stream,
    /// The byte that every column is made of.
    mark: u8,
}

/// A number below `below` that is the same in each run for the same `state`.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn load(index: usize, resource: &Resource, to: &SyncSender<Handed>) -> Result<()> {
    let stream = Stream::create()?;
    let mut state = index as u64 + 1;
    for batch in 0..BATCHES {
        // Most batches are full, some are the short end of a file.
        let rows = if random(&mut state, 5) == 0 { 4_000 + random(&mut state, 160_000) } else { 250_000 } as usize;
        let mark = (batch % 251) as u8;
        let mut columns = Vec::new();
        for width in [8, 4] {
            columns.push(DeviceBuffer::from_host_in(&vec![mark; rows * width], &stream, resource)?);
        }
        let mut validity = DeviceBuffer::new_in(rows.div_ceil(8), &stream, resource)?;
        validity.fill(mark, &stream)?;
        columns.push(validity);
        if to.send(Handed { columns, stream: stream.clone(), mark }).is_err() {
            break;
        }
    }
    stream.synchronize()
}

fn join(resource: &Resource, from: &Receiver<Handed>, to: &SyncSender<Handed>) -> Result<()> {
    let (api, stream) = (tenure::api()?, Stream::create()?);
    let mut state = 99;
    let mut open = true;
    while open {
        let count = 1 + random(&mut state, 6) as usize;
        let batches: Vec<_> = from.iter().take(count).collect();
        open = batches.len() == count;
        let Some(first) = batches.first() else { break };
        let mark = first.mark;
        for batch in &batches {
            stream.wait(&batch.stream)?;
        }
        // What the sorting of the keys needs.
        let keys: usize = batches.iter().map(|batch| batch.columns[0].len()).sum();
        let scratch = DeviceBuffer::new_in(keys * 2, &stream, resource)?;
        let mut table = Vec::new();
        for column in 0..first.columns.len() {
            let bytes = batches.iter().map(|batch| batch.columns[column].len()).sum();
            let mut joined = DeviceBuffer::new_in(bytes, &stream, resource)?;
            joined.fill(mark, &stream)?;
            let mut at = 0;
            for part in batches.iter().map(|batch| &batch.columns[column]) {
                // SAFETY: both are alive until the copy is done, for they are freed in the order of this stream or of one
                // that waits for it; the ranges are theirs.
                let status =
                    unsafe { (api.copy_async)(joined.ptr().byte_add(at), part.ptr(), part.len(), raw(&stream)) };
                check(api, status)?;
                at += part.len();
            }
            table.push(joined);
        }
        for batch in batches {
            for column in batch.columns {
                column.close_on(&stream)?;
            }
        }
        drop(scratch);
        if to.send(Handed { columns: table, stream: stream.clone(), mark }).is_err() {
            break;
        }
    }
    stream.synchronize()
}

/// A stream as the C ABI takes it, by its value; it is alive during the call.
fn raw(stream: &Stream) -> tenure::abi::tenure_stream {
    tenure::abi::tenure_stream { raw: stream.raw(), object: 0 }
}

fn write(from: &Receiver<Handed>) -> Result<u64> {
    let stream = Stream::create()?;
    let mut wrong = 0;
    for table in from {
        stream.wait(&table.stream)?;
        for column in table.columns {
            let mut host = vec![0; column.len()];
            column.copy_to_host(&mut host, &stream)?;
            stream.synchronize()?;
            wrong += u64::from(host.first() != Some(&table.mark));
            column.close_on(&stream)?;
        }
    }
    Ok(wrong)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: pipeline LOG.csv")?;
    let mut file = BufWriter::new(std::fs::File::create(&path)?);
    writeln!(file, "Thread,Time,Action,Pointer,Size,Stream")?;
    let log = Arc::new(Mutex::new(file));
    let upstream = Pool::builder(&Device::current()?).build()?.into();
    let resource = Resource::from_callbacks(Recorded { upstream, log: Arc::clone(&log) })?;

    let (batches, to_join) = sync_channel(WAITING);
    let (tables, to_write) = sync_channel(2);
    let wrong = std::thread::scope(|scope| -> Result<u64> {
        let resource = &resource;
        let mut threads = Vec::new();
        for index in 0..LOADERS {
            let batches = batches.clone();
            threads.push(scope.spawn(move || load(index, resource, &batches)));
        }
        drop(batches);
        threads.push(scope.spawn(move || join(resource, &to_join, &tables)));
        let writer = scope.spawn(move || write(&to_write));
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    drop(resource);
    log.lock().unwrap_or_else(|e| e.into_inner()).flush()?;
    let text = std::fs::read_to_string(&path)?;
    writeln!(std::io::stdout(), "{path}: {} events; {wrong} columns were wrong", text.lines().count() - 1)?;
    if wrong == 0 { Ok(()) } else { Err("a column came back with other bytes".into()) }
}
