//! Devices, streams, copies.

use tenure_abi::*;
use tenure_core::error::{Error, Result};
use tenure_core::stream::StreamObject;
use tenure_core::{device, ops};
use tenure_driver::{Device, RawStream};

use crate::guard::exports;
use crate::handles::{address, fill, owner, stream, stream_out, stream_release, stream_retain, writable, write};

fn found(ordinal: i32) -> Result<&'static Device> {
    Ok(device::driver()?.device(self::ordinal(ordinal)?)?)
}

/// The ordinal that a call means: -1 is the current device.
pub(crate) fn ordinal(device: i32) -> Result<i32> {
    if device == -1 { device::current() } else { device::check(device) }
}

fn info_of(ordinal: i32) -> Result<tenure_device_info> {
    let device = found(ordinal)?;
    let properties = device.properties()?;
    let (free, total) = device::memory_info(device.ordinal())?;
    let mut info = tenure_device_info {
        size: size_of::<tenure_device_info>(),
        name: [0; 128],
        free_bytes: free,
        total_bytes: total,
        simulated: u32::from(device.driver().is_simulated()),
        virtual_memory: u32::from(properties.capabilities.virtual_memory),
        memory_pools: u32::from(properties.capabilities.pools),
        managed_memory: u32::from(properties.capabilities.managed),
        pageable_access: u32::from(properties.capabilities.pageable_access),
        compute_major: properties.compute_capability.0,
        compute_minor: properties.compute_capability.1,
        uuid: properties.uuid,
    };
    for (to, from) in info.name.iter_mut().zip(properties.name.bytes().take(127)) {
        *to = from as std::ffi::c_char;
    }
    Ok(info)
}

/// What is here, as JSON. A device layer that is not there is an answer too.
pub(crate) fn describe() -> String {
    let mut all = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "abi": TENURE_ABI_VERSION,
        "requested_device": std::env::var("TENURE_DEVICE").unwrap_or_else(|_| "auto".into()),
    });
    match device::driver() {
        Err(error) => all["error"] = error.to_string().into(),
        Ok(driver) => {
            all["layer"] = if driver.is_simulated() { "sim" } else { "cuda" }.into();
            all["library"] = driver.library().into();
            all["driver_version"] = driver.version().into();
            let devices: Vec<_> = (0..device::count().unwrap_or(0)).map(describe_device).collect();
            all["devices"] = devices.into();
        }
    }
    all.to_string()
}

fn describe_device(ordinal: i32) -> serde_json::Value {
    match info_of(ordinal) {
        Err(error) => serde_json::json!({"ordinal": ordinal, "error": error.to_string()}),
        Ok(info) => {
            let uuid: String = info.uuid.iter().map(|b| format!("{b:02x}")).collect();
            let name: String = info.name.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
            serde_json::json!({
                "ordinal": ordinal,
                "name": name,
                "uuid": uuid,
                "free_bytes": info.free_bytes,
                "total_bytes": info.total_bytes,
                "compute_capability": format!("{}.{}", info.compute_major, info.compute_minor),
                "virtual_memory": info.virtual_memory != 0,
                "memory_pools": info.memory_pools != 0,
                "managed_memory": info.managed_memory != 0,
                "pageable_access": info.pageable_access != 0,
            })
        }
    }
}

fn foreign_device(raw: RawStream, device: i32) -> Result<i32> {
    if device == -1 { Ok(device::driver()?.device_of(raw)?) } else { device::check(device) }
}

fn raw_of(raw: *mut std::ffi::c_void) -> RawStream {
    // SAFETY: the caller promises that its owner keeps the stream alive, or that it is never destroyed.
    unsafe { RawStream::from_raw(raw) }
}

