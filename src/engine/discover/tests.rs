//! Discovery over folders made for each test.

use crate::{engine::discover::*, error::Code};
use proptest::prelude::proptest;
use tempfile::TempDir;

/// A folder of its own for one test, and what discovery is told.
struct World {
    root: TempDir,
    search_path: Vec<PathBuf>,
    variables: Vec<(String, PathBuf)>,
    arguments: Vec<OsString>,
    own_library: Option<PathBuf>,
    maps: String,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self {
            root,
            search_path: Vec::new(),
            variables: Vec::new(),
            arguments: Vec::new(),
            own_library: None,
            maps: String::new(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let file = self.path(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    /// Puts `folder` on the search path.
    fn search(&mut self, folder: &str) {
        fs::create_dir_all(self.path(folder)).unwrap();
        self.search_path.push(self.path(folder));
    }

    /// All candidates.
    fn all(&self, value: EngineRequest) -> Result<Vec<EngineChoice>> {
        let environment: Environment = self.variables.iter().cloned().collect();
        let request = Setting { value, source: Source::Environment("PJRT_ARENA_ENGINE") };
        let around = Surroundings {
            search_path: &self.search_path,
            environment: &environment,
            arguments: &self.arguments,
            own_library: self.own_library.as_deref(),
            maps: &self.maps,
        };
        discover(&request, &around)
    }

    /// The first candidate.
    fn discover(&self, value: EngineRequest) -> Result<EngineChoice> {
        self.all(value).map(|all| all[0].clone())
    }

    fn installed(&self, kind: EngineKind) -> Result<EngineChoice> {
        self.discover(EngineRequest::Installed(kind))
    }

    /// The chosen library below the root, and how its folder was known.
    fn found(&self, kind: EngineKind) -> (String, Place) {
        let choice = self.installed(kind).unwrap();
        assert_eq!(choice.kind, Some(kind));
        let Why::Wheel { place, .. } = choice.why else { panic!("{choice:?}") };
        (choice.path.strip_prefix(self.root.path()).unwrap().to_str().unwrap().to_owned(), place)
    }
}

const XLA_CPU: &str = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";

fn put_cyxla(world: &World, site: &str) {
    world.write(
        &format!("{site}/cyxla_pjrt_cpu-0.11.0.dist-info/entry_points.txt"),
        "[cyxla.plugins]\ncpu = cyxla_cpu\n",
    );
    world.write(&format!("{site}/cyxla_cpu/libpjrt_cpu.so"), "");
}

#[test]
fn the_wheels_of_each_kind_in_their_order() {
    let mut world = World::new();
    world.search("a");
    world.search("b");
    for (kind, lesser, better) in [
        (EngineKind::Cuda, "xla_cuda12/xla_cuda_plugin.so", "xla_cuda13/xla_cuda_plugin.so"),
        (EngineKind::Rocm, "xla_rocm60/xla_rocm_plugin.so", "xla_rocm7/xla_rocm_plugin.so"),
    ] {
        world.write(&format!("a/jax_plugins/{lesser}"), "");
        assert_eq!(world.found(kind), (format!("a/jax_plugins/{lesser}"), Place::SearchPath));
        world.write(&format!("b/jax_plugins/{better}"), "");
        assert_eq!(world.found(kind).0, format!("b/jax_plugins/{better}"), "better, although later on the path");
    }
    world.write(&format!("b/{XLA_CPU}"), "");
    assert_eq!(world.found(EngineKind::Cpu).0, format!("b/{XLA_CPU}"));
    put_cyxla(&world, "b");
    assert_eq!(world.found(EngineKind::Cpu).0, "b/cyxla_cpu/libpjrt_cpu.so");
    let why = world.installed(EngineKind::Cpu).unwrap().why.to_string();
    assert_eq!(why, "wheel cyxla-pjrt-cpu 0.11.0 in Python's search path");
}

#[test]
fn every_wheel_is_a_candidate_once() {
    let mut world = World::new();
    world.search("a");
    world.search("b");
    let newest = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
    for library in [&format!("a/{XLA_CPU}"), &format!("b/{XLA_CPU}"), &format!("b/{newest}")] {
        world.write(library, "");
    }
    world.write("b/lammps_jax_pjrt_cpu-0.11.2.dist-info/METADATA", "");
    let all = world.all(EngineRequest::Installed(EngineKind::Cpu)).unwrap();
    let shown: Vec<String> = all.iter().map(|one| format!("{} {}", one.path.display(), one.why)).collect();
    let place = "in Python's search path";
    assert_eq!(
        shown,
        [
            format!("{} wheel lammps-jax-pjrt-cpu 0.11.2 {place}", world.path(&format!("b/{newest}")).display()),
            format!("{} wheel xla-cpu-pjrt {place}", world.path(&format!("a/{XLA_CPU}")).display()),
        ]
    );
}

#[test]
fn the_entry_point_may_leave_the_place_to_the_record() {
    let mut world = World::new();
    world.search("s");
    let info = "s/x-1.dist-info";
    world.write(
        &format!("{info}/entry_points.txt"),
        "[console_scripts]\na = b:c\n\n[cyxla.plugins]\ncpu=x.plugin:path\n",
    );
    assert!(world.installed(EngineKind::Cpu).is_err(), "an entry point without a library");
    world.write(&format!("{info}/RECORD"), "x/plugin.py,sha256=0,1\nx/lib/libpjrt_cpu.so,sha256=1,2\n");
    assert!(world.installed(EngineKind::Cpu).is_err(), "a record without a library");
    world.write("s/x/lib/libpjrt_cpu.so", "");
    assert_eq!(world.found(EngineKind::Cpu).0, "s/x/lib/libpjrt_cpu.so");
}

#[test]
fn entry_points_are_read_by_their_format() {
    let text =
        "[a]\nx = wrong\n\n# note\n[ cyxla.plugins ]\n# y = no\ncpu = m.n : f\ngpu=k [extra]\nbroken\n[b]\nz = wrong\n";
    assert_eq!(modules_of_group(text, "cyxla.plugins"), Some(vec!["m.n", "k"]));
    assert_eq!(modules_of_group(text, "cyxla"), None);
    assert_eq!(modules_of_group("[g]", "g"), Some(vec![]));
}

#[test]
fn every_place_is_searched_in_order() {
    let mut world = World::new();
    let python = |root: &str| format!("{root}/lib/python3.11/site-packages");
    for root in [python("own"), python("conda"), python("venv"), python("map ped"), "pp2".to_owned(), "sys".to_owned()]
    {
        world.write(&format!("{root}/{XLA_CPU}"), "");
    }
    let own = world.write(&format!("{}/jax_plugins/arena/libpjrt_arena.so", python("own")), "");
    world.own_library = Some(own);
    let expect = |world: &World, root: &str, place| {
        assert_eq!(world.found(EngineKind::Cpu), (format!("{root}/{XLA_CPU}"), place));
    };
    expect(&world, &python("own"), Place::OwnLibrary);
    world.variables.push(("CONDA_PREFIX".to_owned(), world.path("conda")));
    expect(&world, &python("conda"), Place::CondaPrefix);
    world.variables.push(("VIRTUAL_ENV".to_owned(), world.path("venv")));
    expect(&world, &python("venv"), Place::VirtualEnv);
    world.maps = format!(
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 42                         /usr/lib/libc.so.6\n\
         7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n\
         7f0000002000-7f0000003000 r-xp 00000000 08:01 43                         {}/jaxlib/_jax.so\n",
        world.path(&python("map ped")).display()
    );
    expect(&world, &python("map ped"), Place::Mapped);
    let joined = std::env::join_paths([world.path("missing"), world.path("pp2")]).unwrap();
    world.variables.push(("PYTHONPATH".to_owned(), joined.into()));
    expect(&world, "pp2", Place::PythonPath);
    world.search("sys");
    expect(&world, "sys", Place::SearchPath);
}

#[test]
fn nothing_installed_names_files_folders_and_the_way_out() {
    let mut world = World::new();
    world.search("one");
    world.search("two");
    world.search_path.push(world.path("missing"));
    world.search_path.push(world.path("two/../one"));
    let error = world.installed(EngineKind::Cpu).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert_eq!(
        error.message,
        format!(
            "no cpu engine is installed (PJRT_ARENA_ENGINE asks for one): looked for \
             lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so (wheel lammps-jax-pjrt-cpu) and libpjrt_cpu.so (wheel \
             cyxla-pjrt-cpu) and fastatomstruct_xla_cpu/libpjrt_cpu.so (wheel fastatomstruct-xla-cpu) and {XLA_CPU} \
             (wheel xla-cpu-pjrt) in {}, {}; install one with `pip install {CPU_RECOMMENDED}`, or set \
             PJRT_ARENA_ENGINE to the path of a PJRT plugin library",
            world.path("one").display(),
            world.path("two").display()
        )
    );
    let nowhere = World::new().installed(EngineKind::Cuda).unwrap_err();
    assert!(
        nowhere.message.contains("in no folder, as no Python")
            && nowhere.message.contains("pip install jax-cuda13-pjrt")
    );
}

#[test]
fn a_path_is_taken_as_it_is() {
    let world = World::new();
    for (name, kind) in [
        ("pjrt_c_api_cpu_plugin.so", Some(EngineKind::Cpu)),
        ("xla_CUDA.so", Some(EngineKind::Cuda)),
        ("plugin.so", None),
    ] {
        let path = world.write(name, "");
        let choice = world.discover(EngineRequest::Path(path.clone())).unwrap();
        let why = Why::Path(Source::Environment("PJRT_ARENA_ENGINE"));
        assert_eq!(choice, EngineChoice { path, kind, why });
    }
}

#[test]
fn a_path_that_is_no_file_is_refused() {
    let world = World::new();
    for (path, problem) in [(world.path("missing.so"), "No such file"), (world.path("."), "it is not a file")] {
        let error = world.discover(EngineRequest::Path(path.clone())).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        let start = format!("PJRT_ARENA_ENGINE={} is not valid: {problem}", path.display());
        assert!(error.message.starts_with(&start), "{error}");
        assert!(error.message.ends_with("or one of cpu, cuda, rocm"), "{error}");
    }
}

#[test]
fn the_arena_does_not_load_itself() {
    let mut world = World::new();
    let own = world.write("site-packages/jax_plugins/arena/libpjrt_arena.so", "");
    world.own_library = Some(own.clone());
    let (link, name) = (world.path("link.so"), world.path("name.so"));
    std::os::unix::fs::symlink(&own, &link).unwrap();
    fs::hard_link(&own, &name).unwrap();
    for path in
        [own.clone(), link, name, world.path("site-packages/../site-packages/jax_plugins/arena/libpjrt_arena.so")]
    {
        let error = world.discover(EngineRequest::Path(path)).unwrap_err();
        assert!(error.message.contains("it is pjrt-arena itself"), "{error}");
    }
    // An installed engine that leads back here is passed over.
    let engine = world.path(&format!("site-packages/{XLA_CPU}"));
    fs::create_dir_all(engine.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&own, &engine).unwrap();
    assert!(world.installed(EngineKind::Cpu).is_err());
}

#[test]
fn an_empty_entry_of_the_search_path_is_the_current_folder() {
    let mut world = World::new();
    world.search_path.push(PathBuf::new());
    let error = world.installed(EngineKind::Cpu).unwrap_err();
    assert!(error.message.contains("in .; install"), "{error}");
}

#[test]
fn pythonpath_is_ignored_where_python_ignores_it() {
    let mut world = World::new();
    world.write(&format!("pp/{XLA_CPU}"), "");
    world.variables.push(("PYTHONPATH".to_owned(), world.path("pp")));
    let arguments = |arguments: &[&str]| arguments.iter().map(OsString::from).collect::<Vec<_>>();
    for (command, isolated) in [
        (&["/usr/bin/python3.12", "-I", "x.py"][..], true),
        (&["python", "-E"], true),
        (&["python3", "-u", "-W", "ignore", "-sI", "-c", "pass"], true),
        (&["python3", "-Xdev", "-X", "utf8", "--check-hash-based-pycs", "always", "-BE"], true),
        (&["python3", "-c", "-I"], false),
        (&["python3", "-mE", "-I"], false),
        (&["python3", "-WI", "-X", "-I", "x.py"], false),
        (&["python3", "x.py", "-I"], false),
        (&["python3", "-", "-I"], false),
        (&["python3", "--", "-I"], false),
        (&["train", "-I"], false),
        (&["python3"], false),
        (&[], false),
    ] {
        world.arguments = arguments(command);
        assert_eq!(world.installed(EngineKind::Cpu).is_err(), isolated, "{command:?}");
    }
}

#[test]
fn pythonpath_counts_for_nothing_beside_the_search_path_of_python() {
    let mut world = World::new();
    world.write(&format!("pp/{XLA_CPU}"), "");
    world.variables.push(("PYTHONPATH".to_owned(), world.path("pp")));
    assert_eq!(world.found(EngineKind::Cpu).1, Place::PythonPath);
    world.search("sys");
    assert!(world.installed(EngineKind::Cpu).is_err(), "Python would have named it");
}

#[test]
fn an_empty_component_of_pythonpath_is_passed_over() {
    let mut world = World::new();
    for text in [":", "::", ":/no/such/folder"] {
        world.variables = vec![("PYTHONPATH".to_owned(), text.into())];
        let error = world.installed(EngineKind::Cpu).unwrap_err();
        assert!(error.message.contains("in no folder, as no Python"), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_can_be_read(text in "([\\[\\]=:#a-c/ \n]|site-packages){0,40}") {
        modules_of_group(&text, "a");
        mapped_site_packages(&text);
    }
}
