//! Whole numbers and bits.

use crate::{Kernel, one, table};

const MINUS: u64 = u32::MAX as u64;

#[test]
fn sums_products_and_quotients_wrap_as_their_types_do() {
    table(&[
        ("add.s32 %r0, %r1, %r2;", [MINUS, 2, 0], 1),
        ("add.u16 %h0, %h1, %h2;", [0xffff, 2, 0], 1),
        ("add.s64 %d0, %d1, -3;", [1, 0, 0], 2u64.wrapping_neg()),
        ("add.sat.s32 %r0, %r1, %r2;", [0x7fff_ffff, 1, 0], 0x7fff_ffff),
        ("sub.sat.s32 %r0, %r1, %r2;", [0x8000_0000, 1, 0], 0x8000_0000),
        ("sub.s16 %h0, %h1, %h2;", [0, 1, 0], 0xffff),
        ("mul.lo.s32 %r0, %r1, %r2;", [0x1_0001, 0x1_0001, 0], 0x2_0001),
        ("mul.hi.u32 %r0, %r1, %r2;", [MINUS, MINUS, 0], 0xffff_fffe),
        ("mul.hi.s32 %r0, %r1, %r2;", [MINUS, MINUS, 0], 0),
        ("mul.hi.u16 %h0, %h1, -13107;", [1000, 0, 0], 800),
        ("mul.hi.u64 %d0, %d1, %d2;", [u64::MAX, u64::MAX, 0], u64::MAX - 1),
        ("mul.hi.s64 %d0, %d1, %d2;", [u64::MAX, 5, 0], u64::MAX),
        ("mul.wide.u32 %d0, %r1, %r2;", [MINUS, 2, 0], 0x1_ffff_fffe),
        ("mul.wide.s32 %d0, %r1, %r2;", [MINUS, 2, 0], 2u64.wrapping_neg()),
        ("mul.wide.u16 %r0, %h1, %h2;", [0xffff, 2, 0], 0x1_fffe),
        ("mul24.lo.u32 %r0, %r1, %r2;", [0xff00_0003, 5, 0], 15),
        ("mad.lo.s32 %r0, %r1, 20, %r3;", [2, 0, 7], 47),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", [MINUS, 16, 1], 16),
        ("mad.wide.u32 %d0, %r1, %r2, %d3;", [MINUS, 2, 1 << 40], (1 << 40) + 0x1_ffff_fffe),
        ("div.s32 %r0, %r1, %r2;", [7u64.wrapping_neg() & MINUS, 2, 0], 3u64.wrapping_neg() & MINUS),
        ("div.u32 %r0, %r1, %r2;", [MINUS, 2, 0], 0x7fff_ffff),
        ("div.s32 %r0, %r1, %r2;", [0x8000_0000, MINUS, 0], 0x8000_0000),
        ("div.u32 %r0, %r1, %r2;", [7, 0, 0], MINUS),
        ("rem.s32 %r0, %r1, %r2;", [7u64.wrapping_neg() & MINUS, 2, 0], MINUS),
        ("rem.u64 %d0, %d1, %d2;", [7, 4, 0], 3),
        ("min.s32 %r0, %r1, %r2;", [MINUS, 1, 0], MINUS),
        ("min.u32 %r0, %r1, %r2;", [MINUS, 1, 0], 1),
        ("max.s16 %h0, %h1, %h2;", [0xffff, 1, 0], 1),
        ("abs.s32 %r0, %r1;", [5u64.wrapping_neg(), 0, 0], 5),
        ("neg.s64 %d0, %d1;", [5, 0, 0], 5u64.wrapping_neg()),
        ("sad.u32 %r0, %r1, %r2, %r3;", [3, 10, 100], 107),
    ]);
}

#[test]
fn carries_go_from_one_instruction_to_the_next() {
    let add = "add.cc.u32 %r10, %r1, %r2; addc.cc.u32 %r11, %r3, 0; addc.u32 %r0, 0, 0;";
    table(&[
        (add, [MINUS, 1, MINUS], 1),
        (add, [MINUS, 1, 5], 0),
        (&add.replace("addc.cc", "add"), [MINUS, 1, MINUS], 1),
        ("sub.cc.u32 %r10, %r1, %r2; subc.u32 %r0, %r3, 0;", [0, 1, 5], 4),
        ("sub.cc.u64 %d10, %d1, %d2; subc.u64 %d0, %d3, 0;", [1, 1, 5], 5),
        // 64 bits of a product by 32 at a time.
        ("mad.lo.cc.u32 %r10, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", [MINUS, MINUS, MINUS], MINUS),
        ("mad.lo.cc.u32 %r10, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", [2, 3, 4], 0),
    ]);
    // A lane that is switched off keeps its carry.
    let guarded = "setp.ne.u32 %p1, %r3, 0; add.cc.u32 %r10, %r1, %r1; @%p1 add.cc.u32 %r10, 0, 0; addc.u32 %r0, 0, 0;";
    assert_eq!([one(guarded, [MINUS, 0, 0]), one(guarded, [MINUS, 0, 1])], [1, 0]);
    let lanes = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 2; add.cc.u32 %r10, %r1, -1; @%p1 add.cc.u32 %r10, 0, 0;
        addc.u32 %r0, 0, 0;";
    assert_eq!(Kernel::each(lanes, 4), [0, 0, 1, 1]);
}

