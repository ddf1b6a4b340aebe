//! What can be chosen when a pool is made, checked by name.

use crate::error::{Error, Result, human};
use crate::resource::MAX_BYTES;
use crate::resource::leaf::HandleType;

/// What to do first when the stream's own memory does not suffice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Grow, or map idle pages of the stream's own and of everyone's again: streams stay independent of each other, and threads
    /// that meet at the pool get memory to divide for themselves.
    #[default]
    Concurrency,
    /// Make the stream wait for another one and take its memory, blocks first and then idle pages: the pool stays small.
    Footprint,
}

/// The smallest [`chunk_bytes`](PoolOptions::chunk_bytes).
const MIN_CHUNK: u64 = 2 << 20;

/// The largest [`chunk_bytes`](PoolOptions::chunk_bytes).
const MAX_CHUNK: u64 = 1 << 30;

/// The settings of a [`Pool`](super::Pool). Sizes are in bytes.
///
/// ```
/// use tenure_core::pool::PoolOptions;
/// let options = PoolOptions { initial_bytes: 64 << 20, maximum_bytes: Some(1 << 30), ..Default::default() };
/// assert!(options.validate().is_ok());
/// assert!(PoolOptions { initial_bytes: 2 << 30, ..options }.validate().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Taken when the pool is made, at once, or making it fails.
    pub initial_bytes: u64,
    /// What the pool never exceeds; it can be reached exactly. `None`: what the device has.
    pub maximum_bytes: Option<u64>,
    /// What comes first when a stream's own memory does not suffice.
    pub prefer: Prefer,
    /// [`trim`](crate::resource::MemoryResource::trim) and the decay keep at least this many idle bytes. Where the process
    /// is about to run out of memory, nothing is kept.
    pub release_threshold: u64,
    /// The caller promises that no stream it carries is ever capturing: one driver call less per allocation.
    pub assume_no_capture: bool,
    /// Take chunks through the upstream even where the pool could map ranges of its own.
    pub plain_chunks: bool,
    /// What a growth takes at least, where that is to be had; less only when it is not. 0: what is missing.
    pub growth_bytes: u64,
    /// Where no hole is large enough, map idle pages a second time, side by side: before the pool grows where that pays, and
    /// where it cannot grow. To be turned off where something keeps
    /// what it knows of an address (a network card's registrations, say): addresses then keep their pages as long as the
    /// pool has both.
    pub remap: bool,
    /// Pages that have been idle for so many milliseconds go back to the device by themselves; 0 for never.
    pub decay_ms: u64,
    /// The unit of growth, and the largest piece that is mapped or given back as a whole: a power of two of 2 MiB to 1 GiB;
    /// 0 for what suits the pool's size.
    pub chunk_bytes: u64,
    /// A thread of the process grows the pool after it had to grow, so that the next growth is waited for by nobody.
    pub grow_ahead: bool,
    /// How the memory can be handed to another process; for pools that map ranges of their own. Pages are made for it, at no
    /// measurable cost.
    pub export_handle_type: HandleType,
    /// The other devices whose kernels and copies may use the memory, a bit for each ordinal; for pools that map ranges of their
    /// own, for which the driver's switch for all memory (`cuCtxEnablePeerAccess`) says nothing.
    pub peers: u64,
    /// Network cards can be given the memory (GPUDirect RDMA); for pools that map ranges of their own.
    pub rdma: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            initial_bytes: 0,
            maximum_bytes: None,
            prefer: Prefer::default(),
            release_threshold: 0,
            assume_no_capture: false,
            plain_chunks: false,
            growth_bytes: 0,
            remap: true,
            decay_ms: 0,
            chunk_bytes: 0,
            grow_ahead: false,
            export_handle_type: HandleType::None,
            peers: 0,
            rdma: false,
        }
    }
}

