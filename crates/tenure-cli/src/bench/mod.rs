//! `tenure bench`: what an operation costs, each beside a reference that is measured in the same run.
//!
//! ```text
//!   names --> rows/     plans by theme: pair, churn, holes, threads, handover, burst, phase, ...   (what is done)
//!               |
//!             plan      one plan: a scene for what is measured and one for its reference           (how it is made)
//!               |
//!             measure   lanes (a thread each) in rounds that alternate with the reference's        (how it is timed)
//!               |
//!             report    rows as a table or JSON, beside their targets
//! ```
//!
//! Each plan has a pool of its own, which is warm before the clock runs. First all rows are timed; then, in a second walk,
//! driver calls are counted, since counting costs a little itself. Everything goes through the C ABI or the crate `tenure`:
//! what is measured here is what a user pays.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{DeviceLayer, Failure};
use bed::Bed;
use measure::{Clock, Effort};
use plan::Plan;
use report::{Report, Row};

mod bed;
mod measure;
mod plan;
mod report;
mod rows;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rows to measure: a row's name, or what names begin with, such as pair or threads-own. None: all.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The device layer.
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceLayer>,
    /// Rounds for each row. [default: 31, with --quick 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    rounds: Option<u32>,
    /// Few and short rounds: all rows in seconds, with more noise.
    #[arg(long)]
    quick: bool,
    /// Prints the names of the rows and what each does, and measures nothing.
    #[arg(long)]
    list: bool,
    /// Prints JSON: an object with the device and an array of rows.
    #[arg(long)]
    json: bool,
}

/// The theme that only Python can measure: `python -m tenure bench` adds it.
const PYTHON: &str = "python";

/// Runs the command; false when a row failed, which ends none of the others.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    let plans = select(rows::all(), &options.names)?;
    if options.list {
        report::list(&plans, options.json, out)?;
        return Ok(true);
    }
    let bed = Bed::new()?;
    let mut effort = if options.quick { Effort::QUICK } else { Effort::FULL };
    effort.rounds = options.rounds.map_or(effort.rounds, |n| n as usize);
    let mut report = Report::new(&bed, &effort, Clock::calibrate())?;
    let bar = bar(plans.len() as u64 * 2);
    let mut timed = Vec::with_capacity(plans.len());
    for plan in plans {
        bar.set_message(plan.name.clone());
        if plan.needs > bed.room {
            report.left_out.push((plan.name, plan.needs));
        } else {
            match measure::measure(&plan, &bed, &effort, report.clock) {
                Ok(figures) => timed.push((plan, figures)),
                Err(error) => report.failed.push((plan.name, error)),
            }
        }
        bar.inc(1);
    }
    for (plan, figures) in timed {
        bar.set_message(plan.name.clone());
        match counts(&plan, &bed) {
            Ok((calls, host_bytes)) => report.rows.push(Row { plan, figures, calls, host_bytes }),
            Err(error) => report.failed.push((plan.name, error)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if options.json {
        report.json(out)?
    } else {
        report.text(out)?
    }
    Ok(report.failed.is_empty())
}

/// What is counted and not timed: driver calls, and bytes of the host for each live block.
fn counts(plan: &Plan, bed: &Bed) -> tenure::Result<(Option<f64>, Option<f64>)> {
    Ok((measure::driver_calls(plan, bed)?, plan.host_bytes.map(|ask| ask(bed)).transpose()?))
}

/// The plans that the names select: those whose name it is, or begins with it where it is no name. A row whose growth over threads is of interest brings the row of one thread along.
fn select(plans: Vec<Plan>, names: &[String]) -> Result<Vec<Plan>, Failure> {
    if names.is_empty() {
        return Ok(plans);
    }
    for name in names {
        let known = plans.iter().any(|plan| plan.name.starts_with(name.as_str())) || PYTHON.starts_with(name.as_str());
        if name.is_empty() || !known {
            let mut themes: Vec<_> = plans.iter().map(|plan| plan.theme).collect();
            themes.dedup();
            return Err(Failure::Input(format!(
                "no row begins with {name:?}: there are {} and {PYTHON} (`tenure bench --list` names each row)",
                themes.join(", ")
            )));
        }
    }
    let names: Vec<_> = names.iter().map(|name| (name, plans.iter().any(|plan| plan.name == *name))).collect();
    let wanted = |plan: &Plan| {
        names
            .iter()
            .any(|(name, exact)| if *exact { plan.name == **name } else { plan.name.starts_with(name.as_str()) })
    };
    let groups: Vec<_> = plans.iter().filter(|plan| wanted(plan)).filter_map(|plan| plan.group.clone()).collect();
    let base = |plan: &Plan| plan.threads == 1 && plan.group.as_ref().is_some_and(|group| groups.contains(group));
    Ok(plans.into_iter().filter(|plan| wanted(plan) || base(plan)).collect())
}

/// Shown on a terminal only.
fn bar(steps: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos} of {len}  {msg}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[&str]) -> Vec<String> {
        let given: Vec<_> = given.iter().map(|&name| name.to_owned()).collect();
        select(rows::all(), &given).unwrap().into_iter().map(|plan| plan.name).collect()
    }

    #[test]
    fn names_are_unique_and_begin_with_their_theme() {
        let mut all = names(&[]);
        for plan in rows::all() {
            assert!(plan.name.starts_with(plan.theme), "{} of {}", plan.name, plan.theme);
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_name_is_a_prefix() {
        assert_eq!(names(&["buffer"]), ["buffer-rust"]);
        assert_eq!(names(&["churn-c-1000"]), ["churn-c-1000"], "a whole name is that row alone");
        assert_eq!(names(&["churn-c"]).len(), 4);
        assert!(names(&["pair", "holes"]).iter().all(|name| name.starts_with("pair-") || name.starts_with("holes-")));
        assert!(names(&["python"]).is_empty());
    }

    #[test]
    fn growth_brings_its_base_along() {
        assert_eq!(names(&["threads-own-16"]), ["threads-own-1", "threads-own-16"]);
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for name in ["nothing", "", "air", "-"] {
            let error = select(rows::all(), &[name.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("pair, churn") && error.contains("--list"), "{error}");
        }
    }
}
