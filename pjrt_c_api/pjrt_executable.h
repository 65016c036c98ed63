// PJRT C ABI, part 5: compiling, executables, executing.
#ifndef PJRT_ARENA_PJRT_EXECUTABLE_H
#define PJRT_ARENA_PJRT_EXECUTABLE_H

#include "pjrt_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PJRT_Executable PJRT_Executable;              // a compiled program
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;  // one that a client holds ready to run
typedef struct PJRT_PhaseCompiler PJRT_PhaseCompiler;

// ---- Compiling and loading --------------------------------------------------------------------------------------

// Compiles for the client's devices.
struct PJRT_Client_Compile_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const PJRT_Program *program;
  const char *compile_options; size_t compile_options_size;  // a serialized CompileOptionsProto
  PJRT_LoadedExecutable *executable;  // out
};
PJRT_FN(PJRT_Client_Compile, executable)

// Compiles for a topology, whose devices need not be here.
struct PJRT_Compile_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  const PJRT_Program *program;
  const char *compile_options; size_t compile_options_size;
  PJRT_Client *client;  // may be NULL; helps the compiler when it is there
  PJRT_Executable *executable;  // out
};
PJRT_FN(PJRT_Compile, executable)

// [0.95] Makes a PJRT_Executable ready to run.
struct PJRT_Client_Load_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Executable *executable;
  const char *compile_options; size_t compile_options_size;
  PJRT_LoadedExecutable *loaded_executable;  // out
};
PJRT_FN(PJRT_Client_Load, loaded_executable)

typedef struct PJRT_MultiSlice_Config PJRT_MultiSlice_Config;
// [0.111]
struct PJRT_LoadOptions {
  size_t struct_size;
  const int32_t *computation_origin; size_t computation_origin_size;
  PJRT_MultiSlice_Config *multi_slice_config;
};
PJRT_STRUCT(PJRT_LoadOptions, multi_slice_config)

// Takes the bytes of PJRT_Executable_Serialize, from the same platform and version.
struct PJRT_Executable_DeserializeAndLoad_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const char *serialized_executable; size_t serialized_executable_size;
  PJRT_LoadedExecutable *loaded_executable;  // out
  // [0.71] NULL: those that were serialized with the program
  const char *overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  PJRT_LoadOptions *load_options;  // [0.111] may be NULL
};
PJRT_FN_GREW(PJRT_Executable_DeserializeAndLoad, loaded_executable, load_options)

typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
// The bytes live until the deleter is called on their holder.
struct PJRT_Executable_Serialize_Args {
  PJRT_ARGS_HEAD;
  const PJRT_Executable *executable;
  const char *serialized_bytes; size_t serialized_bytes_size;  // out
  PJRT_SerializedExecutable *serialized_executable;  // out: the holder
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable *exec);  // out
};
PJRT_FN(PJRT_Executable_Serialize, serialized_executable_deleter)

typedef struct PJRT_SerializedCompileOptions PJRT_SerializedCompileOptions;
// [0.87] A serialized CompileOptionsProto, which lives until the deleter is called.
struct PJRT_Executable_GetCompileOptions_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  const char *serialized_bytes; size_t serialized_bytes_size;  // out
  PJRT_SerializedCompileOptions *serialized_compile_options;  // out: the holder
  void (*serialized_compile_options_deleter)(PJRT_SerializedCompileOptions *options);  // out
};
PJRT_FN(PJRT_Executable_GetCompileOptions, serialized_compile_options_deleter)

// ---- Executables: what a compiled program is --------------------------------------------------------------------
// What the getters give is the executable's own and lives as long as it, unless said otherwise.

// NULL is allowed.
struct PJRT_Executable_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
};
PJRT_FN(PJRT_Executable_Destroy, executable)

struct PJRT_Executable_Name_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  const char *executable_name; size_t executable_name_size;  // out
};
PJRT_FN(PJRT_Executable_Name, executable_name_size)

struct PJRT_Executable_NumReplicas_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_replicas;  // out
};
PJRT_FN(PJRT_Executable_NumReplicas, num_replicas)

struct PJRT_Executable_NumPartitions_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_partitions;  // out
};
PJRT_FN(PJRT_Executable_NumPartitions, num_partitions)

// On one device.
struct PJRT_Executable_NumOutputs_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs;  // out
};
PJRT_FN(PJRT_Executable_NumOutputs, num_outputs)

struct PJRT_Executable_SizeOfGeneratedCodeInBytes_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  int64_t size_in_bytes;  // out
};
PJRT_FN(PJRT_Executable_SizeOfGeneratedCodeInBytes, size_in_bytes)

// The same program, options and compiler give the same fingerprint.
struct PJRT_Executable_Fingerprint_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  const char *executable_fingerprint; size_t executable_fingerprint_size;  // out
};
PJRT_FN(PJRT_Executable_Fingerprint, executable_fingerprint_size)

