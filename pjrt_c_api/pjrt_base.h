// PJRT C ABI, part 1: versions, extensions, errors, named values, the plugin itself, events, element types, layouts.
#ifndef PJRT_ARENA_PJRT_BASE_H
#define PJRT_ARENA_PJRT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- How a struct's size is told --------------------------------------------------------------------------------

#define PJRT_STRUCT_SIZE(sname, last_field) (offsetof(sname, last_field) + sizeof(((sname *)0)->last_field))

// Every structure that callers and plugins exchange starts like this. `struct_size` is what the *caller* was compiled
// with: a callee may read and write only the fields that lie inside it.
#define PJRT_ARGS_HEAD \
  size_t struct_size;  \
  PJRT_Extension_Base *extension_start

// Names the struct and gives two constants, in bytes:
//   X_STRUCT_SIZE  what a caller compiled with this header puts in struct_size (no padding behind the last field);
//   X_MIN_SIZE     the smallest struct_size that a caller of 0.54 or later may pass.
// They differ only where a struct grew (the _GREW forms, which take the last field of the smallest form).
#define PJRT_STRUCT_GREW(sname, min_last_field, last_field)       \
  typedef struct sname sname;                                     \
  enum {                                                          \
    sname##_STRUCT_SIZE = PJRT_STRUCT_SIZE(sname, last_field),    \
    sname##_MIN_SIZE = PJRT_STRUCT_SIZE(sname, min_last_field)    \
  };
#define PJRT_STRUCT(sname, last_field) PJRT_STRUCT_GREW(sname, last_field, last_field)

