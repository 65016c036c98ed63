//! Values that the caller of the C API owns, and gives back to a function that destroys them.

/// A function that destroys what a handle stands for.
pub type Deleter<H> = unsafe extern "C" fn(*mut H);

/// A handle of `value` for the caller, and the function that the caller destroys it with.
pub fn owned<T: Send + 'static, H>(value: T) -> (*mut H, Option<Deleter<H>>) {
    (Box::into_raw(Box::new(value)).cast(), Some(delete::<T, H>))
}

/// Destroys what [`owned`] made; NULL is fine.
///
/// # Safety
/// `handle` must be NULL or of `owned::<T, H>`, and not be used again.
pub unsafe extern "C" fn delete<T, H>(handle: *mut H) {
    if !handle.is_null() {
        // SAFETY: the handle is not NULL, so it is a box of a `T`, and this is its end, as this function asks.
        drop(unsafe { Box::from_raw(handle.cast::<T>()) });
    }
}
