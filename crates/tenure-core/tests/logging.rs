//! The log: what its rows say, that it is good CSV at every moment, and that it can be replayed.
//!
//! Unsafe in this file: forks and kills of processes of its own.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tenure_core::adaptor::{Limiting, Logging, logging};
use tenure_core::error::{Error, Result};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Block, DEFAULT_ALIGNMENT, Info, MemoryResource, Properties, Request, Resource};
use tenure_core::stream::{StreamObject, StreamRef};
use tenure_core::trace::{Action, Log, Options, replay};

const S: StreamRef<'static> = StreamRef::DEFAULT;
const A: usize = DEFAULT_ALIGNMENT;

fn sim() {
    tenure_driver::load::prefer_sim().expect("the simulated device");
}

/// A folder of a test's own, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tenure-logging-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn logging(upstream: Resource, name: &Path) -> Resource {
    Resource::new(Logging::new(upstream, name).expect("a log")).expect("a resource")
}

fn flush(log: &Resource) {
    log.downcast::<Logging>().expect("a log").flush().expect("flushed");
}

fn pool() -> Resource {
    sim();
    let upstream = shared::cuda().expect("the plain resource");
    Resource::new(Pool::new(upstream, 0, PoolOptions::default()).expect("a pool")).expect("a resource")
}

/// Reads CSV as a strict reader does: a quote opens a field only at its start, and closes it only at its end.
fn strict(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut rows = Vec::new();
    let mut rest = text;
    let mut row = Vec::new();
    while !rest.is_empty() {
        let (field, after) = if let Some(quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            let mut inside = quoted;
            loop {
                let at = inside.find('"').ok_or_else(|| format!("the text ends inside the field {field:?}"))?;
                field.push_str(&inside[..at]);
                inside = &inside[at + 1..];
                let Some(more) = inside.strip_prefix('"') else { break };
                field.push('"');
                inside = more;
            }
            (field, inside)
        } else {
            let end = rest.find([',', '\n']).unwrap_or(rest.len());
            (rest[..end].to_owned(), &rest[end..])
        };
        row.push(field);
        match after.chars().next() {
            Some(',') => rest = &after[1..],
            None | Some('\n') => {
                rest = after.get(1..).unwrap_or("");
                rows.push(std::mem::take(&mut row));
            }
            Some(other) => return Err(format!("{other:?} follows a quoted field in row {}", rows.len())),
        }
    }
    Ok(rows)
}

/// The rows of a log by the names of their columns, each complete.
fn rows(path: &Path) -> Vec<HashMap<&'static str, String>> {
    let text = fs::read_to_string(path).expect("the log");
    let all = strict(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(all[0].iter().map(|name| name.trim()).collect::<Vec<_>>(), logging::COLUMNS);
    let row = |row: Vec<String>| {
        assert_eq!(row.len(), logging::COLUMNS.len(), "{row:?}");
        logging::COLUMNS.into_iter().zip(row).collect()
    };
    all.into_iter().skip(1).map(row).collect()
}

/// What a row says happened: action, bytes, outcome.
fn said(row: &HashMap<&'static str, String>) -> (String, u64, String) {
    (row["Action"].clone(), row["Size"].parse().expect("bytes"), row["Outcome"].clone())
}

#[test]
fn rows_say_what_happened() {
    let folder = Folder::new();
    let name = folder.file("log, with comma.csv");
    let limited = Resource::new(Limiting::new(pool(), 1 << 20)).expect("a resource");
    let log = logging(limited, &name);
    let (a, b) = (StreamObject::create(0, true).expect("a stream"), StreamObject::create(0, true).expect("a stream"));
    let on = |stream: &Arc<StreamObject>| StreamRef { raw: stream.raw(), ..S };
    let object = StreamRef { raw: a.raw(), object: Some(&a), stored: false };
    let first = log.allocate(1000, A, object).expect("memory");
    let second = log.allocate(2000, A, on(&b)).expect("memory");
    assert!(log.allocate(2 << 20, A, S).is_err());
    assert!(log.deallocate(second, 200_000, A, S).is_err(), "another size");
    log.deallocate(second, 2000, A, S).expect("freed");
    log.deallocate(first, 1000, A, object).expect("freed");
    flush(&log);

    let rows = rows(&name);
    let all: Vec<_> = rows.iter().map(said).collect();
    let ok = |action: &str, bytes| (action.to_owned(), bytes, "ok".to_owned());
    let bad = |action: &str, bytes, outcome: &str| (action.to_owned(), bytes, outcome.to_owned());
    assert_eq!(
        all,
        [
            ok("allocate", 1000),
            ok("allocate", 2000),
            bad("allocate failure", 2 << 20, "out of memory"),
            bad("free failure", 200_000, "misuse"),
            ok("free", 2000),
            ok("free", 1000),
        ]
    );
    assert_eq!(rows[0]["Pointer"], format!("{first:#x}"));
    assert_eq!(rows[0]["Stream"], format!("{:#x}", a.raw().addr()));
    assert_eq!(rows[0]["Stream id"], a.id().to_string());
    assert!(rows[1]["Stream id"].parse::<u64>().expect("asked of the driver") > 0);
    assert_eq!((&*rows[2]["Pointer"], &*rows[2]["Stream"], &*rows[2]["Stream id"]), ("(nil)", "0", ""));
    assert!(rows.iter().all(|row| row["Device"] == "0" && row["Tag"].is_empty() && row["Date"].len() == 10));
    let times: Vec<u64> = rows.iter().map(|row| row["Nanoseconds"].parse().expect("a number")).collect();
    assert!(times.is_sorted());
}

