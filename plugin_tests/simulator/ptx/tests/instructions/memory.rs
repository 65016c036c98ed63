//! Loads, stores and atomic operations in every space.

use crate::{BASE, Kernel, STORE, table};

fn run(body: &str, words: &[u32]) -> Vec<u32> {
    Kernel::of(body).run(words).unwrap_or_else(|told| panic!("{told}\n{body}"))
}

#[test]
fn vectors_are_loaded_and_stored_element_by_element() {
    let words = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d, 0, 0, 0, 0];
    let copies = [
        "ld.global.v2.b32 {%r1, %r2}, [%d20+8]; st.global.v2.b32 [%d20+16], {%r1, %r2};",
        "ld.global.nc.v4.b16 {%h1, %h2, %h3, %h4}, [%d20+8]; st.global.v4.b16 [%d20+16], {%h1, %h2, %h3, %h4};",
        "ld.global.v4.b8 {%h1, %h2, %h3, %h4}, [%d20+8]; st.global.v4.b8 [%d20+16], {%h1, %h2, %h3, %h4};
         ld.global.L1::evict_last.b32 %r1, [%d20+12]; st.global.b32 [%d20+20], %r1;",
        "ld.relaxed.sys.global.b64 %d1, [%d20+8]; st.release.gpu.global.b64 [%d20+16], %d1;",
    ];
    for copy in copies {
        assert_eq!(run(copy, &words)[4..], [0x0c0b_0a09, 0x100f_0e0d, 0, 0], "{copy}");
    }
    let hinted = "createpolicy.fractional.L2::evict_first.b64 %d1, 1.0; ld.global.L1::evict_last.L2::cache_hint.b64 %d2, [%d20], %d1;
        st.global.L2::cache_hint.b64 [%d20+16], %d2, %d1;";
    assert_eq!(run(hinted, &words)[4..], [words[0], words[1], 0, 0]);
    let four = "ld.global.v4.b32 {%r1, %r2, _, %r4}, [%d20]; st.global.v4.b32 [%d20+16], {%r4, %r2, %r1, -1};";
    assert_eq!(run(four, &words)[4..], [words[3], words[1], words[0], u32::MAX]);
    let wide = "ld.global.v2.b64 {%d1, %d2}, [%d20]; st.global.v2.b64 [%d20+16], {%d2, %d1};";
    assert_eq!(run(wide, &words)[4..], [words[2], words[3], words[0], words[1]]);
}

#[test]
fn narrow_loads_extend_as_their_types_say() {
    table(&[
        ("ld.global.s8 %r0, [%d20+1];", [0x8000, 0, 0], 0xffff_ff80),
        ("ld.global.u8 %r0, [%d20+1];", [0x8000, 0, 0], 0x80),
        ("ld.global.s16 %d0, [%d20+2];", [0x8000_0000, 0, 0], 0xffff_ffff_ffff_8000),
        ("ld.global.b16 %h0, [%d20+2];", [0x8000_0000, 0, 0], 0x8000),
    ]);
    // A store takes the lower bits of a wider register.
    assert_eq!(run("mov.b64 %d1, 0x1234567890; st.global.b8 [%d20+1], %d1;", &[0]), [0x9000]);
}

#[test]
fn lanes_that_load_and_store_here_and_there_get_their_own() {
    // Each third word, the same word twice, and a mixture, under a predicate.
    let body = format!(
        "mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 3; and.b32 %r2, %r2, 31; mul.wide.u32 %d1, %r2, 4;
         add.s64 %d1, %d1, %d20; setp.ne.u32 %p1, %r1, 5; mov.b32 %r0, 99; @%p1 ld.global.b32 %r0, [%d1]; bar.sync 0; {STORE}"
    );
    let words = (100..132).collect::<Vec<_>>();
    let expected = (0..32).map(|lane| if lane == 5 { 99 } else { 100 + lane * 3 % 32 }).collect::<Vec<_>>();
    assert_eq!(Kernel::of(&body).threads(32).run(&words).unwrap(), expected);
    // Where all store to one place, the last one stays.
    let body = "mov.u32 %r1, %tid.x; st.global.b32 [%d20], %r1;";
    assert_eq!(Kernel::of(body).threads(32).run(&[0]).unwrap(), [31]);
}

