//! What a driver call that did not succeed says.
//!
//! [`DriverError`] is small and `Copy`: the name of the call, the driver's code, and whether the call was made at all.
//! The code is a plain integer; names come from our own table and, for codes that are newer than it, from the driver.

use core::fmt;

use crate::process::Unusable;
use crate::sys::*;
use crate::table::CallId;

/// Why a call did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reason {
    /// The driver was called and said so.
    Driver,
    /// The driver (or the simulated device) has no such call.
    Absent,
    /// Not called: this is a forked child.
    Forked,
    /// Not called: the process is ending.
    Exiting,
}

/// A driver call that did not succeed. Nothing that the call was asked to make exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DriverError {
    /// The driver's name of the call, such as `cuMemAlloc`.
    pub call: &'static str,
    /// The driver's code. Calls that were not made have a code too: 801 (not supported) where the driver lacks the call,
    /// 3 (not initialised) in a forked child, 4 (deinitialised) while the process ends.
    pub code: CUresult,
    reason: Reason,
}

impl DriverError {
    /// An error with the code that the driver gave for `call`.
    #[must_use]
    pub const fn new(call: &'static str, code: CUresult) -> Self {
        Self { call, code, reason: Reason::Driver }
    }

    #[inline]
    pub(crate) fn check(call: CallId, code: CUresult) -> Result<(), Self> {
        if code == CUDA_SUCCESS { Ok(()) } else { Err(Self::new(call.name(), code)) }
    }

    #[cold]
    pub(crate) fn absent(call: &'static str) -> Self {
        Self { call, code: CUDA_ERROR_NOT_SUPPORTED, reason: Reason::Absent }
    }

    #[cold]
    pub(crate) fn unusable(call: &'static str, why: Unusable) -> Self {
        match why {
            Unusable::Forked => Self { call, code: CUDA_ERROR_NOT_INITIALIZED, reason: Reason::Forked },
            Unusable::Exiting => Self { call, code: CUDA_ERROR_DEINITIALIZED, reason: Reason::Exiting },
        }
    }

    /// The driver's name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        code_name(self.code)
    }

    /// Whether the device had not enough memory. Only then does a retry after freeing something make sense.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.reason == Reason::Driver && self.code == CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Whether the fault stays: every later call on the device gives the same code, and only a new process helps.
    /// (What `cuda.h` describes with "the process must be terminated and relaunched", and uncorrectable memory errors.)
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.reason == Reason::Driver && is_sticky(self.code)
    }

    /// Whether a context or stream was used after somebody destroyed or reset its context.
    #[must_use]
    pub fn is_context_gone(&self) -> bool {
        self.reason == Reason::Driver
            && matches!(self.code, CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Whether the call was not made because a stream capture is in the way (codes 900 to 908).
    #[must_use]
    pub fn is_capture(&self) -> bool {
        (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED..=CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD).contains(&self.code)
    }

    /// Whether the driver lacks the call; it was not made.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.reason == Reason::Absent
    }

    /// Whether this process is a forked child that may not use the driver; the call was not made.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.reason == Reason::Forked
    }

    /// Whether the process is ending; the call was not made.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.reason == Reason::Exiting
    }
}

fn is_sticky(code: CUresult) -> bool {
    // Named in sys.rs where we use them elsewhere; the three others appeared with CUDA 12.8 to 13.
    const CONTAINED: CUresult = 226;
    const TENSOR_MEMORY_LEAK: CUresult = 721;
    matches!(
        code,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CONTAINED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | TENSOR_MEMORY_LEAK
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// The driver's name of a code: from our table, then from the loaded driver, else "unknown CUDA error".
#[must_use]
pub fn code_name(code: CUresult) -> &'static str {
    RESULTS
        .iter()
        .find(|&&(_, value)| value == i64::from(code))
        .map(|&(name, _)| name)
        .or_else(|| crate::load::loaded().and_then(|driver| driver.error_name(code)))
        .unwrap_or("unknown CUDA error")
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call;
        match self.reason {
            Reason::Absent => write!(
                f,
                "the driver lacks the call {call}: update the NVIDIA driver, or do without what needs it (code {})",
                self.code
            ),
            Reason::Forked => write!(
                f,
                "{call} was not called: this process was forked from one that had used the device, and the driver does \
                 not work in such a child; start workers with \"spawn\" or \"forkserver\", or fork before the first use"
            ),
            Reason::Exiting => {
                write!(f, "{call} was not called: the process is ending, and the driver may be gone already")
            }
            Reason::Driver => {
                write!(f, "{call} failed: {} (code {})", self.name(), self.code)?;
                if let Some(text) = crate::load::loaded().and_then(|driver| driver.error_text(self.code)) {
                    write!(f, ", {text}")?;
                }
                if self.is_sticky() {
                    f.write_str("; the device stays unusable for this process, only a new process helps")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for DriverError {}
