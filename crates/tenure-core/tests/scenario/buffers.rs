//! Buffers and work on streams: everything that a buffer does between its making and its end.

use tenure_core::buffer::{Buffer, Foreign, resolve};
use tenure_core::error::Result;
use tenure_core::pool::PoolOptions;
use tenure_core::resource::leaf::{AsyncOptions, AsyncPool, shared};
use tenure_core::resource::{Properties, Resource};
use tenure_core::stream::StreamHold;
use tenure_core::{device, ops};

use super::Except::{Absorbed, Proof, Store};
use super::{LEGACY, MIB, Scenario, Things, legacy, pool, scenario, stream};

const STORE: super::Except = Store("*", "the pool keeps what it has taken for the block that was given back to it");

fn on_pool() -> Result<Things> {
    Things::of(pool(PoolOptions::default())?).with_stream(0)
}

fn buffer_on_pool() -> Result<Things> {
    let mut things = on_pool()?.with_buffer(MIB)?;
    things.streams.push(stream(0)?);
    Ok(things)
}

fn buffer_on_async() -> Result<Things> {
    let resource = Resource::new(AsyncPool::new(AsyncOptions { device: Some(0), ..AsyncOptions::default() })?)?;
    let mut things = Things::of(resource).with_stream(0)?.with_buffer(MIB)?;
    things.streams.push(stream(0)?);
    Ok(things)
}

fn buffer_on(resource: Resource) -> Result<Things> {
    let mut things = Things::of(resource).with_stream(0)?.with_buffer(MIB)?;
    things.streams.push(stream(0)?);
    Ok(things)
}

/// A buffer that a second stream uses too.
fn used_twice(mut things: Things) -> Result<Things> {
    let second = things.streams[1].clone();
    things.buffers[0].record_stream(second);
    Ok(things)
}

/// A buffer whose home is a value that nobody may ask about.
fn raw_home(resource: Resource) -> Result<Things> {
    let mut things = Things::of(resource).with_stream(0)?;
    let raw = device::driver()?.stream_create_on(0, true)?;
    things.raws.push(raw);
    let buffer = Buffer::create(MIB, 256, StreamHold::raw(raw), things.resources[0].light())?;
    things.buffers.push(buffer);
    Ok(things)
}

fn close(t: &mut Things) -> Result<()> {
    t.buffers[0].close(None)
}

fn grow(t: &mut Things) -> Result<()> {
    let home = t.streams[0].clone();
    t.buffers[0].resize(3 * MIB, home)
}

fn grow_elsewhere(t: &mut Things) -> Result<()> {
    let second = t.streams[1].clone();
    t.buffers[0].resize(3 * MIB, second)
}

