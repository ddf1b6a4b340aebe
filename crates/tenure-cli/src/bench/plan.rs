//! What a row is: a scene that is measured, a scene that it is compared with, and what is asked of it.
//!
//! A *scene* holds what an operation works on (a pool, streams) and is shared by all lanes; each lane, a thread, makes its
//! own *operation* in it. Scenes are made when their row's turn comes and are gone before the next.

use super::bed::Bed;

/// Something that is done again and again. A function is one: the loop is compiled together with it.
pub(crate) trait Operation {
    /// Does it `count` times.
    fn repeat(&mut self, count: usize) -> tenure::Result<()>;

    /// Does it once and says how many nanoseconds the part took that counts. `None`: all of it counts, time it yourself.
    fn part(&mut self) -> Option<tenure::Result<f64>> {
        None
    }
}

impl<F: FnMut() -> tenure::Result<()>> Operation for F {
    fn repeat(&mut self, count: usize) -> tenure::Result<()> {
        for _ in 0..count {
            self()?;
        }
        Ok(())
    }
}

/// An operation of which only a part counts; it returns the nanoseconds of that part.
pub(crate) struct Part<F>(pub(crate) F);

impl<F: FnMut() -> tenure::Result<f64>> Operation for Part<F> {
    fn repeat(&mut self, count: usize) -> tenure::Result<()> {
        for _ in 0..count {
            (self.0)()?;
        }
        Ok(())
    }

    fn part(&mut self) -> Option<tenure::Result<f64>> {
        Some((self.0)())
    }
}

/// An operation of one lane.
pub(crate) type Op<'a> = Box<dyn Operation + 'a>;

/// What the operations of all lanes work on.
pub(crate) trait Scene: Sync {
    /// The operation of lane `lane`. Called on the lane's thread.
    fn operation(&self, lane: usize) -> tenure::Result<Op<'_>>;
}

/// State and a function of it.
struct Stage<S> {
    state: S,
    operation: Begin<S>,
}

impl<S: Sync> Scene for Stage<S> {
    fn operation(&self, lane: usize) -> tenure::Result<Op<'_>> {
        (self.operation)(&self.state, lane)
    }
}

/// A scene of `state`, in which `operation` makes the operation of a lane.
pub(crate) fn scene<S: Sync + 'static>(state: S, operation: Begin<S>) -> tenure::Result<Box<dyn Scene>> {
    Ok(Box::new(Stage { state, operation }))
}

/// A function that makes a lane's operation from the state of its scene.
pub(crate) type Begin<S> = for<'a> fn(&'a S, usize) -> tenure::Result<Op<'a>>;

/// Makes a scene.
pub(crate) type Make = Box<dyn Fn(&Bed) -> tenure::Result<Box<dyn Scene>>>;

/// What is asked of a row (`docs/performance.md`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// At most so many nanoseconds.
    Nanoseconds(f64),
    /// At most so many nanoseconds more than the reference.
    Above(f64),
    /// The worst thread takes at most this multiple of one thread's time, and at most 1.2 times the growth of the
    /// reference.
    Growth(f64),
    /// At most so many nanoseconds with one thread, and at most so many in the worst of several.
    OneAndMany(f64, f64),
}

/// One row, before it is measured.
pub(crate) struct Plan {
    /// The theme: the beginning of the name, and the text above the rows.
    pub(crate) theme: &'static str,
    pub(crate) name: String,
    /// What one operation is.
    pub(crate) what: String,
    pub(crate) measured: Make,
    /// What the reference does.
    pub(crate) reference: &'static str,
    pub(crate) compared: Make,
    pub(crate) target: Option<Target>,
    /// Lanes.
    pub(crate) threads: usize,
    /// For how many an operation counts: all figures are divided by it.
    pub(crate) units: usize,
    /// Operations before the clock runs.
    pub(crate) warm: usize,
    /// Bytes of device memory without which the row is left out.
    pub(crate) needs: u64,
    /// Rows of one group differ in their threads only.
    pub(crate) group: Option<String>,
    /// Whether the driver calls of an operation say anything: not where only a part of it is what is measured.
    pub(crate) counted: bool,
    /// Bytes of the host's memory for each live block.
    pub(crate) host_bytes: Option<fn(&Bed) -> tenure::Result<f64>>,
}

impl Plan {
    /// A row of one thread.
    pub(crate) fn new(
        theme: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        measured: impl Fn(&Bed) -> tenure::Result<Box<dyn Scene>> + 'static,
        reference: &'static str,
        compared: impl Fn(&Bed) -> tenure::Result<Box<dyn Scene>> + 'static,
    ) -> Self {
        Self {
            theme,
            name: name.into(),
            what: what.into(),
            measured: Box::new(measured),
            reference,
            compared: Box::new(compared),
            target: None,
            threads: 1,
            units: 1,
            warm: 256,
            needs: 0,
            group: None,
            counted: true,
            host_bytes: None,
        }
    }

    pub(crate) fn target(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// So many lanes; `group` names the rows that differ in this only.
    pub(crate) fn threads(self, threads: usize, group: impl Into<String>) -> Self {
        Self { threads, group: Some(group.into()), ..self }
    }

    pub(crate) fn units(self, units: usize) -> Self {
        Self { units, ..self }
    }

    pub(crate) fn warm(self, warm: usize) -> Self {
        Self { warm, ..self }
    }

    pub(crate) fn needs(self, needs: u64) -> Self {
        Self { needs, ..self }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("name", &self.name).finish_non_exhaustive()
    }
}
