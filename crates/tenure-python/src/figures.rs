//! The figures of a resource as Python objects: `MemoryInfo` and `Statistics`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure_abi::{tenure_info, tenure_statistics};

/// A frozen class of numbers: getters, `as_dict`, equality and a representation, from one list of fields.
macro_rules! figures {
    (@text $field:ident) => {
        &'static str
    };
    ($(#[$doc:meta])* $name:ident($raw:ty, $module:literal) { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, module = $module)]
        pub(crate) struct $name(pub(crate) $raw);

        #[pymethods]
        impl $name {
            /// As a dataclass of these fields has it.
            #[new]
            #[allow(clippy::too_many_arguments, reason = "one for each field")]
            fn new($($field: $type),*) -> Self {
                let mut raw = <$raw>::default();
                raw.size = size_of::<$raw>();
                $( raw.$field = $field; )*
                Self(raw)
            }

            #[classattr]
            fn __match_args__() -> ($(figures!(@text $field),)*) {
                ($(stringify!($field),)*)
            }

            $(
                #[getter]
                fn $field(&self) -> $type {
                    self.0.$field
                }
            )*

            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let fields = PyDict::new(py);
                $( fields.set_item(stringify!($field), self.0.$field)?; )*
                Ok(fields)
            }

            fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
                other.cast::<Self>().is_ok_and(|other| {
                    let other = &other.get().0;
                    true $( && self.0.$field == other.$field )*
                })
            }

            fn __hash__(&self) -> u64 {
                let mut sum = 0_u64;
                $( sum = sum.rotate_left(7) ^ self.0.$field as u64; )*
                sum
            }

            fn __repr__(&self) -> String {
                let mut text = String::from(concat!(stringify!($name), "("));
                let fields = [$( (stringify!($field), self.0.$field.to_string()), )*];
                for (at, (name, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        text.push_str(", ");
                    }
                    text.push_str(name);
                    text.push('=');
                    text.push_str(value);
                }
                text.push(')');
                text
            }
        }
    };
}

figures! {
    /// The figures of a resource, in bytes and in blocks.
    MemoryInfo(tenure_info, "tenure.mr") {
        live_bytes: u64,
        cached_bytes: u64,
        reserved_bytes: u64,
        largest_free_bytes: u64,
        peak_live_bytes: u64,
        peak_reserved_bytes: u64,
        live_count: u64,
        unproven_bytes: u64,
        device_proofs: u64,
        own_ranges: u64,
    }
}

figures! {
    /// The counters of a statistics adaptor, in bytes and in blocks.
    Statistics(tenure_statistics, "tenure.mr") {
        current_bytes: i64,
        current_count: i64,
        peak_bytes: i64,
        peak_count: i64,
        total_bytes: i64,
        total_count: i64,
    }
}
