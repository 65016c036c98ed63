use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(100);

fn bytes(count: u64) -> Bytes {
    Bytes::new(count)
}

/// A member that holds `held`, of which `idle` lies idle, with a weight of 100 and no minimum.
fn member(held: u64, idle: u64) -> Member {
    Member { weight: 100, min: Bytes::ZERO, held: bytes(held), idle: bytes(idle), ask: None }
}

fn asking(member: Member, ticket: u64, count: u64) -> Member {
    let ask = Asked { bytes: bytes(count), ticket, since: NOW, until: NOW + Duration::from_secs(1) };
    Member { ask: Some(ask), ..member }
}

fn numbers(members: &[Member]) -> Vec<(u64, u64)> {
    let wanted = |who| wanted(bytes(100), members, who, NOW);
    (0..members.len()).map(wanted).map(|Wanted { idle, beyond }| (idle.get(), beyond.get())).collect()
}

fn can_take(members: &[Member]) -> Vec<u64> {
    (0..members.len()).map(|who| available(bytes(100), members, who, NOW).get()).collect()
}

#[test]
fn what_is_free_is_everybodys_but_for_minima() {
    let with_min = |held, min| Member { min: bytes(min), ..member(held, 0) };
    assert_eq!(can_take(&[member(30, 0), member(20, 0)]), [50, 50]);
    // 15 are kept for the second one, which it can take.
    assert_eq!(can_take(&[member(30, 0), with_min(5, 20)]), [50, 65]);
    assert_eq!(can_take(&[member(80, 0), with_min(0, 20)]), [0, 20]);
    // One that came with a minimum when there was no room for it.
    assert_eq!(can_take(&[member(90, 0), with_min(0, 30), member(0, 0)]), [0, 10, 0]);
    assert_eq!(admit(bytes(100), [bytes(30), bytes(50)].into_iter(), bytes(20)), Ok(()));
    assert_eq!(admit(bytes(100), [bytes(30), bytes(50)].into_iter(), bytes(21)), Err(bytes(20)));
    assert_eq!(most(bytes(100), &[member(0, 0), with_min(50, 20), with_min(0, 5)], 0), bytes(75));
}

#[test]
fn what_is_free_is_kept_for_the_oldest_ask() {
    // The second one asks for more than there is: what there is waits for it, and for the first one if that asked
    // before.
    let waiting = |first, second| [asking(member(30, 0), first, 10), asking(member(40, 0), second, 40), member(0, 0)];
    assert_eq!(can_take(&waiting(1, 2)), [30, 20, 0]);
    assert_eq!(can_take(&waiting(2, 1)), [0, 30, 0]);
    // An ask that is over keeps nothing, and neither does one that is more than all there is.
    let over = |until, count| {
        let ask = Asked { bytes: bytes(count), ticket: 1, since: Duration::ZERO, until };
        [Member { ask: Some(ask), ..member(30, 0) }, member(0, 0)]
    };
    assert_eq!(can_take(&over(NOW, 50)), [70, 70]);
    assert_eq!(can_take(&over(NOW + Duration::from_nanos(1), 50)), [70, 20]);
    assert_eq!(can_take(&over(NOW + Duration::from_nanos(1), 71)), [70, 70]);
    // Somebody's minimum is its own, whoever asked before.
    let kept = Member { min: bytes(20), ..member(5, 0) };
    assert_eq!(can_take(&[asking(member(30, 0), 1, 50), kept]), [50, 15]);
}

#[test]
fn idle_memory_is_wanted_first_and_no_more_than_is_missing() {
    let givers = [member(40, 15), member(40, 20)];
    assert_eq!(numbers(&[givers[0], givers[1], asking(member(0, 0), 1, 20)]), [(0, 0), (0, 0), (0, 0)]);
    // All need no more than their entitlements, and the second one has more above that.
    assert_eq!(numbers(&[givers[0], givers[1], asking(member(0, 0), 1, 30)]), [(0, 0), (10, 0), (0, 0)]);
    assert_eq!(numbers(&[givers[0], givers[1], asking(member(0, 0), 1, 50)]), [(10, 0), (20, 0), (0, 0)]);
    // What would only be kept for its own minimum is not wanted.
    let kept = Member { min: bytes(35), ..givers[0] };
    assert_eq!(numbers(&[kept, givers[1], asking(member(0, 0), 1, 45)]), [(5, 0), (20, 0), (0, 0)]);
    // Nobody gives for an ask of its own.
    assert_eq!(numbers(&[asking(member(100, 50), 1, 10)]), [(0, 0)]);
}

