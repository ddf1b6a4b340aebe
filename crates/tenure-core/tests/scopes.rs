//! Scopes of a statistics adaptor: whose allocations and frees count where.

use std::sync::Barrier;

use tenure_core::adaptor::{Counters, Statistics, scopes};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{DEFAULT_ALIGNMENT, Resource};
use tenure_core::stream::StreamRef;

const S: StreamRef<'static> = StreamRef::DEFAULT;
const A: usize = DEFAULT_ALIGNMENT;

fn adaptor() -> Resource {
    tenure_driver::load::prefer_sim().expect("the simulated device");
    Resource::new(Statistics::new(shared::cuda().expect("plain"))).expect("a resource")
}

fn statistics(resource: &Resource) -> &Statistics {
    resource.downcast::<Statistics>().expect("an adaptor")
}

/// Bytes now, at most, and in all; and the number of allocations in all.
fn bytes(counters: Counters) -> (i64, i64, i64, i64) {
    (counters.bytes.value, counters.bytes.peak, counters.bytes.total, counters.allocations.total)
}

#[test]
fn overlapping_scopes_of_two_threads_see_their_own_and_add_up() {
    let resource = adaptor();
    let gate = Barrier::new(2);
    let figures = std::thread::scope(|threads| {
        let run = |size: usize, leaves_first: bool| {
            let (resource, gate) = (&resource, &gate);
            threads.spawn(move || {
                gate.wait();
                let scope = statistics(resource).open_scope();
                gate.wait();
                let block = resource.allocate(size, A, S).expect("memory");
                gate.wait();
                let seen = scope.counters();
                if leaves_first {
                    scope.close();
                }
                gate.wait();
                resource.deallocate(block, size, A, S).expect("freed");
                (seen, scope.close())
            })
        };
        let (a, b) = (run(64 << 10, true), run(256 << 10, false));
        (a.join().expect("a"), b.join().expect("b"))
    });
    let ((a, a_end), (b, b_end)) = figures;
    assert_eq!(bytes(a), (64 << 10, 64 << 10, 64 << 10, 1));
    assert_eq!(bytes(b), (256 << 10, 256 << 10, 256 << 10, 1));
    assert_eq!(a_end, a, "closed before the free");
    assert_eq!(bytes(b_end), (0, 256 << 10, 256 << 10, 1));
    let all = statistics(&resource).counters();
    assert_eq!((all.bytes.total, all.bytes.value), (a.bytes.total + b.bytes.total, 0));
}

#[test]
fn a_nested_scope_is_part_of_the_outer_one() {
    let resource = adaptor();
    let outer = statistics(&resource).open_scope();
    let a = resource.allocate(100, A, S).expect("memory");
    let inner = statistics(&resource).open_scope();
    let b = resource.allocate(50, A, S).expect("memory");
    resource.deallocate(a, 100, A, S).expect("freed");
    assert_eq!(bytes(inner.close()), (-50, 50, 50, 1), "the outer one's block was freed in here");
    let c = resource.allocate(7, A, S).expect("memory");
    assert_eq!(bytes(outer.close()), (57, 150, 157, 3));
    resource.deallocate(b, 50, A, S).expect("freed");
    resource.deallocate(c, 7, A, S).expect("freed");
    assert_eq!(bytes(outer.close()), (57, 150, 157, 3), "it counts no more");
    assert!(scopes::innermost().is_none());
}

#[test]
fn a_free_counts_where_it_is_made() {
    let resource = adaptor();
    let block = resource.allocate(100, A, S).expect("memory");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let scope = statistics(&resource).open_scope();
            resource.deallocate(block, 100, A, S).expect("freed");
            assert_eq!(bytes(scope.close()), (-100, 0, 0, 0));
        });
    });
    assert_eq!(statistics(&resource).counters().bytes.value, 0);
}

#[test]
fn an_adaptor_counts_in_its_own_scopes_only() {
    let (below, other) = (adaptor(), adaptor());
    let above = Resource::new(Statistics::new(below.clone())).expect("a resource");
    let scopes = [&above, &below, &other].map(|resource| statistics(resource).open_scope());
    let block = above.allocate(10, A, S).expect("memory");
    above.deallocate(block, 10, A, S).expect("freed");
    let block = below.allocate(5, A, S).expect("memory");
    below.deallocate(block, 5, A, S).expect("freed");
    let totals = scopes.map(|scope| scope.close().bytes.total);
    assert_eq!(totals, [10, 15, 0]);
}

#[test]
fn threads_and_tasks_are_put_into_a_scope() {
    let resource = adaptor();
    let pair = |size: usize| {
        let block = resource.allocate(size, A, S).expect("memory");
        resource.deallocate(block, size, A, S).expect("freed");
    };
    let scope = statistics(&resource).open_scope();
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let (scope, pair) = (scope.clone(), &pair);
            threads.spawn(move || {
                pair(1);
                assert!(scopes::enter(Some(scope)).is_none());
                (0..100).for_each(|_| pair(10));
                assert!(scopes::enter(None).is_some());
                pair(1);
            });
        }
    });
    assert_eq!(scope.counters().bytes.total, 2000);
    // Two tasks that take turns on this thread, and end in another order than they began.
    let outside = scopes::enter(None);
    let first = statistics(&resource).open_scope();
    pair(1);
    scopes::enter(None);
    let second = statistics(&resource).open_scope();
    pair(2);
    scopes::enter(Some(first.clone()));
    pair(4);
    assert_eq!(first.close().bytes.total, 5);
    scopes::enter(Some(second.clone()));
    pair(8);
    assert_eq!(second.close().bytes.total, 10);
    scopes::enter(outside);
    pair(16);
    assert_eq!(scope.close().bytes.total, 2016);
    assert!(scopes::enter(Some(scope)).is_none() && scopes::innermost().is_none(), "nobody is in a closed scope");
}

#[test]
fn scopes_that_are_closed_in_the_order_of_their_opening_leave_no_trail() {
    let resource = adaptor();
    let mut last = statistics(&resource).open_scope();
    for _ in 0..200_000 {
        let next = statistics(&resource).open_scope();
        last.close();
        last = next;
    }
    let block = resource.allocate(10, A, S).expect("memory");
    resource.deallocate(block, 10, A, S).expect("freed");
    assert_eq!(bytes(last.close()), (0, 10, 10, 1));
    assert!(scopes::innermost().is_none());
    // A long chain would overflow the stack when it is dropped.
    drop(last);
}

#[test]
fn pushed_counters_go_on_beside_scopes() {
    let resource = adaptor();
    let scope = statistics(&resource).open_scope();
    let a = resource.allocate(10, A, S).expect("memory");
    statistics(&resource).push_counters();
    let b = resource.allocate(20, A, S).expect("memory");
    assert_eq!(bytes(statistics(&resource).pop_counters().expect("pushed")), (20, 20, 20, 1));
    assert_eq!(bytes(scope.close()), (30, 30, 30, 2));
    resource.deallocate(a, 10, A, S).expect("freed");
    resource.deallocate(b, 20, A, S).expect("freed");
}
