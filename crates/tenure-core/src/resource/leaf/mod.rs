//! Leaf resources: those that take memory from a device or from the host, and from nobody else.
//!
//! | file | kind | memory | a free |
//! |---|---|---|---|
//! | [`cuda`] | `cuda` | of a device, plain | waits for the device: the driver's call does |
//! | [`managed`] | `managed` | migrates between host and devices | waits for the stream |
//! | [`pinned`] | `pinned` | of the host, page-locked, mapped for devices | waits for the stream |
//! | [`system`] | `system` | of the host, pageable | waits for the stream |
//! | [`sam_headroom`] | `sam_headroom` | of the host, pageable, at home on a device as far as that has room | waits for the stream |
//! | [`async_pool`] | `cuda_async`, `cuda_async_view`, `cuda_async_managed` | a pool of the driver | in stream order, never waits |
//!
//! The first four have no parameters: there is one engine resource of each per process ([`shared`]), and two of the same
//! kind are equal because they are the same. They share [`plain`], which holds the order of events once. Every leaf
//! keeps a [`Book`](crate::resource::book::Book) of its live blocks; a free that does not agree with it is refused.
//!
//! No leaf holds a lock while the driver is called, and every call that could end somebody's stream capture runs with
//! the thread's capture mode relaxed.

pub mod async_pool;
pub mod cuda;
pub mod managed;
pub mod pinned;
pub mod plain;
pub mod sam_headroom;
pub mod shared;
pub mod system;

pub use async_pool::{AsyncOptions, AsyncPool, HandleType};
pub use cuda::Cuda;
pub use managed::Managed;
pub use pinned::Pinned;
pub use sam_headroom::SamHeadroom;
pub use system::System;