impl PoolOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `initial_bytes`.
    #[must_use]
    pub fn initial_bytes(self, initial_bytes: u64) -> Self {
        Self { initial_bytes, ..self }
    }

    /// Sets `maximum_bytes`.
    #[must_use]
    pub fn maximum_bytes(self, maximum_bytes: Option<u64>) -> Self {
        Self { maximum_bytes, ..self }
    }

    /// Sets `prefer`.
    #[must_use]
    pub fn prefer(self, prefer: Prefer) -> Self {
        Self { prefer, ..self }
    }

    /// Sets `release_threshold`.
    #[must_use]
    pub fn release_threshold(self, release_threshold: u64) -> Self {
        Self { release_threshold, ..self }
    }

    /// Sets `assume_no_capture`.
    #[must_use]
    pub fn assume_no_capture(self, assume_no_capture: bool) -> Self {
        Self { assume_no_capture, ..self }
    }

    /// Sets `plain_chunks`.
    #[must_use]
    pub fn plain_chunks(self, plain_chunks: bool) -> Self {
        Self { plain_chunks, ..self }
    }

    /// Sets `growth_bytes`.
    #[must_use]
    pub fn growth_bytes(self, growth_bytes: u64) -> Self {
        Self { growth_bytes, ..self }
    }

    /// Sets `remap`.
    #[must_use]
    pub fn remap(self, remap: bool) -> Self {
        Self { remap, ..self }
    }

    /// Sets `decay_ms`.
    #[must_use]
    pub fn decay_ms(self, decay_ms: u64) -> Self {
        Self { decay_ms, ..self }
    }

    /// Sets `chunk_bytes`.
    #[must_use]
    pub fn chunk_bytes(self, chunk_bytes: u64) -> Self {
        Self { chunk_bytes, ..self }
    }

    /// Sets `export_handle_type`.
    #[must_use]
    pub fn export_handle_type(self, export_handle_type: HandleType) -> Self {
        Self { export_handle_type, ..self }
    }

    /// Sets `peers`.
    #[must_use]
    pub fn peers(self, peers: u64) -> Self {
        Self { peers, ..self }
    }

    /// Sets `rdma`.
    #[must_use]
    pub fn rdma(self, rdma: bool) -> Self {
        Self { rdma, ..self }
    }

    /// Sets `grow_ahead`.
    #[must_use]
    pub fn grow_ahead(self, grow_ahead: bool) -> Self {
        Self { grow_ahead, ..self }
    }

    /// Checks each setting and how they go together.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the setting, its value and what it must be.
    pub fn validate(&self) -> Result<()> {
        let maximum = self.maximum_bytes.unwrap_or(MAX_BYTES as u64);
        for (name, value) in [
            ("initial_bytes", self.initial_bytes),
            ("maximum_bytes", maximum),
            ("release_threshold", self.release_threshold),
            ("growth_bytes", self.growth_bytes),
        ] {
            if value > MAX_BYTES as u64 {
                return Err(Error::invalid(format!(
                    "{name} is {value}: no machine has that much; give at most {MAX_BYTES}"
                )));
            }
        }
        if maximum < super::place::UNIT {
            return Err(Error::invalid(format!(
                "maximum_bytes is {maximum}: a pool needs at least {} bytes; leave it out for no limit",
                super::place::UNIT
            )));
        }
        if self.initial_bytes > maximum {
            return Err(Error::invalid(format!(
                "initial_bytes ({}) is above maximum_bytes ({}): lower the one or raise the other",
                human(self.initial_bytes),
                human(maximum)
            )));
        }
        let chunk = self.chunk_bytes;
        if chunk != 0 && !(chunk.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&chunk)) {
            return Err(Error::invalid(format!(
                "chunk_bytes is {chunk}: it must be a power of two of {} to {}; leave it out for what suits",
                human(MIN_CHUNK),
                human(MAX_CHUNK)
            )));
        }
        if chunk > maximum {
            return Err(Error::invalid(format!(
                "chunk_bytes ({}) is above maximum_bytes ({}): lower the one or raise the other",
                human(chunk),
                human(maximum)
            )));
        }
        Ok(())
    }
}
