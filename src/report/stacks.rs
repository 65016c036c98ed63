//! Python stacks, each frame and each stack once.
//!
//! ```text
//!  frames   0 train.py:40 <module>   1 train.py:12 load   2 data.py:7 Batches.next
//!  stacks   1 = frame 0, called by nobody    2 = frame 1, called by 1    3 = frame 2, called by 2
//! ```
//!
//! Rows are never removed, because an old event may name one; what finds no room has no stack.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Frames at most, each of a line of a function.
const MOST_FRAMES: usize = 1 << 16;
/// Stacks at most.
const MOST_STACKS: usize = 1 << 18;

/// A row of the table of stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackId(u32);

impl StackId {
    /// No stack is known.
    pub const NONE: Self = Self(0);

    /// The row, from 0 on; `None` without a stack.
    pub fn row(self) -> Option<usize> {
        self.0.checked_sub(1).map(|row| row as usize)
    }
}

/// One line of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The file, as Python knows it.
    pub file: Arc<str>,
    /// The line; 0 where it is not known.
    pub line: u32,
    /// The function, with its class.
    pub name: Arc<str>,
}

/// A frame, and who called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The caller's stack.
    pub caller: StackId,
    /// A row of the frames.
    pub frame: u32,
}

/// Frames and stacks.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    /// By row.
    pub frames: Vec<Frame>,
    /// By row: [`StackId::row`].
    pub calls: Vec<Call>,
    frame_rows: FxHashMap<Frame, u32>,
    call_rows: FxHashMap<Call, StackId>,
}

impl Stacks {
    /// The stack whose innermost frame is `frame`, called from `caller`; without one where the table is full.
    pub fn add(&mut self, caller: StackId, frame: Frame) -> StackId {
        let row = match self.frame_rows.get(&frame) {
            Some(&row) => row,
            None if self.frames.len() >= MOST_FRAMES => return StackId::NONE,
            None => {
                let row = self.frames.len() as u32;
                self.frames.push(frame.clone());
                self.frame_rows.insert(frame, row);
                row
            }
        };
        let call = Call { caller, frame: row };
        if let Some(&known) = self.call_rows.get(&call) {
            return known;
        }
        if self.calls.len() >= MOST_STACKS {
            return StackId::NONE;
        }
        self.calls.push(call);
        let stack = StackId(self.calls.len() as u32);
        self.call_rows.insert(call, stack);
        stack
    }

    /// The frames of a stack, the innermost first.
    pub fn frames_of(&self, stack: StackId) -> impl Iterator<Item = &Frame> {
        let call = |stack: StackId| self.calls.get(stack.row()?);
        std::iter::successors(call(stack), move |inner| call(inner.caller))
            .filter_map(|call| self.frames.get(call.frame as usize))
    }

    /// Where the innermost frame is, in words: `train.py:12 (load)`.
    pub fn place(&self, stack: StackId) -> Option<String> {
        let frame = self.frames_of(stack).next()?;
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        Some(format!("{file}:{} ({})", frame.line, frame.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, line: u32) -> Frame {
        Frame { file: file.into(), line, name: "f".into() }
    }

    #[test]
    fn stacks_share_their_callers() {
        let mut stacks = Stacks::default();
        let outer = stacks.add(StackId::NONE, frame("/home/me/train.py", 40));
        let inner = stacks.add(outer, frame("/home/me/train.py", 12));
        let innermost = stacks.add(inner, frame("/home/me/data.py", 7));
        assert_eq!(stacks.add(outer, frame("/home/me/train.py", 12)), inner);
        let again = stacks.add(innermost, frame("/home/me/train.py", 12));
        assert_ne!(again, inner, "the same frame, called from elsewhere");
        assert_eq!((stacks.frames.len(), stacks.calls.len()), (3, 4));
        let lines = |stack| stacks.frames_of(stack).map(|frame| frame.line).collect::<Vec<_>>();
        assert_eq!((lines(innermost), lines(again)), (vec![7, 12, 40], vec![12, 7, 12, 40]));
        assert_eq!(stacks.place(innermost).as_deref(), Some("data.py:7 (f)"));
        assert_eq!(stacks.place(stacks.clone().add(StackId::NONE, frame("<stdin>", 1))), None, "of another table");
        assert_eq!((stacks.place(StackId::NONE), lines(StackId::NONE)), (None, vec![]));
    }

    #[test]
    fn a_full_table_gives_no_stack() {
        let mut stacks = Stacks::default();
        let mut last = StackId::NONE;
        for line in 0..MOST_FRAMES as u32 {
            last = stacks.add(StackId::NONE, frame("a.py", line));
        }
        assert_eq!(last.row(), Some(MOST_FRAMES - 1));
        assert_eq!(stacks.add(StackId::NONE, frame("b.py", 1)), StackId::NONE);
        assert_eq!(stacks.add(StackId::NONE, frame("a.py", MOST_FRAMES as u32 - 1)), last);
    }
}
