//! Comparisons and choices.

use crate::{one, table};

#[test]
fn comparisons_know_what_is_no_number() {
    let numbers = [1f32, 2.0, f32::NAN].map(|value| u64::from(value.to_bits()));
    let [a, b, nan] = numbers;
    // Of less, equal, greater, unordered.
    let cases = [
        ("eq", [0, 1, 0, 0]),
        ("ne", [1, 0, 1, 0]),
        ("lt", [1, 0, 0, 0]),
        ("le", [1, 1, 0, 0]),
        ("gt", [0, 0, 1, 0]),
        ("ge", [0, 1, 1, 0]),
        ("equ", [0, 1, 0, 1]),
        ("neu", [1, 0, 1, 1]),
        ("ltu", [1, 0, 0, 1]),
        ("leu", [1, 1, 0, 1]),
        ("gtu", [0, 0, 1, 1]),
        ("geu", [0, 1, 1, 1]),
        ("num", [1, 1, 1, 0]),
        ("nan", [0, 0, 0, 1]),
    ];
    for (name, expected) in cases {
        let text = format!("setp.{name}.f32 %p0, %r1, %r2;");
        let found = [[a, b, 0], [a, a, 0], [b, a, 0], [a, nan, 0]].map(|operands| one(&text, operands));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn whole_numbers_are_compared_with_and_without_sign() {
    table(&[
        ("setp.lt.s32 %p0, %r1, %r2;", [0xffff_ffff, 1, 0], 1),
        ("setp.lt.u32 %p0, %r1, %r2;", [0xffff_ffff, 1, 0], 0),
        ("setp.hi.u32 %p0, %r1, %r2;", [0xffff_ffff, 1, 0], 1),
        ("setp.ls.u32 %p0, %r1, %r2;", [1, 1, 0], 1),
        ("setp.ge.s64 %p0, %d1, -1;", [u64::MAX, 0, 0], 1),
        ("setp.ne.b16 %p0, %h1, 0;", [0x10000, 0, 0], 0),
        ("setp.gt.s16 %p0, %h1, -2;", [0xffff, 0, 0], 1),
    ]);
}

#[test]
fn results_are_combined_and_written_to_pairs() {
    let with = |logic: &str, first: u64, second: u64| {
        let text = format!("setp.ne.u32 %p1, %r2, 0; setp.ne.{logic}.u32 %p0, %r1, 0, %p1;");
        one(&text, [first, second, 0])
    };
    for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!([with("and", a, b), with("or", a, b), with("xor", a, b)], [a & b, a | b, a ^ b]);
    }
    table(&[
        ("setp.ne.u32 %p1|%p0, %r1, 0;", [0, 0, 0], 1),
        ("setp.ne.u32 %p1, %r2, 0; setp.eq.and.u32 %p2|%p0, %r1, 0, !%p1;", [1, 0, 0], 1),
        ("setp.ne.u32 %p1, %r1, 0; not.pred %p2, %p1; xor.pred %p0, %p2, %p1;", [1, 0, 0], 1),
        ("setp.ne.u32 %p1, %r1, 0; mov.pred %p0, %p1;", [1, 0, 0], 1),
        ("mov.pred %p0, -1;", [0; 3], 1),
        ("mov.pred %p0, 0;", [0; 3], 0),
    ]);
}

#[test]
fn values_are_chosen() {
    table(&[
        ("setp.eq.u32 %p1, %r1, 0; selp.b32 %r0, %r2, %r3, %p1;", [0, 7, 8], 7),
        ("setp.eq.u32 %p1, %r1, 0; selp.f32 %r0, 0f3F800000, 0f00000000, %p1;", [1, 0, 0], 0),
        ("slct.b32.s32 %r0, %r1, %r2, %r3;", [7, 8, 0xffff_ffff], 8),
        ("slct.b32.f32 %r0, %r1, %r2, %r3;", [7, 8, 0x8000_0000], 7),
        ("slct.b32.f32 %r0, %r1, %r2, %r3;", [7, 8, 0x7fc0_0000], 8),
        ("set.lt.u32.s32 %r0, %r1, %r2;", [0xffff_ffff, 1, 0], 0xffff_ffff),
        ("set.lt.f32.u32 %r0, %r1, %r2;", [1, 2, 0], 0x3f80_0000),
        ("set.gt.u32.f32 %r0, %r1, %r2;", [0x3f80_0000, 0x7fc0_0000, 0], 0),
    ]);
}
