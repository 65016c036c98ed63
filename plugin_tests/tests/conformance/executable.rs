//! Compiling, asking and serialising.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    sync::Mutex,
};

use plugin_tests::{Client, Code, ElementType, Program, Result, RunOptions, Value, in_child, plugin};

use crate::{DIMS, engine, four, ramp, shared};

/// A program as text: plugins that rewrite artifacts leave it alone.
const TEXT: &str = "func.func public @main(%x: tensor<1024xf32>) -> tensor<1024xf32> {
    %y = stablehlo.add %x, %x : tensor<1024xf32>
    return %y : tensor<1024xf32>
}";

#[test]
fn c04_text_compiles() {
    let double = shared().compile(&Program::text(&format!("module @double {{ {TEXT} }}"))).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let expected: Vec<f32> = ramp(0.0).iter().map(|value| value * 2.0).collect();
    assert_eq!(double.run1(&[&x]).unwrap().read::<f32>().unwrap(), expected);
}

#[test]
fn t19_results_of_text_programs_are_buffers_like_any_other() {
    // A program that is not rewritten gives results that the engine owns; users must not be able to tell.
    let double = shared().compile(&Program::text(&format!("module @double {{ {TEXT} }}"))).unwrap();
    let donate = shared().compile(&Program::donate()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let y = double.run1(&[&x]).unwrap();
    let (copy, address) = (y.copy_to_memory(y.memory()).unwrap(), y.address().unwrap());
    assert_ne!(copy.address().unwrap(), address);
    let z = donate.run1(&[&y]).unwrap();
    assert!(y.is_deleted());
    let expected: Vec<f32> = ramp(0.0).iter().map(|value| value * 2.0 + 1.0).collect();
    assert_eq!(z.read::<f32>().unwrap(), expected);
    assert_eq!(double.run1(&[&copy]).unwrap().read::<f32>().unwrap()[3], 12.0);
    z.increase().unwrap();
    z.decrease().unwrap();
    z.delete().unwrap();
    assert!(z.read::<f32>().is_err());
}

#[test]
fn c04_optimized_programs_compile_again() {
    let (format, code) = shared().compile(&Program::add_one()).unwrap().executable().optimized().unwrap();
    assert_eq!(format, "hlo_with_config");
    // Compile takes the module without its configuration, as format "hlo".
    let (_, module) = fields(&code).into_iter().find(|(number, _)| *number == 1).unwrap();
    let again = shared().compile(&Program::add_one().with_code(module, "hlo")).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(again.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c04_malformed_programs_are_refused() {
    let add_one = Program::add_one();
    let truncated = &add_one.code()[..add_one.code().len() / 2];
    for code in [truncated, b"not a program", b"ML\xefR"] {
        let failure = shared().compile(&add_one.clone().with_code(code, "mlir")).map(drop).unwrap_err();
        assert!(failure.message.contains("error"), "{failure}");
    }
}

#[test]
fn c04_unknown_formats_are_refused() {
    let program = Program::add_one().with_code(b"print(1)", "python");
    let failure = shared().compile(&program).map(drop).unwrap_err();
    failure.expect(Code::INVALID_ARGUMENT, &["python"]);
}

#[test]
fn c04_malformed_options_are_refused() {
    let failure = shared().compile(&Program::add_one().with_options(b"\xff\xff\xff\xff")).map(drop).unwrap_err();
    failure.expect(Code::INVALID_ARGUMENT, &["failed to deserialize CompileOptionsProto"]);
}

#[test]
fn c04_arena_errors_are_the_engines_own() {
    // The rewriter must not put its own words between a broken program and its author.
    let bare = Client::create_on(engine(), 1, &[]).unwrap();
    let text = Program::text("func.func public @main() { return %nothing : tensor<f32> }");
    let broken = [text, Program::add_one().with_code(b"ML\xefR", "mlir"), Program::add_one().with_code(b"x", "y")];
    for program in broken {
        let ours = shared().compile(&program).map(drop).unwrap_err();
        assert_eq!(ours, bare.compile(&program).map(drop).unwrap_err());
    }
}

#[test]
fn c04_executables_come_and_go() {
    for _ in 0..20 {
        let loaded = shared().compile(&Program::add_one()).unwrap();
        let handles: Vec<_> = (0..5).map(|_| loaded.executable()).collect();
        assert!(handles.iter().all(|handle| handle.num_outputs() == 1));
    }
}

#[test]
fn c28_executables_describe_results_as_the_user_wrote_them() {
    let loaded = shared().compile(&Program::two_results()).unwrap();
    let executable = loaded.executable();
    assert_eq!(executable.num_outputs(), 2);
    assert_eq!(executable.output_types(), [ElementType::F32; 2]);
    assert_eq!(executable.output_dims(), [DIMS.to_vec(), DIMS.to_vec()]);
    match executable.output_memory_kinds() {
        Ok(kinds) => assert_eq!(kinds.len(), 2),
        Err(failure) => assert_eq!(failure.code, Code::UNIMPLEMENTED, "{failure}"),
    }
    assert_eq!(executable.replicas_and_partitions(), (1, 1));
    assert!(executable.name().contains("two_results"), "{}", executable.name());
    assert_eq!(loaded.devices(), [shared().device().raw()]);
    assert!(!loaded.device_assignment().unwrap().is_empty());
    assert!(!executable.fingerprint().unwrap().is_empty());
}

#[test]
fn c28_no_results_are_counted() {
    let loaded = shared().compile(&Program::no_results()).unwrap();
    let executable = loaded.executable();
    assert_eq!((executable.num_outputs(), executable.output_types().len(), executable.output_dims().len()), (0, 0, 0));
}

#[test]
fn c28_partitions_are_counted() {
    let sharded = four().compile(&Program::sharded()).unwrap();
    assert_eq!(sharded.executable().replicas_and_partitions(), (1, 4));
    assert_eq!(sharded.devices().len(), 4);
}

/// The number of parameters in the host program shape of a serialised `HloModuleProtoWithConfig`:
/// module (1), host_program_shape (4), parameters (1).
fn parameters(module_with_config: &[u8]) -> usize {
    parameters_of(first(module_with_config, 1))
}

fn parameters_of(module: &[u8]) -> usize {
    fields(first(module, 4)).iter().filter(|(number, _)| *number == 1).count()
}

/// The first field of this number.
fn first(bytes: &[u8], wanted: u64) -> &[u8] {
    fields(bytes).into_iter().find(|(number, _)| *number == wanted).unwrap().1
}

/// The length-delimited fields of a protobuf message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("a whole varint");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => drop(varint(&mut bytes)),
            1 => bytes = &bytes[8..],
            5 => bytes = &bytes[4..],
            2 => {
                let len = varint(&mut bytes) as usize;
                all.push((key >> 3, &bytes[..len]));
                bytes = &bytes[len..];
            }
            other => panic!("wire type {other}"),
        }
    }
    all
}

