//! The header, put together from what cbindgen makes and what only a person can write.

use std::fmt::Write as _;
use std::path::Path;

use crate::list::Function;
use crate::{list, prose, sizes};

/// Marks the first function of a section on its way through cbindgen.
const SECTION: &str = "@section ";

const INTRODUCTION: &str = include_str!("../templates/introduction.h");
const HELPERS: &str = include_str!("../templates/helpers.h");

/// The text of `include/tenure/tenure.h` for the sources below `root`.
pub(crate) fn make(root: &Path) -> Result<String, String> {
    let source = root.join("crates/tenure-abi/src");
    let types = prose::wrap_docs(&read(&source.join("types.rs"))?);
    let functions = prose::wrap_docs(&read(&source.join("functions.rs"))?);
    sizes::complete(&types)?;
    let mut functions = list::read(&mark_sections(&functions))?;
    if functions.is_empty() {
        return Err("functions.rs lists no functions".to_owned());
    }
    let names: Vec<String> = functions.iter().map(|function| function.name.clone()).collect();
    for line in functions.iter_mut().flat_map(|function| function.docs.iter_mut()) {
        *line = prose::prefix_names(line, &names);
    }
    let generated = generate(&declarations(&types, &functions))?;
    layout(&tags_only(&names, &constants_first(&types, &generated)), &names)
}

/// Takes the `typedef` from a structure that has the name of a function, as `stat` has in POSIX: C keeps tags and functions apart, but not
/// type names and functions.
fn tags_only(names: &[String], generated: &str) -> String {
    let mut out = generated.to_owned();
    for name in names {
        out = out.replace(&format!("typedef struct tenure_{name} {{"), &format!("struct tenure_{name} {{"));
        out = out.replace(&format!("}} tenure_{name};"), "};");
    }
    out
}

/// Moves the constants before the types, in the order of `types.rs`: cbindgen spreads them by the kind of their type.
fn constants_first(types: &str, generated: &str) -> String {
    let constant = |paragraph: &str| {
        let line = paragraph.lines().last()?.strip_prefix("#define ")?;
        let name = line.split(' ').next()?;
        types.find(&format!("pub const {name}:"))
    };
    let (mut constants, mut rest) = (Vec::new(), Vec::new());
    for paragraph in generated.trim().split("\n\n") {
        match constant(paragraph) {
            Some(place) => constants.push((place, paragraph)),
            None => rest.push(paragraph),
        }
    }
    constants.sort_by_key(|(place, _)| *place);
    constants.into_iter().map(|(_, paragraph)| paragraph).chain(rest).collect::<Vec<_>>().join("\n\n")
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|why| format!("{} cannot be read: {why}", path.display()))
}

