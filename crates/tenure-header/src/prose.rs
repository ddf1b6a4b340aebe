//! The documentation, made ready for a header: wrapped to its width, with the names that C knows.

/// Columns of a line of documentation, the comment's own marks not counted.
const WIDTH: usize = 96;

/// Wraps each run of `///` lines anew. Lines of lists, tables and code keep their shape.
pub(crate) fn wrap_docs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut run: Vec<&str> = Vec::new();
    let mut indent = "";
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(doc) = trimmed.strip_prefix("///") {
            indent = &line[..line.len() - trimmed.len()];
            run.push(doc.trim());
            continue;
        }
        flush(&mut out, &mut run, indent);
        out.push_str(line);
        out.push('\n');
    }
    flush(&mut out, &mut run, indent);
    out
}

fn flush(out: &mut String, run: &mut Vec<&str>, indent: &str) {
    for line in wrap(run) {
        out.push_str(indent);
        out.push_str(if line.is_empty() { "///" } else { "/// " });
        out.push_str(&line);
        out.push('\n');
    }
    run.clear();
}

fn wrap(lines: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut open = false;
    for line in lines {
        let fixed = line.is_empty() || line.starts_with(['*', '-', '|']) || line.starts_with("```");
        if fixed {
            out.push((*line).to_owned());
            open = false;
            continue;
        }
        for word in line.split_whitespace() {
            match out.last_mut() {
                Some(last) if open && last.len() + 1 + word.len() <= WIDTH => {
                    last.push(' ');
                    last.push_str(word);
                }
                _ => out.push(word.to_owned()),
            }
            open = true;
        }
    }
    out
}

/// Gives `` `name` `` the prefix that it has in C, where `names` knows it.
pub(crate) fn prefix_names(line: &str, names: &[String]) -> String {
    let mut out = String::with_capacity(line.len());
    for (index, part) in line.split('`').enumerate() {
        if index > 0 {
            out.push('`');
        }
        if index % 2 == 1 && names.iter().any(|name| name == part) {
            out.push_str("tenure_");
        }
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{WIDTH, prefix_names, wrap_docs};

    #[test]
    fn wraps_long_lines_and_joins_short_ones() {
        let long = format!("    /// a\n    /// b {}\n    x: u32,\n", "word ".repeat(40));
        let wrapped = wrap_docs(&long);
        assert!(wrapped.starts_with("    /// a b word"));
        assert!(wrapped.lines().all(|line| line.len() <= WIDTH + 8));
        assert_eq!(wrapped.matches("word").count(), 40);
        assert!(wrapped.ends_with("    x: u32,\n"));
    }

    #[test]
    fn keeps_lists_and_empty_lines() {
        assert_eq!(wrap_docs("/// a\n///\n/// * b\n/// * c\n"), "/// a\n///\n/// * b\n/// * c\n");
    }

    #[test]
    fn prefixes_only_known_names() {
        let names = ["allocate".to_owned()];
        assert_eq!(prefix_names("`allocate` and `bytes`, allocate", &names), "`tenure_allocate` and `bytes`, allocate");
    }
}
