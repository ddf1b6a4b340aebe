//! The table of driver calls.
//!
//! One list, [`for_each_call!`](crate::for_each_call), names every call that tenure makes: its name, its parameters, and
//! the CUDA version in which a call of exactly these parameters appeared. Everything else is made from it:
//!
//! ```text
//!                       for_each_call!  (name, version, parameters)
//!        +-------------------+----------------+----------------------+
//!   struct Table        Table::resolve    fill_table!           CALLS: names, versions, types
//!   one Option<fn>      asks libcuda by   the simulated         the header check, call counts,
//!   per call            name and version  device's functions    fault injection
//! ```
//!
//! * The driver keeps every version of a call for good and hands out the one that fits the version it is asked for
//!   (`cuGetProcAddress_v2`). Asking for the version *in which the parameters that we use appeared* is therefore what makes
//!   one binary serve CUDA 12 and 13, although CUDA 13 gave some of these names other parameters.
//! * We always ask for the variants in which handle 0 is the legacy stream. A caller that was compiled for per-thread
//!   default streams passes the per-thread handle by name.
//! * Every entry may be absent. [`crate::driver`] turns an absent one into an error that says so.

#![allow(non_snake_case)]

use crate::sys::*;

/// Calls `$then!` with the list of driver calls: `version name(parameter: type, ...);`, after the tokens in brackets.
///
/// The types are those of [`crate::sys`]; a module that expands the list has them in scope.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_call {
    ($then:ident [$($extra:tt)*]) => { $then! { [$($extra)*]
        // the driver, devices, contexts
        2000 cuInit(flags: c_uint);
        2020 cuDriverGetVersion(version: *mut c_int);
        6000 cuGetErrorName(error: CUresult, text: *mut *const c_char);
        6000 cuGetErrorString(error: CUresult, text: *mut *const c_char);
        2000 cuDeviceGetCount(count: *mut c_int);
        2000 cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        2000 cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        2000 cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        11040 cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
        3020 cuDeviceTotalMem(bytes: *mut usize, device: CUdevice);
        4000 cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        7000 cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        11000 cuDevicePrimaryCtxRelease(device: CUdevice);
        7000 cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        11000 cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint);
        4000 cuCtxGetCurrent(context: *mut CUcontext);
        4000 cuCtxSetCurrent(context: CUcontext);
        4000 cuCtxPushCurrent(context: CUcontext);
        4000 cuCtxPopCurrent(context: *mut CUcontext);
        2000 cuCtxGetDevice(device: *mut CUdevice);
        2000 cuCtxSynchronize();
        12000 cuCtxGetId(context: CUcontext, id: *mut c_ulonglong);
        12050 cuCtxRecordEvent(context: CUcontext, event: CUevent);
        // streams and captures
        2000 cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        5050 cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        4000 cuStreamDestroy(stream: CUstream);
        2000 cuStreamSynchronize(stream: CUstream);
        2000 cuStreamQuery(stream: CUstream);
        3020 cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        12000 cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
        9020 cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        5050 cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
        10000 cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
        11030 cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t,
            graph: *mut CUgraph, dependencies: *mut *const CUgraphNode, count: *mut usize);
        10010 cuStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode);
        10000 cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        10010 cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
        10000 cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void);
        // events
        2000 cuEventCreate(event: *mut CUevent, flags: c_uint);
        4000 cuEventDestroy(event: CUevent);
        2000 cuEventRecord(event: CUevent, stream: CUstream);
        2000 cuEventQuery(event: CUevent);
        2000 cuEventSynchronize(event: CUevent);
        2000 cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        // memory: plain, stream-ordered, pools
        3020 cuMemAlloc(address: *mut CUdeviceptr, bytes: usize);
        3020 cuMemFree(address: CUdeviceptr);
        3020 cuMemGetInfo(free: *mut usize, total: *mut usize);
        3020 cuMemGetAddressRange(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
        11020 cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
        11020 cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
        11020 cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
        11020 cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
        11020 cuMemPoolDestroy(pool: CUmemoryPool);
        11020 cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        11020 cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
        11020 cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
        11020 cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
        11020 cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
        13000 cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType);
        11020 cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
        11020 cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);
        11020 cuMemPoolExportToShareableHandle(handle: *mut c_void, pool: CUmemoryPool,
            kind: CUmemAllocationHandleType, flags: c_ulonglong);
        11020 cuMemPoolImportFromShareableHandle(pool: *mut CUmemoryPool, handle: *mut c_void,
            kind: CUmemAllocationHandleType, flags: c_ulonglong);
        11020 cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, address: CUdeviceptr);
        11020 cuMemPoolImportPointer(address: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData);
        // memory: managed and host
        6000 cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        12020 cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint,
            stream: CUstream);
        12020 cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: CUmem_advise, location: CUmemLocation);
        2020 cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        2000 cuMemFreeHost(address: *mut c_void);
        6050 cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint);
        4000 cuMemHostUnregister(address: *mut c_void);
        3020 cuMemHostGetDevicePointer(device_address: *mut CUdeviceptr, address: *mut c_void, flags: c_uint);
        // copies and sets
        4000 cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
        4000 cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
        4000 cuMemcpyPeerAsync(dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext,
            bytes: usize, stream: CUstream);
        3020 cuMemcpyDtoHAsync(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
        3020 cuMemcpyHtoDAsync(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
        3020 cuMemcpyDtoDAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
        3020 cuMemsetD8(dst: CUdeviceptr, value: c_uchar, count: usize);
        3020 cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        // memory: virtual ranges and physical pages
        10020 cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, alignment: usize, hint: CUdeviceptr,
            flags: c_ulonglong);
        10020 cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        10020 cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp,
            flags: c_ulonglong);
        10020 cuMemRelease(handle: CUmemGenericAllocationHandle);
        10020 cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
            flags: c_ulonglong);
        10020 cuMemUnmap(address: CUdeviceptr, bytes: usize);
        10020 cuMemSetAccess(address: CUdeviceptr, bytes: usize, map: *const CUmemAccessDesc, count: usize);
        10020 cuMemGetAllocationGranularity(bytes: *mut usize, prop: *const CUmemAllocationProp,
            option: CUmemAllocationGranularity_flags);
        10020 cuMemExportToShareableHandle(shared: *mut c_void, handle: CUmemGenericAllocationHandle,
            kind: CUmemAllocationHandleType, flags: c_ulonglong);
        10020 cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, shared: *mut c_void,
            kind: CUmemAllocationHandleType);
        // pointers, other processes
        4000 cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
        7000 cuPointerGetAttributes(count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
            address: CUdeviceptr);
        4010 cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
        11000 cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        4010 cuIpcCloseMemHandle(address: CUdeviceptr);
        // graphs
        11040 cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
        10000 cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        10000 cuGraphDestroy(graph: CUgraph);
        10000 cuGraphExecDestroy(exec: CUgraphExec);
        11030 cuUserObjectCreate(object: *mut CUuserObject, user: *mut c_void, destroy: CUhostFn, references: c_uint,
            flags: c_uint);
        11030 cuUserObjectRelease(object: CUuserObject, references: c_uint);
        11030 cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, references: c_uint, flags: c_uint);
    } };
}

