//! What a profiler or a memory checker hears of tenure.
//!
//! A tool is looked for once per process, so that each scene runs in a process of its own: this test program again, with
//! the one test [`scene`] and an environment that names a tool of our own (`tools/recorder.c`), which writes down what it
//! is told.

#![allow(missing_docs)]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[path = "pool_common.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use tenure_core::buffer::Buffer;
use tenure_core::error::Error;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::shared;
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_core::tools;
use tenure_driver::nvtx;

const LEGACY: StreamRef<'static> = StreamRef::DEFAULT;

// ------------------------------------------------------------------------------------------------- inside the process

/// What the recorder wrote, read piece by piece.
struct Record {
    path: PathBuf,
    read: usize,
}

impl Record {
    fn new() -> Self {
        Self { path: std::env::var_os("RECORD").expect("RECORD").into(), read: 0 }
    }

    fn all(&self) -> Vec<String> {
        std::fs::read_to_string(&self.path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The lines that came since the last call.
    fn news(&mut self) -> Vec<String> {
        let all = self.all();
        let news = all[self.read..].to_vec();
        self.read = all.len();
        news
    }
}

fn pool_resource(options: PoolOptions) -> Resource {
    resource(pool(options))
}

fn as_pool(resource: &Resource) -> &Pool {
    resource.downcast().expect("a pool")
}

/// A recorded heap or region: its numbers.
fn numbers(line: &str, word: &str) -> Option<Vec<u64>> {
    let mut words = line.split(' ');
    (words.next() == Some(word)).then(|| {
        words
            .map(|w| match w.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => w.parse().unwrap(),
            })
            .collect()
    })
}

/// Replays a record as a checker would: ranges in pairs, heaps apart from each other, regions inside their heap and apart
/// from each other, nothing ended twice. Gives what is left at the end: heaps and regions.
fn replay(lines: &[String]) -> (BTreeMap<u64, u64>, BTreeMap<u64, u64>) {
    let (mut heaps, mut regions, mut open) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new(), 0i64);
    let free = |map: &BTreeMap<u64, u64>, at: u64, bytes: u64| {
        map.range(..at + bytes).next_back().is_none_or(|(other, length)| other + length <= at)
    };
    for line in lines {
        if line.starts_with("wrong") {
            panic!("{line}");
        } else if line.starts_with("push") {
            open += 1;
        } else if line.starts_with("pop") {
            open -= 1;
            assert!(open >= 0, "a range ended that had not begun");
        } else if let Some(n) = numbers(line, "heap") {
            assert!(free(&heaps, n[0], n[1]), "{line}: overlaps a heap");
            heaps.insert(n[0], n[1]);
        } else if let Some(n) = numbers(line, "noheap") {
            let bytes = heaps.remove(&n[0]).unwrap_or_else(|| panic!("{line}: is no heap"));
            regions.retain(|at, _| *at < n[0] || *at >= n[0] + bytes);
        } else if let Some(n) = numbers(line, "region") {
            let heap = heaps.get(&n[0]).unwrap_or_else(|| panic!("{line}: is in no heap"));
            assert!(n[1] >= n[0] && n[1] + n[2] <= n[0] + heap, "{line}: runs out of its heap");
            assert!(free(&regions, n[1], n[2]), "{line}: overlaps a region");
            regions.insert(n[1], n[2]);
        } else if let Some(n) = numbers(line, "noregion") {
            assert!(regions.remove(&n[0]).is_some(), "{line}: is no region");
        }
    }
    assert_eq!(open, 0, "ranges without an end");
    (heaps, regions)
}

#[test]
#[ignore = "started by the other tests, with an environment of their making"]
fn scene() {
    let _machine = machine();
    let record = Record::new();
    match std::env::var("SCENE").unwrap_or_default().as_str() {
        "story" => story(record),
        "ranges" => ranges_only(record),
        "memory" => memory_only(record),
        "storm" => storm(&record),
        "nested" => nested(record),
        "fork" => fork(record),
        "no heaps" => no_heaps(&record),
        "off" => off(&record),
        other => panic!("no scene {other:?}"),
    }
}

