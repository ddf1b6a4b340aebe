//! `tenure info`: what is here.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use crate::{DeviceLayer, Failure};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The device layer.
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceLayer>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command. That there is no device is an answer and no failure.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let text = tenure::describe()?;
    let facts: Value = serde_json::from_str(&text).map_err(|e| {
        Failure::Input(format!(
            "the library described itself in text that is no JSON ({e}): use one of the same release"
        ))
    })?;
    if options.json {
        writeln!(out, "{facts:#}")?;
    } else {
        writeln!(out, "client: {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "library file: {}", tenure::library_path()?.display())?;
        print(&facts, 0, out)?;
    }
    Ok(())
}

/// One fact a line, what belongs together indented.
fn print(value: &Value, depth: usize, out: &mut impl Write) -> Result<(), Failure> {
    let indent = "  ".repeat(depth);
    let Value::Object(fields) = value else {
        writeln!(out, "{indent}{}", plain(value))?;
        return Ok(());
    };
    // What belongs together comes last, so that single facts are not taken for a part of it.
    let (groups, facts): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| is_group(value));
    for (name, value) in facts.into_iter().chain(groups) {
        let name = name.replace('_', " ");
        match value {
            Value::Object(_) => {
                writeln!(out, "{indent}{name}:")?;
                print(value, depth + 1, out)?;
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for (index, item) in items.iter().enumerate() {
                    writeln!(out, "{indent}{name} {index}:")?;
                    print(item, depth + 1, out)?;
                }
            }
            Value::Number(bytes) if name.ends_with("bytes") => {
                let shown = bytes.as_u64().map_or_else(|| bytes.to_string(), |n| tenure::Bytes::new(n).to_string());
                writeln!(out, "{indent}{name}: {shown}")?;
            }
            Value::Null => {}
            other => writeln!(out, "{indent}{name}: {}", plain(other))?,
        }
    }
    Ok(())
}

fn is_group(value: &Value) -> bool {
    value.is_object() || value.as_array().is_some_and(|items| items.iter().any(Value::is_object))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_lines() {
        let facts = serde_json::json!({
            "version": "1", "none": null, "layers": ["a", "b"], "ok": true,
            "devices": [{"name": "x", "total_bytes": 2048}], "limits": {"n": 3},
        });
        let mut out = Vec::new();
        print(&facts, 0, &mut out).unwrap();
        let lines = String::from_utf8(out).unwrap();
        for line in [
            "version: 1\n",
            "layers: a, b\n",
            "ok: yes\n",
            "devices 0:\n  name: x\n",
            "  total bytes: 2.00 KiB\n",
            "limits:\n  n: 3\n",
        ] {
            assert!(lines.contains(line), "{line:?} in {lines}");
        }
        assert!(!lines.contains("none"));
    }
}
