//! The pool: how it begins, grows, takes from other streams, waits for the device, gives back and ends.

use tenure_core::error::Result;
use tenure_core::pool::{PoolOptions, Prefer};
use tenure_core::resource::leaf::HandleType;
use tenure_core::resource::leaf::shared;
use tenure_core::stream::StreamRef;
use tenure_core::{device, ops};

use super::Except::{Absorbed, Kept, Proof, Store};
use super::{LEGACY, MIB, Scenario, Things, keep_busy, pool, pool_over, scenario, stream};

const CHUNKS: PoolOptions = PoolOptions {
    initial_bytes: 0,
    maximum_bytes: None,
    prefer: Prefer::Concurrency,
    release_threshold: 0,
    assume_no_capture: false,
    plain_chunks: true,
    growth_bytes: 0,
    remap: true,
    decay_ms: 0,
    chunk_bytes: 0,
    grow_ahead: false,
    export_handle_type: HandleType::None,
    peers: 0,
    rdma: false,
};
const RANGES: PoolOptions = PoolOptions { plain_chunks: false, ..CHUNKS };

const STORE: super::Except = Store("*", "what is known about other streams, and what went back, stays so");
const UNKNOWN_LEFT: super::Except = Absorbed(
    "cuMemGetInfo",
    "how much the device has left is not known then, and so all of the growth is made room for",
);
const UNASKED: super::Except = Absorbed("cuStreamIsCapturing", "whose free it is stays open until the next proof");

fn ranges() -> Result<Things> {
    Ok(Things::of(pool(RANGES)?))
}

fn chunks() -> Result<Things> {
    Ok(Things::of(pool(CHUNKS)?))
}

/// A pool of at most 8 MiB whose memory another stream has freed.
fn freed_elsewhere(options: PoolOptions) -> Result<Things> {
    let options = PoolOptions { maximum_bytes: Some(8 << 20), ..options };
    let mut things = Things::of(pool(options)?).with_stream(0)?;
    things.streams.push(stream(0)?);
    let other = things.streams[1].clone();
    things.take(0, 8 * MIB, 256, other.as_carried())?;
    // So that the pool knows of two streams.
    let first = things.streams[0].clone();
    let ptr = things.resources[0].allocate(0, 256, first.as_carried())?;
    assert_eq!(ptr, 0);
    things.give(other.as_carried())?;
    Ok(things)
}

/// A pool of at most 8 MiB whose free memory is proven to nobody.
fn unproven(options: PoolOptions) -> Result<Things> {
    let options = PoolOptions { maximum_bytes: Some(8 << 20), ..options };
    let mut things = Things::of(pool(options)?).with_stream(0)?;
    let raw = device::driver()?.stream_create_on(0, true)?;
    things.raws.push(raw);
    things.take_on_stream(8 * MIB)?;
    // A raw value that nobody may ask about.
    things.give(StreamRef { raw, object: None, stored: true })?;
    Ok(things)
}

/// Both zones have idle pages, and the limit leaves no room for a larger block in the one.
fn to_exchange(options: PoolOptions) -> Result<Things> {
    to_rearrange(PoolOptions { remap: false, ..options })
}

fn to_rearrange(options: PoolOptions) -> Result<Things> {
    let options = PoolOptions { maximum_bytes: Some(16 << 20), ..options };
    let mut things = Things::of(pool(options)?);
    for _ in 0..4 {
        things.take(0, 4 * MIB, 256, LEGACY)?;
    }
    // Every second one goes: 8 MiB are free and in the way of one block of 6.
    for at in [2, 0] {
        let block = things.blocks.remove(at);
        things.resources[0].deallocate(block.ptr, block.bytes, block.align, LEGACY)?;
    }
    Ok(things)
}