fn story(mut record: Record) {
    assert!(!nvtx::attached() && record.news().is_empty(), "nothing is looked for before a resource is made");
    let resource = pool_resource(PoolOptions::default());
    assert!(nvtx::attached() && nvtx::memory::attached());
    assert!(!as_pool(&resource).has_own_ranges(), "plain pieces, which checkers take");
    assert_eq!(
        record.news(),
        ["opened", "initialise", "domain tenure", "string tenure allocate", "string tenure deallocate", "extension 1"]
    );

    // The first block: a heap, and a region of exactly the size asked for.
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    let news = record.news();
    let heap = numbers(&news[1], "heap").unwrap();
    assert_eq!(heap[1], 2 * MIB);
    assert_eq!(
        news,
        [
            "push tenure allocate 1000".to_owned(),
            format!("heap {:#x} {}", heap[0], heap[1]),
            format!("region {:#x} {a:#x} 1000", heap[0]),
            "pop tenure".to_owned()
        ]
    );
    // The second lies in the same heap.
    let b = resource.allocate(63, 256, LEGACY).unwrap();
    assert_eq!(record.news(), ["push tenure allocate 63", &format!("region {:#x} {b:#x} 63", heap[0]), "pop tenure"]);
    // A free that is refused leaves the block as it was.
    assert!(resource.deallocate(b, 300, 256, LEGACY).is_err());
    assert_eq!(
        record.news(),
        [
            "push tenure deallocate 300",
            &format!("noregion {b:#x}"),
            &format!("region {:#x} {b:#x} 63", heap[0]),
            "pop tenure"
        ]
    );
    assert!(resource.deallocate(b + 256, 63, 256, LEGACY).is_err());
    assert_eq!(record.news(), ["push tenure deallocate 63", "pop tenure"]);
    resource.deallocate(b, 63, 256, LEGACY).unwrap();
    let ended = ["push tenure deallocate 63".to_owned(), format!("noregion {b:#x}"), "pop tenure".to_owned()];
    assert_eq!(record.news(), ended);
    assert!(matches!(resource.deallocate(b, 63, 256, LEGACY), Err(Error::Misuse(_))));
    assert_eq!(record.news(), ["push tenure deallocate 63", "pop tenure"], "no region comes of a double free");

    // Many in one call: one range, and a region for each; a wrong free among them leaves its region.
    let mut many = [0; 3];
    resource.allocate_many(&[100, 0, 7], 256, LEGACY, &mut many).unwrap();
    let region = |ptr: u64, bytes: u64| format!("region {:#x} {ptr:#x} {bytes}", heap[0]);
    assert_eq!(record.news(), ["push tenure allocate 107", &region(many[0], 100), &region(many[2], 7), "pop tenure"]);
    assert!(resource.deallocate_many(&many, &[100, 0, 300], 256, LEGACY).is_err());
    let no = |ptr: u64| format!("noregion {ptr:#x}");
    assert_eq!(
        record.news(),
        ["push tenure deallocate 400", &no(many[0]), &no(many[2]), &region(many[2], 7), "pop tenure"]
    );
    resource.deallocate_many(&many[2..], &[7], 256, LEGACY).unwrap();
    assert_eq!(record.news(), ["push tenure deallocate 7", &no(many[2]), "pop tenure"]);

    // A block is no region any more before it is free.
    let (e, bytes) = (resource.allocate(10, 256, LEGACY).unwrap(), 10);
    record.news();
    let refused = tools::heaps::freed(e, || {
        assert_eq!(record.news(), [format!("noregion {e:#x}")]);
        Err(Error::WouldBlock)
    });
    assert!(matches!(refused, Err(Error::WouldBlock)));
    assert_eq!(record.news(), [format!("region {:#x} {e:#x} {bytes}", heap[0])]);
    resource.deallocate(e, bytes, 256, LEGACY).unwrap();
    record.news();

    // What may not wait tells nobody, and so does nothing.
    assert!(matches!(resource.try_allocate(63, 256, LEGACY), Err(Error::WouldBlock)));
    assert!(matches!(resource.try_deallocate(a, 1000, 256, LEGACY), Err(Error::WouldBlock)));
    let home = || StreamHold::object(StreamObject::create(0, true).unwrap());
    assert!(matches!(Buffer::try_create(10, 256, home(), resource.light()), Err(Error::WouldBlock)));
    assert_eq!(record.news(), Vec::<String>::new());

    // Nothing is said of 0 bytes.
    assert_eq!(resource.allocate(0, 256, LEGACY).unwrap(), 0);
    resource.deallocate(0, 0, 256, LEGACY).unwrap();
    assert_eq!(record.news(), Vec::<String>::new());

    // Buffers.
    let mut buffer = Buffer::create(5000, 256, home(), resource.light()).unwrap();
    let ptr = buffer.ptr();
    assert_eq!(
        record.news(),
        ["push tenure allocate 5000", &format!("region {:#x} {ptr:#x} 5000", heap[0]), "pop tenure"]
    );
    assert!(matches!(buffer.try_close(), Err(Error::WouldBlock)));
    assert_eq!(record.news(), Vec::<String>::new());
    drop(buffer);
    assert_eq!(record.news(), ["push tenure deallocate 5000", &format!("noregion {ptr:#x}"), "pop tenure"]);

    // Memory without stream order, of the plain resource too.
    let plain = shared::cuda().unwrap();
    let c = plain.allocate_sync(4096, 256).unwrap();
    plain.deallocate_sync(c, 4096, 256).unwrap();
    assert_eq!(record.news(), ["push tenure allocate 4096", "pop tenure", "push tenure deallocate 4096", "pop tenure"]);

    // What goes back to the driver is no heap any more.
    let d = resource.allocate(8 << 20, 256, LEGACY).unwrap();
    resource.deallocate(d, 8 << 20, 256, LEGACY).unwrap();
    record.news();
    assert!(as_pool(&resource).info_bytes() > 8 * MIB);
    resource.body().trim(0).unwrap();
    let news = record.news();
    assert_eq!(news, [format!("noheap {d:#x}")]);

    // A pool that ends with a live block takes its heap along.
    let (heaps, regions) = replay(&record.all());
    assert_eq!((heaps.len(), regions.into_iter().collect::<Vec<_>>()), (1, vec![(a, 1000)]));
    assert_eq!(tools::heaps::count(), (1, 1));
    resource.deallocate(a, 1000, 256, LEGACY).unwrap();
    let leaked = pool(PoolOptions::default());
    let ptr = allocate(&leaked, 100, LEGACY).unwrap();
    drop(leaked);
    assert!(!record.news().contains(&format!("noregion {ptr:#x}")), "the heap's end is the region's");
    drop(resource);
    let left = replay(&record.all());
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
    assert_eq!(tools::heaps::count(), (0, 0));
}

