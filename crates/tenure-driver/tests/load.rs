//! Which driver is used, and what is said when there is none that works.
//!
//! The driver is loaded once per process, so that each scene runs in a process of its own: this test program again, with
//! the one test [`scene`], an environment, and a made-up `libcuda.so.1` in front of the loader's path.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_driver::{Device, Driver, DriverError, LoadError, calls, load, process};

// ------------------------------------------------------------------------------------------------- inside the process

/// Prints what [`Driver::get`] says, twice; then plays the scene named in `SCENE`.
#[test]
#[ignore = "started by the other tests, with an environment of their making"]
fn scene() {
    let scene = std::env::var("SCENE").unwrap_or_default();
    match scene.as_str() {
        "hooks" => {
            load::on_init(|| println!("hook before"));
        }
        "fail, then fork" => {
            assert!(Driver::get().is_err());
            let code = in_child(|| i32::from(!matches!(Driver::get(), Err(LoadError::NoLibrary { .. }))));
            println!("child: {code}");
        }
        "fork first" => {
            // Nothing was used yet: the child is a process like any other.
            let code = in_child(|| i32::from(Driver::get().is_err()));
            println!("child of a fresh process: {code}");
        }
        "fail, then fix" => {
            assert!(Driver::get().is_err());
            // SAFETY: no other thread of this process reads or writes the environment.
            #[allow(clippy::disallowed_methods, reason = "the scene has this process for itself, and one thread")]
            unsafe {
                std::env::set_var(load::VARIABLE, "sim")
            };
        }
        "prefer" => println!("prefer: {:?}", load::prefer_sim().map(Driver::is_simulated)),
        _ => {}
    }
    match Driver::get() {
        Ok(driver) => println!("driver: {} {}", driver.library(), driver.version()),
        Err(error) => println!("error: {error:?}\ntext: {error}"),
    }
    let again = Driver::get().err();
    assert_eq!(Driver::get().err(), again, "the answer is kept");
    match scene.as_str() {
        "hooks" => load::on_init(|| println!("hook after")),
        "calls" => calls_of_the_fake(),
        "fork" => fork_after_use(),
        "exit" => calls_at_exit(),
        "prefer too late" => println!("prefer: {:?}", load::prefer_sim().err()),
        _ => {}
    }
}

fn calls_of_the_fake() {
    let driver = Driver::get().unwrap();
    calls::enable();
    let unknown = driver.mem_info().unwrap_err();
    println!("{unknown}");
    assert_eq!((unknown.call, unknown.code), ("cuMemGetInfo", 12345));
    assert_eq!(unknown.name(), "CUDA_ERROR_FROM_THE_FUTURE");
    assert!(!unknown.is_out_of_memory() && !unknown.is_sticky() && !unknown.is_absent());

    let absent = driver.address_reserve(1 << 21, 0).unwrap_err();
    println!("{absent}");
    assert!(absent.is_absent() && !driver.has("cuMemAddressReserve") && driver.has("cuMemUnmap"));
    assert_eq!(absent.code, 801);

    assert_eq!(Device::get(1).unwrap_err().to_string(), {
        let error = DriverError::new("cuDeviceGet", 101);
        assert_eq!(error.name(), "CUDA_ERROR_INVALID_DEVICE");
        error.to_string()
    });
    assert!(Device::get(-1).is_err());

    // What the driver answered is counted; what it lacks was not called.
    let counts = calls::snapshot();
    assert!(counts.contains(&("cuMemGetInfo", 1)), "{counts:?}");
    assert!(counts.iter().all(|&(name, _)| name != "cuMemAddressReserve"), "{counts:?}");
    calls::disable();
    let total = calls::total();
    let _ = driver.mem_info();
    assert_eq!(calls::total(), total);

    println!("{}", DriverError::new("cuMemAlloc", 2));
    println!("{}", DriverError::new("cuStreamSynchronize", 700));
    println!("{}", DriverError::new("cuMemAlloc", 4711));
}

/// Runs `f` in a forked child; returns its exit code, or 1000 + the signal.
fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only `f` and `_exit`; this test program has one test running.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = f();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child exists and nobody else waits for it.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
        }
    }
}

fn fork_after_use() {
    let driver = Driver::get().unwrap();
    calls::enable();
    let code = in_child(|| {
        let refused = driver.mem_info().unwrap_err();
        let checks = [
            process::forked(),
            process::unusable(),
            !process::exiting(),
            matches!(Driver::get(), Err(LoadError::Forked)),
            matches!(load::prefer_sim(), Err(LoadError::Forked)),
            refused.is_forked() && refused.code == 3 && refused.to_string().contains("spawn"),
            // No call of any kind was made.
            driver.device_count().is_err_and(|error| error.is_forked()) && calls::total() == 0,
            {
                process::begin_exit();
                process::forked()
            },
            // Grandchildren neither.
            in_child(|| i32::from(!process::forked())) == 0,
        ];
        checks.iter().position(|&good| !good).map_or(0, |index| index as i32 + 1)
    });
    println!("child: {code}");
    assert!(!process::unusable() && driver.device_count().is_ok(), "the parent goes on");
}

