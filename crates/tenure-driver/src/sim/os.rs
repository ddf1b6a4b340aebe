//! What the simulated device asks of the operating system: address ranges without backing, pages that two addresses can
//! share, and the size of the machine.
//!
//! Nothing here knows about devices. Every function answers `None` or `false` when the system refuses; the caller turns
//! that into the driver's out-of-memory code.
//!
//! This file is unsafe on purpose: it is the only place of the simulated device that changes mappings.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The size of a system page in bytes.
pub(super) fn page() -> usize {
    // SAFETY: `sysconf` reads a constant of the system.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).unwrap_or(4096).max(1)
}

/// The physical memory of the machine in bytes.
pub(super) fn physical() -> u64 {
    // SAFETY: as above.
    let n = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(n).unwrap_or(1 << 18).saturating_mul(page() as u64)
}

/// Maps `len` bytes of private zeroed memory, readable and writable, without backing until touched.
pub(super) fn map(len: usize) -> Option<usize> {
    anonymous(len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Reserves `len` bytes of addresses, aligned to `align` (a power of two), that fault when touched.
pub(super) fn reserve(len: usize, align: usize) -> Option<usize> {
    let whole = len.checked_add(align)?;
    let base = anonymous(whole, libc::PROT_NONE)?;
    let start = base.next_multiple_of(align);
    unmap(base, start - base);
    unmap(start + len, base + whole - start - len);
    Some(start)
}

fn anonymous(len: usize, prot: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: no fixed address, so nothing that exists is replaced.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (p != libc::MAP_FAILED).then_some(p as usize)
}

/// Gives `len` bytes of addresses back to the system. Only for ranges that this module made.
pub(super) fn unmap(at: usize, len: usize) {
    if len > 0 {
        // SAFETY: callers pass ranges that `map` or `reserve` made and that no operation uses any more.
        unsafe { libc::munmap(at as *mut _, len) };
    }
}

/// Drops the backing of the whole pages inside a range from [`map`]; they read as zero afterwards.
pub(super) fn discard(at: usize, len: usize) {
    let page = page();
    let first = at.next_multiple_of(page);
    let end = (at + len) / page * page;
    if end > first {
        // SAFETY: the range lies in a private anonymous mapping of this module and is free.
        unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_DONTNEED) };
    }
}

