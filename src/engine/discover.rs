//! Which libraries can be the engine.
//!
//! ```text
//!   setting                         folders, in this order                        wheels, best first
//!   -----------------------------------------------------------------------------------------------------------
//!   a path  --> that file           1 search path given by our Python package     cpu   lammps-jax-pjrt-cpu,
//!   cpu     -.                      2 PYTHONPATH                                        cyxla-pjrt-cpu,
//!   cuda     |--> wheels' files     3 site-packages of libraries mapped here            fastatomstruct-xla-cpu,
//!   rocm    -'                      4 VIRTUAL_ENV, 5 CONDA_PREFIX                       xla-cpu-pjrt
//!                                   6 site-packages that this library lies in     cuda  jax-cuda13-pjrt, jax-cuda12-pjrt
//!                                                                                 rocm  jax-rocm7-pjrt, jax-rocm60-pjrt
//! ```
//!
//! Every wheel that is installed is a candidate, each from the first folder that has it. [`crate::engine::choice`]
//! takes one: for GPUs the first, for CPUs the one with the newest API that passes a trial. Without our Python package
//! (a library given to JAX by path) nobody tells the search path; jaxlib's own libraries, mapped into the process,
//! still show the `site-packages` that the program uses, and show it more truly than a `VIRTUAL_ENV` left over from
//! some shell.
//!
//! `PYTHONPATH` is part of Python's search path, where Python honours it. So it is looked at only where nobody told
//! the search path, and not under `python -I` or `-E`; its empty components, which mean the current folder, are passed
//! over.
//!
//! `cyxla-pjrt-cpu` has no fixed place: its distribution is known by an entry point of the group `cyxla.plugins`, and
//! its library is looked up in the module of that entry point, else in the distribution's `RECORD`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::{EngineKind, EngineRequest, Environment, Setting, Source};
use crate::error::{Error, Result};

/// What is known about where Python packages lie.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Folders that the host program searches (Python's `sys.path`), where somebody told us.
    pub search_path: &'a [PathBuf],
    /// The environment: `PYTHONPATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`.
    pub environment: &'a Environment,
    /// The command line of this process: whether it is a Python that is to ignore `PYTHONPATH`.
    pub arguments: &'a [OsString],
    /// The file of this library, as the dynamic loader knows it.
    pub own_library: Option<&'a Path>,
    /// The text of `/proc/self/maps`.
    pub maps: &'a str,
}

/// The library to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineChoice {
    /// The file, as an absolute path.
    pub path: PathBuf,
    /// Its kind; `None` for a path whose file name does not tell.
    pub kind: Option<EngineKind>,
    /// Why it is this one.
    pub why: Why,
}

/// Why a library was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The setting gives the path.
    Path(Source),
    /// It belongs to a wheel of the kind asked for.
    Wheel {
        /// The wheel's name.
        wheel: &'static str,
        /// Its version, where its metadata lie beside it.
        version: Option<String>,
        /// How the folder was known in which the wheel is installed.
        place: Place,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(source) => write!(f, "path given by {source}"),
            Self::Wheel { wheel, version: Some(version), place } => write!(f, "wheel {wheel} {version} in {place}"),
            Self::Wheel { wheel, version: None, place } => write!(f, "wheel {wheel} in {place}"),
        }
    }
}

/// How a folder was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The search path of the host program.
    SearchPath,
    /// `PYTHONPATH`.
    PythonPath,
    /// A library from it is mapped into this process.
    Mapped,
    /// `VIRTUAL_ENV`.
    VirtualEnv,
    /// `CONDA_PREFIX`.
    CondaPrefix,
    /// This library lies in it.
    OwnLibrary,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SearchPath => "Python's search path",
            Self::PythonPath => "PYTHONPATH",
            Self::Mapped => "the site-packages of a loaded library",
            Self::VirtualEnv => "VIRTUAL_ENV",
            Self::CondaPrefix => "CONDA_PREFIX",
            Self::OwnLibrary => "the site-packages of pjrt-arena",
        })
    }
}

/// A wheel that brings an engine.
#[derive(Debug)]
struct Wheel {
    name: &'static str,
    library: Library,
}

