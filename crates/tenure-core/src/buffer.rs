//! Buffers: an allocation with an owner.
//!
//! ```text
//!   Buffer { ptr, bytes, capacity }
//!      |-- source   a light on the resource that made the block (or the foreign owner that keeps it)
//!      |-- home     the stream in whose order it is freed
//!      |-- used     streams whose work must be done before it is reused
//! ```
//!
//! # Invariants
//! * A buffer of tenure's memory holds exactly one light, also when it has no bytes or was emptied: its resource and its
//!   stream live as long as it does.
//! * What replaces a block, a resource or a stream is taken before the old one is given up; a failed operation leaves the
//!   buffer as it was.
//! * A free names the home stream; every used stream that is alive is ordered before it, and where one is not known to be
//!   alive (a raw value) the block is marked unproven.

use smallvec::SmallVec;

use crate::current;
use crate::error::{Error, Payload, Result};
use crate::ops;
use crate::resource::{DEFAULT_ALIGNMENT, Light, Named, Properties, Request};
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

enum Source {
    Resource(Light),
    Foreign(Option<Foreign>),
}

/// An allocation with an owner.
pub struct Buffer {
    ptr: u64,
    bytes: usize,
    capacity: usize,
    align: usize,
    device: i32,
    properties: Properties,
    source: Source,
    home: StreamHold,
    used: SmallVec<[StreamHold; 1]>,
}

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

fn alive() -> Result<()> {
    match tenure_driver::process::check() {
        Ok(()) => Ok(()),
        Err(tenure_driver::process::Unusable::Forked) => Err(Error::Forked),
        Err(tenure_driver::process::Unusable::Exiting) => Err(Error::Exiting),
    }
}

/// The resource of a call: the one that was given, or the current one of the stream's device, read here and nowhere below.
///
/// # Errors
/// Those of [`current::get`], and of asking the stream for its device.
pub fn resolve(resource: Option<&Named>, stream: StreamRef<'_>) -> Result<Light> {
    match resource {
        Some(named) => Ok(named.light()),
        None => current::get(stream.device()?.unwrap_or(-1)),
    }
}

