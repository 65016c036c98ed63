//! Tests of budgets.

use super::*;

fn mib(count: u64) -> Bytes {
    Bytes::mib(count)
}

fn with_nothing_free(limit: Bytes) -> Budget {
    let mut budget = Budget::new(limit);
    (budget.free, budget.open) = (Bytes::ZERO, AtomicU64::new(0));
    budget
}

/// A larger budget of so many bytes.
#[derive(Debug)]
struct Rest(AtomicU64);

impl Whole for Rest {
    fn take(&self, bytes: Bytes) -> Result<(), Beyond> {
        let left = self.0.load(Ordering::SeqCst);
        if bytes.get() > left {
            return Err(Beyond { available: Bytes::new(left), others: mib(7), broken: None });
        }
        self.0.store(left - bytes.get(), Ordering::SeqCst);
        Ok(())
    }

    fn give(&self, bytes: Bytes) {
        self.0.fetch_add(bytes.get(), Ordering::SeqCst);
    }
}

#[test]
fn a_part_takes_of_the_whole_and_returns_all_of_it() {
    let rest = Arc::new(Rest(AtomicU64::new(mib(50).get())));
    let left = || Bytes::new(rest.0.load(Ordering::SeqCst));
    let budget = Arc::new(with_nothing_free(mib(100)).part_of(Arc::<Rest>::clone(&rest)));
    let mut thirty = budget.take(mib(30)).unwrap();
    let over = budget.take(mib(21)).unwrap_err();
    assert_eq!((over.missing, over.others, over.held), (mib(1), Some(mib(7)), mib(30)));
    assert!(over.to_string().ends_with("other processes of the group 7.00MiB"), "{over}");
    drop(budget.offer(mib(20)).unwrap());
    assert_eq!(left(), mib(20), "an offer that is not taken returns it");
    budget.offer(mib(15)).unwrap().take();
    assert_eq!((left(), budget.offer(mib(21)).unwrap_err().missing), (mib(5), mib(1)));
    thirty.trim_to(mib(10));
    assert_eq!(left(), mib(25));
    assert_eq!(budget.trim(|| mib(5)), mib(10));
    assert_eq!(left(), mib(35));
    // Beyond its own limit it does not ask.
    assert_eq!(budget.take(mib(90)).unwrap_err().others, None);
    drop((thirty, budget));
    assert_eq!(left(), mib(50));
}

#[test]
fn both_share_one_limit() {
    let budget = Arc::new(with_nothing_free(mib(100)));
    let (fifty, ten) = (budget.take(mib(50)).unwrap(), budget.take(mib(10)).unwrap());
    budget.offer(mib(40)).unwrap().take();
    let over = budget.take(mib(1)).unwrap_err();
    assert_eq!((over.wanted, over.missing, over.held, over.granted), (mib(1), mib(1), mib(60), mib(40)));
    assert_eq!(budget.offer(mib(50)).unwrap_err().missing, mib(10));
    assert_eq!(
        over.to_string(),
        "1.00MiB more would pass the limit of 100.00MiB by 1.00MiB: arrays hold 60.00MiB, programs' scratch 40.00MiB"
    );
    drop(ten);
    budget.offer(mib(50)).unwrap().take();
    assert_eq!(budget.taken(), (mib(50), mib(50)));
    // What is granted already is not asked for again.
    budget.offer(mib(20)).unwrap().take();
    assert_eq!(budget.taken(), (mib(50), mib(50)));
    assert_eq!(budget.take(Bytes::MAX).unwrap_err().missing, Bytes::MAX);
    let mut fifty = fifty;
    fifty.trim_to(mib(60));
    assert_eq!(budget.taken().0, mib(50));
    fifty.trim_to(mib(20));
    assert_eq!(budget.taken().0, mib(20));
    drop(fifty);
    assert_eq!(budget.taken(), (Bytes::ZERO, mib(50)));
    // What could be granted is the whole limit, whatever is granted now.
    assert!(budget.could_grant(mib(60), mib(40)) && !budget.could_grant(mib(60), mib(41)));
    assert!(!budget.could_grant(Bytes::MAX, mib(1)));
}

