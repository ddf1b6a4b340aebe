//! The handles that everybody holds.
//!
//! [`Resource`] is an anchor: what a constructor gives, a table entry holds, an adaptor keeps of its upstream. [`Light`] is
//! made in bulk: a buffer's, or what the table hands to one call. Both deref to [`Named`], which has the operations. A raw
//! allocation holds a light of its own from [`Named::allocate`] to [`Named::deallocate`], so that a resource lives as long
//! as anything it made, whoever keeps what.

use std::fmt;
use std::ops::Deref;

use super::registry::{self, Slot};
use super::{Batch, Block, DEFAULT_ALIGNMENT, MAX_BYTES, MemoryResource, Request};
use crate::error::{Error, OneOf, Result};
use crate::observe;
use crate::stream::StreamRef;
use crate::thread::{self, Local};
use crate::tools;

/// The operations of a resource, on whatever kind of reference.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Named {
    slot: &'static Slot,
}

/// An owning handle of a resource (an anchor).
pub struct Resource {
    named: Named,
}

/// A cheap owning reference (a light).
pub struct Light {
    named: Named,
}

impl Named {
    /// A reference that is not counted, for one call whose caller holds a counted one: `None` when no resource of this id
    /// is alive.
    #[inline(always)]
    pub fn borrowed(id: u64) -> Option<Self> {
        registry::slot_of(id).map(|slot| Self { slot })
    }

    /// A number that no other resource of the process ever has.
    #[inline(always)]
    pub fn id(&self) -> u64 {
        self.slot.id()
    }

    /// What it does, uncounted: for layers that call their upstream.
    #[inline(always)]
    pub fn body(&self) -> &dyn MemoryResource {
        self.slot.body()
    }

    /// The concrete type, if it is `T`.
    pub fn downcast<T: MemoryResource>(&self) -> Option<&T> {
        self.body().as_any().downcast_ref()
    }

    /// One more owning handle.
    pub fn anchor(&self) -> Resource {
        self.slot.take_anchor();
        Resource { named: *self }
    }

    /// One more cheap reference.
    #[inline]
    pub fn light(&self) -> Light {
        thread::with(|here| self.light_of(here))
    }

    /// [`light`](Self::light) for a caller who has looked what is this thread's.
    #[inline(always)]
    pub fn light_of(&self, here: &Local) -> Light {
        self.slot.take_light(here);
        Light { named: *self }
    }

    /// Gives back an anchor that is not held in a [`Resource`].
    ///
    /// # Errors
    /// [`Error::BadHandle`] when there is none; nothing changed.
    pub fn drop_anchor(&self) -> Result<()> {
        self.slot.drop_anchor().map_err(|_| {
            Error::BadHandle(
                "this reference to the resource was released already: each reference is released once".into(),
            )
        })
    }

