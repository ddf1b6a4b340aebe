//! Buffers of memory that no resource of tenure's made: who keeps it, and who frees it.

use super::{Buffer, Source, default_of, done};
use crate::error::{Error, Payload, Result};
use crate::ops;
use crate::resource::{Properties, Request};
use crate::stream::{StreamHold, StreamRef};

/// Frees memory that no resource of tenure's made.
pub type ForeignFree = Box<dyn FnOnce(u64, usize, StreamRef<'_>) + Send>;

/// What to do for memory that no resource of tenure's made.
#[derive(Default)]
pub struct Foreign {
    /// Called with pointer, size and home stream when the buffer goes.
    pub free: Option<ForeignFree>,
    /// Dropped after that.
    pub owner: Option<Payload>,
}

impl Buffer {
    /// Whether [`adopt_foreign`](Self::adopt_foreign) would take this memory: for faces that must not take an owner over in
    /// vain.
    ///
    /// # Errors
    /// Those of `adopt_foreign`.
    pub fn check_foreign(ptr: u64, bytes: usize, is_owned: bool) -> Result<()> {
        if !is_owned {
            return Err(Error::invalid(
                "foreign memory needs an owner to keep alive or a function that frees it: give one of the two",
            ));
        }
        if (ptr == 0) != (bytes == 0) {
            return Err(Error::invalid("a null pointer and a size of 0 go together"));
        }
        if bytes > crate::resource::MAX_BYTES {
            return Err(Error::invalid(format!("{bytes} bytes cannot be the size of anything")));
        }
        Ok(())
    }

    /// Makes a buffer of memory that no resource of tenure's made.
    ///
    /// # Errors
    /// [`Error::Invalid`] when neither a free function nor an owner is given, or pointer and size do not go together.
    pub fn adopt_foreign(
        ptr: u64,
        bytes: usize,
        device: i32,
        home: StreamHold,
        properties: Properties,
        foreign: Foreign,
    ) -> Result<Self> {
        Self::check_foreign(ptr, bytes, foreign.free.is_some() || foreign.owner.is_some())?;
        Ok(Self {
            ptr,
            bytes,
            capacity: bytes,
            align: 1,
            device,
            default: default_of(device, &home),
            properties,
            source: Source::Foreign(Some(Box::new(foreign))),
            home,
            used: Vec::new(),
        })
    }

    pub(super) fn close_foreign(&mut self, carried: bool) -> Result<()> {
        let Source::Foreign(Some(foreign)) = &self.source else {
            self.empty();
            return Ok(());
        };
        if !self.used.is_empty() && !tenure_driver::process::unusable() {
            let flags = self.settle(self.home_ref(carried), true)?;
            if flags & Request::UNPROVEN != 0 {
                done(ops::wait_device(self.default), ())?;
            } else if foreign.free.is_none() {
                // The owner alone is told of no stream: what is ordered before the home must be over.
                done(ops::synchronize(self.home_ref(carried), self.default), ())?;
            }
        }
        let Source::Foreign(foreign) = &mut self.source else { return Ok(()) };
        let foreign = foreign.take();
        let (ptr, bytes) = (self.ptr, self.bytes);
        self.empty();
        release_foreign(foreign, ptr, bytes, &self.home);
        Ok(())
    }
}

fn release_foreign(foreign: Option<Box<Foreign>>, ptr: u64, bytes: usize, home: &StreamHold) {
    let Some(mut foreign) = foreign.map(|boxed| *boxed) else { return };
    if tenure_driver::process::unusable() {
        // The owner's language may be gone; nothing of it is entered.
        std::mem::forget(foreign);
        return;
    }
    if let Some(free) = foreign.free.take() {
        free(ptr, bytes, home.as_stored());
    }
}
