//! Making, holding and asking resources; raw allocation.

use std::ffi::{CString, c_char, c_void};

use tenure_abi::*;
use tenure_core::adaptor::{Counters, Limiting, Statistics};
use tenure_core::error::{Error, Result};
use tenure_core::pool::{Pool, PoolOptions, Prefer};
use tenure_core::resource::callback::CallbackResource;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, HandleType, shared};
use tenure_core::resource::{DEFAULT_ALIGNMENT, Resource, registry};
use tenure_core::sync::atomic::{AtomicBool, Ordering};
use tenure_core::sync::{Arc, Mutex};

use crate::adaptors::asked_by;
use crate::callback::{Functions, face_of};
use crate::device::ordinal;
use crate::guard::{exports, set};
use crate::handles::{
    address, anchor_out, carried, carried_if_right, fill, fillable, light_out, named, named_if_right, options, pointer,
    properties_of, property_bits, release, release_at_hand, resolved, sized, text, upstream, writable, write,
};

pub(crate) fn or_default(alignment: usize) -> usize {
    if alignment == 0 { DEFAULT_ALIGNMENT } else { alignment }
}

pub(crate) fn statistics_of(counters: Counters) -> tenure_statistics {
    tenure_statistics {
        size: size_of::<tenure_statistics>(),
        current_bytes: counters.bytes.value,
        current_count: counters.allocations.value,
        peak_bytes: counters.bytes.peak,
        peak_count: counters.allocations.peak,
        total_bytes: counters.bytes.total,
        total_count: counters.allocations.total,
    }
}

pub(crate) fn statistics<R>(resource: tenure_resource, f: impl FnOnce(&Statistics) -> Result<R>) -> Result<R> {
    let named = named(resource)?;
    let statistics = named.downcast::<Statistics>().ok_or_else(|| {
        let kind = named.body().kind();
        Error::Unsupported(format!(
            "the resource is a {kind} and keeps no statistics: put a statistics adaptor over it"
        ))
    })?;
    f(statistics)
}

