//! The Python extension module of tenure, a client of its table of functions.
