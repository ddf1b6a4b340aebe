//! Remapping on whatever device there is: memory that is stitched from idle pages holds what was written to it, while work
//! still runs at the old addresses of those pages. On a GPU this is the proof that the driver does what the simulated device
//! says it does.

mod common;

use common::{alone, skip_unless};
use tenure::{Device, DeviceBuffer, Pool, Stream};

const MIB: usize = 1 << 20;

/// True when all bytes of the buffer are `byte`.
fn holds(buffer: &DeviceBuffer, byte: u8, stream: &Stream) -> bool {
    let mut host = vec![0u8; buffer.len()];
    buffer.copy_to_host(&mut host, stream).unwrap();
    stream.synchronize().unwrap();
    host.iter().all(|b| *b == byte)
}

#[test]
fn stitched_memory_holds_what_is_written_to_it() {
    let _alone = alone();
    let device = Device::current().unwrap();
    let pool = Pool::builder(&device).maximum_size(64 * MIB as u64).build().unwrap();
    if skip_unless(pool.own_ranges().unwrap(), "virtual memory management") {
        return;
    }
    let streams = [Stream::create().unwrap(), Stream::create().unwrap()];
    let mut proofs = 0;
    for round in 0..20u8 {
        // Sixteen blocks; every second one is written over and over, and freed while that goes on.
        let mut kept = Vec::new();
        let mut freed = Vec::new();
        for at in 0..16u8 {
            let stream = &streams[usize::from(at / 2 + round) % 2];
            let mut buffer = DeviceBuffer::new_in(4 * MIB, stream, &pool).unwrap();
            buffer.fill(at, stream).unwrap();
            if at % 2 == 0 {
                for _ in 0..50 {
                    buffer.fill(100 + at, stream).unwrap();
                }
                freed.push(buffer);
            } else {
                kept.push((at, buffer));
            }
        }
        drop(freed);
        let stream = &streams[usize::from(round) % 2];
        let mut large = DeviceBuffer::new_in(32 * MIB, stream, &pool).expect("it fits by bytes");
        large.fill(200 + round, stream).unwrap();
        assert!(holds(&large, 200 + round, stream), "round {round}: the large block was overwritten");
        for (at, buffer) in &kept {
            assert!(holds(buffer, *at, stream), "round {round}: block {at} was overwritten");
        }
        proofs = pool.info().unwrap().device_proofs;
    }
    assert_eq!(proofs, 0, "nobody waited for the device");
    assert_eq!(pool.info().unwrap().live_bytes, 0);
    pool.trim(0).unwrap();
    assert_eq!(pool.property("past_bytes").unwrap(), 0);
    assert_eq!(pool.info().unwrap().reserved_bytes, 0);
}
