// PJRT C ABI: the extensions that we must understand, because their functions take a PJRT_Buffer or a PJRT_Executable
// or because we use them ourselves. For every other extension PJRT_Extension_Base is enough: we copy base.struct_size
// bytes and pass the table on.
//
// An extension's table starts with PJRT_Extension_Base and grows like an args struct: read a slot only when
// base.struct_size covers it. X_MIN_SIZE of a table is therefore the size of the base alone.
// Extensions are versioned apart from the API, and some changed their structs' layout between versions.
#ifndef PJRT_ARENA_PJRT_C_API_EXTENSIONS_H
#define PJRT_ARENA_PJRT_C_API_EXTENSIONS_H

#include "pjrt_c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PJRT_TABLE(sname, last_field) PJRT_STRUCT_GREW(sname, base, last_field)

// ---- Layouts (type 4) -------------------------------------------------------------------------------------------
#define PJRT_API_LAYOUTS_EXTENSION_VERSION 4  // 3 at 0.81

typedef struct PJRT_Layouts_MemoryLayout PJRT_Layouts_MemoryLayout;
typedef struct PJRT_Layouts_SerializedLayout PJRT_Layouts_SerializedLayout;
// NULL is allowed.
struct PJRT_Layouts_MemoryLayout_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Layouts_MemoryLayout *layout;
};
PJRT_FN(PJRT_Layouts_MemoryLayout_Destroy, layout)

// The bytes live until the deleter is called on their holder.
struct PJRT_Layouts_MemoryLayout_Serialize_Args {
  PJRT_ARGS_HEAD;
  PJRT_Layouts_MemoryLayout *layout;
  const char *serialized_bytes; size_t serialized_bytes_size;  // out
  PJRT_Layouts_SerializedLayout *serialized_layout;  // out: the holder
  void (*serialized_layout_deleter)(PJRT_Layouts_SerializedLayout *s_layout);  // out
};
PJRT_FN(PJRT_Layouts_MemoryLayout_Serialize, serialized_layout_deleter)

// The caller destroys the layout.
struct PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Layouts_MemoryLayout *layout;  // out
};
PJRT_FN(PJRT_Layouts_PJRT_Buffer_MemoryLayout, layout)

struct PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Buffer_Type type;
  const int64_t *dims; size_t num_dims;
  PJRT_Layouts_MemoryLayout *layout;  // out
};
PJRT_FN(PJRT_Layouts_PJRT_Client_GetDefaultLayout, layout)

struct PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args {
  PJRT_ARGS_HEAD;
  PJRT_TopologyDescription *topology_description;
  PJRT_Buffer_Type type;
  const int64_t *dims; size_t num_dims;
  PJRT_Layouts_MemoryLayout *layout;  // out
};
PJRT_FN(PJRT_Layouts_PJRT_Topology_GetDefaultLayout, layout)

// [0.81] The executable owns the layouts.
struct PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs;  // out
  PJRT_Layouts_MemoryLayout **layouts;  // out
};
PJRT_FN(PJRT_Layouts_PJRT_Executable_GetOutputLayouts, layouts)

// [0.93] The executable owns the layouts.
struct PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_parameters;  // out
  PJRT_Layouts_MemoryLayout **layouts;  // out
};
PJRT_FN(PJRT_Layouts_PJRT_Executable_GetParameterLayouts, layouts)

struct PJRT_Layouts_Extension {
  PJRT_Extension_Base base;
  PJRT_SLOT(PJRT_Layouts_MemoryLayout_Destroy);
  PJRT_SLOT(PJRT_Layouts_MemoryLayout_Serialize);
  PJRT_SLOT(PJRT_Layouts_PJRT_Client_GetDefaultLayout);
  PJRT_SLOT(PJRT_Layouts_PJRT_Buffer_MemoryLayout);
  PJRT_SLOT(PJRT_Layouts_PJRT_Topology_GetDefaultLayout);
  PJRT_SLOT(PJRT_Layouts_PJRT_Executable_GetOutputLayouts);  // [0.81]
  PJRT_SLOT(PJRT_Layouts_PJRT_Executable_GetParameterLayouts);  // [0.93]
};
PJRT_TABLE(PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Executable_GetParameterLayouts)

// ---- Stream (type 3): the GPU plugins' streams; these args have no extension_start ------------------------------
#define PJRT_API_STREAM_EXTENSION_VERSION 0

