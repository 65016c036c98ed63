//! Open scopes, and the most in use in each.

use crate::{memory::provenance::Execution, units::Bytes};

/// Names an open scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeId(pub(super) u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) id: ScopeId,
    pub(super) start: Bytes,
    pub(super) peak: Bytes,
    /// The most used, up to the last look.
    pub(super) peak_used: Bytes,
    /// What of the peak is a program's scratch.
    pub(super) scratch: Bytes,
    /// The number of the first event after the one that made the peak.
    pub(super) after_peak: u64,
    /// The run that was launched then; 0 for none.
    pub(super) run: u32,
}

/// The open scopes.
#[derive(Debug)]
pub(super) struct Scopes {
    pub(super) open: Vec<Scope>,
    pub(super) next: u64,
    /// The lowest of their peaks: while less is in use no peak is new.
    mark: Bytes,
}

impl Default for Scopes {
    fn default() -> Self {
        Self { open: Vec::new(), next: 0, mark: Bytes::MAX }
    }
}

impl Scopes {
    /// Whether `in_use` is a new peak of one of them.
    #[inline(always)]
    pub(super) fn exceeded(&self, in_use: Bytes) -> bool {
        in_use > self.mark
    }

    #[cold]
    pub(super) fn raise(&mut self, in_use: Bytes, scratch: Bytes, after: u64, run: Execution) {
        for scope in self.open.iter_mut().filter(|scope| scope.peak < in_use) {
            (scope.peak, scope.scratch, scope.after_peak, scope.run) = (in_use, scratch, after, run.step);
        }
        self.set_mark();
    }

    pub(super) fn note_used(&mut self, used: Bytes) {
        for scope in &mut self.open {
            scope.peak_used = scope.peak_used.max(used);
        }
    }

    pub(super) fn set_mark(&mut self) {
        self.mark = self.open.iter().map(|scope| scope.peak).min().unwrap_or(Bytes::MAX);
    }
}
