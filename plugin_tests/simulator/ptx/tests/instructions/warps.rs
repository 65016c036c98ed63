//! What lanes tell each other.

use crate::{Kernel, STORE};

/// Each lane shuffles its number plus 100; lanes for which there is no partner add 1000.
fn shuffle(instruction: &str, threads: u32) -> Vec<u32> {
    let body = format!(
        "mov.u32 %r1, %laneid; add.s32 %r1, %r1, 100; shfl.sync.{instruction}, -1; @!%p1 add.s32 %r0, %r0, 1000;"
    );
    Kernel::each(&body, threads)
}

fn expect(of: impl Fn(i32) -> i32) -> Vec<u32> {
    (0..32).map(|lane| of(lane) as u32).collect()
}

#[test]
fn values_are_shuffled_within_segments() {
    let down = shuffle("down.b32 %r0|%p1, %r1, 3, 31", 32);
    assert_eq!(down, expect(|lane| if lane < 29 { lane + 103 } else { lane + 1100 }));
    let up = shuffle("up.b32 %r0|%p1, %r1, 3, 0", 32);
    assert_eq!(up, expect(|lane| if lane >= 3 { lane + 97 } else { lane + 1100 }));
    let across = shuffle("bfly.b32 %r0|%p1, %r1, 5, 31", 32);
    assert_eq!(across, expect(|lane| (lane ^ 5) + 100));
    let given = shuffle("idx.b32 %r0|%p1, %r1, 9, 31", 32);
    assert_eq!(given, expect(|_| 109));
    // Segments of eight lanes.
    let down = shuffle("down.b32 %r0|%p1, %r1, 3, 0x1807", 32);
    assert_eq!(down, expect(|lane| if lane % 8 < 5 { lane + 103 } else { lane + 1100 }));
    let up = shuffle("up.b32 %r0|%p1, %r1, 3, 0x1800", 32);
    assert_eq!(up, expect(|lane| if lane % 8 >= 3 { lane + 97 } else { lane + 1100 }));
    let given = shuffle("idx.b32 %r0|%p1, %r1, 2, 0x1807", 32);
    assert_eq!(given, expect(|lane| lane / 8 * 8 + 102));
}

#[test]
fn a_warp_that_is_not_full_shuffles_among_its_lanes() {
    // All that are named, but not there, have ended; the sum of lanes 32 to 39 comes to lane 32.
    let body = "mov.u32 %r0, %tid.x;
        shfl.sync.bfly.b32 %r2, %r0, 4, 31, -1; add.s32 %r0, %r0, %r2;
        shfl.sync.bfly.b32 %r2, %r0, 2, 31, -1; add.s32 %r0, %r0, %r2;
        shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1; add.s32 %r0, %r0, %r2;";
    assert_eq!(Kernel::each(body, 40)[32..], [284; 8]);
    assert_eq!(shuffle("down.b32 %r0|%p1, %r1, 4, 31", 8), [104, 105, 106, 107, 104, 105, 106, 107]);
}

#[test]
fn lanes_that_have_parted_are_waited_for() {
    // The lower lanes come first; the mask names all, so they wait until the others are through their loop.
    let body = "mov.u32 %r1, %laneid; mov.b32 %r2, %r1; mov.b32 %r3, 0; setp.lt.u32 %p1, %r1, 16; @%p1 bra meet;
        loop: add.s32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r1; @%p2 bra loop; add.s32 %r2, %r2, 500; bra meet;
        unused: trap;
        meet: shfl.sync.bfly.b32 %r0, %r2, 16, 31, -1;";
    assert_eq!(Kernel::each(body, 32), expect(|lane| if lane < 16 { lane + 516 } else { lane - 16 }));
    // Above the code of the others: they come to it by going back.
    let body = "mov.u32 %r1, %laneid; mov.b32 %r2, 0; setp.ge.u32 %p1, %r1, 16; @%p1 bra far;
        meet: vote.sync.ballot.b32 %r0, %p1, -1; bra end;
        far: mov.b32 %r2, 1; bra meet;
        end: ";
    assert_eq!(Kernel::each(body, 32), [0xffff_0000; 32]);
}