#[test]
fn a_log_is_good_csv_without_a_flush_and_ends_well_with_one() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    assert_eq!(rows(&name).len(), 0);
    for n in 1..=2000 {
        let block = log.allocate(n, A, S).expect("memory");
        log.deallocate(block, n, A, S).expect("freed");
        if n % 97 == 0 || n < 3 {
            assert_eq!(rows(&name).len(), 2 * n);
        }
        if n % 400 == 0 {
            flush(&log);
            let text = fs::read_to_string(&name).expect("the log");
            assert!(text.ends_with(",ok,\"\"\n"), "{:?}", &text[text.len() - 40..]);
            assert_eq!(rows(&name).len(), 2 * n);
            flush(&log);
            assert_eq!(fs::read_to_string(&name).expect("the log"), text, "a second flush changes nothing");
        }
    }
    drop(log);
    assert!(fs::read_to_string(&name).expect("the log").ends_with(",ok,\"\"\n"), "the last one out ends the file");
}

/// Hands out numbers, and refuses the free of 666 bytes; others log between the row of that free and its end.
struct Stubborn {
    next: AtomicU64,
    during: Arc<Mutex<Vec<Resource>>>,
}

impl MemoryResource for Stubborn {
    fn kind(&self) -> &'static str {
        "stubborn"
    }

    fn allocate(&self, request: &Request, _stream: StreamRef<'_>) -> Result<u64> {
        Ok(self.next.fetch_add((request.bytes as u64).next_multiple_of(256), Ordering::SeqCst))
    }

    fn deallocate(&self, _ptr: u64, request: &Request, _stream: StreamRef<'_>) -> Result<()> {
        if request.bytes != 666 {
            return Ok(());
        }
        let other = self.during.lock().expect("not poisoned").pop();
        if let Some(log) = other {
            log.allocate(1, A, S).expect("a number");
        }
        Err(Error::Internal("told to refuse".into()))
    }

    fn device(&self) -> Option<i32> {
        Some(0)
    }

    fn properties(&self) -> Properties {
        Properties::default()
    }

    fn find(&self, _ptr: u64) -> Option<Block> {
        None
    }

    fn info(&self) -> Info {
        Info::default()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn a_free_that_did_not_happen_leaves_no_row() {
    sim();
    for others in [0, 1] {
        for flushes in [false, true] {
            let folder = Folder::new();
            let name = folder.file("log.csv");
            let during = Arc::new(Mutex::new(Vec::new()));
            let body = Stubborn { next: AtomicU64::new(1 << 40), during: during.clone() };
            let log = logging(Resource::new(body).expect("a resource"), &name);
            let block = log.allocate(666, A, S).expect("a number");
            for round in 0..3 {
                for _ in 0..others {
                    during.lock().expect("not poisoned").push(log.clone());
                }
                assert!(log.deallocate(block, 666, A, S).is_err());
                if flushes {
                    flush(&log);
                }
                let actions: Vec<_> = rows(&name).iter().map(|row| row["Action"].clone()).collect();
                assert_eq!(actions.len(), 1 + (1 + others) * (round + 1), "{actions:?}");
                assert!(!actions.contains(&"free".to_owned()), "{actions:?}");
            }
            let other = log.allocate(5, A, S).expect("a number");
            log.deallocate(other, 5, A, S).expect("freed");
            assert_eq!(rows(&name).last().expect("rows")["Action"], "free");
        }
    }
}

#[test]
fn two_adaptors_share_a_file_and_the_next_one_empties_it() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let first = logging(pool(), &name);
    let block = first.allocate(100, A, S).expect("memory");
    let link = folder.file("link.csv");
    std::os::unix::fs::symlink(&name, &link).expect("a link");
    let second = logging(pool(), &link);
    let other = second.allocate(200, A, S).expect("memory");
    first.deallocate(block, 100, A, S).expect("freed");
    second.deallocate(other, 200, A, S).expect("freed");
    assert_eq!(rows(&name).len(), 4, "one file, whatever it is called");
    drop((first, second));
    let third = logging(pool(), &name);
    assert_eq!(rows(&name).len(), 0);
    drop(third);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_and_not_made() {
    let folder = Folder::new();
    let refuse = |name: &Path, why: &str| {
        let error = Logging::new(pool(), name).expect_err("refused").to_string();
        assert!(error.contains(why) && error.contains(&*name.to_string_lossy()), "{error}");
    };
    refuse(&folder.file("no/such/folder.csv"), "its folder does not exist");
    assert!(!folder.file("no").exists());
    refuse(&folder.0, "it is a directory");
    refuse(Path::new("/dev/null"), "no regular file");
    assert!(Path::new("/dev/null").exists());
    refuse(&folder.file(&"x".repeat(300)), "choose another file");
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        let locked = folder.file("locked");
        fs::create_dir(&locked).expect("a folder");
        let mut mode = fs::metadata(&locked).expect("there").permissions();
        mode.set_readonly(true);
        fs::set_permissions(&locked, mode).expect("set");
        refuse(&locked.join("a.csv"), "may not write there");
    }
    assert_eq!(
        fs::read_dir(&folder.0).expect("there").filter(|e| e.as_ref().is_ok_and(|e| e.path().is_file())).count(),
        0
    );
}

