//! The faulty engine, as the tests use it.

use std::{
    env,
    ffi::c_char,
    path::PathBuf,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use plugin_tests::event::HANG;

/// What is done at the call that a test names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Fail = 0,
    Delay = 1,
    Event = 2,
    Throw = 3,
    Late = 4,
    ThrowAfter = 5,
    Hold = 6,
}

/// Every kind but `Late`, which only an execution on several devices can show, and `Hold`, which a test has to end.
pub const KINDS: [Kind; 5] = [Kind::Fail, Kind::Delay, Kind::Event, Kind::Throw, Kind::ThrowAfter];

/// The text of every error that the engine makes up.
pub const TEXT: &str = "injected fault";

/// The functions' names, in the order of their slots.
pub fn functions() -> Vec<&'static str> {
    let header = include_str!("../../../../pjrt_c_api/pjrt_c_api.h");
    let slots = header.lines().filter_map(|line| line.trim().strip_prefix("PJRT_SLOT("));
    slots.filter_map(|rest| Some(rest.split_once(')')?.0)).collect()
}

/// The slot of the function with this name.
pub fn slot(name: &str) -> usize {
    functions().iter().position(|&function| function == name).expect("the table has it")
}

/// The engine's library beside the test binary.
pub fn library() -> PathBuf {
    let binary = env::current_exe().expect("the test binary has a path");
    let path = binary.with_file_name("libfaulty_cpu_engine.so");
    assert!(path.is_file(), "no {}: cargo builds it with this test", path.display());
    path
}

/// The engine's control.
pub struct Faulty(libloading::Library);

impl Faulty {
    /// Opens the library, which the library under test has loaded or will load.
    pub fn get() -> &'static Self {
        static FAULTY: OnceLock<Faulty> = OnceLock::new();
        FAULTY.get_or_init(|| {
            // SAFETY: the library is made to be opened.
            Self(unsafe { libloading::Library::new(library()) }.expect("the engine opens"))
        })
    }

    /// # Safety
    /// `F` must be the function's type.
    unsafe fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the type is as this function asks; the library is never closed.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Arms a fault at the `nth` call of the function from now on.
    pub fn arm(&self, slot: usize, nth: u64, kind: Kind) {
        // SAFETY: the type is the engine's.
        let armed = unsafe {
            self.symbol::<unsafe extern "C" fn(usize, u64, u32) -> bool>("faulty_engine_arm")(slot, nth, kind as u32)
        };
        assert!(armed, "the engine has no slot {slot}");
    }

    /// Takes it back; whether it happened.
    pub fn disarm(&self) -> bool {
        // SAFETY: the type is the engine's.
        unsafe { self.symbol::<unsafe extern "C" fn() -> bool>("faulty_engine_disarm")() }
    }

    /// Waits until the call that was to be held is.
    pub fn wait_held(&self) {
        let begun = Instant::now();
        // SAFETY: the type is the engine's.
        let is_held = unsafe { self.symbol::<unsafe extern "C" fn() -> bool>("faulty_engine_is_held") };
        // SAFETY: it may be asked at any time.
        while !unsafe { is_held() } {
            assert!(begun.elapsed() < HANG / 10, "no call is held");
            thread::sleep(Duration::from_millis(1));
        }
        self.disarm();
    }

    /// Lets the call go that is held.
    pub fn let_go(&self) {
        // SAFETY: the type is the engine's.
        unsafe { self.symbol::<unsafe extern "C" fn()>("faulty_engine_let_go")() }
    }

    /// Calls of the function so far.
    pub fn calls(&self, slot: usize) -> u64 {
        // SAFETY: the type is the engine's.
        unsafe { self.symbol::<unsafe extern "C" fn(usize) -> u64>("faulty_engine_calls")(slot) }
    }

    /// The kinds that make sense for the function.
    pub fn kinds(&self, slot: usize) -> impl Iterator<Item = Kind> + use<> {
        // SAFETY: the type is the engine's.
        let bits = unsafe { self.symbol::<unsafe extern "C" fn(usize) -> u32>("faulty_engine_kinds")(slot) };
        KINDS.into_iter().filter(move |&kind| bits >> kind as u32 & 1 == 1)
    }

    /// A handler that throws in the middle of the execution that calls it.
    pub fn thrower(&self) -> plugin_tests::ffi::Handler {
        // SAFETY: the type is the engine's, but that the handler throws, which its callers in the engine do not mind.
        unsafe { self.symbol::<unsafe extern "C" fn() -> plugin_tests::ffi::Handler>("faulty_engine_thrower")() }
    }

    /// Handles that are alive, by the slot of the function that gave them.
    pub fn live(&self) -> Vec<usize> {
        // SAFETY: the type is the engine's.
        let count = unsafe { self.symbol::<unsafe extern "C" fn(usize) -> usize>("faulty_engine_live") };
        // SAFETY: it may be asked for any slot.
        (0..functions().len()).map(|slot| unsafe { count(slot) }).collect()
    }

    /// What was done wrong with handles so far.
    pub fn misuse(&self) -> String {
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: the type is the engine's, and it writes no more than there is room for.
        let length = unsafe {
            let tell = self.symbol::<unsafe extern "C" fn(*mut c_char, usize) -> usize>("faulty_engine_misuse");
            tell(text.as_mut_ptr().cast(), text.len())
        };
        text.truncate(length);
        String::from_utf8(text).expect("sentences")
    }
}

/// Runs the rest of the test in a process whose engine is this one.
macro_rules! on_faulty_engine {
    ($body:expr) => {{
        let (behind, engine) = (plugin_tests::plugin::engine_path(), $crate::engine::library());
        let path = |path: &std::path::Path| path.to_str().expect("a path of letters").to_owned();
        let (behind, engine) = (path(&behind), path(&engine));
        plugin_tests::in_child!(&[("FAULTY_ENGINE_BEHIND", &behind), ("PJRT_ARENA_ENGINE", &engine)], || $body);
    }};
}

pub(crate) use on_faulty_engine;
