//! Jobs of several processes: who has how many GPUs, told and asked through the caller's store of keys and values, as
//! XLA does (`ExchangeTopologies` in `topology_util.cc`).
//!
//! ```text
//!  node 0     put local/0    get local/0 .. local/n-1    put global    get global
//!  node 1     put local/1                                              get global  <- waits
//! ```
//!
//! The values of the store are the caller's: each one is copied, and then deleted by the function that came with it.

use std::ffi::{c_char, c_int};

use crate::{
    entry::{list, text},
    error::{Error, Result},
    platform::platform,
    sys::{self, CStruct},
};

/// How long a node waits for the others' GPUs, and for what the first makes of them, as in XLA
/// (`se_gpu_pjrt_client.h`).
const LOCAL_TIMEOUT_MS: c_int = 120_000;
const GLOBAL_TIMEOUT_MS: c_int = 300_000;

/// The place of a process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Which one it is, from 0.
    pub id: i64,
    /// How many there are.
    pub nodes: i64,
}

impl Default for Node {
    fn default() -> Self {
        Self { id: 0, nodes: 1 }
    }
}

/// The caller's store.
struct Store<'a>(&'a sys::PJRT_Client_Create_Args);

/// How a callback makes an error; the caller destroys none of them.
static CALLBACK_ERROR: sys::PJRT_CallbackError = Some(callback_error);

unsafe extern "C" fn callback_error(
    code: sys::PJRT_Error_Code,
    message: *const c_char,
    size: usize,
) -> *mut sys::PJRT_Error {
    // SAFETY: a callback passes its own text.
    Error::new(code, unsafe { text(message, size) }).into_raw()
}

/// What a callback returned.
///
/// # Safety
/// `error` must be NULL or one of [`callback_error`]'s, and nobody else destroy it.
unsafe fn outcome(error: *mut sys::PJRT_Error, what: &str, key: &str) -> Result {
    // SAFETY: the caller's promise.
    match unsafe { Error::from_raw(error) } {
        None => Ok(()),
        Some(error) => Err(Error::new(error.code, format!("{what} of the key {key}: {error}"))),
    }
}

/// Copies a value, and deletes the caller's.
///
/// # Safety
/// The value must be as long as said, and `delete` fit for it.
unsafe fn take(value: *mut c_char, size: usize, delete: Option<unsafe extern "C" fn(*mut c_char)>) -> String {
    // SAFETY: the caller's promise.
    unsafe {
        let copy = text(value, size);
        if let Some(delete) = delete {
            delete(value);
        }
        copy
    }
}

