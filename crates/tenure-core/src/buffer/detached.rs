//! Allocations that leave their buffer, and buffers of allocations that were made elsewhere.

use super::{Buffer, Source, check_device, check_home, default_of, done, or_default};
use crate::device;
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::ops;
use crate::resource::{Light, Named, Request};
use crate::stream::StreamHold;

/// An allocation that was taken out of its buffer. Its resource still counts it.
pub struct Detached {
    /// Where it starts; 0 when there are no bytes.
    pub ptr: u64,
    /// Bytes in use.
    pub bytes: usize,
    /// Bytes allocated.
    pub capacity: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The resource that must free it.
    pub resource: crate::resource::Resource,
    /// The stream in whose order it must be freed.
    pub home: StreamHold,
}

impl Buffer {
    /// Makes a buffer of a block that `resource` made and that nobody else will free.
    ///
    /// # Errors
    /// [`Error::Misuse`] when `resource` did not make a block of this address and size; [`Error::Invalid`] for address 0
    /// with bytes.
    pub fn adopt(ptr: u64, bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        device::alive()?;
        let align = or_default(align);
        let request = Request::checked(bytes, align, resource.id())?;
        if ptr == 0 && bytes == 0 {
            return Self::create(0, align, home, resource);
        }
        if ptr == 0 || bytes == 0 {
            return Err(Error::invalid(
                "a null pointer and a size of 0 go together: give the pointer and the size that allocate was called with",
            ));
        }
        let wrong = |kind, owner, owner_bytes| {
            Err(Error::Misuse(Misuse {
                kind,
                ptr,
                bytes: bytes as u64,
                asked: request.owner,
                owner,
                owner_bytes: owner_bytes as u64,
            }))
        };
        let block = match resource.body().find(ptr) {
            Some(block) => block,
            None => {
                return match crate::resource::registry::owner_of(ptr) {
                    Some((owner, block)) => wrong(MisuseKind::WrongResource, owner.id(), block.bytes),
                    None => wrong(MisuseKind::UnknownPointer, 0, 0),
                };
            }
        };
        if block.owner != request.owner {
            return wrong(MisuseKind::WrongResource, block.owner, block.bytes);
        }
        if block.ptr != ptr {
            return wrong(MisuseKind::InteriorPointer, block.owner, block.bytes);
        }
        // What is adopted now must be freed then: the very size, or one that the pool below cannot tell from it.
        let same = |bytes: usize| match bytes == block.bytes {
            false if is_rounding(&resource) => crate::pool::place::rounded_bytes(bytes as u64) == block.bytes as u64,
            same => same,
        };
        if !same(bytes) {
            return wrong(MisuseKind::WrongSize, block.owner, block.bytes);
        }
        if !ptr.is_multiple_of(align as u64) {
            return wrong(MisuseKind::WrongAlignment, block.owner, block.bytes);
        }
        check_home(&resource, &home)?;
        check_device(&resource, &home)?;
        let properties = resource.body().properties();
        // The allocation's own light becomes the buffer's; the one that came with the call goes.
        let counted = Light::from_raw(*resource);
        drop(resource);
        Ok(Self {
            ptr,
            bytes,
            capacity: bytes,
            align,
            device: block.device,
            default: default_of(block.device, &home),
            properties,
            source: Source::Resource(counted),
            home,
            used: Vec::new(),
        })
    }

    /// Takes the allocation out; its resource still counts it, and [`adopt`](Self::adopt) is the inverse. The buffer is empty
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a buffer that was adopted with an owner; driver failures while used streams are ordered
    /// before the home. Nothing changed then.
    pub fn detach(&mut self) -> Result<Detached> {
        let light = self.own()?;
        if self.ptr != 0 {
            let flags = self.settle(self.home_ref(false), true)?;
            if flags & Request::UNPROVEN != 0 {
                done(ops::wait_device(self.default), ())?;
            }
        }
        let detached = Detached {
            ptr: self.ptr,
            bytes: self.bytes,
            capacity: self.capacity,
            align: self.align,
            resource: light.anchor(),
            home: self.home.clone(),
        };
        if self.ptr != 0 {
            // The buffer keeps a light of its own; the one it had stays with the allocation.
            light.take_light();
        }
        self.empty();
        Ok(detached)
    }
}

/// True where the blocks of the resource are a pool's, whose sizes are rounded.
fn is_rounding(resource: &Named) -> bool {
    if resource.downcast::<crate::pool::Pool>().is_some() {
        return true;
    }
    // An adaptor shows its upstream's blocks; a pool shows its own.
    resource.body().upstream().is_some_and(|upstream| is_rounding(upstream))
}