fn calls_at_exit() {
    let driver = Driver::get().unwrap();
    assert!(!process::exiting());
    process::begin_exit();
    process::begin_exit();
    calls::enable();
    let refused = driver.device_count().unwrap_err();
    assert!(refused.is_exiting() && refused.code == 4 && process::exiting() && !process::forked());
    assert_eq!(calls::total(), 0);
    println!("{refused}");
    println!("get: {:?}", Driver::get().err());
    println!("child: {}", in_child(|| i32::from(!(process::unusable() && process::forked()))));
}

// ------------------------------------------------------------------------------------------------ outside the process

struct Scene(Command);

impl Scene {
    /// A process without a driver library, whatever this machine has is not in front of `fakes`.
    fn new(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "scene", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in [load::VARIABLE, "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        command.env("SCENE", name).env("TENURE_SIM_MEMORY", "64MiB");
        Self(command)
    }

    fn with(mut self, key: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.env(key, value);
        self
    }

    fn device(self, value: &str) -> Self {
        self.with(load::VARIABLE, value)
    }

    fn fake(self, directory: &Path) -> Self {
        self.with("LD_LIBRARY_PATH", directory)
    }

    /// What it printed: standard output and standard error.
    fn run(mut self) -> (String, String) {
        let output = self.0.output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
        assert!(out.contains("1 passed"), "the scene did not run:\n{out}");
        (out, err)
    }
}

fn has(text: &(String, String), parts: &[&str]) {
    for part in parts {
        assert!(text.0.contains(part), "no {part:?} in\n{}\n{}", text.0, text.1);
    }
}

/// Builds the made-up driver once per kind; `None` where there is no C compiler.
fn fake(kind: &str) -> Option<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{kind}-{}", std::process::id()));
    let library = directory.join("libcuda.so.1");
    static LOCK: tenure_driver::sync::Mutex<()> = tenure_driver::sync::Mutex::new(());
    let _one_at_a_time = LOCK.lock();
    if library.exists() {
        return Some(directory);
    }
    std::fs::create_dir_all(&directory).unwrap();
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()));
    command.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cuda.c"));
    if kind == "old" {
        command.arg("-DOLD");
    }
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(directory)
        }
        Err(error) => {
            println!("skipped: no C compiler ({error})");
            None
        }
    }
}

/// Whether this machine's loader finds a driver; scenes about its absence make no sense then.
fn machine_has_driver() -> bool {
    // SAFETY: loading the driver runs its initialisers, as any use of the GPU does.
    let found = unsafe { libloading::Library::new("libcuda.so.1") }.is_ok();
    if found {
        println!("skipped: this machine has a CUDA driver");
    }
    found
}

#[test]
fn unknown_choice_lists_the_choices() {
    let said = Scene::new("").device("gpu").run();
    has(&said, &["UnknownChoice", "\"gpu\"", "auto, cuda or sim"]);
}

#[test]
fn sim_is_silent_when_asked_for() {
    let said = Scene::new("").device("sim").run();
    has(&said, &["driver: the simulated device"]);
    assert!(!said.1.contains("tenure:"), "{}", said.1);
}

#[test]
fn auto_says_once_that_it_simulates() {
    if machine_has_driver() {
        return;
    }
    for value in ["", "auto"] {
        let said = Scene::new("").device(value).run();
        has(&said, &["driver: the simulated device"]);
        assert_eq!(said.1.matches("tenure:").count(), 1, "{}", said.1);
        assert!(said.1.contains("TENURE_DEVICE=sim") && said.1.contains("NVIDIA driver"), "{}", said.1);
    }
}

#[test]
fn cuda_without_a_library_is_an_error() {
    if machine_has_driver() {
        return;
    }
    let said = Scene::new("").device("cuda").run();
    has(&said, &["NoLibrary", "install the NVIDIA driver", "TENURE_DEVICE=sim", "libcuda.so.1"]);
    // Also where the C library speaks another language, if it can.
    let said = Scene::new("").device("cuda").with("LC_ALL", "de_DE.UTF-8").run();
    has(&said, &["NoLibrary"]);
}

#[test]
fn a_failure_is_kept() {
    if machine_has_driver() {
        return;
    }
    has(&Scene::new("fail, then fix").device("cuda").run(), &["NoLibrary"]);
}

#[test]
fn prefer_sim_wins_before_first_use_only() {
    has(&Scene::new("prefer").device("cuda").run(), &["prefer: Ok(true)", "driver: the simulated device"]);
    let Some(directory) = fake("new") else { return };
    has(&Scene::new("prefer too late").fake(&directory).run(), &["driver: libcuda.so.1", "AlreadyLoaded"]);
}

