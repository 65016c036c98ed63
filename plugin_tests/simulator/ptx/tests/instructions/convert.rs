//! `cvt`: rounding, saturation, widths.

use crate::table;

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn whole_numbers_are_widened_and_cut() {
    table(&[
        ("cvt.u64.u32 %d0, %r1;", [u64::MAX, 0, 0], 0xffff_ffff),
        ("cvt.s64.s32 %d0, %r1;", [0x8000_0000, 0, 0], 0xffff_ffff_8000_0000),
        ("cvt.u16.u32 %h0, %r1;", [0x1_2345, 0, 0], 0x2345),
        ("cvt.s32.s8 %r0, %r1;", [0x80, 0, 0], 0xffff_ff80),
        ("cvt.u32.u8 %r0, %r1;", [0x1ff, 0, 0], 0xff),
        ("cvt.s8.s32 %r0, %r1;", [0x80, 0, 0], 0xffff_ff80),
        ("cvt.sat.s8.s32 %r0, %r1;", [1000, 0, 0], 127),
        ("cvt.sat.u8.s32 %r0, %r1;", [0xffff_ffff, 0, 0], 0),
        ("cvt.sat.u32.s64 %r0, %d1;", [1 << 40, 0, 0], 0xffff_ffff),
    ]);
}

#[test]
fn floating_point_becomes_whole_within_limits() {
    table(&[
        ("cvt.rni.s32.f32 %r0, %r1;", [bits(2.5), 0, 0], 2),
        ("cvt.rni.s32.f32 %r0, %r1;", [bits(3.5), 0, 0], 4),
        ("cvt.rzi.s32.f32 %r0, %r1;", [bits(-2.9), 0, 0], 0xffff_fffe),
        ("cvt.rmi.s32.f32 %r0, %r1;", [bits(-2.1), 0, 0], 0xffff_fffd),
        ("cvt.rpi.s32.f32 %r0, %r1;", [bits(2.1), 0, 0], 3),
        ("cvt.rzi.s32.f32 %r0, %r1;", [bits(3e9), 0, 0], 0x7fff_ffff),
        ("cvt.rzi.u32.f32 %r0, %r1;", [bits(-3.0), 0, 0], 0),
        ("cvt.rzi.u32.f32 %r0, %r1;", [bits(3e9), 0, 0], 3_000_000_000),
        ("cvt.rzi.s32.f32 %r0, %r1;", [bits(f32::NAN), 0, 0], 0),
        ("cvt.rzi.s64.f32 %d0, %r1;", [bits(f32::NAN), 0, 0], 1 << 63),
        ("cvt.rzi.s64.f64 %d0, %d1;", [1e300f64.to_bits(), 0, 0], i64::MAX as u64),
        ("cvt.rzi.u64.f64 %d0, %d1;", [1.5e19f64.to_bits(), 0, 0], 15_000_000_000_000_000_000),
        ("cvt.rzi.s16.f32 %h0, %r1;", [bits(-7.5), 0, 0], 0xfff9),
        ("cvt.rzi.s16.f32 %h0, %r1;", [bits(1e6), 0, 0], 0x7fff),
        ("cvt.rzi.u8.f32 %h0, %r1;", [bits(300.0), 0, 0], 255),
        // A register wider than the type takes the sign along.
        ("cvt.rzi.s8.f32 %r0, %r1;", [bits(-1.0), 0, 0], 0xffff_ffff),
        ("cvt.rzi.s32.f16 %r0, %h1;", [0xc500, 0, 0], 0xffff_fffb),
        ("cvt.rzi.s32.bf16 %r0, %h1;", [0x40b0, 0, 0], 5),
        ("cvt.rni.f32.f32 %r0, %r1;", [bits(2.5), 0, 0], bits(2.0)),
        ("cvt.rmi.f64.f64 %d0, %d1;", [(-0.5f64).to_bits(), 0, 0], (-1f64).to_bits()),
    ]);
}