// A stream on which an outsider's buffer becomes ready.
struct PJRT_Get_Stream_For_External_Ready_Events_Args {
  size_t struct_size;
  PJRT_Device *device;
  intptr_t stream;  // out
};
PJRT_FN(PJRT_Get_Stream_For_External_Ready_Events, stream)

// Makes the stream wait for the buffer.
struct PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
  size_t struct_size;
  intptr_t stream;
  PJRT_Buffer *buffer;
};
PJRT_FN(PJRT_Wait_Until_Buffer_Ready_On_Stream, buffer)

struct PJRT_Stream_Extension {
  PJRT_Extension_Base base;
  PJRT_Get_Stream_For_External_Ready_Events *get_stream;
  PJRT_Wait_Until_Buffer_Ready_On_Stream *wait_stream;
};
PJRT_TABLE(PJRT_Stream_Extension, wait_stream)

// ---- FFI (type 5): custom calls ---------------------------------------------------------------------------------
#define PJRT_API_FFI_EXTENSION_VERSION 3

struct PJRT_FFI_Type_Info {
  void (*deleter)(void *object);
  void (*serialize)(void);  // reserved
  void (*deserialize)(void);  // reserved
};
PJRT_STRUCT(PJRT_FFI_Type_Info, deserialize)

// Registers a type of user data; with type_id 0 the id is chosen and written.
struct PJRT_FFI_Type_Register_Args {
  PJRT_ARGS_HEAD;
  const char *type_name; size_t type_name_size;
  int64_t type_id;  // in/out
  PJRT_FFI_Type_Info *type_info;
};
PJRT_FN(PJRT_FFI_Type_Register, type_info)

struct PJRT_FFI_UserData {
  int64_t type_id;
  void *data;
};
PJRT_STRUCT(PJRT_FFI_UserData, data)

// Puts data into a context, where the handlers of that execution find it.
struct PJRT_FFI_UserData_Add_Args {
  PJRT_ARGS_HEAD;
  PJRT_ExecuteContext *context;
  PJRT_FFI_UserData user_data;
};
PJRT_FN(PJRT_FFI_UserData_Add, user_data)

typedef enum PJRT_FFI_Handler_TraitsBits {
  PJRT_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1u << 0,
} PJRT_FFI_Handler_TraitsBits;

// Registers a handler for a custom call's target on a platform.
struct PJRT_FFI_Register_Handler_Args {
  size_t struct_size;
  const char *target_name; size_t target_name_size;
  void *handler;  // an XLA_FFI_Handler
  const char *platform_name; size_t platform_name_size;
  PJRT_FFI_Handler_TraitsBits traits;
};
PJRT_FN(PJRT_FFI_Register_Handler, traits)

struct PJRT_FFI_Extension {
  PJRT_Extension_Base base;
  PJRT_FFI_Type_Register *type_register;
  PJRT_FFI_UserData_Add *user_data_add;
  PJRT_FFI_Register_Handler *register_handler;
};
PJRT_TABLE(PJRT_FFI_Extension, register_handler)
typedef PJRT_FFI_Extension PJRT_FFI;

// ---- MemoryDescriptions (type 6): a device description's kinds of memory, without the device --------------------
#define PJRT_API_MEMORY_DESCRIPTIONS_EXTENSION_VERSION 1

typedef struct PJRT_MemoryDescription PJRT_MemoryDescription;
struct PJRT_DeviceDescription_MemoryDescriptions_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  const PJRT_MemoryDescription *const *memory_descriptions; size_t num_memory_descriptions;  // out
  size_t default_memory_index;  // out: (size_t)-1 for none
};
PJRT_FN(PJRT_DeviceDescription_MemoryDescriptions, default_memory_index)

struct PJRT_MemoryDescription_Kind_Args {
  PJRT_ARGS_HEAD;
  const PJRT_MemoryDescription *memory_description;
  const char *kind; size_t kind_size;  // out
  int kind_id;  // out
};
PJRT_FN(PJRT_MemoryDescription_Kind, kind_id)

struct PJRT_MemoryDescriptions_Extension {
  PJRT_Extension_Base base;
  PJRT_SLOT(PJRT_DeviceDescription_MemoryDescriptions);
  PJRT_SLOT(PJRT_MemoryDescription_Kind);
};
PJRT_TABLE(PJRT_MemoryDescriptions_Extension, PJRT_MemoryDescription_Kind)

