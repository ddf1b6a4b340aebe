//! `tenure-header` makes `include/tenure/tenure.h` from the sources of `tenure-abi`.
//!
//! ```text
//! functions.rs --prose--> list --+--> Rust declarations --cbindgen--> C --layout--> tenure.h
//! types.rs ------prose-----------+                          introduction.h, helpers.h --^
//! ```
//!
//! cbindgen knows C but not our macro, and it copies documentation as it stands. So the list of functions is written out as plain declarations
//! first ([`list`]), the documentation is wrapped for a header ([`prose`]), and the sections, the introduction and the assertions on sizes are put
//! around what cbindgen answers ([`header`]). The sizes come from the compiled crate, not from its text: a compiler that lays a structure out
//! differently stops at the header.
//!
//! `tenure-header` writes the header; `tenure-header --check` fails when the committed one is not what would be written.

mod header;
mod list;
mod prose;
mod sizes;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--check"] => true,
        _ => return say("usage: tenure-header [--check]", 2),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("include/tenure/tenure.h");
    let made = match header::make(&root) {
        Ok(made) => made,
        Err(why) => return say(&why, 1),
    };
    if check { compare(&target, &made) } else { write(&target, &made) }
}

fn compare(target: &Path, made: &str) -> ExitCode {
    let committed = match std::fs::read_to_string(target) {
        Ok(committed) => committed,
        Err(why) => {
            return say(
                &format!("include/tenure/tenure.h cannot be read ({why}); run `cargo run -p tenure-header`"),
                1,
            );
        }
    };
    if committed == made {
        return ExitCode::SUCCESS;
    }
    let first = committed.lines().zip(made.lines()).position(|(a, b)| a != b);
    let line = first.unwrap_or_else(|| committed.lines().count().min(made.lines().count())) + 1;
    say(
        &format!(
            "include/tenure/tenure.h is not what tenure-abi says (first at line {line}); run `cargo run -p tenure-header` and commit it"
        ),
        1,
    )
}

fn write(target: &Path, made: &str) -> ExitCode {
    match std::fs::write(target, made) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => say(&format!("include/tenure/tenure.h cannot be written: {why}"), 1),
    }
}

fn say(what: &str, code: u8) -> ExitCode {
    // Nothing is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{what}");
    ExitCode::from(code)
}
