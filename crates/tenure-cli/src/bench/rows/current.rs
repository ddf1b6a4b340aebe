//! Reading the table of current resources.
//!
//! Unsafe in this file: calls through the table.

use std::hint::black_box;

use tenure::abi::{TENURE_RESOURCE_NULL, tenure_resource};
use tenure::{Device, Resource, check, current};

use super::super::plan::{Op, Plan, Target, scene};
use super::threads::COUNTS;

const THEME: &str = "current";

/// A pool is current, as it is where reading matters; what was there before is put back at the end.
struct Entry {
    device: Device,
    before: Resource,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The entry was there before, so that it is accepted again.
        let _ = current::set_for(&self.device, &self.before);
    }
}

pub(super) fn rows() -> Vec<Plan> {
    COUNTS
        .map(|count| {
            Plan::new(
                THEME,
                format!("{THEME}-{count}"),
                format!("{count} threads: a reference to the device's current resource taken and given back, C ABI"),
                |bed| {
                    let device = Device::current()?;
                    let before = current::set_for(&device, &bed.pool()?)?;
                    scene(Entry { device, before }, read_current)
                },
                "the reference alone, of a resource that is known",
                |bed| scene(bed.pool()?, reference_alone),
            )
            .threads(count, THEME)
            .target(Target::OneAndMany(40.0, 80.0))
        })
        .into()
}

fn read_current(entry: &Entry, _: usize) -> tenure::Result<Op<'_>> {
    let (api, ordinal) = (tenure::api()?, entry.device.ordinal());
    Ok(Box::new(move || {
        let mut resource: tenure_resource = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing; the reference is given back once.
        unsafe {
            check(api, (api.current_get)(ordinal, &mut resource))?;
            check(api, (api.resource_release)(black_box(resource)))
        }
    }))
}

fn reference_alone(known: &Resource, _: usize) -> tenure::Result<Op<'_>> {
    let api = tenure::api()?;
    Ok(Box::new(move || {
        let mut resource: tenure_resource = TENURE_RESOURCE_NULL;
        // SAFETY: the pointer is valid for writing; the reference is given back once.
        unsafe {
            check(api, (api.resource_retain_light)(known.as_raw(), &mut resource))?;
            check(api, (api.resource_release)(black_box(resource)))
        }
    }))
}
