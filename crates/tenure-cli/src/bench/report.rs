//! Rows as a table for people and as JSON for programs.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::bed::Bed;
use super::measure::{Clock, Effort, Figures};
use super::plan::{Plan, Target};
use super::rows::THEMES;
use crate::table::Table;

/// A row that was measured.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) plan: Plan,
    pub(crate) figures: Figures,
    /// Driver calls for one unit.
    pub(crate) calls: Option<f64>,
    /// Bytes of the host's memory for each live block, where they were measured.
    pub(crate) host_bytes: Option<f64>,
}

/// All that a run has to say.
#[derive(Debug)]
pub(crate) struct Report {
    device: String,
    simulated: bool,
    library: String,
    cores: usize,
    rounds: usize,
    pub(crate) clock: Clock,
    pub(crate) rows: Vec<Row>,
    /// Rows that the device is too small for, and the bytes that they need.
    pub(crate) left_out: Vec<(String, u64)>,
    /// Rows that failed, and how.
    pub(crate) failed: Vec<(String, tenure::Error)>,
}

/// How a row stands: growth over the threads, and whether the target is met.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    growth: Option<f64>,
    reference_growth: Option<f64>,
    met: Option<bool>,
}

impl Report {
    pub(crate) fn new(bed: &Bed, effort: &Effort, clock: Clock) -> tenure::Result<Self> {
        Ok(Self {
            device: bed.info.name.clone(),
            simulated: bed.info.simulated,
            library: tenure::library_path()?.to_string_lossy().into_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            rounds: effort.rounds,
            clock,
            rows: Vec::new(),
            left_out: Vec::new(),
            failed: Vec::new(),
        })
    }

    fn standings(&self) -> Vec<Standing> {
        // The figures of one thread, by group.
        let bases: HashMap<&str, Figures> = self
            .rows
            .iter()
            .filter(|row| row.plan.threads == 1)
            .filter_map(|row| Some((row.plan.group.as_deref()?, row.figures)))
            .collect();
        self.rows
            .iter()
            .map(|row| {
                let (plan, figures) = (&row.plan, &row.figures);
                let base = plan.group.as_deref().and_then(|group| bases.get(group)).filter(|_| plan.threads > 1);
                let growth = base.map(|base| figures.worst / base.worst);
                let reference_growth = base.map(|base| figures.reference_worst / base.reference_worst);
                let met = plan.target.and_then(|target| match target {
                    Target::Nanoseconds(most) => Some(figures.ns <= most),
                    Target::Above(most) => Some(figures.ns - figures.reference <= most),
                    Target::Growth(most) => {
                        growth.zip(reference_growth).map(|(ours, machine)| ours <= most && ours <= machine * 1.2)
                    }
                    Target::OneAndMany(one, many) => Some(figures.worst <= if plan.threads == 1 { one } else { many }),
                });
                Standing { growth, reference_growth, met }
            })
            .collect()
    }

    /// One object: what was measured with, and an array of rows.
    pub(crate) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let rows: Vec<_> = self.rows.iter().zip(self.standings()).map(|(row, standing)| row.json(standing)).collect();
        let left_out: Vec<_> =
            self.left_out.iter().map(|(name, needs)| json!({"name": name, "needs_bytes": needs})).collect();
        let failed: Vec<_> =
            self.failed.iter().map(|(name, error)| json!({"name": name, "error": error.to_string()})).collect();
        let all = json!({
            "device": self.device, "simulated": self.simulated, "library": self.library, "cores": self.cores,
            "rounds": self.rounds, "clock_ns": self.clock.cost_ns, "rows": rows, "left_out": left_out, "failed": failed,
        });
        writeln!(out, "{all:#}")
    }

    /// A table for each theme.
    pub(crate) fn text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "device: {}{}", self.device, if self.simulated { " (simulated)" } else { "" })?;
        writeln!(out, "library: {}", self.library)?;
        writeln!(
            out,
            "{} cores; {} rounds; ns for one operation; the clock's own {:.0} ns are taken off single operations",
            self.cores, self.rounds, self.clock.cost_ns
        )?;
        let standings = self.standings();
        for theme in &THEMES {
            let rows: Vec<_> =
                self.rows.iter().zip(&standings).filter(|(row, _)| row.plan.theme == theme.name).collect();
            let Some((first, _)) = rows.first() else { continue };
            writeln!(out, "\n{}: {}\nreference: {}", theme.name, theme.what, first.plan.reference)?;
            let threads = rows.iter().any(|(row, _)| row.plan.threads > 1);
            let host = rows.iter().any(|(row, _)| row.host_bytes.is_some());
            let mut titles = vec!["row", "ns", "mean", "p50", "p99", "max"];
            if threads {
                titles.extend(["worst thread", "growth"]);
            }
            titles.extend(["reference", if threads { "its growth" } else { "ratio" }, "driver calls"]);
            if host {
                titles.push("host B/block");
            }
            titles.extend(["target", "met"]);
            let mut table = Table::new(&titles, 1);
            for (row, standing) in rows {
                table.row(row.cells(*standing, threads, host));
            }
            table.write(out)?;
        }
        if !self.left_out.is_empty() {
            writeln!(out, "\nleft out, since the device has too little free memory:")?;
            for (name, needs) in &self.left_out {
                writeln!(out, "  {name}: needs {}", tenure::Bytes::new(*needs))?;
            }
        }
        if !self.failed.is_empty() {
            writeln!(out, "\nfailed:")?;
            for (name, error) in &self.failed {
                writeln!(out, "  {name}: {error}")?;
            }
        }
        Ok(())
    }
}

