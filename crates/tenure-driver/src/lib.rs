//! The device layer of tenure.
//!
//! ```text
//!   Device  Stream  Event  AddressRange  PhysicalPages  DriverPool      own things; switch contexts, spare captures
//!                             |
//!                          Driver          one checked method per call: Result<_, DriverError>
//!                             |
//!                           Table          about 100 entries, each may be absent         sys: the driver's C types
//!                          /     \
//!             libcuda.so.1        sim      the simulated device: host memory, worker threads, the same table
//! ```
//!
//! * Nothing is loaded and no call is made before [`Driver::get`]; what that decides ([`load`]) holds for the process.
//! * Whether the process may call the driver at all ([`process`]) is checked before every call and before every lock.
//! * Codes are plain integers, entries may be absent, nothing panics: this code lives in other people's processes.
//! * No policy: nothing here retries, caches memory or picks a resource.

pub mod calls;
pub mod device;
pub mod driver;
pub mod error;
pub mod event;
pub mod load;
pub mod memory;
pub mod nvtx;
pub mod process;
pub mod properties;
pub mod sim;
pub mod stream;
pub mod sync;
pub mod sys;
pub mod table;
pub mod watch;

pub use device::{Current, Device, current_device, with_context};
pub use driver::{CaptureInfo, Driver, HostFlags, MemoryInfo, PointerInfo};
pub use error::DriverError;
pub use event::Event;
pub use load::{Cause, DeviceError, LoadError};
pub use memory::{AddressRange, DriverPool, PhysicalPages, Sharing};
pub use properties::{Capabilities, Properties};
pub use stream::{CaptureStatus, RawStream, RelaxedCapture, Stream};