// ---- Shardings (type 19, 0.91) ----------------------------------------------------------------------------------
#define PJRT_API_SHARDINGS_EXTENSION_VERSION 1

// Serialized OpSharding protos, owned by the executable.
struct PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_parameters;  // out
  const char *const *shardings;  // out: NULL when the plugin has none
  const size_t *sharding_sizes;  // out
};
PJRT_FN(PJRT_Shardings_PJRT_Executable_ParameterShardings, sharding_sizes)

// Serialized OpSharding protos, owned by the executable.
struct PJRT_Shardings_PJRT_Executable_OutputShardings_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs;  // out
  const char *const *shardings;  // out: NULL when the plugin has none
  const size_t *sharding_sizes;  // out
};
PJRT_FN(PJRT_Shardings_PJRT_Executable_OutputShardings, sharding_sizes)

struct PJRT_Shardings_Extension {
  PJRT_Extension_Base base;
  PJRT_SLOT(PJRT_Shardings_PJRT_Executable_ParameterShardings);
  PJRT_SLOT(PJRT_Shardings_PJRT_Executable_OutputShardings);
};
PJRT_TABLE(PJRT_Shardings_Extension, PJRT_Shardings_PJRT_Executable_OutputShardings)

// ---- CrossHostTransfers (type 12, 0.74) -------------------------------------------------------------------------
// Version 6. Version 2 (0.81) has another notifier, and another PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args:
// nothing here may be used with a table whose version is not known. Device ids and transfer keys are C++ integer types
// of the plugin's; they are only ever passed on, so they are untyped here.
#define PJRT_API_CROSS_HOST_TRANSFERS_EXTENSION_VERSION 6

struct PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  size_t num_buffers;
  PJRT_Buffer **buffers;
  const void *dst_global_device_ids;
  const void *transfer_keys;
  PJRT_Event **send_events;  // out: one for each buffer
};
PJRT_FN(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers, send_events)

struct PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  size_t num_shapes;
  size_t *shape_num_dims;  // how many dimensions each shape has
  const int64_t **num_dims;  // the shapes' dimensions
  PJRT_Buffer_Type *element_types;
  PJRT_Buffer_MemoryLayout **layouts;
  PJRT_Device *device;
  const void *src_global_device_ids;
  const void *transfer_keys;
  PJRT_Buffer **buffers;  // out: one for each shape
};
PJRT_FN(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers, buffers)

typedef void (*PJRT_Transfers_CrossHostOnCanceledCallback)(PJRT_Error *error, void *user_arg);
typedef void (*PJRT_Transfers_CrossHostSendCancelNotifier)(
    const char *serialized_descriptor, size_t serialized_descriptor_size, PJRT_Error_Code reason,
    const char *error_message, size_t error_message_size, PJRT_Transfers_CrossHostOnCanceledCallback on_canceled,
    void *on_canceled_user_arg, void *user_arg);
typedef void (*PJRT_Transfers_CrossHostRecvNotifier)(
    PJRT_Error *error, const char **serialized_descriptors, size_t *descriptors_sizes, size_t num_descriptors,
    void *user_arg, PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier, void *cancel_notifier_user_arg);
struct PJRT_Transfers_CrossHostRecvNotifierInfo {
  void *user_arg;
  PJRT_Transfers_CrossHostRecvNotifier notifier;
};
PJRT_STRUCT(PJRT_Transfers_CrossHostRecvNotifierInfo, notifier)

struct PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  size_t num_shapes;
  size_t *shape_num_dims;
  const int64_t **num_dims;
  PJRT_Buffer_Type *element_types;
  PJRT_Buffer_MemoryLayout **layouts;
  PJRT_Device *device;
  PJRT_Transfers_CrossHostRecvNotifierInfo notifier;
  PJRT_Buffer **buffers; size_t num_buffers;  // out
};
PJRT_FN(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers, num_buffers)

typedef void (*PJRT_Transfers_CrossHostRemoteSendCallback)(PJRT_Error *error, bool sends_were_enqueued,
                                                           void *user_arg);