// The function type F, which takes F_Args, and F_Args' sizes. NULL means success; an error is the caller's to destroy.
#define PJRT_FN_GREW(fname, min_last_field, last_field)            \
  PJRT_STRUCT_GREW(fname##_Args, min_last_field, last_field)       \
  typedef PJRT_Error *fname(fname##_Args *args);
#define PJRT_FN(fname, last_field) PJRT_FN_GREW(fname, last_field, last_field)
#define PJRT_VOID_FN(fname, last_field)  \
  PJRT_STRUCT(fname##_Args, last_field)  \
  typedef void fname(fname##_Args *args);

// A slot in a function table: a pointer to the function type of the same name.
#define PJRT_SLOT(fname) fname *fname

// ---- Extensions and version -------------------------------------------------------------------------------------

typedef enum {
  PJRT_Extension_Type_Gpu_Custom_Call = 0,
  PJRT_Extension_Type_Profiler = 1,
  PJRT_Extension_Type_Custom_Partitioner = 2,
  PJRT_Extension_Type_Stream = 3,
  PJRT_Extension_Type_Layouts = 4,
  PJRT_Extension_Type_FFI = 5,
  PJRT_Extension_Type_MemoryDescriptions = 6,    // [0.59]
  PJRT_Extension_Type_Triton = 7,                // [0.65]
  PJRT_Extension_Type_RawBuffer = 8,             // experimental
  PJRT_Extension_Type_PhaseCompile = 9,          // experimental
  PJRT_Extension_Type_Example = 10,
  PJRT_Extension_Type_Unknown = 11,
  PJRT_Extension_Type_CrossHostTransfers = 12,   // [0.74]
  PJRT_Extension_Type_ExecutableMetadata = 13,
  PJRT_Extension_Type_Callback = 14,
  PJRT_Extension_Type_HostAllocator = 15,        // [0.80], deprecated since
  PJRT_Extension_Type_TpuTopology = 16,          // [0.82]
  PJRT_Extension_Type_TpuExecutable = 17,
  PJRT_Extension_Type_Megascale = 18,
  PJRT_Extension_Type_Shardings = 19,            // [0.91]
  PJRT_Extension_Type_AbiVersion = 20,
  PJRT_Extension_Type_Collectives = 21,
  PJRT_Extension_Type_MultiSlice = 22,
  PJRT_Extension_Type_HostMemoryAllocator = 23,
  PJRT_Extension_Type_XlaTransform = 24,
} PJRT_Extension_Type;

// One link of a chain of extensions; a real extension has this as its first field.
struct PJRT_Extension_Base {
  size_t struct_size;
  PJRT_Extension_Type type;
  struct PJRT_Extension_Base *next;  // NULL ends the chain
};
PJRT_STRUCT(PJRT_Extension_Base, next)

#define PJRT_API_MAJOR 0    // a caller and a plugin must agree on it
#define PJRT_API_MINOR 115  // the newest minor version declared here; higher ones only add

// The version that the plugin was compiled against.
struct PJRT_Api_Version {
  PJRT_ARGS_HEAD;
  int major_version;  // out
  int minor_version;  // out
};
PJRT_STRUCT(PJRT_Api_Version, minor_version)

// ---- Errors -----------------------------------------------------------------------------------------------------

typedef struct PJRT_Error PJRT_Error;

// The codes of absl::Status.
typedef enum {
  PJRT_Error_Code_OK = 0,
  PJRT_Error_Code_CANCELLED = 1,
  PJRT_Error_Code_UNKNOWN = 2,
  PJRT_Error_Code_INVALID_ARGUMENT = 3,
  PJRT_Error_Code_DEADLINE_EXCEEDED = 4,
  PJRT_Error_Code_NOT_FOUND = 5,
  PJRT_Error_Code_ALREADY_EXISTS = 6,
  PJRT_Error_Code_PERMISSION_DENIED = 7,
  PJRT_Error_Code_RESOURCE_EXHAUSTED = 8,
  PJRT_Error_Code_FAILED_PRECONDITION = 9,
  PJRT_Error_Code_ABORTED = 10,
  PJRT_Error_Code_OUT_OF_RANGE = 11,
  PJRT_Error_Code_UNIMPLEMENTED = 12,
  PJRT_Error_Code_INTERNAL = 13,
  PJRT_Error_Code_UNAVAILABLE = 14,
  PJRT_Error_Code_DATA_LOSS = 15,
  PJRT_Error_Code_UNAUTHENTICATED = 16
} PJRT_Error_Code;

// Gives the error back; NULL is allowed.
struct PJRT_Error_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Error *error;
};
PJRT_VOID_FN(PJRT_Error_Destroy, error)

// The text for people; not zero-terminated, and valid as long as the error.
struct PJRT_Error_Message_Args {
  PJRT_ARGS_HEAD;
  const PJRT_Error *error;
  const char *message; size_t message_size;  // out
};
PJRT_VOID_FN(PJRT_Error_Message, message_size)

struct PJRT_Error_GetCode_Args {
  PJRT_ARGS_HEAD;
  const PJRT_Error *error;
  PJRT_Error_Code code;  // out
};
PJRT_FN(PJRT_Error_GetCode, code)

// Called once for each payload; the strings live for the call only.
typedef void (*PJRT_Error_PayloadVisitor)(const char *key, size_t key_size, const char *value, size_t value_size,
                                          void *user_arg);
// [0.99] Shows each payload (a key and bytes attached to the status) to the visitor.
struct PJRT_Error_ForEachPayload_Args {
  PJRT_ARGS_HEAD;
  const PJRT_Error *error;
  PJRT_Error_PayloadVisitor visitor;
  void *user_arg;
};
PJRT_FN(PJRT_Error_ForEachPayload, user_arg)

// [0.107] Through these an error made by one library is read and destroyed by another.
struct PJRT_Error_FunctionTable {
  size_t struct_size;  // of this table
  size_t instance_size;  // of the PJRT_Error that carries it
  PJRT_Extension_Base *extension_start;
  void (*destroy)(PJRT_Error *error);
  void (*message)(const PJRT_Error *error, const char **message, size_t *message_size);
  PJRT_Error_Code (*get_code)(const PJRT_Error *error);
  void (*for_each_payload)(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg);
};
PJRT_STRUCT(PJRT_Error_FunctionTable, for_each_payload)

// Since 0.107 an error starts with its table; before, its contents were the plugin's own business.
struct PJRT_Error {
  const struct PJRT_Error_FunctionTable *vtable;
};
PJRT_STRUCT(PJRT_Error, vtable)

// What a plugin hands to a caller's callback so that the callback can make an error; `message` is copied.
typedef PJRT_Error *(*PJRT_CallbackError)(PJRT_Error_Code code, const char *message, size_t message_size);

// ---- Named values and the plugin --------------------------------------------------------------------------------

typedef enum {
  PJRT_NamedValue_kString = 0,
  PJRT_NamedValue_kInt64 = 1,
  PJRT_NamedValue_kInt64List = 2,
  PJRT_NamedValue_kFloat = 3,
  PJRT_NamedValue_kBool = 4,
} PJRT_NamedValue_Type;

// An option or an attribute: a name, and a value of one of five types.
struct PJRT_NamedValue {
  PJRT_ARGS_HEAD;
  const char *name; size_t name_size;
  PJRT_NamedValue_Type type;
  union {
    const char *string_value;
    int64_t int64_value;
    const int64_t *int64_array_value;
    float float_value;
    bool bool_value;
  };
  size_t value_size;  // bytes of a string, elements of a list, 1 for a scalar
};
PJRT_STRUCT(PJRT_NamedValue, value_size)

// Called once, before anything else.
struct PJRT_Plugin_Initialize_Args {
  PJRT_ARGS_HEAD;
};
PJRT_FN(PJRT_Plugin_Initialize, extension_start)

// Facts about the plugin, such as the StableHLO versions that it accepts; valid for the process. Callers
// older than the fix of 0.71 (jaxlib 0.6) send a struct_size that leaves out num_attributes although they
// read it.
struct PJRT_Plugin_Attributes_Args {
  PJRT_ARGS_HEAD;
  const PJRT_NamedValue *attributes; size_t num_attributes;  // out
};
PJRT_FN_GREW(PJRT_Plugin_Attributes, attributes, num_attributes)

// ---- Events: the end of something asynchronous, with or without an error ----------------------------------------

typedef struct PJRT_Event PJRT_Event;

// Gives the handle back, whether the event happened or not; NULL is allowed.
struct PJRT_Event_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
};
PJRT_FN(PJRT_Event_Destroy, event)

// Whether it happened, with or without an error; does not block.
struct PJRT_Event_IsReady_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
  bool is_ready;  // out
};
PJRT_FN(PJRT_Event_IsReady, is_ready)

// The event's error, NULL for none; a new PJRT_Error each time. Only for events that happened.
struct PJRT_Event_Error_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
};
PJRT_FN(PJRT_Event_Error, event)

