//! The tenure command: replay, bench, info.
fn main() {}
