// XLA FFI C ABI: how XLA calls functions from outside ("handlers") for a program's custom calls.
//
//   register: name, platform, one handler for each stage --> XLA asks the execute handler for its version (metadata)
//   compile:  instantiate   may leave a state, which belongs to the executable
//   run:      prepare, initialize, execute: one call frame each
//
// It is versioned apart from PJRT: 0.1 is jaxlib 0.6 to 0.8.0, 0.2 jaxlib 0.8.1 and 0.9, 0.3 jaxlib 0.10 and 0.11.0, 0.4
// jaxlib 0.11.2, 0.5 jaxlib 0.12. Declared here is 0.3, and what differs for those who call or are called by the others:
//   0.2, 0.3  the arguments of State_Set and State_Get changed in place. State_Set has had three forms: 48 bytes that end
//             with a deleter (0.1, and 0.2 as the XLA of November 2025 has it), 40 without it (jaxlib 0.8.1, 0.9), and 48
//             with a stage in the middle (0.3). XLA from 0.3 on takes the form of 40 bytes too, but not the one with a
//             deleter, which it takes for its own.
//   0.4       Error_GetMessage may be asked for a code as well, behind what it had (and is called GetDetails); a function
//             that looks for extensions came at the table's end; bundles have a fifth handler, `record`, which GPUs use,
//             and there is a stage of that name; Extension_Base is called InternalExtension, ExecutionContext
//             InvokeContext.
//   0.5       a function for options of one execution came at the table's end.
// XLA from 0.4 on takes the shorter structs of callers from before.
//
// Some sizes here end before the last field (XLA_FFI_CallFrame's, XLA_FFI_Type_Register_Args', XLA_FFI_Metadata's and
// XLA_FFI_Future_Create_Args'). They are what XLA's headers say: both sides read the rest all the same.
#ifndef PJRT_ARENA_XLA_FFI_H
#define PJRT_ARENA_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XLA_FFI_API_MAJOR 0
#define XLA_FFI_API_MINOR 3  // the newest minor version declared here

// X_STRUCT_SIZE and X_MIN_SIZE, as PJRT_STRUCT gives them. No struct has grown since 0.2, so the two are the same.
#define XLA_FFI_STRUCT(sname, last_field)                                                 \
  typedef struct sname sname;                                                             \
  enum {                                                                                  \
    sname##_STRUCT_SIZE = offsetof(sname, last_field) + sizeof(((sname *)0)->last_field), \
    sname##_MIN_SIZE = sname##_STRUCT_SIZE                                                \
  };
#define XLA_FFI_ARGS_HEAD \
  size_t struct_size;     \
  XLA_FFI_Extension_Base *extension_start

// ---- Extensions, version, errors --------------------------------------------------------------------------------

typedef enum {
  XLA_FFI_Extension_Metadata = 1,
} XLA_FFI_Extension_Type;

struct XLA_FFI_Extension_Base {
  size_t struct_size;
  XLA_FFI_Extension_Type type;
  struct XLA_FFI_Extension_Base *next;  // NULL ends the chain
};
XLA_FFI_STRUCT(XLA_FFI_Extension_Base, next)

struct XLA_FFI_Api_Version {
  XLA_FFI_ARGS_HEAD;
  int major_version;  // out
  int minor_version;  // out
};
XLA_FFI_STRUCT(XLA_FFI_Api_Version, minor_version)

// The codes of absl::Status, as PJRT_Error_Code.
typedef enum {
  XLA_FFI_Error_Code_OK = 0,
  XLA_FFI_Error_Code_CANCELLED = 1,
  XLA_FFI_Error_Code_UNKNOWN = 2,
  XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
  XLA_FFI_Error_Code_DEADLINE_EXCEEDED = 4,
  XLA_FFI_Error_Code_NOT_FOUND = 5,
  XLA_FFI_Error_Code_ALREADY_EXISTS = 6,
  XLA_FFI_Error_Code_PERMISSION_DENIED = 7,
  XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = 8,
  XLA_FFI_Error_Code_FAILED_PRECONDITION = 9,
  XLA_FFI_Error_Code_ABORTED = 10,
  XLA_FFI_Error_Code_OUT_OF_RANGE = 11,
  XLA_FFI_Error_Code_UNIMPLEMENTED = 12,
  XLA_FFI_Error_Code_INTERNAL = 13,
  XLA_FFI_Error_Code_UNAVAILABLE = 14,
  XLA_FFI_Error_Code_DATA_LOSS = 15,
  XLA_FFI_Error_Code_UNAUTHENTICATED = 16
} XLA_FFI_Error_Code;