struct PJRT_Transfers_CrossHostRemoteSendCallbackInfo {
  void *user_arg;
  PJRT_Transfers_CrossHostRemoteSendCallback on_done;
};
PJRT_STRUCT(PJRT_Transfers_CrossHostRemoteSendCallbackInfo, on_done)
typedef void (*PJRT_Transfers_DescriptorDestructor)(char **descriptor_data, size_t *descriptor_size);
struct PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args {
  PJRT_ARGS_HEAD;
  PJRT_Buffer *buffer;
  PJRT_Event *event;  // the callee destroys it
  char **serialized_descriptor;  // the callee ends it with descriptor_destructor
  size_t *serialized_descriptor_size;
  PJRT_Transfers_CrossHostRemoteSendCallbackInfo on_done;
  PJRT_Transfers_DescriptorDestructor descriptor_destructor;
};
PJRT_STRUCT(PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args, descriptor_destructor)
typedef void PJRT_Buffer_CopyToRemoteDevice(PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args *args);
struct PJRT_CrossHostTransfers_Extension {
  PJRT_Extension_Base base;
  PJRT_SLOT(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers);
  PJRT_Buffer_CopyToRemoteDevice *PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice;
  PJRT_SLOT(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers);
  PJRT_SLOT(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers);
};
PJRT_TABLE(PJRT_CrossHostTransfers_Extension, PJRT_Transfers_PJRT_Client_CrossHostSendBuffers)

// ---- AbiVersion (type 20): will this runtime take that executable? No extension_start ---------------------------
#define PJRT_API_ABI_VERSION_EXTENSION_VERSION 1

typedef struct PJRT_RuntimeAbiVersion PJRT_RuntimeAbiVersion;
typedef struct PJRT_ExecutableAbiVersion PJRT_ExecutableAbiVersion;
typedef struct PJRT_SerializedProto PJRT_SerializedProto;
struct PJRT_Client_RuntimeAbiVersion_Args {
  size_t struct_size;
  PJRT_Client *client;
  PJRT_RuntimeAbiVersion *abi_version;  // out
};
PJRT_FN(PJRT_Client_RuntimeAbiVersion, abi_version)

struct PJRT_Executable_GetAbiVersion_Args {
  size_t struct_size;
  PJRT_Executable *executable;
  PJRT_ExecutableAbiVersion *abi_version;  // out
};
PJRT_FN(PJRT_Executable_GetAbiVersion, abi_version)

struct PJRT_RuntimeAbiVersion_Destroy_Args {
  size_t struct_size;
  PJRT_RuntimeAbiVersion *abi_version;
};
PJRT_FN(PJRT_RuntimeAbiVersion_Destroy, abi_version)

// An error when not.
struct PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const PJRT_RuntimeAbiVersion *other_abi_version;
};
PJRT_FN(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime, other_abi_version)

// An error when not.
struct PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const PJRT_ExecutableAbiVersion *executable_abi_version;
};
PJRT_FN(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable, executable_abi_version)

struct PJRT_RuntimeAbiVersion_ToProto_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const char *serialized_proto; size_t serialized_proto_size;  // out
  PJRT_SerializedProto *serialized_proto_holder;  // out
  void (*serialized_proto_deleter)(PJRT_SerializedProto *holder);  // out
};
PJRT_FN(PJRT_RuntimeAbiVersion_ToProto, serialized_proto_deleter)

struct PJRT_RuntimeAbiVersion_PlatformId_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  uint64_t platform_id;  // out
};
PJRT_FN(PJRT_RuntimeAbiVersion_PlatformId, platform_id)

struct PJRT_ExecutableAbiVersion_Destroy_Args {
  size_t struct_size;
  PJRT_ExecutableAbiVersion *abi_version;
};
PJRT_FN(PJRT_ExecutableAbiVersion_Destroy, abi_version)

struct PJRT_ExecutableAbiVersion_ToProto_Args {
  size_t struct_size;
  const PJRT_ExecutableAbiVersion *abi_version;
  const char *serialized_proto; size_t serialized_proto_size;  // out
  PJRT_SerializedProto *serialized_proto_holder;  // out
  void (*serialized_proto_deleter)(PJRT_SerializedProto *holder);  // out
};
PJRT_FN(PJRT_ExecutableAbiVersion_ToProto, serialized_proto_deleter)

