//! Each driver call of each scenario fails once at each point. See [`scenario`] for what must hold.

#![allow(missing_docs, clippy::print_stdout, reason = "a test that says how much it has looked at")]

mod scenario;

use std::collections::{BTreeMap, BTreeSet};

use scenario::{CODES, Failed, MIB, Outcome, Picture, Things, all, calls_of, check_kind, difference, machine, run_one};
use tenure_core::buffer::{Buffer, resolve};
use tenure_core::error::{Error, Result};
use tenure_core::resource::leaf::shared;
use tenure_core::stream::{StreamHold, StreamObject, StreamRef};
use tenure_core::{current, misuse};
use tenure_driver::sim;

/// The kinds of call that the scenarios make together. What a process asks once, at its first use of a device, is in
/// [`first_use_may_fail_at_each_call`].
const KINDS: [&str; 41] = [
    "cuCtxGetCurrent",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventQuery",
    "cuEventRecord",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemMap",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamGetCtx",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

#[test]
fn each_call_may_fail_at_each_point() {
    let _machine = machine();
    let scenarios = all();
    let only = std::env::var("TENURE_SCENARIO").ok();
    let mut failed = Failed::default();
    let (mut runs, mut absorbed, mut missed) = (0, BTreeSet::new(), 0);
    let mut calls = BTreeMap::<&str, u64>::new();
    let mut wrong = Vec::new();
    for scenario in &scenarios {
        if only.as_ref().is_some_and(|only| !scenario.name.contains(only.as_str())) {
            continue;
        }
        // Once for what is made at the first use of anything, once to count.
        let plan = match calls_of(scenario).and_then(|_| calls_of(scenario)) {
            Ok(plan) => plan,
            Err(e) => {
                wrong.push(format!("{}: fails by itself: {e}", scenario.name));
                continue;
            }
        };
        for (call, count) in plan {
            for index in 0..count {
                for code in CODES {
                    runs += 1;
                    *calls.entry(call).or_default() += 1;
                    match run_one(scenario, call, index, code, &mut failed) {
                        Ok(Outcome::Failed) => {}
                        Ok(Outcome::Absorbed) => drop(absorbed.insert((scenario.name, call))),
                        Ok(Outcome::NotReached) => missed += 1,
                        Err(text) => wrong.push(text),
                    }
                }
            }
        }
    }
    println!(
        "{} scenarios, {runs} failures of {} kinds of call, {} absorbed, {missed} not reached",
        scenarios.len(),
        calls.len(),
        absorbed.len()
    );
    println!("{calls:?}");
    assert!(wrong.is_empty(), "{} of {runs}:\n\n{}", wrong.len(), wrong.join("\n\n"));
    if only.is_none() {
        let unmade: Vec<_> = KINDS.iter().filter(|call| !calls.contains_key(**call)).collect();
        assert!(unmade.is_empty(), "no scenario makes these calls any more: {unmade:?}");
    }
    // Work that is to be under way may have ended on a machine that has more to do.
    assert!(missed * 100 < runs, "{missed} of {runs}: the scenarios are not the same each time");
}

#[test]
fn threads_meet_failures_and_nothing_is_left() {
    let _machine = machine();
    let (mut steps, mut refused) = (0, 0);
    for seed in 1..=12 {
        let seen = scenario::storm::storm(seed).unwrap_or_else(|text| panic!("{text}"));
        steps += seen.steps;
        refused += seen.refused;
    }
    println!("{steps} steps of threads, {refused} refused");
    assert!(refused > 10, "{refused}: the weather was too fine");
}

#[test]
fn a_device_that_is_lost_says_so_everywhere() {
    // Whatever is asked of a lost device is that device's error or, for a free, done in the books; it is never out of
    // memory, which would make somebody try again.
    let _machine = machine();
    const ILLEGAL_ADDRESS: i32 = 700;
    let failed = Failed::default();
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for scenario in all() {
        let mut things = (scenario.set_up)().expect(scenario.name);
        let before = Picture::take(&things, &failed);
        for device in 0..2 {
            sim::fault(device, ILLEGAL_ADDRESS).expect("a device");
        }
        let result = (scenario.step)(&mut things);
        for device in 0..2 {
            sim::fault(device, 0).expect("a device");
        }
        match result {
            // A free of a lost device: done in the books.
            Ok(()) => {}
            Err(Error::Device(e)) if e.code == ILLEGAL_ADDRESS => {
                refused += 1;
                // No handle is counted: every call failed.
                let after = Picture::take(&things, &failed);
                let (a, b) = (before.without_driver().without_stores(), after.without_driver().without_stores());
                if a != b {
                    wrong.push(format!("{}: left something:{}", scenario.name, difference(&a, &b)));
                }
            }
            Err(e) => wrong.push(format!("{}: {e:?}", scenario.name)),
        }
        if let Err(e) = things.tear_down() {
            wrong.push(format!("{}: tear down after the fault: {e}", scenario.name));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_buffer_that_cannot_be_freed_when_it_is_dropped_is_reported_once_and_stays() {
    let _machine = machine();
    let cuda = shared::cuda().expect("plain memory");
    let home = StreamHold::object(StreamObject::create(0, true).expect("a stream"));
    let buffer = Buffer::create(MIB, 256, home, cuda.light()).expect("room");
    let (ptr, reports, references) = (buffer.ptr(), misuse::count(), cuda.references());
    let live = cuda.body().info().live_count;
    let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let heard = said.clone();
    let quiet = misuse::set_handler(Some(std::sync::Arc::new(move |line: &str| {
        heard.lock().expect("unpoisoned").push(line.to_owned());
    })));
    sim::fail_next("cuMemFree", 999, 0).expect("a call");
    drop(buffer);
    assert_eq!(sim::fail_clear(), 0);
    drop(misuse::set_handler(quiet));
    let said = said.lock().expect("unpoisoned").clone();
    assert!(said.len() == 1 && said[0].contains("cuMemFree"), "{said:?}");
    assert_eq!(misuse::count(), reports + 1);
    assert_eq!((cuda.references(), cuda.body().info().live_count), (references, live), "the block keeps what it is of");
    cuda.deallocate(ptr, MIB, 256, StreamRef::DEFAULT).expect("it is there and can still be freed");
}

/// Everything that a process does at its first use of anything.
fn first_use() -> Result<()> {
    let _ = sim::configure(sim::Config { devices: 2, memory: 64 << 20 });
    tenure_driver::load::prefer_sim().map_err(|e| Error::NoDevice(e.to_string()))?;
    let light = resolve(None, StreamRef::DEFAULT)?;
    let mut plain = Buffer::create(MIB, 0, StreamHold::raw(tenure_driver::RawStream::NULL), light)?;
    plain.close(None)?;
    let stream = StreamHold::object(StreamObject::create(1, true)?);
    let pool = scenario::pool(tenure_core::pool::PoolOptions::default())?;
    drop(current::set(0, pool)?);
    let second = resolve(None, stream.as_carried())?;
    Buffer::create(MIB, 0, stream, second)?.close(None)?;
    let managed = shared::managed()?;
    let ptr = managed.allocate(MIB, 256, StreamRef::DEFAULT)?;
    managed.deallocate(ptr, MIB, 256, StreamRef::DEFAULT)?;
    drop(current::reset(0)?);
    tenure_core::device::prove(0)
}

/// A child of `first_use_may_fail_at_each_call`: fails one call and exits with 0 when all is right.
fn child(plan: &str) {
    let mut parts = plan.split(':');
    let (Some(call), Some(index), Some(code)) = (parts.next(), parts.next(), parts.next()) else {
        // Only to list the calls.
        first_use().expect("nothing fails");
        println!("calls {:?}", sim::calls_all());
        return;
    };
    let (index, code): (u64, i32) = (index.parse().expect("a number"), code.parse().expect("a code"));
    sim::fail_next(call, code, index).expect("a call");
    let result = first_use();
    assert_eq!(sim::fail_clear(), 0, "the call was made");
    match result {
        // Absorbed: a question whose answer is asked again, a block that is made later, the end of a handle.
        Ok(()) => {}
        Err(Error::NoDevice(text)) => {
            // The answer is kept, so that every call says the same.
            assert!(text.contains(call) || text.contains(&code.to_string()), "{text}");
            let again = first_use().expect_err("kept");
            assert_eq!(again.to_string(), text);
            return;
        }
        Err(e) => {
            if let Err(text) = check_kind(&e, call, code) {
                panic!("{text}");
            }
            first_use().expect("the next time it works");
        }
    }
    let failed = Failed::default();
    let picture = Picture::take(&Things::default(), &failed);
    let text = format!("{picture:?}");
    assert!(text.contains("misuse: 0, violations: 0"), "{text}");
    assert_eq!(shared::cuda().expect("plain memory").body().info().live_count, 0);
}

#[test]
fn first_use_may_fail_at_each_call() {
    if let Ok(plan) = std::env::var("TENURE_TEST_FIRST_USE") {
        child(&plan);
        return;
    }
    let run = |plan: &str| {
        std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["first_use_may_fail_at_each_call", "--exact", "--nocapture"])
            .env("TENURE_TEST_FIRST_USE", plan)
            .output()
            .expect("a child")
    };
    let listed = run("list");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = text.lines().find(|l| l.contains("calls {")).unwrap_or_else(|| panic!("{listed:?}"));
    let calls: Vec<(String, u64)> = line
        .split(['{', '}'])
        .nth(1)
        .expect("a map")
        .split(", ")
        .map(|pair| {
            let (call, count) = pair.split_once(": ").expect("a pair");
            (call.trim_matches('"').to_owned(), count.parse().expect("a number"))
        })
        .collect();
    assert!(calls.iter().any(|(call, _)| call == "cuInit"), "{calls:?}");
    let (mut wrong, mut runs) = (Vec::new(), 0);
    for (call, count) in calls {
        // Each call at its first two times: that is where the first use is.
        for index in 0..count.min(2) {
            for code in CODES {
                runs += 1;
                let ended = run(&format!("{call}:{index}:{code}"));
                if !ended.status.success() {
                    let said =
                        String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
                    let said: Vec<_> = said.lines().skip_while(|l| !l.contains("panicked")).take(4).collect();
                    wrong.push(format!("{call} #{index} -> {code}: {}", said.join(" ")));
                }
            }
        }
    }
    println!("{runs} first uses with a failure");
    assert!(wrong.is_empty(), "{} of {runs}:\n{}", wrong.len(), wrong.join("\n"));
}