impl Row {
    fn json(&self, standing: Standing) -> Value {
        let (plan, figures) = (&self.plan, &self.figures);
        json!({
            "name": plan.name, "theme": plan.theme, "what": plan.what, "threads": plan.threads,
            "ns": figures.ns, "mean_ns": figures.mean, "p50_ns": figures.p50, "p99_ns": figures.p99,
            "max_ns": figures.max, "worst_thread_ns": figures.worst, "growth": standing.growth,
            "reference": plan.reference, "reference_ns": figures.reference,
            "reference_worst_thread_ns": figures.reference_worst, "reference_growth": standing.reference_growth,
            "ratio": figures.ns / figures.reference, "driver_calls": self.calls, "host_bytes_per_block": self.host_bytes,
            "target": plan.target.map(|target| wording(target, plan.threads)), "met": standing.met,
        })
    }

    fn cells(&self, standing: Standing, threads: bool, host: bool) -> Vec<String> {
        let (plan, figures) = (&self.plan, &self.figures);
        let factor = |growth: Option<f64>| growth.map_or("-".into(), |x| format!("{x:.2}"));
        let ns = |ns: f64| if ns < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") };
        let mut cells = vec![
            plan.name.clone(),
            ns(figures.ns),
            ns(figures.mean),
            ns(figures.p50),
            ns(figures.p99),
            ns(figures.max),
        ];
        if threads {
            cells.extend([ns(figures.worst), factor(standing.growth)]);
        }
        cells.push(ns(figures.reference));
        cells.push(if threads {
            factor(standing.reference_growth)
        } else {
            format!("{:.2}", figures.ns / figures.reference)
        });
        cells.push(self.calls.map_or("-".into(), |calls| format!("{calls:.3}")));
        if host {
            cells.push(self.host_bytes.map_or("-".into(), |bytes| format!("{bytes:.0}")));
        }
        cells.push(plan.target.map_or("-".into(), |target| wording(target, plan.threads)));
        cells.push(standing.met.map_or("-", |met| if met { "yes" } else { "no" }).into());
        cells
    }
}

/// A target as people write it.
fn wording(target: Target, threads: usize) -> String {
    match target {
        Target::Nanoseconds(most) => format!("<= {most:.0} ns"),
        Target::Above(most) => format!("<= {most:.0} ns above the reference"),
        Target::Growth(_) if threads == 1 => "-".into(),
        Target::Growth(most) => format!("growth <= {most}, and <= 1.2 x the reference's"),
        Target::OneAndMany(one, many) => format!("<= {:.0} ns", if threads == 1 { one } else { many }),
    }
}

/// The names of the rows and what each does.
pub(crate) fn list(plans: &[Plan], as_json: bool, out: &mut impl Write) -> io::Result<()> {
    if as_json {
        let all: Vec<_> =
            plans.iter().map(|plan| json!({"name": plan.name, "theme": plan.theme, "what": plan.what})).collect();
        return writeln!(out, "{:#}", Value::Array(all));
    }
    let mut table = Table::new(&["row", "what one operation is"], 2);
    for plan in plans {
        table.row(vec![plan.name.clone(), plan.what.clone()]);
    }
    table.write(out)
}
