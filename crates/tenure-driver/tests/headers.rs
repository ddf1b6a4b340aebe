//! What we believe of the driver against NVIDIA's headers: sizes, offsets, constants and the parameters of every call.
//!
//! Needs `cuda.h`: `ci/check-cuda-headers` fetches three versions of it and names their directories in
//! `TENURE_CUDA_HEADERS` (separated by colons). Without them the test says so and passes.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_driver::sys::{self, *};
use tenure_driver::table::{CALLS, Call};

/// A type of the table, as Rust writes it, in C.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(rest) = rust.strip_prefix('*') {
        let rest = rest.trim_start();
        if let Some(target) = rest.strip_prefix("mut ") {
            return format!("{} *", c_type(target));
        }
        if let Some(target) = rest.strip_prefix("const ") {
            let target = c_type(target);
            // `const` of a pointer goes behind it.
            return if target.ends_with('*') { format!("{target} const *") } else { format!("const {target} *") };
        }
        panic!("a pointer that is neither const nor mut: {rust}");
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_ulonglong" => "unsigned long long",
        "f32" => "float",
        "usize" => "size_t",
        // The driver's own names.
        name if name.starts_with("CU") || name == "cuuint64_t" => name,
        other => panic!("a type that this test cannot write in C: {other}"),
    }
    .to_owned()
}

/// Size, alignment and offsets of the structures.
fn layouts() -> String {
    let mut text = String::new();
    macro_rules! layout {
        ($name:ident { $($field:ident),* $(,)? }) => {{
            let c = stringify!($name);
            writeln!(
                text,
                "static_assert(sizeof({c}) == {} && alignof({c}) == {}, \"{c}\");",
                size_of::<sys::$name>(),
                align_of::<sys::$name>()
            )
            .unwrap();
            $(
                let field = stringify!($field).trim_end_matches('_');
                writeln!(
                    text,
                    "static_assert(offsetof({c}, {field}) == {}, \"{c}.{field}\");",
                    std::mem::offset_of!(sys::$name, $field)
                )
                .unwrap();
            )*
        }};
    }
    macro_rules! sizes {
        ($($name:ident),* $(,)?) => {$(
            writeln!(
                text,
                "static_assert(sizeof({0}) == {1} && alignof({0}) == {2}, \"{0}\");",
                stringify!($name),
                size_of::<sys::$name>(),
                align_of::<sys::$name>()
            )
            .unwrap();
        )*};
    }
    layout!(CUuuid { bytes });
    layout!(CUmemLocation { type_, id });
    layout!(CUmemAllocationProp { type_, requestedHandleTypes, location, win32HandleMetaData, allocFlags });
    layout!(CUmemAccessDesc { location, flags });
    // Its `reserved` shrinks as headers name bytes of it; the sum is checked by the size.
    layout!(CUmemPoolProps { allocType, handleTypes, location, win32SecurityAttributes, maxSize });
    layout!(CUipcMemHandle { reserved });
    layout!(CUmemPoolPtrExportData { reserved });
    sizes!(
        CUresult,
        CUdevice,
        CUdeviceptr,
        cuuint64_t,
        CUcontext,
        CUstream,
        CUevent,
        CUgraph,
        CUgraphNode,
        CUgraphExec,
        CUuserObject,
        CUmemoryPool,
        CUmemGenericAllocationHandle,
        CUhostFn,
        CUdevice_attribute,
        CUstreamCaptureStatus,
        CUstreamCaptureMode,
        CUmemPool_attribute,
        CUmemAllocationType,
        CUmemAllocationHandleType,
        CUmemLocationType,
        CUmemAccess_flags,
        CUmemAllocationGranularity_flags,
        CUpointer_attribute,
        CUmemorytype,
        CUdriverProcAddressQueryResult,
    );
    // The flags of physical memory are a structure without a name.
    for (field, offset) in [
        ("compressionType", std::mem::offset_of!(CUmemAllocationProp_allocFlags, compressionType)),
        ("gpuDirectRDMACapable", std::mem::offset_of!(CUmemAllocationProp_allocFlags, gpuDirectRDMACapable)),
        ("usage", std::mem::offset_of!(CUmemAllocationProp_allocFlags, usage)),
    ] {
        let at = std::mem::offset_of!(CUmemAllocationProp, allocFlags) + offset;
        writeln!(text, "static_assert(offsetof(CUmemAllocationProp, allocFlags.{field}) == {at}, \"{field}\");")
            .unwrap();
    }
    text
}

/// Constants that older headers do not have, with the version that has them.
const NEWER: &[(&str, i32)] = &[
    ("CU_MEM_ALLOCATION_TYPE_MANAGED", 13000),
    ("CU_MEM_HANDLE_TYPE_FABRIC", 12040),
    ("CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED", 12040),
];

