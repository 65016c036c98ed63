//! The slabs by themselves.

use proptest::prelude::*;

use super::*;

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
    assert!(slots.iter().all(|&slot| slabs.free(slot, Tenure::Live).is_none()), "one idle extent stays");
    assert_eq!(slabs.largest_vacant(), Some(LARGEST_SLOT));
}

#[test]
fn a_freed_slot_is_the_next_one_taken() {
    let mut slabs = Slabs::new();
    slabs.adopt(BASE, Bytes::mib(1)).expect("room");
    let slots: Vec<_> = (0..10).map(|_| slabs.allocate(class(600)).expect("room")).collect();
    for freed in [slots[3], slots[7], slots[5]] {
        slabs.free(freed, Tenure::Live);
        assert_eq!(slabs.allocate(class(1000)), Some(freed));
    }
    slabs.free(slots[1], Tenure::Live);
    slabs.free(slots[8], Tenure::Live);
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
    assert_eq!(slabs.free(b, Tenure::Live), None);
    assert_eq!(slabs.idle_extents().collect::<Vec<_>>(), [second]);
    let offered: Vec<_> = a.into_iter().filter_map(|slot| slabs.free(slot, Tenure::Live)).collect();
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
    assert!(!slabs.fits_after_pending(class(4096)));
    slabs.retire(small);
    assert!(slabs.fits_after_pending(class(4096)));
    slabs.renew(small);
    assert!(!slabs.fits_after_pending(class(4096)));
    slabs.retire(small);
    slabs.free(small, Tenure::Retired);
    assert!(slabs.allocate(class(4096)).is_some());
}

#[test]
fn a_larger_slot_serves_where_its_own_class_has_none() {
    let mut slabs = Slabs::new();
    slabs.adopt(BASE, PAGE).expect("room");
    let large: Vec<_> = (0..16).map(|_| slabs.allocate(class(4096)).expect("room")).collect();
    assert_eq!(slabs.allocate_larger(class(4)), None);
    slabs.retire(large[7]);
    assert!(slabs.fits_after_pending(class(4)));
    slabs.free(large[7], Tenure::Retired);
    assert_eq!(slabs.allocate(class(4)), None);
    assert_eq!(slabs.allocate_larger(class(4)), Some(large[7]));
    assert_eq!((slabs.size(large[7]), slabs.free_bytes()), (LARGEST_SLOT, Bytes::ZERO));
}

proptest! {
    #[test]
    fn slots_never_overlap_and_bytes_add_up(
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0u64..=4096, 0u8..6), 1..400),
    ) {
        let mut slabs = Slabs::new();
        let mut extents = 0u64;
        let mut live: Vec<(SlotId, Tenure)> = Vec::new();
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
                    live.push((slot, Tenure::Live));
                }
                3 if !live.is_empty() => {
                    let at = index.index(live.len());
                    if live[at].1 == Tenure::Live {
                        slabs.retire(live[at].0);
                        live[at].1 = Tenure::Retired;
                    }
                }
                4 if !live.is_empty() => {
                    let at = index.index(live.len());
                    if live[at].1 == Tenure::Retired {
                        slabs.renew(live[at].0);
                        live[at].1 = Tenure::Live;
                    }
                }
                5 if !live.is_empty() => {
                    let (slot, tenure) = live.swap_remove(index.index(live.len()));
                    if let Some(surplus) = slabs.free(slot, tenure) {
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