/// How to find the library of an installed wheel.
#[derive(Debug)]
enum Library {
    /// This file below the folder of the installation.
    At(&'static str),
    /// The file of this name in the distribution that has an entry point of this group.
    EntryPoint { group: &'static str, file: &'static str },
}

const CPU_WHEELS: &[Wheel] = &[
    Wheel { name: "lammps-jax-pjrt-cpu", library: Library::At("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so") },
    Wheel { name: "cyxla-pjrt-cpu", library: Library::EntryPoint { group: "cyxla.plugins", file: "libpjrt_cpu.so" } },
    Wheel { name: "fastatomstruct-xla-cpu", library: Library::At("fastatomstruct_xla_cpu/libpjrt_cpu.so") },
    Wheel { name: "xla-cpu-pjrt", library: Library::At("xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so") },
];
const CUDA_WHEELS: &[Wheel] = &[
    Wheel { name: "jax-cuda13-pjrt", library: Library::At("jax_plugins/xla_cuda13/xla_cuda_plugin.so") },
    Wheel { name: "jax-cuda12-pjrt", library: Library::At("jax_plugins/xla_cuda12/xla_cuda_plugin.so") },
];
const ROCM_WHEELS: &[Wheel] = &[
    Wheel { name: "jax-rocm7-pjrt", library: Library::At("jax_plugins/xla_rocm7/xla_rocm_plugin.so") },
    Wheel { name: "jax-rocm60-pjrt", library: Library::At("jax_plugins/xla_rocm60/xla_rocm_plugin.so") },
];

/// The wheel to recommend for CPUs. What `lammps-jax-pjrt-cpu` asks for, `jax<=0.11.2`, would take a newer JAX away, so
/// pip is to leave it; the other new one has wheels for x86-64 alone.
const CPU_RECOMMENDED: &str =
    if cfg!(target_arch = "x86_64") { "--no-deps lammps-jax-pjrt-cpu" } else { "xla-cpu-pjrt" };

/// The wheels that bring an engine of `kind`, best first, and what to tell `pip install`.
fn wheels(kind: EngineKind) -> (&'static [Wheel], &'static str) {
    match kind {
        EngineKind::Cpu => (CPU_WHEELS, CPU_RECOMMENDED),
        EngineKind::Cuda => (CUDA_WHEELS, "jax-cuda13-pjrt"),
        EngineKind::Rocm => (ROCM_WHEELS, "jax-rocm7-pjrt"),
    }
}

/// Finds the engines that `request` can mean, best guess first; never none. Reads folders and small text files, and
/// loads nothing; the time grows with the number of installed distributions.
///
/// # Errors
/// - `INVALID_ARGUMENT`: the path that was given is not a file, or is this library itself.
/// - `NOT_FOUND`: no wheel of the kind is installed in any folder that is known.
pub fn discover(request: &Setting<EngineRequest>, around: &Surroundings<'_>) -> Result<Vec<EngineChoice>> {
    match &request.value {
        EngineRequest::Path(path) => at_path(path, request, around).map(|choice| vec![choice]),
        EngineRequest::Installed(kind) => installed(*kind, request, around),
    }
}

fn at_path(path: &Path, request: &Setting<EngineRequest>, around: &Surroundings<'_>) -> Result<EngineChoice> {
    const ALLOWED: &str = "the path of a PJRT plugin library such as xla_cpu_pjrt.so, or one of cpu, cuda, rocm";
    let refuse = |problem: &str| {
        Error::invalid_argument(format!(
            "{}={} is not valid: {problem}; allowed: {ALLOWED}",
            request.source,
            path.display()
        ))
    };
    let found = fs::metadata(path).map_err(|error| refuse(&error.to_string()))?;
    if !found.is_file() {
        return Err(refuse("it is not a file"));
    }
    if is_ourselves(path, around) {
        return Err(refuse("it is pjrt-arena itself, which needs another plugin behind it"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let kind = EngineKind::ALL.into_iter().find(|kind| name.contains(kind.name()));
    Ok(EngineChoice { path: absolute(path), kind, why: Why::Path(request.source) })
}

fn installed(
    kind: EngineKind,
    request: &Setting<EngineRequest>,
    around: &Surroundings<'_>,
) -> Result<Vec<EngineChoice>> {
    let folders = folders(around);
    let (wheels, recommended) = wheels(kind);
    let find = |wheel: &Wheel| {
        folders.iter().find_map(|(folder, place)| {
            let library = locate(wheel, folder).filter(|library| !is_ourselves(library, around))?;
            let why = Why::Wheel { wheel: wheel.name, version: installed_version(wheel.name, folder), place: *place };
            Some(EngineChoice { path: absolute(&library), kind: Some(kind), why })
        })
    };
    let found: Vec<EngineChoice> = wheels.iter().filter_map(find).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let sought: Vec<String> = wheels.iter().map(|wheel| format!("{} (wheel {})", wheel.library, wheel.name)).collect();
    let searched: Vec<String> = folders.iter().map(|(folder, _)| folder.display().to_string()).collect();
    let searched = match searched.join(", ") {
        none if none.is_empty() => "no folder, as no Python search path is known here".to_owned(),
        folders => folders,
    };
    Err(Error::not_found(format!(
        "no {kind} engine is installed ({} asks for one): looked for {} in {searched}; install one with `pip install \
         {recommended}`, or set PJRT_ARENA_ENGINE to the path of a PJRT plugin library",
        match request.source {
            Source::Default => "the default of PJRT_ARENA_ENGINE".to_owned(),
            source => source.to_string(),
        },
        sought.join(" and "),
    )))
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(path) => f.write_str(path),
            Self::EntryPoint { file, .. } => f.write_str(file),
        }
    }
}

/// The library of `wheel` if it is installed in `folder`.
fn locate(wheel: &Wheel, folder: &Path) -> Option<PathBuf> {
    match wheel.library {
        Library::At(path) => Some(folder.join(path)).filter(|library| library.is_file()),
        Library::EntryPoint { group, file } => sorted_entries(folder)
            .into_iter()
            .filter(|entry| entry.extension() == Some(OsStr::new("dist-info")))
            .find_map(|distribution| from_entry_point(folder, &distribution, group, file)),
    }
}

/// The version of a distribution that is installed in `folder`, by the name of its folder of metadata:
/// `name-version.dist-info`.
fn installed_version(wheel: &str, folder: &Path) -> Option<String> {
    let start = format!("{}-", wheel.replace('-', "_"));
    sorted_entries(folder).iter().filter_map(|entry| entry.file_name()?.to_str()).find_map(|name| {
        let version = name.strip_suffix(".dist-info")?.strip_prefix(&start)?;
        Some(version.to_owned())
    })
}

/// The library `file` of the distribution whose metadata lie in `distribution`, if it has an entry point of `group`.
fn from_entry_point(folder: &Path, distribution: &Path, group: &str, file: &str) -> Option<PathBuf> {
    let entry_points = fs::read_to_string(distribution.join("entry_points.txt")).ok()?;
    let modules = modules_of_group(&entry_points, group)?;
    let beside_module = modules.iter().map(|module| folder.join(module.replace('.', "/")).join(file));
    let record = fs::read_to_string(distribution.join("RECORD")).unwrap_or_default();
    // RECORD is a table of `path,hash,size`; a path with a comma would be quoted, and no wheel of ours has one.
    let recorded = record
        .lines()
        .filter_map(|line| line.split(',').next())
        .filter(|path| Path::new(path).file_name() == Some(OsStr::new(file)))
        .map(|path| folder.join(path));
    beside_module.chain(recorded).find(|library| library.is_file())
}

/// The modules that the entry points of `group` name; `None` when `entry_points` has no such group.
///
/// The format (<https://packaging.python.org/specifications/entry-points/>): `[group]` lines, each followed by lines of
/// `name = module:object [extras]`.
fn modules_of_group<'a>(entry_points: &'a str, group: &str) -> Option<Vec<&'a str>> {
    let mut modules = None;
    let mut inside = false;
    for line in entry_points.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.trim() == group;
            if inside {
                modules.get_or_insert_with(Vec::new);
            }
        } else if inside && !line.starts_with(['#', ';']) {
            let value = line.split_once('=').map(|(_, value)| value);
            let module = value.and_then(|value| value.split([':', '[']).next()).map(str::trim);
            let module = module.filter(|module| !module.is_empty() && !module.contains('/'));
            modules.get_or_insert_with(Vec::new).extend(module);
        }
    }
    modules
}