/// A random program on several threads: what each does is its own, the addresses are everybody's.
fn program(log: &Resource, threads: usize, calls: usize) {
    std::thread::scope(|scope| {
        for t in 0..threads {
            scope.spawn(move || {
                let stream = StreamObject::create(0, true).expect("a stream");
                let stream = StreamRef { raw: stream.raw(), object: Some(&stream), stored: false };
                let mut state = t as u64 * 7919 + 1;
                let mut live = Vec::new();
                for _ in 0..calls {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let random = state >> 33;
                    if live.len() > 30 || (!live.is_empty() && random.is_multiple_of(2)) {
                        let (ptr, bytes) = live.swap_remove(random as usize / 2 % live.len());
                        log.deallocate(ptr, bytes, A, stream).expect("freed");
                    } else {
                        let bytes = random as usize % 40_000 + 1;
                        live.push((log.allocate(bytes, A, stream).expect("memory"), bytes));
                    }
                }
                for (ptr, bytes) in live {
                    log.deallocate(ptr, bytes, A, stream).expect("freed");
                }
            });
        }
    });
}

#[test]
fn the_rows_of_each_address_alternate_whatever_the_threads_do() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    program(&log, 4, 5000);
    let read = Log::open(&name).expect("a log");
    assert_eq!(read.rows, rows(&name).len() as u64);
    assert!(read.rows >= 20_000);
    let wrong = (read.overlapping, read.unknown_frees, read.size_mismatches, read.left_live, read.failures);
    assert_eq!(wrong, (0, 0, 0, 0, 0), "an address had two owners, or none");
    assert_eq!((read.threads, read.streams.len()), (4, 4));
    assert!(read.duration_us.is_some());
}

#[test]
fn a_logged_program_replays_to_the_same_log() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    program(&log, 2, 1500);
    assert!(log.allocate(1 << 55, A, S).is_err());
    flush(&log);
    let read = Log::open(&name).expect("a log");
    for target in ["pool", "async", "cuda"] {
        let report = replay(&read, &Options::new(target).expect("a target"), &mut |_, _| true).expect("replayed");
        assert_eq!((report.failed_events, report.failures_in_log, report.events), (0, 1, read.rows), "{target}");
        assert_eq!(report.peak_live_bytes, read.peak_live_bytes);
    }
    // Once more through a log: the same calls come out.
    let again = folder.file("again.csv");
    let second = logging(pool(), &again);
    let mut slots = HashMap::new();
    for event in &read.events {
        match event.action {
            Action::Allocate => {
                slots.insert(event.slot, second.allocate(event.bytes as usize, A, S).expect("memory"));
            }
            Action::Free => {
                let ptr = slots.remove(&event.slot).expect("live");
                second.deallocate(ptr, event.bytes as usize, A, S).expect("freed");
            }
            Action::Failure => assert!(second.allocate(event.bytes as usize, A, S).is_err()),
        }
    }
    let echo = Log::open(&again).expect("a log");
    let plain = |log: &Log| log.events.iter().map(|e| (e.action, e.bytes, e.slot)).collect::<Vec<_>>();
    assert_eq!(plain(&echo), plain(&read));
}