exports! { guard:
    fn tenure_device_count(out: *mut i32) {
        write(out, device::count()?)?;
    }

    fn tenure_device_get_current(out: *mut i32) {
        write(out, device::current()?)?;
    }

    fn tenure_device_set_current(device: i32) {
        let context = found(device::check(device)?)?.context()?;
        // SAFETY: a primary context is never released by tenure.
        unsafe { device::driver()?.set_current_context(context) }?;
    }

    fn tenure_device_info(device: i32, out: *mut tenure_device_info) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, info_of(device)?) }?;
    }

    fn tenure_device_synchronize(device: i32) {
        let device = ordinal(device)?;
        device::prove_at_last(device)?;
        ops::noted_device(device);
    }

    fn tenure_device_used(device: i32, out: *mut u64) {
        let (free, total) = device::memory_info(ordinal(device)?)?;
        write(out, total.saturating_sub(free))?;
    }

    fn tenure_stream_create(device: i32, non_blocking: u32, out: *mut tenure_stream) {
        writable(out)?;
        let object = StreamObject::create(ordinal(device)?, non_blocking != 0)?;
        write(out, stream_out(object)?)?;
    }

    fn tenure_stream_wrap(
        raw: *mut std::ffi::c_void, device: i32, given: tenure_owner, out: *mut tenure_stream,
    ) {
        writable(out)?;
        let raw = raw_of(raw);
        let device = foreign_device(raw, device)?;
        write(out, stream_out(StreamObject::foreign(raw, device, owner(given)))?)?;
    }

    fn tenure_stream_immortal(raw: *mut std::ffi::c_void, device: i32, out: *mut tenure_stream) {
        writable(out)?;
        let raw = raw_of(raw);
        let device = foreign_device(raw, device)?;
        write(out, stream_out(StreamObject::immortal(raw, device))?)?;
    }

    fn tenure_stream_retain(object: tenure_stream_object) {
        stream_retain(object)?;
    }

    fn tenure_stream_device(given: tenure_stream, out: *mut i32) {
        writable(out)?;
        let hold = stream(given)?;
        write(out, device::home_or_current(hold.as_carried())?)?;
    }

    fn tenure_stream_synchronize(given: tenure_stream) {
        let hold = stream(given)?;
        ops::synchronize(hold.as_carried(), -1)?;
        ops::noted(hold.as_carried());
    }

    fn tenure_note_sync(given: tenure_stream) {
        ops::note_sync(stream(given)?.as_carried())?;
    }

    fn tenure_note_wait(given: tenure_stream, other: tenure_stream) {
        let (given, other) = (stream(given)?, stream(other)?);
        ops::note_wait(given.as_carried(), other.as_carried())?;
    }

    fn tenure_stream_query(given: tenure_stream, out: *mut u32) {
        writable(out)?;
        write(out, u32::from(ops::is_idle(stream(given)?.as_carried(), -1)?))?;
    }

    fn tenure_stream_wait_stream(given: tenure_stream, other: tenure_stream) {
        let (given, other) = (stream(given)?, stream(other)?);
        ops::order_after(given.as_carried(), other.as_carried(), -1)?;
        ops::noted_wait(given.as_carried(), other.as_carried());
    }

    fn tenure_copy_async(
        to: *mut std::ffi::c_void, from: *const std::ffi::c_void, bytes: usize, given: tenure_stream,
    ) {
        if bytes != 0 && (to.is_null() || from.is_null()) {
            return Err(Error::invalid("a null pointer has no bytes to copy"));
        }
        let hold = stream(given)?;
        // SAFETY: by the contract of the C ABI both ranges are alive until the copy is done.
        unsafe { ops::copy_async(address(to), address(from), bytes, hold.as_carried(), -1) }?;
    }

    fn tenure_fill_async(to: *mut std::ffi::c_void, value: u8, bytes: usize, given: tenure_stream) {
        if bytes != 0 && to.is_null() {
            return Err(Error::invalid("a null pointer has no bytes to set"));
        }
        let hold = stream(given)?;
        // SAFETY: by the contract of the C ABI the range is alive until the work is done.
        unsafe { ops::fill_async(address(to), value, bytes, hold.as_carried(), -1) }?;
    }
}

exports! { guard_release:
    fn tenure_stream_release(object: tenure_stream_object) {
        stream_release(object)?;
    }
}
