//! A pool's memory for other processes: which handles lie under a block, and by what they are handed out.
//!
//! ```text
//!   block        |-------------|                       offset: bytes of the first handle before it
//!   handles  [ h1 ][  h2  ][ h3 ][ h4 ]                handed out: h1, h2, h3
//! ```
//!
//! A block that is live keeps its handles where they are: they are given back, or mapped elsewhere, only when all of their
//! memory is idle. So nothing is pinned. Memory of a graph is not handed out: it comes and goes with the graph.

use std::os::fd::{FromRawFd, OwnedFd};

use tenure_driver::Sharing;

use super::{Pages, Pool, PoolOptions};
use crate::error::{Error, Result};
use crate::resource::{MemoryResource, Resource};
use crate::sharing::{Handle, Kinds, Parts, Piece, require_pages};

/// How the pages of a pool with these options are to be made.
///
/// # Errors
/// [`Error::Unsupported`] where the device cannot hand them out so, or the pool has no pages of its own.
pub(super) fn sharing_of(options: &PoolOptions, device: i32, own_ranges: bool, upstream: &Resource) -> Result<Sharing> {
    let kinds = Kinds(options.export_handle_type.value());
    if kinds == Kinds::NONE {
        return Ok(Sharing::default());
    }
    if !own_ranges {
        return Err(Error::Unsupported(format!(
            "export_handle_type ({}) is for pools that map pages of their own, and this one takes chunks from its upstream \
             ({}), because of pages=\"driver\", of the upstream, or of the device: leave it out; memory of the upstream is \
             handed out as the upstream can ({})",
            kinds.text(),
            upstream.body().kind(),
            Kinds(upstream.body().exports()).text()
        )));
    }
    require_pages(device, kinds)?;
    Ok(Sharing { fd: kinds.has(Kinds::FD), fabric: kinds.has(Kinds::FABRIC), ..Sharing::default() })
}

impl Pool {
    /// By what its memory can be handed out.
    pub(super) fn exported_kinds(&self) -> Kinds {
        match &self.pages {
            Pages::Virtual(_) => Kinds(self.options.export_handle_type.value()),
            Pages::Chunks(_) => Kinds(self.upstream.body().exports()),
        }
    }

    /// What leads another process to a live block.
    ///
    /// # Errors
    /// Memory of a graph; what the driver says.
    pub(super) fn parts(&self, ptr: u64, bytes: usize, wanted: Kinds) -> Result<Option<Parts>> {
        if self.capture_of(ptr).is_some() {
            return Err(Error::Unsupported(
                "memory that was allocated while its stream was capturing belongs to the graph and is not shared with other \
                 processes: allocate it before the capture"
                    .into(),
            ));
        }
        let Pages::Virtual(range) = &self.pages else { return self.upstream.body().share(ptr, bytes, wanted) };
        let Some(offset) = range.offset_of(ptr) else { return Ok(None) };
        let Some(kind) = self.exported_kinds().and(wanted).first() else { return Ok(None) };
        let (before, handles) = range.under(offset, bytes as u64);
        let mut pieces = Vec::with_capacity(handles.len());
        for pages in handles {
            let handle = if kind == Kinds::FD {
                // SAFETY: the descriptor is new and nobody else's.
                Handle::Fd(unsafe { OwnedFd::from_raw_fd(pages.export_fd()?) })
            } else {
                Handle::Fabric(pages.export_fabric()?.data)
            };
            pieces.push(Piece { bytes: pages.bytes() as u64, serial: pages.serial(), handle });
        }
        Ok((!pieces.is_empty()).then_some(Parts { offset: before, pieces, pointer: None }))
    }
}
