//! Gives the shared library its SONAME, keeps it loaded, and exports `tenure_*` only.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A client that was linked against libtenure.so.0 finds the one that is loaded already by this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtenure.so.0");
    // The statics of the engine are the state of the process: the code must never go (ownership.md, rule 8).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // What this library calls of its own is its own, also where a program or another library exports the same name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