#[test]
fn beyond_idle_memory_those_above_their_entitlement_go_down_to_it() {
    // A third each: the first one is 27 above.
    let ask = |count| asking(member(0, 0), 1, count);
    assert_eq!(numbers(&[member(60, 0), member(40, 0), ask(20)]), [(0, 20), (0, 0), (0, 0)]);
    assert_eq!(numbers(&[member(60, 0), member(40, 0), ask(33)]), [(0, 27), (0, 6), (0, 0)]);
    // Idle memory goes first, and counts.
    assert_eq!(numbers(&[member(60, 0), member(40, 15), ask(20)]), [(0, 5), (15, 0), (0, 0)]);
    // More than it is entitled to: nobody spills for it, but idle memory is given.
    assert_eq!(numbers(&[member(60, 2), member(40, 0), ask(34)]), [(2, 0), (0, 0), (0, 0)]);
    // With four times the weight it is entitled to two thirds.
    let heavy = Member { weight: 400, ..ask(66) };
    assert_eq!(numbers(&[member(60, 0), member(40, 0), heavy]), [(0, 43), (0, 23), (0, 0)]);
    // And a minimum is never given.
    let kept = Member { min: bytes(60), ..member(60, 0) };
    assert_eq!(numbers(&[kept, member(40, 0), ask(20)]), [(0, 0), (0, 20), (0, 0)]);
}

#[test]
fn asks_are_served_in_their_order_and_not_twice() {
    let givers = |first, second| [member(100, 30), asking(member(0, 0), first, 20), asking(member(0, 0), second, 25)];
    // 30 are idle; the younger one is within its third, too, and gets the rest by spilling.
    assert_eq!(numbers(&givers(1, 2)), [(30, 15), (0, 0), (0, 0)]);
    assert_eq!(numbers(&givers(2, 1)), [(30, 15), (0, 0), (0, 0)]);
    // The older one is beyond its entitlement and gets what is idle. For the younger one nobody spills as long as the
    // older one would get it.
    let beyond = [member(100, 30), asking(member(0, 0), 1, 60), asking(member(0, 0), 2, 25)];
    assert_eq!(numbers(&beyond), [(30, 0), (0, 0), (0, 0)]);
}

#[test]
fn an_ask_that_has_waited_is_wanted_from_everybody() {
    let since = NOW - FROM_ALL_AFTER - Duration::from_nanos(1);
    let old = |count| {
        let ask = Asked { bytes: bytes(count), ticket: 1, since, until: NOW + Duration::from_secs(1) };
        Member { ask: Some(ask), ..member(0, 0) }
    };
    assert_eq!(numbers(&[member(60, 20), member(40, 20), old(20)]), [(20, 0), (20, 0), (0, 0)]);
    assert_eq!(numbers(&[member(60, 10), member(40, 5), old(30)]), [(10, 15), (5, 0), (0, 0)]);
}

#[test]
fn nothing_is_kept_for_an_old_ask_to_which_nobody_owes_anything() {
    let ask = |late: bool, count| {
        let since = if late { NOW - FROM_ALL_AFTER - Duration::from_nanos(1) } else { NOW };
        Some(Asked { bytes: bytes(count), ticket: 1, since, until: NOW + Duration::from_secs(1) })
    };
    // It wants 80 of 100 where another one uses 40: more than half, and 30 are free.
    let group = |late, idle, third| [Member { ask: ask(late, 50), ..member(30, 0) }, member(40, idle), third];
    assert_eq!(can_take(&group(false, 0, member(0, 0))), [30, 0, 0]);
    assert_eq!(can_take(&group(true, 0, member(0, 0))), [30, 30, 30]);
    // Half of what the other one has would be enough.
    assert_eq!(can_take(&group(true, 20, member(0, 0))), [30, 0, 0]);
    // A younger ask is not held up.
    let younger = asking(member(0, 0), 2, 33);
    assert_eq!(numbers(&group(false, 0, younger)), [(0, 0), (0, 0), (0, 0)]);
    assert_eq!(numbers(&group(true, 0, younger)), [(0, 0), (0, 3), (0, 0)]);
    // It is owed nothing, and is served all the same where there is room.
    assert!(!is_owed(bytes(100), &group(true, 0, member(0, 0)), 0, NOW));
    let room = [Member { ask: ask(true, 50), ..member(30, 0) }, member(20, 0)];
    assert_eq!(can_take(&room), [50, 0]);
}