#[test]
fn a_file_that_somebody_else_empties_is_begun_anew() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    let pairs = |n: usize| {
        for _ in 0..n {
            let block = log.allocate(100, A, S).expect("memory");
            log.deallocate(block, 100, A, S).expect("freed");
        }
    };
    for kept in [0, 1, 100, 5000, 50_000] {
        pairs(400);
        let file = fs::OpenOptions::new().write(true).open(&name).expect("the log");
        file.set_len(kept).expect("shortened");
        pairs(2000);
        let rows = rows(&name);
        assert!(rows.len() >= 3000 && rows.last().expect("rows")["Action"] == "free", "{kept}: {}", rows.len());
    }
    fs::remove_file(&name).expect("removed");
    pairs(2000);
}

#[test]
fn the_tag_of_the_thread_is_in_its_rows() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    let outer = tenure_core::observe::Tag::open("the \"loader\", part 1").expect("a tag");
    let inner = tenure_core::observe::Tag::open("inner").expect("a tag");
    let block = log.allocate(100, A, S).expect("memory");
    drop(inner);
    log.deallocate(block, 100, A, S).expect("freed");
    drop(outer);
    let block = log.allocate(100, A, S).expect("memory");
    flush(&log);
    let tags: Vec<_> = rows(&name).iter().map(|row| row["Tag"].clone()).collect();
    assert_eq!(tags, ["inner", "the \"loader\", part 1", ""]);
    log.deallocate(block, 100, A, S).expect("freed");
}

/// Runs `child` in a forked process, which may allocate nothing before it ends and never returns from here.
fn forked(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child calls only what is meant to be called in a forked child, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            child();
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        child => child,
    }
}

fn end_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_forked_child_leaves_the_log_alone() {
    let folder = Folder::new();
    let name = folder.file("log.csv");
    let log = logging(pool(), &name);
    let block = log.allocate(100, A, S).expect("memory");
    let before = fs::read(&name).expect("the log");
    let status = end_of(forked(|| {
        assert!(log.allocate(100, A, S).is_err());
        let _ = log.deallocate(block, 100, A, S);
        // The engine's own way down, past the door that refuses the call.
        let request = Request { bytes: 100, align: A, owner: log.id(), flags: 0 };
        let _ = log.body().deallocate(block, &request, S);
        let _ = log.downcast::<Logging>().map(Logging::flush);
        logging::finish_all();
    }));
    assert_eq!(status, 0);
    assert!(fs::read(&name).expect("the log") == before);
    log.deallocate(block, 100, A, S).expect("freed");
    assert_eq!(rows(&name).len(), 2);
}

/// This very program, told to do nothing but log until somebody ends it.
#[test]
#[ignore = "the child of the test below"]
#[allow(clippy::print_stdout, reason = "it tells its parent")]
fn log_until_killed() {
    let Some(name) = std::env::var_os("TENURE_TEST_LOG") else { return };
    let log = logging(pool(), Path::new(&name));
    let calls = AtomicU64::new(0);
    println!("started");
    loop {
        program(&log, 2, 10_000);
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_process_leaves_whole_rows_up_to_the_last() {
    use std::io::BufRead as _;
    let folder = Folder::new();
    let program = std::env::current_exe().expect("this program");
    for round in 0..16 {
        let name = folder.file(&format!("log{round}.csv"));
        let mut child = std::process::Command::new(&program)
            .args(["--exact", "log_until_killed", "--ignored", "--nocapture"])
            .env("TENURE_TEST_LOG", &name)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        while lines.next().expect("it starts").expect("text") != "started" {}
        // The file may be long before there is much in it.
        let lines_of = |file: Vec<u8>| file.iter().filter(|byte| **byte == b'\n').count();
        while fs::read(&name).map_or(0, lines_of) < 20 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(500 + 371 * round));
        if round == 0 {
            let error = Logging::new(pool(), &name).expect_err("another process writes it").to_string();
            assert!(error.contains("another process is writing it"), "{error}");
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        let rows = rows(&name);
        let read = Log::open(&name).expect("a log");
        assert_eq!(read.rows, rows.len() as u64);
        assert_eq!((read.overlapping, read.unknown_frees, read.size_mismatches), (0, 0, 0));
        assert!(read.rows > 10, "{}", read.rows);
    }
}