#[test]
fn whole_numbers_become_floating_point_rounded_once() {
    let (above, below) = ((1u64 << 24) + 1, ((1u64 << 24) + 1).wrapping_neg());
    table(&[
        ("cvt.rn.f32.s32 %r0, %r1;", [0xffff_ffff, 0, 0], bits(-1.0)),
        ("cvt.rn.f32.u32 %r0, %r1;", [above, 0, 0], bits(16_777_216.0)),
        ("cvt.rp.f32.u32 %r0, %r1;", [above, 0, 0], bits(16_777_218.0)),
        ("cvt.rz.f32.s32 %r0, %r1;", [below, 0, 0], bits(-16_777_216.0)),
        ("cvt.rm.f32.s32 %r0, %r1;", [below, 0, 0], bits(-16_777_218.0)),
        // By way of a double this would be rounded twice, to the tie below.
        ("cvt.rn.f32.u64 %r0, %d1;", [0x8000_0080_0000_0001, 0, 0], 0x5f00_0001),
        ("cvt.rn.f64.s64 %d0, %d1;", [u64::MAX, 0, 0], (-1f64).to_bits()),
        ("cvt.rz.f64.u64 %d0, %d1;", [u64::MAX, 0, 0], 0x43ef_ffff_ffff_ffff),
        ("cvt.rn.f16.u32 %h0, %r1;", [70000, 0, 0], 0x7c00),
        ("cvt.rz.f16.u32 %h0, %r1;", [70000, 0, 0], 0x7bff),
        ("cvt.rn.bf16.s32 %h0, %r1;", [257, 0, 0], 0x4380),
        ("cvt.rn.f32.u8 %r0, %r1;", [0x1ff, 0, 0], bits(255.0)),
    ]);
}

#[test]
fn formats_become_each_other() {
    table(&[
        ("cvt.f32.f16 %r0, %h1;", [0x3555, 0, 0], 0x3eaa_a000),
        ("cvt.f32.f16 %r0, %h1;", [0x0001, 0, 0], 0x3380_0000),
        ("cvt.f32.f16 %r0, %h1;", [0xfc00, 0, 0], bits(f32::NEG_INFINITY)),
        ("cvt.f32.bf16 %r0, %h1;", [0x3f80, 0, 0], bits(1.0)),
        ("cvt.rn.f16.f32 %h0, %r1;", [0x3eaa_aaab, 0, 0], 0x3555),
        ("cvt.rn.f16.f32 %h0, %r1;", [0x3300_0000, 0, 0], 0),
        ("cvt.rn.f16.f32 %h0, %r1;", [0x3300_0001, 0, 0], 1),
        ("cvt.rz.f16.f32 %h0, %r1;", [bits(1e6), 0, 0], 0x7bff),
        ("cvt.rn.bf16.f32 %h0, %r1;", [0x3f80_8000, 0, 0], 0x3f80),
        ("cvt.rn.bf16.f32 %h0, %r1;", [0x3f81_8000, 0, 0], 0x3f82),
        ("cvt.rn.bf16.f32 %h0, %r1;", [bits(f32::NAN), 0, 0], 0x7fff),
        ("cvt.rn.relu.bf16.f32 %h0, %r1;", [bits(-2.0), 0, 0], 0),
        ("cvt.rn.f32.f64 %r0, %d1;", [0.1f64.to_bits(), 0, 0], bits(0.1)),
        ("cvt.rz.f32.f64 %r0, %d1;", [0.1f64.to_bits(), 0, 0], bits(0.1) - 1),
        ("cvt.f64.f32 %d0, %r1;", [bits(0.5), 0, 0], 0.5f64.to_bits()),
        ("cvt.sat.f32.f32 %r0, %r1;", [bits(1.5), 0, 0], bits(1.0)),
        ("cvt.sat.f32.f32 %r0, %r1;", [bits(f32::NAN), 0, 0], 0),
        ("cvt.rn.f16x2.f32 %r0, %r1, %r2;", [bits(1.0), bits(2.0), 0], 0x3c00_4000),
        ("cvt.rn.bf16x2.f32 %r0, %r1, %r2;", [bits(1.0), bits(2.0), 0], 0x3f80_4000),
    ]);
}
