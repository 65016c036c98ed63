//! Python's lock and Python's references.

use std::{ffi::c_int, marker::PhantomData};

use crate::{
    handlers::python::table::{Borrowed, New, Table},
    sys::slice,
};

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
        // SAFETY: the interpreter is alive. If it begins to end while this thread waits for the GIL, it may unwind the
        // thread's stack, which stays here.
        let state = python.staying_if_ending(|| unsafe { (python.gil_ensure)() });
        Some(Self { python, state, _here: PhantomData })
    }

    /// Python's functions.
    pub(super) fn python(&self) -> &'static Table {
        self.python
    }

    /// A new reference to an object.
    pub(super) fn share(&self, object: Borrowed<'_>) -> Owned<'_> {
        // SAFETY: the object is alive, because it is borrowed; the GIL is held. A reference is added, so the object's
        // address is one that is owned here.
        let object = unsafe {
            (self.python.inc_ref)(object);
            std::mem::transmute::<Borrowed<'_>, New>(object)
        };
        self.owned(object)
    }

    /// Takes over a new reference that a function returned.
    ///
    /// # Errors
    /// The exception that Python raised, if it returned none.
    pub(super) fn own(&self, object: Option<New>) -> Result<Owned<'_>, Raised> {
        object.map(|object| self.owned(object)).ok_or_else(|| self.raised())
    }

    fn owned(&self, object: New) -> Owned<'_> {
        Owned { gil: self, object: Some(object) }
    }

    /// Calls a callable.
    ///
    /// # Errors
    /// The exception that it raised.
    pub(super) fn call(&self, callable: Borrowed<'_>, arguments: &[Borrowed<'_>]) -> Result<Owned<'_>, Raised> {
        self.own(self.vectorcall(callable, arguments))
    }

    /// [`Self::call`], of which Python still has the exception.
    fn vectorcall(&self, callable: Borrowed<'_>, arguments: &[Borrowed<'_>]) -> Option<New> {
        // SAFETY: the GIL is held; callable and arguments are alive, because they are borrowed, and as many as said.
        unsafe { (self.python.vectorcall)(callable, arguments.as_ptr(), arguments.len(), None) }
    }

    /// An item of a tuple, which keeps it alive.
    ///
    /// # Errors
    /// The exception that Python raised, if it is no tuple, or too short a one.
    pub(super) fn item<'a>(&self, tuple: Borrowed<'a>, index: usize) -> Result<Borrowed<'a>, Raised> {
        // SAFETY: the GIL is held, and the object alive, because it is borrowed; Python looks at what it is.
        unsafe { (self.python.tuple_item)(tuple, index as isize) }.ok_or_else(|| self.raised())
    }

    /// Takes the exception that Python has raised, in words.
    pub(super) fn raised(&self) -> Raised {
        let python = self.python;
        let mut parts = [None, None, None];
        let [class, exception, traceback] = &mut parts;
        // SAFETY: the GIL is held. The three places hold none or references that are owned here, before and after.
        unsafe {
            (python.error_fetch)(class, exception, traceback);
            (python.error_normalize)(class, exception, traceback);
        }
        let parts = parts.map(|part| part.map_or_else(|| self.share(python.none), |object| self.owned(object)));
        let text = self.vectorcall(python.describe, &parts.each_ref().map(Owned::borrow));
        let Some(text) = text.map(|object| self.owned(object)) else {
            self.forget_exception();
            return Raised("an exception that cannot be described".into());
        };
        let mut length = 0;
        // SAFETY: the GIL is held; the object is alive, and its text, of this length, as long as it.
        let bytes = unsafe {
            let start = (python.text)(text.borrow(), &mut length);
            (!start.is_null()).then(|| slice(start.cast::<u8>(), usize::try_from(length).unwrap_or(0)))
        };
        let bytes = bytes.unwrap_or_else(|| {
            self.forget_exception();
            b"an exception whose description is no text"
        });
        Raised(String::from_utf8_lossy(bytes).into_owned())
    }

    fn forget_exception(&self) {
        // SAFETY: the GIL is held.
        unsafe { (self.python.error_clear)() };
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
    /// `None` once it was given up.
    object: Option<New>,
}

impl<'a> Owned<'a> {
    /// Whose lock it lives under.
    pub(super) fn gil(&self) -> &'a Gil {
        self.gil
    }

    /// The object.
    pub(super) fn borrow(&self) -> Borrowed<'_> {
        self.object.as_ref().map_or(self.gil.python.none, New::borrow)
    }

    /// Passes the reference to a function that takes it over.
    pub(super) fn into_new(mut self) -> Option<New> {
        self.object.take()
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        self.gil.python.stop_if_ending();
        // SAFETY: the reference is owned here and given up once, and the GIL is held as long as it lives.
        unsafe { (self.gil.python.dec_ref)(object) };
    }
}
