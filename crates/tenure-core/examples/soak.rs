//! Random, longer sequences of the scenarios' steps, with random failures of driver calls, on the simulated device.
//!
//! `cargo run --release -p tenure-core --example soak -- --seconds 60 [--seed N] [--rounds N]`
//!
//! A round keeps several scenarios alive at once, makes their steps in any order, each up to three times with a
//! driver call that fails, and tears everything down in any order. After each failure everything must be as it was and the step must
//! work when it is made again; after each round the machine must be empty. Half of the rounds run the device's queues in
//! an order chosen by the seed. Every eighth round is followed by a storm: several threads, shared resources, and failures
//! that hit whoever comes. The first thing that does not hold is printed with the seed of its round, and the exit
//! code is 1.

#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

#[path = "../tests/scenario/mod.rs"]
mod scenario;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use scenario::storm::{Random, storm};
use scenario::{Failed, Picture, Scenario, Things, all, calls_of, check_kind, difference, machine};
use tenure_driver::sim;

/// A round in so many is followed by a storm of threads.
const STORM_EVERY: u64 = 8;

/// Out of memory, an invalid value, not found, not supported, not ready to be told apart, unknown.
const CODES: [i32; 5] = [2, 1, 500, 801, 999];

#[derive(Default)]
struct Tally {
    rounds: u64,
    scenarios: u64,
    steps: u64,
    armed: u64,
    struck: u64,
    refused: u64,
    absorbed: u64,
    storm_steps: u64,
    storm_refused: u64,
    calls: BTreeMap<&'static str, u64>,
}

struct Known {
    scenario: Scenario,
    calls: Vec<(&'static str, u64)>,
}

fn main() {
    let mut seconds = 60u64;
    let mut rounds = u64::MAX;
    let mut seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|v| v.parse().ok());
        match (name.as_str(), value) {
            ("--seconds", Some(v)) => seconds = v,
            ("--seed", Some(v)) => seed = v,
            ("--rounds", Some(v)) => rounds = v,
            _ => {
                eprintln!("usage: soak [--seconds N] [--seed N] [--rounds N]");
                std::process::exit(2);
            }
        }
    }
    let _machine = machine();
    println!("soak: {seconds} s on the simulated device, first seed {seed}");
    let known: Vec<Known> = all()
        .into_iter()
        .map(|scenario| {
            // Twice: the first use of anything makes calls of its own.
            let calls = calls_of(&scenario).and_then(|_| calls_of(&scenario)).unwrap_or_else(|e| {
                eprintln!("{}: {e}", scenario.name);
                std::process::exit(1);
            });
            Known { scenario, calls: calls.into_iter().collect() }
        })
        .collect();
    let mut failed = Failed::default();
    let mut tally = Tally::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end && tally.rounds < rounds {
        let round_seed = seed.wrapping_add(tally.rounds);
        if let Err(text) = round(round_seed, &known, &mut failed, &mut tally) {
            eprintln!("soak: does not hold (--seed {round_seed} --rounds 1): {text}");
            std::process::exit(1);
        }
        if tally.rounds % STORM_EVERY == 0 {
            match storm(round_seed) {
                Ok(seen) => {
                    tally.storm_steps += seen.steps;
                    tally.storm_refused += seen.refused;
                }
                Err(text) => {
                    eprintln!("soak: does not hold (--seed {round_seed} --rounds 1): {text}");
                    std::process::exit(1);
                }
            }
            // Threads fail whom they meet, so that calls are not counted by scenario.
            failed = Failed::default();
            sim::reset_calls();
        }
        tally.rounds += 1;
    }
    println!(
        "soak: {} rounds, {} scenarios, {} steps; {} failures armed, {} struck {} kinds of call: {} refused with \
         everything as it was, {} absorbed; {} steps of threads in bad weather, {} refused; nothing was left",
        tally.rounds,
        tally.scenarios,
        tally.steps,
        tally.armed,
        tally.struck,
        tally.calls.len(),
        tally.refused,
        tally.absorbed,
        tally.storm_steps,
        tally.storm_refused
    );
}