// Estimates such as "flops" and "bytes accessed".
struct PJRT_Executable_GetCostAnalysis_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_properties;  // out
  const PJRT_NamedValue *properties;  // out
};
PJRT_FN(PJRT_Executable_GetCostAnalysis, properties)

// Bytes that a run needs, by use; the first five and the last five on the device.
struct PJRT_Executable_GetCompiledMemoryStats_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  int64_t generated_code_size_in_bytes;  // out
  int64_t argument_size_in_bytes;  // out
  int64_t output_size_in_bytes;  // out
  int64_t alias_size_in_bytes;  // out: arguments whose memory becomes results'
  int64_t temp_size_in_bytes;  // out
  int64_t host_generated_code_size_in_bytes;  // out
  int64_t host_argument_size_in_bytes;  // out
  int64_t host_output_size_in_bytes;  // out
  int64_t host_alias_size_in_bytes;  // out
  int64_t host_temp_size_in_bytes;  // out
  int64_t peak_memory_in_bytes;  // [0.72] out
  int64_t total_size_in_bytes;  // [0.90] out
  int64_t total_allocation_bytes;  // [0.104] out
  int64_t indefinite_allocations;  // [0.104] out
  int64_t peak_unpadded_heap_bytes;  // [0.104] out
};
PJRT_FN_GREW(PJRT_Executable_GetCompiledMemoryStats, host_temp_size_in_bytes, peak_unpadded_heap_bytes)

// The program after optimization. Called twice: with program->code NULL it writes code_size, with room for
// that many bytes it fills them; it also writes the format.
struct PJRT_Executable_OptimizedProgram_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  PJRT_Program *program;  // out
};
PJRT_FN(PJRT_Executable_OptimizedProgram, program)

struct PJRT_Executable_OutputElementTypes_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  PJRT_Buffer_Type *output_types; size_t num_output_types;  // out
};
PJRT_FN(PJRT_Executable_OutputElementTypes, num_output_types)

struct PJRT_Executable_OutputDimensions_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs;  // out
  const int64_t *dims;  // out: all outputs' dimensions, one after another
  const size_t *dim_sizes;  // out: how many of them each output has
};
PJRT_FN(PJRT_Executable_OutputDimensions, dim_sizes)

// [0.102] One kind for each parameter.
struct PJRT_Executable_ParameterMemoryKinds_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_parameters;  // out
  const char *const *memory_kinds;  // out
  const size_t *memory_kind_sizes;  // out
};
PJRT_FN(PJRT_Executable_ParameterMemoryKinds, memory_kind_sizes)

// One kind for each output.
struct PJRT_Executable_OutputMemoryKinds_Args {
  PJRT_ARGS_HEAD;
  PJRT_Executable *executable;
  size_t num_outputs;  // out
  const char *const *memory_kinds;  // out
  const size_t *memory_kind_sizes;  // out
};
PJRT_FN(PJRT_Executable_OutputMemoryKinds, memory_kind_sizes)

// ---- Loaded executables -----------------------------------------------------------------------------------------

// Deletes if need be, and gives the handle back; NULL is allowed.
struct PJRT_LoadedExecutable_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
};
PJRT_FN(PJRT_LoadedExecutable_Destroy, executable)

// A new PJRT_Executable each time, which the caller destroys.
struct PJRT_LoadedExecutable_GetExecutable_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *loaded_executable;
  PJRT_Executable *executable;  // out
};
PJRT_FN(PJRT_LoadedExecutable_GetExecutable, executable)

typedef struct PJRT_DeviceAssignmentSerialized PJRT_DeviceAssignmentSerialized;
// [0.79] A serialized DeviceAssignmentProto, which lives until the deleter is called.
struct PJRT_LoadedExecutable_GetDeviceAssignment_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  const char *serialized_bytes; size_t serialized_bytes_size;  // out
  PJRT_DeviceAssignmentSerialized *serialized_device_assignment;  // out: the holder
  void (*serialized_device_assignment_deleter)(PJRT_DeviceAssignmentSerialized *da);  // out
};
PJRT_FN(PJRT_LoadedExecutable_GetDeviceAssignment, serialized_device_assignment_deleter)

// The order of these is that of an execution's lists.
struct PJRT_LoadedExecutable_AddressableDevices_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  PJRT_Device *const *addressable_devices; size_t num_addressable_devices;  // out
};
PJRT_FN(PJRT_LoadedExecutable_AddressableDevices, num_addressable_devices)

// [0.96]
struct PJRT_LogicalDeviceIds {
  int replica;
  int partition;
};
PJRT_STRUCT(PJRT_LogicalDeviceIds, partition)

// [0.96] In the order of PJRT_LoadedExecutable_AddressableDevices.
struct PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  PJRT_LogicalDeviceIds *addressable_device_logical_ids;  // out
  size_t num_addressable_device_logical_ids;  // out
};
PJRT_FN(PJRT_LoadedExecutable_AddressableDeviceLogicalIds, num_addressable_device_logical_ids)

