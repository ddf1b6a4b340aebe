//! What we believe of NVTX against NVIDIA's headers: sizes, offsets and numbers; and that the tool of our tests
//! (`tenure-core/tests/tools/recorder.c`) understands a program that was compiled with those headers.
//!
//! Needs `nvtx3/nvToolsExtMem.h`: `ci/check-cuda-headers` fetches it and names its directories in `TENURE_NVTX_HEADERS`
//! (separated by colons). Without them the test says so and passes.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_driver::nvtx::abi;

/// Assertions about every structure and number of `nvtx::abi`, in C++.
fn assertions() -> String {
    let mut text = String::new();
    macro_rules! layout {
        ($rust:ident, $c:ident { $($field:ident = $c_field:ident),* $(,)? }) => {{
            let (size, align) = (size_of::<abi::$rust>(), align_of::<abi::$rust>());
            let c = stringify!($c);
            writeln!(text, "static_assert(sizeof({c}) == {size} && alignof({c}) == {align}, \"{c}\");").unwrap();
            $(
                let offset = std::mem::offset_of!(abi::$rust, $field);
                let field = stringify!($c_field);
                writeln!(text, "static_assert(offsetof({c}, {field}) == {offset}, \"{c}.{field}\");").unwrap();
            )*
        }};
    }
    layout!(Callbacks, NvtxExportTableCallbacks {
        struct_size = struct_size,
        get_module_function_table = GetModuleFunctionTable,
    });
    layout!(VersionInfo, NvtxExportTableVersionInfo {
        struct_size = struct_size,
        version = version,
        reserved0 = reserved0,
        set_injection_nvtx_version = SetInjectionNvtxVersion,
    });
    layout!(EventAttributes, nvtxEventAttributes_t {
        version = version,
        size = size,
        category = category,
        color_type = colorType,
        color = color,
        payload_type = payloadType,
        reserved0 = reserved0,
        payload = payload,
        message_type = messageType,
        message = message,
    });
    layout!(ModuleSegment, nvtxExtModuleSegment_t {
        segment_id = segmentId,
        slot_count = slotCount,
        function_slots = functionSlots,
    });
    layout!(ModuleInfo, nvtxExtModuleInfo_t {
        nvtx_version = nvtxVer,
        struct_size = structSize,
        module_id = moduleId,
        compatibility_id = compatId,
        segments_count = segmentsCount,
        segments = segments,
        get_export_function = getExportFunction,
        extension_info = extInfo,
    });
    layout!(VirtualRange, nvtxMemVirtualRangeDesc_t { size = size, ptr = ptr });
    layout!(HeapDescription, nvtxMemHeapDesc_t {
        compatibility_id = extCompatID,
        struct_size = structSize,
        reserved0 = reserved0,
        usage = usage,
        type_ = type,
        type_specific_size = typeSpecificDescSize,
        type_specific = typeSpecificDesc,
        category = category,
        message_type = messageType,
        message = message,
    });
    layout!(RegionsRegisterBatch, nvtxMemRegionsRegisterBatch_t {
        compatibility_id = extCompatID,
        struct_size = structSize,
        region_type = regionType,
        heap = heap,
        region_count = regionCount,
        element_size = regionDescElementSize,
        elements = regionDescElements,
        handles = regionHandleElementsOut,
    });
    layout!(RegionsUnregisterBatch, nvtxMemRegionsUnregisterBatch_t {
        compatibility_id = extCompatID,
        struct_size = structSize,
        reference_type = refType,
        count = refCount,
        element_size = refElementSize,
        elements = refElements,
    });
    for (name, value) in [
        ("NVTX_VERSION", i64::from(abi::VERSION)),
        ("NVTX_ETID_CALLBACKS", i64::from(abi::EXPORT_CALLBACKS)),
        ("NVTX_ETID_VERSIONINFO", i64::from(abi::EXPORT_VERSION_INFO)),
        ("NVTX_CB_MODULE_SIZE", abi::MODULES as i64),
        ("NVTX_CB_MODULE_CORE2", abi::MODULE_CORE2 as i64),
        ("NVTX_CBID_CORE_SIZE", abi::MODULE_SIZES[1] as i64),
        ("NVTX_CBID_CUDA_SIZE", abi::MODULE_SIZES[2] as i64),
        ("NVTX_CBID_OPENCL_SIZE", abi::MODULE_SIZES[3] as i64),
        ("NVTX_CBID_CUDART_SIZE", abi::MODULE_SIZES[4] as i64),
        ("NVTX_CBID_CORE2_SIZE", abi::MODULE_SIZES[5] as i64),
        ("NVTX_CBID_SYNC_SIZE", abi::MODULE_SIZES[6] as i64),
        ("NVTX_CBID_CORE2_DomainRangePushEx", abi::DOMAIN_RANGE_PUSH_EX as i64),
        ("NVTX_CBID_CORE2_DomainRangePop", abi::DOMAIN_RANGE_POP as i64),
        ("NVTX_CBID_CORE2_DomainRegisterStringA", abi::DOMAIN_REGISTER_STRING_A as i64),
        ("NVTX_CBID_CORE2_DomainCreateA", abi::DOMAIN_CREATE_A as i64),
        ("NVTX_PAYLOAD_TYPE_UNSIGNED_INT64", i64::from(abi::PAYLOAD_UNSIGNED_INT64)),
        ("NVTX_MESSAGE_TYPE_ASCII", i64::from(abi::MESSAGE_ASCII)),
        ("NVTX_MESSAGE_TYPE_REGISTERED", i64::from(abi::MESSAGE_REGISTERED)),
        ("NVTX_EXT_MODULEID_MEM", i64::from(abi::EXTENSION_MEMORY)),
        ("NVTX_EXT_COMPATID_MEM", i64::from(abi::MEMORY_COMPATIBILITY)),
        ("NVTX_EXT_MEM_SLOT_COUNT", abi::MEMORY_SLOTS as i64),
        ("NVTX3EXT_CBID_nvtxMemHeapRegister", abi::HEAP_REGISTER as i64),
        ("NVTX3EXT_CBID_nvtxMemHeapUnregister", abi::HEAP_UNREGISTER as i64),
        ("NVTX3EXT_CBID_nvtxMemRegionsRegister", abi::REGIONS_REGISTER as i64),
        ("NVTX3EXT_CBID_nvtxMemRegionsUnregister", abi::REGIONS_UNREGISTER as i64),
        ("NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR", i64::from(abi::HEAP_SUB_ALLOCATOR)),
        ("NVTX_MEM_TYPE_VIRTUAL_ADDRESS", i64::from(abi::TYPE_VIRTUAL_ADDRESS)),
        ("NVTX_MEM_REGION_REF_TYPE_POINTER", i64::from(abi::REFERENCE_POINTER)),
    ] {
        writeln!(text, "static_assert(static_cast<long long>({name}) == {value}, \"{name}\");").unwrap();
    }
    text
}