    /// Allocates `bytes` bytes usable in the order of `stream`, counted on this resource until
    /// [`deallocate`](Self::deallocate). 0 bytes give address 0 and call nobody.
    ///
    /// # Errors
    /// Bad sizes and alignments, out of memory, device faults, exit and fork.
    #[inline]
    pub fn allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        match self.allocate_at_hand(bytes, align, stream) {
            Some(answer) => answer.map_err(|e| *e),
            None => self.allocate_whole(bytes, align, stream),
        }
    }

    fn allocate_whole(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        self.counted(bytes, align, |body, request| {
            observe::allocate(self, request, Some(stream), || body.allocate(request, stream))
        })
    }

    /// The request in its plainest form, or `None` where something about it must be looked at.
    #[inline(always)]
    pub(crate) fn plain(&self, bytes: usize, align: usize) -> Option<Request> {
        let plain = align == DEFAULT_ALIGNMENT
            && bytes.wrapping_sub(1) < MAX_BYTES
            && !tenure_driver::process::unusable()
            && !tools::watched();
        plain.then(|| Request { bytes, align, owner: self.id(), flags: 0 })
    }

    /// [`allocate`](Self::allocate) of what the thread has at hand: `None`, with nothing changed, when that is not what is
    /// wanted. The error is boxed, so that the answer fits into registers.
    ///
    /// # Errors
    /// What the driver says to the question whether the stream is capturing.
    #[inline(always)]
    pub fn allocate_at_hand(
        &self,
        bytes: usize,
        align: usize,
        stream: StreamRef<'_>,
    ) -> Option<Result<u64, Box<Error>>> {
        let request = self.plain(bytes, align)?;
        thread::with(|here| {
            let answer = self.body().allocate_at_hand(&request, stream, here)?;
            if answer.is_ok() {
                self.slot.take_light(here);
            }
            Some(answer)
        })
    }

    /// [`deallocate`](Self::deallocate) into what the thread keeps at hand: false, with nothing changed, when anything about
    /// it must be looked at.
    #[inline(always)]
    pub fn deallocate_at_hand(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> bool {
        let Some(request) = self.plain(bytes, align) else { return false };
        thread::with(|here| {
            let done = self.body().deallocate_at_hand(ptr, &request, stream, here);
            if done {
                // Last of all: this may have been what kept the resource alive.
                self.slot.drop_light(here);
            }
            done
        })
    }

    /// [`allocate`](Self::allocate) that neither waits nor calls the driver or user code.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, and those of `allocate`.
    pub fn try_allocate(&self, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<u64> {
        // Of a raw value it would have to be asked which stream it is.
        if (stream.object.is_some() || stream.raw.is_special())
            && let Some(answer) = self.allocate_at_hand(bytes, align, stream)
        {
            return answer.map_err(|e| *e);
        }
        tools::may_not_wait()?;
        if bytes > MAX_BYTES {
            // The figures of the refusal may be the user's.
            return Err(Error::WouldBlock);
        }
        self.counted(bytes, align, |body, request| {
            observe::try_allocate(self, request, Some(stream), || body.try_allocate(request, stream))
        })
    }

    /// Allocates memory that is usable on any stream at return.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_sync(&self, bytes: usize, align: usize) -> Result<u64> {
        self.counted(bytes, align, |body, request| {
            observe::allocate(self, request, None, || body.allocate_sync(request))
        })
    }

    #[inline]
    fn counted(
        &self,
        bytes: usize,
        align: usize,
        f: impl FnOnce(&dyn MemoryResource, &Request) -> Result<u64>,
    ) -> Result<u64> {
        crate::device::alive()?;
        let request = Request::checked(bytes, align, self.id()).map_err(|error| observe::beyond(self, None, error))?;
        if bytes == 0 {
            return Ok(0);
        }
        let _range = tools::range(tools::Name::Allocate, bytes as u64);
        let ptr = f(self.body(), &request)?;
        self.take_light();
        Ok(ptr)
    }

    /// Frees in the order of `stream` what [`allocate`](Self::allocate) of this resource gave. Address 0 with 0 bytes is
    /// nothing to do.
    ///
    /// # Errors
    /// [`Error::Misuse`] when pointer, size, alignment or resource are not those of a live allocation: nothing happened.
    #[inline]
    pub fn deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        if self.deallocate_at_hand(ptr, bytes, align, stream) {
            return Ok(());
        }
        self.deallocate_whole(ptr, bytes, align, stream)
    }

    fn deallocate_whole(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        self.uncounted(ptr, bytes, align, |body, request| {
            observe::deallocate(self.id(), ptr, bytes, Some(stream), || body.deallocate(ptr, request, stream))
        })
    }

    /// [`deallocate`](Self::deallocate) that neither waits nor calls the driver or user code.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with nothing changed, and those of `deallocate`.
    pub fn try_deallocate(&self, ptr: u64, bytes: usize, align: usize, stream: StreamRef<'_>) -> Result<()> {
        if self.deallocate_at_hand(ptr, bytes, align, stream) {
            return Ok(());
        }
        tools::may_not_wait()?;
        self.uncounted(ptr, bytes, align, |body, request| {
            observe::deallocate(self.id(), ptr, bytes, Some(stream), || body.try_deallocate(ptr, request, stream))
        })
    }

    /// Frees memory that nothing uses any more.
    ///
    /// # Errors
    /// As [`deallocate`](Self::deallocate).
    pub fn deallocate_sync(&self, ptr: u64, bytes: usize, align: usize) -> Result<()> {
        self.uncounted(ptr, bytes, align, |body, request| {
            observe::deallocate(self.id(), ptr, bytes, None, || body.deallocate_sync(ptr, request))
        })
    }

    #[inline]
    fn uncounted(
        &self,
        ptr: u64,
        bytes: usize,
        align: usize,
        f: impl FnOnce(&dyn MemoryResource, &Request) -> Result<()>,
    ) -> Result<()> {
        if tenure_driver::process::unusable() {
            // At exit and in a forked child a free only returns (ownership.md, rule 8).
            return Ok(());
        }
        let request = Request::checked(bytes, align, self.id())?;
        if ptr == 0 && bytes == 0 {
            return Ok(());
        }
        if bytes == 0 {
            return Err(Error::Misuse(crate::error::Misuse {
                kind: crate::error::MisuseKind::WrongSize,
                ptr,
                bytes: 0,
                asked: self.id(),
                owner: 0,
                owner_bytes: 0,
            }));
        }
        let _range = tools::range(tools::Name::Deallocate, bytes as u64);
        f(self.body(), &request)?;
        // Last of all: this may have been what kept the resource alive.
        thread::with(|here| self.slot.drop_light(here));
        Ok(())
    }

    /// Allocates one block for each of `sizes`, all of them or none, into `out`, which is as long. 0 bytes give address 0.
    /// Each is an allocation like any other: it is freed by itself or with others.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate); what was had is given back then, and `out` is all 0.
    pub fn allocate_many(&self, sizes: &[usize], align: usize, stream: StreamRef<'_>, out: &mut [u64]) -> Result<()> {
        self.make_many(sizes, align, stream, out)?;
        self.slot.take_lights(sizes.iter().filter(|bytes| **bytes != 0).count());
        Ok(())
    }

    /// [`allocate_many`](Self::allocate_many) for a caller who holds a light for each block.
    pub(crate) fn make_many(
        &self,
        sizes: &[usize],
        align: usize,
        stream: StreamRef<'_>,
        out: &mut [u64],
    ) -> Result<()> {
        out.fill(0);
        crate::device::alive()?;
        same_length(out.len(), sizes)?;
        let batch =
            Batch::checked(sizes, align, self.id()).map_err(|error| observe::beyond(self, Some(stream), error))?;
        let total = batch.total();
        if total == 0 {
            return Ok(());
        }
        let _range = tools::range(tools::Name::Allocate, total);
        observe::allocate_many(self, &batch, stream, out, |out| self.body().allocate_many(&batch, stream, out))
    }

    /// Frees in the order of `stream` what [`allocate`](Self::allocate) or [`allocate_many`](Self::allocate_many) gave. Each
    /// block is checked: one that is wrong stays as it is, and every other is freed, so that nothing is lost. Address 0 with
    /// 0 bytes is passed over.
    ///
    /// # Errors
    /// [`Error::OneOf`] with the place and the error of the first that was not freed; [`Error::Invalid`], with nothing freed,
    /// where there are not as many sizes as addresses, and for an alignment that is none.
    pub fn deallocate_many(&self, ptrs: &[u64], sizes: &[usize], align: usize, stream: StreamRef<'_>) -> Result<()> {
        if tenure_driver::process::unusable() {
            return Ok(());
        }
        same_length(ptrs.len(), sizes)?;
        let batch = Batch::given(sizes, align, self.id())?;
        let _range = tools::range(tools::Name::Deallocate, batch.total());
        let free = || self.body().deallocate_many(ptrs, &batch, stream);
        let freed = observe::deallocate_many(self, ptrs, &batch, stream, free);
        let result = match freed.wrong {
            None => Ok(()),
            Some((at, error)) => {
                Err(Error::OneOf(Box::new(OneOf { at, count: ptrs.len(), freed: freed.count, error })))
            }
        };
        // Last of all: these may have been what kept the resource alive.
        self.slot.drop_lights(freed.count);
        result
    }

    /// Gives back what is cached, down to `keep_bytes`; says how many bytes went.
    ///
    /// # Errors
    /// Device faults; what was given back before stays given back.
    pub fn trim(&self, keep_bytes: usize) -> Result<usize> {
        let released = self.body().trim(keep_bytes)?;
        observe::trim_event(self.id(), released);
        Ok(released)
    }

    /// True when a live allocation that was asked of this very resource contains `ptr`.
    pub fn owns(&self, ptr: u64) -> bool {
        self.block(ptr).is_some()
    }

    /// The live allocation around `ptr` that was asked of this very resource.
    pub fn block(&self, ptr: u64) -> Option<Block> {
        self.body().find(ptr).filter(|block| block.owner == self.id())
    }

    /// The kinds of this resource and what it stands on, outermost first: `"statistics > pool > cuda"`.
    pub fn stack(&self) -> String {
        let mut text = self.body().kind().to_owned();
        if let Some(upstream) = self.body().upstream() {
            text.push_str(" > ");
            text.push_str(&upstream.stack());
        }
        text
    }

    /// Anchors and lights now. Exact only while nobody else changes them; for tests and reports.
    pub fn references(&self) -> (i64, i64) {
        self.slot.references()
    }

    pub(crate) fn take_light(&self) {
        thread::with(|here| self.slot.take_light(here));
    }
}

