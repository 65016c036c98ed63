//! A program that stops where the test wants it: it makes "while the program runs" a fact instead of a guess about
//! time.
//!
//! The gate programs call this handler with their data and a ticket. The handler does what the ticket's gate says (wait
//! until it is opened, run a closure, or fail), then copies the data through.

use std::{
    collections::HashMap,
    ffi::{CString, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicI32, Ordering},
    },
};

use crate::{
    Program,
    event::Signal,
    ffi::{self, CallFrame},
    plugin,
};

type Action = Arc<dyn Fn(&CallFrame) -> Result<(), String> + Send + Sync>;

struct Inner {
    reached: Signal<()>,
    action: Action,
}

/// One gate; programs reach it through its [`Gate::ticket`].
pub struct Gate {
    ticket: i32,
    reached: Signal<()>,
    open: Signal<()>,
}

static GATES: Mutex<Option<HashMap<i32, Inner>>> = Mutex::new(None);
static TICKETS: AtomicI32 = AtomicI32::new(1);

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        let open = Signal::<()>::default();
        let waiting = open.clone();
        Self::with(
            open,
            Arc::new(move |_| {
                waiting.wait();
                Ok(())
            }),
        )
    }

    /// An open gate that runs `action` in the middle of the program; an `Err` fails the program.
    pub fn running(action: impl Fn(&CallFrame) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self::with(Signal::default(), Arc::new(action))
    }

    fn with(open: Signal<()>, action: Action) -> Self {
        register();
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        let reached = Signal::default();
        let inner = Inner { reached: reached.clone(), action };
        GATES.lock().expect("no holder panics").get_or_insert_default().insert(ticket, inner);
        Self { ticket, reached, open }
    }

    /// What the program's `s32[]` argument must hold.
    pub fn ticket(&self) -> i32 {
        self.ticket
    }

    /// Waits until a program stands at the gate.
    pub fn wait_reached(&self) {
        self.reached.wait();
    }

    /// Whether a program has come to the gate.
    pub fn is_reached(&self) -> bool {
        self.reached.get().is_some()
    }

    /// Lets programs through.
    pub fn open(&self) {
        if self.open.get().is_none() {
            self.open.set(());
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A failing test must not leave an engine thread waiting for ever.
        self.open();
    }
}

fn register() {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| ffi::register(plugin(), "pjrt_arena_test_gate", handler).expect("registering the gate"));
}

/// Registers the handler without making a gate: compiling a gate program needs it.
pub fn prepare() {
    register();
}

/// Registers the handler under another name too, once, for programs that call it so.
pub fn prepare_as(name: &str) {
    ffi::register(plugin(), name, handler).expect("registering the gate");
}

/// Registers the handler as `pjrt_arena_test_callback`. It says that it was made for a newer XLA FFI than the engine's,
/// so the library calls it, and knows that what it asks for, a program waits for.
pub fn prepare_callback() {
    ffi::register(plugin(), "pjrt_arena_test_callback", callback).expect("registering the gate");
}

/// `f32[1024]`: `x` behind a gate whose action is a callback to the library; light enough that the calling thread runs
/// it inside of Execute, so that what others run at the same time is not queued behind it.
pub fn calling_back() -> Program {
    prepare_callback();
    Program::text(
        "module {
          func.func public @main(%x: tensor<1024xf32>, %t: tensor<i32>) -> tensor<1024xf32> {
            %y = stablehlo.custom_call @pjrt_arena_test_callback(%x, %t)
              {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
              : (tensor<1024xf32>, tensor<i32>) -> tensor<1024xf32>
            return %y : tensor<1024xf32>
          }
        }",
    )
}

unsafe extern "C" fn callback(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the engine passes a frame that lives through the call.
    if unsafe { (*frame).answer_with(3) } {
        return ptr::null_mut();
    }
    // SAFETY: as above; what the gate needs of the frame and of the table is the same in 0.3.
    unsafe { handler(frame) }
}

unsafe extern "C" fn handler(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the engine passes a frame that lives through the call.
    let frame = unsafe { &mut *frame };
    if frame.answer_metadata() {
        return ptr::null_mut();
    }
    match catch_unwind(AssertUnwindSafe(|| pass(frame))) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(message)) => frame.error(&CString::new(message).unwrap_or_default()),
        Err(_) => frame.error(c"the gate's action panicked"),
    }
}

fn pass(frame: &mut CallFrame) -> Result<(), String> {
    let ticket = frame.argument::<i32>(1)[0];
    let (reached, action) = {
        let gates = GATES.lock().map_err(|e| e.to_string())?;
        let gate = gates.as_ref().and_then(|gates| gates.get(&ticket)).ok_or(format!("no gate has ticket {ticket}"))?;
        (gate.reached.clone(), Arc::clone(&gate.action))
    };
    if reached.get().is_none() {
        reached.set(());
    }
    action(frame)?;
    let values = frame.argument::<f32>(0).to_vec();
    frame.result::<f32>(0).copy_from_slice(&values);
    Ok(())
}