fn none_if_zero(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

fn handle_type(value: u32, name: &str) -> Result<HandleType> {
    match value {
        0 => Ok(HandleType::None),
        1 => Ok(HandleType::FileDescriptor),
        8 => Ok(HandleType::Fabric),
        9 => Ok(HandleType::FileDescriptorOrFabric),
        other => Err(Error::invalid(format!(
            "{name} {other} is unknown: 0 is none, 1 a file descriptor, 8 fabric, 9 either"
        ))),
    }
}

fn pool_options(given: tenure_pool_options) -> Result<PoolOptions> {
    Ok(PoolOptions {
        export_handle_type: handle_type(given.export_handle_type, "export_handle_type")?,
        initial_bytes: given.initial_bytes,
        maximum_bytes: none_if_zero(given.maximum_bytes),
        release_threshold: given.release_threshold,
        assume_no_capture: given.assume_no_capture != 0,
        plain_chunks: given.plain_chunks != 0,
        remap: given.no_remap == 0,
        grow_ahead: given.grow_ahead != 0,
        decay_ms: given.decay_ms,
        chunk_bytes: given.chunk_bytes,
        peers: given.peers,
        rdma: given.rdma != 0,
        prefer: if given.prefer_footprint != 0 { Prefer::Footprint } else { Prefer::Concurrency },
        ..PoolOptions::default()
    })
}

/// Kinds whose C string was asked for. A kind is one of a handful of words, and a user's own name for a resource.
static KINDS: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// A C string that lives as long as the process.
fn kept(kind: &str) -> *const c_char {
    let mut kinds = KINDS.lock();
    if let Some(known) = kinds.iter().find(|k| k.to_bytes() == kind.as_bytes()) {
        return known.as_ptr();
    }
    let new = CString::new(kind).unwrap_or_default();
    // The text lies on the heap and stays where it is when the list moves.
    let text = new.as_ptr();
    kinds.push(new);
    text
}

exports! { guard:
    fn tenure_resource_kind(resource: tenure_resource, out: *mut *const c_char) {
        writable(out)?;
        write(out, kept(named(resource)?.body().kind()))?;
    }

    fn tenure_cuda_resource(out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(shared::cuda()?))?;
    }

    fn tenure_managed_resource(out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(shared::managed()?))?;
    }

    fn tenure_pinned_resource(out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(shared::pinned()?))?;
    }

    fn tenure_system_resource(out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(shared::system()?))?;
    }

    fn tenure_async_resource_create(given: *const tenure_async_options, out: *mut tenure_resource) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let mut given = unsafe { options(given) }?;
        if given.size == 0 {
            given.device = -1;
        }
        let handle_type = handle_type(given.handle_type, "handle_type")?;
        let pool = AsyncPool::new(AsyncOptions {
            device: Some(ordinal(given.device)?),
            initial_pool_size: none_if_zero(given.initial_bytes).map(|b| usize::try_from(b).unwrap_or(usize::MAX)),
            release_threshold: (given.has_release_threshold != 0).then_some(given.release_threshold),
            handle_type,
            stream_outlives_buffer: given.stream_outlives_buffer != 0,
        })?;
        write(out, anchor_out(Resource::new(pool)?))?;
    }

    fn tenure_async_view_create(pool_handle: *mut c_void, device: i32, out: *mut tenure_resource) {
        writable(out)?;
        if pool_handle.is_null() {
            return Err(Error::invalid("the pool handle is null: pass a CUmemoryPool"));
        }
        // SAFETY: by the contract of the C ABI a pool of the driver that outlives the resource.
        let view = unsafe { AsyncPool::view(ordinal(device)?, address(pool_handle)) }?;
        write(out, anchor_out(Resource::new(view)?))?;
    }

    fn tenure_pool_create(
        above: tenure_resource, given: *const tenure_pool_options, out: *mut tenure_resource,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let mut given = unsafe { options(given) }?;
        if given.size == 0 {
            given.device = -1;
        }
        let upstream = upstream(above)?;
        let device = match upstream.body().device() {
            // A stack over one device makes a pool of that device, also while another is current.
            Some(own) if given.device == -1 && own >= 0 => own,
            _ => ordinal(given.device)?,
        };
        let pool = Pool::new(upstream, device, pool_options(given)?)?;
        write(out, anchor_out(Resource::new(pool)?))?;
    }

    fn tenure_limiting_create(above: tenure_resource, limit: u64, out: *mut tenure_resource) {
        writable(out)?;
        if limit == 0 {
            return Err(Error::invalid(
                "allocation_limit is 0 bytes, under which nothing can be allocated: give the bytes that may be in use at once",
            ));
        }
        write(out, anchor_out(Resource::new(Limiting::new(upstream(above)?, limit))?))?;
    }

    fn tenure_statistics_create(above: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(Resource::new(Statistics::new(upstream(above)?))?))?;
    }

    fn tenure_callback_create(
        vtable: *const tenure_resource_vtable, context: *mut c_void, out: *mut tenure_resource,
    ) {
        writable(out)?;
        if vtable.is_null() {
            return Err(Error::invalid("the vtable is null: pass the functions of the resource"));
        }
        // SAFETY: not null, and by the contract of the C ABI; a structure of integers, pointers and optional functions has
        // all zeros for a value.
        let table: tenure_resource_vtable = unsafe { sized(vtable, std::mem::zeroed(), "vtable") }?;
        if table.allocate.is_none() || table.deallocate.is_none() {
            return Err(Error::invalid("a resource needs both an allocate and a deallocate function"));
        }
        let device = match table.device {
            -1 => None,
            device => Some(tenure_core::device::check(device)?),
        };
        let properties = properties_of(table.properties);
        let taken = Arc::new(AtomicBool::new(false));
        let functions = Functions::new(table, context, taken.clone());
        let resource = Resource::new(CallbackResource::new(Box::new(functions), device, properties))?;
        taken.store(true, Ordering::Release);
        write(out, anchor_out(resource))?;
    }

    fn tenure_resource_retain(resource: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        write(out, anchor_out(named(resource)?.anchor()))?;
    }

    fn tenure_resource_retain_light(resource: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        write(out, light_out(named(resource)?.light()))?;
    }

    fn tenure_resource_from_id(id: u64, out: *mut tenure_resource) {
        writable(out)?;
        write(out, registry::upgrade(id).map_or(TENURE_RESOURCE_NULL, anchor_out))?;
    }

    fn tenure_resource_info(resource: tenure_resource, out: *mut tenure_info) {
        writable(out)?;
        let info = named(resource)?.body().info();
        let info = tenure_info {
            size: size_of::<tenure_info>(),
            live_bytes: info.live_bytes,
            cached_bytes: info.cached_bytes,
            reserved_bytes: info.reserved_bytes,
            largest_free_bytes: info.largest_free_bytes,
            peak_live_bytes: info.peak_live_bytes,
            peak_reserved_bytes: info.peak_reserved_bytes,
            live_count: info.live_count,
            unproven_bytes: info.unproven_bytes,
            device_proofs: info.device_proofs,
            own_ranges: u64::from(info.own_ranges),
        };
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, info) }?;
    }

    fn tenure_resource_upstream(resource: tenure_resource, out: *mut tenure_resource) {
        writable(out)?;
        let upstream = named(resource)?.body().upstream().cloned();
        write(out, upstream.map_or(TENURE_RESOURCE_NULL, anchor_out))?;
    }

    fn tenure_resource_property(resource: tenure_resource, name: *const c_char, out: *mut u64) {
        writable(out)?;
        let named = named(resource)?;
        // SAFETY: a C string, by the contract.
        let name = unsafe { text(name, "the name of the property") }?;
        // What every resource has.
        let (anchors, lights) = named.references();
        let value = match name {
            "anchors" => u64::try_from(anchors).unwrap_or(0),
            "lights" => u64::try_from(lights).unwrap_or(0),
            _ => named.body().property(name).ok_or_else(|| {
                Error::invalid(format!("a {} resource has no property {name:?}", named.body().kind()))
            })?,
        };
        write(out, value)?;
    }

    fn tenure_resource_owns(resource: tenure_resource, ptr: *const c_void, out: *mut u32) {
        write(out, u32::from(named(resource)?.owns(address(ptr))))?;
    }

    fn tenure_resource_trim(resource: tenure_resource, keep_bytes: usize, released: *mut usize) {
        let bytes = named(resource)?.trim(keep_bytes)?;
        if !released.is_null() {
            write(released, bytes)?;
        }
    }

    fn tenure_statistics_get(resource: tenure_resource, out: *mut tenure_statistics) {
        writable(out)?;
        let counters = statistics(resource, |s| Ok(s.counters()))?;
        // SAFETY: by the contract of the C ABI.
        unsafe { fill(out, statistics_of(counters)) }?;
    }

    fn tenure_statistics_push(resource: tenure_resource, out: *mut tenure_statistics) {
        if !out.is_null() {
            // Before anything is counted otherwise.
            // SAFETY: by the contract of the C ABI.
            unsafe { fillable(out, size_of::<usize>()) }?;
        }
        let counters = statistics(resource, |s| Ok(s.push_counters()))?;
        if !out.is_null() {
            // SAFETY: by the contract of the C ABI.
            unsafe { fill(out, statistics_of(counters)) }?;
        }
    }

    fn tenure_statistics_pop(resource: tenure_resource, out: *mut tenure_statistics) {
        if !out.is_null() {
            // Before anything is counted otherwise.
            // SAFETY: by the contract of the C ABI.
            unsafe { fillable(out, size_of::<usize>()) }?;
        }
        let counters = statistics(resource, Statistics::pop_counters)?;
        if !out.is_null() {
            // SAFETY: by the contract of the C ABI.
            unsafe { fill(out, statistics_of(counters)) }?;
        }
    }

    fn tenure_allocate(
        resource: tenure_resource, bytes: usize, alignment: usize, given: tenure_stream, out: *mut *mut c_void,
    ) first {
        // SAFETY: by the contract of the C ABI.
        let (stream, named) = (unsafe { carried_if_right(given) }?, named_if_right(resource)?);
        // SAFETY: the address of a variable of the caller, where it is not null.
        let out = unsafe { out.as_mut() }?;
        match named.allocate_at_hand(bytes, or_default(alignment), stream)? {
            Ok(ptr) => {
                *out = pointer(ptr);
                Some(TENURE_OK)
            }
            Err(error) => Some(set(*error)),
        }
    } {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        let ptr = if resource == TENURE_RESOURCE_CURRENT {
            resolved(resource, stream)?.allocate(bytes, or_default(alignment), stream)?
        } else {
            named(resource)?.allocate(bytes, or_default(alignment), stream)?
        };
        write(out, pointer(ptr))?;
    }

    fn tenure_allocate_sync(
        resource: tenure_resource, bytes: usize, alignment: usize, out: *mut *mut c_void,
    ) {
        writable(out)?;
        write(out, pointer(named(resource)?.allocate_sync(bytes, or_default(alignment))?))?;
    }

    fn tenure_owner_of(
        ptr: *const c_void, resource: *mut tenure_resource, base: *mut *mut c_void, bytes: *mut usize,
    ) {
        writable(resource)?;
        let found = registry::owner_of(address(ptr));
        if !base.is_null() {
            write(base, found.as_ref().map_or(std::ptr::null_mut(), |(_, block)| pointer(block.ptr)))?;
        }
        if !bytes.is_null() {
            write(bytes, found.as_ref().map_or(0, |(_, block)| block.bytes))?;
        }
        write(resource, found.map_or(TENURE_RESOURCE_NULL, |(owner, _)| anchor_out(owner)))?;
    }
}