#[test]
fn neighbouring_lanes_use_memory_at_once() {
    struct Counting(crate::Ram, Vec<(bool, u64, usize)>);
    impl ptx::Memory for Counting {
        fn load(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            self.1.push((false, address - BASE, into.len()));
            self.0.load(address, into)
        }
        fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
            self.1.push((true, address - BASE, bytes.len()));
            self.0.store(address, bytes)
        }
    }
    let body = "mov.u32 %r1, %laneid; mul.wide.u32 %d1, %r1, 16; add.s64 %d1, %d1, %d20; setp.ne.u32 %p1, %r1, 8;
        ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%d1]; ld.global.b32 %r6, [%d20+4]; @%p1 st.global.v2.b64 [%d1], {%d1, %d1};";
    let module = ptx::Module::parse(&Kernel::of(body).text).unwrap();
    let mut memory = Counting(crate::Ram(vec![0; 512]), Vec::new());
    let arguments = [BASE.to_le_bytes().to_vec()];
    let launch = ptx::Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
        arguments: &arguments,
        globals: &|_| None,
        limit: 99,
    };
    module.kernel("k").unwrap().run(&launch, &mut memory).unwrap();
    assert_eq!(memory.1, [(false, 0, 512), (false, 4, 4), (true, 0, 128), (true, 144, 368)]);
}

#[test]
fn shared_memory_belongs_to_the_block() {
    // Reversed by way of shared memory, declared in each of three ways.
    let reverse = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.b64 %d1, SPACE; cvt.u64.u32 %d2, %r2;
        add.s64 %d3, %d1, %d2; add.s32 %r3, %r1, 100; st.shared.b32 [%d3], %r3; bar.sync 0;
        sub.s32 %r4, 63, %r1; shl.b32 %r4, %r4, 2; mov.b32 %r5, SPACE; add.s32 %r5, %r5, %r4; ld.shared.b32 %r0, [%r5];";
    let expected = (0..64).map(|lane| 163 - lane).collect::<Vec<u32>>();
    let body = format!("{}\n{STORE}", reverse.replace("SPACE", "space"));
    let inside = Kernel::of(&format!(".shared .align 4 .b8 first[12]; .shared .align 16 .b8 space[256];\n{body}"));
    let outside = Kernel::with(".shared .align 4 .b8 space[256];", &body);
    let mut dynamic =
        Kernel::with(".extern .shared .align 16 .b8 space[];", &format!(".shared .b8 first[12];\n{body}"));
    dynamic.shared = 256;
    for kernel in [inside, outside, dynamic] {
        let kernel = kernel.threads(64);
        assert_eq!(kernel.run(&[0; 64]).unwrap_or_else(|told| panic!("{told}\n{}", kernel.text)), expected);
    }
    let mut short = Kernel::with(".extern .shared .align 16 .b8 space[];", &body).threads(64);
    short.shared = 252;
    let told = short.run(&[0; 64]).unwrap_err();
    assert!(
        told.contains("4 bytes at 0xfc of the block's shared memory, which has 252, are stored in lane 31"),
        "{told}"
    );
}

#[test]
fn local_memory_belongs_to_the_thread() {
    let body = ".local .align 8 .b8 depot[16]; .reg .b64 %SP, %SPL;
        mov.b64 %SPL, depot; cvta.local.u64 %SP, %SPL; mov.u32 %r1, %tid.x;
        st.local.b32 [%SPL+4], %r1; add.u64 %d1, %SPL, 4; bar.sync 0;
        ld.b32 %r2, [%SP+4]; ld.local.b32 %r3, [%d1]; add.s32 %r0, %r2, %r3;";
    assert_eq!(Kernel::each(body, 70), (0..70).map(|lane| 2 * lane).collect::<Vec<u32>>());
    let told = Kernel::of(".local .b8 depot[4]; mov.b64 %d1, depot; st.local.b32 [%d1+4], 1;").run(&[]).unwrap_err();
    assert!(told.contains("4 bytes at 0x4 of the thread's own memory, which has 4"), "{told}");
}

