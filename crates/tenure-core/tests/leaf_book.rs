//! The book against a list that is searched from end to end, on random programs that shrink.

use proptest::prelude::*;
use tenure_core::error::MisuseKind;
use tenure_core::resource::Request;
use tenure_core::resource::book::{Book, Booked};

#[derive(Clone, Debug)]
enum Step {
    Insert {
        at: u64,
        bytes: usize,
        owner: u64,
    },
    /// A free: of the block with this number if `aim` says so, else of this address; what is named may be off.
    Free {
        pick: usize,
        at: Option<u64>,
        size_off: usize,
        owner_off: u64,
        align: usize,
    },
    /// A free that fails after the block was taken.
    FailedFree {
        pick: usize,
    },
    Find {
        at: u64,
    },
}

/// Few addresses, so that blocks meet.
fn address() -> impl Strategy<Value = u64> {
    0x1000u64..0x1400
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (address(), 1usize..96, 1u64..4).prop_map(|(at, bytes, owner)| Step::Insert { at, bytes, owner }),
        3 => (
            any::<usize>(),
            proptest::option::weighted(0.3, address()),
            prop_oneof![4 => Just(0usize), 1 => 1usize..3],
            prop_oneof![4 => Just(0u64), 1 => 1u64..3],
            prop_oneof![4 => Just(1usize), 1 => Just(64usize)],
        )
            .prop_map(|(pick, at, size_off, owner_off, align)| Step::Free { pick, at, size_off, owner_off, align }),
        1 => any::<usize>().prop_map(|pick| Step::FailedFree { pick }),
        2 => address().prop_map(|at| Step::Find { at }),
    ]
}

fn request(bytes: usize, owner: u64, align: usize) -> Request {
    Request { bytes, align, owner, flags: 0 }
}

proptest! {
    #[test]
    fn agrees_with_a_list(steps in proptest::collection::vec(step(), 1..200)) {
        let book = Book::new();
        let mut list: Vec<(u64, Booked)> = Vec::new();
        let mut peak = 0u64;
        for step in steps {
            match step {
                Step::Insert { at, bytes, owner } => {
                    let new = Booked::new(&request(bytes, owner, 1), 0, 0, at);
                    let meets = list.iter().any(|(p, b)| *p < at + bytes as u64 && at < p + b.bytes as u64);
                    match book.insert_disjoint(at, new) {
                        Ok(()) => {
                            prop_assert!(!meets, "took a block that overlaps");
                            list.push((at, new));
                        }
                        Err(other) => {
                            prop_assert!(meets, "refused a block that is free");
                            prop_assert!(list.iter().any(|(p, b)| *p == other.ptr && b.bytes == other.bytes));
                        }
                    }
                }
                Step::Free { pick, at, size_off, owner_off, align } => {
                    let aimed = (!list.is_empty()).then(|| list[pick % list.len()]);
                    let (start, bytes, owner) = match (at, aimed) {
                        (Some(at), _) => (at, 16, 1),
                        (None, Some((p, b))) => (p, b.bytes, b.owner),
                        (None, None) => continue,
                    };
                    let named = request(bytes + size_off, owner + owner_off, align);
                    let exact = list.iter().position(|(p, _)| *p == start);
                    let inside = list.iter().any(|(p, b)| *p < start && start < p + b.bytes as u64);
                    let expected = match exact.map(|i| list[i].1) {
                        None if inside => Some(vec![MisuseKind::InteriorPointer, MisuseKind::DoubleFree]),
                        None => Some(vec![MisuseKind::UnknownPointer, MisuseKind::DoubleFree]),
                        Some(b) if b.owner != named.owner => Some(vec![MisuseKind::WrongResource]),
                        Some(b) if b.bytes != named.bytes => Some(vec![MisuseKind::WrongSize]),
                        Some(_) if !start.is_multiple_of(align as u64) => Some(vec![MisuseKind::WrongAlignment]),
                        Some(_) => None,
                    };
                    let checked = book.check(start, &named).map(drop).map_err(|m| m.kind);
                    let taken = book.take(start, &named).map_err(|m| m.kind);
                    prop_assert_eq!(checked, taken.map(drop), "a check says what a free would");
                    match (taken, expected) {
                        (Ok(_), None) => {
                            list.swap_remove(exact.expect("found above"));
                        }
                        (Err(kind), Some(kinds)) => prop_assert!(kinds.contains(&kind), "{:?} of {:?}", kind, kinds),
                        (taken, expected) => prop_assert!(false, "{:?} where {:?} was due", taken, expected),
                    }
                }
                Step::FailedFree { pick } => {
                    if list.is_empty() {
                        continue;
                    }
                    let (start, b) = list[pick % list.len()];
                    let taken = book.take(start, &request(b.bytes, b.owner, 1)).expect("live");
                    prop_assert_eq!(taken, b);
                    prop_assert!(book.find(start).is_none_or(|block| block.ptr != start));
                    book.put_back(start, taken);
                }
                Step::Find { at } => {
                    let expected = list.iter().find(|(p, b)| *p <= at && at < p + b.bytes as u64);
                    let found = book.find(at).map(|block| (block.ptr, block.bytes, block.owner));
                    prop_assert_eq!(found, expected.map(|(p, b)| (*p, b.bytes, b.owner)));
                }
            }
            let live: u64 = list.iter().map(|(_, b)| b.bytes as u64).sum();
            peak = peak.max(live);
            prop_assert_eq!((book.live_bytes(), book.live_count()), (live, list.len() as u64));
            prop_assert_eq!(book.peak_live_bytes(), peak);
        }
    }
}