struct PJRT_ExecutableAbiVersion_PlatformId_Args {
  size_t struct_size;
  const PJRT_ExecutableAbiVersion *abi_version;
  uint64_t platform_id;  // out
};
PJRT_FN(PJRT_ExecutableAbiVersion_PlatformId, platform_id)

struct PJRT_RuntimeAbiVersion_FromProto_Args {
  size_t struct_size;
  const char *serialized_proto; size_t serialized_proto_size;
  PJRT_RuntimeAbiVersion *abi_version;  // out
};
PJRT_FN(PJRT_RuntimeAbiVersion_FromProto, abi_version)

struct PJRT_ExecutableAbiVersion_FromProto_Args {
  size_t struct_size;
  const char *serialized_proto; size_t serialized_proto_size;
  PJRT_ExecutableAbiVersion *abi_version;  // out
};
PJRT_FN(PJRT_ExecutableAbiVersion_FromProto, abi_version)

struct PJRT_AbiVersion_Extension {
  PJRT_Extension_Base base;
  PJRT_Client_RuntimeAbiVersion *client_runtime_abi_version;
  PJRT_Executable_GetAbiVersion *executable_get_abi_version;
  PJRT_RuntimeAbiVersion_Destroy *runtime_abi_version_destroy;
  PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime *runtime_abi_version_is_compatible_with_runtime;
  PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable *runtime_abi_version_is_compatible_with_executable;
  PJRT_RuntimeAbiVersion_ToProto *runtime_abi_version_to_proto;
  PJRT_RuntimeAbiVersion_PlatformId *runtime_abi_version_platform_id;
  PJRT_ExecutableAbiVersion_Destroy *executable_abi_version_destroy;
  PJRT_ExecutableAbiVersion_ToProto *executable_abi_version_to_proto;
  PJRT_ExecutableAbiVersion_PlatformId *executable_abi_version_platform_id;
  PJRT_RuntimeAbiVersion_FromProto *runtime_abi_version_from_proto;
  PJRT_ExecutableAbiVersion_FromProto *executable_abi_version_from_proto;
};
PJRT_TABLE(PJRT_AbiVersion_Extension, executable_abi_version_from_proto)

// ---- ExecutableMetadata (type 13): these args have no head at all -----------------------------------------------
#define PJRT_API_EXECUTABLE_METADATA_EXTENSION_VERSION 1

struct PJRT_ExecutableMetadata {
  const char *serialized_metadata; size_t serialized_metadata_size;
};
PJRT_STRUCT(PJRT_ExecutableMetadata, serialized_metadata_size)

struct PJRT_ExecutableMetadata_GetExecutableMetadata_Args {
  PJRT_Executable *executable;
  PJRT_ExecutableMetadata *metadata;  // out
};
PJRT_STRUCT(PJRT_ExecutableMetadata_GetExecutableMetadata_Args, metadata)
typedef PJRT_Error *(*PJRT_ExecutableMetadata_GetExecutableMetadata)(
    PJRT_ExecutableMetadata_GetExecutableMetadata_Args *args);
struct PJRT_ExecutableMetadata_DestroySerializedMetadata_Args {
  PJRT_ExecutableMetadata *metadata;
};
PJRT_STRUCT(PJRT_ExecutableMetadata_DestroySerializedMetadata_Args, metadata)
typedef void (*PJRT_ExecutableMetadata_DestroySerializedMetadata)(
    PJRT_ExecutableMetadata_DestroySerializedMetadata_Args *args);
struct PJRT_ExecutableMetadata_Extension {
  PJRT_Extension_Base base;
  PJRT_ExecutableMetadata_GetExecutableMetadata get_executable_metadata;
  PJRT_ExecutableMetadata_DestroySerializedMetadata destroy_serialized_metadata;
};
PJRT_TABLE(PJRT_ExecutableMetadata_Extension, destroy_serialized_metadata)

// ---- Custom_Partitioner (type 2): who splits a custom call over devices -----------------------------------------
#define PJRT_API_CUSTOM_PARTITIONER_EXTENSION_VERSION 0

// A framework's functions; only Python calls them here (python/jax_plugins/arena/_partitioners.py), and has their types.
typedef struct JAX_CustomCallPartitioner_Callbacks JAX_CustomCallPartitioner_Callbacks;
struct PJRT_Register_Custom_Partitioner_Args {
  size_t struct_size;
  const char *name; size_t name_size;
  JAX_CustomCallPartitioner_Callbacks *callbacks;  // the plugin's from now on
};
PJRT_FN(PJRT_Register_Custom_Partitioner, callbacks)