// NULL is success. Whoever is given an error destroys it; that is XLA for what a handler returns.
typedef struct XLA_FFI_Error XLA_FFI_Error;

struct XLA_FFI_Error_Create_Args {
  XLA_FFI_ARGS_HEAD;
  const char *message;  // zero-terminated, copied
  XLA_FFI_Error_Code errc;
};
XLA_FFI_STRUCT(XLA_FFI_Error_Create_Args, errc)
typedef XLA_FFI_Error *XLA_FFI_Error_Create(XLA_FFI_Error_Create_Args *args);

struct XLA_FFI_Error_GetMessage_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_Error *error;
  const char *message;  // out: zero-terminated, lives as long as the error
};
XLA_FFI_STRUCT(XLA_FFI_Error_GetMessage_Args, message)
typedef void XLA_FFI_Error_GetMessage(XLA_FFI_Error_GetMessage_Args *args);

// [0.4] In the slot of Error_GetMessage.
struct XLA_FFI_Error_GetDetails_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_Error *error;
  const char *message;      // out
  XLA_FFI_Error_Code errc;  // out
};
XLA_FFI_STRUCT(XLA_FFI_Error_GetDetails_Args, errc)

struct XLA_FFI_Error_Destroy_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_Error *error;
};
XLA_FFI_STRUCT(XLA_FFI_Error_Destroy_Args, error)
typedef void XLA_FFI_Error_Destroy(XLA_FFI_Error_Destroy_Args *args);

// ---- Values -----------------------------------------------------------------------------------------------------

// The numbers of xla.PrimitiveType, not those of PJRT_Buffer_Type.
typedef enum {
  XLA_FFI_DataType_INVALID = 0,
  XLA_FFI_DataType_PRED = 1,
  XLA_FFI_DataType_S8 = 2,
  XLA_FFI_DataType_S16 = 3,
  XLA_FFI_DataType_S32 = 4,
  XLA_FFI_DataType_S64 = 5,
  XLA_FFI_DataType_U8 = 6,
  XLA_FFI_DataType_U16 = 7,
  XLA_FFI_DataType_U32 = 8,
  XLA_FFI_DataType_U64 = 9,
  XLA_FFI_DataType_F16 = 10,
  XLA_FFI_DataType_F32 = 11,
  XLA_FFI_DataType_F64 = 12,
  XLA_FFI_DataType_C64 = 15,
  XLA_FFI_DataType_BF16 = 16,
  XLA_FFI_DataType_TOKEN = 17,
  XLA_FFI_DataType_C128 = 18,
  XLA_FFI_DataType_F8E5M2 = 19,
  XLA_FFI_DataType_F8E4M3FN = 20,
  XLA_FFI_DataType_S4 = 21,
  XLA_FFI_DataType_U4 = 22,
  XLA_FFI_DataType_F8E4M3B11FNUZ = 23,
  XLA_FFI_DataType_F8E5M2FNUZ = 24,
  XLA_FFI_DataType_F8E4M3FNUZ = 25,
  XLA_FFI_DataType_S2 = 26,
  XLA_FFI_DataType_U2 = 27,
  XLA_FFI_DataType_F8E4M3 = 28,
  XLA_FFI_DataType_F8E3M4 = 29,
  XLA_FFI_DataType_S1 = 30,
  XLA_FFI_DataType_U1 = 31,
  XLA_FFI_DataType_F4E2M1FN = 32,
  XLA_FFI_DataType_F8E8M0FNU = 33,
} XLA_FFI_DataType;

