//! Reading logs against a model, and against anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use proptest::prelude::*;
use tenure_core::trace::{Action, Log};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// A line of a log before it is written: what, which of a few addresses, bytes, stream, and which of the forms.
type Line = (u8, u8, u32, u8, u8);

fn lines() -> impl Strategy<Value = Vec<Line>> {
    prop::collection::vec((0..8_u8, 0..6_u8, 0..4_u32, 0..5_u8, any::<u8>()), 1..120)
}

/// The same values in one of the forms that RMM has written.
fn write(lines: &[Line], end: &str) -> String {
    let mut text = HEADER.replace('\n', end);
    for (n, (what, address, bytes, stream, form)) in lines.iter().enumerate() {
        let action = match what {
            0..=3 => "allocate",
            4..=6 => ["free", "deallocate"][usize::from(form & 1)],
            _ => "allocate failure",
        };
        let pointer = u64::from(*address) * 0x100 + 0xa00;
        let pointer = match (form >> 1) & 3 {
            _ if *what == 7 => "(nil)".into(),
            0 => format!("{pointer:#x}"),
            1 => format!("{pointer:x}"),
            _ => format!("0X{pointer:X}"),
        };
        let stream = match (stream, (form >> 3) & 3) {
            (0, 0) => "(nil)".into(),
            (s, 1) => format!("{s}"),
            (s, _) => format!("{s:#x}"),
        };
        let time = match form >> 6 {
            0 => format!("12:00:00.{n:06}"),
            1 => format!("12:00:00:{n:06}"),
            _ => format!("2024-02-29 12:00:00.{n:06}"),
        };
        let space = [" ", ""][usize::from(form >> 5 & 1)];
        write!(text, "{},{space}{time},{action}{space},{pointer},{bytes},{stream}{end}", form & 1).unwrap();
    }
    text
}

/// What a log must say of itself, found with plain maps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    calls: Vec<(Action, u64)>,
    streams: BTreeSet<u64>,
    peak: u64,
    unknown: u64,
    zero: u64,
    failures: u64,
    left: u64,
}

fn model(lines: &[Line]) -> Model {
    let mut model = Model::default();
    let mut live: BTreeMap<u8, VecDeque<u64>> = BTreeMap::new();
    let mut now = 0;
    for (what, address, bytes, stream, _) in lines {
        let bytes = u64::from(*bytes);
        model.streams.insert(u64::from(*stream));
        match what {
            0..=3 if bytes == 0 => model.zero += 1,
            0..=3 => {
                live.entry(*address).or_default().push_back(bytes);
                now += bytes;
                model.peak = model.peak.max(now);
                model.calls.push((Action::Allocate, bytes));
            }
            4..=6 => {
                let here = live.entry(*address).or_default();
                let at = here.iter().position(|b| *b == bytes).unwrap_or(0);
                match here.remove(at) {
                    Some(size) => {
                        now -= size;
                        model.calls.push((Action::Free, size));
                    }
                    None if bytes > 0 => model.unknown += 1,
                    None => {}
                }
            }
            _ => {
                model.failures += 1;
                if bytes > 0 {
                    model.calls.push((Action::Failure, bytes));
                }
            }
        }
    }
    model.left = live.values().map(|here| here.len() as u64).sum();
    model
}

proptest! {
    #[test]
    fn a_log_in_any_form_says_what_the_model_says(lines in lines(), crlf in any::<bool>(), open_end in any::<bool>()) {
        let end = if crlf { "\r\n" } else { "\n" };
        let mut text = write(&lines, end);
        if open_end {
            text.truncate(text.len() - end.len());
        }
        let log = Log::read("x", text.as_bytes()).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        let said = Model {
            calls: log.events.iter().map(|e| (e.action, e.bytes)).collect(),
            streams: log.streams.iter().copied().collect(),
            peak: log.peak_live_bytes,
            unknown: log.unknown_frees,
            zero: log.zero_sized,
            failures: log.failures,
            left: log.left_live,
        };
        prop_assert_eq!(said, model(&lines));
        prop_assert_eq!(log.rows, lines.len() as u64);

        // Slots: an allocation takes one that is free, a free gives back the one that its allocation took.
        let mut slots = vec![None; log.slots as usize];
        for event in &log.events {
            let slot = event.slot as usize;
            match event.action {
                Action::Allocate => prop_assert_eq!(slots[slot].replace(event.bytes), None),
                Action::Free => prop_assert_eq!(slots[slot].take(), Some(event.bytes)),
                // A request that failed has none.
                Action::Failure => {}
            }
        }
    }

    #[test]
    fn anything_is_a_log_or_a_sentence(bytes in prop::collection::vec(any::<u8>(), 0..300), header in any::<bool>()) {
        let mut text = if header { HEADER.as_bytes().to_vec() } else { Vec::new() };
        text.extend(bytes);
        if let Err(e) = Log::read("x", text.as_slice()) {
            let e = e.to_string();
            prop_assert!(e.contains('x') && !e.contains('\n') && e.len() < 700, "{}", e);
        }
    }

    #[test]
    fn a_damaged_log_is_a_log_or_names_a_line(lines in lines(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut text = write(&lines, "\n").into_bytes();
        let at = at.index(text.len());
        if cut { text.truncate(at) } else { text[at] = byte }
        if let Err(e) = Log::read("x", text.as_slice()) {
            let e = e.to_string();
            let named = e.contains("line ") || e.contains("empty") || e.contains("no events") || e.contains("no text")
                || e.contains("UTF-16") || e.contains("gzip");
            prop_assert!(named && !e.contains('\n'), "{}", e);
        }
    }
}