// Lets go of the program; running executions finish. The handle stays valid.
struct PJRT_LoadedExecutable_Delete_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
};
PJRT_FN(PJRT_LoadedExecutable_Delete, executable)

struct PJRT_LoadedExecutable_IsDeleted_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  bool is_deleted;  // out
};
PJRT_FN(PJRT_LoadedExecutable_IsDeleted, is_deleted)

// Deprecated: PJRT_Executable_Fingerprint.
struct PJRT_LoadedExecutable_Fingerprint_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  const char *executable_fingerprint; size_t executable_fingerprint_size;  // out
};
PJRT_FN(PJRT_LoadedExecutable_Fingerprint, executable_fingerprint_size)

// ---- Executing --------------------------------------------------------------------------------------------------

typedef struct PJRT_ExecuteContext PJRT_ExecuteContext;  // a caller's data for the custom calls of one execution
struct PJRT_ExecuteContext_Create_Args {
  PJRT_ARGS_HEAD;
  PJRT_ExecuteContext *context;  // out
};
PJRT_FN(PJRT_ExecuteContext_Create, context)

// NULL is allowed.
struct PJRT_ExecuteContext_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_ExecuteContext *context;
};
PJRT_FN(PJRT_ExecuteContext_Destroy, context)

// Takes a chunk that the program sent, and calls its deleter; errors are made with callback_error.
typedef PJRT_Error *(*PJRT_SendCallback)(PJRT_Chunk *chunk, PJRT_CallbackError *callback_error,
                                         size_t total_size_in_bytes, bool done, void *user_arg);
// Feeds a receive through the stream, which is then the callback's to destroy.
typedef void (*PJRT_RecvCallback)(PJRT_CopyToDeviceStream *stream, void *user_arg);
struct PJRT_SendCallbackInfo {
  int64_t channel_id;
  void *user_arg;
  PJRT_SendCallback send_callback;
};
PJRT_STRUCT(PJRT_SendCallbackInfo, send_callback)

struct PJRT_RecvCallbackInfo {
  int64_t channel_id;
  void *user_arg;
  PJRT_RecvCallback recv_callback;
};
PJRT_STRUCT(PJRT_RecvCallbackInfo, recv_callback)

typedef void (*PJRT_HloOutputCallback)(int64_t replica_id, int64_t partition_id, const void *data,
                                       const int64_t *shape_dims, size_t shape_num_dims,
                                       PJRT_Buffer_Type shape_element_type, int64_t operand_index, void *user_arg);
// [0.112]
struct PJRT_HloOutputCallbackInfo {
  void *user_arg;
  PJRT_HloOutputCallback callback;
  int64_t callback_id;
  size_t num_operands;
};
PJRT_STRUCT(PJRT_HloOutputCallbackInfo, num_operands)

struct PJRT_ExecuteOptions {
  PJRT_ARGS_HEAD;
  PJRT_SendCallbackInfo **send_callbacks;  // for each device, a list of num_send_ops
  PJRT_RecvCallbackInfo **recv_callbacks; size_t num_send_ops;  // for each device, a list of num_recv_ops
  size_t num_recv_ops;
  int launch_id;  // not 0: the same for all parts of one launch
  // arguments that must survive, whatever the program's aliasing says
  const int64_t *non_donatable_input_indices; size_t num_non_donatable_input_indices;
  PJRT_ExecuteContext *context;  // [0.64] may be NULL
  const char *call_location;  // [0.76] zero-terminated; lives for the call
  size_t num_tasks;  // [0.78] with the two lists below: which incarnation of each task is meant
  int *task_ids;  // [0.78]
  int64_t *incarnation_ids;  // [0.78]
  PJRT_MultiSlice_Config *multi_slice_config;  // [0.97]
  bool use_major_to_minor_data_layout_for_callbacks;  // [0.108]
  PJRT_HloOutputCallbackInfo *hlo_output_callbacks; size_t num_hlo_output_callbacks;  // [0.112]
};
PJRT_STRUCT_GREW(PJRT_ExecuteOptions, num_non_donatable_input_indices, num_hlo_output_callbacks)

// Starts the program on its devices, and returns before it ends.
struct PJRT_LoadedExecutable_Execute_Args {
  PJRT_ARGS_HEAD;
  PJRT_LoadedExecutable *executable;
  PJRT_ExecuteOptions *options;  // lives for the call
  PJRT_Buffer *const *const *argument_lists; size_t num_devices;  // [device][argument]
  size_t num_args;
  PJRT_Buffer **const *output_lists;  // in/out: [device][output]: the caller's lists, filled with new buffers
  // in/out: NULL, or a list that is filled with one event for each device (not on error)
  PJRT_Event **device_complete_events;
  PJRT_Device *execute_device;  // NULL: all devices that the program was compiled for; else only this one
};
PJRT_FN(PJRT_LoadedExecutable_Execute, execute_device)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_EXECUTABLE_H