struct XLA_FFI_Buffer {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_DataType dtype;
  void *data;  // sub-byte types are packed; NULL or anything when there are no elements
  int64_t rank;
  int64_t *dims;  // rank of them; row-major
};
XLA_FFI_STRUCT(XLA_FFI_Buffer, dims)

typedef struct XLA_FFI_ByteSpan {
  const char *ptr;  // not zero-terminated
  size_t len;
} XLA_FFI_ByteSpan;

typedef struct XLA_FFI_Scalar {
  XLA_FFI_DataType dtype;
  void *value;
} XLA_FFI_Scalar;

typedef struct XLA_FFI_Array {
  XLA_FFI_DataType dtype;
  size_t size;  // elements
  void *data;
} XLA_FFI_Array;

// ---- Types that handlers bring along ----------------------------------------------------------------------------

typedef struct XLA_FFI_TypeId {
  int64_t type_id;  // 0: none yet
} XLA_FFI_TypeId;

typedef struct XLA_FFI_TypeInfo {
  XLA_FFI_ARGS_HEAD;
  void (*deleter)(void *object);
} XLA_FFI_TypeInfo;
XLA_FFI_STRUCT(XLA_FFI_TypeInfo, deleter)

// With type_id 0 XLA chooses an id and writes it; a name that has one already keeps it.
struct XLA_FFI_Type_Register_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ByteSpan name;
  XLA_FFI_TypeId *type_id;  // in/out
  const XLA_FFI_TypeInfo *type_info;
};
XLA_FFI_STRUCT(XLA_FFI_Type_Register_Args, type_id)
typedef XLA_FFI_Error *XLA_FFI_Type_Register(XLA_FFI_Type_Register_Args *args);

// ---- Execution context: user data and state ---------------------------------------------------------------------

typedef enum {
  XLA_FFI_ExecutionStage_INSTANTIATE = 0,
  XLA_FFI_ExecutionStage_PREPARE = 1,
  XLA_FFI_ExecutionStage_INITIALIZE = 2,
  XLA_FFI_ExecutionStage_EXECUTE = 3,
} XLA_FFI_ExecutionStage;

typedef struct XLA_FFI_ExecutionContext XLA_FFI_ExecutionContext;

// The data that PJRT_FFI_UserData_Add put in under that type; NOT_FOUND without.
struct XLA_FFI_ExecutionContext_Get_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_TypeId *type_id;
  void *data;  // out
};
XLA_FFI_STRUCT(XLA_FFI_ExecutionContext_Get_Args, data)
typedef XLA_FFI_Error *XLA_FFI_ExecutionContext_Get(XLA_FFI_ExecutionContext_Get_Args *args);

// What computations are enqueued on, such as a CUstream; UNIMPLEMENTED on a CPU.
struct XLA_FFI_Stream_Get_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  void *stream;  // out
};
XLA_FFI_STRUCT(XLA_FFI_Stream_Get_Args, stream)
typedef XLA_FFI_Error *XLA_FFI_Stream_Get(XLA_FFI_Stream_Get_Args *args);

// [0.3] Leaves a state for later stages; XLA calls its type's deleter.
struct XLA_FFI_State_Set_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_ExecutionStage stage;  // which stage's state: one for each but EXECUTE
  XLA_FFI_TypeId *type_id;
  void *state;
};
XLA_FFI_STRUCT(XLA_FFI_State_Set_Args, state)
typedef XLA_FFI_Error *XLA_FFI_State_Set(XLA_FFI_State_Set_Args *args);

// [0.3]
struct XLA_FFI_State_Get_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId *type_id;
  void *state;  // out
};
XLA_FFI_STRUCT(XLA_FFI_State_Get_Args, state)
typedef XLA_FFI_Error *XLA_FFI_State_Get(XLA_FFI_State_Get_Args *args);

