//! Blocks of one size, bins of them, and the arena.

use tenure_core::arena::{Arena, ArenaOptions};
use tenure_core::bins::{Binning, BinningOptions, FixedSize, FixedSizeOptions};
use tenure_core::error::Result;
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::shared;

use super::Except::{Absorbed, Kept, Proof, Store};
use super::{LEGACY, MIB, Scenario, Things, keep_busy, scenario, stream};

const STORE: super::Except = Store("*", "what is known about other streams, and what went back, stays so");
const LESS: super::Except = Absorbed("*", "where a whole chunk cannot be had, a single block is tried");

fn fixed(upstream: &Resource, blocks_to_preallocate: u64) -> Result<Resource> {
    let options = FixedSizeOptions { block_size: MIB as u64, blocks_to_preallocate };
    Resource::new(FixedSize::new(upstream.clone(), 0, options)?)
}

fn bins(upstream: &Resource) -> Result<Resource> {
    let options = BinningOptions { min_size_exponent: 18, max_size_exponent: 20 };
    Resource::new(Binning::new(upstream.clone(), 0, options)?)
}

fn arena() -> Result<Resource> {
    let options = ArenaOptions { arena_size: Some(8 << 20), dump_log: None };
    Resource::new(Arena::new(shared::cuda()?, 0, options)?)
}

/// Four blocks, all freed on the second stream, which has more to do.
fn freed_elsewhere(resource: Resource) -> Result<Things> {
    let mut things = Things::of(resource).with_stream(0)?;
    things.streams.push(stream(0)?);
    let other = things.streams[1].clone();
    let on_first = things.streams[0].clone();
    things.take(0, 1000, 256, on_first.as_carried())?;
    for _ in 0..3 {
        things.take(0, 1000, 256, other.as_carried())?;
    }
    for _ in 0..3 {
        things.give(other.as_carried())?;
    }
    keep_busy(&other);
    Ok(things)
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario(
            "fixed size: make",
            || Ok(Things::default()),
            |t| {
                t.resources.push(fixed(&shared::cuda()?, 7)?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "fixed size over managed memory: make",
            || Ok(Things::default()),
            |t| {
                t.resources.push(fixed(&shared::managed()?, 7)?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "fixed size: first growth",
            || Ok(Things::of(fixed(&shared::cuda()?, 0)?)),
            |t| t.take(0, 1000, 256, LEGACY),
        ),
        scenario(
            "fixed size: growth by a chunk",
            || {
                let mut things = Things::of(fixed(&shared::cuda()?, 4)?);
                for _ in 0..4 {
                    things.take(0, MIB, 256, LEGACY)?;
                }
                Ok(things)
            },
            |t| t.take(0, 1000, 256, LEGACY),
        )
        .except(&[LESS, STORE]),
        scenario(
            "fixed size: another stream's block",
            || freed_elsewhere(fixed(&shared::cuda()?, 4)?),
            |t| t.take_on_stream(5000),
        )
        .except(&[Proof, STORE]),
        scenario(
            "fixed size: trim",
            || {
                let mut things = Things::of(fixed(&shared::cuda()?, 4)?).with_block(1000)?;
                things.give(LEGACY)?;
                Ok(things)
            },
            |t| t.resources[0].body().trim(0).map(drop),
        )
        .except(&[Proof, Store("*", "what went back before stays gone, as trim says")]),
        scenario(
            "binning: make",
            || Ok(Things::default()),
            |t| {
                t.resources.push(bins(&shared::cuda()?)?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "binning: first use of a bin",
            || Ok(Things::of(bins(&shared::cuda()?)?)),
            |t| t.take(0, 1000, 256, LEGACY),
        )
        .except(&[LESS, STORE]),
        scenario(
            "binning: what no bin takes",
            || Ok(Things::of(bins(&shared::cuda()?)?)),
            |t| t.take(0, 3 * MIB, 256, LEGACY),
        ),
        scenario(
            "binning: free of a block from before the bin",
            || {
                let things = Things::of(bins(&shared::cuda()?)?).with_block(3 * MIB)?;
                if let Some(binning) = things.resources[0].downcast::<Binning>() {
                    binning.add_bin(4 << 20, None)?;
                }
                Ok(things)
            },
            |t| t.give(LEGACY),
        ),
        scenario(
            "binning: drop",
            || {
                let mut things = Things::of(bins(&shared::cuda()?)?).with_block(1000)?;
                things.give(LEGACY)?;
                Ok(things)
            },
            |t| {
                t.resources.clear();
                Ok(())
            },
        )
        .except(&[
            Absorbed("*", "a drop returns nothing"),
            Kept("*", "what the driver refuses to take back stays there"),
        ]),
        scenario(
            "arena: make",
            || Ok(Things::default()),
            |t| {
                t.resources.push(arena()?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "arena: make with half of the free memory",
            || Ok(Things::default()),
            |t| {
                t.resources.push(Resource::new(Arena::new(shared::cuda()?, 0, ArenaOptions::default())?)?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario("arena: another stream's memory", || freed_elsewhere(arena()?), |t| t.take_on_stream(7 * MIB))
            .except(&[Proof, STORE]),
    ]
}