/// Makes the range inaccessible again: replaces whatever is mapped there by a reservation.
pub(super) fn hide(at: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies in a reservation of this module (checked by the caller against its table).
    let p = unsafe { libc::mmap(at as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
    p != libc::MAP_FAILED
}

/// Sets what the host may do with a mapped range.
pub(super) fn protect(at: usize, len: usize, read: bool, write: bool) -> bool {
    let mut prot = libc::PROT_NONE;
    if read {
        prot |= libc::PROT_READ;
    }
    if write {
        prot |= libc::PROT_READ | libc::PROT_WRITE;
    }
    // SAFETY: the range is a mapping of this module (checked by the caller against its table).
    unsafe { libc::mprotect(at as *mut _, len, prot) == 0 }
}

/// Memory that two addresses can share, or two processes: a file in memory that has no name. Two mappings of one offset
/// show the same bytes.
pub(super) struct Pages {
    file: OwnedFd,
}

/// What a file of [`Pages`] says about itself, in its last page: a process that gets the descriptor learns it from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// All memory of a device (1) or one piece of physical memory (2).
    pub(super) kind: u64,
    /// The number of the device.
    pub(super) device: u64,
    /// Bytes of memory before the label.
    pub(super) len: u64,
}

const LABEL: u64 = u64::from_le_bytes(*b"tenurSIM");
/// A whole page, so that what lies before it stays a multiple of one.
const LABEL_ROOM: u64 = 4096;

impl Pages {
    /// Opens `len` bytes of pages, none of them backed yet.
    pub(super) fn open(len: u64) -> Option<Pages> {
        Pages::on(memfd().or_else(unlinked)?, len)
    }

    fn on(file: OwnedFd, len: u64) -> Option<Pages> {
        let len = libc::off_t::try_from(len).ok()?;
        // SAFETY: the descriptor is open and ours.
        (unsafe { libc::ftruncate(file.as_raw_fd(), len) } == 0).then_some(Pages { file })
    }

    /// [`Pages::open`] with a label behind the pages.
    pub(super) fn labelled(label: Label) -> Option<Pages> {
        let pages = Pages::open(label.len.checked_add(LABEL_ROOM)?)?;
        let mut bytes = [0; 32];
        for (at, word) in [LABEL, label.kind, label.device, label.len].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let offset = libc::off_t::try_from(label.len).ok()?;
        // SAFETY: the descriptor is open and ours, and the array is readable.
        let written = unsafe { libc::pwrite(pages.file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset) };
        (written == bytes.len() as isize).then_some(pages)
    }

    /// Another reference to the pages behind a descriptor, which stays the caller's, with what they say of themselves: `None`
    /// where it is none of ours.
    pub(super) fn shared(fd: i32) -> Option<(Pages, Label)> {
        // SAFETY: the system checks the number.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return None;
        }
        // SAFETY: made just now, and ours alone.
        Pages { file: unsafe { OwnedFd::from_raw_fd(copy) } }.read_label()
    }

    /// The pages of another process of this machine that has them open under a number.
    pub(super) fn of_process(pid: u32, fd: u32) -> Option<(Pages, Label)> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")).ok()?;
        Pages { file: OwnedFd::from(file) }.read_label()
    }

    fn read_label(self) -> Option<(Pages, Label)> {
        let at = self.labelled_len()?;
        let mut bytes = [0u8; 32];
        let offset = libc::off_t::try_from(at).ok()?;
        // SAFETY: the descriptor is open and ours, and the array is writable.
        let read = unsafe { libc::pread(self.file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), offset) };
        let word = |at: usize| bytes[8 * at..8 * at + 8].try_into().map_or(0, u64::from_le_bytes);
        let label = Label { kind: word(1), device: word(2), len: word(3) };
        (read == bytes.len() as isize && word(0) == LABEL && label.len == at).then_some((self, label))
    }

    fn status(&self) -> Option<libc::stat> {
        // SAFETY: integers only, for which zero is a value.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and ours, and the structure is writable.
        (unsafe { libc::fstat(self.file.as_raw_fd(), &raw mut status) } == 0).then_some(status)
    }

    /// Equal for two references to the same pages, also in different processes.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        self.status().map(|status| (status.st_dev, status.st_ino))
    }

    /// Bytes of memory before the label.
    pub(super) fn labelled_len(&self) -> Option<u64> {
        u64::try_from(self.status()?.st_size).ok()?.checked_sub(LABEL_ROOM)
    }

    /// A descriptor for somebody else, who closes it.
    pub(super) fn descriptor(&self) -> Option<i32> {
        Some(std::os::fd::IntoRawFd::into_raw_fd(self.file.try_clone().ok()?))
    }

    /// The number under which this process has them open.
    pub(super) fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Maps `len` bytes from `offset` at `at`, without access.
    pub(super) fn map_at(&self, at: usize, len: usize, offset: u64) -> bool {
        let Ok(offset) = libc::off_t::try_from(offset) else {
            return false;
        };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range lies in a reservation of this module (checked by the caller against its table).
        let p = unsafe { libc::mmap(at as *mut _, len, libc::PROT_NONE, flags, self.file.as_raw_fd(), offset) };
        p != libc::MAP_FAILED
    }

    /// Gives the backing of a range of pages back to the system.
    pub(super) fn discard(&self, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) {
            // SAFETY: the descriptor is open and ours; no mapping of these pages is left.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
        }
    }
}

fn memfd() -> Option<OwnedFd> {
    // SAFETY: the name is a C string; the descriptor, if any, is new and ours.
    unsafe {
        let fd = libc::memfd_create(c"tenure-sim".as_ptr(), libc::MFD_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Where memory files are refused: a temporary file whose name is removed at once.
fn unlinked() -> Option<OwnedFd> {
    let mut path = std::env::temp_dir();
    path.push(format!("tenure-sim-{}-{:x}", std::process::id(), &path as *const _ as usize));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).ok()?;
    let _ = std::fs::remove_file(&path);
    Some(OwnedFd::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings of one page show the same bytes, and a page given back is zero again; also where memory files are
    /// refused and a temporary file serves.
    #[test]
    fn pages_are_shared_between_mappings() {
        const LEN: usize = 1 << 21;
        for file in [memfd(), unlinked()] {
            let pages = Pages::on(file.unwrap(), 4 * LEN as u64).unwrap();
            let at = reserve(2 * LEN, LEN).unwrap();
            assert_eq!(at % LEN, 0);
            for at in [at, at + LEN] {
                assert!(pages.map_at(at, LEN, LEN as u64));
                assert!(protect(at, LEN, true, true));
            }
            // SAFETY: both ranges are mapped, readable and writable, and only this test uses them.
            unsafe {
                (at as *mut u8).write_volatile(7);
                assert_eq!(((at + LEN) as *const u8).read_volatile(), 7);
                pages.discard(LEN as u64, LEN as u64);
                assert_eq!((at as *const u8).read_volatile(), 0);
            }
            assert!(hide(at, LEN));
            unmap(at, 2 * LEN);
        }
    }
}
