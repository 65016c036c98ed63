//! The slabs by themselves.

use proptest::prelude::*;

use crate::memory::slab::*;

const BASE: Address = Address::new(1 << 20);

fn class(size: u64) -> Class {
    Class::of(Bytes::new(size)).expect("small")
}

#[test]
fn classes_hold_their_sizes() {
    for size in 0..=LARGEST_SLOT.get() {
        let slot = class(size).size().get();
        assert!(slot >= size && (slot < 2 * size || slot == 256), "{size} in {slot}");
    }
    assert_eq!(Class::of(LARGEST_SLOT + Bytes::new(1)), None);
    assert_eq!(Class::of(Bytes::MAX), None);
}

#[test]
fn one_extent_holds_4096_scalars_and_the_next_is_asked_for() {
    let mut slabs = Slabs::new();
    assert_eq!(slabs.allocate(class(4)), None);
    slabs.adopt(BASE, Bytes::mib(1)).expect("room");
    let slots: Vec<_> = (0..4096).map(|_| slabs.allocate(class(4)).expect("room")).collect();
    assert_eq!(slabs.allocate(class(4)), None);
    assert_eq!(slabs.free_bytes(), Bytes::ZERO);
    assert_eq!(slabs.largest_vacant(), None);
    let mut addresses: Vec<_> = slots.iter().map(|&slot| slabs.address(slot)).collect();
    addresses.sort();
    assert!(addresses.iter().enumerate().all(|(i, &a)| a == BASE + Bytes::new(i as u64 * 256)));
    assert!(slots.iter().all(|&slot| slabs.free(slot, SpanState::Live).is_none()), "one idle extent stays");
    assert_eq!(slabs.largest_vacant(), Some(LARGEST_SLOT));
}

#[test]
fn a_freed_slot_is_the_next_one_taken() {
    let mut slabs = Slabs::new();
    slabs.adopt(BASE, Bytes::mib(1)).expect("room");
    let slots: Vec<_> = (0..10).map(|_| slabs.allocate(class(600)).expect("room")).collect();
    for freed in [slots[3], slots[7], slots[5]] {
        slabs.free(freed, SpanState::Live);
        assert_eq!(slabs.allocate(class(1000)), Some(freed));
    }
    slabs.free(slots[1], SpanState::Live);
    slabs.free(slots[8], SpanState::Live);
    assert_eq!(slabs.allocate(class(600)), Some(slots[8]));
    assert_eq!(slabs.allocate(class(600)), Some(slots[1]));
}

