//! Memory of one process in another, on whatever device there is: a child of this test program opens what this process shares,
//! reads it, writes to it, and outlives it where the kind of handle allows.

mod common;

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;

use common::{alone, child, setup, skip_unless};
use tenure::sharing::Kinds;
use tenure::{AsyncPool, Device, DeviceBuffer, Error, HandleType, Pool, Resource, Shared, Stream};

const MIB: usize = 1 << 20;
const DATA: &str = "TENURE_TEST_SHARED";
const FDS: &str = "TENURE_TEST_SHARED_FDS";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// What the environment of a child names.
fn received() -> Shared {
    let data = unhex(&std::env::var(DATA).unwrap());
    let numbers = std::env::var(FDS).unwrap();
    let numbers = numbers.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
    // SAFETY: the parent left these open for this process alone.
    let fds = numbers.map(|fd: i32| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    Shared::from_bytes(&data, fds).unwrap()
}

fn first(buffer: &DeviceBuffer, stream: &Stream) -> [u8; 12] {
    let mut whole = vec![0; buffer.len()];
    buffer.copy_to_host(&mut whole, stream).unwrap();
    whole[..12].try_into().unwrap()
}

#[test]
#[ignore = "run by the other tests"]
fn importer() {
    setup();
    let (shared, stream) = (received(), Stream::create().unwrap());
    let mut buffer = shared.open(&stream).unwrap();
    let again = shared.open(&stream).unwrap();
    assert_eq!(buffer.ptr(), again.ptr(), "mapped once");
    assert_eq!(buffer.len() as u64, shared.bytes());
    assert_eq!(&first(&buffer, &stream), b"from parent!");
    drop(again);
    let resource = buffer.resource().unwrap().expect("the mapping's");
    assert_eq!(resource.kind(), "imported");
    assert!(matches!(resource.allocate(256, &stream), Err(Error::Unsupported(_))));
    assert!(matches!(buffer.share(Kinds::ANY), Err(Error::Unsupported(_))), "not ours to share");
    let mut bytes = vec![0; buffer.len()];
    bytes[..12].copy_from_slice(b"from child!!");
    buffer.copy_from_host(&bytes, &stream).unwrap();
    stream.synchronize().unwrap();
    drop(buffer);
    assert_eq!(resource.info().unwrap().live_bytes, 0);
}

/// Waits for the end of its parent, and reads then.
#[test]
#[ignore = "run by the other tests"]
fn heir() {
    setup();
    let (shared, stream) = (received(), Stream::create().unwrap());
    let buffer = shared.open(&stream).unwrap();
    // The parent's end of this goes with the parent.
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
    assert_eq!(&first(&buffer, &stream), b"from parent!");
    assert!(shared.open(&stream).is_ok(), "once more, from the descriptors alone");
}

/// Shares, starts an heir and ends.
#[test]
#[ignore = "run by the other tests"]
fn testator() {
    setup();
    let (device, stream) = (Device::current().unwrap(), Stream::create().unwrap());
    let pool = Pool::builder(&device).exportable(HandleType::FileDescriptor).build().unwrap();
    let (shared, _buffer) = share(&pool, Kinds::FD, &stream);
    let mut command = given(&mut child("heir"), &shared, Stdio::piped());
    // Its standard output and error are this process's, which whoever started this one reads to their end.
    let started = command.spawn().unwrap();
    // Its input ends with this process and not before.
    std::mem::forget(started);
}

/// A command that hands a child what was shared, with the descriptors by inheritance.
fn given(command: &mut std::process::Command, shared: &Shared, input: Stdio) -> std::process::Command {
    let mut new = std::process::Command::new(command.get_program());
    new.args(command.get_args()).stdin(input).env(DATA, hex(shared.to_bytes()));
    let mut numbers = Vec::new();
    for fd in shared.fds() {
        // SAFETY: the descriptor is open. The copy is left open for the child, and for the rest of this test program.
        let copy = unsafe { libc::dup(fd.as_raw_fd()) };
        assert!(copy >= 0);
        numbers.push(copy.to_string());
    }
    new.env(FDS, numbers.join(","));
    new
}

fn share(resource: &Resource, kinds: Kinds, stream: &Stream) -> (Shared, DeviceBuffer) {
    // Not at the start of its piece, and over the border of one.
    std::mem::forget(DeviceBuffer::new_in(3 * MIB, stream, resource).unwrap());
    let mut buffer = DeviceBuffer::new_in(5 * MIB, stream, resource).unwrap();
    let mut bytes = vec![0; buffer.len()];
    bytes[..12].copy_from_slice(b"from parent!");
    buffer.copy_from_host(&bytes, stream).unwrap();
    let shared = buffer.share(kinds).unwrap();
    assert_eq!((shared.bytes(), shared.pid(), shared.kind()), (5 * MIB as u64, std::process::id(), kinds));
    (shared, buffer)
}

fn reaches_a_child(resource: &Resource, kinds: Kinds) {
    let stream = Stream::create().unwrap();
    assert!(resource.exports().unwrap().has(kinds), "{:?}", resource.exports());
    let (shared, buffer) = share(resource, kinds, &stream);
    let output = given(&mut child("importer"), &shared, Stdio::null()).output().unwrap();
    let text = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.0.contains("1 passed"), "{}\n{}", text.0, text.1);
    assert_eq!(&first(&buffer, &stream), b"from child!!", "the child wrote to the same memory");
}