#[test]
fn a_driver_that_works_is_taken() {
    let Some(directory) = fake("new") else { return };
    for device in ["auto", "cuda", ""] {
        let said = Scene::new("").fake(&directory).device(device).run();
        has(&said, &["driver: libcuda.so.1 13000"]);
        assert!(!said.1.contains("tenure:"), "{}", said.1);
    }
    // And left alone when the simulated device is asked for.
    has(&Scene::new("").fake(&directory).device("sim").run(), &["driver: the simulated device"]);
}

#[test]
fn a_driver_that_fails_is_never_replaced() {
    let Some(directory) = fake("new") else { return };
    let broken = |key: &str, value: &str| Scene::new("").fake(&directory).with(key, value).run();
    has(&broken("FAKE_VERSION", "12010"), &["Broken", "TooOld", "CUDA 12.1", "535"]);
    has(&broken("FAKE_INIT", "100"), &["NoDevice", "no GPU is visible", "code 100"]);
    has(&broken("FAKE_COUNT", "0"), &["NoDevice"]);
    has(&broken("FAKE_INIT", "803"), &["Mismatch", "kernel module", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"]);
    has(&broken("FAKE_INIT", "804"), &["Mismatch", "LD_LIBRARY_PATH"]);
    has(&broken("FAKE_INIT", "34"), &["Library", "stub"]);
    has(&broken("FAKE_INIT", "802"), &["fabric manager"]);
    has(&broken("FAKE_INIT", "800"), &["Permission"]);
    has(&broken("FAKE_INIT", "31337"), &["Other", "unknown CUDA error", "31337", "TENURE_DEVICE=sim"]);
    has(&broken("FAKE_MISSING", "cuMemFree"), &["TooOld", "lacks the call cuMemFree"]);
    let hidden = |value: &str| {
        Scene::new("").fake(&directory).with("FAKE_INIT", "100").with("CUDA_VISIBLE_DEVICES", value).run()
    };
    has(&hidden(""), &["NoDevice", "CUDA_VISIBLE_DEVICES is", "hides every GPU"]);
    has(&hidden("-1"), &["NoDevice", "hides every GPU"]);
    has(&hidden("7"), &["NoDevice", "check that it names a GPU"]);

    let Some(old) = fake("old") else { return };
    has(&Scene::new("").fake(&old).run(), &["TooOld", "cuGetProcAddress_v2", "535"]);
}

#[test]
fn a_library_that_cannot_be_loaded_is_not_absent() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    // A file that is no library, as container images leave behind.
    let empty = directory.join("fake-empty");
    std::fs::create_dir_all(&empty).unwrap();
    std::fs::write(empty.join("libcuda.so.1"), b"").unwrap();
    has(&Scene::new("").fake(&empty).run(), &["Broken", "Library", "cannot be loaded"]);
    if machine_has_driver() {
        return;
    }
    // A link to nowhere, which the loader takes for nothing.
    let dangling = directory.join("fake-dangling");
    std::fs::create_dir_all(&dangling).unwrap();
    let link = dangling.join("libcuda.so.1");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("/nowhere/libcuda.so.555", &link).unwrap();
    has(&Scene::new("").fake(&dangling).run(), &["Broken", "is there", "dangling link"]);
}

#[test]
fn calls_are_checked_and_counted() {
    let Some(directory) = fake("new") else { return };
    let said = Scene::new("calls")
        .fake(&directory)
        .with("FAKE_CODE", "12345")
        .with("FAKE_MISSING", "cuMemAddressReserve")
        .run();
    has(
        &said,
        &[
            "cuMemGetInfo failed: CUDA_ERROR_FROM_THE_FUTURE (code 12345)",
            "the driver lacks the call cuMemAddressReserve",
            "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (code 2), out of memory",
            "CUDA_ERROR_ILLEGAL_ADDRESS (code 700); the device stays unusable",
            "unknown CUDA error (code 4711)",
        ],
    );
}

#[test]
fn hooks_run_once_each_before_and_after() {
    let Some(directory) = fake("new") else { return };
    let said = Scene::new("hooks").fake(&directory).run();
    for line in ["hook before", "hook after"] {
        assert_eq!(said.0.matches(line).count(), 1, "{}", said.0);
    }
    // Not for a driver that does not work.
    let said = Scene::new("hooks").fake(&directory).with("FAKE_INIT", "100").run();
    assert_eq!(said.0.matches("hook").count(), 0, "{}", said.0);
}

#[test]
fn forked_children_make_no_call() {
    has(&Scene::new("fork").device("sim").run(), &["child: 0\n"]);
    let Some(directory) = fake("new") else { return };
    has(&Scene::new("fork").fake(&directory).run(), &["child: 0\n"]);
    has(&Scene::new("fork first").fake(&directory).run(), &["child of a fresh process: 0\n", "driver: libcuda"]);
}

#[test]
fn nothing_is_called_once_the_exit_has_begun() {
    let Some(directory) = fake("new") else { return };
    has(&Scene::new("exit").fake(&directory).run(), &["the process is ending", "get: Some(Exiting)", "child: 0\n"]);
}