/// One call of the list, described.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The driver's name, without a version suffix.
    pub name: &'static str,
    /// The CUDA version (1000 x major + 10 x minor) in which the call got these parameters.
    pub version: i32,
    /// The types of the parameters, as written in [`crate::sys`].
    pub parameters: &'static [&'static str],
}

macro_rules! define_table {
    ([] $($version:literal $name:ident($($param:ident: $ty:ty),* $(,)?);)*) => {
        /// One entry per driver call, under the driver's own name; `None` where the driver lacks the call.
        #[derive(Clone, Copy, Default)]
        #[allow(missing_docs, reason = "each field is the driver call of that name")]
        pub struct Table {
            $(pub $name: Option<unsafe extern "C" fn($($param: $ty),*) -> CUresult>,)*
        }

        impl Table {
            /// Fills a table by asking `find(name, version)` for each call; null means that the call is absent.
            ///
            /// # Safety
            ///
            /// What `find` returns for a name and a version is null or the address of a function that has the
            /// parameters listed here for that name, follows the C calling convention, does not unwind, and stays
            /// loaded for the rest of the process.
            pub unsafe fn resolve(mut find: impl FnMut(&'static str, i32) -> *mut c_void) -> Table {
                Table {
                    $($name: {
                        let address = find(stringify!($name), $version);
                        if address.is_null() {
                            None
                        } else {
                            // SAFETY: not null, and by this function's contract a function of exactly this type.
                            Some(unsafe {
                                core::mem::transmute::<
                                    *mut c_void,
                                    unsafe extern "C" fn($($param: $ty),*) -> CUresult,
                                >(address)
                            })
                        }
                    },)*
                }
            }

            /// Whether the call of that name is there.
            #[must_use]
            pub fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name.is_some(),)*
                    _ => false,
                }
            }
        }

        /// Every call of the table, in the order of [`CallId`].
        pub const CALLS: &[Call] = &[
            $(Call { name: stringify!($name), version: $version, parameters: &[$(stringify!($ty)),*] },)*
        ];

        /// The calls of the table by number, for counters: `CALLS[CallId::x as usize]` describes `x`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(non_camel_case_types, missing_docs, reason = "each value is the driver call of that name")]
        pub enum CallId {
            $($name,)*
        }
    };
}

for_each_call! { define_table [] }

/// Makes a [`Table`] from the functions of a module that are named like the calls, with every type checked:
/// `fill_table!(functions)` where `functions::cuInit` and all others are `unsafe extern "C" fn`s.
#[doc(hidden)]
#[macro_export]
macro_rules! fill_table {
    ($module:ident) => {
        $crate::for_each_call! { __fill_table [$module] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fill_table {
    ([$module:ident] $($version:literal $name:ident($($param:ident: $ty:ty),* $(,)?);)*) => {
        $crate::table::Table { $($name: Some($module::$name),)* }
    };
}

impl CallId {
    /// The driver's name of the call.
    #[must_use]
    pub fn name(self) -> &'static str {
        CALLS[self as usize].name
    }
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let present = CALLS.iter().filter(|call| self.has(call.name)).count();
        write!(f, "Table({present} of {} driver calls)", CALLS.len())
    }
}

/// Number of calls in the table.
pub const CALL_COUNT: usize = CALLS.len();
