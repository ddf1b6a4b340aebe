//! Random programs for the pool, for as long as asked; what they are and what is checked is in `tests/program/mod.rs`.
//!
//! `cargo run --release -p tenure-core --example programs -- --seconds 60 [--seed N] [--programs N] [--threads]`
//!
//! Prints how many programs and steps were checked. The first thing that does not hold is shrunk and printed as text that
//! can be pasted into a test (`tests/pool_programs.rs`); the exit code is 1 then. `--threads` runs threads at once
//! instead of in turns. One process uses one core: run one for each, with seeds that are far apart.
//!
//! The work is done in processes that end after [`SLICE`] programs: the simulated device keeps the default streams of
//! threads that have ended, and each makes the next program slower.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a program that reports"
)]

#[path = "../tests/program/mod.rs"]
mod program;

use std::process::Command;
use std::time::{Duration, Instant};

use program::crew::{Crew, enter};
use program::shrink::{edited, shrink};
use program::{Counts, DEVICE, Program, generate, text, threads};
use tenure_driver::sim;

/// What a process that runs one candidate says before how it fails.
const FAILS: &str = "fails: ";

/// Programs that one process runs.
const SLICE: u64 = 4000;

struct Options {
    seconds: u64,
    seed: u64,
    programs: u64,
    at_once: bool,
    slice: bool,
    /// One candidate of shrinking: the program of the seed, with these edits.
    edits: Option<String>,
}

fn options() -> Option<Options> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let mut options = Options { seconds: 60, seed: now, programs: u64::MAX, at_once: false, slice: false, edits: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--threads" => options.at_once = true,
            "--slice" => options.slice = true,
            "--edits" => options.edits = Some(arguments.next()?),
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            "--seed" => options.seed = arguments.next()?.parse().ok()?,
            "--programs" => options.programs = arguments.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

fn main() {
    let Some(options) = options() else {
        eprintln!("usage: programs [--seconds N] [--seed N] [--programs N] [--threads]");
        std::process::exit(2);
    };
    let start = Instant::now();
    if let Some(edits) = &options.edits {
        candidate(options.seed, edits);
        return;
    }
    if options.slice {
        let mut counts = run(&options, start);
        let numbers: Vec<String> = counts.all().into_iter().map(|(_, number)| number.to_string()).collect();
        println!("{}", numbers.join(" "));
        return;
    }
    let mut counts = Counts::default();
    while start.elapsed() < Duration::from_secs(options.seconds) && counts.programs < options.programs {
        counts.add(slice(&options, &counts, start));
    }
    let took = start.elapsed().as_secs_f64();
    let rate = counts.programs as f64 / took;
    let figures: Vec<String> = counts.all().into_iter().map(|(name, number)| format!("{number} {name}")).collect();
    println!("programs: {} in {took:.0} s ({rate:.0} a second)", figures.join(", "));
}

/// Has a process of its own run the next programs.
fn slice(options: &Options, done: &Counts, start: Instant) -> Counts {
    let programs = SLICE.min(options.programs - done.programs);
    let seconds = options.seconds.saturating_sub(start.elapsed().as_secs()).max(1);
    let seed = options.seed.wrapping_add(done.programs);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--slice", "--seconds", &seconds.to_string()]);
    command.args(["--seed", &seed.to_string(), "--programs", &programs.to_string()]);
    if options.at_once {
        command.arg("--threads");
    }
    let output = command.stderr(std::process::Stdio::inherit()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        eprintln!("programs: the process that ran the seeds from {seed} on ended with {}", output.status);
        std::process::exit(1);
    }
    let mut counts = Counts::default();
    for ((_, number), word) in counts.all().into_iter().zip(told.split_whitespace()) {
        *number = word.parse().unwrap_or(0);
    }
    if counts.programs == 0 {
        eprintln!("programs: the process that ran the seeds from {seed} on has told nothing");
        std::process::exit(1);
    }
    counts
}

/// The simulated device, and nobody else at it.
fn machine() -> (sim::TestLock, tenure_driver::Current) {
    let _ = sim::configure(sim::Config { devices: 2, memory: DEVICE });
    tenure_driver::load::prefer_sim().unwrap();
    let lock = sim::test_lock();
    sim::on_violation(sim::OnViolation::Record);
    // A panic of the library is a failure like others, and told like them.
    std::panic::set_hook(Box::new(|_| {}));
    (lock, enter())
}

/// Runs one candidate of shrinking, and tells how it fails.
fn candidate(seed: u64, edits: &str) {
    let _machine = machine();
    let Some(program) = edited(generate::program(seed), edits) else {
        eprintln!("programs: these are no edits: {edits}");
        std::process::exit(2);
    };
    if let Err(error) = Crew::default().run(&program) {
        println!("{FAILS}{error}");
    }
}

/// Has a process of its own run a candidate: a failure may leave the device in an error that stays. How it fails.
fn fails(seed: u64, edits: &str) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--seed", &seed.to_string(), "--edits", edits]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    match told.split_once(FAILS) {
        Some((_, error)) => Some(error.trim_end().to_owned()),
        None if output.status.success() => None,
        None => Some(format!("the process ended with {}", output.status)),
    }
}

fn shrunk(seed: u64, program: Program) -> String {
    let (small, error) = shrink(program, &mut |_, edits| fails(seed, edits));
    format!("shrunk: {error}\n    {}", text(&small))
}

fn run(options: &Options, start: Instant) -> Counts {
    let _machine = machine();
    let (mut counts, mut crew, mut seed) = (Counts::default(), Crew::default(), options.seed);
    while counts.programs == 0
        || (start.elapsed() < Duration::from_secs(options.seconds) && counts.programs < options.programs)
    {
        let done = if options.at_once {
            threads::run(seed, 2 + seed as usize % 2)
        } else {
            let program = generate::program(seed);
            crew.run(&program).map_err(|whole| format!("seed {seed}: {whole}\n{}", shrunk(seed, program)))
        };
        match done {
            Ok(done) => counts.add(done),
            Err(error) => {
                eprintln!("programs: does not hold: {error}");
                std::process::exit(1);
            }
        }
        seed = seed.wrapping_add(1);
    }
    counts
}