#[test]
fn a_little_is_granted_when_arrays_hold_all() {
    let budget = Arc::new(Budget::new(mib(640)));
    let all = budget.take(mib(640)).unwrap();
    assert!(budget.enter(mib(10)).is_some());
    assert!(budget.enter(mib(10) + Bytes::new(1)).is_none());
    budget.offer(mib(10)).unwrap().take();
    assert_eq!(budget.offer(mib(11)).unwrap_err().missing, mib(1));
    assert_eq!(budget.trim(|| panic!("nothing of the limit is granted")), Bytes::ZERO);
    assert!(budget.could_grant(mib(10), mib(640)) && !budget.could_grant(mib(11), mib(640)));
    drop(all);
    budget.offer(mib(30)).unwrap().take();
    assert_eq!(budget.taken().1, mib(20));
    assert!(budget.enter(mib(30)).is_some());
    // The pool gives all back but what programs under way use.
    assert_eq!(budget.trim(|| mib(15)), mib(15));
    assert_eq!(budget.taken().1, mib(5));
    assert!(budget.enter(mib(15)).is_some() && budget.enter(mib(16)).is_none());
}

#[test]
fn a_fixed_share_neither_grows_nor_shrinks() {
    let budget = Arc::new(Budget::with_share(mib(100), mib(60)));
    assert_eq!((budget.limit(), budget.share()), (mib(100), Some(mib(60))));
    assert_eq!(Budget::new(mib(100)).share(), None);
    // Arrays have all of the limit, whatever programs take, and none of the share.
    let all = budget.take(mib(100)).unwrap();
    assert!(budget.enter(mib(60)).is_some() && budget.enter(mib(61)).is_none());
    assert_eq!(budget.take(Bytes::new(1)).unwrap_err().missing, Bytes::new(1));
    drop(all);
    budget.offer(mib(60)).unwrap().take();
    assert_eq!(budget.offer(mib(61)).unwrap_err().missing, mib(1));
    assert!(budget.enter(mib(61)).is_none());
    assert!(budget.could_grant(mib(60), mib(100)) && !budget.could_grant(mib(61), Bytes::ZERO));
    assert_eq!(budget.trim(|| panic!("nothing is granted")), Bytes::ZERO);
    assert!(budget.enter(mib(60)).is_some());
    assert_eq!(budget.taken(), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn a_grant_is_not_taken_back_under_an_execution() {
    let budget = Arc::new(with_nothing_free(mib(100)));
    budget.offer(mib(30)).unwrap().take();
    assert!(budget.enter(mib(31)).is_none());
    let entered = budget.enter(mib(30)).unwrap();
    let trim = || panic!("the pool is in use");
    assert_eq!(budget.trim(trim), Bytes::ZERO);
    assert_eq!(budget.taken().1, mib(30));
    drop(entered);
    // The pool still has 10 MiB in use by programs under way.
    assert_eq!(budget.trim(|| mib(10)), mib(20));
    assert!(budget.enter(mib(11)).is_none());
    assert!(budget.enter(mib(10)).is_some());
    let _rest = budget.take(mib(90)).unwrap();
    // A pool that others use too has more than was granted.
    assert_eq!(budget.trim(|| mib(50)), Bytes::ZERO);
}

#[test]
fn a_charge_is_divided_and_may_stay_for_good() {
    let budget = Arc::new(Budget::new(mib(100)));
    let mut all = budget.take(mib(30)).unwrap();
    let part = all.split_off(mib(10));
    assert_eq!(budget.taken().0, mib(30));
    drop(all);
    assert_eq!(budget.taken().0, mib(10));
    part.keep_for_good();
    assert_eq!(budget.taken().0, mib(10));
}

/// A larger budget that cannot be used.
#[derive(Debug)]
struct Broken;

impl Whole for Broken {
    fn take(&self, _: Bytes) -> Result<(), Beyond> {
        Err(Beyond { broken: Some(Error::failed_precondition("it is damaged")), ..Beyond::default() })
    }

    fn give(&self, _: Bytes) {}
}

#[test]
fn a_budget_that_cannot_be_used_is_no_lack_of_memory() {
    let over = Arc::new(Budget::new(mib(100)).part_of(Arc::new(Broken))).take(mib(1)).unwrap_err();
    assert_eq!((over.code(), over.to_string().as_str()), (Code::Internal, "it is damaged"));
}
