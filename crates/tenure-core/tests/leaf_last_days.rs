//! A forked child, and a process that is ending: frees return, allocations say why not, nothing hangs and no driver call
//! is made. One test, since there is no way back from either.

use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::error::{Error, Result};
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::stream::StreamRef;
use tenure_driver::sim;

const S: StreamRef<'static> = StreamRef::DEFAULT;

fn resources() -> Vec<Resource> {
    let pool = AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() }).expect("a pool");
    let plain = [shared::cuda(), shared::managed(), shared::pinned(), shared::system()].map(|r| r.expect("made"));
    let limiting = Resource::new(Limiting::new(plain[0].clone(), 1 << 20)).expect("made");
    let statistics = Resource::new(Statistics::new(limiting.clone())).expect("made");
    plain.into_iter().chain([Resource::new(pool).expect("made"), limiting, statistics]).collect()
}

/// What holds in both: `expected` names the refusal.
fn afterwards(resources: Vec<Resource>, blocks: Vec<u64>, expected: fn(&Result<u64>) -> bool) -> bool {
    let calls = || sim::calls_all().values().sum::<u64>();
    let before = calls();
    for (resource, ptr) in resources.iter().zip(&blocks) {
        if !expected(&resource.allocate(100, 256, S)) || !expected(&resource.allocate_sync(100, 256)) {
            return false;
        }
        // Below the public entry, where layers call each other.
        let request = tenure_core::resource::Request::checked(100, 256, resource.id()).expect("fine");
        if resource.body().deallocate(*ptr, &request, S).is_err() || resource.deallocate(*ptr, 100, 256, S).is_err() {
            return false;
        }
        let _ = resource.body().info();
    }
    drop(resources);
    calls() == before
}

#[test]
fn a_forked_child_and_an_ending_process_are_left_in_peace() {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    let resources = resources();
    let blocks: Vec<u64> = resources.iter().map(|r| r.allocate(100, 256, S).expect("room")).collect();

    // SAFETY: the child calls only what this test is about, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fine = afterwards(resources, blocks, |r| matches!(r, Err(Error::Forked)));
        // SAFETY: ends the child without handlers of the parent.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    assert!(child > 0, "no child could be made");
    let mut status = 0;
    for _ in 0..500 {
        // SAFETY: waits for the child made above.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        status = -1;
    }
    assert_eq!(status, 0, "the child hung, crashed, or saw something else than it should");

    // The parent goes on.
    for (resource, ptr) in resources.iter().zip(&blocks) {
        let other = resource.allocate(100, 256, S).expect("the parent is well");
        resource.deallocate(other, 100, 256, S).expect("mine");
        assert!(resource.owns(*ptr));
    }

    tenure_driver::process::begin_exit();
    assert!(afterwards(resources, blocks, |r| matches!(r, Err(Error::Exiting))));
}