/// Turns `// ----- name` into a mark in the documentation of the next function: a plain comment does not survive parsing.
fn mark_sections(functions: &str) -> String {
    let mut out = String::with_capacity(functions.len());
    for line in functions.lines() {
        match line.trim().strip_prefix("// ---") {
            Some(rest) => out.push_str(&format!("    /// {SECTION}{}", rest.trim_start_matches('-').trim())),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// One Rust file that cbindgen understands. It is parsed, never compiled.
fn declarations(types: &str, functions: &[Function]) -> String {
    let mut out = String::from(types);
    out.push_str(
        "/// The table of functions, for those who find the library at run time. `tenure_get_api` returns it; it lives as long as\n\
         /// the process. Each member does what the function of its name does. It only ever grows at its end: a member that lies\n\
         /// beyond `size` is not there.\n\
         #[repr(C)]\npub struct tenure_api {\n    /// The ABI version of the library.\n    pub abi: u32,\n    \
         /// Bytes of this table.\n    pub size: u32,\n",
    );
    for function in functions {
        out.push_str(&function.member());
    }
    out.push_str("}\n\n");
    for function in functions {
        out.push_str(&function.declaration());
    }
    let _ = write!(
        out,
        "/// {SECTION}finding the library at run time\n\
         /// The table of functions, or null when this library cannot serve a client of ABI version `abi`\n\
         /// (`TENURE_ABI_VERSION` of the header that the client was compiled with) or refuses to be the\n\
         /// second instance in the process; `tenure_get_api_error` says why.\n\
         #[unsafe(no_mangle)]\npub unsafe extern \"C\" fn tenure_get_api(abi: u32) -> *const tenure_api {{ loop {{}} }}\n\
         /// Why `tenure_get_api` returned null on this thread, as one sentence. Never null; valid until the next\n\
         /// call of `tenure_get_api` on the thread.\n\
         #[unsafe(no_mangle)]\npub unsafe extern \"C\" fn tenure_get_api_error() -> *const c_char {{ loop {{}} }}\n"
    );
    out
}

/// Lets cbindgen translate. It reads files only, so the text goes through a temporary one.
fn generate(rust: &str) -> Result<String, String> {
    let path = std::env::temp_dir().join(format!("tenure-header-{}.rs", std::process::id()));
    std::fs::write(&path, rust).map_err(|why| format!("{} cannot be written: {why}", path.display()))?;
    let made = cbindgen::Builder::new().with_src(&path).with_config(config()).generate();
    // The file is of no more use, and one that stays in the temporary folder does no harm.
    let _ = std::fs::remove_file(&path);
    let mut text = Vec::new();
    made.map_err(|why| format!("cbindgen does not understand the declarations: {why}"))?.write(&mut text);
    String::from_utf8(text).map_err(|why| format!("cbindgen wrote something other than UTF-8: {why}"))
}

fn config() -> cbindgen::Config {
    cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Both,
        cpp_compat: true,
        usize_is_size_t: true,
        documentation: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        line_length: 100,
        tab_width: 2,
        no_includes: true,
        ..cbindgen::Config::default()
    }
}

/// Puts the introduction before, the helpers behind, and the sections where they begin.
fn layout(generated: &str, names: &[String]) -> Result<String, String> {
    let mut body = String::with_capacity(generated.len());
    let mut lines = generated.trim().lines().peekable();
    while let Some(line) = lines.next() {
        let section =
            lines.peek().and_then(|next| next.trim().strip_prefix("* ")).and_then(|next| next.strip_prefix(SECTION));
        if let (true, Some(section)) = (line == "/**", section) {
            let _ =
                write!(body, "/* ---- {section} {} */\n\n/**\n", "-".repeat(88_usize.saturating_sub(section.len())));
            lines.next();
            continue;
        }
        body.push_str(&constant(line));
        body.push('\n');
    }
    if body.contains(SECTION.trim_end()) {
        return Err("a section has no function with documentation at its start".to_owned());
    }
    let mut out = format!("{}\n\n{body}\n", INTRODUCTION.trim_end());
    out.push_str("/* ---- what this header promises about layouts ");
    out.push_str(&"-".repeat(53));
    out.push_str(" */\n\n#if UINTPTR_MAX == UINT64_MAX\n");
    for (name, size) in sizes::SIZES {
        let tag =
            if names.iter().any(|function| name.strip_prefix("tenure_") == Some(function)) { "struct " } else { "" };
        let _ =
            writeln!(out, "TENURE_STATIC_ASSERT(sizeof({tag}{name}) == {size}, {name}_has_the_size_of_the_library);");
    }
    out.push_str("#endif\n\n");
    out.push_str(HELPERS.trim_end());
    out.push('\n');
    Ok(out)
}

/// Constants of 64 bits get their type, negative ones their parentheses.
fn constant(line: &str) -> String {
    let Some((head, value)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) else {
        return line.to_owned();
    };
    match (head, value) {
        ("TENURE_RESOURCE_NULL", value) => format!("#define {head} UINT64_C({value})"),
        (head, value) if value.starts_with('-') => format!("#define {head} ({value})"),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{SECTION, constant, make};

    #[test]
    fn the_header_has_every_function_and_no_mark() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = make(&root).unwrap_or_else(|why| panic!("{why}"));
        assert!(!made.contains(SECTION));
        for name in
            ["tenure_version(void)", "tenure_buffer_create(", "tenure_device_used(", "tenure_get_api(uint32_t abi)"]
        {
            assert!(made.contains(name), "{name} is missing");
        }
        assert!(made.contains("#ifdef __cplusplus\nextern \"C\" {"));
        assert!(made.contains("/* ---- buffers ---"));
        assert!(made.contains("`tenure_stream_release`"), "names in the documentation get their prefix");
    }

    #[test]
    fn constants_are_safe_in_expressions() {
        assert_eq!(constant("#define TENURE_OK_COLLECT -1"), "#define TENURE_OK_COLLECT (-1)");
        assert_eq!(constant("#define TENURE_RESOURCE_NULL 0"), "#define TENURE_RESOURCE_NULL UINT64_C(0)");
        assert_eq!(constant("#define TENURE_OK 0"), "#define TENURE_OK 0");
    }
}
