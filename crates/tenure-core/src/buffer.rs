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
//!   alive (a raw value), or cannot be named here (the per-thread default stream of another thread), or is capturing, the
//!   block is marked unproven.
//! * The default streams that a buffer names are those of one device, whichever is current: the device of its memory, and for
//!   memory of the host the one that its maker took for the default stream.

mod detached;
mod foreign;
mod many;
mod order;
mod shared;
mod size;

pub use self::detached::Detached;
pub use self::foreign::{Foreign, ForeignFree};
pub use self::order::Original;
use self::order::{check_device, check_home, default_of, default_of_current, done, order_before};

use crate::current;
use crate::device;
use crate::error::{Error, Result};
use crate::observe;
use crate::ops;
use crate::resource::{DEFAULT_ALIGNMENT, Light, MAX_BYTES, Named, Properties, Request};
use crate::stream::{StreamHold, StreamObject, StreamRef};
use crate::sync::Arc;
use crate::thread::{self, Local};
use crate::tools;

enum Source {
    Resource(Light),
    /// Boxed, so that a buffer of a resource, of which there are many, is small.
    Foreign(Option<Box<Foreign>>),
}

/// An allocation with an owner.
pub struct Buffer {
    ptr: u64,
    bytes: usize,
    capacity: usize,
    align: usize,
    device: i32,
    /// The device whose default streams are meant; -1 when there is none.
    default: i32,
    properties: Properties,
    source: Source,
    home: StreamHold,
    used: Vec<StreamHold>,
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

/// A block that is about to become a buffer's.
#[must_use]
pub struct Block {
    ptr: u64,
    bytes: usize,
    align: usize,
    device: i32,
}

/// The references of a buffer that has ended.
#[must_use]
pub struct Left {
    source: Source,
    stream: Option<Arc<StreamObject>>,
}

impl Left {
    /// Drops them.
    #[inline(always)]
    pub fn end(self, here: &Local) {
        drop(self.stream);
        // Last of all: this may have been what kept the resource alive.
        if let Source::Resource(light) = self.source {
            light.end(here);
        }
    }
}

fn or_default(align: usize) -> usize {
    if align == 0 { DEFAULT_ALIGNMENT } else { align }
}

impl Buffer {
    /// Makes a buffer of `bytes` bytes under `resource`, freed in the order of `home` from whichever thread.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn create(bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        match thread::with(|here| Self::block_at_hand(bytes, or_default(align), home.as_carried(), &resource, here)) {
            Some(Ok(block)) => return Ok(Self::of_block(&block, resource.body().properties(), home, resource)),
            Some(Err(error)) => return Err(*error),
            None => {}
        }
        Self::create_by(bytes, align, home, resource, |named, request, stream| {
            observe::allocate(named, request, Some(stream), || named.body().allocate(request, stream))
        })
    }

    /// Takes a block for a buffer out of what the thread has at hand, which [`of_block`](Self::of_block) makes a buffer of:
    /// `None`, with nothing changed, when that is not what is wanted. The answer is small, and the buffer can be made where it
    /// will be. Until then the block is nobody's.
    ///
    /// # Errors
    /// What the driver says to the question whether the stream is capturing.
    #[inline]
    pub fn block_at_hand(
        bytes: usize,
        align: usize,
        stream: StreamRef<'_>,
        resource: &Named,
        here: &Local,
    ) -> Option<Result<Block, Box<Error>>> {
        let request = resource.plain(bytes, align)?;
        let body = resource.body();
        let device = body.device().filter(|device| *device >= 0)?;
        if !stream.outlives_call() && body.needs_live_stream() {
            return None;
        }
        let made = body.allocate_at_hand(&request, stream, here)?;
        Some(made.map(|ptr| Block { ptr, bytes, align, device }))
    }

    /// A buffer of such a block, with a light on the resource that made it and what that says its memory can do, and with the
    /// stream that it was made on.
    #[inline(always)]
    pub fn of_block(block: &Block, properties: Properties, home: StreamHold, resource: Light) -> Self {
        let Block { ptr, bytes, align, device } = *block;
        Self {
            ptr,
            bytes,
            capacity: bytes,
            align,
            device,
            default: device,
            properties,
            source: Source::Resource(resource),
            home,
            used: Vec::new(),
        }
    }

    /// [`create`](Self::create) that neither waits nor calls the driver or user code. On failure stream and resource come
    /// back.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, and those of the allocation.
    pub fn try_create(bytes: usize, align: usize, home: StreamHold, resource: Light) -> Result<Self> {
        // Of a raw value it would have to be asked which stream it is.
        if home.as_carried().outlives_call() {
            match thread::with(|here| Self::block_at_hand(bytes, or_default(align), home.as_carried(), &resource, here))
            {
                Some(Ok(block)) => return Ok(Self::of_block(&block, resource.body().properties(), home, resource)),
                Some(Err(error)) => return Err(*error),
                None => {}
            }
        }
        if resource.body().device().is_none() && bytes != 0 {
            // Which device that is, only the driver can say.
            return Err(Error::WouldBlock);
        }
        tools::may_not_wait()?;
        if bytes > MAX_BYTES {
            // The figures of the refusal may be the user's.
            return Err(Error::WouldBlock);
        }
        Self::create_by(bytes, align, home, resource, |named, request, stream| {
            observe::try_allocate(named, request, Some(stream), || named.body().try_allocate(request, stream))
        })
    }

    fn create_by(
        bytes: usize,
        align: usize,
        home: StreamHold,
        resource: Light,
        allocate: impl FnOnce(&Named, &Request, StreamRef<'_>) -> Result<u64>,
    ) -> Result<Self> {
        device::alive()?;
        let align = or_default(align);
        let request =
            Request::checked(bytes, align, resource.id()).map_err(|error| observe::beyond(&resource, None, error))?;
        check_home(&resource, &home)?;
        let ptr = if bytes == 0 {
            0
        } else {
            let _range = tools::range(tools::Name::Allocate, bytes as u64);
            allocate(&resource, &request, home.as_carried())?
        };
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
            default: default_of(device, &home),
            properties,
            source: Source::Resource(resource),
            home,
            used: Vec::new(),
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
                "this buffer was adopted with an owner and has no resource to allocate from: copy it under one first"
                    .into(),
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
        self.remember_of_current(&home);
        self.change_home(home.located());
        Ok(())
    }

    fn check_new_home(&self, home: &StreamHold) -> Result<()> {
        let Source::Resource(light) = &self.source else { return Ok(()) };
        check_home(light, home)?;
        check_device(light, home)
    }

    fn change_home(&mut self, home: StreamHold) {
        let old = std::mem::replace(&mut self.home, home);
        drop(self.remember(old));
    }

    /// Says that work on `stream` uses the buffer: the memory is not reused before all work enqueued on it until the free.
    pub fn record_stream(&mut self, stream: StreamHold) {
        let uses = self.original().uses(stream);
        drop(self.add_uses(uses));
    }

    /// [`record_stream`](Self::record_stream) for what [`Original::uses`] gave. Calls nobody; gives back what the buffer knew
    /// already, to be dropped where no lock is held.
    pub fn add_uses(&mut self, uses: [Option<StreamHold>; 2]) -> [Option<StreamHold>; 2] {
        if self.ptr == 0 {
            return uses;
        }
        uses.map(|used| used.and_then(|used| self.remember(used)))
    }

    /// A default stream is that of the buffer's device. Where another device is current, its own may have been meant.
    fn remember_of_current(&mut self, stream: &StreamHold) {
        if self.ptr != 0
            && let Some(other) = default_of_current(self.default, stream)
        {
            drop(self.remember(other));
        }
    }

    /// Takes it among the used streams, or gives it back.
    fn remember(&mut self, stream: StreamHold) -> Option<StreamHold> {
        if stream.is_same(&self.home) || self.used.iter().any(|used| used.is_same(&stream)) {
            return Some(stream);
        }
        self.used.push(stream);
        None
    }

    /// Orders the home after every used stream and says with which flags the block must be freed. `home` is the home as the
    /// free will name it.
    fn settle(&self, home: StreamRef<'_>, may_call: bool) -> Result<u32> {
        let named = home.is_live() && self.home.is_of_this_thread();
        let mut flags = if self.home.is_of_this_thread() { 0 } else { Request::UNPROVEN };
        // A proof will be of the block's own device.
        let wait_elsewhere = |stream: &StreamHold| match stream.device().filter(|other| *other != self.default) {
            None => Ok(()),
            Some(_) if !may_call => Err(Error::WouldBlock),
            Some(other) => done(ops::wait_device(other), ()),
        };
        if !named {
            wait_elsewhere(&self.home)?;
        }
        for used in &self.used {
            let can_be_ordered = named && used.can_be_named();
            if can_be_ordered && !may_call {
                return Err(Error::WouldBlock);
            }
            if can_be_ordered && done(ops::order_unless_capturing(home, used.as_stored(), self.default), true)? {
                continue;
            }
            flags |= Request::UNPROVEN;
            wait_elsewhere(used)?;
        }
        Ok(flags)
    }

    /// The home, as a free names it: as `carried` by the caller of this very call, or out of the buffer's memory.
    fn home_ref(&self, carried: bool) -> StreamRef<'_> {
        if carried { self.home.as_carried() } else { self.home.as_stored() }
    }

    fn free_block(
        &self,
        carried: bool,
        may_call: bool,
        free: impl FnOnce(&Named, &Request, StreamRef<'_>) -> Result<()>,
    ) -> Result<()> {
        let Source::Resource(light) = &self.source else {
            return Ok(());
        };
        if self.ptr == 0 || tenure_driver::process::unusable() {
            return Ok(());
        }
        let home = self.home_ref(carried);
        let flags = self.settle(home, may_call)?;
        let request = Request { bytes: self.capacity, align: self.align, owner: light.id(), flags };
        let _range = tools::range(tools::Name::Deallocate, self.capacity as u64);
        free(light, &request, home)
    }

    /// Frees the memory now, in the order of the home stream, or of `stream`, which then becomes the home. The buffer is
    /// empty afterwards and still holds its resource.
    ///
    /// # Errors
    /// Misuse and device faults; the buffer keeps its memory, its home and its used streams then.
    pub fn close(&mut self, stream: Option<StreamHold>) -> Result<()> {
        let Some(stream) = stream else { return self.close_now(false) };
        if let Source::Resource(light) = &self.source {
            // The caller carries it, so that the free may name it also where nothing keeps it alive.
            check_device(light, &stream)?;
        }
        let before = (self.home.clone(), self.used.clone());
        self.remember_of_current(&stream);
        self.change_home(stream.located());
        let closed = self.close_now(true);
        if closed.is_err() {
            (self.home, self.used) = before;
        }
        closed
    }

    /// Ends a buffer whose block goes into what the thread keeps at hand: `None`, with nothing changed, when anything about it
    /// must be looked at. Calls nobody. All that the buffer held is in the answer: nothing is left of it that must be dropped.
    #[inline(always)]
    pub fn end_at_hand(&mut self, here: &Local) -> Option<Left> {
        if self.used.capacity() != 0 || !self.free_at_hand(here) {
            return None;
        }
        self.ptr = 0;
        let source = std::mem::replace(&mut self.source, Source::Foreign(None));
        Some(Left { source, stream: self.home.let_go() })
    }

    #[inline(always)]
    fn free_at_hand(&self, here: &Local) -> bool {
        let Source::Resource(light) = &self.source else { return false };
        let Some(request) = light.plain(self.capacity, self.align) else { return false };
        // What `settle` would find nothing to do for.
        let elsewhere = |home: &StreamHold| home.device().is_some_and(|device| device != self.default);
        let settled = self.used.is_empty()
            && self.home.is_of_this_thread()
            && (self.home.as_stored().is_live() || !elsewhere(&self.home));
        settled && light.body().deallocate_at_hand(self.ptr, &request, self.home.as_stored(), here)
    }

    fn close_now(&mut self, carried: bool) -> Result<()> {
        if thread::with(|here| self.free_at_hand(here)) {
            self.empty();
            return Ok(());
        }
        if matches!(self.source, Source::Foreign(_)) {
            return self.close_foreign(carried);
        }
        self.free_block(carried, true, |n, request, s| free_counted(n, self.ptr, request, s))?;
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
        if thread::with(|here| self.free_at_hand(here)) {
            self.empty();
            return Ok(());
        }
        tools::may_not_wait()?;
        self.free_block(false, false, |n, request, s| {
            let free = || n.body().try_deallocate(self.ptr, request, s);
            observe::deallocate(n.id(), self.ptr, request.bytes, Some(s), free)
        })?;
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

    /// Orders work on `stream` after everything that was ordered with this buffer's home.
    ///
    /// # Errors
    /// A capturing stream; what the driver says.
    pub fn order_before(&self, stream: StreamRef<'_>) -> Result<()> {
        order_before(&self.home, stream, self.default)
    }

    /// What a copy needs to know.
    pub fn original(&self) -> Original {
        Original { ptr: self.ptr, bytes: self.bytes, align: self.align, default: self.default, home: self.home.clone() }
    }

    /// A copy made on `stream` under `resource`.
    ///
    /// # Errors
    /// Those of an allocation and of a copy; nothing is left behind.
    pub fn copy(&mut self, stream: StreamHold, resource: Light) -> Result<Self> {
        let (copy, used) = self.original().copy(stream, resource)?;
        if copy.bytes != 0 {
            self.record_stream(used);
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

impl Buffer {
    #[cold]
    fn close_at_drop(&mut self) {
        if let Err(error) = self.close(None) {
            crate::misuse::report(&error);
            self.abandon();
        }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.ptr != 0 || matches!(self.source, Source::Foreign(Some(_))) {
            self.close_at_drop();
        }
    }
}

/// Frees a block as the public entry does.
fn free_counted(resource: &Named, ptr: u64, request: &Request, stream: StreamRef<'_>) -> Result<()> {
    let free = || resource.body().deallocate(ptr, request, stream);
    observe::deallocate(resource.id(), ptr, request.bytes, Some(stream), free)
}

/// Gives a block back that was made a moment ago and that nobody has. Where even that fails it is reported and stays live,
/// with a reference of its own.
fn give_up(resource: &Named, ptr: u64, request: &Request, stream: StreamRef<'_>) {
    if ptr == 0 {
        return;
    }
    let _range = tools::range(tools::Name::Deallocate, request.bytes as u64);
    if let Err(error) = free_counted(resource, ptr, request, stream) {
        crate::misuse::report(&error);
        resource.take_light();
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