impl Buffer {
    /// Makes a buffer of `bytes` bytes under `resource`, freed in the order of `home` from whichever thread.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn create(bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        Self::create_by(bytes, align, home, resource, |named, request, stream| named.body().allocate(request, stream))
    }

    /// [`create`](Self::create) that neither waits nor calls the driver or user code. On failure stream and resource come
    /// back.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, and those of the allocation.
    pub fn try_create(bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        if resource.body().device().is_none() && bytes != 0 {
            // Which device that is, only the driver can say.
            return Err(Error::WouldBlock);
        }
        Self::create_by(bytes, align, home, resource, |named, request, stream| named.body().try_allocate(request, stream))
    }

    fn create_by(
        bytes: usize,
        align: usize,
        home: StreamHold,
        resource: Light,
        allocate: impl FnOnce(&Named, &Request, StreamRef<'_>) -> Result<u64>,
    ) -> Result<Self> {
        alive()?;
        let align = if align == 0 { DEFAULT_ALIGNMENT } else { align };
        let request = Request::checked(bytes, align, resource.id())?;
        check_home(&resource, &home)?;
        let ptr = if bytes == 0 { 0 } else { allocate(&resource, &request, home.as_carried())? };
        let properties = resource.body().properties();
        let device = match resource.body().device() {
            Some(device) => device,
            None => device_of(&resource, ptr, &home),
        };
        Ok(Self {
            ptr,
            bytes,
            capacity: bytes,
            align,
            device,
            properties,
            source: Source::Resource(resource),
            home,
            used: SmallVec::new(),
        })
    }

    /// Makes a buffer of a block that `resource` made and that nobody else will free.
    ///
    /// # Errors
    /// [`Error::Misuse`] when `resource` did not make a block of this address and size; [`Error::Invalid`] for address 0
    /// with bytes.
    pub fn adopt(ptr: u64, bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        use crate::error::{Misuse, MisuseKind};
        alive()?;
        let align = if align == 0 { DEFAULT_ALIGNMENT } else { align };
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
        if bytes > block.bytes {
            return wrong(MisuseKind::WrongSize, block.owner, block.bytes);
        }
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
            properties,
            source: Source::Resource(counted),
            home,
            used: SmallVec::new(),
        })
    }

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
            properties,
            source: Source::Foreign(Some(foreign)),
            home,
            used: SmallVec::new(),
        })
    }

    /// Where the memory starts; 0 when there is none.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Alignment that was asked for, in bytes.
    pub fn align(&self) -> usize {
        self.align
    }

    /// The device of the memory; -1 for memory of the host.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// What the memory can do.
    pub fn properties(&self) -> Properties {
        self.properties
    }

    /// The home stream.
    pub fn home(&self) -> &StreamHold {
        &self.home
    }

    /// The resource, unless the buffer was adopted with an owner.
    pub fn resource(&self) -> Option<&Named> {
        match &self.source {
            Source::Resource(light) => Some(light),
            Source::Foreign(_) => None,
        }
    }

    fn own(&self) -> Result<&Light> {
        match &self.source {
            Source::Resource(light) => Ok(light),
            Source::Foreign(_) => Err(Error::Unsupported(
                "this buffer was adopted with an owner and has no resource to allocate from: copy it under one first".into(),
            )),
        }
    }

    /// Makes `home` the stream in whose order the buffer is freed. The old home stays among the used streams.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream that the resource cannot free on: of another device, or a raw value where one is
    /// needed that is kept alive. Nothing changed then.
    pub fn set_stream(&mut self, home: StreamHold) -> Result<()> {
        self.check_new_home(&home)?;
        self.change_home(home);
        Ok(())
    }

    fn check_new_home(&self, home: &StreamHold) -> Result<()> {
        let Source::Resource(light) = &self.source else { return Ok(()) };
        check_home(light, home)?;
        let Some(own) = light.body().device().filter(|own| *own >= 0) else { return Ok(()) };
        if home.held().is_none() && home.value().is_special() {
            return Ok(());
        }
        match home.as_carried().device()? {
            Some(other) if other != own => Err(Error::invalid(format!(
                "the stream belongs to device {other} and the buffer's {} resource to device {own}: use a stream of device \
                 {own} as the home, and record_stream for work elsewhere",
                light.body().kind()
            ))),
            _ => Ok(()),
        }
    }

    fn change_home(&mut self, home: StreamHold) {
        let old = std::mem::replace(&mut self.home, home);
        self.remember(old);
    }

    /// Says that work on `stream` uses the buffer: the memory is not reused before all work enqueued on it until the free.
    pub fn record_stream(&mut self, stream: StreamHold) {
        self.remember(stream);
    }

    fn remember(&mut self, stream: StreamHold) {
        if !stream.is_same(&self.home) && !self.used.iter().any(|u| u.is_same(&stream)) {
            self.used.push(stream);
        }
    }

    /// Orders the home after every used stream and says with which flags the block must be freed.
    fn settle(&self, may_call: bool) -> Result<u32> {
        let home = self.home.as_stored();
        let mut flags = 0;
        for used in &self.used {
            let used = used.as_stored();
            if !used.is_live() || !home.is_live() {
                flags |= Request::UNPROVEN;
            } else if may_call {
                ops::order_after(home, used, self.device)?;
            } else {
                return Err(Error::WouldBlock);
            }
        }
        Ok(flags)
    }

    fn free_block(
        &self,
        ptr: u64,
        capacity: usize,
        may_call: bool,
        free: impl FnOnce(&Named, &Request, StreamRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let Source::Resource(light) = &self.source else {
            return Ok(());
        };
        if ptr == 0 || tenure_driver::process::unusable() {
            return Ok(());
        }
        let flags = self.settle(may_call)?;
        let request = Request { bytes: capacity, align: self.align, owner: light.id(), flags };
        free(light, &request, self.home.as_stored())
    }

    /// Frees the memory now, in the order of the home stream, or of `stream`, which then becomes the home. The buffer is
    /// empty afterwards and still holds its resource.
    ///
    /// # Errors
    /// Misuse and device faults; the buffer keeps its memory then.
    pub fn close(&mut self, stream: Option<StreamHold>) -> Result<()> {
        if let Some(stream) = stream {
            self.set_stream(stream)?;
        }
        if let Source::Foreign(foreign) = &mut self.source {
            let foreign = foreign.take();
            let (ptr, bytes) = (self.ptr, self.bytes);
            self.empty();
            release_foreign(foreign, ptr, bytes, &self.home);
            return Ok(());
        }
        self.free_block(self.ptr, self.capacity, true, |n, request, s| n.body().deallocate(self.ptr, request, s))?;
        self.empty();
        Ok(())
    }

    /// [`close`](Self::close) on the home stream that neither waits nor calls the driver or user code.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, and those of `close`.
    pub fn try_close(&mut self) -> Result<()> {
        if matches!(self.source, Source::Foreign(Some(_))) {
            return Err(Error::WouldBlock);
        }
        self.free_block(self.ptr, self.capacity, false, |n, request, s| n.body().try_deallocate(self.ptr, request, s))?;
        self.empty();
        Ok(())
    }

    /// Gives a block up that could not be freed: it stays live, and its resource must not be closed under it.
    pub fn abandon(&mut self) {
        if self.ptr != 0
            && let Source::Resource(light) = &self.source
        {
            light.take_light();
        }
        self.empty();
    }

    fn empty(&mut self) {
        self.ptr = 0;
        self.bytes = 0;
        self.capacity = 0;
        self.used.clear();
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
            let flags = self.settle(true)?;
            if flags & Request::UNPROVEN != 0 {
                ops::wait_device(self.device)?;
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
        alive()?;
        let light = self.own()?;
        self.check_new_home(&stream)?;
        let request = Request::checked(capacity, self.align, light.id())?;
        let carried = stream.as_carried();
        let keep = self.bytes.min(bytes);
        if keep != 0 {
            // Before anything is taken: what may fail here leaves nothing to undo.
            self.order_before(carried)?;
        }
        let ptr = if capacity == 0 { 0 } else { light.body().allocate(&request, carried)? };
        // SAFETY: both blocks are live and at least this long; the old one is freed in the order of this very stream.
        if let Err(error) = unsafe { ops::copy_async(ptr, self.ptr, keep, carried, self.device) } {
            // The new block was made on this stream a moment ago and nothing uses it.
            let _ = light.body().deallocate(ptr, &request, carried);
            return Err(error);
        }
        let (old_ptr, old_capacity) = (self.ptr, self.capacity);
        self.change_home(stream);
        let freed = self.free_block(old_ptr, old_capacity, true, |n, request, s| {
            // The stream was named by the caller of this very call, so that it is alive.
            n.body().deallocate(old_ptr, request, StreamRef { stored: false, ..s })
        });
        self.ptr = ptr;
        self.capacity = capacity;
        self.bytes = bytes;
        self.used.clear();
        freed
    }

    /// Orders work on `stream` after everything that was ordered with this buffer's home.
    ///
    /// # Errors
    /// What the driver says.
    pub fn order_before(&self, stream: StreamRef<'_>) -> Result<()> {
        let home = self.home.as_stored();
        if home.raw == stream.raw && home.object.map(|o| o.id()) == stream.object.map(|o| o.id()) {
            return Ok(());
        }
        if home.is_live() {
            ops::order_after(stream, home, self.device)
        } else if home.raw == stream.raw {
            // The caller carries the very value that the buffer keeps: it is alive and the same stream, or the handle was
            // reissued, which only happens after the old stream's work is done or by a caller who broke rule 6.
            Ok(())
        } else {
            ops::wait_device(self.device)
        }
    }

    /// A copy made on `stream` under `resource`.
    ///
    /// # Errors
    /// Those of an allocation and of a copy; nothing is left behind.
    pub fn copy(&mut self, stream: StreamHold, resource: Light) -> Result<Self> {
        let mut copy = Self::create(self.bytes, self.align.max(DEFAULT_ALIGNMENT), stream.clone(), resource)?;
        if self.bytes != 0 {
            let copied = self.order_before(stream.as_carried()).and_then(|()| {
                // SAFETY: both blocks are live; the copy's home is this stream, and this buffer records it as used below.
                unsafe { ops::copy_async(copy.ptr, self.ptr, self.bytes, stream.as_carried(), copy.device) }
            });
            if let Err(error) = copied {
                copy.close(None)?;
                return Err(error);
            }
            self.record_stream(stream);
        }
        Ok(copy)
    }

    /// Ends the buffer: frees its memory in the order of its home.
    ///
    /// # Errors
    /// Misuse and device faults: the block stays as it is, and the buffer comes back so that its holder can decide.
    pub fn destroy(mut self) -> Result<(), (Error, Box<Self>)> {
        match self.close(None) {
            Ok(()) => Ok(()),
            Err(error) => Err((error, Box::new(self))),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.ptr != 0
            && let Err(error) = self.close(None)
        {
            crate::misuse::report(&error);
            self.abandon();
        }
    }
}

/// A resource that must name a living stream when it frees is not given one that may be dead by then.
fn check_home(resource: &Named, home: &StreamHold) -> Result<()> {
    if home.as_stored().is_live() || !resource.body().needs_live_stream() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a {} resource frees on the stream itself, and nothing keeps this raw stream alive until then: pass a stream object, \
         or state stream_outlives_buffer when the resource is made",
        resource.body().kind()
    )))
}

fn release_foreign(foreign: Option<Foreign>, ptr: u64, bytes: usize, home: &StreamHold) {
    let Some(mut foreign) = foreign else { return };
    if tenure_driver::process::unusable() {
        // The owner's language may be gone; nothing of it is entered.
        std::mem::forget(foreign);
        return;
    }
    if let Some(free) = foreign.free.take() {
        free(ptr, bytes, home.as_stored());
    }
}

/// Of a resource that has no device of its own: the block's, else the stream's.
fn device_of(resource: &Named, ptr: u64, home: &StreamHold) -> i32 {
    if ptr != 0
        && let Some(block) = resource.body().find(ptr)
    {
        return block.device;
    }
    match home.as_carried().device() {
        Ok(Some(device)) => device,
        _ => -1,
    }
}