#[test]
fn a_generic_address_says_its_space() {
    // Half of the lanes go to shared memory, the others to global memory, by one instruction.
    let body = ".shared .align 4 .b8 space[128];
        mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; mov.b64 %d2, space; cvta.shared.u64 %d2, %d2; add.s64 %d3, %d2, %d1;
        cvta.global.u64 %d5, %d20; add.s64 %d5, %d5, %d1; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0;
        selp.b64 %d6, %d3, %d5, %p1; add.s32 %r3, %r1, 7; st.b32 [%d6], %r3; bar.warp.sync -1; ld.b32 %r0, [%d6];
        isspacep.shared %p2, %d6; @%p2 add.s32 %r0, %r0, 1000; isspacep.global %p3, %d6; @%p3 add.s32 %r0, %r0, 2000;
        cvta.to.shared.u64 %d7, %d3; @%p1 ld.shared.b32 %r5, [%d7]; @%p1 add.s32 %r0, %r0, %r5;";
    let expected = (0..32).map(|lane| if lane % 2 == 0 { 1014 + 2 * lane } else { 2007 + lane });
    assert_eq!(Kernel::each(body, 32), expected.collect::<Vec<u32>>());
}

#[test]
fn variables_of_the_module_are_where_the_launch_says() {
    let globals =
        ".visible .global .align 16 .b8 table[8] = {1, 2, 3, 0xff};\n.const .align 4 .u32 other[2] = {7, -1};";
    let module = ptx::Module::parse(&Kernel::with(globals, "").text).unwrap();
    let [table, other] = module.globals() else { panic!("{:?}", module.globals()) };
    assert_eq!(
        (table.name.as_str(), table.bytes, table.alignment, &table.initial[..]),
        ("table", 8, 16, &[1, 2, 3, 255][..])
    );
    assert_eq!((other.bytes, &other.initial[..]), (8, &[7, 0, 0, 0, 255, 255, 255, 255][..]));
    let body =
        "mov.b64 %d1, table; ld.global.b32 %r1, [%d1]; ld.const.b32 %r2, [other+4]; ld.global.b32 %r3, [table+8];
        add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r3; st.global.b32 [%d20], %r1;";
    assert_eq!(Kernel::with(globals, body).run(&[1, 20, 300]).unwrap()[0], 321);
}

#[test]
fn atomic_operations_leave_what_they_should() {
    let cases: [(&str, u32, u32, u32); 14] = [
        ("add.u32", 5, 7, 12),
        ("add.f32", 1f32.to_bits(), 2f32.to_bits(), 3f32.to_bits()),
        ("add.noftz.f16x2", 0x3c00_4000, 0x4000_3c00, 0x4200_4200),
        ("min.s32", 1, u32::MAX, u32::MAX),
        ("max.u32", 1, u32::MAX, u32::MAX),
        ("and.b32", 12, 10, 8),
        ("or.b32", 12, 10, 14),
        ("xor.b32", 12, 10, 6),
        ("exch.b32", 12, 10, 10),
        ("inc.u32", 9, 10, 10),
        ("inc.u32", 10, 10, 0),
        ("dec.u32", 0, 10, 10),
        ("dec.u32", 11, 10, 10),
        ("dec.u32", 10, 10, 9),
    ];
    for (operation, before, with, after) in cases {
        let atom = format!(
            "mov.b32 %r1, {with}; atom.relaxed.sys.global.{operation} %r2, [%d20], %r1; st.global.b32 [%d20+4], %r2;"
        );
        assert_eq!(run(&atom, &[before, 0]), [after, before], "{operation}");
        let red = format!("mov.b32 %r1, {with}; red.global.{operation} [%d20], %r1;");
        assert_eq!(run(&red, &[before]), [after], "{operation}");
    }
    let swap = "atom.global.cas.b32 %r1, [%d20], 5, 9; atom.global.cas.b32 %r2, [%d20], 5, 10; st.global.v2.b32 [%d20+8], {%r1, %r2};";
    assert_eq!(run(swap, &[5, 0, 0, 0]), [9, 0, 5, 9]);
    let vector = "mov.b32 %r1, 0f3F800000; atom.global.add.v2.f32 {%r2, %r3}, [%d20], {%r1, %r1};
        red.global.v2.f32.add [%d20+8], {%r2, %r3};";
    let [one, two, three] = [1f32, 2.0, 3.0].map(f32::to_bits);
    assert_eq!(run(vector, &[one, two, one, one]), [two, three, two, three]);
    // Every lane of two warps counts, in shared memory too.
    let count = ".shared .align 8 .u64 total; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.b64 %d2, 0;
        @%p1 st.shared.b64 [total], %d2; bar.sync 0; atom.shared.add.u64 %d1, [total], 2; bar.sync 0;
        ld.shared.b64 %d3, [total]; cvt.u32.u64 %r0, %d3;";
    assert_eq!(Kernel::each(count, 48), [96; 48]);
}

