//! What is not known, not there or not allowed is told with its place.

use ptx::{Launch, Module};

use crate::{BASE, Kernel, Ram};

fn told(body: &str) -> String {
    Kernel::of(body).run(&[0; 4]).expect_err(body)
}

#[test]
fn translations_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Module>();
}

#[test]
fn a_kernel_that_is_not_known_leaves_the_others_alone() {
    let good = Kernel::of("st.global.b32 [%d20], 5;");
    let text = format!(
        "{}\n.visible .entry other()\n{{\nwgmma.fence.sync.aligned;\n}}\n.func helper() {{ call x; }}\n",
        good.text
    );
    let module = Module::parse(&text).unwrap();
    let told = module.kernel("other").unwrap().unknown().unwrap().to_owned();
    let line = text.lines().position(|line| line.starts_with("wgmma")).unwrap() + 1;
    assert_eq!(told, format!("ptx: line {line}: \"wgmma.fence.sync.aligned\" is not known to this interpreter"));
    let launch =
        Launch { grid: [1; 3], block: [1; 3], dynamic_shared: 0, arguments: &[], globals: &|_| None, limit: 9 };
    assert_eq!(module.kernel("other").unwrap().run(&launch, &mut Ram(Vec::new())), Err(told));
    assert!(module.kernel("nobody").is_none());
    assert_eq!(Kernel { text, ..good }.run(&[0]), Ok(vec![5]));
}

#[test]
fn what_a_body_has_wrong_is_told_with_its_line() {
    let cases = [
        ("call.uni (%r1), helper, (%r2);", "\"call.uni\" is not known"),
        ("add.rn.zz.f32 %r1, %r2, %r3;", "\"add.rn.zz.f32\" is not known to this interpreter: its \".zz\""),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r1}, {%r1}, {%r1};", "is not known"),
        ("fma.rz.f64 %d1, %d1, %d1, %d1;", "in double precision it rounds to the nearest only"),
        ("cvt.rn.f8x2.f32 %h1, %r1, %r2;", "\"cvt.rn.f8x2.f32\""),
        ("add.s32 %r1, %x, 1;", "names \"%x\", which is no register or variable here"),
        ("add.s32 %r99, %r1, 1;", "writes \"%r99\", which is no register here"),
        ("@%r1 bra end; end: ", "names \"%r1\", which is no predicate here"),
        ("add.s32 %r1, %p1, 1;", "names \"%p1\", which is no register"),
        ("bra nowhere;", "nothing is called \"nowhere\" here"),
        ("{ inner: } bra inner;", "nothing is called \"inner\" here"),
        ("add.s32 %r1, %r2;", "has 2 operands in place of 3"),
        ("add.f32 %r1, %r2, 1;", "has a whole number where one of floating point is needed"),
        ("ld.global.v2.b32 {%r1, %r2, %r3, %r4}, [%d20];", "has 4 elements in place of 2"),
        ("ld.global.v8.b64 {%d1, %d2, %d3, %d4, %d5, %d6, %d7, %d8}, [%d20];", "is not known"),
        (".local .b8 large[99999999];", "\"large\" of 99999999 bytes makes the variables larger than 524288"),
        ("add.s32 %r1, %r2 %r3;", "\",\" is needed before \"%r3\""),
    ];
    for (body, part) in cases {
        let told = told(body);
        assert!(told.starts_with("ptx: line 9: ") && told.contains(part), "{body}: {told}");
    }
}

#[test]
fn what_a_module_has_wrong_is_told_with_its_line() {
    let cases = [
        ("\n.texref x;", "ptx: line 2: \".texref\" is not known to this interpreter"),
        (".visible .entry k(.param .texref a) {}", "\".texref\" of a parameter is not known"),
        (".entry k() { ret;", "\"}\" is missing"),
        (".global .align 3 .b8 x[4];", "an alignment of 3 is no power of two"),
        (".global .b8 x[2] = {1, 2, 3};", "\"x\" has 2 bytes, and 3 to begin with"),
        (".global .b8 x[4] = {y};", "\"y\" is no number to begin with"),
        (".entry k(.param .b8 a[99999]) {}", "the parameter \"a\" has 99999 bytes, and 32764 are allowed"),
        ("/* never ends", "a comment begins and does not end"),
        (".global .b8 x[99999999999999];", "an array of more than 2^40 elements"),
    ];
    for (text, part) in cases {
        let told = Module::parse(text).expect_err(text);
        assert!(told.contains(part), "{text}: {told}");
    }
    // However deep braces go, reading them ends.
    let deep = Module::parse(&format!(".entry k() {{ x {}{}; }}", "{(".repeat(100_000), ")}".repeat(100_000))).unwrap();
    assert!(deep.kernel("k").unwrap().unknown().is_some_and(|told| told.contains("in place of \"(\"")));
    // No text is a module without kernels, as is one that only has comments and directives.
    assert!(Module::parse("").unwrap().kernels().is_empty());
    assert!(
        Module::parse(".version 9.0\n.target sm_90a, debug // x\n.file 1 \"a.py\"\n\0").unwrap().kernels().is_empty()
    );
}