trait Bytes {
    fn info_bytes(&self) -> u64;
}

impl Bytes for Pool {
    fn info_bytes(&self) -> u64 {
        use tenure_core::resource::MemoryResource;
        self.info().reserved_bytes
    }
}

fn ranges_only(mut record: Record) {
    let resource = pool_resource(PoolOptions::default());
    assert!(nvtx::attached() && !nvtx::memory::attached());
    assert!(as_pool(&resource).has_own_ranges(), "nobody checks memory");
    record.news();
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    resource.deallocate(a, 1000, 256, LEGACY).unwrap();
    drop(resource);
    assert_eq!(record.news(), ["push tenure allocate 1000", "pop tenure", "push tenure deallocate 1000", "pop tenure"]);
    replay(&record.all());
}

fn memory_only(mut record: Record) {
    let resource = pool_resource(PoolOptions::default());
    assert!(nvtx::attached() && nvtx::memory::attached());
    assert_eq!(record.news(), ["opened", "extension 1"]);
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    let news = record.news();
    assert_eq!(news.len(), 2, "{news:?}");
    resource.deallocate(a, 1000, 256, LEGACY).unwrap();
    drop(resource);
    let left = replay(&record.all());
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
}

/// Many threads, sizes and streams; the record must make sense at each step.
fn storm(record: &Record) {
    let resource = pool_resource(PoolOptions::default().initial_bytes(4 * MIB));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let resource = &resource;
            scope.spawn(move || {
                let stream = StreamObject::create(0, true).unwrap();
                let mut live: Vec<(u64, usize)> = Vec::new();
                let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread + 1);
                for _ in 0..300 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    if live.len() > 12 || (random & 1 == 0 && !live.is_empty()) {
                        let (ptr, bytes) = live.swap_remove(random as usize / 2 % live.len());
                        resource.deallocate(ptr, bytes, 256, object(&stream)).unwrap();
                    } else {
                        let bytes = 1 + (random as usize / 2) % if random & 0x100 == 0 { 3000 } else { 1 << 20 };
                        live.push((resource.allocate(bytes, 256, object(&stream)).unwrap(), bytes));
                    }
                    if random.is_multiple_of(64) {
                        resource.body().trim(0).unwrap();
                    }
                }
                for (ptr, bytes) in live {
                    resource.deallocate(ptr, bytes, 256, object(&stream)).unwrap();
                }
                as_pool(resource).check().unwrap();
            });
        }
    });
    let lines = record.all();
    let (heaps, regions) = replay(&lines);
    assert!(!heaps.is_empty() && regions.is_empty(), "{heaps:?} {regions:?}");
    assert_eq!(lines.iter().filter(|l| l.starts_with("push")).count(), 1200 + 1200 - calls_less(&lines));
    drop(resource);
    let left = replay(&record.all());
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
}

