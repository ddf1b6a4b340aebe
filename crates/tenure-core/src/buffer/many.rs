//! Many buffers in one call: their blocks are taken together, and each is then freed by itself.
//!
//! **Cost**: that of one allocation of many blocks (`resource/batch.rs`), and a light and a stream reference for each buffer.

use super::order::{check_home, default_of};
use super::{Buffer, Source, device_of};
use crate::error::Result;
use crate::resource::{DEFAULT_ALIGNMENT, Light};
use crate::stream::StreamHold;

impl Buffer {
    /// Makes a buffer for each of `sizes`, all of them or none.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn create_many(sizes: &[usize], align: usize, home: &StreamHold, resource: &Light) -> Result<Vec<Self>> {
        let align = if align == 0 { DEFAULT_ALIGNMENT } else { align };
        check_home(resource, home)?;
        let mut ptrs = vec![0; sizes.len()];
        let mut buffers = Vec::with_capacity(sizes.len());
        // Each buffer's own light is there before its block is.
        let lights: Vec<Light> = sizes.iter().map(|_| resource.light()).collect();
        resource.make_many(sizes, align, home.as_carried(), &mut ptrs)?;
        let properties = resource.body().properties();
        let device = match resource.body().device() {
            Some(device) => device,
            None => ptrs
                .iter()
                .find(|ptr| **ptr != 0)
                .map_or_else(|| device_of(resource, 0, home), |ptr| device_of(resource, *ptr, home)),
        };
        let default = default_of(device, home);
        for ((ptr, bytes), light) in ptrs.into_iter().zip(sizes).zip(lights) {
            buffers.push(Self {
                ptr,
                bytes: *bytes,
                capacity: *bytes,
                align,
                device,
                default,
                properties,
                source: Source::Resource(light),
                home: home.clone(),
                used: Vec::new(),
            });
        }
        Ok(buffers)
    }
}