#[test]
fn a_loop_that_compares_and_swaps_ends() {
    let add = "ld.global.b32 %r1, [%d20];
        again: add.rn.f32 %r2, %r1, 0f3F800000; atom.relaxed.sys.global.cas.b32 %r3, [%d20], %r1, %r2;
        setp.ne.b32 %p1, %r3, %r1; mov.b32 %r1, %r3; @%p1 bra again;";
    assert_eq!(Kernel::of(add).threads(100).run(&[0]).unwrap(), [100f32.to_bits()]);
}

#[test]
fn matrices_are_spread_over_the_lanes() {
    // Element (row, column) of a matrix is 8 row + column, and 64 more for each matrix.
    let fill = ".shared .align 16 .b8 space[512]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.b32 %r3, space;
        add.s32 %r4, %r3, %r2; shl.b32 %r5, %r1, 3; mul.lo.u32 %r6, %r5, 0x10001; add.s32 %r6, %r6, 0x10000;
        add.s32 %r7, %r6, 0x20002; add.s32 %r8, %r7, 0x20002; add.s32 %r9, %r8, 0x20002;
        st.shared.v4.b32 [%r4], {%r6, %r7, %r8, %r9}; bar.sync 0;";
    let load = |which: &str, register: u32| {
        let words = Kernel::each(
            &format!(
                "{fill} ldmatrix.sync.aligned.m8n8.x4{which}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r4]; mov.b32 %r0, %r1{register};"
            ),
            32,
        );
        words.into_iter().map(|word| (word & 0xffff, word >> 16)).collect::<Vec<_>>()
    };
    let plain = (0..32).map(|lane| (128 + 2 * lane, 129 + 2 * lane)).collect::<Vec<_>>();
    assert_eq!(load("", 2), plain);
    let transposed = (0..32).map(|lane| (lane / 4 + lane % 4 * 16, lane / 4 + lane % 4 * 16 + 8)).collect::<Vec<_>>();
    assert_eq!(load(".trans", 0), transposed);
    // What is stored transposed and loaded so again is what it was.
    let back = format!(
        "{fill} mov.b32 %r20, %r1; stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r4], {{%r20}}; bar.sync 0;
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r0}}, [%r4];"
    );
    assert_eq!(Kernel::each(&back, 32), (0..32).collect::<Vec<u32>>());
}

#[test]
fn arguments_lie_where_their_alignment_puts_them() {
    use ptx::{Launch, Module};
    let text = ".visible .entry k(.param .u32 a, .param .u64 b, .param .align 8 .b8 c[12], .param .f32 d)
        { .reg .b32 %r<9>; .reg .b64 %d<9>; ld.param.b32 %r1, [a]; ld.param.b64 %d1, [b]; ld.param.v2.b32 {%r2, %r3}, [c];
          mov.b64 %d2, c; ld.param.u32 %r4, [%d2+8]; cvta.param.u64 %d3, %d2; ld.b32 %r5, [%d3+4]; ld.param.f32 %r6, [d];
          st.global.v4.b32 [%d1], {%r1, %r2, %r3, %r4}; st.global.v2.b32 [%d1+16], {%r5, %r6}; }";
    let module = Module::parse(text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let sizes = kernel.parameters().iter().map(|parameter| (parameter.bytes, parameter.alignment)).collect::<Vec<_>>();
    assert_eq!(sizes, [(4, 4), (8, 8), (12, 8), (4, 4)]);
    let mut ram = crate::Ram(vec![0; 24]);
    let arguments =
        [vec![1, 0, 0, 0], BASE.to_le_bytes().to_vec(), vec![2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0], vec![0, 0, 128, 63]];
    let launch =
        Launch { grid: [1; 3], block: [1; 3], dynamic_shared: 0, arguments: &arguments, globals: &|_| None, limit: 99 };
    kernel.run(&launch, &mut ram).unwrap();
    assert_eq!(ram.0, [[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0], [3, 0, 0, 0], [0, 0, 128, 63]].concat());
}