/// A resource, unless the device cannot make it.
fn unless_unsupported<T>(made: Result<T, Error>) -> Option<T> {
    match made {
        Err(Error::Unsupported(why)) => {
            skip_unless(false, &why);
            None
        }
        made => Some(made.unwrap()),
    }
}

#[test]
fn memory_of_a_pool_reaches_another_process_by_descriptor() {
    let _alone = alone();
    let device = Device::current().unwrap();
    let made = Pool::builder(&device).exportable(HandleType::FileDescriptor).chunk_size(2 << 20).build();
    if let Some(pool) = unless_unsupported(made) {
        assert!(pool.properties().unwrap().exportable());
        reaches_a_child(&pool, Kinds::FD);
    }
}

#[test]
fn memory_of_a_pool_reaches_another_process_by_fabric() {
    let _alone = alone();
    let device = Device::current().unwrap();
    if let Some(pool) = unless_unsupported(Pool::builder(&device).exportable(HandleType::Fabric).build()) {
        let stream = Stream::create().unwrap();
        // A device may say that it has them, and the machine still lack what they need.
        match DeviceBuffer::new_in(MIB, &stream, &pool) {
            Ok(_) => reaches_a_child(&pool, Kinds::FABRIC),
            Err(why) => _ = skip_unless(false, &why.to_string()),
        }
    }
}

#[test]
fn memory_of_a_driver_pool_reaches_another_process() {
    let _alone = alone();
    let device = Device::current().unwrap();
    if let Some(pool) = unless_unsupported(AsyncPool::builder(&device).exportable(HandleType::FileDescriptor).build()) {
        reaches_a_child(&pool, Kinds::FD);
    }
}

#[test]
fn plain_memory_reaches_another_process_by_legacy_handle() {
    let _alone = alone();
    let device = Device::current().unwrap();
    reaches_a_child(&tenure::cuda().unwrap(), Kinds::LEGACY);
    let pool = Pool::builder(&device).plain_chunks(true).build().unwrap();
    reaches_a_child(&pool, Kinds::LEGACY);
}

#[test]
fn an_importer_outlives_its_exporter() {
    let _alone = alone();
    let device = Device::current().unwrap();
    if unless_unsupported(Pool::builder(&device).exportable(HandleType::FileDescriptor).build()).is_none() {
        return;
    }
    // The output ends when the heir has ended too, since both write to it.
    let output = child("testator").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        text.matches("1 passed").count(),
        2,
        "testator and heir:\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn what_cannot_be_shared_says_what_would_be() {
    let _alone = alone();
    let (device, stream) = (Device::current().unwrap(), Stream::create().unwrap());
    let pool = Pool::builder(&device).build().unwrap();
    if pool.own_ranges().unwrap() {
        assert_eq!(pool.exports().unwrap(), Kinds::NONE);
        let buffer = DeviceBuffer::new_in(100, &stream, &pool).unwrap();
        let Err(Error::Unsupported(text)) = buffer.share(Kinds::ANY) else { panic!("shared") };
        assert!(text.contains("export_handle_type"), "{text}");
    }
    let Err(Error::Unsupported(text)) =
        Pool::builder(&device).plain_chunks(true).exportable(HandleType::FileDescriptor).build()
    else {
        panic!("made")
    };
    assert!(text.contains("legacy"), "{text}");
    let host = DeviceBuffer::new_in(100, &stream, &tenure::system().unwrap()).unwrap();
    assert!(matches!(host.share(Kinds::ANY), Err(Error::Unsupported(_))));
    let empty = DeviceBuffer::new_in(0, &stream, &pool).unwrap();
    assert!(matches!(empty.share(Kinds::ANY), Err(Error::Invalid(_))));
    let plain = DeviceBuffer::new_in(100, &stream, &tenure::cuda().unwrap()).unwrap();
    let shared = plain.share(Kinds::LEGACY).unwrap();
    let Err(Error::Unsupported(text)) = shared.open(&stream) else { panic!("opened in its own process") };
    assert!(text.contains("use the buffer"), "{text}");
}

#[test]
fn a_broken_handle_is_an_error_and_nothing_else() {
    let _alone = alone();
    let (device, stream) = (Device::current().unwrap(), Stream::create().unwrap());
    let Some(pool) = unless_unsupported(Pool::builder(&device).exportable(HandleType::FileDescriptor).build()) else {
        return;
    };
    let (shared, buffer) = share(&pool, Kinds::FD, &stream);
    let whole = shared.to_bytes();
    let copies = || -> Vec<OwnedFd> { shared.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect() };
    for cut in 0..whole.len() {
        assert!(matches!(Shared::from_bytes(&whole[..cut], copies()), Err(Error::Invalid(_))), "{cut} bytes");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1;
        assert!(matches!(Shared::from_bytes(&bytes, copies()), Err(Error::Invalid(_))), "byte {at}");
    }
    assert!(matches!(Shared::from_bytes(whole, Vec::new()), Err(Error::Invalid(_))));
    // Descriptors of something else.
    let others: Vec<OwnedFd> = shared.fds().map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
    let wrong = Shared::from_bytes(whole, others).unwrap();
    assert!(wrong.open(&stream).is_err());
    // In the process itself it is mapped a second time, and outlives what it was made from.
    let opened = Shared::from_bytes(whole, copies()).unwrap().open(&stream).unwrap();
    drop((shared, buffer));
    drop(pool);
    assert_eq!(&first(&opened, &stream), b"from parent!");
}
