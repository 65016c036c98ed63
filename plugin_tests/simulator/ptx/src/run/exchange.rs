//! What the lanes of a warp tell each other.

use super::warp::Warp;
use crate::{
    code::{Exchange, Truth, Vote, Way},
    value::{Lanes, WARP},
};

/// The lanes of a mask, from the lowest on.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |lane| mask >> lane & 1 == 1)
}

impl Warp {
    /// Runs an exchange between the lanes of `active`, all of which are here.
    pub fn exchange(&mut self, exchange: &Exchange, active: u32) {
        match *exchange {
            Exchange::Nothing => {}
            Exchange::Shuffle { to, valid, way, of, by, clamp } => {
                let (of, by, clamp) = (self.lanes(of), self.lanes(by), self.lanes(clamp));
                let (mut values, mut within) = ([0; WARP], 0);
                for lane in lanes(active) {
                    let (from, is_within) = partner(way, lane as u32, by[lane] as u32, clamp[lane] as u32);
                    // What a lane reads of one that is not here is not specified: it keeps its own.
                    let is_here = active >> from & 1 == 1;
                    values[lane] = of[if is_here { from } else { lane }] & u64::from(u32::MAX);
                    within |= u32::from(is_within) << lane;
                }
                self.write(to, &values, active);
                if let Some(valid) = valid {
                    self.set(valid, within, active);
                }
            }
            Exchange::Vote { to, vote, of } => {
                let said = self.said(of, active);
                let result = match vote {
                    Vote::All => said == active,
                    Vote::Any => said != 0,
                    Vote::Uniform => said == active || said == 0,
                };
                self.set(to, if result { u32::MAX } else { 0 }, active);
            }
            Exchange::Ballot { to, of } => {
                let said = self.said(of, active);
                self.write(to, &[said.into(); WARP], active);
            }
            Exchange::MatchAny { to, of } => {
                let of = *self.lanes(of);
                let mut found: Lanes = [0; WARP];
                for lane in lanes(active) {
                    found[lane] = lanes(active).filter(|&other| of[other] == of[lane]).map(|other| 1 << other).sum();
                }
                self.write(to, &found, active);
            }
            Exchange::MatchAll { to, same, of } => {
                let of = self.lanes(of);
                let first = active.trailing_zeros() as usize % WARP;
                let all = lanes(active).all(|lane| of[lane] == of[first]);
                self.write(to, &[if all { active.into() } else { 0 }; WARP], active);
                if let Some(same) = same {
                    self.set(same, if all { u32::MAX } else { 0 }, active);
                }
            }
            Exchange::Reduce { to, of, ref combine } => {
                let of = self.lanes(of);
                let result = lanes(active).map(|lane| of[lane]).reduce(combine).unwrap_or(0);
                self.write(to, &[result; WARP], active);
            }
            Exchange::Elect { to, chosen } => {
                let first = active.trailing_zeros();
                if let Some(to) = to {
                    self.write(to, &[first.into(); WARP], active);
                }
                self.set(chosen, 1u32.checked_shl(first).unwrap_or(0), active);
            }
            Exchange::Active { to } => self.write(to, &[active.into(); WARP], active),
        }
    }

    fn said(&self, of: Truth, active: u32) -> u32 {
        self.truth(of) & active
    }
}

/// The lane that `shfl` reads, and whether it is within the segment; where not, a lane reads itself.
fn partner(way: Way, lane: u32, by: u32, clamp: u32) -> (usize, bool) {
    let (by, limit, segment) = (by & 31, clamp & 31, clamp >> 8 & 31);
    let (least, most) = (lane & segment, (lane & segment) | (limit & !segment));
    let (from, is_within) = match way {
        Way::Up => (lane.wrapping_sub(by), lane as i64 - i64::from(by) >= i64::from(most)),
        Way::Down => (lane + by, lane + by <= most),
        Way::Butterfly => (lane ^ by, lane ^ by <= most),
        Way::Index => {
            let from = least | (by & !segment);
            (from, from <= most)
        }
    };
    if is_within { (from as usize, true) } else { (lane as usize, false) }
}
