//! The simulated device, the count of driver calls, and the replay of logs.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use tenure_abi::*;
use tenure_core::device;
use tenure_core::error::{Error, Result};
use tenure_core::stream::StreamHold;
use tenure_core::sync::atomic::{AtomicBool, Ordering};
use tenure_driver::sim;

use crate::guard::exports;
use crate::handles::{stream, text, text_out, writable, write};

fn simulated() -> Result<()> {
    if device::driver()?.is_simulated() {
        return Ok(());
    }
    Err(Error::Unsupported(
        "this works on the simulated device only: set TENURE_DEVICE=sim before the first use of tenure".into(),
    ))
}

fn configure(devices: i32, memory_bytes: u64) -> Result<()> {
    let mut config = sim::config();
    if devices != 0 {
        config.devices =
            usize::try_from(devices).map_err(|_| Error::invalid(format!("{devices} devices cannot be simulated")))?;
    }
    if memory_bytes != 0 {
        config.memory = memory_bytes;
    }
    sim::configure(config).map_err(|e| Error::invalid(e.to_string()))
}

fn busy(hold: &StreamHold, time: Duration) -> Result<()> {
    let driver = device::driver()?;
    let stream = hold.as_carried();
    let _current = driver.device(device::home_or_current(stream)?)?.enter()?;
    if driver.is_simulated() {
        return sim::busy(stream.raw.as_raw(), time).map_err(|e| Error::invalid(e.to_string()));
    }
    extern "C" fn sleep(nanoseconds: *mut c_void) {
        std::thread::sleep(Duration::from_nanos(nanoseconds as usize as u64));
    }
    let nanoseconds = time.as_nanos().min(u128::from(u32::MAX) * 1_000_000) as usize;
    // SAFETY: the function only sleeps; its argument is a number.
    Ok(unsafe { driver.launch_host_function(stream.raw, sleep, nanoseconds as *mut c_void) }?)
}

fn set_memory(device: i32, memory_bytes: u64) -> Result<()> {
    sim::set_memory(device, memory_bytes).map_err(|e| Error::invalid(e.to_string()))
}

/// True once driver calls are counted.
static COUNTING: AtomicBool = AtomicBool::new(false);

exports! { guard:
    fn tenure_sim_configure(devices: i32, memory_bytes: u64) {
        configure(devices, memory_bytes)?;
    }

    fn tenure_sim_busy(given: tenure_stream, milliseconds: u32) {
        let hold = stream(given)?;
        busy(&hold, Duration::from_millis(milliseconds.into()))?;
    }

    fn tenure_sim_fail_next(call: *const c_char, code: i32, after: u64) {
        simulated()?;
        // SAFETY: a C string, by the contract.
        let call = unsafe { text(call, "the name of the call") }?;
        sim::fail_next(call, code, after).map_err(|e| Error::invalid(e.to_string()))?;
    }

    fn tenure_sim_fail_clear() {
        simulated()?;
        sim::fail_clear();
    }

    fn tenure_sim_violations(out: *mut u64) {
        writable(out)?;
        simulated()?;
        write(out, sim::violations())?;
    }

    fn tenure_driver_calls(call: *const c_char, out: *mut u64) {
        writable(out)?;
        // Once: it starts from zero.
        if !COUNTING.swap(true, Ordering::Relaxed) {
            tenure_driver::calls::enable();
        }
        let count = if call.is_null() {
            tenure_driver::calls::total()
        } else {
            // SAFETY: a C string, by the contract.
            let name = unsafe { text(call, "the name of the call") }?;
            tenure_driver::calls::snapshot().iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| *count)
        };
        write(out, count)?;
    }

    fn tenure_sim_active(out: *mut u32) {
        writable(out)?;
        write(out, u32::from(device::driver()?.is_simulated()))?;
    }

    fn tenure_sim_set_memory(device: i32, memory_bytes: u64) {
        simulated()?;
        set_memory(crate::device::ordinal(device)?, memory_bytes)?;
    }

    fn tenure_replay(
        options: *const c_char, progress: tenure_progress_fn, context: *mut c_void, out: *mut tenure_text,
    ) {
        writable(out)?;
        // SAFETY: a C string, by the contract.
        let options = unsafe { text(options, "the options") }?;
        let answer = tenure_core::trace::replay_json(options, &mut |done, total| match progress {
            // SAFETY: the caller's function with the caller's context, during this call only.
            Some(progress) => unsafe { progress(context, done, total) == 0 },
            None => true,
        })?;
        text_out(answer, out)?;
    }
}
