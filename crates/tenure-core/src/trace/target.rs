//! What a log is replayed against: `cuda`, `async`, `pool` or `pool:SIZE`.
//!
//! Each replay makes a resource of its own, also of the kinds that the process has one of: its figures and peaks then
//! belong to this replay alone, and whatever else the program does stays out of them.

use super::size::Size;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolOptions};
use crate::resource::Resource;
use crate::resource::leaf::{AsyncOptions, AsyncPool, Cuda};

/// A kind of resource, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Plain device memory.
    Cuda,
    /// A pool of the driver.
    Async,
    /// tenure's pool over plain device memory; with a size it takes that much before the first event.
    Pool(Option<Size>),
}

impl Target {
    /// Reads `cuda`, `async`, `pool` or `pool:SIZE`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming what there is.
    pub fn parse(text: &str) -> Result<Self> {
        match text.trim() {
            "cuda" => Ok(Self::Cuda),
            "async" => Ok(Self::Async),
            "pool" => Ok(Self::Pool(None)),
            other => match other.strip_prefix("pool:") {
                Some(size) => Ok(Self::Pool(Some(Size::parse(size)?))),
                None => Err(Error::invalid(format!(
                    "there is no resource {:?} to replay against: choose cuda, async, pool or pool:SIZE (pool:1GiB, \
                     pool:80%)",
                    other.chars().take(40).collect::<String>()
                ))),
            },
        }
    }

    /// Makes a resource of this kind on `device`.
    ///
    /// # Errors
    /// A size that the device does not have; what the resource's constructor says.
    pub fn build(self, device: i32) -> Result<Resource> {
        match self {
            Self::Cuda => Resource::new(Cuda::default()),
            Self::Async => {
                Resource::new(AsyncPool::new(AsyncOptions { device: Some(device), ..AsyncOptions::default() })?)
            }
            Self::Pool(size) => {
                let initial = match size {
                    Some(size) => size.resolve(crate::device::memory_info(device)?.1),
                    None => 0,
                };
                let upstream = Resource::new(Cuda::default())?;
                // A pool of a fixed size: whether a job fits in it is what one wants to know.
                let maximum_bytes = size.is_some().then_some(initial);
                let options = PoolOptions { initial_bytes: initial, maximum_bytes, ..PoolOptions::default() };
                Resource::new(Pool::new(upstream, device, options)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms() {
        assert_eq!(Target::parse("cuda").unwrap(), Target::Cuda);
        assert_eq!(Target::parse(" async ").unwrap(), Target::Async);
        assert_eq!(Target::parse("pool").unwrap(), Target::Pool(None));
        assert_eq!(Target::parse("pool:1GiB").unwrap(), Target::Pool(Some(Size::Bytes(1 << 30))));
        assert_eq!(Target::parse("pool:80%").unwrap(), Target::Pool(Some(Size::Share(800_000))));
    }

    #[test]
    fn anything_else_says_what_there_is() {
        for (text, part) in [
            ("arena", "pool:SIZE"),
            ("", "pool:SIZE"),
            ("Pool", "pool:SIZE"),
            ("pool:", "is not a size"),
            ("pool:lots", "\"lots\" is not a size"),
            ("pool:-1", "negative"),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
