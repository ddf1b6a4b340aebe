//! Kernels that fill a block with the pattern of its owner, and that look whether it is still there.
//!
//! On CUDA they are PTX (`kernels.ptx`), which the driver compiles; tenure itself launches nothing, so that the three calls
//! which that takes are looked up here. On the simulated device they are pretended kernels, which fill with one byte.
//!
//! Unsafe in this file: calls of the driver by hand.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use tenure_driver::{Device, RawStream, sim};

/// Of a block: where it is, how long, and whose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) at: u64,
    pub(crate) bytes: usize,
    pub(crate) owner: u64,
}

impl Range {
    /// What the words of a pattern are made of: far apart for owners that are near each other.
    fn seed(&self) -> u64 {
        let mut x = self.owner.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 27)
    }

    /// The byte of a pattern on the simulated device; 251 owners in turn have another one each.
    fn byte(&self) -> u8 {
        (self.owner % 251) as u8 + 1
    }
}

pub(crate) enum Engine {
    Sim,
    Cuda(Kernels),
}

impl Engine {
    /// Makes the kernels ready; the device is current on this thread.
    pub(crate) fn new(device: &'static Device) -> Self {
        if device.driver().is_simulated() { Self::Sim } else { Self::Cuda(Kernels::load(device)) }
    }

    /// How many kernels a stream may have waiting, so that nobody runs ahead without end.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::Sim => 24,
            Self::Cuda(_) => 200,
        }
    }

    /// Fills the range in the order of the stream, after `delay`.
    pub(crate) fn fill(&self, stream: RawStream, range: Range, delay: Duration) {
        match self {
            Self::Sim => {
                let access = sim::Access::Write { at: range.at, len: range.bytes, byte: range.byte() };
                sim::launch_for(stream.as_raw(), delay, &[access]).expect("a launch");
            }
            Self::Cuda(kernels) => {
                kernels.spin(stream, delay);
                let mut values = [range.at, range.bytes as u64 / 4, range.seed()];
                kernels.launch(kernels.fill, range.bytes / 4, stream, &mut values);
            }
        }
    }

    /// Compares the range with its owner's pattern in the order of the stream, after `delay`.
    pub(crate) fn verify(&self, stream: RawStream, range: Range, delay: Duration) {
        match self {
            Self::Sim => {
                let access = sim::Access::Verify { at: range.at, len: range.bytes, byte: range.byte() };
                sim::launch_for(stream.as_raw(), delay, &[access]).expect("a launch");
            }
            Self::Cuda(kernels) => {
                kernels.spin(stream, delay);
                let mut values = [range.at, range.bytes as u64 / 4, range.seed(), kernels.report];
                kernels.launch(kernels.verify, range.bytes / 4, stream, &mut values);
            }
        }
    }

    /// How many mismatches there were (words on CUDA, ranges on the simulated device), and what is known of the first. All
    /// work is done.
    pub(crate) fn mismatches(&self) -> (u64, String) {
        match self {
            Self::Sim => (sim::mismatches(), sim::race_texts().first().cloned().unwrap_or_default()),
            Self::Cuda(kernels) => kernels.read(),
        }
    }
}

/// A kernel as the driver names it.
type Function = *mut c_void;
type Launch = unsafe extern "C" fn(
    Function,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> i32;

/// The module, loaded for the life of the process.
pub(crate) struct Kernels {
    device: &'static Device,
    launch: Launch,
    spin: Function,
    fill: Function,
    verify: Function,
    /// Four numbers in plain memory of the device: see `kernels.ptx`.
    report: u64,
}

// SAFETY: the pointers are handles of the driver, which may be used on any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// A function of the driver's library.
fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library is open and the name a string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "the driver has no {name:?}");
    found
}

impl Kernels {
    fn load(device: &'static Device) -> Self {
        // SAFETY: a string; tenure has loaded this library already.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "libcuda.so.1 cannot be opened");
        // SAFETY: the signatures are those of cuda.h.
        let (load, get, launch) = unsafe {
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> i32>(
                    symbol(library, c"cuModuleLoadData"),
                ),
                std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Function, *mut c_void, *const c_char) -> i32,
                >(symbol(library, c"cuModuleGetFunction")),
                std::mem::transmute::<*mut c_void, Launch>(symbol(library, c"cuLaunchKernel")),
            )
        };
        let text = concat!(include_str!("kernels.ptx"), "\0");
        let mut module = std::ptr::null_mut();
        // SAFETY: the text ends with a zero; the device is current.
        let code = unsafe { load(&mut module, text.as_ptr().cast()) };
        assert_eq!(code, 0, "the driver cannot compile the kernels");
        let kernel = |name: &CStr| {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded and the name a string.
            let code = unsafe { get(&mut function, module, name.as_ptr()) };
            assert_eq!(code, 0, "there is no kernel {name:?}");
            function
        };
        let report = device.alloc(32).expect("32 bytes");
        // SAFETY: 32 bytes that are this function's.
        unsafe { device.driver().fill(report, 0, 32) }.expect("a fill");
        let kernels =
            Self { device, launch, spin: kernel(c"spin"), fill: kernel(c"fill"), verify: kernel(c"verify"), report };
        // The driver loads a kernel at its first launch, and may wait for the device then.
        kernels.launch(kernels.fill, 1, RawStream::NULL, &mut [report, 0, 0]);
        kernels.launch(kernels.verify, 1, RawStream::NULL, &mut [report, 0, 0, report]);
        kernels.spin(RawStream::NULL, Duration::from_micros(1));
        device.synchronize().expect("the kernels run");
        kernels
    }

    fn spin(&self, stream: RawStream, time: Duration) {
        if !time.is_zero() {
            self.launch_on(self.spin, (1, 1), stream, &mut [time.as_nanos() as u64]);
        }
    }

    /// Launches as many threads as `words` asks for, within what fills a device.
    fn launch(&self, kernel: Function, words: usize, stream: RawStream, values: &mut [u64]) {
        let blocks = words.div_ceil(256).clamp(1, 528) as u32;
        self.launch_on(kernel, (blocks, 256), stream, values);
    }

    fn launch_on(&self, kernel: Function, (blocks, threads): (u32, u32), stream: RawStream, values: &mut [u64]) {
        let mut parameters = [std::ptr::null_mut(); 4];
        for (parameter, value) in parameters.iter_mut().zip(values) {
            *parameter = std::ptr::from_mut(value).cast();
        }
        // SAFETY: the kernel takes this many 64-bit values, which the driver copies before it returns; the stream is alive.
        let code = unsafe {
            (self.launch)(
                kernel,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.as_raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(code, 0, "the driver answered {code} to a launch");
    }

    fn read(&self) -> (u64, String) {
        let mut report = [0u64; 4];
        let driver = self.device.driver();
        // SAFETY: 32 bytes each; the copy is over when the stream is waited for.
        unsafe { driver.copy_to_host_async(report.as_mut_ptr().cast(), self.report, 32, RawStream::NULL) }
            .and_then(|()| driver.stream_synchronize(RawStream::NULL))
            .expect("a copy of the report");
        let [count, at, words, seed] = report;
        let (expected, found) = (words as u32, words >> 32);
        (count, format!("at {at:#x}: {found:#010x} in place of {expected:#010x}, of the pattern {seed:#018x}"))
    }
}
