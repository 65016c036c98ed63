//! Branches, barriers, and where threads part.

use crate::{Kernel, STORE};

#[test]
fn lanes_part_and_meet_again() {
    // Each lane loops as often as its number says; within, odd and even lanes go their own ways.
    let body = "mov.u32 %r1, %tid.x; mov.b32 %r0, 0; mov.b32 %r2, 0;
        top: setp.ge.u32 %p1, %r2, %r1; @%p1 bra done;
        and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra even;
        add.s32 %r0, %r0, 100; bra.uni next;
        even: add.s32 %r0, %r0, 1;
        next: add.s32 %r2, %r2, 1; bra top;
        done: activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.u32 %r0, %r4, 10000, %r0;";
    let expected = (0..32u32).map(|lane| 320_000 + lane / 2 * 100 + lane.div_ceil(2)).collect::<Vec<u32>>();
    assert_eq!(Kernel::each(body, 32), expected);
}

#[test]
fn loops_with_barriers_run_warps_in_turn() {
    // A sum over 100 threads in shared memory, halved again and again, which needs every barrier.
    let body = ".shared .align 4 .b8 space[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.b32 %r3, space;
        add.s32 %r3, %r3, %r2; st.shared.b32 [%r3], %r1; mov.b32 %r4, 64;
        top: bar.sync 0; setp.ge.u32 %p1, %r1, %r4; @%p1 bra skip;
        add.s32 %r5, %r1, %r4; setp.ge.u32 %p2, %r5, 100; @%p2 bra skip;
        shl.b32 %r6, %r4, 2; add.s32 %r6, %r3, %r6; ld.shared.b32 %r7, [%r6]; ld.shared.b32 %r8, [%r3];
        add.s32 %r8, %r7, %r8; st.shared.b32 [%r3], %r8;
        skip: shr.u32 %r4, %r4, 1; setp.ne.u32 %p3, %r4, 0; @%p3 bra top;
        bar.sync 0; ld.shared.b32 %r0, [space];";
    assert_eq!(Kernel::each(body, 100), [4950; 100]);
}

#[test]
fn lanes_that_go_around_again_wait_at_the_barrier_for_those_that_are_behind() {
    // Two ways back to the top: lanes that take the first one come to the barrier before the others have gone around.
    let body = "mov.u32 %r1, %laneid; mov.b32 %r0, 0;
        top: bar.sync 0; add.s32 %r0, %r0, 1; setp.ge.u32 %p1, %r0, 5; @%p1 bra done;
        setp.lt.u32 %p2, %r1, 7; @%p2 bra other; bra top;
        other: add.s32 %r2, %r2, 1; bra top;
        done: ";
    assert_eq!(Kernel::each(body, 64), [5; 64]);
}

#[test]
fn threads_that_have_ended_are_not_waited_for() {
    let body = format!("mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 exit; bar.sync 0; mov.b32 %r0, 1; {STORE}");
    let mut expected = vec![1; 40];
    expected.resize(64, 0);
    assert_eq!(Kernel::of(&body).threads(64).run(&[0; 64]).unwrap(), expected);
}

#[test]
fn barriers_have_numbers_and_may_count_threads() {
    // The second warp waits for the first one only, by barrier 1; the third one by barrier 2 for nobody but itself.
    let body = ".shared .align 4 .u32 cell; mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 2;
        mov.b32 %r0, 5; @%p2 bra alone; @%p1 st.shared.b32 [cell], 7; bar.sync 1, 64; ld.shared.b32 %r0, [cell]; bra end;
        alone: barrier.sync 2, 32;
        end: ";
    assert_eq!(Kernel::each(body, 96), [[7; 64].as_slice(), &[5; 32]].concat());
}

