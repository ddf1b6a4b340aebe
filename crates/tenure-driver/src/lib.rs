//! The device layer of tenure: one table of driver calls, RAII devices, streams and events, and the simulated device.

pub mod sync;
pub mod sys;
pub mod table;
