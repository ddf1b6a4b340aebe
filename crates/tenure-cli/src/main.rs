//! The `tenure` command: replays allocation logs, says what is here, measures the first costs.
//!
//! The command is a client like every other face: what it does happens in `libtenure`, and what it adds is arguments, a
//! progress bar on a terminal, and tables.
//!
//! Exit code 0: done. 1: an event of a replayed log failed that had not failed in the log, or a row of `bench`. 2: the arguments, a log, the
//! library or the device cannot be used; one sentence on stderr says why and what to do.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

mod bench;
mod info;
mod look;
mod replay;
mod table;

/// Memory of GPUs, with owners: replay allocation logs, see what is here, measure.
#[derive(Debug, Parser)]
#[command(name = "tenure", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays logs in RMM's CSV form and says what they cost.
    ///
    /// Exit code 1 when an event failed that had not failed in the log, 2 when a log cannot be read.
    Replay(replay::Options),
    /// Says what device, driver, versions and capabilities are here.
    Info(info::Options),
    /// Measures what operations cost, each beside a reference measured in the same run.
    ///
    /// Exit code 1 when a row failed.
    Bench(bench::Options),
    /// Writes a page with pictures of what a run left behind: its report, a log, a snapshot, an out-of-memory report.
    View(look::View),
    /// Prints the figures of what a run left behind.
    Stats(look::Stats),
}

/// The device layer to use.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceLayer {
    /// CUDA where a driver library is, else the simulated device.
    Auto,
    /// CUDA.
    Cuda,
    /// The simulated device, in the memory of the host.
    Sim,
}

impl DeviceLayer {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Sim => "sim",
        }
    }
}

/// Why a command ends without a result.
#[derive(Debug)]
enum Failure {
    /// tenure said so.
    Tenure(tenure::Error),
    /// An argument or a file is not usable.
    Input(String),
    /// The output cannot be written.
    Output(io::Error),
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        Self::Tenure(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tenure(e) => e.fmt(f),
            Self::Input(message) => f.write_str(message),
            Self::Output(e) => write!(f, "the output cannot be written: {e}"),
        }
    }
}

/// Chooses the device layer for the library that will be loaded. Must be called before any thread is started.
#[allow(clippy::disallowed_methods, reason = "the command chooses for its own process, before there is another thread")]
fn choose(layer: Option<DeviceLayer>) {
    if let Some(layer) = layer {
        // SAFETY: called first of all in main, when this is the only thread.
        unsafe { std::env::set_var("TENURE_DEVICE", layer.name()) };
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    choose(match &arguments.command {
        Command::Replay(options) => options.device,
        Command::Info(options) => options.device,
        Command::Bench(options) => options.device,
        Command::View(_) | Command::Stats(_) => None,
    });
    let mut out = io::stdout().lock();
    let result = match &arguments.command {
        Command::Replay(options) => replay::run(options, &mut out),
        Command::Info(options) => info::run(options, &mut out).map(|()| true),
        Command::Bench(options) => bench::run(options, &mut out),
        Command::View(options) => look::view(options, &mut out).map(|()| true),
        Command::Stats(options) => look::stats(options, &mut out).map(|()| true),
    };
    match result.and_then(|good| Ok(out.flush().map(|()| good)?)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // Whoever reads has read enough (`tenure replay ... | head`).
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // Where even stderr is gone the exit code is all there is.
            let _ = writeln!(io::stderr(), "tenure: {failure}");
            ExitCode::from(2)
        }
    }
}
