//! What the tests share: the simulated device, one test at a time, children of this test program.

#![allow(dead_code, reason = "each test program uses its part")]

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static SETUP: Once = Once::new();
static ALONE: Mutex<()> = Mutex::new(());

/// Chooses the simulated device with two devices, unless the environment chose already. Called before anything of tenure's.
#[allow(clippy::disallowed_methods, reason = "a test program chooses for itself, before it uses anything of tenure's")]
pub(crate) fn setup() {
    SETUP.call_once(|| {
        for (name, value) in [("TENURE_DEVICE", "sim"), ("TENURE_SIM_DEVICES", "2")] {
            if std::env::var_os(name).is_none() {
                // SAFETY: every test calls this first and waits for it here, so that nothing of ours reads the environment.
                unsafe { std::env::set_var(name, value) };
            }
        }
    });
}

/// The table, the count of misuse and injected faults are the process's: tests that look at them run one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    setup();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says why a test does nothing here: the suites run on CUDA as well (`TENURE_DEVICE=cuda`).
#[expect(clippy::print_stdout, reason = "what was skipped is part of the outcome")]
pub(crate) fn skip_unless(here: bool, needs: &str) -> bool {
    if !here {
        println!("skipped: it needs {needs}");
    }
    !here
}

/// True on the simulated device.
pub(crate) fn simulated() -> bool {
    tenure::sim::is_active().expect("a device")
}

/// The second device, where there are two.
pub(crate) fn second_device() -> Option<tenure::Device> {
    tenure::Device::new(1).ok()
}

/// How often the rules of the driver were broken; the simulated device counts that.
pub(crate) fn violations() -> u64 {
    if simulated() { tenure::sim::violations().expect("a count") } else { 0 }
}

/// Runs an ignored test of this program as a process of its own.
pub(crate) fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    command
}

/// The end of a child that went well and wrote nothing on stderr.
pub(crate) fn assert_quiet(name: &str, output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {:?}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}");
    assert_eq!(stderr, "", "{name} is not silent");
}