#[test]
fn bits_are_moved_and_counted() {
    table(&[
        ("and.b32 %r0, %r1, %r2;", [0b1100, 0b1010, 0], 0b1000),
        ("or.b64 %d0, %d1, %d2;", [1 << 40, 2, 0], (1 << 40) + 2),
        ("xor.b16 %h0, %h1, -1;", [0x00ff, 0, 0], 0xff00),
        ("not.b32 %r0, %r1;", [1, 0, 0], MINUS - 1),
        ("cnot.b32 %r0, %r1;", [0, 0, 0], 1),
        ("shl.b32 %r0, %r1, %r2;", [3, 31, 0], 0x8000_0000),
        ("shl.b32 %r0, %r1, %r2;", [3, 32, 0], 0),
        ("shr.u32 %r0, %r1, %r2;", [0x8000_0000, 31, 0], 1),
        ("shr.s32 %r0, %r1, %r2;", [0x8000_0000, 40, 0], MINUS),
        ("shr.s16 %h0, %h1, 4;", [0x8000, 0, 0], 0xf800),
        ("shr.u64 %d0, %d1, 64;", [u64::MAX, 0, 0], 0),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [0x8000_0001, 0x7000_0000, 36], 0x0000_0008),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", [0x8000_0010, 0x7000_0003, 4], 0x3800_0001),
        ("shf.l.clamp.b32 %r0, %r1, %r2, %r3;", [5, 6, 36], 5),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [5, 6, 36], 6),
        ("popc.b64 %r0, %d1;", [u64::MAX, 0, 0], 64),
        ("clz.b32 %r0, %r1;", [1, 0, 0], 31),
        ("clz.b32 %r0, %r1;", [0, 0, 0], 32),
        ("brev.b32 %r0, %r1;", [1, 0, 0], 0x8000_0000),
        ("bfind.u32 %r0, %r1;", [0x80, 0, 0], 7),
        ("bfind.s32 %r0, %r1;", [0xffff_ff7f, 0, 0], 7),
        ("bfind.u32 %r0, %r1;", [0, 0, 0], MINUS),
        ("bfind.shiftamt.u32 %r0, %r1;", [0x80, 0, 0], 24),
        ("bfe.u32 %r0, %r1, 4, 8;", [0xabcd, 0, 0], 0xbc),
        ("bfe.s32 %r0, %r1, 4, 8;", [0xabcd, 0, 0], 0xffff_ffbc),
        ("bfi.b32 %r0, %r1, %r2, 8, 8;", [0xab, 0x1111_1111, 0], 0x1111_ab11),
        ("prmt.b32 %r0, %r1, %r2, 0x5410;", [0x3322_1100, 0x7766_5544, 0], 0x5544_1100),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [0xf0, 0xcc, 0xaa], 0x96),
    ]);
}

#[test]
fn registers_are_packed_and_unpacked() {
    table(&[
        ("mov.b64 %d0, {%r1, %r2};", [1, 2, 0], (2 << 32) + 1),
        ("mov.b64 {%r10, %r0}, %d1;", [7 << 32, 0, 0], 7),
        ("mov.b32 %r0, {%h1, %h2};", [0xaaaa, 0xbbbb, 0], 0xbbbb_aaaa),
        ("mov.b64 %d0, {%h1, %h2, %h3, %h1};", [1, 2, 3], 0x0001_0003_0002_0001),
        ("mov.b64 {%h10, %h11, %h0, %h12}, %d1;", [0x4444_3333_2222_1111, 0, 0], 0x3333),
        // The result is a source.
        (
            "mov.b32 %r0, %r2; mov.b64 {%r0, %r10}, %d1; mov.b64 %d1, {%r0, %r0}; mov.b64 {%r10, %r0}, %d1;",
            [9, 0, 0],
            9,
        ),
        ("mov.b64 %d0, 0d3FF0000000000000;", [0; 3], 0x3ff0_0000_0000_0000),
        ("mov.b32 %r0, -2147483648;", [0; 3], 0x8000_0000),
    ]);
}