// Up to 0.2, when only the instantiate stage could leave a state. XLA's name has no `_V02`.
struct XLA_FFI_State_Set_Args_V02 {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_TypeId *type_id;
  void *state;
  void (*deleter)(void *state);  // NULL: the type's; not in the form of 40 bytes
};
XLA_FFI_STRUCT(XLA_FFI_State_Set_Args_V02, deleter)

struct XLA_FFI_State_Get_Args_V02 {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_TypeId *type_id;
  void *state;  // out
};
XLA_FFI_STRUCT(XLA_FFI_State_Get_Args_V02, state)

// ---- The call of a handler --------------------------------------------------------------------------------------

typedef enum {
  XLA_FFI_ArgType_BUFFER = 1,
} XLA_FFI_ArgType;

typedef enum {
  XLA_FFI_RetType_BUFFER = 1,
} XLA_FFI_RetType;

typedef enum {
  XLA_FFI_AttrType_ARRAY = 1,       // an XLA_FFI_Array
  XLA_FFI_AttrType_DICTIONARY = 2,  // an XLA_FFI_Attrs
  XLA_FFI_AttrType_SCALAR = 3,      // an XLA_FFI_Scalar
  XLA_FFI_AttrType_STRING = 4,      // an XLA_FFI_ByteSpan
} XLA_FFI_AttrType;

struct XLA_FFI_Args {
  XLA_FFI_ARGS_HEAD;
  int64_t size;  // of both lists
  XLA_FFI_ArgType *types;
  void **args;
};
XLA_FFI_STRUCT(XLA_FFI_Args, args)

struct XLA_FFI_Rets {
  XLA_FFI_ARGS_HEAD;
  int64_t size;  // of both lists
  XLA_FFI_RetType *types;
  void **rets;
};
XLA_FFI_STRUCT(XLA_FFI_Rets, rets)

// Sorted by name.
struct XLA_FFI_Attrs {
  XLA_FFI_ARGS_HEAD;
  int64_t size;  // of the three lists
  XLA_FFI_AttrType *types;
  XLA_FFI_ByteSpan **names;
  void **attrs;
};
XLA_FFI_STRUCT(XLA_FFI_Attrs, attrs)

typedef struct XLA_FFI_Api XLA_FFI_Api;
typedef struct XLA_FFI_Future XLA_FFI_Future;

// XLA builds one for each call. Arguments, results and attributes live until the handler returns, or its future is
// complete.
struct XLA_FFI_CallFrame {
  XLA_FFI_ARGS_HEAD;  // a call for metadata has an XLA_FFI_Metadata_Extension, and neither ctx nor arguments
  const XLA_FFI_Api *api;
  XLA_FFI_ExecutionContext *ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Args args;
  XLA_FFI_Rets rets;
  XLA_FFI_Attrs attrs;
  XLA_FFI_Future *future;  // out: not NULL when the handler goes on after it has returned
};
XLA_FFI_STRUCT(XLA_FFI_CallFrame, attrs)

// May throw a C++ exception, which XLA catches.
typedef XLA_FFI_Error *XLA_FFI_Handler(XLA_FFI_CallFrame *call_frame);

enum XLA_FFI_Handler_TraitsBits {
  XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1u << 0,
};
typedef uint32_t XLA_FFI_Handler_Traits;

// What a handler says about itself.
struct XLA_FFI_Metadata {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  XLA_FFI_Handler_Traits traits;
  XLA_FFI_TypeId state_type_id;  // 0 when it leaves no state
};
XLA_FFI_STRUCT(XLA_FFI_Metadata, traits)

struct XLA_FFI_Metadata_Extension {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata *metadata;
};
XLA_FFI_STRUCT(XLA_FFI_Metadata_Extension, metadata)

// ---- Registering ------------------------------------------------------------------------------------------------

typedef struct XLA_FFI_Handler_Bundle {
  XLA_FFI_Handler *instantiate;  // NULL: none, as with the next two
  XLA_FFI_Handler *prepare;
  XLA_FFI_Handler *initialize;
  XLA_FFI_Handler *execute;
} XLA_FFI_Handler_Bundle;

