//! Which Python code makes an array: the stack of the calling thread, where that is recorded (`memory.record`).
//!
//! ```text
//!  off   one load of a flag
//!  on    take Python's lock -> walk the frames: (code object, instruction) -> known? then the stack has its number
//!                                                                          -> new: names and lines are asked for once
//! ```
//!
//! jaxlib gives Python's lock up before it calls a plugin, so it is taken here; a thread that Python has never seen has
//! no stack. Code objects whose address stands for them are kept alive until the recording ends: no other one can
//! have the address meanwhile.
//!
//! Functions of Python's are called without a lock of ours: each may run code of the user's, which may come back here.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::atomic::{AtomicBool, Ordering},
};

use once_cell::sync::Lazy;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::{
    handlers::python::{
        ending::staying_if_ending,
        table::{Borrowed, New},
    },
    report::stacks::{Frame, StackId, Stacks},
    sys::slice,
};

/// Frames that are looked at, from the innermost on.
const DEEPEST: usize = 128;
/// Code objects that are kept alive at most.
const MOST_CODES: usize = 1 << 16;
/// Calls that are found again without asking for names and lines, at most.
const MOST_CALLS: usize = 1 << 20;

/// Functions of Python's C API. All but the first four may be called only with Python's lock.
struct Functions {
    is_initialized: unsafe extern "C-unwind" fn() -> c_int,
    is_finalizing: unsafe extern "C-unwind" fn() -> c_int,
    /// The thread's state; NULL for a thread that Python has never seen.
    this_thread: unsafe extern "C-unwind" fn() -> *const c_void,
    gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    gil_release: unsafe extern "C-unwind" fn(c_int),
    dec_ref: unsafe extern "C-unwind" fn(New),
    frame: unsafe extern "C-unwind" fn() -> Option<Borrowed<'static>>,
    back: unsafe extern "C-unwind" fn(Borrowed<'_>) -> Option<New>,
    code: unsafe extern "C-unwind" fn(Borrowed<'_>) -> Option<New>,
    /// The byte of the code that the frame is at; -1 before the first.
    instruction: unsafe extern "C-unwind" fn(Borrowed<'_>) -> c_int,
    /// The line of a byte of the code; -1 where it is not known.
    line: unsafe extern "C-unwind" fn(Borrowed<'_>, c_int) -> c_int,
    attribute: unsafe extern "C-unwind" fn(Borrowed<'_>, *const c_char) -> Option<New>,
    text: unsafe extern "C-unwind" fn(Borrowed<'_>, &mut isize) -> *const c_char,
    error_clear: unsafe extern "C-unwind" fn(),
}

static PYTHON: Lazy<Option<Functions>> = Lazy::new(Functions::find);

/// Whether stacks are recorded.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Where a frame is: its code object's address, and the instruction.
type Place = (usize, c_int);

/// A number for the frames looked at so far, those that are left out among them.
type Walk = usize;

/// What is known of stacks.
#[derive(Default)]
struct Known {
    stacks: Stacks,
    /// What calls lead to, frame by frame from the outermost on, and what is kept of each. Ends with the recording.
    calls: FxHashMap<(Walk, Place), (Walk, StackId)>,
    /// Code objects that are kept alive until then.
    codes: FxHashSet<usize>,
    kept: Vec<New>,
    /// Folders of files whose frames are left out; each ends with a slash.
    left_out: Vec<String>,
}

static KNOWN: Lazy<Mutex<Known>> = Lazy::new(Mutex::default);

impl Functions {
    /// Those of the interpreter in this process; `None` where there is none, or where it hides them.
    fn find() -> Option<Self> {
        let process = libloading::os::unix::Library::this();
        // SAFETY: the functions of these names in Python's C API have these types: an object is a pointer, which is
        // NULL where there is none. Python's library is not unloaded: the one who turns recording on is Python's code.
        unsafe {
            let is_finalizing = process.get(b"Py_IsFinalizing\0").or_else(|_| process.get(b"_Py_IsFinalizing\0"));
            Some(Self {
                is_initialized: *process.get(b"Py_IsInitialized\0").ok()?,
                is_finalizing: *is_finalizing.ok()?,
                this_thread: *process.get(b"PyGILState_GetThisThreadState\0").ok()?,
                gil_ensure: *process.get(b"PyGILState_Ensure\0").ok()?,
                gil_release: *process.get(b"PyGILState_Release\0").ok()?,
                dec_ref: *process.get(b"Py_DecRef\0").ok()?,
                frame: *process.get(b"PyEval_GetFrame\0").ok()?,
                back: *process.get(b"PyFrame_GetBack\0").ok()?,
                code: *process.get(b"PyFrame_GetCode\0").ok()?,
                instruction: *process.get(b"PyFrame_GetLasti\0").ok()?,
                line: *process.get(b"PyCode_Addr2Line\0").ok()?,
                attribute: *process.get(b"PyObject_GetAttrString\0").ok()?,
                text: *process.get(b"PyUnicode_AsUTF8AndSize\0").ok()?,
                error_clear: *process.get(b"PyErr_Clear\0").ok()?,
            })
        }
    }

    /// Calls `with` with Python's lock, if the interpreter runs and knows this thread.
    fn locked<T>(&'static self, with: impl FnOnce(&Locked) -> T) -> Option<T> {
        // SAFETY: these may be called without the lock, at any time; the thread's state may be asked for while the
        // interpreter is there.
        let is_known =
            unsafe { (self.is_initialized)() != 0 && (self.is_finalizing)() == 0 && !(self.this_thread)().is_null() };
        if !is_known {
            return None;
        }
        // SAFETY: the interpreter is there. The thread takes the lock, or has it already, and gives up what it took. If
        // the interpreter begins to end meanwhile, the thread stays here.
        unsafe {
            let state = staying_if_ending(|| (self.gil_ensure)());
            let outcome = with(&Locked(self));
            (self.gil_release)(state);
            Some(outcome)
        }
    }
}

/// Python's functions, for who has its lock.
struct Locked(&'static Functions);

/// The frames of a stack: code objects, and the instruction of each; the innermost first.
struct Walked<'a> {
    python: &'a Locked,
    frames: SmallVec<[(New, c_int); 32]>,
    /// Whether there are more.
    is_cut: bool,
}

impl Drop for Walked<'_> {
    fn drop(&mut self) {
        self.frames.drain(..).for_each(|(code, _)| self.python.release(code));
    }
}

impl Locked {
    fn release(&self, object: New) {
        // SAFETY: the lock is held, and the reference given up.
        unsafe { (self.0.dec_ref)(object) };
    }

    /// The thread's frames.
    fn walk(&self) -> Walked<'_> {
        let mut walked = Walked { python: self, frames: SmallVec::new(), is_cut: false };
        // SAFETY: the lock is held, in all of the following; each frame is alive: the first one runs, and the others
        // are referred to from here. What is returned is a new reference, or none.
        unsafe {
            let Some(first) = (self.0.frame)() else { return walked };
            let mut held: Option<New> = None;
            loop {
                let frame = held.as_ref().map_or(first, New::borrow);
                if let Some(code) = (self.0.code)(frame) {
                    walked.frames.push((code, (self.0.instruction)(frame)));
                }
                let next = (self.0.back)(frame);
                let is_last = next.is_none();
                held.take().into_iter().for_each(|frame| self.release(frame));
                held = next;
                if is_last || walked.frames.len() == DEEPEST {
                    walked.is_cut = !is_last;
                    held.into_iter().for_each(|frame| self.release(frame));
                    return walked;
                }
            }
        }
    }

    /// A frame in words.
    fn describe(&self, code: Borrowed<'_>, instruction: c_int) -> Frame {
        // SAFETY: the lock is held, and the code object alive.
        let line = unsafe { (self.0.line)(code, instruction) };
        let (file, name) = (self.text(code, c"co_filename".as_ptr()), self.text(code, c"co_qualname".as_ptr()));
        Frame { file: file.into(), line: u32::try_from(line).unwrap_or(0), name: name.into() }
    }

    /// An attribute that is a text; empty where it is none. `name` is a C string.
    fn text(&self, object: Borrowed<'_>, name: *const c_char) -> String {
        let mut length = 0;
        // SAFETY: the lock is held; the object is alive, and so is its attribute, whose text of this length lives as
        // long, and is copied before. What failed has raised an exception, which is dropped.
        unsafe {
            let Some(value) = (self.0.attribute)(object, name) else {
                (self.0.error_clear)();
                return String::new();
            };
            let start = (self.0.text)(value.borrow(), &mut length);
            let copied = match start.is_null() {
                true => {
                    (self.0.error_clear)();
                    String::new()
                }
                false => {
                    let bytes = slice(start.cast::<u8>(), usize::try_from(length).unwrap_or(0));
                    String::from_utf8_lossy(bytes).into_owned()
                }
            };
            self.release(value);
            copied
        }
    }
}

impl Known {
    /// Where the walk begins: outside of the outermost frame, or of that which was looked at.
    fn outermost(&mut self, is_cut: bool) -> (Walk, StackId) {
        let more = || Frame { file: "".into(), line: 0, name: "frames further out".into() };
        if is_cut { (1, self.stacks.add(StackId::NONE, more())) } else { (0, StackId::NONE) }
    }

    /// The stack of these places, the outermost first, if all of it is known.
    fn find(&mut self, mut places: impl Iterator<Item = Place>, is_cut: bool) -> Option<StackId> {
        let outermost = self.outermost(is_cut);
        let found = places.try_fold(outermost, |(walk, _), place| self.calls.get(&(walk, place)).copied());
        found.map(|(_, stack)| stack)
    }

    /// Adds a stack, frame by frame; none where the table is full.
    fn add(&mut self, frames: Vec<(Place, Frame)>, is_cut: bool) -> StackId {
        let mut here = self.outermost(is_cut);
        let mut learns = true;
        for (place, frame) in frames {
            let (walk, caller) = here;
            if learns && let Some(&known) = self.calls.get(&(walk, place)) {
                here = known;
                continue;
            }
            let is_left_out = self.left_out.iter().any(|folder| frame.file.starts_with(&**folder));
            let stack = if is_left_out { caller } else { self.stacks.add(caller, frame) };
            if stack == StackId::NONE && !is_left_out {
                return StackId::NONE;
            }
            // 0 and 1 are where walks begin.
            here = (self.calls.len() + 2, stack);
            // Without the code object, another one may have its address later; and what follows has no number.
            learns &= self.codes.contains(&place.0) && self.calls.len() < MOST_CALLS;
            if learns {
                self.calls.insert((walk, place), here);
            }
        }
        here.1
    }
}

/// The stack of the calling thread, if stacks are recorded and it runs Python code. The thread must hold no lock: it
/// takes Python's.
#[inline(always)]
pub fn current() -> StackId {
    // It guards nothing: who comes a moment late records one stack more or less.
    if IS_ON.load(Ordering::Relaxed) { walk() } else { StackId::NONE }
}

#[cold]
#[inline(never)]
fn walk() -> StackId {
    PYTHON.as_ref().and_then(|python| python.locked(|python| number(python.walk()))).unwrap_or_default()
}

/// The number of a stack.
fn number(mut walked: Walked<'_>) -> StackId {
    let place = |(code, instruction): &(New, c_int)| (code.borrow().address().as_ptr().addr(), *instruction);
    if walked.frames.is_empty() {
        return StackId::NONE;
    }
    let known = KNOWN.lock().find(walked.frames.iter().rev().map(place), walked.is_cut);
    if let Some(stack) = known {
        return stack;
    }
    let python = walked.python;
    let described = |frame: &(New, c_int)| (place(frame), python.describe(frame.0.borrow(), frame.1));
    let frames: Vec<(Place, Frame)> = walked.frames.iter().rev().map(described).collect();
    let is_cut = walked.is_cut;
    let known = &mut *KNOWN.lock();
    // The recording may have ended meanwhile; then nothing is kept any more.
    if IS_ON.load(Ordering::Relaxed) {
        let mut index = 0;
        while index < walked.frames.len() && known.codes.len() < MOST_CODES {
            if known.codes.insert(place(&walked.frames[index]).0) {
                known.kept.push(walked.frames.swap_remove(index).0);
            } else {
                index += 1;
            }
        }
    }
    known.add(frames, is_cut)
}

/// Turns the recording of stacks on or off. Frames of files in the folders `left_out`, of which each ends with a slash,
/// are left out. Whether there is an interpreter that tells.
pub fn record(is_on: bool, left_out: Vec<String>) -> bool {
    let Some(python) = &*PYTHON else { return !is_on };
    if is_on {
        let mut known = KNOWN.lock();
        if known.left_out != left_out {
            // What was learned with other folders.
            known.calls.clear();
            known.left_out = left_out;
        }
        IS_ON.store(true, Ordering::Relaxed);
        return true;
    }
    let kept = {
        let mut known = KNOWN.lock();
        // With the lock: nobody keeps a code object afterwards.
        IS_ON.store(false, Ordering::Relaxed);
        known.calls.clear();
        known.codes.clear();
        std::mem::take(&mut known.kept)
    };
    // What is kept when the interpreter has ended, or by a thread that it does not know, stays for good.
    let mut kept = Some(kept);
    let _ = python.locked(|python| kept.take().into_iter().flatten().for_each(|code| python.release(code)));
    true
}

/// Whether stacks are recorded.
pub fn is_recording() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Calls `with` with all stacks.
pub fn with_stacks<T>(with: impl FnOnce(&Stacks) -> T) -> T {
    with(&KNOWN.lock().stacks)
}