// The leading dimensions of such a call, as many as its attribute num_batch_dims says, are independent of each other.
struct PJRT_Register_Batch_Partitionable_Args {
  size_t struct_size;
  const char *name; size_t name_size;
};
PJRT_FN(PJRT_Register_Batch_Partitionable, name_size)

struct PJRT_Custom_Partitioner_Extension {
  PJRT_Extension_Base base;
  PJRT_Register_Custom_Partitioner *register_custom_partitioner;
  PJRT_Register_Batch_Partitionable *register_batch_partitionable;
};
PJRT_TABLE(PJRT_Custom_Partitioner_Extension, register_batch_partitionable)

// ---- Profiler (type 1): a table of the API, and a mark on the args of calls -------------------------------------
#define PJRT_API_PROFILER_EXTENSION_VERSION 1

struct PLUGIN_Profiler_Api;
typedef struct PLUGIN_Profiler_Api PLUGIN_Profiler_Api;
struct PJRT_Profiler_Extension {
  PJRT_Extension_Base base;
  PLUGIN_Profiler_Api *profiler_api;  // NULL when it marks args
  int64_t traceme_context_id;  // only when it marks args
};
PJRT_TABLE(PJRT_Profiler_Extension, traceme_context_id)

// The API itself (XLA, xla/backends/profiler/plugin). Callers leave struct_size unset.
typedef struct PLUGIN_Profiler PLUGIN_Profiler;
typedef struct PLUGIN_Profiler_Error PLUGIN_Profiler_Error;

typedef struct PLUGIN_Profiler_Error_Destroy_Args {
  size_t struct_size;
  void *priv;
  PLUGIN_Profiler_Error *error;
} PLUGIN_Profiler_Error_Destroy_Args;
typedef struct PLUGIN_Profiler_Error_Message_Args {
  size_t struct_size;
  void *priv;
  const PLUGIN_Profiler_Error *error;
  const char *message;  // out; lives as long as the error
  size_t message_size;  // out
} PLUGIN_Profiler_Error_Message_Args;
typedef struct PLUGIN_Profiler_Error_GetCode_Args {
  size_t struct_size;
  void *priv;
  const PLUGIN_Profiler_Error *error;
  int code;  // out; absl's, which PJRT_Error_Code follows
} PLUGIN_Profiler_Error_GetCode_Args;
typedef struct PLUGIN_Profiler_Create_Args {
  size_t struct_size;
  const char *options;  // a serialized tensorflow.ProfileOptions
  size_t options_size;
  PLUGIN_Profiler *profiler;  // out
} PLUGIN_Profiler_Create_Args;
typedef struct PLUGIN_Profiler_Args {
  size_t struct_size;
  PLUGIN_Profiler *profiler;
} PLUGIN_Profiler_Args;
typedef struct PLUGIN_Profiler_CollectData_Args {
  size_t struct_size;
  PLUGIN_Profiler *profiler;
  uint8_t *buffer;  // in: NULL asks for the size, older callers then pass a buffer; out: newer ones read it here
  size_t buffer_size_in_bytes;  // out
} PLUGIN_Profiler_CollectData_Args;

struct PLUGIN_Profiler_Api {
  size_t struct_size;
  void *priv;
  void (*error_destroy)(PLUGIN_Profiler_Error_Destroy_Args *args);
  void (*error_message)(PLUGIN_Profiler_Error_Message_Args *args);
  PLUGIN_Profiler_Error *(*error_get_code)(PLUGIN_Profiler_Error_GetCode_Args *args);
  PLUGIN_Profiler_Error *(*create)(PLUGIN_Profiler_Create_Args *args);
  PLUGIN_Profiler_Error *(*destroy)(PLUGIN_Profiler_Args *args);
  PLUGIN_Profiler_Error *(*start)(PLUGIN_Profiler_Args *args);
  PLUGIN_Profiler_Error *(*stop)(PLUGIN_Profiler_Args *args);
  PLUGIN_Profiler_Error *(*collect_data)(PLUGIN_Profiler_CollectData_Args *args);
};

#undef PJRT_TABLE

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_C_API_EXTENSIONS_H