#[test]
fn exchanges_of_some_lanes_leave_the_others_alone() {
    let body =
        "mov.u32 %r1, %laneid; mov.b32 %r0, 7; setp.lt.u32 %p1, %r1, 4; @%p1 shfl.sync.idx.b32 %r0, %r1, 3, 31, 0xf;";
    assert_eq!(Kernel::each(body, 32), expect(|lane| if lane < 4 { 3 } else { 7 }));
    let stranger = "mov.u32 %r1, %laneid;\nshfl.sync.idx.b32 %r0, %r1, 3, 31, 0xf;";
    let told = Kernel::of(stranger).threads(32).run(&[]).unwrap_err();
    assert!(told.contains("line 10: lane 4 is not among the lanes 0x0000000f that it names"), "{told}");
    // Lanes that wait for others which wait elsewhere.
    let stuck = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 4; @%p1 bra other;\nbar.warp.sync -1;\nbar.sync 0;\n\
                 bra end;\nother: bar.sync 0;\nend: ";
    let told = Kernel::of(stuck).threads(32).run(&[]).unwrap_err();
    assert!(told.contains("lanes 0xfffffff0 at line 10, lanes 0x0000000f at line 13"), "{told}");
}

#[test]
fn lanes_vote_and_match() {
    let start = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 5; mov.b32 %r0, 0; mov.pred %p3, 1;";
    let vote = |instruction: &str| Kernel::each(&format!("{start} {instruction}"), 32)[0];
    assert_eq!(vote("vote.sync.ballot.b32 %r0, %p1, -1;"), 0x1f);
    assert_eq!(vote("vote.sync.ballot.b32 %r0, !%p1, -1;"), !0x1f);
    for (question, answer) in [("all", [0, 1]), ("any", [1, 1]), ("uni", [0, 1])] {
        let ask = |of: &str| vote(&format!("vote.sync.{question}.pred %p2, {of}, -1; selp.b32 %r0, 1, 0, %p2;"));
        assert_eq!([ask("%p1"), ask("%p3")], answer, "{question}");
    }
    assert_eq!(vote("elect.sync %r0|%p2, -1; selp.b32 %r2, 100, 0, %p2; add.s32 %r0, %r0, %r2;"), 100);
    assert_eq!(vote("mov.u32 %r0, %lanemask_ge;"), u32::MAX);
    let three = Kernel::each(
        "mov.u32 %r0, %lanemask_lt; mov.u32 %r1, %lanemask_gt; xor.b32 %r0, %r0, %r1; not.b32 %r0, %r0;",
        32,
    );
    assert_eq!(three, expect(|lane| 1 << lane));
    let any = Kernel::each("mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; match.any.sync.b32 %r0, %r2, -1;", 32);
    assert_eq!(any, expect(|lane| if lane % 2 == 0 { 0x5555_5555 } else { 0xaaaa_aaaau32 as i32 }));
    let all = |of: &str| vote(&format!("match.all.sync.b32 %r0|%p2, {of}, -1; @%p2 sub.s32 %r0, %r0, 1;"));
    assert_eq!([all("%r1"), all("7")], [0, u32::MAX - 1]);
}

#[test]
fn lanes_reduce() {
    let of = |operation: &str| {
        let body = format!("mov.u32 %r1, %laneid; sub.s32 %r1, %r1, 3; redux.sync.{operation} %r0, %r1, -1; {STORE}");
        Kernel::of(&body).threads(32).run(&[0; 32]).unwrap()[7]
    };
    let found = ["add.s32", "min.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32"].map(of);
    let numbers = (0..32u32).map(|lane| lane.wrapping_sub(3));
    let xor = numbers.fold(0, |all, number| all ^ number);
    assert_eq!(found, [400, -3i32 as u32, 0, 28, u32::MAX, 0, u32::MAX, xor]);
}
