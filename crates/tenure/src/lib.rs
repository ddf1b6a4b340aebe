//! GPU memory management with owned buffers: the Rust face of tenure.
