//! The C ABI of tenure: its types and its one table of functions.
