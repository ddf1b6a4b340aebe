//! The description of shared memory, as bytes that any channel can carry. Descriptors travel beside them.
//!
//! ```text
//!   "tenure" version(2) | kind(4) pieces(4) pid(4) has_pointer(4) | uuid(16) | token(16) | bytes(8) offset(8) |
//!       pointer(64)? | for each piece: bytes(8) serial(8) handle(64, not of descriptors) | sum(8)
//! ```
//!
//! All numbers are little-endian. The token is made once per process, so that an importer can tell apart two exporters that
//! had the same process number. The sum finds what was cut off or changed by accident; it is no protection: whoever sends a
//! handle is believed about what lies behind it.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Handle, Kinds, Parts, Piece};
use crate::error::{Error, Result};
use crate::sync::OnceCell;

const MAGIC: [u8; 8] = *b"tenure\x00\x01";
/// More pieces than this no block has: 64 TiB of the largest.
const MOST_PIECES: u32 = 1 << 21;

/// Memory of one process, described for another. Holds the descriptors that lead there and nothing else: not the block.
#[derive(Debug)]
pub struct Shared {
    pub(super) uuid: [u8; 16],
    pub(super) token: [u8; 16],
    pub(super) pid: u32,
    pub(super) kind: Kinds,
    pub(super) bytes: u64,
    pub(super) offset: u64,
    pub(super) pieces: Vec<Piece>,
    pub(super) pointer: Option<[u8; 64]>,
}

/// A number for this process that no other has.
pub(super) fn token() -> [u8; 16] {
    static TOKEN: OnceCell<[u8; 16]> = OnceCell::new();
    *TOKEN.get_or_init(|| {
        // The standard library seeds this from the system's source of random numbers.
        let word = |salt: u32| {
            let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.write_u32(std::process::id() ^ salt);
            // Processes that were forked from one have its seed, and may have the number of one that has ended.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            hasher.write_u128(now.map_or(0, |now| now.as_nanos()));
            hasher.finish()
        };
        let mut token = [0; 16];
        token[..8].copy_from_slice(&word(1).to_le_bytes());
        token[8..].copy_from_slice(&word(2).to_le_bytes());
        token
    })
}

impl Shared {
    pub(super) fn new(uuid: [u8; 16], bytes: u64, parts: Parts) -> Self {
        let kind = match parts.pieces.first().map(|piece| &piece.handle) {
            Some(Handle::Fabric(_)) => Kinds::FABRIC,
            Some(Handle::Legacy(_)) => Kinds::LEGACY,
            _ => Kinds::FD,
        };
        let Parts { offset, pieces, pointer } = parts;
        Self { uuid, token: token(), pid: std::process::id(), kind, bytes, offset, pieces, pointer }
    }

    /// By which kind of handle it is handed out.
    pub fn kind(&self) -> Kinds {
        self.kind
    }

