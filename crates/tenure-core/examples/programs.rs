//! Random programs for the pool, for as long as asked; what they are and what is checked is in `tests/program/mod.rs`.
//!
//! `cargo run --release -p tenure-core --example programs -- --seconds 60 [--seed N] [--programs N] [--threads]`
//!
//! Prints how many programs and steps were checked. The first thing that does not hold is shrunk and printed as text that
//! can be pasted into a test (`tests/pool_programs.rs`); the exit code is 1 then. `--threads` runs threads at once
//! instead of in turns. One process uses one core: run one for each, with seeds that are far apart.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a program that reports"
)]

#[path = "../tests/program/mod.rs"]
mod program;

use std::time::{Duration, Instant};

use program::crew::{Crew, enter};
use program::shrink::shrink;
use program::{Counts, DEVICE, generate, text, threads};
use tenure_driver::sim;

fn main() {
    let mut seconds = 60u64;
    let mut programs = u64::MAX;
    let mut at_once = false;
    let mut seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--threads" {
            at_once = true;
            continue;
        }
        match (name.as_str(), arguments.next().and_then(|v| v.parse().ok())) {
            ("--seconds", Some(v)) => seconds = v,
            ("--seed", Some(v)) => seed = v,
            ("--programs", Some(v)) => programs = v,
            _ => {
                eprintln!("usage: programs [--seconds N] [--seed N] [--programs N] [--threads]");
                std::process::exit(2);
            }
        }
    }
    let _ = sim::configure(sim::Config { devices: 2, memory: DEVICE });
    tenure_driver::load::prefer_sim().unwrap();
    let _lock = sim::test_lock();
    sim::on_violation(sim::OnViolation::Record);
    let _current = enter();
    // A panic of the library is a failure like others, and told like them.
    std::panic::set_hook(Box::new(|_| {}));
    let mut counts = Counts::default();
    let mut crew = Crew::default();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) && counts.programs < programs {
        if at_once {
            match threads::run(seed, 2 + seed as usize % 2) {
                Ok(done) => counts.add(done),
                Err(error) => fail(&error),
            }
        } else {
            let program = generate::program(seed);
            match crew.run(&program) {
                Ok(done) => counts.add(done),
                Err(_) => {
                    let (small, error) = shrink(&mut crew, program);
                    fail(&format!("seed {seed}: {error}\n    {}", text(&small)));
                }
            }
        }
        seed = seed.wrapping_add(1);
    }
    let took = start.elapsed().as_secs_f64();
    let rate = counts.programs as f64 / took;
    let figures: Vec<String> = counts.all().into_iter().map(|(name, number)| format!("{number} {name}")).collect();
    println!("programs: {} in {took:.0} s ({rate:.0} a second)", figures.join(", "));
}

fn fail(text: &str) -> ! {
    eprintln!("programs: does not hold: {text}");
    std::process::exit(1);
}
