//! Many blocks in one call.
//!
//! ```text
//!   allocate_many   [4096, 0, 512]  ->  [ptr, 0, ptr]      all of them, or an error and none
//!   deallocate_many [ptr, 0, ptr]   ->  each is checked    a wrong one is named, and every other is freed
//! ```
//!
//! What a batch saves is said once instead of for each block: who asks (one question whether the stream is capturing), the
//! thread's latch, the pool's lock, the count of what keeps the resource alive. A layer that has nothing to save takes its
//! blocks one by one: [`allocate_each`] and [`deallocate_each`] are what the trait does by itself, so that adaptors count
//! each block as ever.
//!
//! **Invariants**: an allocation that fails gives back what it had, so that live bytes and blocks are as they were (what a
//! pool grew by stays cached); a free touches each block at most once, whatever the others are.

use super::{MemoryResource, Request};
use crate::error::{Error, Misuse, MisuseKind, Result};
use crate::stream::StreamRef;

/// The sizes of many blocks, and what they have in common.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [usize],
    align: usize,
    owner: u64,
}

impl<'a> Batch<'a> {
    /// For an allocation: checks every size.
    ///
    /// # Errors
    /// As [`Request::checked`], for the first size that is wrong.
    pub fn checked(bytes: &'a [usize], align: usize, owner: u64) -> Result<Self> {
        // The largest stands for all.
        Request::checked(bytes.iter().copied().max().unwrap_or(0), align, owner)?;
        Ok(Self { bytes, align, owner })
    }

    /// For a free: sizes are looked at one by one, since a wrong one concerns its own block only.
    ///
    /// # Errors
    /// An alignment that is none.
    pub fn given(bytes: &'a [usize], align: usize, owner: u64) -> Result<Self> {
        Request::checked(0, align, owner)?;
        Ok(Self { bytes, align, owner })
    }

    /// Number of blocks, those without bytes included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True when there is no block.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The sizes, by place.
    pub fn sizes(&self) -> &'a [usize] {
        self.bytes
    }

    /// Bytes of all blocks together.
    pub fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes as u64))
    }

    /// The blocks that have bytes, by their place in the batch.
    pub fn requests(&self) -> impl Iterator<Item = (usize, Request)> + use<'a> {
        let (align, owner) = (self.align, self.owner);
        self.bytes
            .iter()
            .enumerate()
            .filter(|(_, bytes)| **bytes != 0)
            .map(move |(at, bytes)| (at, Request { bytes: *bytes, align, owner, flags: 0 }))
    }

    /// What a free says of the block at `at`; `None` for one without bytes, of which there is nothing to free.
    ///
    /// # Errors
    /// A pointer without a size, and a size that no block has.
    pub fn named(&self, at: usize, ptr: u64) -> Result<Option<Request>> {
        let bytes = self.bytes[at];
        let request = Request::checked(bytes, self.align, self.owner)?;
        match (ptr, bytes) {
            (0, 0) => Ok(None),
            (_, 0) => Err(Error::Misuse(Misuse {
                kind: MisuseKind::WrongSize,
                ptr,
                bytes: 0,
                asked: self.owner,
                owner: 0,
                owner_bytes: 0,
            })),
            _ => Ok(Some(request)),
        }
    }

    /// The blocks from `from` to before `to`.
    #[must_use]
    pub fn part(&self, from: usize, to: usize) -> Self {
        Self { bytes: &self.bytes[from..to], ..*self }
    }
}

/// What came of the frees of a batch.
#[derive(Debug, Default)]
pub struct Freed {
    /// How many blocks were freed.
    pub count: usize,
    /// The first that was not, and why. Nothing happened to it.
    pub wrong: Option<(usize, Error)>,
}

impl Freed {
    /// Takes note of one.
    pub fn note(&mut self, at: usize, result: Result<()>) {
        match result {
            Ok(()) => self.count += 1,
            Err(error) if self.wrong.as_ref().is_none_or(|(first, _)| at < *first) => self.wrong = Some((at, error)),
            Err(_) => {}
        }
    }

    /// Takes note of what came of a part that began at `from`.
    pub fn add(&mut self, from: usize, part: Self) {
        self.count += part.count;
        if let Some((at, error)) = part.wrong {
            self.note(from + at, Err(error));
        }
    }
}

/// Takes the blocks one by one.
///
/// # Errors
/// That of the first block that is not to be had: those before it have been given back, and `out` is all 0.
pub fn allocate_each<R: MemoryResource + ?Sized>(
    resource: &R,
    batch: &Batch<'_>,
    stream: StreamRef<'_>,
    out: &mut [u64],
) -> Result<()> {
    out.fill(0);
    for (at, request) in batch.requests() {
        match resource.allocate(&request, stream) {
            Ok(ptr) => out[at] = ptr,
            Err(error) => {
                give_back(batch, out, |ptr, request| resource.deallocate(ptr, request, stream));
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Gives back what a batch had when it failed.
#[cold]
pub(crate) fn give_back(batch: &Batch<'_>, out: &mut [u64], free: impl Fn(u64, &Request) -> Result<()>) {
    for (at, request) in batch.requests() {
        let ptr = std::mem::take(&mut out[at]);
        if ptr != 0
            && let Err(error) = free(ptr, &request)
        {
            log::error!(
                "tenure: {} bytes at {ptr:#x} of an allocation of many blocks that failed could not be given back: {error}",
                request.bytes
            );
        }
    }
}

/// Frees the blocks one by one.
pub fn deallocate_each<R: MemoryResource + ?Sized>(
    resource: &R,
    ptrs: &[u64],
    batch: &Batch<'_>,
    stream: StreamRef<'_>,
) -> Freed {
    let mut freed = Freed::default();
    for (at, ptr) in ptrs.iter().enumerate() {
        match batch.named(at, *ptr) {
            Ok(Some(request)) => freed.note(at, resource.deallocate(*ptr, &request, stream)),
            Ok(None) => {}
            Err(error) => freed.note(at, Err(error)),
        }
    }
    freed
}
