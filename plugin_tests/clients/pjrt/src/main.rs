//! pjrt-arena through the crate [`pjrt`](https://crates.io/crates/pjrt), whose structs are those of PJRT C API 0.54.
//!
//! `pjrt_crate LIBRARY` loads the plugin, compiles StableHLO, runs it, and checks results, statistics, errors and a
//! serialised program. Prints a line for each step; the first thing that is not as it should be ends it with status 1.

use std::{error::Error, process::ExitCode};

use pjrt::{Client, HostBuffer, LoadedExecutable, Program, ProgramFormat::MLIR};

/// `y = (x + x) * 3` and the sum of the elements of `x`.
const PROGRAM: &str = r#"
module @pjrt_crate {
  func.func public @main(%x: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<f32>) {
    %three = stablehlo.constant dense<3.0> : tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %twice = stablehlo.add %x, %x : tensor<2x4xf32>
    %y = stablehlo.multiply %twice, %three : tensor<2x4xf32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    return %y, %sum : tensor<2x4xf32>, tensor<f32>
  }
}"#;

/// `x + 1` for `f32[1024]`, as JAX would send it: a form in which results get a place in the arena, as text does not.
const ADD_ONE: &[u8] = include_bytes!("../../../data/programs/add_one.mlir");

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let Some(library) = std::env::args().nth(1) else {
        eprintln!("usage: pjrt_crate LIBRARY");
        return ExitCode::from(2);
    };
    match run(&library) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// An error that names what is not as it should be.
fn check(what: &str, holds: bool) -> Outcome {
    println!("{what}: {}", if holds { "ok" } else { "FAILED" });
    if holds { Ok(()) } else { Err(format!("{what} does not hold").into()) }
}

fn values(buffer: &pjrt::Buffer) -> Outcome<Vec<f32>> {
    match buffer.copy_to_host_sync()? {
        HostBuffer::F32(typed) => Ok(typed.data().to_vec()),
        other => Err(format!("not f32: {other:?}").into()),
    }
}

fn run(library: &str) -> Outcome {
    let api = pjrt::plugin(library).load()?;
    check(
        "the plugin names its StableHLO version",
        format!("{:?}", api.plugin_attributes()).contains("stablehlo_current_version"),
    )?;
    let client = Client::builder(&api).build()?;
    check("platform", client.platform_name() == "cpu")?;
    check("devices", !client.addressable_devices().is_empty())?;

    let program = Program::new(MLIR, PROGRAM.as_bytes().to_vec());
    let loaded = LoadedExecutable::builder(&client, &program).build()?;
    check("two results", loaded.executable().num_outputs() == 2)?;
    let host = HostBuffer::builder().data((0..8).map(|i| i as f32).collect::<Vec<_>>()).dims([2, 4]).build();
    // An execution takes its arguments by value.
    let x = || host.copy_to_sync(&client);
    let expected: Vec<f32> = (0..8).map(|i| (i * 6) as f32).collect();
    let results = loaded.execution(x()?).run_sync()?;
    check("values", values(&results[0][0])? == expected && values(&results[0][1])? == [28.0])?;
    check("shape", results[0][0].dims() == [2, 4])?;

    let add_one = LoadedExecutable::builder(&client, &Program::new(MLIR, ADD_ONE)).build()?;
    let ones = HostBuffer::builder().data(vec![1f32; 1024]).build();
    let twos = add_one.execution(ones.copy_to_sync(&client)?).run_sync()?;
    check("a portable artifact", values(&twos[0][0])? == [2f32; 1024])?;
    let stats = client.addressable_devices()[0].memory_stats()?;
    check("its result lies in the arena", stats.bytes_in_use >= 4096)?;
    check("the limit is known", stats.bytes_limit_is_set && stats.bytes_limit > stats.bytes_in_use)?;
    let sizes = add_one.executable().compiled_memory_stats();
    check("sizes as compiled", sizes.argument_size_in_bytes == 4096 && sizes.alias_size_in_bytes == 0)?;

    let executable = loaded.executable();
    let again = client.load_executable(executable.serialize().bytes())?;
    check("a serialised program", values(&again.execution(x()?).run_sync()?[0][0])? == expected)?;

    let nonsense = Program::new(MLIR, b"not a program".to_vec());
    check("nonsense is refused", LoadedExecutable::builder(&client, &nonsense).build().is_err())?;
    let too_few = loaded.execution(()).run_sync().err().map(|error| error.to_string()).unwrap_or_default();
    check("a missing argument is named", too_few.contains("supplied 0") && too_few.contains("expected 1"))?;
    check("after errors it goes on", values(&loaded.execution(x()?).run_sync()?[0][0])? == expected)
}