/// How many calls fewer than the most that a storm can make: allocations and frees are as many as each other.
fn calls_less(lines: &[String]) -> usize {
    let allocations = lines.iter().filter(|l| l.starts_with("push tenure allocate")).count();
    let frees = lines.iter().filter(|l| l.starts_with("push tenure deallocate")).count();
    assert_eq!(allocations, frees);
    2400 - allocations - frees
}

/// A pool over a pool: the blocks of the upper one are regions of the lower one's heap.
fn nested(mut record: Record) {
    let lower = pool_resource(PoolOptions::default());
    let upper = resource(Pool::new(lower.clone(), 0, PoolOptions::default()).unwrap());
    record.news();
    let a = upper.allocate(1000, 256, LEGACY).unwrap();
    let news = record.news();
    let (heaps, regions) = replay(&record.all());
    assert_eq!(heaps.len(), 1, "{news:?}");
    assert_eq!(regions.into_iter().collect::<Vec<_>>(), [(a, 1000)], "the piece itself may not be touched");
    let b = lower.allocate(700, 256, LEGACY).unwrap();
    upper.deallocate(a, 1000, 256, LEGACY).unwrap();
    let kept = upper.allocate(50, 256, LEGACY).unwrap();
    assert_eq!(replay(&record.all()).1.len(), 2);
    let _ = kept;
    drop(upper);
    lower.deallocate(b, 700, 256, LEGACY).unwrap();
    assert_eq!(tools::heaps::count().1, 1, "the upper pool lives as long as its block");
    let upper = tenure_core::resource::registry::owner_of(kept).expect("an owner").0;
    upper.deallocate(kept, 50, 256, LEGACY).unwrap();
    drop(upper);
    drop(lower);
    let left = replay(&record.all());
    assert!(left.0.is_empty() && left.1.is_empty(), "{left:?}");
}

/// A forked child calls no tool: it is the parent's.
fn fork(mut record: Record) {
    let resource = pool_resource(PoolOptions::default());
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    record.news();
    // SAFETY: the child calls into tenure, which takes no lock there, and ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let bad = resource.deallocate(a, 1000, 256, LEGACY).is_err() || resource.allocate(1, 256, LEGACY).is_ok();
            drop(resource);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(i32::from(bad)) };
        }
        child => {
            assert!(child > 0);
            let mut status = -1;
            // SAFETY: the child exists and nobody else waits for it.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    assert_eq!(record.news(), Vec::<String>::new());
    resource.deallocate(a, 1000, 256, LEGACY).unwrap();
}

/// A tool that takes no heap hears of no region.
fn no_heaps(record: &Record) {
    let resource = pool_resource(PoolOptions::default());
    assert!(nvtx::memory::attached());
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    resource.deallocate(a, 1000, 256, LEGACY).unwrap();
    drop(resource);
    assert!(!record.all().iter().any(|line| line.contains("heap") || line.contains("region")));
    assert_eq!(tools::heaps::count(), (0, 0));
}

/// As if there were no tool.
fn off(record: &Record) {
    let resource = pool_resource(PoolOptions::default());
    assert!(!nvtx::attached() && !nvtx::memory::attached() && !tools::look());
    assert!(as_pool(&resource).has_own_ranges());
    // A library of no use is let go of; one that might yet have been of use stays.
    let lines = record.all();
    let count = |word: &str| lines.iter().filter(|line| *line == word).count();
    assert_eq!(count("closed"), if nvtx::memory::possible() { 0 } else { count("opened") });
    let a = resource.allocate(1000, 256, LEGACY).unwrap();
    let b = resource.try_allocate(1000, 256, LEGACY).unwrap();
    resource.try_deallocate(a, 1000, 256, LEGACY).unwrap();
    resource.deallocate(b, 1000, 256, LEGACY).unwrap();
    assert_eq!(tools::heaps::count(), (0, 0));
}

