//! The engine of tenure: resources, the pool, the table of current resources, buffers.
