//! Finding the library: each failure is a sentence that says where was looked and what to do. Each case is a process of its
//! own with an environment of its own.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{assert_quiet, child};
use tenure::{Error, LoadFailure};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-load-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compiles a shared library from C.
    fn library(&self, source: &str) -> PathBuf {
        let (c, so) = (self.0.join("l.c"), self.0.join("libtenure.so.0"));
        std::fs::write(&c, source).unwrap();
        // The compiler that links Rust programs is there wherever this test was built.
        let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&so).arg(&c).status().unwrap();
        assert!(status.success());
        so
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the child with `TENURE_LIBRARY` and checks the kind of failure and a part of the text.
fn expect(library: &Path, failure: &str, parts: &[&str]) {
    let output = child("report").env("TENURE_LIBRARY", library).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert_quiet("report", &output);
    let said = String::from_utf8_lossy(&output.stdout);
    for part in [&[failure], parts].concat() {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

#[test]
#[ignore = "run in a child by the other tests"]
#[expect(clippy::print_stdout, reason = "this is how a child answers")]
fn report() {
    match tenure::api() {
        Ok(api) => println!("FOUND abi {}", api.abi),
        Err(Error::Load(error)) => println!("{:?}: {error}", error.failure),
        Err(other) => println!("OTHER {other:?}"),
    }
    // Not remembered: the second answer is as good as the first.
    let again = tenure::api().err().map(|e| e.to_string());
    assert_eq!(again, tenure::api().err().map(|e| e.to_string()));
}

#[test]
fn a_file_that_is_not_there() {
    let path = Path::new("/nonexistent/libtenure.so.0");
    expect(path, "Missing", &["there is no file /nonexistent/libtenure.so.0", "TENURE_LIBRARY", "unset", "looked at:"]);
}

#[test]
fn a_folder_stands_for_the_library_in_it() {
    let folder = Folder::new("folder");
    expect(&folder.0, "Missing", &["libtenure.so.0"]);
    std::fs::write(folder.0.join("libtenure.so.0"), "text").unwrap();
    expect(&folder.0, "Broken", &["libtenure.so.0"]);
}

#[test]
fn a_file_that_is_no_library() {
    let folder = Folder::new("broken");
    let path = folder.0.join("libtenure.so.0");
    std::fs::write(&path, "this is text").unwrap();
    expect(&path, "Broken", &[path.to_str().unwrap(), "cannot be loaded", "correct the variable or unset it"]);
    std::fs::write(&path, b"\x7fELF").unwrap();
    expect(&path, "Broken", &["cannot be loaded"]);
}

#[test]
fn another_library() {
    let folder = Folder::new("other");
    let path = folder.library("int something(void) { return 1; }");
    expect(&path, "Broken", &["is not libtenure"]);
}

#[test]
fn an_older_library() {
    let folder = Folder::new("older");
    let path = folder.library(
        "static const unsigned table[4] = {1, 16, 0, 0};\n\
         const void *tenure_get_api(unsigned abi) { (void)abi; return table; }",
    );
    expect(&path, "WrongVersion", &["16 bytes", "upgrade"]);
}

#[test]
fn a_library_that_refuses() {
    let folder = Folder::new("refuses");
    let path = folder.library(
        "const void *tenure_get_api(unsigned abi) { (void)abi; return 0; }\n\
         const char *tenure_get_api_error(void) { return \"another one is at work\"; }",
    );
    expect(&path, "Refused", &["another one is at work"]);
    let path = folder.library("const void *tenure_get_api(unsigned abi) { (void)abi; return 0; }");
    expect(&path, "Refused", &["does not serve ABI version"]);
}

/// Runs a copy of this program in `folder`, without anything in the environment that names a library.
fn copy_in(folder: &Path) -> String {
    std::fs::create_dir_all(folder).unwrap();
    let program = folder.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "report", "--ignored", "--nocapture", "--test-threads=1"])
        .env_remove("TENURE_LIBRARY")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    assert_quiet("report", &output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn beside_the_program() {
    common::setup();
    let library = tenure::library_path().unwrap();
    for (program, place) in [("", ""), ("", "lib"), ("bin", "lib"), ("a/b", "lib")] {
        let folder = Folder::new("beside");
        let place = folder.0.join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::copy(&library, place.join("libtenure.so.0")).unwrap();
        let said = copy_in(&folder.0.join(program));
        assert!(said.contains("FOUND abi 1"), "{program} {}: {said}", place.display());
    }
    // A broken one is not passed over.
    let folder = Folder::new("beside-broken");
    std::fs::create_dir_all(folder.0.join("lib")).unwrap();
    std::fs::copy(&library, folder.0.join("lib/libtenure.so.0")).unwrap();
    std::fs::write(folder.0.join("libtenure.so.0"), "text").unwrap();
    let said = copy_in(&folder.0);
    assert!(said.contains("Broken: ") && said.contains("repair or remove it"), "{said}");
}

#[test]
fn nowhere() {
    let folder = Folder::new("nowhere");
    let said = copy_in(&folder.0.join("a/b"));
    for part in [
        "Missing: libtenure.so.0 was not found",
        "install tenure, or set TENURE_LIBRARY",
        "tenure_get_api in the global scope",
        "among the loaded objects",
        "a/b/lib/libtenure.so.0",
        "a/b/../../lib/libtenure.so.0",
        "where the system's loader looks",
    ] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

#[test]
fn the_one_that_is_loaded_is_taken() {
    common::setup();
    let api = tenure::api().unwrap();
    // SAFETY: looks for a loaded object and one of its symbols.
    let handle = unsafe { libc::dlopen(c"libtenure.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!handle.is_null(), "the library has no SONAME");
    // SAFETY: the handle is the loader's; the symbol has this signature.
    let table = unsafe {
        let get = libc::dlsym(handle, c"tenure_get_api".as_ptr());
        assert!(!get.is_null());
        let get: unsafe extern "C" fn(u32) -> *const tenure::abi::tenure_api = std::mem::transmute(get);
        get(tenure::abi::TENURE_ABI_VERSION)
    };
    assert!(std::ptr::eq(table, api), "one table in the process");
}

#[test]
fn importing_makes_no_driver_call() {
    let output = child("count_calls").env("TENURE_DEVICE", "sim").output().unwrap();
    assert_quiet("count_calls", &output);
}

#[test]
#[ignore = "run in a child by importing_makes_no_driver_call"]
fn count_calls() {
    tenure::api().unwrap();
    assert!(!tenure::version().unwrap().is_empty());
    assert_eq!(tenure::sim::driver_calls(None).unwrap(), 0);
    drop(tenure::cuda().unwrap());
    assert_eq!(tenure::sim::driver_calls(None).unwrap(), 0);
}

#[test]
fn failures_are_values() {
    let error =
        tenure::LoadError { failure: LoadFailure::Missing, message: "m".into(), places: vec!["a".into(), "b".into()] };
    assert_eq!(error.to_string(), "m; looked at: a, b");
    assert_eq!(Error::Load(Box::new(error)).status(), tenure::abi::TENURE_ERROR_NO_DEVICE);
}