// ------------------------------------------------------------------------------------------------ outside the process

/// Builds the recorder once per set of defines; `None` where there is no C compiler.
fn recorder(defines: &[&str]) -> Option<PathBuf> {
    let name = format!("recorder-{}{}.so", std::process::id(), defines.concat());
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    static LOCK: tenure_core::sync::Mutex<()> = tenure_core::sync::Mutex::new(());
    let _one_at_a_time = LOCK.lock();
    if library.exists() {
        return Some(library);
    }
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    command
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-shared", "-fPIC", "-pthread"])
        .args(defines);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/recorder.c")).arg("-o").arg(&library);
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            println!("skipped: no C compiler ({error})");
            None
        }
    }
}

/// Runs a scene with a tool and an environment; gives what the tool heard.
fn run(scene: &str, tool: Option<&Path>, environment: &[(&str, &str)]) -> Vec<String> {
    static COUNT: tenure_core::sync::atomic::AtomicU32 = tenure_core::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, tenure_core::sync::atomic::Ordering::Relaxed);
    let record = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("record-{}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&record);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "scene", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env_remove("NVTX_INJECTION64_PATH").env("SCENE", scene).env("RECORD", &record).env("TENURE_DEVICE", "sim");
    if let Some(tool) = tool {
        command.env("NVTX_INJECTION64_PATH", tool);
    }
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let heard = std::fs::read_to_string(&record).unwrap_or_default();
    assert!(output.status.success(), "{:?}\n{said}\nthe tool heard:\n{heard}", output.status);
    assert!(said.contains("1 passed"), "the scene did not run:\n{said}");
    assert!(!heard.contains("wrong"), "{heard}");
    heard.lines().map(str::to_owned).collect()
}

#[test]
fn a_tool_hears_each_call_each_piece_and_each_block() {
    let Some(tool) = recorder(&[]) else { return };
    run("story", Some(&tool), &[]);
    run("nested", Some(&tool), &[]);
    run("fork", Some(&tool), &[]);
}

#[test]
fn threads_tell_a_story_that_makes_sense() {
    let Some(tool) = recorder(&[]) else { return };
    run("storm", Some(&tool), &[]);
}

#[test]
fn a_tool_may_want_a_part_only() {
    if let Some(tool) = recorder(&["-DNO_EXTENSION"]) {
        run("ranges", Some(&tool), &[]);
        run("ranges", Some(&tool), &[("NO_STRINGS", "1")]);
    }
    let Some(tool) = recorder(&[]) else { return };
    run("ranges", Some(&tool), &[("REFUSE", "extension")]);
    run("ranges", Some(&tool), &[("NO_SLOTS", "1")]);
    run("no heaps", Some(&tool), &[("NO_HEAPS", "1")]);
    if let Some(tool) = recorder(&["-DNO_RANGES"]) {
        run("memory", Some(&tool), &[]);
    }
}

#[test]
fn without_a_tool_nothing_is_loaded() {
    assert!(run("off", None, &[]).is_empty());
    assert!(run("off", Some(Path::new("")), &[]).is_empty());
}

#[test]
fn a_tool_that_does_not_work_is_as_good_as_none() {
    assert!(run("off", Some(Path::new("/nonexistent/tool.so")), &[]).is_empty());
    assert!(run("off", Some(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))), &[]).is_empty());
    let Some(tool) = recorder(&["-DNO_EXTENSION"]) else { return };
    assert_eq!(run("off", Some(&tool), &[("REFUSE", "ranges")]), ["opened", "initialise", "closed"]);
    if let Some(tool) = recorder(&["-DNO_EXTENSION", "-DNO_RANGES"]) {
        assert_eq!(run("off", Some(&tool), &[]), ["opened", "closed"]);
    }
    if let Some(tool) = recorder(&[]) {
        let heard = run("off", Some(&tool), &[("REFUSE", "ranges extension")]);
        assert_eq!(heard, ["opened", "initialise", "extension 1", "closed"]);
    }
}
