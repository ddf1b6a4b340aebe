//! Memory of other processes.
//!
//! ```text
//!   exporter   | device memory, backed by a file without a name |      ticket: process, number of the file, where, how long
//!                          [ block ]-----------------+
//!   importer   ... | mapping of the same file: [ block ] | ...         an address of its own, the same bytes
//! ```
//!
//! All device memory lies in one file per device, so that a block can be mapped by another process of the machine: a
//! legacy handle names the process that has the file open, a pool hands the file itself out. What is opened counts for the
//! process that made it, and is never handed out here.
//!
//! **Invariants**: each opened block is one mapping, counted; it goes with the last close. **Not simulated**: the driver's
//! bookkeeping of who has what open. A block that its maker frees can be seen to change, as on a device.

use std::collections::HashMap;

use super::codes::*;
use super::machine::Machine;
use super::memory::{LARGE, Owner};
use super::os::{self, Pages};

const MAGIC: [u8; 8] = *b"simblock";

/// What the 64 bytes of a handle say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) pid: u32,
    pub(super) fd: u32,
    pub(super) device: u64,
    offset: u64,
    len: u64,
    /// The block's own number: another block at the same place is another one.
    id: u64,
}

impl Ticket {
    pub(super) fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        for (at, word) in [self.device, self.offset, self.len, self.id].into_iter().enumerate() {
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn read(bytes: &[u8; 64]) -> Option<Ticket> {
        let half = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[..8] != MAGIC {
            return None;
        }
        let (pid, fd) = (half(8)?, half(12)?);
        Some(Ticket { pid, fd, device: word(16)?, offset: word(24)?, len: word(32)?, id: word(40)? })
    }
}

struct Opened {
    ticket: Ticket,
    /// What was mapped for it.
    base: u64,
    room: u64,
    count: usize,
}

/// What is open, by address.
#[derive(Default)]
pub(super) struct OpenBlocks(HashMap<u64, Opened>);

impl Machine {
    /// What another process needs to open a block of a device's memory.
    pub(super) fn ticket(&mut self, device: usize, at: u64, len: u64) -> Result<Ticket, i32> {
        let id = self.memory.find(at).map_or(0, |(_, b)| b.id);
        let (pages, offset) = self.backing(device, at).ok_or(NOT_SUPPORTED)?;
        let fd = u32::try_from(pages.number()).map_err(|_| UNKNOWN)?;
        Ok(Ticket { pid: std::process::id(), fd, device: device as u64, offset, len, id })
    }

    /// One more reference to a block that is open by a legacy handle.
    pub(super) fn open_again(&mut self, ticket: &Ticket) -> Option<u64> {
        let legacy = |at: &u64| self.memory.find(*at).is_some_and(|(_, b)| b.owner == Owner::Opened(0));
        let (at, opened) = self.opened.0.iter_mut().find(|(at, opened)| opened.ticket == *ticket && legacy(at))?;
        opened.count += 1;
        Some(*at)
    }

    /// Maps a block of another process, if it lies in those pages: what lies behind them would end who touches it.
    pub(super) fn open(&mut self, pages: &Pages, ticket: Ticket, pool: u64) -> Result<u64, i32> {
        let device = usize::try_from(ticket.device).ok().filter(|d| *d < self.devices.len()).ok_or(INVALID_DEVICE)?;
        let end = ticket.offset.checked_add(ticket.len).ok_or(INVALID_VALUE)?;
        if end > pages.labelled_len().unwrap_or(0) {
            return Err(INVALID_VALUE);
        }
        let page = os::page() as u64;
        let start = ticket.offset / page * page;
        let skip = ticket.offset - start;
        let room = skip.checked_add(ticket.len).and_then(|len| len.checked_next_multiple_of(page));
        let room = room.filter(|room| *room < 1 << 46 && ticket.len > 0).ok_or(INVALID_VALUE)?;
        let base = os::reserve(room as usize, LARGE as usize).ok_or(OUT_OF_MEMORY)?;
        if !pages.map_at(base, room as usize, start) || !os::protect(base, room as usize, true, true) {
            os::unmap(base, room as usize);
            return Err(OUT_OF_MEMORY);
        }
        let at = base as u64 + skip;
        self.memory.add(at, ticket.len, ticket.len, device, Owner::Opened(pool));
        self.opened.0.insert(at, Opened { ticket, base: base as u64, room, count: 1 });
        Ok(at)
    }

    /// Gives a reference to an opened block back; nothing uses it any more when it is the last.
    pub(super) fn close_opened(&mut self, at: u64) {
        let Some(opened) = self.opened.0.get_mut(&at) else { return };
        opened.count -= 1;
        if opened.count > 0 {
            if let Some(block) = self.memory.blocks.get_mut(&at) {
                block.leaving = false;
            }
            return;
        }
        if let Some(opened) = self.opened.0.remove(&at) {
            self.memory.blocks.remove(&at);
            os::unmap(opened.base as usize, opened.room as usize);
        }
    }
}