exports! { guard_release:
    fn tenure_resource_release(resource: tenure_resource) first {
        release_at_hand(resource).then_some(TENURE_OK)
    } {
        release(resource)?;
    }

    fn tenure_deallocate(
        resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize, given: tenure_stream,
    ) first {
        // SAFETY: by the contract of the C ABI.
        let (stream, named) = (unsafe { carried_if_right(given) }?, named_if_right(resource)?);
        named.deallocate_at_hand(address(ptr), bytes, or_default(alignment), stream).then_some(TENURE_OK)
    } {
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        named(resource)?.deallocate(address(ptr), bytes, or_default(alignment), stream)?;
    }

    fn tenure_deallocate_sync(resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize) {
        named(resource)?.deallocate_sync(address(ptr), bytes, or_default(alignment))?;
    }
}

exports! { run:
    fn tenure_resource_id(resource: tenure_resource, out: *mut u64) {
        write(out, named(resource)?.id())?;
    }

    fn tenure_resource_same(a: tenure_resource, b: tenure_resource, out: *mut u32) {
        write(out, u32::from(named(a)? == named(b)?))?;
    }


    fn tenure_resource_device(resource: tenure_resource, out: *mut i32) {
        write(out, named(resource)?.body().device().unwrap_or(-1))?;
    }

    fn tenure_resource_properties(resource: tenure_resource, out: *mut u32) {
        write(out, property_bits(named(resource)?.body().properties()))?;
    }

    fn tenure_callback_context(
        resource: tenure_resource, drop: Option<unsafe extern "C" fn(*mut c_void)>, out: *mut *mut c_void,
    ) {
        writable(out)?;
        let named = named(resource)?;
        let context = match named.downcast::<CallbackResource>() {
            Some(callback) => Some((callback.callbacks().face(), callback.context())),
            None => asked_by(named),
        };
        let context = context.filter(|(face, _)| *face == face_of(drop));
        write(out, context.map_or(std::ptr::null_mut(), |(_, context)| context))?;
    }
}

exports! { try guard:
    fn tenure_try_allocate(
        resource: tenure_resource, bytes: usize, alignment: usize, given: tenure_stream, out: *mut *mut c_void,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        let ptr = named(resource)?.try_allocate(bytes, or_default(alignment), stream)?;
        write(out, pointer(ptr))?;
    }
}

exports! { try guard_release:
    fn tenure_resource_try_release(resource: tenure_resource) {
        release(resource)?;
    }

    fn tenure_try_deallocate(
        resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize, given: tenure_stream,
    ) {
        // SAFETY: by the contract of the C ABI.
        let stream = unsafe { carried(given) }?;
        named(resource)?.try_deallocate(address(ptr), bytes, or_default(alignment), stream)?;
    }
}