#[test]
fn t15_optimized_programs_have_the_users_parameters() {
    // JAX asserts that parameter shardings and layouts, which it reads from here, are as many as its arguments.
    for (program, arguments) in
        [(Program::add_one(), 1), (Program::two_results(), 2), (Program::constant(), 0), (Program::donate(), 1)]
    {
        let (_, code) = shared().compile(&program).unwrap().executable().optimized().unwrap();
        assert_eq!(parameters(&code), arguments);
    }
    let (_, code) = four().compile(&Program::sharded()).unwrap().executable().optimized().unwrap();
    assert_eq!(parameters(&code), 1);
}

#[test]
fn c28_t16_serialized_executables_run_again() {
    let loaded = shared().compile(&Program::two_results()).unwrap();
    let blob = loaded.executable().serialize().unwrap();
    drop(loaded);
    let again = shared().deserialize(&blob).unwrap();
    let (a, b) = (shared().put(&ramp(0.0), &DIMS).unwrap(), shared().put(&ramp(1.0), &DIMS).unwrap());
    let results = again.run(&[&a, &b]).unwrap();
    assert_eq!(results[0].read::<f32>().unwrap()[..3], [1.0, 3.0, 5.0]);
    assert_eq!(results[1].read::<f32>().unwrap()[..3], [0.0, 2.0, 6.0]);
    assert_eq!(again.executable().num_outputs(), 2);
    again.run(&[&a]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["supplied 1", "expected 2"]);
}