fn copy(t: &mut Things) -> Result<()> {
    let (second, light) = (t.streams[1].clone(), t.resources[0].light());
    let copy = t.buffers[0].copy(second, light)?;
    t.buffers.push(copy);
    Ok(())
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        scenario(
            "buffer: create under the current resource",
            || Things::default().with_stream(0),
            |t| {
                let home = t.streams[0].clone();
                let light = resolve(None, home.as_carried())?;
                t.buffers.push(Buffer::create(MIB, 0, home, light)?);
                Ok(())
            },
        ),
        scenario(
            "buffer: create on the default stream under the current resource",
            || Ok(Things::default()),
            |t| {
                let light = resolve(None, LEGACY)?;
                t.buffers.push(Buffer::create(MIB, 0, legacy(), light)?);
                Ok(())
            },
        ),
        scenario("buffer: create under a pool", on_pool, |t| {
            let home = t.streams[0].clone();
            t.buffers.push(Buffer::create(MIB, 256, home, t.resources[0].light())?);
            Ok(())
        }),
        scenario("buffer: resize that grows", buffer_on_pool, grow).except(&[STORE]),
        scenario("buffer: resize that grows on another stream", buffer_on_pool, grow_elsewhere).except(&[STORE]),
        scenario("buffer: resize that grows, used on two streams", || used_twice(buffer_on_pool()?), grow)
            .except(&[STORE]),
        scenario("buffer: resize that grows, plain memory", || buffer_on(shared::cuda()?), grow_elsewhere),
        scenario("buffer: resize that grows, async memory", buffer_on_async, grow_elsewhere).except(&[STORE]),
        scenario("buffer: resize that grows, pinned memory", || buffer_on(shared::pinned()?), grow),
        scenario("buffer: reserve", buffer_on_async, |t| {
            let second = t.streams[1].clone();
            t.buffers[0].reserve(5 * MIB, second)
        })
        .except(&[STORE]),
        scenario(
            "buffer: shrink to fit",
            || {
                let mut things = buffer_on_async()?;
                let home = things.buffers[0].home().clone();
                things.buffers[0].resize(1000, home)?;
                Ok(things)
            },
            |t| {
                let second = t.streams[1].clone();
                t.buffers[0].shrink_to_fit(second)
            },
        )
        .except(&[STORE]),
        scenario("buffer: copy", buffer_on_pool, copy).except(&[STORE]),
        scenario("buffer: copy, async memory", buffer_on_async, copy).except(&[STORE]),
        scenario(
            "buffer: copy to the other device",
            || {
                let mut things = Things::of(shared::cuda()?).with_stream(0)?.with_buffer(MIB)?;
                things.streams.push(stream(1)?);
                Ok(things)
            },
            copy,
        ),
        scenario("buffer: close", buffer_on_async, close),
        scenario("buffer: close, used on two streams", || used_twice(buffer_on_pool()?), close),
        scenario("buffer: close, used on two streams, async memory", || used_twice(buffer_on_async()?), close),
        scenario("buffer: close on another stream", buffer_on_async, |t| {
            let second = t.streams[1].clone();
            t.buffers[0].close(Some(second))
        }),
        scenario("buffer: close, plain memory", || buffer_on(shared::cuda()?), close),
        scenario("buffer: close, pinned memory on a raw stream", || raw_home(shared::pinned()?), close)
            .except(&[Proof]),
        scenario("buffer: close, pool on a raw stream", || raw_home(pool(PoolOptions::default())?), close),
        scenario("buffer: set_stream and close", buffer_on_pool, |t| {
            let second = t.streams[1].clone();
            t.buffers[0].set_stream(second.clone())?;
            let closed = t.buffers[0].close(None);
            if closed.is_err() {
                let first = t.streams[0].clone();
                t.buffers[0].set_stream(first)?;
            }
            closed
        })
        .except(&[Absorbed("cuStreamIsCapturing", "whose free it is stays open until the next proof")]),
        scenario(
            "buffer: detach, used on two streams",
            || used_twice(buffer_on_pool()?),
            |t| {
                let detached = t.buffers[0].detach()?;
                let bytes = detached.capacity;
                t.blocks.push(super::Block { resource: 0, ptr: detached.ptr, bytes, align: detached.align });
                Ok(())
            },
        ),
        scenario(
            "buffer: detach, used on a raw stream",
            || {
                let mut things = buffer_on_pool()?;
                let raw = device::driver()?.stream_create_on(0, true)?;
                things.raws.push(raw);
                things.buffers[0].record_stream(StreamHold::raw(raw));
                Ok(things)
            },
            |t| {
                let detached = t.buffers[0].detach()?;
                let bytes = detached.capacity;
                t.blocks.push(super::Block { resource: 0, ptr: detached.ptr, bytes, align: detached.align });
                Ok(())
            },
        )
        .except(&[Proof]),
        scenario(
            "buffer: adopt a block",
            || {
                let mut things = on_pool()?;
                things.take_on_stream(MIB)?;
                Ok(things)
            },
            |t| {
                let (block, home) = (t.blocks[0], t.streams[0].clone());
                let buffer = Buffer::adopt(block.ptr, block.bytes, block.align, home, t.resources[0].light())?;
                t.blocks.clear();
                t.buffers.push(buffer);
                Ok(())
            },
        ),
        scenario(
            "buffer: adopt with an owner and close",
            || Things::default().with_stream(0),
            |t| {
                let foreign = Foreign { free: Some(Box::new(|_, _, _| ())), owner: None };
                let home = t.streams[0].clone();
                let mut buffer = Buffer::adopt_foreign(0x1000, 64, 0, home, Properties::default(), foreign)?;
                buffer.close(None)?;
                // The face asks for the order of its streams at this moment.
                ops::synchronize(t.streams[0].as_carried(), 0)
            },
        ),
        scenario(
            "buffer: drop",
            || used_twice(buffer_on_pool()?),
            |t| {
                // A drop that fails is reported and keeps the block: `buffers_that_cannot_be_freed` looks at that.
                t.buffers[0].close(None)?;
                t.buffers.clear();
                Ok(())
            },
        ),
        scenario("work: fill, copy, order and wait", buffer_on_pool, |t| {
            let (first, second) = (t.streams[0].clone(), t.streams[1].clone());
            let (ptr, half) = (t.buffers[0].ptr(), MIB / 2);
            // SAFETY: both halves are the buffer's, which outlives the wait in the tear-down.
            unsafe { ops::fill_async(ptr, 7, half, first.as_carried(), 0) }?;
            ops::order_after(second.as_carried(), first.as_carried(), 0)?;
            // SAFETY: as above.
            unsafe { ops::copy_async(ptr + half as u64, ptr, half, second.as_carried(), 0) }?;
            ops::order_after(LEGACY, second.as_carried(), 0)?;
            ops::synchronize(second.as_carried(), 0)?;
            ops::is_idle(first.as_carried(), 0).map(drop)
        }),
        scenario("work: copy to the host and back", buffer_on_pool, |t| {
            let first = t.streams[0].clone();
            let mut host = [0u8; 4096];
            let (ptr, there) = (t.buffers[0].ptr(), host.as_mut_ptr() as u64);
            // SAFETY: the copies with ordinary host memory are complete, or were never made, when this returns.
            let copied = unsafe {
                ops::fill_async(ptr, 9, 4096, first.as_carried(), 0)
                    .and_then(|()| ops::copy_async(there, ptr, 4096, first.as_carried(), 0))
                    .and_then(|()| ops::copy_async(ptr, there, 4096, first.as_carried(), 0))
            };
            device::prove(0)?;
            copied
        })
        .except(&[Proof]),
        scenario("work: wait for a device", || Ok(Things::default()), |_| ops::wait_device(1)).except(&[Proof]),
    ]
}