#[test]
fn a_member_that_came_to_a_full_group_gets_its_minimum() {
    let late = |count| Member { min: bytes(30), ..asking(member(0, 0), 1, count) };
    assert_eq!(numbers(&[member(90, 0), late(10)]), [(0, 0), (0, 0)]);
    assert_eq!(numbers(&[member(90, 0), late(30)]), [(0, 20), (0, 0)]);
}

/// Members whose minima fit the limit, and what they hold, too.
fn groups() -> impl Strategy<Value = (Bytes, Vec<Member>)> {
    let ask = prop::option::of((1..2000u64, 0..20u64, 0..3u64, 0..3u64));
    let member = (1..=1000u32, 0..300u64, 0..400u64, 0..=100u64, ask);
    (500..2000u64, prop::collection::vec(member, 1..8)).prop_map(|(limit, members)| {
        let (mut minima, mut held_all) = (0, 0);
        let members = members.into_iter().enumerate().map(|(index, (weight, min, held, idle, ask))| {
            let min = min.min(limit - minima);
            minima += min;
            let held = held.min(limit - held_all);
            held_all += held;
            let ask = ask.map(|(count, ticket, since, until)| Asked {
                bytes: bytes(count),
                ticket: ticket * 8 + index as u64,
                since: NOW - Duration::from_millis(200) * since as u32,
                until: NOW + Duration::from_secs(until),
            });
            Member { weight, min: bytes(min), held: bytes(held), idle: bytes(held * idle / 100), ask }
        });
        (bytes(limit), members.collect())
    })
}

fn claimed(members: &[Member]) -> Bytes {
    sum(members.iter().map(Member::claimed))
}