#[test]
fn c28_t16_serialized_executables_cross_clients() {
    let blob = shared().compile(&Program::donate()).unwrap().executable().serialize().unwrap();
    let other = Client::one();
    let donate = other.deserialize(&blob).unwrap();
    let x = other.put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(donate.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    assert!(x.is_deleted());
}

#[test]
fn c28_t16_arena_takes_the_engines_own_blobs() {
    let bare = Client::create_on(engine(), 1, &[]).unwrap();
    let blob = bare.compile(&Program::add_one()).unwrap().executable().serialize().unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(shared().deserialize(&blob).unwrap().run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c28_t16_broken_blobs_are_refused() {
    let blob = shared().compile(&Program::add_one()).unwrap().executable().serialize().unwrap();
    assert!(shared().deserialize(b"").is_err());
    assert!(shared().deserialize(b"nonsense").is_err());
    assert!(shared().deserialize(&blob[..blob.len() / 2]).is_err());
    assert!(shared().deserialize(&blob[..20]).is_err());
}

#[test]
fn c28_arena_a_plan_whose_numbers_do_not_fit_is_refused() {
    let blob = shared().compile(&Program::donate()).unwrap().executable().serialize().unwrap();
    // What we add is JSON, and other numbers of one digit are as long.
    let change = |from: &str, to: &str| {
        let at = blob.windows(from.len()).position(|window| window == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("no {from} in the plan"));
        [&blob[..at], to.as_bytes(), &blob[at + from.len()..]].concat()
    };
    for (from, to) in [("{\"Only\":[0]}", "{\"Only\":[9]}"), ("{\"Argument\":0}", "{\"Argument\":9}")] {
        let failure = shared().deserialize(&change(from, to)).map(drop).unwrap_err();
        failure.expect(
            Code::INVALID_ARGUMENT,
            &["does not fit this engine", "results or arguments that the program has not"],
        );
    }
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(shared().deserialize(&blob).unwrap().run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c29_sizes_are_the_users() {
    let sizes = |program: &Program| shared().compile(program).unwrap().executable().sizes().unwrap();
    let add = sizes(&Program::add());
    assert_eq!((add.argument, add.output, add.alias), (8192, 4096, 0));
    let donate = sizes(&Program::donate());
    assert_eq!((donate.argument, donate.output, donate.alias), (4096, 4096, 4096));
    let two = sizes(&Program::two_results());
    assert_eq!((two.argument, two.alias), (8192, 0));
    assert!(sizes(&Program::temp_heavy()).temp >= 256 * 256 * 4);
}

#[test]
fn c29_arena_sizes_and_costs_are_the_unmodified_programs() {
    let bare = Client::create_on(engine(), 1, &[]).unwrap();
    for program in
        [Program::add(), Program::donate(), Program::two_results(), Program::constant(), Program::buffer_donor()]
    {
        let (loaded, bare_loaded) = (shared().compile(&program).unwrap(), bare.compile(&program).unwrap());
        let (ours, theirs) = (loaded.executable(), bare_loaded.executable());
        let (ours_sizes, their_sizes) = (ours.sizes().unwrap(), theirs.sizes().unwrap());
        assert_eq!(
            (ours_sizes.argument, ours_sizes.output, ours_sizes.alias),
            (their_sizes.argument, their_sizes.output, their_sizes.alias)
        );
        let flops = |cost: Result<BTreeMap<String, Value>>| match cost {
            Ok(cost) => Ok(cost.get("flops").cloned()),
            Err(failure) => Err((failure.code, failure.message)),
        };
        assert_eq!(flops(ours.cost()), flops(theirs.cost()));
    }
}

#[test]
fn c28_cost_is_known() {
    match shared().compile(&Program::matmul()).unwrap().executable().cost() {
        Ok(cost) => assert_eq!(cost.get("flops"), Some(&Value::Float(2.0 * 32.0 * 48.0 * 64.0))),
        Err(failure) => {
            failure.expect(Code::UNIMPLEMENTED, &["GetCostAnalysis"]);
            let bare = Client::create_on(engine(), 1, &[]).unwrap();
            assert!(bare.compile(&Program::matmul()).unwrap().executable().cost().is_err(), "the engine has it");
        }
    }
}

type Give = unsafe extern "C" fn(*mut c_void, c_int, *const u8, usize);
type Analyze = unsafe extern "C" fn(*const u8, usize, Give, *mut c_void);

static ANALYSES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// Nothing is given where there is none.
pub static ANSWER: Mutex<Option<(c_int, &str)>> = Mutex::new(None);

unsafe extern "C" fn analyze(module: *const u8, size: usize, give: Give, reply: *mut c_void) {
    // SAFETY: what the library promises.
    ANALYSES.lock().unwrap().push(unsafe { std::slice::from_raw_parts(module, size) }.to_vec());
    if let Some((code, answer)) = *ANSWER.lock().unwrap() {
        // SAFETY: `reply` came with the function, and the text lives during the call.
        unsafe { give(reply, code, answer.as_ptr(), answer.len()) };
    }
}

/// Has costs counted by [`ANSWER`] from now on, in a process of its own.
pub fn install_analysis() {
    // SAFETY: the function's type; `analyze` stays as long as the process.
    unsafe { plugin().symbol::<unsafe extern "C" fn(Analyze)>("pjrt_arena_install_cost_analysis")(analyze) };
}

#[test]
fn c28_arena_who_is_installed_counts_the_cost_where_the_engine_does_not() {
    in_child!(&[], || {
        let client = Client::one();
        let loaded = client.compile(&Program::matmul()).unwrap();
        let executable = loaded.executable();
        let engine_has_it = executable.cost().is_ok();
        install_analysis();
        if engine_has_it {
            assert_eq!(executable.cost().unwrap().get("flops"), Some(&Value::Float(2.0 * 32.0 * 48.0 * 64.0)));
            assert!(ANALYSES.lock().unwrap().is_empty(), "the engine's answer is as good");
            return;
        }
        let answers = [None, Some((0, "7 flops\n")), Some((-1, "flops\n")), Some((-1, "many flops\n"))];
        for answer in answers {
            *ANSWER.lock().unwrap() = answer;
            executable.cost().unwrap_err().expect(Code::UNIMPLEMENTED, &["GetCostAnalysis"]);
        }
        *ANSWER.lock().unwrap() = Some((-1, "7.5 flops\n1e+20 bytes accessed0{}\n"));
        let cost = executable.cost().unwrap();
        assert_eq!(
            Vec::from_iter(cost),
            [("bytes accessed0{}".to_owned(), Value::Float(1e20)), ("flops".to_owned(), Value::Float(7.5))]
        );
        // What is known stays, and the program that is counted is the user's, whose parameters are two.
        *ANSWER.lock().unwrap() = None;
        assert_eq!(executable.cost().unwrap().len(), 2);
        let asked = ANALYSES.lock().unwrap();
        assert_eq!(asked.len(), answers.len() + 1);
        assert!(asked.iter().all(|module| parameters_of(module) == 2));
    });
}

#[test]
fn c28_a_deleted_executable_is_deleted_without_harm() {
    let loaded = shared().compile(&Program::add_one()).unwrap();
    assert!(!loaded.is_deleted());
    // The CPU engine of 0.81 has a fingerprint for the executable only.
    if let Ok(fingerprint) = loaded.fingerprint() {
        assert_eq!(fingerprint, loaded.executable().fingerprint().unwrap());
    }
    loaded.delete().unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    // The CPU engine keeps the program; another may refuse. Neither may crash.
    drop(loaded.execute(&[&[&x]], RunOptions::default()));
    assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
}
