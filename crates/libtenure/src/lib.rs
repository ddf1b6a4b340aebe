//! The shared library of tenure: fills the table of functions from the engine.
