//! Short names for the driver's result codes that the simulated device answers with.

pub(super) use crate::sys::CUDA_ERROR_CAPTURED_EVENT as CAPTURED_EVENT;
pub(super) use crate::sys::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as HOST_MEMORY_ALREADY_REGISTERED;
pub(super) use crate::sys::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED as HOST_MEMORY_NOT_REGISTERED;
pub(super) use crate::sys::CUDA_ERROR_ILLEGAL_ADDRESS as ILLEGAL_ADDRESS;
pub(super) use crate::sys::CUDA_ERROR_ILLEGAL_STATE as ILLEGAL_STATE;
pub(super) use crate::sys::CUDA_ERROR_INVALID_CONTEXT as INVALID_CONTEXT;
pub(super) use crate::sys::CUDA_ERROR_INVALID_DEVICE as INVALID_DEVICE;
pub(super) use crate::sys::CUDA_ERROR_INVALID_HANDLE as INVALID_HANDLE;
pub(super) use crate::sys::CUDA_ERROR_INVALID_VALUE as INVALID_VALUE;
pub(super) use crate::sys::CUDA_ERROR_NOT_FOUND as NOT_FOUND;
pub(super) use crate::sys::CUDA_ERROR_NOT_INITIALIZED as NOT_INITIALIZED;
pub(super) use crate::sys::CUDA_ERROR_NOT_PERMITTED as NOT_PERMITTED;
pub(super) use crate::sys::CUDA_ERROR_NOT_READY as NOT_READY;
pub(super) use crate::sys::CUDA_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;
pub(super) use crate::sys::CUDA_ERROR_OUT_OF_MEMORY as OUT_OF_MEMORY;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as CAPTURE_IMPLICIT;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as CAPTURE_INVALIDATED;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_ISOLATION as CAPTURE_ISOLATION;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_MERGE as CAPTURE_MERGE;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_UNJOINED as CAPTURE_UNJOINED;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED as CAPTURE_UNMATCHED;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as CAPTURE_UNSUPPORTED;
pub(super) use crate::sys::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD as CAPTURE_WRONG_THREAD;
pub(super) use crate::sys::CUDA_ERROR_UNKNOWN as UNKNOWN;
pub(super) use crate::sys::CUDA_SUCCESS as SUCCESS;
