//! The sizes of the structures, as the Rust compiler lays them out.

use tenure_abi::*;

macro_rules! sizes {
    ($($name:ident),* $(,)?) => {
        /// Each structure of the ABI with its size in bytes.
        pub(crate) const SIZES: &[(&str, usize)] = &[$((stringify!($name), size_of::<$name>())),*];
    };
}

sizes!(
    tenure_stream,
    tenure_text,
    tenure_error,
    tenure_request,
    tenure_resource_vtable,
    tenure_owner,
    tenure_info,
    tenure_statistics,
    tenure_pool_options,
    tenure_fixed_size_options,
    tenure_binning_options,
    tenure_arena_options,
    tenure_async_options,
    tenure_buffer_view,
    tenure_detached,
    tenure_device_info,
    tenure_tracked,
    tenure_account,
    tenure_shared,
    tenure_shared_view,
);

/// Fails when `types.rs` has a structure that [`SIZES`] does not list.
pub(crate) fn complete(types: &str) -> Result<(), String> {
    let declared = types.lines().filter_map(|line| line.strip_prefix("pub struct "));
    for line in declared {
        let name = line.split([' ', '{', '(', ';']).next().unwrap_or(line);
        if !SIZES.iter().any(|(known, _)| *known == name) {
            return Err(format!("`{name}` is not listed in crates/tenure-header/src/sizes.rs; add it"));
        }
    }
    Ok(())
}
