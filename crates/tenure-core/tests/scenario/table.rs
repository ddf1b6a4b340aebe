//! The table of current resources, streams, and questions.

use tenure_core::error::Result;
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::shared;
use tenure_core::resource::{Resource, registry};
use tenure_core::stream::{StreamHold, StreamObject};
use tenure_core::{current, device};

use super::{LEGACY, MIB, Scenario, Things, pool, scenario};

fn two_pools() -> Result<Things> {
    let first = pool(PoolOptions::default())?;
    let second = Resource::new(Pool::new(shared::cuda()?, 1, PoolOptions::default())?)?;
    Ok(Things { resources: vec![first, second], touched_table: true, ..Things::default() })
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario("table: get the current device's", || Ok(Things::default()), |_| current::get(-1).map(drop)),
        scenario("table: set the current device's", two_pools, |t| {
            let pool = t.resources[0].clone();
            current::set(-1, pool).map(drop)
        }),
        scenario(
            "table: set and reset",
            || {
                let things = two_pools()?;
                current::set(0, things.resources[0].clone())?;
                current::set(1, things.resources[1].clone())?;
                Ok(things)
            },
            |_| current::reset(-1).map(drop),
        ),
        scenario("table: enter a scope", two_pools, |t| {
            let pool = t.resources[0].clone();
            t.scopes.push(current::enter(-1, pool)?);
            Ok(())
        }),
        scenario(
            "table: allocate from what was set while it is replaced",
            || {
                let things = two_pools()?;
                current::set(0, things.resources[0].clone())?;
                Ok(things)
            },
            |t| {
                let light = current::get(-1)?;
                let stream = t.streams.first().cloned().unwrap_or_else(|| StreamHold::raw(LEGACY.raw));
                let buffer = tenure_core::buffer::Buffer::create(MIB, 256, stream, light)?;
                t.buffers.push(buffer);
                Ok(())
            },
        ),
        scenario(
            "stream: create",
            || Ok(Things::default()),
            |t| {
                t.streams.push(super::stream(1)?);
                Ok(())
            },
        ),
        scenario(
            "stream: create one that waits for the default stream",
            || Ok(Things::default()),
            |t| {
                t.streams.push(StreamHold::object(StreamObject::create(0, false)?));
                Ok(())
            },
        ),
        scenario(
            "owner of an address",
            || two_pools()?.with_block(MIB),
            |t| {
                let (owner, _) = registry::owner_of(t.blocks[0].ptr + 5).expect("it is live");
                assert_eq!(owner, t.resources[0]);
                // A question of the driver, as the faces ask beside it.
                device::memory_info(0).map(drop)
            },
        ),
    ]
}
