//! The feature `static`: a program publishes its table, and a library is refused.
//!
//! The examples are built by a cargo of their own, in a target folder of their own, since the feature must be on for them
//! and off for everything else. That compiles the engine once more (about twenty seconds from nothing).

mod common;

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::process::Command;

const PUBLISH: &str = "-Clink-arg=-Wl,--export-dynamic-symbol=tenure_get_api*";

/// Builds an example with the feature and returns where it is.
fn build(example: &str, file: &str, arguments: &[&str]) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
    let output = Command::new(env!("CARGO"))
        .args([
            "rustc",
            "--quiet",
            "--locked",
            "--offline",
            "--features",
            "static",
            "--example",
            example,
            "--target-dir",
        ])
        .arg(&target)
        .arg("--")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();
    assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    target.join("debug/examples").join(file)
}

/// The shared library that the other tests use.
fn shared_library() -> PathBuf {
    common::setup();
    let api: *const _ = tenure::api().unwrap();
    // SAFETY: a zeroed structure is a valid out-argument; the address lies in a loaded object.
    let name = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert_ne!(libc::dladdr(api.cast(), &mut info), 0);
        std::ffi::CStr::from_ptr(info.dli_fname)
    };
    PathBuf::from(name.to_str().unwrap())
}

#[test]
fn a_program_publishes_and_a_library_is_refused() {
    let library = shared_library();

    let program = build("static_program", "static_program", &[PUBLISH]);
    let output = Command::new(&program).arg(&library).env("TENURE_DEVICE", "sim").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("hello\npublished: true\n"), "{said}");
    assert!(
        said.contains("refused: ") && !said.contains("A SECOND TABLE"),
        "the shared library joins or refuses: {said}"
    );
    assert!(
        said.contains(program.to_str().unwrap()) || said.contains("static_program"),
        "it names the instance: {said}"
    );

    // Without the line in build.rs nothing is published, and that is said.
    let program = build("static_program", "static_program", &[]);
    let output = Command::new(&program).env("TENURE_DEVICE", "sim").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--export-dynamic-symbol=tenure_get_api"), "{said}");

    // In a library the feature is refused, since this process has its instance.
    let linked = build("static_library", "libstatic_library.so", &[]);
    let name = std::ffi::CString::new(linked.to_str().unwrap()).unwrap();
    let mut text = [0 as c_char; 1000];
    // SAFETY: the library exports the function with this signature; the text has the room.
    let usable = unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null());
        let function = libc::dlsym(handle, c"static_library_try".as_ptr());
        assert!(!function.is_null());
        let function: unsafe extern "C" fn(*mut c_char, usize) -> i32 = std::mem::transmute(function);
        function(text.as_mut_ptr(), text.len())
    };
    // SAFETY: the function ended the text with a zero byte.
    let said = unsafe { std::ffi::CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    assert_eq!(usable, 0);
    assert!(said.contains("without the feature `static`"), "{said}");
    // And this process's table still works.
    assert!(tenure::cuda().is_ok());
}
