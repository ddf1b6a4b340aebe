//! The end of a process while the simulated device is busy, fork, and the end that a violation brings: each in a child.

#![allow(clippy::macro_metavars_in_unsafe, reason = "the arguments of these calls contain no unsafe code")]

mod sim_support;

use std::process::{Command, Output};

use sim_support::*;
use tenure_driver::sim;
use tenure_driver::sys::*;

/// Runs this program again, as the child that `scene` names.
fn child(scene: &str) -> Output {
    let me = std::env::current_exe().unwrap();
    Command::new(me).args(["--exact", "children", "--nocapture"]).env("SIM_EXIT_SCENE", scene).output().unwrap()
}

unsafe extern "C" fn slow(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(200));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the end of a process is what is tested")]
fn children() {
    let Ok(scene) = std::env::var("SIM_EXIT_SCENE") else {
        return;
    };
    let (t, _lock) = setup();
    let s = stream(&t, 1);
    match scene.as_str() {
        "busy" => {
            let p = alloc(&t, 64 * MIB);
            for i in 0..8 {
                let s = stream(&t, 1);
                busy(s, 20 * i);
                for _ in 0..50 {
                    ok!(t, cuMemsetD8Async(p, 1, 64 * MIB, s));
                    ok!(t, cuLaunchHostFunc(s, Some(slow), std::ptr::null_mut()));
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
            std::process::exit(0);
        }
        "fork" => {
            let p = alloc(&t, 4096);
            #[allow(unused_unsafe, reason = "the macro has its own")]
            // SAFETY: the child only calls the table, which refuses at once, and `_exit`.
            let code = unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    let mut q = 0;
                    let refused = cu!(t, cuMemAlloc(&mut q, 64)) == CUDA_ERROR_NOT_INITIALIZED
                        && cu!(t, cuMemFree(p)) == CUDA_ERROR_NOT_INITIALIZED
                        && sim::busy(s, std::time::Duration::ZERO).is_err();
                    libc::_exit(if refused { 7 } else { 8 });
                }
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                libc::WEXITSTATUS(status)
            };
            assert_eq!(code, 7);
            // The parent goes on.
            ok!(t, cuMemsetD8Async(p, 1, 4096, s));
            ok!(t, cuStreamSynchronize(s));
            ok!(t, cuMemFree(p));
            std::process::exit(0);
        }
        "violation" => {
            ok!(t, cuStreamDestroy(s));
            let _ = cu!(t, cuStreamSynchronize(s));
            std::process::exit(0);
        }
        other => panic!("no scene {other}"),
    }
}

#[test]
fn exit_while_everything_is_busy_is_silent() {
    for _ in 0..20 {
        let out = child("busy");
        assert!(out.status.success(), "{out:?}");
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_forked_child_is_refused_and_the_parent_goes_on() {
    let out = child("fork");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_call_on_a_destroyed_stream_ends_the_process_with_a_sentence() {
    let out = child("violation");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(text.contains("stream 0x") && text.contains("was destroyed before"), "{text}");
}