proptest! {
    #[test]
    fn nobody_takes_more_than_the_limit_or_anothers_minimum(
        (limit, mut members) in groups(),
        takers in prop::collection::vec((0..8usize, 0..=100u64), 1..30),
    ) {
        let before = claimed(&members).max(limit);
        for (who, share) in takers {
            let who = who % members.len();
            let take = available(limit, &members, who, NOW);
            members[who].held += bytes(take.get() * share / 100);
            prop_assert!(sum(members.iter().map(|member| member.held)) <= limit);
            prop_assert!(claimed(&members) <= before);
        }
        if before == limit {
            for (who, member) in members.iter().enumerate() {
                prop_assert!(available(limit, &members, who, NOW) >= member.min.saturating_sub(member.held));
            }
        }
    }

    #[test]
    fn nobody_takes_what_serves_an_older_ask((limit, mut members) in groups(), who in 0..8usize) {
        let who = who % members.len();
        let ticket = members[who].ask.map_or(u64::MAX, |ask| ask.ticket);
        let is_older = |(asker, ask): &(usize, Asked)| *asker != who && ask.ticket < ticket;
        let older: Vec<_> = asks(limit, &members, NOW).filter(is_older).collect();
        let is_served = |members: &[Member], (asker, ask): &(usize, Asked)| {
            available(limit, members, *asker, NOW) >= ask.bytes
        };
        let served: Vec<_> = older.into_iter().filter(|ask| is_served(&members, ask)).collect();
        let taken = available(limit, &members, who, NOW);
        members[who].held += taken;
        for ask in served {
            prop_assert!(is_served(&members, &ask), "{ask:?} was overtaken by {who}");
        }
    }

    #[test]
    fn entitlements_are_max_min_fair((limit, members) in groups(), needs in prop::collection::vec(0..2500u64, 8)) {
        let needs: Vec<Bytes> = needs.into_iter().map(bytes).take(members.len()).collect();
        let entitled = entitlements(limit, &members, &needs);
        prop_assert!(sum(entitled.iter().copied()) <= limit);
        for (who, member) in members.iter().enumerate() {
            prop_assert!(entitled[who] >= member.min);
            prop_assert!(entitled[who] <= needs[who].max(member.min));
            if entitled[who] >= needs[who] {
                continue;
            }
            // Whoever needs more than it is entitled to has, by weight, no less than anybody else, but for a byte.
            let own = (entitled[who] - member.min).get() + 1;
            for (other, entitled) in members.iter().zip(&entitled) {
                let above = (*entitled - other.min).get();
                prop_assert!(above * u64::from(member.weight) <= own * u64::from(other.weight));
            }
            // And then all is handed out, but for a byte each.
            let rest = limit - sum(entitled.iter().copied());
            prop_assert!(rest.get() < members.len() as u64);
        }
    }

    #[test]
    fn what_is_wanted_can_be_given_and_helps((limit, members) in groups()) {
        let wanted: Vec<Wanted> = (0..members.len()).map(|who| wanted(limit, &members, who, NOW)).collect();
        let mut after = members.clone();
        for (member, Wanted { idle, beyond }) in after.iter_mut().zip(&wanted) {
            prop_assert!(*idle <= member.idle);
            prop_assert!(plus(*idle, *beyond) <= member.held);
            member.held -= *idle + *beyond;
            prop_assert!(member.held >= member.min || (idle.is_zero() && beyond.is_zero()));
        }
        // Not a byte is wanted where nobody asks for it, and none that is not missing, unless somebody has waited.
        let orders = in_order(limit, &members, NOW);
        let missing = sum(orders.iter().map(|(asker, ask)| members[*asker].claims_more(ask)));
        let missing = plus(missing, claimed(&members)).saturating_sub(limit);
        let all = sum(wanted.iter().map(|wanted| wanted.idle + wanted.beyond));
        if orders.iter().all(|(_, ask)| NOW - ask.since <= FROM_ALL_AFTER) {
            prop_assert!(all <= missing, "{all} of {missing}");
        }
        // The oldest one is served, if it is entitled to what it asks for or others have so much idle.
        if let Some((asker, ask)) = orders.first() {
            let mut needs: Vec<Bytes> = members.iter().map(Member::need).collect();
            needs[*asker] = members[*asker].held + ask.bytes;
            let is_entitled = entitlements(limit, &members, &needs)[*asker] >= needs[*asker];
            let kept = sum(others(&members, *asker).map(|(_, other)| other.claimed() - other.spare()));
            if is_entitled || kept + needs[*asker] <= limit {
                // What it was to give itself, for younger ones, is still to come.
                after[*asker].held = members[*asker].held;
                // And what was more than an empty group could serve may not be, once the asker has given.
                let is_first = in_order(limit, &after, NOW).first().map(|(first, _)| first) == Some(asker);
                prop_assume!(is_first);
                prop_assert!(available(limit, &after, *asker, NOW) >= ask.bytes);
            }
        }
    }
}

/// What each process of the simulated scheduler wants to hold, one peak after the other.
fn peaks() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(0..=100u64, 1..12), 2..6)
}

proptest! {
    /// Processes with peaks of up to the whole limit. A process at its turn lets go of the last peak, and takes the
    /// next one if it may, or asks for it. All peaks come, and none of them later than two rounds for each process.
    #[test]
    fn nobody_starves(peaks in peaks(), firsts in prop::collection::vec(0..6usize, 64)) {
        let (limit, count) = (bytes(100), peaks.len());
        let mut members = vec![member(0, 0); count];
        let mut left: Vec<_> = peaks.into_iter().map(|peaks| peaks.into_iter().rev().collect::<Vec<_>>()).collect();
        let (mut tickets, mut since) = (0.., vec![0; count]);
        for (round, first) in firsts.into_iter().cycle().enumerate() {
            if left.iter().all(Vec::is_empty) {
                break;
            }
            for who in (0..count).map(|who| (who + first) % count) {
                members[who].held = Bytes::ZERO;
                let Some(&peak) = left[who].last() else { continue };
                if available(limit, &members, who, NOW) >= bytes(peak) {
                    members[who] = member(peak, 0);
                    left[who].pop();
                    since[who] = round;
                } else if members[who].ask.is_none() {
                    members[who] = asking(members[who], tickets.next().expect("endless"), peak);
                }
                prop_assert!(sum(members.iter().map(|member| member.held)) <= limit);
                prop_assert!(left[who].is_empty() || round - since[who] <= 2 * count, "{who} starves: {members:?}");
            }
        }
    }
}
