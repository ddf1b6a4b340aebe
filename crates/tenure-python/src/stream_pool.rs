//! `tenure.CudaStreamPool`: streams that are given out in turn.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tenure_abi::*;

use crate::errors::{call, check};
use crate::gil;
use crate::size;
use crate::stream::{self, Stream, device_number};
use crate::table::api;

/// A set of streams of one device, given out in turn.
#[pyclass(frozen, weakref, module = "tenure")]
pub(crate) struct CudaStreamPool {
    pool: tenure_stream_pool,
}

impl CudaStreamPool {
    fn given(py: Python<'_>, ask: impl FnOnce(*mut tenure_stream) -> tenure_status) -> PyResult<Stream> {
        let mut out = stream::DEFAULT;
        check(py, ask(&raw mut out))?;
        Ok(Stream::owning(out))
    }
}

#[pymethods]
impl CudaStreamPool {
    #[new]
    #[pyo3(signature = (pool_size=None, flags=None, *, device=None), text_signature = "(pool_size=16, flags=CudaStreamFlags.SYNC_DEFAULT, *, device=None)")]
    fn new(
        py: Python<'_>,
        pool_size: Option<&Bound<'_, PyAny>>,
        flags: Option<&Bound<'_, PyAny>>,
        device: Option<i32>,
    ) -> PyResult<Self> {
        let count = pool_size.map_or(Ok(16), |count| size::count(count, "pool_size"))?;
        let non_blocking = flags.map_or(Ok(false), stream::is_non_blocking)?;
        let device = device_number(device)?;
        let mut pool = 0;
        // SAFETY: `pool` is valid for writing.
        call(py, || unsafe { (api().stream_pool_create)(device, count, u32::from(non_blocking), &mut pool) })?;
        Ok(Self { pool })
    }

    #[pyo3(signature = (stream_id=None))]
    fn get_stream(&self, py: Python<'_>, stream_id: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        let pool = self.pool;
        match stream_id {
            // SAFETY: the pointer is valid for writing.
            None => Self::given(py, |out| unsafe { (api().stream_pool_next)(pool, out) }),
            Some(number) => {
                let number = size::count(number, "stream_id")?;
                // SAFETY: as above.
                Self::given(py, |out| unsafe { (api().stream_pool_at)(pool, number, out) })
            }
        }
    }

    fn get_pool_size(&self, py: Python<'_>) -> PyResult<usize> {
        let mut size = 0;
        // SAFETY: `size` is valid for writing.
        check(py, unsafe { (api().stream_pool_size)(self.pool, &mut size) })?;
        Ok(size)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a stream pool belongs to its process and cannot be pickled"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<tenure.CudaStreamPool of {} streams>", self.get_pool_size(py)?))
    }
}

impl Drop for CudaStreamPool {
    fn drop(&mut self) {
        let pool = self.pool;
        // Ends the streams that nothing else names: driver calls.
        // SAFETY: this pool is ours and is given back once.
        gil::without_lock(|| unsafe { (api().stream_pool_release)(pool) });
    }
}

/// Adds the class.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CudaStreamPool>()
}