// Blocks until the event happens, then answers as PJRT_Event_Error does.
struct PJRT_Event_Await_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
};
PJRT_FN(PJRT_Event_Await, event)

// Gets the event's error to keep (NULL for none). Runs on the registering thread or on one of the plugin's.
typedef void (*PJRT_Event_OnReadyCallback)(PJRT_Error *error, void *user_arg);
// Has the callback called once the event happens, at once if it did.
struct PJRT_Event_OnReady_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
  PJRT_Event_OnReadyCallback callback;
  void *user_arg;
};
PJRT_FN(PJRT_Event_OnReady, user_arg)

// [0.89] Makes an event that PJRT_Event_Set fires.
struct PJRT_Event_Create_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;  // out
};
PJRT_FN(PJRT_Event_Create, event)

// [0.89] Fires an event of PJRT_Event_Create; the message is copied.
struct PJRT_Event_Set_Args {
  PJRT_ARGS_HEAD;
  PJRT_Event *event;
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;
};
PJRT_FN(PJRT_Event_Set, error_message_size)

// ---- Element types, layouts, shapes -----------------------------------------------------------------------------

typedef enum {
  PJRT_Buffer_Type_INVALID = 0,
  PJRT_Buffer_Type_PRED = 1,  // one byte, 0 or 1
  PJRT_Buffer_Type_S8 = 2,
  PJRT_Buffer_Type_S16 = 3,
  PJRT_Buffer_Type_S32 = 4,
  PJRT_Buffer_Type_S64 = 5,
  PJRT_Buffer_Type_U8 = 6,
  PJRT_Buffer_Type_U16 = 7,
  PJRT_Buffer_Type_U32 = 8,
  PJRT_Buffer_Type_U64 = 9,
  PJRT_Buffer_Type_F16 = 10,
  PJRT_Buffer_Type_F32 = 11,
  PJRT_Buffer_Type_F64 = 12,
  PJRT_Buffer_Type_BF16 = 13,
  PJRT_Buffer_Type_C64 = 14,   // two F32
  PJRT_Buffer_Type_C128 = 15,  // two F64
  PJRT_Buffer_Type_F8E5M2 = 16,
  PJRT_Buffer_Type_F8E4M3FN = 17,
  PJRT_Buffer_Type_F8E4M3B11FNUZ = 18,
  PJRT_Buffer_Type_F8E5M2FNUZ = 19,
  PJRT_Buffer_Type_F8E4M3FNUZ = 20,
  PJRT_Buffer_Type_S4 = 21,
  PJRT_Buffer_Type_U4 = 22,
  PJRT_Buffer_Type_TOKEN = 23,  // no bytes: orders side effects
  PJRT_Buffer_Type_S2 = 24,
  PJRT_Buffer_Type_U2 = 25,
  PJRT_Buffer_Type_F8E4M3 = 26,     // [0.55]
  PJRT_Buffer_Type_F8E3M4 = 27,     // [0.55]
  PJRT_Buffer_Type_F8E8M0FNU = 28,  // [0.63]
  PJRT_Buffer_Type_F4E2M1FN = 29,   // [0.63]
  PJRT_Buffer_Type_S1 = 30,         // [0.94]
  PJRT_Buffer_Type_U1 = 31,         // [0.94]
  PJRT_Buffer_Type_F6E2M3FN = 32,   // [0.114]
  PJRT_Buffer_Type_F6E3M2FN = 33,   // [0.114]
} PJRT_Buffer_Type;