impl Store<'_> {
    fn get(&self, key: &str, timeout_in_ms: c_int) -> Result<String> {
        let get = self.0.kv_get_callback.ok_or_else(missing)?;
        let mut args = sys::PJRT_KeyValueGetCallback_Args {
            struct_size: sys::PJRT_KeyValueGetCallback_Args::STRUCT_SIZE,
            key: key.as_ptr().cast(),
            key_size: key.len(),
            timeout_in_ms,
            callback_error: (&raw const CALLBACK_ERROR).cast_mut(),
            user_arg: self.0.kv_get_user_arg,
            ..Default::default()
        };
        // SAFETY: the struct is whole; the callback and its argument are the caller's, and go together.
        unsafe {
            outcome(get(&raw mut args), "get", key)?;
            Ok(take(args.value, args.value_size, args.value_deleter_callback))
        }
    }

    /// `None` where the key is not there.
    fn try_get(&self, key: &str) -> Result<Option<String>> {
        let Some(get) = self.0.kv_try_get_callback else { return Ok(None) };
        let mut args = sys::PJRT_KeyValueTryGetCallback_Args {
            struct_size: sys::PJRT_KeyValueTryGetCallback_Args::STRUCT_SIZE,
            key: key.as_ptr().cast(),
            key_size: key.len(),
            callback_error: (&raw const CALLBACK_ERROR).cast_mut(),
            user_arg: self.0.kv_try_get_user_arg,
            ..Default::default()
        };
        // SAFETY: as in `get`.
        unsafe {
            match outcome(get(&raw mut args), "try_get", key) {
                Ok(()) => Ok(Some(take(args.value, args.value_size, args.value_deleter_callback))),
                Err(error) if error.code == sys::PJRT_Error_Code_NOT_FOUND => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    fn put(&self, key: &str, value: &str) -> Result {
        let put = self.0.kv_put_callback.ok_or_else(missing)?;
        let mut args = sys::PJRT_KeyValuePutCallback_Args {
            struct_size: sys::PJRT_KeyValuePutCallback_Args::STRUCT_SIZE,
            key: key.as_ptr().cast(),
            key_size: key.len(),
            value: value.as_ptr().cast(),
            value_size: value.len(),
            callback_error: (&raw const CALLBACK_ERROR).cast_mut(),
            user_arg: self.0.kv_put_user_arg,
            ..Default::default()
        };
        // SAFETY: as in `get`.
        unsafe { outcome(put(&raw mut args), "put", key) }
    }
}

fn missing() -> Error {
    Error::invalid("num_nodes is more than 1, but PJRT_Client_Create was given no store of keys and values")
}

/// How many GPUs each node has, in the nodes' order; this one has `own`.
///
/// # Errors
/// The store's, or what is wrong with a node's number.
pub fn exchange(args: &sys::PJRT_Client_Create_Args, node: Node, own: usize) -> Result<Vec<usize>> {
    if node.nodes == 1 {
        return Ok(vec![own]);
    }
    if !(0..node.nodes).contains(&node.id) {
        return Err(Error::invalid(format!("node_id is {}; allowed are 0 to {}", node.id, node.nodes - 1)));
    }
    let store = Store(args);
    let platform = platform().name;
    let local = |id: i64| format!("local_topology/{platform}/{id}");
    let global = format!("global_topology/{platform}");
    let mine = own.to_string();
    match store.try_get(&local(node.id))? {
        // Told before this process was started again.
        Some(told) if told == mine => {}
        Some(told) => {
            return Err(Error::internal(format!("node {} had {told} GPUs before, and has {mine} now", node.id)));
        }
        None => store.put(&local(node.id), &mine)?,
    }
    if node.id == 0 {
        let all = (0..node.nodes).map(|id| store.get(&local(id), LOCAL_TIMEOUT_MS)).collect::<Result<Vec<_>>>()?;
        store.put(&global, &all.join(" "))?;
    }
    let all = store.get(&global, GLOBAL_TIMEOUT_MS)?;
    let counts = all.split(' ').map(str::parse).collect::<Result<Vec<usize>, _>>();
    let counts = counts.ok().filter(|counts| counts.len() as i64 == node.nodes && counts[node.id as usize] == own);
    counts.ok_or_else(|| Error::internal(format!("{global} is {all:?}, which node {} is no part of", node.id)))
}

/// Handles of the C API that a client keeps as a list.
#[derive(Debug)]
pub struct Handles<T>(Vec<*mut T>);

// SAFETY: names that are handed out, which any thread may use.
unsafe impl<T> Send for Handles<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handles<T> {}

impl<T> Handles<T> {
    /// Copies a list of the C API's.
    ///
    /// # Safety
    /// `data` must be NULL or point to `len` handles.
    pub unsafe fn copy(data: *const *mut T, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { list(data, len) }.to_vec())
    }

    /// The list, for the C API.
    pub fn as_list(&self) -> (*const *mut T, usize) {
        (self.0.as_ptr(), self.0.len())
    }

    /// Some of them.
    pub fn only(mut self, keep: impl Fn(*mut T) -> bool) -> Self {
        self.0.retain(|&handle| keep(handle));
        self
    }
}

impl<T> From<Vec<*mut T>> for Handles<T> {
    fn from(handles: Vec<*mut T>) -> Self {
        Self(handles)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, ffi::c_void, ptr, thread};

    use parking_lot::{Condvar, Mutex};

    use super::*;

    /// A store as jaxlib has one, and how many values of it were not deleted.
    #[derive(Default)]
    struct Shared {
        values: Mutex<HashMap<String, String>>,
        changed: Condvar,
    }

    static OUTSTANDING: Mutex<i64> = Mutex::new(0);

    unsafe extern "C" fn delete(value: *mut c_char) {
        *OUTSTANDING.lock() -= 1;
        // SAFETY: `give` made it.
        drop(unsafe { std::ffi::CString::from_raw(value) });
    }

    fn give(value: &str) -> (*mut c_char, usize) {
        *OUTSTANDING.lock() += 1;
        (std::ffi::CString::new(value).expect("no NUL").into_raw(), value.len())
    }

    unsafe fn shared<'a>(argument: *mut c_void) -> &'a Shared {
        // SAFETY: the tests pass one that outlives the call.
        unsafe { &*argument.cast::<Shared>() }
    }

    unsafe extern "C" fn get(args: *mut sys::PJRT_KeyValueGetCallback_Args) -> *mut sys::PJRT_Error {
        // SAFETY: the engine's struct.
        unsafe {
            let args = &mut *args;
            let (store, key) = (shared(args.user_arg), text(args.key, args.key_size));
            let mut values = store.values.lock();
            while !values.contains_key(&key) {
                store.changed.wait(&mut values);
            }
            (args.value, args.value_size) = give(&values[&key]);
            args.value_deleter_callback = Some(delete);
        }
        ptr::null_mut()
    }

    unsafe extern "C" fn try_get(args: *mut sys::PJRT_KeyValueTryGetCallback_Args) -> *mut sys::PJRT_Error {
        // SAFETY: the engine's struct.
        unsafe {
            let args = &mut *args;
            let key = text(args.key, args.key_size);
            let Some(value) = shared(args.user_arg).values.lock().get(&key).cloned() else {
                let said = "no such key";
                let error = (*args.callback_error).expect("a function");
                return error(sys::PJRT_Error_Code_NOT_FOUND, said.as_ptr().cast(), said.len());
            };
            (args.value, args.value_size) = give(&value);
            args.value_deleter_callback = Some(delete);
        }
        ptr::null_mut()
    }

    unsafe extern "C" fn put(args: *mut sys::PJRT_KeyValuePutCallback_Args) -> *mut sys::PJRT_Error {
        // SAFETY: the engine's struct.
        unsafe {
            let args = &*args;
            let (key, value) = (text(args.key, args.key_size), text(args.value, args.value_size));
            let store = shared(args.user_arg);
            store.values.lock().insert(key, value);
            store.changed.notify_all();
        }
        ptr::null_mut()
    }

    fn with(store: &Shared) -> sys::PJRT_Client_Create_Args {
        let argument: *mut c_void = ptr::from_ref(store).cast_mut().cast();
        sys::PJRT_Client_Create_Args {
            kv_get_callback: Some(get),
            kv_get_user_arg: argument,
            kv_put_callback: Some(put),
            kv_put_user_arg: argument,
            kv_try_get_callback: Some(try_get),
            kv_try_get_user_arg: argument,
            ..Default::default()
        }
    }

    #[test]
    fn nodes_learn_of_each_other_and_every_value_is_deleted() {
        let store = Shared::default();
        let counts = thread::scope(|scope| {
            let node = |id: i64| {
                let store = &store;
                scope.spawn(move || exchange(&with(store), Node { id, nodes: 3 }, id as usize + 1))
            };
            let threads: Vec<_> = (0..3).map(node).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert_eq!(counts, [Ok(vec![1, 2, 3]), Ok(vec![1, 2, 3]), Ok(vec![1, 2, 3])]);
        // One that was started again says the same, or is refused.
        assert_eq!(exchange(&with(&store), Node { id: 1, nodes: 3 }, 2), Ok(vec![1, 2, 3]));
        let other = exchange(&with(&store), Node { id: 1, nodes: 3 }, 4).expect_err("another number");
        assert!(other.message.contains("node 1 had 2 GPUs before, and has 4 now"), "{other}");
        assert_eq!(*OUTSTANDING.lock(), 0);
        let alone = sys::PJRT_Client_Create_Args::default();
        assert_eq!(exchange(&alone, Node::default(), 5), Ok(vec![5]));
        let none = exchange(&alone, Node { id: 0, nodes: 2 }, 1).expect_err("no store");
        assert!(none.message.contains("no store of keys"), "{none}");
        assert!(exchange(&with(&store), Node { id: 3, nodes: 3 }, 1).is_err());
    }
}