#[test]
fn addresses_that_may_not_be_used_are_told_with_the_place() {
    assert_eq!(
        told("ld.global.b32 %r1, [%d20+2];"),
        format!(
            "ptx: k: line 9: 4 bytes at {:#x}, which is no multiple of 4, are used in lane 0 (warp 0 of block [0, 0, 0])",
            BASE + 2
        )
    );
    let vector = told("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d20+4];");
    assert!(vector.contains("16 bytes at"), "{vector}");
    let outside = told("ld.global.b32 %r1, [%d20+16];");
    assert!(outside.contains("line 9: 4 bytes at 0x7f0000000010 are outside of memory"), "{outside}");
    let below = told("st.global.b32 [%d20+-4], %r1;");
    assert!(below.contains("are outside of memory"), "{below}");
    assert!(told("red.global.add.u32 [%d20+64], 1;").contains("are outside of memory"));
    assert!(told("st.param.b32 [data], %r1;").contains("an argument is stored to"));
    assert!(told("ld.param.b64 %d1, [data+8];").contains("8 bytes at 0x8 of the kernel's arguments, which has 8"));
    // A lane that is switched off may have any address.
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 0x10001; add.s64 %d1, %d1, %d20; setp.eq.u32 %p1, %r1, 0;
        @%p1 ld.global.b32 %r2, [%d1]; @%p1 st.global.b32 [%d1+4], %r2;";
    assert_eq!(Kernel::of(body).threads(32).run(&[3, 0]), Ok(vec![3, 3]));
}

#[test]
fn a_launch_that_does_not_fit_is_told() {
    let launch = |change: &dyn Fn(&mut Kernel)| {
        let mut kernel = Kernel::of("");
        change(&mut kernel);
        kernel.run(&[]).expect_err("a launch that fits")
    };
    assert!(launch(&|kernel| kernel.block = [1025, 1, 1]).contains("each has 1 to 1024 threads"));
    assert!(launch(&|kernel| kernel.block = [u32::MAX; 3]).contains("each has 1 to 1024 threads"));
    assert!(launch(&|kernel| kernel.grid = [1, 0, 1]).contains("a grid of [1, 0, 1] blocks"));
    assert!(launch(&|kernel| kernel.shared = 1 << 20).contains("1048576 bytes of shared memory"));
    let required = launch(&|kernel| kernel.text = kernel.text.replacen("data)", "data) .reqntid 128, 1, 1", 1));
    assert_eq!(required, "ptx: k: blocks of [1, 1, 1] threads, and the kernel requires [128, 1, 1]");
    let most = launch(&|kernel| {
        kernel.text = kernel.text.replacen("data)", "data) .maxntid 64 .minnctapersm 1", 1);
        kernel.block = [65, 1, 1];
    });
    assert_eq!(most, "ptx: k: blocks of 65 threads, and the kernel allows 64");
    assert!(
        launch(&|kernel| kernel.text = kernel.text.replacen(".param .u64", ".param .u32", 1))
            .contains("argument 0 has 8 bytes in place of 4")
    );
    let lost = Kernel::with(".global .b8 x[4];", "mov.b64 %d1, x;");
    let module = Module::parse(&lost.text).unwrap();
    let launch = Launch {
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        arguments: &[vec![0; 8]],
        globals: &|_| None,
        limit: 9,
    };
    let told = module.kernel("k").unwrap().run(&launch, &mut Ram(Vec::new())).unwrap_err();
    assert_eq!(told, "ptx: k: the variable \"x\" has no address");
}
