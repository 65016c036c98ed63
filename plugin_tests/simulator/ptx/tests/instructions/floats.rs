//! Floating point: rounding, flushing, limits, what is no number.

use crate::{one, table};

const NAN: u64 = 0x7fff_ffff;
const INFINITY: u64 = 0x7f80_0000;
const LARGEST: u64 = 0x7f7f_ffff;
const SIGN: u64 = 0x8000_0000;

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn single_precision_is_rounded_as_asked() {
    let tiny = bits(1e-20);
    let one = bits(1.0);
    table(&[
        ("add.rn.f32 %r0, %r1, %r2;", [one, tiny, 0], one),
        ("add.rp.f32 %r0, %r1, %r2;", [one, tiny, 0], one + 1),
        ("add.rz.f32 %r0, %r1, %r2;", [one, tiny, 0], one),
        ("add.rm.f32 %r0, %r1, %r2;", [one, tiny | SIGN, 0], one - 1),
        ("add.rz.f32 %r0, %r1, %r2;", [one | SIGN, tiny, 0], SIGN | (one - 1)),
        ("sub.rz.f32 %r0, %r1, %r2;", [one, tiny, 0], one - 1),
        ("sub.rn.f32 %r0, %r1, %r2;", [one, one, 0], 0),
        ("sub.rm.f32 %r0, %r1, %r2;", [one, one, 0], SIGN),
        ("mul.rn.f32 %r0, %r1, %r2;", [one + 1, one + 1, 0], one + 2),
        ("mul.rp.f32 %r0, %r1, %r2;", [one + 1, one + 1, 0], one + 3),
        ("mul.rz.f32 %r0, %r1, %r2;", [LARGEST, bits(2.0), 0], LARGEST),
        ("mul.rn.f32 %r0, %r1, %r2;", [LARGEST, bits(2.0), 0], INFINITY),
        ("mul.rp.f32 %r0, %r1, %r2;", [LARGEST | SIGN, bits(2.0), 0], LARGEST | SIGN),
        ("mul.rm.f32 %r0, %r1, %r2;", [LARGEST | SIGN, bits(2.0), 0], INFINITY | SIGN),
        ("div.rn.f32 %r0, %r1, %r2;", [one, bits(3.0), 0], 0x3eaa_aaab),
        ("div.rz.f32 %r0, %r1, %r2;", [one, bits(3.0), 0], 0x3eaa_aaaa),
        ("div.rp.f32 %r0, %r1, %r2;", [one | SIGN, bits(3.0), 0], 0x3eaa_aaaa | SIGN),
        ("div.full.f32 %r0, %r1, %r2;", [bits(7.0), bits(2.0), 0], bits(3.5)),
        ("rcp.rn.f32 %r0, %r1;", [bits(3.0), 0, 0], 0x3eaa_aaab),
        ("sqrt.rn.f32 %r0, %r1;", [bits(2.0), 0, 0], 0x3fb5_04f3),
        ("sqrt.rp.f32 %r0, %r1;", [bits(2.0), 0, 0], 0x3fb5_04f4),
        // The product is not rounded before the sum.
        ("fma.rn.f32 %r0, %r1, %r1, %r3;", [one + 1, 0, (one + 2) | SIGN], 0x2880_0000),
        ("fma.rm.f32 %r0, %r1, %r2, %r3;", [one, one, tiny | SIGN], one - 1),
        ("fma.rp.f32 %r0, %r1, %r2, %r3;", [one, one, tiny], one + 1),
        ("fma.rz.f32 %r0, %r1, %r2, %r3;", [one, one, tiny | SIGN], one - 1),
        // Subnormal results, which are rounded once.
        ("mul.rp.f32 %r0, %r1, %r2;", [1, tiny, 0], 1),
        ("mul.rn.f32 %r0, %r1, %r2;", [3, bits(0.5), 0], 2),
    ]);
}

#[test]
fn subnormal_numbers_are_kept_or_flushed() {
    table(&[
        ("add.rn.f32 %r0, %r1, %r2;", [1, 1, 0], 2),
        ("add.rn.ftz.f32 %r0, %r1, %r2;", [1, 1, 0], 0),
        ("mul.rn.ftz.f32 %r0, %r1, %r2;", [0x0080_0000 | SIGN, bits(0.5), 0], SIGN),
        ("abs.ftz.f32 %r0, %r1;", [SIGN | 1, 0, 0], 0),
        ("setp.gt.f32 %p0, %r1, %r2;", [1, 0, 0], 1),
        ("setp.gt.ftz.f32 %p0, %r1, %r2;", [1, 0, 0], 0),
        ("add.rn.f16 %h0, %h1, %h2;", [1, 1, 0], 2),
        ("cvt.ftz.f32.f32 %r0, %r1;", [1, 0, 0], 0),
    ]);
}

