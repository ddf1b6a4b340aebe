//! Resources that sort requests by size, and the arena.

use tenure_abi::*;
use tenure_core::arena::{Arena, ArenaOptions, DUMP_FILE};
use tenure_core::bins::{Binning, BinningOptions, FixedSize, FixedSizeOptions};
use tenure_core::error::{Error, Result};
use tenure_core::resource::Resource;

use crate::device::ordinal;
use crate::guard::exports;
use crate::handles::{anchor_out, named, options, upstream, writable, write};

/// The device of a resource over `upstream`: the upstream's own where nothing else is asked for, also while another device
/// is current.
fn device_over(upstream: &Resource, given: i32) -> Result<i32> {
    match upstream.body().device() {
        Some(own) if given == -1 && own >= 0 => Ok(own),
        _ => ordinal(given),
    }
}

fn binning<R>(resource: tenure_resource, f: impl FnOnce(&Binning) -> Result<R>) -> Result<R> {
    let named = named(resource)?;
    let binning = named.downcast::<Binning>().ok_or_else(|| {
        let kind = named.body().kind();
        Error::Unsupported(format!("the resource is a {kind} and has no bins: make one with tenure_binning_create"))
    })?;
    f(binning)
}

exports! { guard:
    fn tenure_fixed_size_create(
        above: tenure_resource, given: *const tenure_fixed_size_options, out: *mut tenure_resource,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let given = unsafe { options(given) }?;
        let defaults = FixedSizeOptions::default();
        // No structure at all, or what was said.
        let (device, blocks_to_preallocate) = match given.size {
            0 => (-1, defaults.blocks_to_preallocate),
            _ => (given.device, given.blocks_to_preallocate),
        };
        let block_size = if given.block_size == 0 { defaults.block_size } else { given.block_size };
        let upstream = upstream(above)?;
        let device = device_over(&upstream, device)?;
        let fixed = FixedSize::new(upstream, device, FixedSizeOptions { block_size, blocks_to_preallocate })?;
        write(out, anchor_out(Resource::new(fixed)?))?;
    }

    fn tenure_binning_create(
        above: tenure_resource, given: *const tenure_binning_options, out: *mut tenure_resource,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let given = unsafe { options(given) }?;
        let device = if given.size == 0 { -1 } else { given.device };
        let bins = match given.has_exponents {
            0 => BinningOptions::default(),
            _ => BinningOptions {
                min_size_exponent: given.min_size_exponent,
                max_size_exponent: given.max_size_exponent,
            },
        };
        let upstream = upstream(above)?;
        let device = device_over(&upstream, device)?;
        write(out, anchor_out(Resource::new(Binning::new(upstream, device, bins)?)?))?;
    }

    fn tenure_binning_add_bin(resource: tenure_resource, allocation_size: u64, bin_resource: tenure_resource) {
        let bin = match bin_resource {
            TENURE_RESOURCE_NULL => None,
            given => Some(named(given)?.anchor()),
        };
        binning(resource, |binning| binning.add_bin(allocation_size, bin))?;
    }

    fn tenure_binning_bin(
        resource: tenure_resource, index: u32, allocation_size: *mut u64, out: *mut tenure_resource,
    ) {
        writable(out)?;
        let bin = binning(resource, |binning| Ok(binning.list().into_iter().nth(index as usize)))?;
        if !allocation_size.is_null() {
            write(allocation_size, bin.as_ref().map_or(0, |(size, _)| *size))?;
        }
        write(out, bin.map_or(TENURE_RESOURCE_NULL, |(_, bin)| anchor_out(bin)))?;
    }

    fn tenure_arena_create(
        above: tenure_resource, given: *const tenure_arena_options, out: *mut tenure_resource,
    ) {
        writable(out)?;
        // SAFETY: by the contract of the C ABI.
        let given = unsafe { options(given) }?;
        let device = if given.size == 0 { -1 } else { given.device };
        let arena = ArenaOptions {
            arena_size: (given.arena_size != 0).then_some(given.arena_size),
            dump_log: (given.dump_log_on_failure != 0).then(|| DUMP_FILE.into()),
        };
        let upstream = upstream(above)?;
        let device = device_over(&upstream, device)?;
        write(out, anchor_out(Resource::new(Arena::new(upstream, device, arena)?)?))?;
    }
}
