//! A pool's memory for others: for other processes, which handles lie under a block, and by what they are handed out; for
//! other devices and network cards, how pages are made and who may use them.
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
    if options.rdma {
        if !own_ranges {
            return Err(Error::Unsupported(
                "rdma is for pools that map pages of their own, and this one takes chunks from its upstream: leave it out; \
                 what network cards can do with memory of the upstream is not the pool's to say"
                    .into(),
            ));
        }
        if !crate::device::driver()?.device(device)?.properties()?.capabilities.rdma_pages {
            return Err(Error::Unsupported(format!(
                "rdma: device {device} cannot make its pages reachable for network cards: leave it out"
            )));
        }
    }
    if kinds == Kinds::NONE {
        return Ok(Sharing { rdma: options.rdma, ..Sharing::default() });
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
    Ok(Sharing { fd: kinds.has(Kinds::FD), fabric: kinds.has(Kinds::FABRIC), rdma: options.rdma })
}

/// The devices that may use the pages of a pool with these options: its own, and the peers.
///
/// # Errors
/// [`Error::Invalid`] for a device that is not there; [`Error::Unsupported`] for one that cannot reach the memory, and where
/// the pool has no pages of its own.
pub(super) fn users_of(options: &PoolOptions, device: i32, own_ranges: bool) -> Result<Vec<i32>> {
    let mut users = vec![device];
    let wanted = (0..u64::BITS as i32).filter(|peer| *peer != device && options.peers & (1 << peer) != 0);
    for peer in wanted {
        let peer = crate::device::check(peer)?;
        if !own_ranges {
            return Err(Error::Unsupported(
                "peers is for pools that map pages of their own, and this one takes chunks from its upstream: leave it out; \
                 plain memory is reachable where cudaDeviceEnablePeerAccess (cuCtxEnablePeerAccess) was called"
                    .into(),
            ));
        }
        let driver = crate::device::driver()?;
        if !driver.can_access_peer(driver.device(peer)?.handle(), driver.device(device)?.handle())? {
            return Err(Error::Unsupported(format!(
                "peers: device {peer} cannot reach the memory of device {device} on this machine: leave it out"
            )));
        }
        users.push(peer);
    }
    Ok(users)
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