/// Four blocks of two streams fill the pool; those of the second are free, and lie apart.
fn two_holes(options: PoolOptions) -> Result<Things> {
    let options = PoolOptions { maximum_bytes: Some(18 << 20), ..options };
    let mut things = Things::of(pool(options)?).with_stream(0)?;
    things.streams.push(stream(0)?);
    let (first, other) = (things.streams[0].clone(), things.streams[1].clone());
    for at in 0..4 {
        let stream = if at % 2 == 0 { &other } else { &first };
        things.take(0, 4 * MIB, 256, stream.as_carried())?;
    }
    for at in [2, 0] {
        let block = things.blocks.remove(at);
        things.resources[0].deallocate(block.ptr, block.bytes, block.align, other.as_carried())?;
    }
    Ok(things)
}

fn idle(options: PoolOptions) -> Result<Things> {
    let mut things = Things::of(pool(options)?);
    for _ in 0..3 {
        things.take(0, 4 * MIB, 256, LEGACY)?;
    }
    things.give(LEGACY)?;
    things.blocks.swap(0, 1);
    things.give(LEGACY)?;
    Ok(things)
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario(
            "pool: make",
            || Ok(Things::default()),
            |t| {
                t.resources.push(pool(RANGES)?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "pool: make with an initial size",
            || Ok(Things::default()),
            |t| {
                t.resources.push(pool(PoolOptions { initial_bytes: 7 << 20, ..RANGES })?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "pool over chunks: make with an initial size",
            || Ok(Things::default()),
            |t| {
                t.resources.push(pool(PoolOptions { initial_bytes: 7 << 20, ..CHUNKS })?);
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario("pool: first growth", ranges, |t| t.take(0, 3 * MIB, 256, LEGACY)),
        scenario("pool: growth in several pieces", ranges, |t| t.take(0, 78 * MIB, 256, LEGACY)),
        scenario(
            "pool: growth that extends a free block",
            || ranges()?.with_block(3 * MIB)?.with_block(512 << 10),
            |t| t.take(0, 5 * MIB, 256, LEGACY),
        ),
        scenario("pool: growth of the small zone", ranges, |t| t.take(0, 100, 256, LEGACY)),
        scenario(
            "pool: growth on a raw stream",
            || {
                let mut things = ranges()?;
                things.raws.push(device::driver()?.stream_create_on(0, true)?);
                Ok(things)
            },
            |t| {
                let raw = t.raws[0];
                t.take(0, 3 * MIB, 256, StreamRef::raw(raw))
            },
        ),
        scenario(
            "pool over chunks: second chunk",
            || chunks()?.with_block(3 * MIB),
            |t| t.take(0, 6 * MIB, 256, LEGACY),
        ),
        scenario(
            "pool over managed memory: growth",
            || Ok(Things::of(pool_over(&shared::managed()?, CHUNKS)?)),
            |t| t.take(0, 3 * MIB, 256, LEGACY),
        ),
        scenario(
            "pool over pinned memory: growth",
            || Ok(Things::of(pool_over(&shared::pinned()?, CHUNKS)?)),
            |t| t.take(0, 3 * MIB, 256, LEGACY),
        ),
        scenario(
            "pool: what has completed on another stream",
            || freed_elsewhere(RANGES),
            |t| t.take_on_stream(8 * MIB),
        )
        .except(&[Proof, STORE]),
        scenario(
            "pool: another stream's block behind a wait",
            || freed_elsewhere(PoolOptions { prefer: Prefer::Footprint, ..RANGES }),
            |t| {
                keep_busy(&t.streams[1]);
                t.take_on_stream(8 * MIB)
            },
        )
        .except(&[Proof, STORE]),
        scenario(
            "pool over chunks: another stream's block behind a wait",
            || freed_elsewhere(CHUNKS),
            |t| {
                keep_busy(&t.streams[1]);
                t.take_on_stream(8 * MIB)
            },
        )
        .except(&[Proof, STORE]),
        scenario("pool: wait for the device", || unproven(RANGES), |t| t.take_on_stream(8 * MIB)).except(&[Proof]),
        scenario("pool: remap idle pages", || to_rearrange(RANGES), |t| t.take(0, 6 * MIB, 256, LEGACY))
            .except(&[Proof, STORE]),
        scenario(
            "pool: remap idle pages of another stream",
            || two_holes(RANGES),
            |t| {
                keep_busy(&t.streams[1]);
                t.take_on_stream(6 * MIB)
            },
        )
        .except(&[Proof, STORE]),
        scenario(
            "pool: remap idle pages that nothing uses any more",
            || {
                let things = two_holes(RANGES)?;
                // What has completed on the other stream is found on the way.
                things.resources[0]
                    .allocate(1, 256, LEGACY)
                    .and_then(|p| things.resources[0].deallocate(p, 1, 256, LEGACY))?;
                ops::wait_device(0)?;
                Ok(things)
            },
            |t| t.take_on_stream(6 * MIB),
        )
        .except(&[Proof, STORE, Absorbed("cuMemUnmap", "the old address goes at the next occasion")]),
        scenario("pool: exchange idle pages", || to_exchange(RANGES), |t| t.take(0, 6 * MIB, 256, LEGACY)).except(&[
            Proof,
            UNKNOWN_LEFT,
            STORE,
        ]),
        scenario("pool over chunks: exchange idle chunks", || to_exchange(CHUNKS), |t| t.take(0, 6 * MIB, 256, LEGACY))
            .except(&[Proof, UNKNOWN_LEFT, STORE]),
        scenario(
            "pool: free on a stream that it has not seen",
            || ranges()?.with_stream(0)?.with_block(MIB),
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        )
        .except(&[UNASKED]),
        scenario(
            "pool: free on a raw stream that it has not seen",
            || {
                let mut things = ranges()?.with_block(MIB)?;
                things.raws.push(device::driver()?.stream_create_on(0, true)?);
                Ok(things)
            },
            |t| {
                let raw = t.raws[0];
                t.give(StreamRef::raw(raw))
            },
        ),
        scenario(
            "pool: allocate_sync of memory that is there",
            || idle(RANGES),
            |t| {
                let ptr = t.resources[0].allocate_sync(MIB, 256)?;
                t.blocks.push(super::Block { resource: 0, ptr, bytes: MIB, align: 256 });
                Ok(())
            },
        )
        .except(&[STORE]),
        scenario("pool: trim", || idle(RANGES), |t| t.resources[0].body().trim(0).map(drop))
            .except(&[Proof, Store("*", "what went back before stays gone, as trim says")]),
        scenario("pool over chunks: trim", || idle(CHUNKS), |t| t.resources[0].body().trim(0).map(drop))
            .except(&[Proof, Store("*", "what went back before stays gone, as trim says")]),
        scenario(
            "pool: trim after frees that nobody can name",
            || unproven(RANGES),
            |t| t.resources[0].body().trim(0).map(drop),
        )
        .except(&[Proof]),
        scenario(
            "pool: drop",
            || {
                let mut things = idle(RANGES)?;
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
            "pool: the end of a stream with blocks pending",
            || {
                let mut things = ranges()?.with_stream(0)?;
                things.streams.push(stream(0)?);
                let second = things.streams[1].clone();
                things.take(0, MIB, 256, second.as_carried())?;
                things.take_on_stream(MIB)?;
                things.blocks.swap(0, 1);
                Ok(things)
            },
            |t| {
                let second = t.streams[1].clone();
                keep_busy(&second);
                if t.blocks.len() == 2 {
                    t.give(second.as_carried())?;
                }
                drop(second);
                t.streams.truncate(1);
                Ok(())
            },
        )
        .except(&[
            Absorbed("*", "a drop returns nothing: without an event the blocks wait for a proof of the device"),
            Kept("*", "a stream that the driver refuses to end stays there"),
        ]),
        scenario(
            "pool: wait for a stream's end and use its memory",
            || {
                let mut things = freed_elsewhere(RANGES)?;
                keep_busy(&things.streams[1]);
                things.streams.truncate(1);
                Ok(things)
            },
            |t| t.take_on_stream(8 * MIB),
        )
        .except(&[Proof, STORE]),
        scenario(
            "pool: figures",
            || idle(RANGES),
            |t| {
                let _ = t.resources[0].body().info();
                ops::wait_device(0)
            },
        )
        .except(&[Proof]),
    ]
}
