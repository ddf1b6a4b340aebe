//! Sharing on the simulated device, inside one process: what a handle says, and what is believed of it.

#![allow(missing_docs)]

use tenure_core::buffer::Buffer;
use tenure_core::error::{Error, MisuseKind};
use tenure_core::pool::{Pool, PoolOptions};
use tenure_core::resource::leaf::{HandleType, shared};
use tenure_core::resource::{Request, Resource};
use tenure_core::sharing::{Imported, Kinds, Shared, import};
use tenure_core::stream::{StreamHold, StreamRef};
use tenure_driver::RawStream;
use tenure_driver::sim::{self, Config};
use tenure_driver::sys;

const MIB: usize = 1 << 20;

fn setup() {
    // Only the first call is in time; it is the same each time.
    let _ = sim::configure(Config { devices: 2, memory: 256 << 20 });
    tenure_driver::load::prefer_sim().expect("the simulated device");
}

fn home() -> StreamHold {
    StreamHold::raw(RawStream::NULL)
}

/// FNV-1a, as the description's last word has it.
fn summed(mut body: Vec<u8>) -> Vec<u8> {
    let sum =
        body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    body.extend(sum.to_le_bytes());
    body
}

/// A description of so many pieces of 2 MiB each, of which 4096 bytes are shared.
fn described(kind: Kinds, pieces: u32, has_pointer: bool, offset: u64) -> Vec<u8> {
    let mut out = b"tenure\x00\x01".to_vec();
    for word in [kind.0, pieces, 7, u32::from(has_pointer)] {
        out.extend(word.to_le_bytes());
    }
    out.extend([1; 32]);
    out.extend(4096_u64.to_le_bytes());
    out.extend(offset.to_le_bytes());
    if has_pointer {
        out.extend([2; 64]);
    }
    for piece in 0..pieces {
        out.extend((2 * MIB as u64).to_le_bytes());
        out.extend(u64::from(piece).to_le_bytes());
        if kind != Kinds::FD {
            out.extend([3; 64]);
        }
    }
    summed(out)
}

#[test]
fn a_description_that_nobody_makes_is_refused() {
    let good = [
        (Kinds::FD, 3, false, 0),
        (Kinds::FD, 1, true, 512),
        (Kinds::FABRIC, 2, false, 3 * MIB as u64),
        (Kinds::FABRIC, 1, true, 0),
        (Kinds::LEGACY, 1, false, 2 * MIB as u64 - 4096),
    ];
    for (kind, pieces, has_pointer, offset) in good {
        let (shared, _) = Shared::read(&described(kind, pieces, has_pointer, offset)).unwrap();
        assert_eq!((shared.kind(), shared.bytes(), shared.pid()), (kind, 4096, 7));
    }
    let bad = [
        (Kinds::LEGACY, 2, false, 0, "an allocation is one piece"),
        (Kinds::LEGACY, 1, true, 0, "pools have no legacy handles"),
        (Kinds::FD, 2, true, 0, "a pool is one piece"),
        (Kinds::FD, 1, true, 2 * MIB as u64, "behind the end of the block"),
        (Kinds::FD, 1, false, 2 * MIB as u64 - 4095, "one byte too far"),
        (Kinds::FABRIC, 1, false, u64::MAX - 100, "no address"),
        (Kinds::FD, 0, false, 0, "nothing"),
        (Kinds::ANY, 1, false, 0, "three kinds"),
    ];
    for (kind, pieces, has_pointer, offset, why) in bad {
        let refused = Shared::read(&described(kind, pieces, has_pointer, offset));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{why}");
    }
}

#[test]
fn a_range_goes_back_as_often_as_it_was_lent() {
    setup();
    let options = PoolOptions { export_handle_type: HandleType::FileDescriptor, ..PoolOptions::default() };
    let pool = Resource::new(Pool::new(shared::cuda().unwrap(), 0, options).unwrap()).unwrap();
    let buffer = Buffer::create(MIB, 256, home(), pool.light()).unwrap();
    let handle = buffer.to_share().share(Kinds::FD).unwrap();
    let (one, two) = (import(&handle, None, home()).unwrap(), import(&handle, Some(0), home()).unwrap());
    assert_eq!(one.ptr(), two.ptr(), "mapped once");
    let resource = one.resource().unwrap().anchor();
    let imported = resource.downcast::<Imported>().unwrap();
    assert_eq!(imported.pid(), std::process::id());
    let (ptr, stream) = (one.ptr(), StreamRef::DEFAULT);
    assert_eq!(resource.body().info().live_count, 2);
    drop((one, two));
    assert_eq!(resource.body().info().live_count, 0);
    let request = Request::checked(MIB, 256, resource.id()).unwrap();
    for refused in [resource.body().deallocate(ptr, &request, stream), resource.body().deallocate_sync(ptr, &request)] {
        assert!(matches!(refused, Err(Error::Misuse(m)) if m.kind == MisuseKind::UnknownPointer));
    }
    assert!(matches!(import(&handle, Some(1), home()), Err(Error::Invalid(_))), "of another device");
}

/// What the driver says of memory that has no legacy handle is "not exportable"; all else is the driver's error. Nothing is left
/// behind by either.
#[test]
fn only_the_drivers_no_is_a_refusal() {
    const CALLS: [&str; 2] = ["cuPointerGetAttribute", "cuIpcGetMemHandle"];
    setup();
    let plain = shared::cuda().unwrap();
    let buffer = Buffer::create(MIB, 256, home(), plain.light()).unwrap();
    let share = || buffer.to_share().share(Kinds::LEGACY);
    for (call, code, no) in [
        (CALLS[1], sys::CUDA_ERROR_INVALID_VALUE, true),
        (CALLS[1], sys::CUDA_ERROR_NOT_SUPPORTED, true),
        (CALLS[1], sys::CUDA_ERROR_OUT_OF_MEMORY, false),
        (CALLS[1], sys::CUDA_ERROR_ILLEGAL_ADDRESS, false),
        (CALLS[1], 999, false),
        (CALLS[0], sys::CUDA_ERROR_ILLEGAL_ADDRESS, false),
        (CALLS[0], 999, false),
    ] {
        sim::fail_next(call, code, 0).unwrap();
        let refused = share().unwrap_err();
        match refused {
            Error::Unsupported(_) => assert!(no, "{call} {code} is not a no"),
            Error::Device(e) => assert!(!no && (e.call, e.code) == (call, code), "{e}"),
            other => panic!("{call} {code}: {other}"),
        }
        assert_eq!(sim::fail_clear(), 0, "{call} was not called");
    }
    // A driver that does not know the question is asked for the handle.
    sim::fail_next(CALLS[0], sys::CUDA_ERROR_INVALID_VALUE, 0).unwrap();
    assert_eq!(share().unwrap().kind(), Kinds::LEGACY);
}