// How long the host's bytes stay readable and unchanged after PJRT_Client_BufferFromHostBuffer.
typedef enum {
  PJRT_HostBufferSemantics_kImmutableOnlyDuringCall = 0,           // until the call returns
  PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes = 1,   // until done_with_host_buffer
  PJRT_HostBufferSemantics_kImmutableZeroCopy = 2,  // as long as the buffer, which may alias but not change them
  PJRT_HostBufferSemantics_kMutableZeroCopy = 3,    // the same, and the buffer may change them too
} PJRT_HostBufferSemantics;

typedef enum {
  PJRT_Buffer_MemoryLayout_Type_Tiled = 0,
  PJRT_Buffer_MemoryLayout_Type_Strides = 1,
} PJRT_Buffer_MemoryLayout_Type;

// Logical dimensions from the fastest varying to the slowest, then tiles.
struct PJRT_Buffer_MemoryLayout_Tiled {
  PJRT_ARGS_HEAD;
  const int64_t *minor_to_major; size_t minor_to_major_size;  // one entry for each dimension
  const int64_t *tile_dims;  // all tiles' dimensions, one after another
  const size_t *tile_dim_sizes; size_t num_tiles;  // how many of them each tile has
};
PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Tiled, num_tiles)

// One stride in bytes for each dimension; may be negative.
struct PJRT_Buffer_MemoryLayout_Strides {
  PJRT_ARGS_HEAD;
  const int64_t *byte_strides; size_t num_byte_strides;
};
PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Strides, num_byte_strides)

struct PJRT_Buffer_MemoryLayout {
  PJRT_ARGS_HEAD;
  union {
    PJRT_Buffer_MemoryLayout_Tiled tiled;
    PJRT_Buffer_MemoryLayout_Strides strides;
  };
  PJRT_Buffer_MemoryLayout_Type type;
};
PJRT_STRUCT(PJRT_Buffer_MemoryLayout, type)

// An array's dimensions and element type.
struct PJRT_ShapeSpec {
  PJRT_ARGS_HEAD;
  const int64_t *dims; size_t num_dims;
  PJRT_Buffer_Type element_type;
};
PJRT_STRUCT(PJRT_ShapeSpec, element_type)

// A program's text, and its format: "mlir" (text, bytecode, portable artifact), "hlo", "hlo_with_config".
struct PJRT_Program {
  PJRT_ARGS_HEAD;
  char *code;  // in/out: the caller's bytes going in; see PJRT_Executable_OptimizedProgram for coming out
  size_t code_size;
  const char *format; size_t format_size;
};
PJRT_STRUCT(PJRT_Program, format_size)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_BASE_H
