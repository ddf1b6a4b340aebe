//! The library as a client meets it: versions, one instance per process, references that are given back twice.
//!
//! Each scene runs in a process of its own, since an instance is for life.

#![allow(missing_docs)]

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;
use tenure_abi::*;

/// The shared library that was built beside this test.
fn library() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    while folder.pop() {
        for name in ["libtenure_engine.so", "deps/libtenure_engine.so"] {
            if folder.join(name).is_file() {
                return folder.join(name);
            }
        }
    }
    panic!("libtenure_engine.so was not built");
}

fn load(path: &Path) -> Library {
    // SAFETY: the library's constructors do nothing.
    unsafe { Library::new(path) }.unwrap()
}

fn api(library: &Library, abi: u32) -> Result<&'static tenure_api, String> {
    // SAFETY: the types of the functions are those of the ABI.
    unsafe {
        let get = library.get::<extern "C" fn(u32) -> *const tenure_api>(b"tenure_get_api").unwrap();
        let error = library.get::<extern "C" fn() -> *const c_char>(b"tenure_get_api_error").unwrap();
        let api = get(abi);
        if api.is_null() { Err(CStr::from_ptr(error()).to_string_lossy().into_owned()) } else { Ok(&*api) }
    }
}

/// Runs the test of this name again in a process of its own, with this environment.
fn in_child(test: &str, environment: &[(&str, &str)]) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("TENURE_TEST_CHILD", test)
        .env("TENURE_DEVICE", "sim")
        .envs(environment.iter().copied())
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed in its process: {status}");
}

fn is_child(test: &str) -> bool {
    std::env::var("TENURE_TEST_CHILD").is_ok_and(|child| child == test)
}

fn message(api: &tenure_api) -> String {
    // SAFETY: a structure of integers and pointers.
    let mut error: tenure_error = unsafe { std::mem::zeroed() };
    error.size = size_of::<tenure_error>();
    // SAFETY: the structure is of this version, and the text valid until the next failure.
    unsafe {
        assert_eq!((api.error_get)(&mut error), TENURE_OK);
        CStr::from_ptr(error.message).to_string_lossy().into_owned()
    }
}

#[test]
fn versions_are_negotiated() {
    if !is_child("versions_are_negotiated") {
        return in_child("versions_are_negotiated", &[]);
    }
    let library = load(&library());
    let api1 = api(&library, TENURE_ABI_VERSION).unwrap();
    assert_eq!(api1.abi, TENURE_ABI_VERSION);
    assert_eq!(api1.size as usize, size_of::<tenure_api>());
    for abi in [0, TENURE_ABI_VERSION + 1, u32::MAX] {
        let why = api(&library, abi).err().unwrap();
        assert!(why.contains("ABI version"), "{why}");
    }
}

#[test]
fn a_second_instance_refuses_and_names_both() {
    const NAME: &str = "a_second_instance_refuses_and_names_both";
    if !is_child(NAME) {
        return in_child(NAME, &[]);
    }
    let first = library();
    let folder = std::env::temp_dir().join(format!("tenure-second-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let second = folder.join("libtenure.so.0");
    std::fs::copy(&first, &second).unwrap();

    let (one, again, two) = (load(&first), load(&first), load(&second));
    // Whoever is asked first: the first in the loader's order is the instance.
    let why = api(&two, 1).err().expect("the second refuses");
    assert!(why.contains(first.to_str().unwrap()) && why.contains(second.to_str().unwrap()), "{why}");
    let table = api(&one, 1).unwrap();
    assert!(std::ptr::eq(table, api(&again, 1).unwrap()), "the same file is the same instance");

    // Functions that are called without the table refuse too.
    // SAFETY: the type is that of the ABI.
    unsafe {
        let create =
            two.get::<unsafe extern "C" fn(*mut tenure_resource) -> tenure_status>(b"tenure_cuda_resource").unwrap();
        let mut out = 0;
        assert_eq!(create(&mut out), TENURE_ERROR_UNSUPPORTED);
        assert_eq!((table.cuda_resource)(&mut out), TENURE_OK);
        assert_eq!((table.resource_release)(out), TENURE_OK);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_reference_that_is_released_twice_is_found() {
    const NAME: &str = "a_reference_that_is_released_twice_is_found";
    if !is_child(NAME) {
        return in_child(NAME, &[("TENURE_CHECK", "handles")]);
    }
    let library = load(&library());
    let api = api(&library, 1).unwrap();
    // SAFETY: every pointer is valid during its call.
    unsafe {
        let (mut pool, mut other, mut same) = (0, 0, 0);
        assert_eq!((api.cuda_resource)(&mut pool), TENURE_OK);
        assert_eq!((api.resource_retain)(pool, &mut other), TENURE_OK);
        assert_ne!(pool, other, "each reference has a value of its own");
        assert_eq!((api.resource_same)(pool, other, &mut same), TENURE_OK);
        assert_eq!(same, 1);
        assert_eq!((api.resource_release)(other), TENURE_OK);
        assert_eq!((api.resource_release)(other), TENURE_ERROR_BAD_HANDLE);
        assert!(message(api).contains("released before"), "{}", message(api));
        // The sharer is not harmed.
        let mut id = 0;
        assert_eq!((api.resource_id)(pool, &mut id), TENURE_OK);
        assert_eq!((api.resource_release)(pool), TENURE_OK);
    }
}

#[test]
fn handles_of_another_kind_and_junk_are_errors() {
    const NAME: &str = "handles_of_another_kind_and_junk_are_errors";
    if !is_child(NAME) {
        return in_child(NAME, &[]);
    }
    let library = load(&library());
    let api = api(&library, 1).unwrap();
    let stream = tenure_stream { raw: std::ptr::null_mut(), object: 0 };
    // SAFETY: every pointer is valid during its call; the handles are what is tested.
    unsafe {
        let (mut cuda, mut buffer, mut id) = (0, 0, 0);
        assert_eq!((api.cuda_resource)(&mut cuda), TENURE_OK);
        assert_eq!((api.buffer_create)(100, 0, stream, cuda, &mut buffer), TENURE_OK);
        for junk in [0, 1, buffer, !0, 1 << 63, 1 << 62, 0xdead_beef, u64::MAX >> 1] {
            assert_eq!((api.resource_id)(junk, &mut id), TENURE_ERROR_BAD_HANDLE, "{junk:#x}");
            assert_eq!((api.resource_release)(junk), TENURE_ERROR_BAD_HANDLE, "{junk:#x}");
        }
        for junk in [0, 1, cuda, !0, buffer + 1, buffer | (1 << 62)] {
            assert_eq!((api.buffer_destroy)(junk), TENURE_ERROR_BAD_HANDLE, "{junk:#x}");
        }
        for junk in [1, buffer, cuda, !0] {
            assert_eq!((api.stream_release)(junk), TENURE_ERROR_BAD_HANDLE, "{junk:#x}");
        }
        assert_eq!((api.buffer_destroy)(buffer), TENURE_OK);
        assert_eq!((api.buffer_destroy)(buffer), TENURE_ERROR_BAD_HANDLE);
        assert_eq!((api.resource_release)(cuda), TENURE_OK);
    }
}
