//! Buffers that grow and shrink: within the capacity in place, else by a move to a new block.

use super::{Buffer, device_of, free_counted, give_up, order_before};
use crate::device;
use crate::error::{Error, Result};
use crate::observe;
use crate::ops;
use crate::resource::{Light, Request};
use crate::stream::{StreamHold, StreamRef};
use crate::tools;

impl Buffer {
    /// Makes the buffer `bytes` bytes long on `stream`, which becomes the home. Within the capacity nothing moves.
    ///
    /// # Errors
    /// Those of an allocation; the buffer is as it was then.
    pub fn resize(&mut self, bytes: usize, stream: StreamHold) -> Result<()> {
        if bytes <= self.capacity {
            self.set_stream(stream)?;
            self.bytes = bytes;
            return Ok(());
        }
        self.move_to(bytes, bytes, stream)
    }

    /// Makes sure of a capacity of `bytes` bytes.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn reserve(&mut self, bytes: usize, stream: StreamHold) -> Result<()> {
        if bytes <= self.capacity {
            return self.set_stream(stream);
        }
        self.move_to(bytes, self.bytes, stream)
    }

    /// Reduces the capacity to the size.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn shrink_to_fit(&mut self, stream: StreamHold) -> Result<()> {
        if self.bytes == self.capacity {
            return self.set_stream(stream);
        }
        self.move_to(self.bytes, self.bytes, stream)
    }

    /// A new block of `capacity` bytes with the old contents, made on `stream`; then the old one is freed in its order.
    fn move_to(&mut self, capacity: usize, bytes: usize, stream: StreamHold) -> Result<()> {
        device::alive()?;
        let light = self.own()?;
        self.check_new_home(&stream)?;
        let request =
            Request::checked(capacity, self.align, light.id()).map_err(|error| observe::beyond(light, None, error))?;
        let carried = stream.as_carried();
        let keep = self.bytes.min(bytes);
        if keep != 0 {
            // Before anything is taken: what may fail here leaves nothing to undo.
            order_before(&self.home, carried, self.default)?;
            self.refuse_reading_into_graph(light, carried)?;
        }
        let ptr = if capacity == 0 { 0 } else { self.make_beside(light, &request, carried)? };
        // SAFETY: both blocks are live and at least this long; the old one is freed in the order of this very stream.
        if let Err(error) = unsafe { ops::copy_async(ptr, self.ptr, keep, carried, self.default) } {
            give_up(light, ptr, &request, carried);
            return Err(error);
        }
        let device =
            if ptr != 0 && light.body().device().is_none() { device_of(light, ptr, &stream) } else { self.device };
        let before = (self.home.clone(), self.used.clone());
        self.change_home(stream.clone().located());
        // The stream was named by the caller of this very call, so that it is alive.
        let freed = self.free_block(true, true, |n, request, s| free_counted(n, self.ptr, request, s));
        if let Err(error) = freed {
            // The old block stays, and with it everything as it was; the copy that reads it is on this stream.
            (self.home, self.used) = before;
            give_up(self.own()?, ptr, &request, stream.as_carried());
            drop(self.remember(stream));
            return Err(error);
        }
        if device >= 0 {
            self.default = device;
        } else if let Some(home) = self.home.device() {
            self.default = home;
        }
        self.ptr = ptr;
        self.capacity = capacity;
        self.bytes = bytes;
        self.device = device;
        self.used.clear();
        Ok(())
    }

    /// A move frees the old block. Where the copy that reads it becomes part of a graph, the graph would read what is
    /// somebody else's by the time it runs, unless the block is the graph's own.
    fn refuse_reading_into_graph(&self, light: &Light, stream: StreamRef<'_>) -> Result<()> {
        match device::capture_of(stream, self.default)? {
            Some(capture) if light.body().capture_of(self.ptr) != Some(capture) => Err(Error::Unsupported(
                "the stream is capturing, and the buffer's memory was made outside of this capture: the graph would copy \
                 from memory that the move frees; resize before the capture, or copy into a new buffer"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Allocates; on a default stream on the device of this buffer, whichever is current.
    fn make_beside(&self, light: &Light, request: &Request, stream: StreamRef<'_>) -> Result<u64> {
        let follows = light.body().device().is_none() && stream.object.is_none() && stream.raw.is_special();
        let _current =
            if follows && self.default >= 0 { Some(device::driver()?.device(self.default)?.enter()?) } else { None };
        let _range = tools::range(tools::Name::Allocate, request.bytes as u64);
        observe::allocate(light, request, Some(stream), || light.body().allocate(request, stream))
    }
}