// The same bundle under the same name again is fine; another one is an error.
struct XLA_FFI_Handler_Register_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ByteSpan name;
  XLA_FFI_ByteSpan platform;
  XLA_FFI_Handler_Bundle bundle;
  XLA_FFI_Handler_Traits traits;
};
XLA_FFI_STRUCT(XLA_FFI_Handler_Register_Args, traits)
typedef XLA_FFI_Error *XLA_FFI_Handler_Register(XLA_FFI_Handler_Register_Args *args);

// ---- The table --------------------------------------------------------------------------------------------------

typedef struct XLA_FFI_InternalApi XLA_FFI_InternalApi;

#define XLA_FFI_SLOT(fname) fname *fname
// A function that we neither call nor replace.
#define XLA_FFI_UNUSED_SLOT(fname) void (*fname)(void)

// What handlers are given to call back with.
struct XLA_FFI_Api {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_Api_Version api_version;
  const XLA_FFI_InternalApi *internal_api;
  XLA_FFI_SLOT(XLA_FFI_Error_Create);
  XLA_FFI_SLOT(XLA_FFI_Error_GetMessage);
  XLA_FFI_SLOT(XLA_FFI_Error_Destroy);
  XLA_FFI_SLOT(XLA_FFI_Handler_Register);
  XLA_FFI_SLOT(XLA_FFI_Stream_Get);
  XLA_FFI_SLOT(XLA_FFI_Type_Register);
  XLA_FFI_SLOT(XLA_FFI_ExecutionContext_Get);
  XLA_FFI_SLOT(XLA_FFI_State_Set);
  XLA_FFI_SLOT(XLA_FFI_State_Get);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_DeviceMemory_Allocate);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_DeviceMemory_Free);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_ThreadPool_Schedule);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_ThreadPool_NumThreads);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_Future_Create);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_Future_SetAvailable);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_Future_SetError);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_RunId_Get);
  XLA_FFI_UNUSED_SLOT(XLA_FFI_DeviceOrdinal_Get);
};
XLA_FFI_STRUCT(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get)

typedef struct XLA_FFI_Extension XLA_FFI_Extension;

// [0.4] What the runtime attached to this execution under a number; NULL when there is nothing.
struct XLA_FFI_InvokeContext_FindExtension_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  int64_t extension_type;
  const XLA_FFI_Extension *extension;  // out
};
XLA_FFI_STRUCT(XLA_FFI_InvokeContext_FindExtension_Args, extension)
typedef XLA_FFI_Error *XLA_FFI_InvokeContext_FindExtension(XLA_FFI_InvokeContext_FindExtension_Args *args);

// [0.5] The options that this execution was given; without any, a dictionary of size 0, whose lists may be NULL.
struct XLA_FFI_CustomOptions_Get_Args {
  XLA_FFI_ARGS_HEAD;
  XLA_FFI_ExecutionContext *ctx;
  const XLA_FFI_Attrs *attrs;  // out
};
XLA_FFI_STRUCT(XLA_FFI_CustomOptions_Get_Args, attrs)
typedef XLA_FFI_Error *XLA_FFI_CustomOptions_Get(XLA_FFI_CustomOptions_Get_Args *args);

// The table as handlers of 0.5 expect it. They look for the last function before they call it, but not for the one
// before. XLA's name has no `_V05`.
struct XLA_FFI_Api_V05 {
  XLA_FFI_Api base;
  XLA_FFI_SLOT(XLA_FFI_InvokeContext_FindExtension);  // [0.4]
  XLA_FFI_SLOT(XLA_FFI_CustomOptions_Get);
};
XLA_FFI_STRUCT(XLA_FFI_Api_V05, XLA_FFI_CustomOptions_Get)

#undef XLA_FFI_UNUSED_SLOT
#undef XLA_FFI_SLOT
#undef XLA_FFI_ARGS_HEAD
#undef XLA_FFI_STRUCT

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_XLA_FFI_H