#[test]
fn what_is_no_number_stays_none_unless_it_is_asked_otherwise() {
    let quiet = 0x7fc0_1234;
    table(&[
        ("add.rn.f32 %r0, %r1, %r2;", [quiet, bits(1.0), 0], NAN),
        ("mul.rn.f32 %r0, %r1, %r2;", [INFINITY, 0, 0], NAN),
        ("max.f32 %r0, %r1, %r2;", [quiet, bits(1.0), 0], bits(1.0)),
        ("max.NaN.f32 %r0, %r1, %r2;", [quiet, bits(1.0), 0], NAN),
        ("min.NaN.f32 %r0, %r1, %r2;", [bits(1.0), quiet, 0], NAN),
        ("min.f32 %r0, %r1, %r2;", [bits(1.0), bits(-2.0), 0], bits(-2.0)),
        ("max.f32 %r0, %r1, %r2;", [SIGN, 0, 0], 0),
        ("min.f32 %r0, %r1, %r2;", [0, SIGN, 0], SIGN),
        ("add.sat.f32 %r0, %r1, %r2;", [quiet, 0, 0], 0),
        ("add.sat.f32 %r0, %r1, %r2;", [bits(1.0), bits(1.0), 0], bits(1.0)),
        ("add.sat.f32 %r0, %r1, %r2;", [bits(-1.0), 0, 0], 0),
        ("neg.f32 %r0, %r1;", [bits(2.0), 0, 0], bits(-2.0)),
        ("abs.f64 %d0, %d1;", [(-2f64).to_bits(), 0, 0], 2f64.to_bits()),
        ("copysign.f32 %r0, %r1, %r2;", [SIGN, bits(3.0), 0], bits(-3.0)),
        ("testp.infinite.f32 %p0, %r1;", [INFINITY | SIGN, 0, 0], 1),
        ("testp.notanumber.f32 %p0, %r1;", [INFINITY, 0, 0], 0),
        ("testp.subnormal.f32 %p0, %r1;", [1, 0, 0], 1),
    ]);
}

#[test]
fn approximations_are_near_and_right_at_the_edges() {
    let cases = [
        ("sqrt.approx.f32", 2.0, 2f32.sqrt()),
        ("rsqrt.approx.f32", 4.0, 0.5),
        ("rcp.approx.f32", 8.0, 0.125),
        ("ex2.approx.ftz.f32", 3.0, 8.0),
        ("ex2.approx.f32", f32::NEG_INFINITY, 0.0),
        ("lg2.approx.f32", 8.0, 3.0),
        ("lg2.approx.f32", 0.0, f32::NEG_INFINITY),
        ("sin.approx.f32", 0.0, 0.0),
        ("cos.approx.f32", 0.0, 1.0),
        ("tanh.approx.f32", f32::INFINITY, 1.0),
    ];
    for (name, operand, result) in cases {
        assert_eq!(one(&format!("{name} %r0, %r1;"), [bits(operand), 0, 0]), bits(result), "{name}");
    }
}

#[test]
fn half_and_bfloat16_are_rounded_once() {
    table(&[
        // 65504 is the largest; half a unit more is a tie.
        ("add.rn.f16 %h0, %h1, %h2;", [0x7bff, 0x4c00, 0], 0x7c00),
        ("add.rn.f16 %h0, %h1, %h2;", [0x7bff, 0x4bff, 0], 0x7bff),
        ("mul.rn.f16 %h0, %h1, %h2;", [0x3c01, 0x3c01, 0], 0x3c02),
        ("fma.rn.f16 %h0, %h1, %h2, %h3;", [0x3c01, 0x3c01, 0xbc02], 0x0010),
        ("add.rn.bf16 %h0, %h1, %h2;", [0x3f80, 0x3b80, 0], 0x3f80),
        ("add.rn.bf16 %h0, %h1, %h2;", [0x3f81, 0x3b80, 0], 0x3f82),
        ("mul.rn.bf16 %h0, %h1, %h2;", [0x4000, 0xc040, 0], 0xc0c0),
        ("fma.rn.bf16 %h0, %h1, %h2, %h3;", [0x3f81, 0x3f81, 0xbf82], 0x3880),
        ("fma.rn.relu.f16 %h0, %h1, %h2, %h3;", [0x3c00, 0xbc00, 0], 0),
        ("add.rn.f16x2 %r0, %r1, %r2;", [0x3c00_4000, 0x4000_3c00, 0], 0x4200_4200),
        ("fma.rn.bf16x2 %r0, %r1, %r2, %r3;", [0x3f80_4000, 0x4000_4000, 0x3f80_0000], 0x4040_4080),
        ("neg.bf16x2 %r0, %r1;", [0x3f80_bf80, 0, 0], 0xbf80_3f80),
        ("max.NaN.bf16 %h0, %h1, %h2;", [0x7fc1, 0x3f80, 0], 0x7fff),
        ("max.f16x2 %r0, %r1, %r2;", [0x3c00_7e00, 0x4000_3c00, 0], 0x4000_3c00),
        ("tanh.approx.bf16 %h0, %h1;", [0x7f80, 0, 0], 0x3f80),
        ("setp.lt.bf16 %p0, %h1, %h2;", [0xbf80, 0x3f80, 0], 1),
    ]);
}

#[test]
fn double_precision_is_rounded_as_asked() {
    let (one, tiny) = (1f64.to_bits(), 1e-300f64.to_bits());
    table(&[
        ("add.rn.f64 %d0, %d1, %d2;", [one, tiny, 0], one),
        ("add.rp.f64 %d0, %d1, %d2;", [one, tiny, 0], one + 1),
        ("add.rz.f64 %d0, %d1, %d2;", [one, tiny | 1 << 63, 0], one - 1),
        ("mul.rm.f64 %d0, %d1, %d1;", [one + 1, 0, 0], one + 2),
        ("mul.rp.f64 %d0, %d1, %d1;", [one + 1, 0, 0], one + 3),
        ("div.rn.f64 %d0, %d1, %d2;", [one, 3f64.to_bits(), 0], (1.0 / 3.0f64).to_bits()),
        ("fma.rn.f64 %d0, %d1, %d1, %d3;", [one + 1, 0, (one + 2) | 1 << 63], 0x3970_0000_0000_0000),
        ("sqrt.rn.f64 %d0, %d1;", [2f64.to_bits(), 0, 0], 2f64.sqrt().to_bits()),
        ("max.f64 %d0, %d1, %d2;", [one, f64::NAN.to_bits(), 0], one),
    ]);
}