fn round(seed: u64, known: &[Known], failed: &mut Failed, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let start = Picture::take(&Things::default(), failed);
    if random.below(2) == 0 {
        sim::schedule(random.next());
    }
    let mut kept = false;
    let mut alive: Vec<(&Known, Things, bool)> = Vec::new();
    let mut story = Vec::new();
    let mut left = 4 + random.below(9);
    while left > 0 || !alive.is_empty() {
        let choice = random.below(3);
        let told = |story: &[String], text: String| format!("{text}\n  after: {}", story.join("\n         "));
        if left > 0 && choice == 0 {
            left -= 1;
            let known = &known[random.below(known.len())];
            let things =
                (known.scenario.set_up)().map_err(|e| told(&story, format!("{}: set up: {e}", known.scenario.name)))?;
            story.push(format!("set up {}", known.scenario.name));
            tally.scenarios += 1;
            alive.push((known, things, false));
        } else if !alive.is_empty() {
            let at = random.below(alive.len());
            if alive[at].2 {
                let (known, things, _) = alive.swap_remove(at);
                things.tear_down().map_err(|e| told(&story, format!("{}: tear down: {e}", known.scenario.name)))?;
                story.push(format!("tear down {}", known.scenario.name));
            } else {
                let (known, things, done) = &mut alive[at];
                kept |= step(known, things, &mut random, failed, tally, &mut story).map_err(|e| told(&story, e))?;
                *done = true;
            }
        }
    }
    sim::run_all();
    sim::schedule_workers();
    let end = Picture::take(&Things::default(), failed);
    let (a, b) = if kept { (start.without_driver(), end.without_driver()) } else { (start.settled(), end.settled()) };
    if a == b {
        return Ok(());
    }
    Err(format!("after the round something is left:{}\n  after: {}", difference(&a, &b), story.join("\n         ")))
}

/// One step: up to three times with a failure, then, if it was refused each time, without. True when the driver keeps
/// something for good.
///
/// One failure a time: what is undone after a failure needs the driver, and a second failure there is reported and not
/// mended.
fn step(
    known: &Known,
    things: &mut Things,
    random: &mut Random,
    failed: &mut Failed,
    tally: &mut Tally,
    story: &mut Vec<String>,
) -> Result<bool, String> {
    let name = known.scenario.name;
    let mut kept = false;
    let before = Picture::take(things, failed);
    let attempts = if known.calls.is_empty() { 0 } else { random.below(4) };
    for _ in 0..attempts {
        tally.steps += 1;
        tally.armed += 1;
        let (call, count) = known.calls[random.below(known.calls.len())];
        let (index, code) = (random.next() % count, CODES[random.below(CODES.len())]);
        sim::fail_next(call, code, index).map_err(|e| e.to_string())?;
        let result = (known.scenario.step)(things);
        let struck = sim::fail_clear() == 0;
        let said = result.as_ref().map_or_else(ToString::to_string, |()| "ok".into());
        story.push(format!("step {name}, {call} #{index} -> {code}: {said}"));
        if struck {
            failed.note(call);
            *tally.calls.entry(call).or_default() += 1;
            tally.struck += 1;
            kept |= known.scenario.keeps(call);
        }
        let Err(error) = result else {
            tally.absorbed += u64::from(struck);
            return Ok(kept);
        };
        if !struck {
            return Err(format!("{name}: no call failed, and yet: {error}"));
        }
        tally.refused += 1;
        check_kind(&error, call, code).map_err(|text| format!("{name}: {text}"))?;
        let after = Picture::take(things, failed);
        let (a, b) = match () {
            () if kept => (before.without_driver().without_stores(), after.without_driver().without_stores()),
            // An earlier attempt may have been one that keeps what it has in store.
            () => (before.without_stores(), after.without_stores()),
        };
        if a != b {
            return Err(format!("{name}: {call} #{index} gave \"{error}\" and left something:{}", difference(&a, &b)));
        }
    }
    tally.steps += 1;
    (known.scenario.step)(things).map_err(|e| format!("{name}: does not work afterwards: {e}"))?;
    story.push(format!("step {name}: ok"));
    Ok(kept)
}