fn same_length(addresses: usize, sizes: &[usize]) -> Result<()> {
    if addresses == sizes.len() {
        return Ok(());
    }
    Err(Error::invalid(format!("{addresses} addresses and {} sizes: give one size for each block", sizes.len())))
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.slot, other.slot)
    }
}

impl Eq for Named {}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (#{:x})", self.stack(), self.id())
    }
}

impl Resource {
    /// Takes a resource in and gives the first handle of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when an absurd number of resources is alive.
    pub fn new(body: impl MemoryResource) -> Result<Self> {
        tools::look();
        let resource = registry::insert(Box::new(body)).map(Self::from_anchor)?;
        observe::resource_event(resource.id(), resource.body().kind(), true);
        Ok(resource)
    }

    pub(crate) fn from_anchor(slot: &'static Slot) -> Self {
        Self { named: Named { slot } }
    }

    /// Takes over an anchor that [`into_raw`](Self::into_raw) let go of.
    ///
    /// # Errors
    /// [`Error::BadHandle`] when no resource of this id is alive.
    pub fn from_raw(id: u64) -> Result<Self> {
        Named::borrowed(id).map(|named| Self { named }).ok_or_else(|| {
            Error::BadHandle("this resource handle is null, was released, or is not one of tenure's".into())
        })
    }