/// The folders to look in, each once, without those that do not exist.
fn folders(around: &Surroundings<'_>) -> Vec<(PathBuf, Place)> {
    let mut all: Vec<(PathBuf, Place)> = Vec::new();
    let mut add = |place: Place, folders: &mut dyn Iterator<Item = PathBuf>| {
        all.extend(folders.map(|folder| (folder, place)));
    };
    add(Place::SearchPath, &mut around.search_path.iter().cloned());
    if let Some(path) = around.environment.get("PYTHONPATH")
        && around.search_path.is_empty()
        && !is_isolated(around.arguments)
    {
        add(Place::PythonPath, &mut std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty()));
    }
    add(Place::Mapped, &mut mapped_site_packages(around.maps).into_iter());
    for (variable, place) in [("VIRTUAL_ENV", Place::VirtualEnv), ("CONDA_PREFIX", Place::CondaPrefix)] {
        if let Some(prefix) = around.environment.get(variable) {
            add(place, &mut site_packages_under(Path::new(prefix)).into_iter());
        }
    }
    add(Place::OwnLibrary, &mut around.own_library.and_then(site_packages_above).into_iter());

    let mut seen = HashSet::new();
    all.into_iter()
        // Python's search path holds "" for the current folder.
        .map(|(folder, place)| (if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }, place))
        .filter_map(|(folder, place)| {
            Some((fs::canonicalize(&folder).ok().filter(|real| real.is_dir())?, folder, place))
        })
        .filter(|(real, _, _)| seen.insert(real.clone()))
        .map(|(_, folder, place)| (folder, place))
        .collect()
}