#[test]
fn the_second_idle_extent_is_offered_back() {
    let mut slabs = Slabs::new();
    let first = slabs.adopt(BASE, PAGE).expect("room");
    let a: Vec<_> = (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
    let second = slabs.adopt(BASE + PAGE, PAGE).expect("room");
    let b = slabs.allocate(class(4096)).expect("room");
    assert!(!slabs.remove(first), "it holds slots");
    assert_eq!(slabs.free(b, SpanState::Live), None);
    assert_eq!(slabs.idle_extents().collect::<Vec<_>>(), [second]);
    let offered: Vec<_> = a.into_iter().filter_map(|slot| slabs.free(slot, SpanState::Live)).collect();
    assert_eq!(offered, [first]);
    assert!(slabs.remove(first));
    assert_eq!(slabs.extent_bytes, PAGE);
    assert_eq!(slabs.allocate(class(4096)).map(|slot| slot.extent), Some(second));
}

#[test]
fn an_empty_page_changes_its_class_when_no_other_is_left() {
    let mut slabs = Slabs::new();
    slabs.adopt(BASE, PAGE).expect("room");
    let small = slabs.allocate(class(1)).expect("room");
    assert_eq!(slabs.allocate(class(4096)), None);
    slabs.retire(small);
    slabs.reuse(small);
    slabs.retire(small);
    slabs.free(small, SpanState::Retired);
    assert!(slabs.allocate(class(4096)).is_some());
}

#[test]
fn a_larger_slot_serves_where_its_own_class_has_none() {
    let mut slabs = Slabs::new();
    slabs.adopt(BASE, PAGE).expect("room");
    let large: Vec<_> = (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
    assert_eq!(slabs.allocate_larger(class(4)), None);
    slabs.retire(large[7]);
    slabs.free(large[7], SpanState::Retired);
    assert_eq!(slabs.allocate(class(4)), None);
    assert_eq!(slabs.allocate_larger(class(4)), Some(large[7]));
    assert_eq!((slabs.size(large[7]), slabs.free_bytes()), (LARGEST_SLOT, Bytes::ZERO));
}

#[test]
fn every_vacant_slot_can_be_had_in_whatever_order_pages_emptied() {
    // Three pages of 16 slots. Lists of pages are linked both ways; a link that is lost loses all pages behind it.
    for order in [[0usize, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for emptied in 0..3usize {
            let mut slabs = Slabs::new();
            slabs.adopt(BASE, Bytes::new(3 * PAGE.get())).expect("room");
            let slots: Vec<_> = (0..48).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
            // One slot of each page, then all others of one page.
            for page in order {
                slabs.free(slots[page * 16], SpanState::Live);
            }
            for &slot in &slots[emptied * 16 + 1..emptied * 16 + 16] {
                slabs.free(slot, SpanState::Live);
            }
            // The empty page may serve another class; then its own again.
            let small = slabs.allocate(class(1)).expect("a page is empty");
            slabs.free(small, SpanState::Live);
            let again = std::iter::from_fn(|| slabs.allocate(class(4096))).count();
            assert_eq!((again, slabs.free_bytes()), (18, Bytes::ZERO), "{order:?}, page {emptied} empty");
        }
    }
}

#[test]
fn one_idle_extent_is_kept_after_another_one_went() {
    let mut slabs = Slabs::new();
    let mut address = BASE;
    let mut full = || -> (ExtentId, Vec<SlotId>) {
        let extent = slabs.adopt(address, PAGE).expect("room");
        address = address + PAGE;
        (extent, (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect())
    };
    let [(_, a), (second, b), (_, c)] = [full(), full(), full()];
    assert_eq!(slabs.bytes(), Bytes::new(3 * PAGE.get()));
    let mut offered =
        |slots: Vec<SlotId>| slots.into_iter().filter_map(|slot| slabs.free(slot, SpanState::Live)).last();
    assert_eq!((offered(a), offered(b)), (None, Some(second)));
    assert!(slabs.remove(second));
    assert_eq!((slabs.bytes(), slabs.idle_extents().count()), (Bytes::new(2 * PAGE.get()), 1));
    // The first one again, and all of it free: it is the one that stays.
    let slots: Vec<_> = (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
    assert_eq!(slabs.idle_extents().count(), 0);
    assert!(slots.into_iter().all(|slot| slabs.free(slot, SpanState::Live).is_none()), "no other one is idle");
    assert!(c.into_iter().any(|slot| slabs.free(slot, SpanState::Live).is_some()), "now there are two");
}

#[test]
fn dissolved_extents_leave_nothing_behind() {
    let mut slabs = Slabs::new();
    let first = slabs.adopt(BASE, Bytes::new(3 * PAGE.get())).expect("room");
    // A full page, one with a slot in use, and one without a class.
    let full: Vec<_> = (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
    let small = slabs.allocate(class(256)).expect("room");
    slabs.retire(full[3]);
    assert_eq!(slabs.position(small), (first, PAGE));
    assert_eq!(slabs.position(full[2]), (first, Bytes::new(2 * 4096)));
    let second = slabs.adopt(BASE + Bytes::mib(1), PAGE).expect("room");
    assert_eq!(slabs.idle_extents().collect::<Vec<_>>(), [second]);
    [first, second].iter().for_each(|&extent| slabs.dissolve(extent));
    assert_eq!((slabs.bytes(), slabs.free_bytes()), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!((slabs.largest_vacant(), slabs.idle_extents().count(), slabs.extents().count()), (None, 0, 0));
    assert_eq!((slabs.allocate(class(1)), slabs.allocate(class(4096))), (None, None));
    // What comes in its place is as good as new, and the first idle one stays.
    let again = slabs.adopt(BASE, PAGE).expect("room");
    assert_eq!(again, first, "numbers are used again");
    let slots: Vec<_> = (0..256).map(|_| slabs.allocate(class(1)).expect("room")).collect();
    assert_eq!(slabs.allocate(class(1)), None);
    assert!(slots.into_iter().all(|slot| slabs.free(slot, SpanState::Live).is_none()), "no other one is idle");
}

proptest! {
    #[test]
    fn slots_never_overlap_and_bytes_add_up(
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0u64..=4096, 0u8..6), 1..400),
    ) {
        let mut slabs = Slabs::new();
        let mut extents = 0u64;
        let mut live: Vec<(SlotId, SpanState)> = Vec::new();
        for (index, size, action) in steps {
            match action {
                0..3 => {
                    let slot = slabs.allocate(class(size)).or_else(|| {
                        let adopted = slabs.adopt(BASE + Bytes::new(extents * PAGE.get() * 2), Bytes::kib(128));
                        extents += 1;
                        adopted.and_then(|_| slabs.allocate(class(size)))
                    });
                    let slot = slot.expect("a fresh extent has room");
                    let (address, size) = (slabs.address(slot), slabs.size(slot));
                    for &(other, _) in &live {
                        let (a, s) = (slabs.address(other), slabs.size(other));
                        prop_assert!(a + s <= address || address + size <= a);
                    }
                    live.push((slot, SpanState::Live));
                }
                3 if !live.is_empty() => {
                    let at = index.index(live.len());
                    if live[at].1 == SpanState::Live {
                        slabs.retire(live[at].0);
                        live[at].1 = SpanState::Retired;
                    }
                }
                4 if !live.is_empty() => {
                    let at = index.index(live.len());
                    if live[at].1 == SpanState::Retired {
                        slabs.reuse(live[at].0);
                        live[at].1 = SpanState::Live;
                    }
                }
                5 if !live.is_empty() => {
                    let (slot, state) = live.swap_remove(index.index(live.len()));
                    if let Some(surplus) = slabs.free(slot, state) {
                        prop_assert!(slabs.remove(surplus));
                    }
                }
                _ => {}
            }
            let held: Bytes = live.iter().map(|&(slot, _)| slabs.size(slot)).sum();
            prop_assert_eq!(slabs.extent_bytes - slabs.free_bytes(), held);
            prop_assert!(slabs.idle_extents().count() <= 1);
        }
    }
}