fn constants(list: &[(&str, i64)]) -> String {
    list.iter().fold(String::new(), |mut text, (name, value)| {
        let since = NEWER.iter().find(|(newer, _)| newer == name).map_or(0, |(_, version)| *version);
        writeln!(text, "#if CUDA_VERSION >= {since}").unwrap();
        writeln!(text, "static_assert(static_cast<long long>({name}) == {value}, \"{name}\");\n#endif").unwrap();
        text
    })
}

/// `cudaTypedefs.h` has a type `PFN_name_vVERSION` for each form that a call ever had: ours must be that very type.
fn prototypes(calls: &[Call]) -> String {
    calls.iter().fold(String::new(), |mut text, call| {
        let parameters: Vec<String> = call.parameters.iter().map(|ty| c_type(ty)).collect();
        writeln!(
            text,
            "#if CUDA_VERSION >= {version}\nstatic_assert(std::is_same_v<PFN_{name}_v{version}, \
             CUresult (CUDAAPI *)({parameters})>, \"{name}\");\n#endif",
            version = call.version,
            name = call.name,
            parameters = parameters.join(", "),
        )
        .unwrap();
        text
    })
}

fn program(body: &str) -> String {
    format!(
        "// Generated by tests/headers.rs.\n\
         #include <cstddef>\n#include <cstdint>\n#include <cstdio>\n#include <type_traits>\n\
         #include <cuda.h>\n#include <cudaTypedefs.h>\n{body}\n\
         static_assert(std::is_same_v<PFN_cuGetProcAddress_v12000, CUresult (CUDAAPI *)(const char *, void **, int, \
         cuuint64_t, CUdriverProcAddressQueryResult *)>, \"cuGetProcAddress\");\n\
         int main() {{\n  std::printf(\"CUDA %d.%d\\n\", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);\n  \
         return (std::uintptr_t)CU_STREAM_LEGACY == {legacy} && (std::uintptr_t)CU_STREAM_PER_THREAD == {per_thread} \
         ? 0 : 1;\n}}\n",
        legacy = CU_STREAM_LEGACY.addr(),
        per_thread = CU_STREAM_PER_THREAD.addr(),
    )
}

/// Compiles and runs; the error is the compiler's.
fn build(text: &str, headers: &Path, name: &str) -> Result<String, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}.cpp"));
    let binary = directory.join(name);
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-w", "-isystem"])
        .arg(headers)
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .map_err(|error| format!("{compiler}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let run = Command::new(&binary).output().map_err(|error| error.to_string())?;
    if run.status.success() {
        Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
    } else {
        Err("the values of the special stream handles differ".to_owned())
    }
}

fn directories() -> Vec<PathBuf> {
    let list = std::env::var_os("TENURE_CUDA_HEADERS").unwrap_or_default();
    std::env::split_paths(&list).filter(|path| path.is_dir()).collect()
}

#[test]
fn headers_agree() {
    let directories = directories();
    if directories.is_empty() {
        println!("skipped: no headers of CUDA here; ci/check-cuda-headers fetches them and runs this test");
        return;
    }
    let text = program(&format!("{}{}{}{}", layouts(), constants(RESULTS), constants(CONSTANTS), prototypes(CALLS)));
    for (index, headers) in directories.iter().enumerate() {
        match build(&text, headers, &format!("headers_{index}")) {
            Ok(version) => println!("agrees with the headers of {version}"),
            Err(error) => panic!("{} disagrees:\n{error}", headers.display()),
        }
    }
}

/// The check can fail: one wrong thing of each kind is found.
#[test]
fn differences_are_found() {
    let Some(headers) = directories().into_iter().next() else {
        println!("skipped: no headers of CUDA here; ci/check-cuda-headers fetches them and runs this test");
        return;
    };
    let wrong_type = Call { name: "cuMemAlloc", version: 3020, parameters: &["*mut CUdeviceptr", "c_uint"] };
    let old_version = Call { name: "cuMemAlloc", version: 2000, parameters: &["*mut CUdeviceptr", "usize"] };
    for (index, body) in [
        constants(&[("CUDA_ERROR_OUT_OF_MEMORY", 3)]),
        prototypes(&[wrong_type]),
        prototypes(&[old_version]),
        layouts().replacen("== 16", "== 17", 1),
    ]
    .iter()
    .enumerate()
    {
        let found = build(&program(body), &headers, &format!("headers_wrong_{index}"));
        let error = found.expect_err("a difference went unseen");
        assert!(error.contains("static assertion failed") || error.contains("static_assert"), "{error}");
    }
}

#[test]
fn types_are_written_as_in_c() {
    assert_eq!(c_type("*mut CUdeviceptr"), "CUdeviceptr *");
    assert_eq!(c_type("* const CUmemPoolProps"), "const CUmemPoolProps *");
    assert_eq!(c_type("*mut *const CUgraphNode"), "const CUgraphNode * *");
    assert_eq!(c_type("*mut *mut c_void"), "void * *");
    assert_eq!(c_type("*const *mut c_void"), "void * const *");
}