/// Whether a command line is that of a Python that ignores its environment variables: `python -I` or `-E`, alone or
/// among other options of one letter.
fn is_isolated(arguments: &[OsString]) -> bool {
    let program = arguments.first().and_then(|program| Path::new(program).file_name());
    if !program.is_some_and(|name| name.as_encoded_bytes().starts_with(b"python")) {
        return false;
    }
    let mut rest = arguments[1..].iter().map(|argument| argument.as_encoded_bytes());
    while let Some(argument) = rest.next() {
        match argument {
            b"--check-hash-based-pycs" => _ = rest.next(),
            [b'-', b'-', ..] if argument.len() > 2 => {}
            [b'-', letters @ ..] if !letters.is_empty() && letters != b"-" => {
                for (at, letter) in letters.iter().enumerate() {
                    match letter {
                        b'I' | b'E' => return true,
                        // The program, and what follows is its own.
                        b'c' | b'm' => return false,
                        // With a value: the rest of the letters, or the next argument.
                        b'W' | b'X' => {
                            if at + 1 == letters.len() {
                                rest.next();
                            }
                            break;
                        }
                        _ => {}
                    }
                }
            }
            _ => return false,
        }
    }
    false
}

/// The names of the folders in which Python installs packages.
const SITE_FOLDERS: [&str; 2] = ["site-packages", "dist-packages"];

/// The nearest folder above `file` in which packages are installed.
fn site_packages_above(file: &Path) -> Option<PathBuf> {
    let is_site = |folder: &&Path| SITE_FOLDERS.iter().any(|name| folder.file_name() == Some(OsStr::new(name)));
    file.ancestors().skip(1).find(is_site).map(Path::to_path_buf)
}

/// The folders above the mapped files of `maps` in which packages are installed, each once, in order.
fn mapped_site_packages(maps: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // `address perms offset device inode   path`: the path begins at the first slash, and may hold spaces. Most lines
        // repeat the file of the line before.
        let folder = line.find('/').and_then(|at| site_packages_above(Path::new(&line[at..])));
        folders.extend(folder.filter(|folder| !folders.contains(folder)));
    }
    folders
}

/// `PREFIX/lib/python3.*/site-packages`, and the same under `lib64`.
fn site_packages_under(prefix: &Path) -> Vec<PathBuf> {
    let is_python =
        |folder: &PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    ["lib", "lib64"]
        .into_iter()
        .flat_map(|lib| sorted_entries(&prefix.join(lib)))
        .filter(is_python)
        .map(|python| python.join("site-packages"))
        .collect()
}

/// What lies in `folder`, in order of names; nothing where it cannot be read.
fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries
}

/// Whether `path` is the file of this library, under whatever name. Device and inode are what the dynamic loader goes
/// by: it would hand back the library that is loaded already, and the arena would load itself.
fn is_ourselves(path: &Path, around: &Surroundings<'_>) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    around.own_library.is_some_and(|own| identity(own).is_some() && identity(own) == identity(path))
}

/// `path` from the root, so that the loader neither searches for it nor depends on the current folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests;