    /// Lets go of the anchor without dropping it; the id stands for it.
    #[must_use]
    pub fn into_raw(self) -> u64 {
        let id = self.id();
        std::mem::forget(self);
        id
    }
}

impl Clone for Resource {
    fn clone(&self) -> Self {
        self.named.anchor()
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        // Cannot be an anchor too many: this handle is one.
        let _ = self.named.slot.drop_anchor();
    }
}

impl Light {
    /// Lets go of the light without dropping it; the id stands for it.
    #[must_use]
    pub fn into_raw(self) -> u64 {
        let id = self.id();
        std::mem::forget(self);
        id
    }

    /// Drops it, for a caller who has looked what is this thread's.
    #[inline(always)]
    pub fn end(self, here: &Local) {
        let slot = self.named.slot;
        std::mem::forget(self);
        slot.drop_light(here);
    }

    /// Takes over a light that [`into_raw`](Self::into_raw) let go of, or that a raw allocation holds. One light is taken
    /// over once.
    pub fn from_raw(named: Named) -> Self {
        Self { named }
    }
}

impl Clone for Light {
    fn clone(&self) -> Self {
        self.named.light()
    }
}

impl Drop for Light {
    #[inline]
    fn drop(&mut self) {
        thread::with(|here| self.named.slot.drop_light(here));
    }
}

impl Deref for Resource {
    type Target = Named;
    fn deref(&self) -> &Named {
        &self.named
    }
}

impl Deref for Light {
    type Target = Named;
    fn deref(&self) -> &Named {
        &self.named
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.named == other.named
    }
}

impl Eq for Resource {}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named.fmt(f)
    }
}

impl fmt::Debug for Light {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named.fmt(f)
    }
}
