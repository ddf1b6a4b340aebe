//! Repeats one operation, for `ci/check-instructions`, which counts the instructions of two runs of different length: their
//! difference is what the operations cost, and what the program does before and after is in both.
//!
//! usage: counted NAME COUNT      with the simulated device; the names are those of [`run`]
//!
//! Unsafe in this file: calls through the table, with blocks that nobody uses.

use tenure::abi::{TENURE_RESOURCE_NULL, tenure_resource, tenure_stream};
use tenure::{
    Binning, DEFAULT_ALIGNMENT, Device, DeviceBuffer, Limiting, Logging, Pool, Resource, Result, Statistics, Stream,
    check, current,
};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("usage: counted NAME COUNT")?;
    let count: usize = arguments.next().ok_or("usage: counted NAME COUNT")?.parse()?;
    run(&name, count)?;
    Ok(())
}

fn run(name: &str, count: usize) -> Result<()> {
    let device = Device::current()?;
    let pool: Resource = Pool::builder(&device).build()?.into();
    let stream = Stream::create()?;
    let default = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
    match name {
        "pair-default" => pairs(&pool, default, count),
        "pair-statistics" => pairs(&Statistics::new(&pool)?.into(), default, count),
        "pair-limiting" => pairs(&Limiting::new(&pool, 1 << 30)?.into(), default, count),
        "pair-binning" => {
            pairs(&Binning::builder(&device).upstream(&pool).exponents(8, 16).build()?.into(), default, count)
        }
        "pair-raw" => pairs(&pool, tenure_stream { raw: stream.raw(), object: 0 }, count),
        "pair-own" => {
            let handle = stream.clone().into_handle();
            let outcome = pairs(&pool, handle, count);
            // SAFETY: the reference of the line above, given back once.
            drop(unsafe { Stream::from_handle(handle) });
            outcome
        }
        "buffer-default" => {
            let stream = Stream::legacy_default();
            (0..count).try_for_each(|_| DeviceBuffer::new_in(1024, &stream, &pool).map(drop))
        }
        "pair-logged" => {
            let name = std::env::temp_dir().join(format!("tenure-counted-{}.csv", std::process::id()));
            let log: Resource = Logging::new(&pool, &name)?.into();
            let outcome = pairs(&log, tenure_stream { raw: std::ptr::null_mut(), object: 0 }, count);
            drop(log);
            let _ = std::fs::remove_file(name);
            outcome
        }
        "buffer" => (0..count).try_for_each(|_| DeviceBuffer::new_in(1024, &stream, &pool).map(drop)),
        "churn" => churn(&pool, default, count),
        "current" => {
            let before = current::set_for(&device, &pool)?;
            let api = tenure::api()?;
            let outcome = (0..count).try_for_each(|_| {
                let mut resource: tenure_resource = TENURE_RESOURCE_NULL;
                // SAFETY: the pointer is valid for writing; the reference is given back once.
                unsafe {
                    check(api, (api.current_get)(device.ordinal(), &mut resource))?;
                    check(api, (api.resource_release)(resource))
                }
            });
            current::set_for(&device, &before)?;
            outcome
        }
        other => Err(tenure::Error::Invalid(format!(
            "there is no operation {other:?}: choose pair-default, pair-raw, pair-own, pair-logged, pair-statistics, \
             pair-limiting, pair-binning, buffer, buffer-default, churn or current"
        ))),
    }
}

fn pairs(pool: &Resource, stream: tenure_stream, count: usize) -> Result<()> {
    let api = tenure::api()?;
    for _ in 0..count {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the stream is alive; the block is freed once and used by nobody.
        unsafe {
            check(api, (api.allocate)(pool.as_raw(), 256, DEFAULT_ALIGNMENT, stream, &mut ptr))?;
            check(api, (api.deallocate)(pool.as_raw(), ptr, 256, DEFAULT_ALIGNMENT, stream))?;
        }
    }
    Ok(())
}

/// One of 512 live blocks freed and another allocated, of 256 bytes to 1 MiB.
fn churn(pool: &Resource, stream: tenure_stream, count: usize) -> Result<()> {
    let api = tenure::api()?;
    let mut live = vec![(std::ptr::null_mut(), 0_usize); 512];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let replace = |place: &mut (*mut std::ffi::c_void, usize), bytes: usize| {
        // SAFETY: the stream is alive; each block is freed once and used by nobody.
        unsafe {
            if !place.0.is_null() {
                check(api, (api.deallocate)(pool.as_raw(), place.0, place.1, DEFAULT_ALIGNMENT, stream))?;
                *place = (std::ptr::null_mut(), 0);
            }
            if bytes != 0 {
                check(api, (api.allocate)(pool.as_raw(), bytes, DEFAULT_ALIGNMENT, stream, &mut place.0))?;
                place.1 = bytes;
            }
        }
        Ok(())
    };
    for step in 0..count + 4096 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let shift = 8 + (state >> 32) as usize % 12;
        // The first steps fill every place, whatever the count.
        let place = if step < 512 { step } else { state as usize % 512 };
        replace(&mut live[place], (1 << shift) + (state >> 48) as usize % (1 << shift))?;
    }
    live.iter_mut().try_for_each(|place| replace(place, 0))
}
