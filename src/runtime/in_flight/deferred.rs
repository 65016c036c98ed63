//! A list of what waits for an end, looked at a part at a time.

use std::collections::VecDeque;

/// Looks of a call in which nothing new came.
const FEW: usize = 16;

/// What waits for its end.
pub(super) struct Deferred<T> {
    waiting: VecDeque<T>,
    /// How many came since the last look.
    new: usize,
}

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), new: 0 }
    }
}

impl<T> Deferred<T> {
    /// Adds one that waits.
    pub(super) fn push(&mut self, waits: T) {
        self.waiting.push_back(waits);
        self.new += 1;
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes out those that have ended. It looks at twice as many as came since the last time and a few, in turn: the
    /// list falls as fast as it grows, and a call does not walk what many calls have left.
    pub(super) fn take_ended(&mut self, has_ended: impl Fn(&T) -> bool) -> impl Iterator<Item = T> {
        let looks = (2 * std::mem::take(&mut self.new) + FEW).min(self.waiting.len());
        (0..looks).filter_map(move |_| {
            let waits = self.waiting.pop_front()?;
            if has_ended(&waits) {
                return Some(waits);
            }
            self.waiting.push_back(waits);
            None
        })
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_call_looks_at_few_however_many_wait() {
        let mut deferred = Deferred::default();
        (0..100_000).for_each(|number| deferred.push(number));
        assert_eq!(deferred.take_ended(|_| false).count(), 0);
        let looks = Cell::new(0);
        for _ in 0..10 {
            let none = deferred.take_ended(|_| {
                looks.set(looks.get() + 1);
                false
            });
            assert_eq!(none.count(), 0);
        }
        assert_eq!((looks.get(), deferred.len()), (10 * FEW, 100_000));
    }

    #[test]
    fn the_list_falls_as_fast_as_it_grows() {
        let mut deferred = Deferred::default();
        let mut longest = 0;
        for step in 0..100u32 {
            (0..1000).for_each(|_| deferred.push(step));
            // A step's end comes after the next one's begin.
            let ended = deferred.take_ended(|&at| at < step).count();
            assert!(ended <= 2016);
            longest = longest.max(deferred.len());
        }
        assert!(longest <= 3000, "{longest}");
        let rest = deferred.len();
        assert_eq!(deferred.take_all().len(), rest);
    }
}
