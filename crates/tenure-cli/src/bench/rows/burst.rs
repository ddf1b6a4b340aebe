//! Many small buffers at once: with a call for each, and with one call for all of them.

use tenure::Resource;

use super::super::bed::{Calls, Given, Kind, Sequence, Sizes};
use super::super::plan::{Begin, Op, Plan, Scene, scene};

const THEME: &str = "burst";
/// Buffers in a burst.
const COUNT: usize = 10_000;
const SIZES: Sizes = Sizes { least: 256, most: 4096 };

struct State {
    pool: Resource,
    stream: Given,
}

pub(super) fn rows() -> Vec<Plan> {
    [
        ("single", "allocated by a call each, then freed by a call each", single as Begin<State>),
        ("batch", "allocated by one call, then freed by one call", batch),
    ]
    .map(|(name, how, operation)| {
        Plan::new(
            THEME,
            format!("{THEME}-{name}"),
            format!("10 000 buffers of 256 B to 4 KiB {how}; for one buffer"),
            move |bed| scene(State { pool: bed.pool()?, stream: Given::new(Kind::Own)? }, operation),
            "malloc and free, a call each",
            |_| malloc(),
        )
        .units(COUNT)
        .warm(2)
    })
    .into()
}

fn single(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream) = (Calls::new(&state.pool)?, state.stream.abi());
    let mut all = Vec::with_capacity(COUNT);
    Ok(Box::new(move || {
        let mut sequence = Sequence::new(0);
        let mut outcome = Ok(());
        for _ in 0..COUNT {
            let bytes = SIZES.next(&mut sequence);
            match calls.allocate(bytes, stream) {
                Ok(ptr) => all.push((ptr, bytes)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for (ptr, bytes) in all.drain(..) {
            outcome = outcome.and(calls.free(ptr, bytes, stream));
        }
        outcome
    }))
}

fn batch(state: &State, _: usize) -> tenure::Result<Op<'_>> {
    let (calls, stream) = (Calls::new(&state.pool)?, state.stream.abi());
    let (mut sizes, mut ptrs) = (vec![0; COUNT], vec![std::ptr::null_mut(); COUNT]);
    Ok(Box::new(move || {
        let mut sequence = Sequence::new(0);
        sizes.fill_with(|| SIZES.next(&mut sequence));
        calls.allocate_many(&sizes, stream, &mut ptrs)?;
        calls.free_many(&ptrs, &sizes, stream)
    }))
}

fn malloc() -> tenure::Result<Box<dyn Scene>> {
    scene((), |(), _| -> tenure::Result<Op<'_>> {
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(COUNT);
        Ok(Box::new(move || {
            let mut sequence = Sequence::new(0);
            for _ in 0..COUNT {
                all.push(Vec::with_capacity(SIZES.next(&mut sequence)));
            }
            all.clear();
            Ok(())
        }))
    })
}
