//! Leaves: plain, managed, pinned, system and stream-ordered memory, and the adaptors in front of them.

use tenure_core::adaptor::{Limiting, Statistics};
use tenure_core::error::Result;
use tenure_core::resource::Resource;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};

use super::Except::{Absorbed, Kept, Store};
use super::{LEGACY, MIB, Scenario, Things, scenario};

const STORE: super::Except = Store("*", "what the driver's pool has taken it keeps for the next request");

fn async_pool() -> Result<Resource> {
    Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() })?)
}

fn async_things() -> Result<Things> {
    Things::of(async_pool()?).with_stream(0)
}

fn stack() -> Result<Things> {
    let bottom = async_pool()?;
    let limiting = Resource::new(Limiting::new(bottom.clone(), 8 << 20))?;
    let statistics = Resource::new(Statistics::new(limiting.clone()))?;
    Things { resources: vec![statistics, limiting, bottom], ..Things::default() }.with_stream(0)
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("plain: allocate", || Ok(Things::of(shared::cuda()?)), |t| t.take(0, MIB, 256, LEGACY)),
        scenario(
            "plain: allocate on a stream of the other device",
            || Things::of(shared::cuda()?).with_stream(1),
            |t| t.take_on_stream(MIB),
        ),
        scenario("plain: free", || Things::of(shared::cuda()?).with_block(MIB), |t| t.give(LEGACY)),
        scenario(
            "plain: free on a stream of the other device",
            || Things::of(shared::cuda()?).with_stream(1)?.with_block(MIB),
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        ),
        scenario(
            "plain: allocate_sync",
            || Ok(Things::of(shared::cuda()?)),
            |t| {
                let ptr = t.resources[0].allocate_sync(MIB, 256)?;
                t.blocks.push(super::Block { resource: 0, ptr, bytes: MIB, align: 256 });
                Ok(())
            },
        ),
        scenario(
            "managed: allocate, aligned to a page",
            || Ok(Things::of(shared::managed()?)),
            |t| t.take(0, 3 * MIB, 2 * MIB, LEGACY),
        )
        .except(&[
            Absorbed("cuMemFree", "a block that was not aligned enough is kept and given back by the next trim"),
            Kept("cuMemFree", "as above"),
        ]),
        scenario("managed: free", || Things::of(shared::managed()?).with_block(MIB), |t| t.give(LEGACY)),
        scenario("pinned: allocate", || Things::of(shared::pinned()?).with_stream(0), |t| t.take_on_stream(MIB)),
        scenario(
            "pinned: free",
            || Things::of(shared::pinned()?).with_stream(0)?.with_block(MIB),
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        ),
        scenario("system: allocate", || Things::of(shared::system()?).with_stream(0), |t| t.take_on_stream(MIB)),
        scenario(
            "system: free",
            || Things::of(shared::system()?).with_stream(0)?.with_block(MIB),
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        ),
        scenario(
            "async: make a pool of the driver",
            || Ok(Things::default()),
            |t| {
                t.resources.push(async_pool()?);
                Ok(())
            },
        )
        .except(&[Kept("cuMemPoolDestroy", "the driver did not take the pool back")]),
        scenario(
            "async: make a pool with an initial size",
            || Ok(Things::default()),
            |t| {
                let options =
                    AsyncOptions { device: Some(0), initial_pool_size: Some(4 * MIB), ..AsyncOptions::default() };
                t.resources.push(Resource::new(AsyncPool::new(options)?)?);
                Ok(())
            },
        ),
        scenario("async: allocate", async_things, |t| t.take_on_stream(MIB)),
        scenario("async: allocate, aligned to a page", async_things, |t| {
            let stream = t.streams[0].clone();
            t.take(0, MIB, 2 * MIB, stream.as_carried())
        })
        .except(&[
            STORE,
            Absorbed("cuMemFreeAsync", "the block stays in the pool until the pool ends"),
            Kept("*", "as above"),
        ]),
        scenario(
            "async: free",
            || {
                let mut things = async_things()?;
                things.take_on_stream(MIB)?;
                Ok(things)
            },
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        ),
        scenario("async: allocate_sync", async_things, |t| {
            let ptr = t.resources[0].allocate_sync(MIB, 256)?;
            t.blocks.push(super::Block { resource: 0, ptr, bytes: MIB, align: 256 });
            Ok(())
        })
        .except(&[STORE]),
        scenario(
            "async: trim",
            || {
                let mut things = async_things()?;
                things.take_on_stream(4 * MIB)?;
                let stream = things.streams[0].clone();
                things.give(stream.as_carried())?;
                tenure_core::ops::synchronize(stream.as_carried(), 0)?;
                Ok(things)
            },
            |t| t.resources[0].body().trim(0).map(drop),
        )
        .except(&[Store("cuMemPoolGetAttribute", "what went back before stays gone, as trim says"), STORE]),
        scenario("async: drop the pool", async_things, |t| {
            t.resources.clear();
            Ok(())
        })
        .except(&[
            Absorbed("*", "a drop returns nothing; what the driver refuses to end stays with the driver and is logged"),
            Kept("*", "as above"),
        ]),
        scenario(
            "async: a view of the default pool, and its threshold",
            || Ok(Things::default()),
            |t| {
                let view = AsyncPool::view_of_default(0)?;
                view.release_threshold()?;
                t.resources.push(Resource::new(view)?);
                Ok(())
            },
        ),
        scenario("limiting and statistics over async: allocate", stack, |t| t.take_on_stream(MIB)),
        scenario(
            "limiting and statistics over async: free",
            || {
                let mut things = stack()?;
                things.take_on_stream(MIB)?;
                Ok(things)
            },
            |t| {
                let stream = t.streams[0].clone();
                t.give(stream.as_carried())
            },
        ),
    ]
}