/// A client of NVTX as NVIDIA means it, which does what tenure does.
const CLIENT: &str = r#"
int main()
{
    char *base = reinterpret_cast<char *>(0x10000);
    nvtxDomainHandle_t domain = nvtxDomainCreateA("tenure");
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = 1000;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = nvtxDomainRegisterStringA(domain, "allocate");
    nvtxDomainRangePushEx(domain, &attributes);
    nvtxMemVirtualRangeDesc_t range = {};
    range.size = 4096;
    range.ptr = base;
    nvtxMemHeapDesc_t description = {};
    description.extCompatID = NVTX_EXT_COMPATID_MEM;
    description.structSize = sizeof description;
    description.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    description.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    description.typeSpecificDescSize = sizeof range;
    description.typeSpecificDesc = &range;
    nvtxMemHeapHandle_t heap = nvtxMemHeapRegister(domain, &description);
    range.size = 1000;
    nvtxMemRegionsRegisterBatch_t batch = {};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof batch;
    batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    batch.heap = heap;
    batch.regionCount = 1;
    batch.regionDescElementSize = sizeof range;
    batch.regionDescElements = &range;
    nvtxMemRegionsRegister(domain, &batch);
    nvtxDomainRangePop(domain);
    nvtxMemRegionRef_t reference;
    reference.pointer = base;
    nvtxMemRegionsUnregisterBatch_t ended = {};
    ended.extCompatID = NVTX_EXT_COMPATID_MEM;
    ended.structSize = sizeof ended;
    ended.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
    ended.refCount = 1;
    ended.refElementSize = sizeof reference;
    ended.refElements = &reference;
    nvtxMemRegionsUnregister(domain, &ended);
    nvtxMemHeapUnregister(domain, heap);
    return 0;
}
"#;