#[test]
fn a_barrier_that_lanes_come_to_apart_is_an_error() {
    let apart = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 4; @%p1 bra other;\nbar.sync 0;\nbra end;\nother: bar.sync 0;\nend: ";
    let told = Kernel::of(apart).threads(32).run(&[]).unwrap_err();
    let words = "ptx: k: line 10: all lanes of a warp come to this barrier together, and not all have: lanes 0xfffffff0 at \
                 line 10, lanes 0x0000000f at line 12 (warp 0 of block [0, 0, 0])";
    assert_eq!(told, words);
    // The same is allowed where the barrier is not ".aligned".
    let allowed = apart.replace("bar.sync", "barrier.sync");
    assert_eq!(Kernel::of(&allowed).threads(32).run(&[]), Ok(Vec::new()));
}

#[test]
fn a_barrier_to_which_not_all_can_come_is_an_error() {
    let body = "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra end; bar.sync 0, 96; end: ";
    let told = Kernel::of(body).threads(64).run(&[]).unwrap_err();
    assert!(told.contains("nobody comes for whom the lanes wait: lanes 0xffffffff at line 9"), "{told}");
    let told = Kernel::of("bar.sync 16;").run(&[]).unwrap_err();
    assert!(told.contains("there are barriers 0 to 15, and no 16"), "{told}");
}

#[test]
fn endless_loops_and_traps_end_the_launch() {
    let told = Kernel::of("top: bra top;").run(&[]).unwrap_err();
    assert_eq!(told, "ptx: k: line 9: the launch has run 1048576 instructions of warps and does not end");
    let told = Kernel::of("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 9; @%p1 trap;").threads(32).run(&[]).unwrap_err();
    assert!(told.contains("stops itself"), "{told}");
}

#[test]
fn a_table_sends_each_lane_where_its_index_says() {
    let body = "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 3; mov.b32 %r0, 4; @%p1 bra end;
        ways: .branchtargets zero, one, two;
        brx.idx %r2, ways;
        zero: mov.b32 %r0, 10; bra end;
        one: mov.b32 %r0, 11; bra end;
        two: mov.b32 %r0, 12;
        end: ";
    assert_eq!(Kernel::each(body, 8), [10, 11, 12, 4, 10, 11, 12, 4]);
    let told = Kernel::of("ways: .branchtargets end; brx.idx 1, ways; end: ").run(&[]).unwrap_err();
    assert!(told.contains("lane 0 goes to number 1 of a shorter table"), "{told}");
}

#[test]
fn names_in_braces_are_their_own() {
    let body = "mov.b32 %r0, 0; mov.b32 %r1, 3;
        { .reg .pred q; .reg .b32 %r1; mov.b32 %r1, 0;
          again: add.s32 %r1, %r1, 1; add.s32 %r0, %r0, 1; setp.lt.u32 q, %r1, 5; @q bra again; }
        { .reg .pred q; again: add.s32 %r0, %r0, 10; setp.lt.u32 q, %r0, 30; @q bra again; }
        add.s32 %r0, %r0, %r1;";
    assert_eq!(Kernel::each(body, 1), [38]);
}

#[test]
fn blocks_and_threads_are_counted_in_three_dimensions() {
    let body = "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;
        mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1; mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y;
        mov.u32 %r9, %ctaid.z; mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y; mad.lo.u32 %r12, %r9, %r11, %r8;
        mad.lo.u32 %r12, %r12, %r10, %r7; mad.lo.u32 %r13, %r12, 60, %r6; mul.wide.u32 %d1, %r13, 4; add.s64 %d1, %d1, %d20;
        mul.lo.u32 %r14, %r3, 100; mad.lo.u32 %r14, %r2, 10, %r14; add.s32 %r14, %r14, %r1;
        mad.lo.u32 %r14, %r12, 1000, %r14; mov.u32 %r15, %laneid; mov.u32 %r16, %warpid; mad.lo.u32 %r17, %r16, 32, %r15;
        setp.ne.u32 %p1, %r17, %r6; @%p1 trap; st.global.b32 [%d1], %r14;";
    let mut kernel = Kernel::of(body).block([4, 5, 3]);
    kernel.grid = [2, 3, 2];
    let found = kernel.run(&[0; 720]).unwrap();
    let expected = (0..720u32).map(|at| {
        let (block, thread) = (at / 60, at % 60);
        block * 1000 + thread / 20 * 100 + thread / 4 % 5 * 10 + thread % 4
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}