    /// The length of the shared range, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The process that shares it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The device that it lies on.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The descriptors that must travel beside [`to_bytes`](Self::to_bytes), in this order.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pieces.iter().filter_map(|piece| match &piece.handle {
            Handle::Fd(fd) => Some(fd.as_fd()),
            _ => None,
        })
    }

    /// The same descriptors, for whoever sends them.
    pub fn into_fds(self) -> Vec<OwnedFd> {
        let fd = |piece: Piece| match piece.handle {
            Handle::Fd(fd) => Some(fd),
            _ => None,
        };
        self.pieces.into_iter().filter_map(fd).collect()
    }

    /// Everything but the descriptors.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160 + 80 * self.pieces.len());
        out.extend(MAGIC);
        for word in [self.kind.0, self.pieces.len() as u32, self.pid, u32::from(self.pointer.is_some())] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.uuid);
        out.extend(self.token);
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.pointer.iter().flatten());
        for piece in &self.pieces {
            out.extend(piece.bytes.to_le_bytes());
            out.extend(piece.serial.to_le_bytes());
            if let Handle::Fabric(handle) | Handle::Legacy(handle) = &piece.handle {
                out.extend(handle);
            }
        }
        let sum = sum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// How many descriptors belong to these bytes, and what they say of the rest.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn read(bytes: &[u8]) -> Result<(Self, usize)> {
        let (shared, fds) = Self::parse(bytes)?;
        Ok((shared, fds))
    }

    /// What [`to_bytes`](Self::to_bytes) wrote, with the descriptors that came beside it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes that are no handle, or not a whole one, and for another number of descriptors.
    pub fn from_bytes(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self> {
        let (mut shared, want) = Self::parse(bytes)?;
        if fds.len() != want {
            return Err(Error::invalid(format!(
                "the handle comes with {want} file descriptors and {} were given: pass the bytes and all of the descriptors \
                 that belong to them, in their order",
                fds.len()
            )));
        }
        if want > 0 {
            let sizes: Vec<(u64, u64)> = shared.pieces.iter().map(|piece| (piece.bytes, piece.serial)).collect();
            shared.pieces = sizes
                .into_iter()
                .zip(fds)
                .map(|((bytes, serial), fd)| Piece { bytes, serial, handle: Handle::Fd(fd) })
                .collect();
        }
        Ok(shared)
    }

    /// Pieces of descriptors get an empty handle first.
    fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let broken = |why: &str| {
            Error::invalid(format!(
                "these {} bytes are no handle of shared memory ({why}): pass what the exporting process made, whole and \
                 unchanged",
                bytes.len()
            ))
        };
        let Some((body, end)) = bytes.split_last_chunk::<8>() else { return Err(broken("they are too few")) };
        if !body.starts_with(&MAGIC) {
            let other = body.starts_with(b"tenure\x00");
            return Err(broken(if other {
                "they are of another version of tenure"
            } else {
                "they do not begin like one"
            }));
        }
        if sum(body) != u64::from_le_bytes(*end) {
            return Err(broken("they were cut off or changed on their way"));
        }
        let mut rest = Rest(&body[MAGIC.len()..]);
        let shared = (|| {
            let (kind, count, pid) = (Kinds(rest.half()?), rest.half()?, rest.half()?);
            let has_pointer = rest.half()? != 0;
            let (uuid, token) = (rest.take()?, rest.take()?);
            let (bytes, offset) = (rest.word()?, rest.word()?);
            let pointer = if has_pointer { Some(rest.take()?) } else { None };
            if ![Kinds::FD, Kinds::FABRIC, Kinds::LEGACY].contains(&kind) || count == 0 || count > MOST_PIECES {
                return None;
            }
            let mut pieces = Vec::new();
            for _ in 0..count {
                let (bytes, serial) = (rest.word()?, rest.word()?);
                let handle = match kind {
                    Kinds::LEGACY => Handle::Legacy(rest.take()?),
                    Kinds::FABRIC => Handle::Fabric(rest.take()?),
                    // Its descriptor comes later.
                    _ => Handle::Fabric([0; 64]),
                };
                pieces.push(Piece { bytes, serial, handle });
            }
            let room = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.bytes))?;
            let end = offset.checked_add(bytes)?;
            // An allocation that is opened as a whole is one piece, and pools have no legacy handles.
            let is_whole = has_pointer || kind == Kinds::LEGACY;
            let matches = !(is_whole && count > 1 || has_pointer && kind == Kinds::LEGACY);
            let fits = matches && bytes > 0 && pieces.iter().all(|p| p.bytes > 0) && end <= room;
            (rest.0.is_empty() && fits).then_some(Self { uuid, token, pid, kind, bytes, offset, pieces, pointer })
        })();
        let shared = shared.ok_or_else(|| broken("what they say does not fit together"))?;
        let fds = if shared.kind == Kinds::FD { shared.pieces.len() } else { 0 };
        Ok((shared, fds))
    }
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn half(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// FNV-1a over the bytes.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
