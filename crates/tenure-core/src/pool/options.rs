//! What can be chosen when a pool is made, checked by name.

use crate::error::{Error, Result, human};
use crate::resource::MAX_BYTES;

/// What to do first when the stream's own memory does not suffice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Grow: streams stay independent of each other.
    #[default]
    Concurrency,
    /// Make the stream wait for another one and take its memory: the pool stays small.
    Footprint,
}

impl Prefer {
    /// The choice with this name.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names both.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "concurrency" => Ok(Self::Concurrency),
            "footprint" => Ok(Self::Footprint),
            other => Err(Error::invalid(format!(
                "prefer is \"{other}\": it must be \"concurrency\" (grow first) or \"footprint\" (wait for another \
                 stream's memory first)"
            ))),
        }
    }
}

/// The settings of a [`Pool`](super::Pool). Sizes are in bytes.
///
/// ```
/// use tenure_core::pool::PoolOptions;
/// let options = PoolOptions { initial_bytes: 64 << 20, maximum_bytes: Some(1 << 30), ..Default::default() };
/// assert!(options.validate().is_ok());
/// assert!(PoolOptions { initial_bytes: 2 << 30, ..options }.validate().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Taken when the pool is made, at once, or making it fails.
    pub initial_bytes: u64,
    /// What the pool never exceeds; it can be reached exactly. `None`: what the device has.
    pub maximum_bytes: Option<u64>,
    /// What comes first when a stream's own memory does not suffice.
    pub prefer: Prefer,
    /// [`trim`](crate::resource::MemoryResource::trim) keeps at least this many idle bytes.
    pub release_threshold: u64,
    /// The caller promises that no stream it carries is ever capturing: one driver call less per allocation.
    pub assume_no_capture: bool,
    /// Take chunks through the upstream even where the pool could map ranges of its own.
    pub plain_chunks: bool,
    /// What a growth takes at least, where that is to be had; less only when it is not. 0: what is missing.
    pub growth_bytes: u64,
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
        Ok(())
    }
}
