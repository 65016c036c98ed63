//! Python's lock and Python's references.

use std::{ffi::c_int, marker::PhantomData, ptr, slice, thread};

use crate::handlers::python::table::{Object, Table};

impl Table {
    /// Whether the interpreter is ending.
    fn is_ending(&self) -> bool {
        // SAFETY: the function is Python's own, and may be called without the GIL.
        unsafe { (self.is_finalizing)() != 0 }
    }

    /// Stops this thread for good if the interpreter is ending.
    ///
    /// Python up to 3.13 then ends each other thread that wants the GIL back, in the middle of its callback, by
    /// unwinding its stack. That must not reach the engine's frames, which would abort the process; nothing of Python
    /// may be touched either. Waiting until the process is gone is what Python itself does from 3.14 on.
    fn stop_if_ending(&self) {
        while self.is_ending() {
            thread::park();
        }
    }
}

/// Holds the GIL; without it nothing of Python may be touched.
pub(super) struct Gil {
    python: &'static Table,
    state: c_int,
    /// It belongs to the thread that took it.
    _here: PhantomData<*mut ()>,
}

impl Gil {
    /// Takes the GIL, on a thread that Python may never have seen. `None` when the interpreter is ending: it would
    /// never let another thread in, or end that thread.
    pub(super) fn take(python: &'static Table) -> Option<Self> {
        if python.is_ending() {
            return None;
        }
        // SAFETY: the interpreter is alive.
        let state = unsafe { (python.gil_ensure)() };
        Some(Self { python, state, _here: PhantomData })
    }

    /// Python's functions.
    pub(super) fn python(&self) -> &'static Table {
        self.python
    }

    /// A new reference to an object that is alive.
    ///
    /// # Safety
    /// `object` must be alive.
    pub(super) unsafe fn share(&self, object: Object) -> Owned<'_> {
        // SAFETY: the object is alive, as this function asks; the GIL is held.
        unsafe { (self.python.inc_ref)(object) };
        Owned { gil: self, object }
    }

    /// Takes over a new reference that a function returned.
    ///
    /// # Errors
    /// The exception that Python raised, if it returned NULL.
    ///
    /// # Safety
    /// `object` must be NULL or a reference that the caller owns and gives up.
    pub(super) unsafe fn own(&self, object: Object) -> Result<Owned<'_>, Raised> {
        if object.is_null() { Err(self.raised()) } else { Ok(Owned { gil: self, object }) }
    }

    /// Takes the exception that Python has raised, in words.
    pub(super) fn raised(&self) -> Raised {
        let python = self.python;
        let mut parts = [ptr::null_mut(); 3];
        let [class, exception, traceback] = &mut parts;
        // SAFETY: the GIL is held; the three places are local, and hold NULL or references that are owned here
        // afterwards.
        unsafe {
            (python.error_fetch)(class, exception, traceback);
            (python.error_normalize)(class, exception, traceback);
        }
        let parts = parts.map(|part| {
            // SAFETY: `None` lives for ever, and the GIL is held. A part that is not NULL is a reference that is
            // owned here.
            if part.is_null() { unsafe { self.share(python.none) } } else { Owned { gil: self, object: part } }
        });
        let arguments = [parts[0].object, parts[1].object, parts[2].object];
        // SAFETY: the GIL is held; `describe` and its three arguments are alive during the call.
        let text = unsafe { (python.vectorcall)(python.describe, arguments.as_ptr(), 3, ptr::null_mut()) };
        if text.is_null() {
            // SAFETY: the GIL is held.
            unsafe { (python.error_clear)() };
            return Raised("an exception that cannot be described".into());
        }
        let text = Owned { gil: self, object: text };
        let mut length = 0;
        // SAFETY: the GIL is held; the object is alive, and its text, of this length, as long as it.
        let bytes = unsafe {
            let start = (python.text)(text.object, &raw mut length);
            if start.is_null() {
                (python.error_clear)();
                b"an exception whose description is no text"
            } else {
                slice::from_raw_parts(start.cast::<u8>(), usize::try_from(length).unwrap_or(0))
            }
        };
        Raised(String::from_utf8_lossy(bytes).into_owned())
    }
}

impl Drop for Gil {
    fn drop(&mut self) {
        self.python.stop_if_ending();
        // SAFETY: this thread took the GIL, with this state, and gives it up once.
        unsafe { (self.python.gil_release)(self.state) };
    }
}

/// An exception, with its traceback, in words.
pub(super) struct Raised(pub(super) String);

/// A reference that is owned here.
pub(super) struct Owned<'a> {
    gil: &'a Gil,
    object: Object,
}

impl Owned<'_> {
    /// The object.
    pub(super) fn object(&self) -> Object {
        self.object
    }

    /// Passes the reference to a function that takes it over.
    pub(super) fn into_object(self) -> Object {
        std::mem::ManuallyDrop::new(self).object
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.gil.python.stop_if_ending();
        // SAFETY: the reference is owned here, and the GIL is held as long as it lives.
        unsafe { (self.gil.python.dec_ref)(self.object) };
    }
}