const HEARD: &str = "opened\ninitialise\ndomain tenure\nstring tenure allocate\npush tenure allocate 1000\nextension 1\n\
                     heap 0x10000 4096\nregion 0x10000 0x10000 1000\npop tenure\nnoregion 0x10000\nnoheap 0x10000\nclosed\n";

/// Compiles `text` with the headers; the error is the compiler's.
fn build(text: &str, headers: &Path, name: &str) -> Result<PathBuf, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("{name}.cpp"));
    let binary = directory.join(name);
    let text = format!(
        "// Generated by tests/nvtx_headers.rs.\n#include <cstddef>\n#include <nvtx3/nvToolsExt.h>\n\
         #include <nvtx3/nvToolsExtMem.h>\n{text}"
    );
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-w", "-isystem"])
        .arg(headers)
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .args(["-ldl", "-pthread"])
        .output()
        .map_err(|error| format!("{compiler}: {error}"))?;
    if output.status.success() { Ok(binary) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn directories() -> Vec<PathBuf> {
    let list = std::env::var_os("TENURE_NVTX_HEADERS").unwrap_or_default();
    let found: Vec<PathBuf> = std::env::split_paths(&list).filter(|path| path.is_dir()).collect();
    if found.is_empty() {
        println!("skipped: no headers of NVTX here; ci/check-cuda-headers fetches them and runs this test");
    }
    found
}

#[test]
fn headers_agree() {
    for (index, headers) in directories().iter().enumerate() {
        let text = format!("{}int main() {{}}\n", assertions());
        if let Err(error) = build(&text, headers, &format!("nvtx_headers_{index}")) {
            panic!("{} disagrees:\n{error}", headers.display());
        }
        println!("agrees with {}", headers.display());
    }
}

/// The check can fail.
#[test]
fn differences_are_found() {
    let Some(headers) = directories().into_iter().next() else { return };
    let right = assertions();
    let wrong = [
        right.replacen("== 48", "== 56", 1),
        right.replacen("MemRegionsRegister) == 3", "MemRegionsRegister) == 4", 1),
    ];
    for (index, text) in wrong.iter().enumerate() {
        assert_ne!(*text, right);
        let found = build(&format!("{text}int main() {{}}\n"), &headers, &format!("nvtx_headers_wrong_{index}"));
        let error = found.expect_err("a difference went unseen");
        assert!(error.contains("static assertion failed") || error.contains("static_assert"), "{error}");
    }
}

/// The recorder, which judges tenure in the tests of the engine, finds nothing wrong with a program of NVIDIA's making.
#[test]
fn the_recorder_understands_a_genuine_client() {
    for (index, headers) in directories().iter().enumerate() {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let (tool, record) = (directory.join("genuine-recorder.so"), directory.join("genuine-record"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-core/tests/tools/recorder.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let output = Command::new(compiler)
            .args(["-shared", "-fPIC", "-pthread", "-o"])
            .arg(&tool)
            .arg(source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let client = build(CLIENT, headers, &format!("nvtx_client_{index}")).unwrap();
        let _ = std::fs::remove_file(&record);
        let status = Command::new(client).env("NVTX_INJECTION64_PATH", &tool).env("RECORD", &record).status().unwrap();
        assert!(status.success());
        assert_eq!(std::fs::read_to_string(&record).unwrap(), HEARD);
    }
}
