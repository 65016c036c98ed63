// PJRT C ABI, part 2: the client, its devices and their memories.
#ifndef PJRT_ARENA_PJRT_CLIENT_H
#define PJRT_ARENA_PJRT_CLIENT_H

#include "pjrt_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;

// ---- The key-value store that processes of one job share; the caller of PJRT_Client_Create provides it ----------
// The callbacks are called from any thread. The plugin copies `value` and then calls the deleter.

typedef void (*PJRT_KeyValueGetCallback_ValueDeleter)(char *value);
// Waits for the key.
struct PJRT_KeyValueGetCallback_Args {
  PJRT_ARGS_HEAD;
  const char *key; size_t key_size;
  int timeout_in_ms;
  PJRT_CallbackError *callback_error;
  void *user_arg;
  char *value; size_t value_size;  // out
  PJRT_KeyValueGetCallback_ValueDeleter value_deleter_callback;  // out
};
PJRT_STRUCT(PJRT_KeyValueGetCallback_Args, value_deleter_callback)
typedef PJRT_Error *(*PJRT_KeyValueGetCallback)(PJRT_KeyValueGetCallback_Args *args);

typedef void (*PJRT_KeyValueTryGetCallback_ValueDeleter)(char *value);
// [0.61] Answers NOT_FOUND at once when the key is not there.
struct PJRT_KeyValueTryGetCallback_Args {
  PJRT_ARGS_HEAD;
  const char *key; size_t key_size;
  PJRT_CallbackError *callback_error;
  void *user_arg;
  char *value; size_t value_size;  // out
  PJRT_KeyValueTryGetCallback_ValueDeleter value_deleter_callback;  // out
};
PJRT_STRUCT(PJRT_KeyValueTryGetCallback_Args, value_deleter_callback)
typedef PJRT_Error *(*PJRT_KeyValueTryGetCallback)(PJRT_KeyValueTryGetCallback_Args *args);

// Stores a copy of the value.
struct PJRT_KeyValuePutCallback_Args {
  PJRT_ARGS_HEAD;
  const char *key; size_t key_size;
  const char *value; size_t value_size;
  PJRT_CallbackError *callback_error;
  void *user_arg;
};
PJRT_STRUCT(PJRT_KeyValuePutCallback_Args, user_arg)
typedef PJRT_Error *(*PJRT_KeyValuePutCallback)(PJRT_KeyValuePutCallback_Args *args);

// ---- Client -----------------------------------------------------------------------------------------------------
// What the getters give is the client's own and lives as long as it, unless said otherwise.

// Makes a client of the plugin's platform.
struct PJRT_Client_Create_Args {
  PJRT_ARGS_HEAD;
  const PJRT_NamedValue *create_options; size_t num_options;
  PJRT_KeyValueGetCallback kv_get_callback;  // the store may be missing in a job of one process
  void *kv_get_user_arg;
  PJRT_KeyValuePutCallback kv_put_callback;
  void *kv_put_user_arg;
  PJRT_Client *client;  // out
  PJRT_KeyValueTryGetCallback kv_try_get_callback;  // [0.61]
  void *kv_try_get_user_arg;
};
PJRT_FN_GREW(PJRT_Client_Create, client, kv_try_get_user_arg)

// Ends the client; NULL is allowed.
struct PJRT_Client_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
};
PJRT_FN(PJRT_Client_Destroy, client)

// "cpu", "cuda", "rocm", "tpu" ...
struct PJRT_Client_PlatformName_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const char *platform_name; size_t platform_name_size;  // out
};
PJRT_FN(PJRT_Client_PlatformName, platform_name_size)

// 0 in a job of one process.
struct PJRT_Client_ProcessIndex_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  int process_index;  // out
};
PJRT_FN(PJRT_Client_ProcessIndex, process_index)

// Free text; callers use it in the keys of compilation caches.
struct PJRT_Client_PlatformVersion_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  const char *platform_version; size_t platform_version_size;  // out
};
PJRT_FN(PJRT_Client_PlatformVersion, platform_version_size)

struct PJRT_Client_TopologyDescription_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_TopologyDescription *topology;  // out
};
PJRT_FN(PJRT_Client_TopologyDescription, topology)

// All devices of the job, those of other processes included.
struct PJRT_Client_Devices_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Device *const *devices; size_t num_devices;  // out
};
PJRT_FN(PJRT_Client_Devices, num_devices)

// The devices that this client can give work to.
struct PJRT_Client_AddressableDevices_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Device *const *addressable_devices; size_t num_addressable_devices;  // out
};
PJRT_FN(PJRT_Client_AddressableDevices, num_addressable_devices)

// By the id of PJRT_DeviceDescription_Id.
struct PJRT_Client_LookupDevice_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  int id;
  PJRT_Device *device;  // out
};
PJRT_FN(PJRT_Client_LookupDevice, device)

// By the id of PJRT_Device_LocalHardwareId.
struct PJRT_Client_LookupAddressableDevice_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  int local_hardware_id;
  PJRT_Device *addressable_device;  // out
};
PJRT_FN(PJRT_Client_LookupAddressableDevice, addressable_device)

struct PJRT_Client_AddressableMemories_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_Memory *const *addressable_memories; size_t num_addressable_memories;  // out
};
PJRT_FN(PJRT_Client_AddressableMemories, num_addressable_memories)

typedef enum {
  PJRT_ProcessState_kUnspecified = 0,
  PJRT_ProcessState_kUninitialized = 1,
  PJRT_ProcessState_kDisconnected = 2,
  PJRT_ProcessState_kConnected = 3,
  PJRT_ProcessState_kError = 4,
} PJRT_ProcessState;

// [0.73] One process of the job. struct_size was put in front later: before it, every field lay 8 bytes
// lower.
struct PJRT_ProcessInfo {
  size_t struct_size;  // [0.75]
  int task_id;
  uint64_t incarnation_id;
  PJRT_ProcessState state;
  int error_code;
  const char *error_message; size_t error_message_size;
};
PJRT_STRUCT(PJRT_ProcessInfo, error_message_size)

// [0.73] Tells the client which processes of the job live.
struct PJRT_Client_UpdateGlobalProcessInfo_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  PJRT_ProcessInfo *process_infos; size_t num_process_infos;
};
PJRT_FN(PJRT_Client_UpdateGlobalProcessInfo, num_process_infos)

// Writes num_replicas x num_partitions device ids.
struct PJRT_Client_DefaultDeviceAssignment_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  int num_replicas;
  int num_partitions;
  size_t default_assignment_size;
  int *default_assignment;  // out: the caller's room for default_assignment_size ints; written to
};
PJRT_FN(PJRT_Client_DefaultDeviceAssignment, default_assignment)

// [0.67] Registers host memory so that devices can read it directly.
struct PJRT_Client_DmaMap_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  void *data; size_t size;
};
PJRT_FN(PJRT_Client_DmaMap, size)

// [0.67]
struct PJRT_Client_DmaUnmap_Args {
  PJRT_ARGS_HEAD;
  PJRT_Client *client;
  void *data;
};
PJRT_FN(PJRT_Client_DmaUnmap, data)

// ---- Device descriptions: of a device that is here, or of one in a topology -------------------------------------

// Unique in the job among devices of the platform.
struct PJRT_DeviceDescription_Id_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  int id;  // out
};
PJRT_FN(PJRT_DeviceDescription_Id, id)

// The process that can give the device work.
struct PJRT_DeviceDescription_ProcessIndex_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  int process_index;  // out
};
PJRT_FN(PJRT_DeviceDescription_ProcessIndex, process_index)

struct PJRT_DeviceDescription_Attributes_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  size_t num_attributes;  // out
  const PJRT_NamedValue *attributes;  // out
};
PJRT_FN(PJRT_DeviceDescription_Attributes, attributes)

// The model, such as "NVIDIA H100 80GB HBM3".
struct PJRT_DeviceDescription_Kind_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  const char *device_kind; size_t device_kind_size;  // out
};
PJRT_FN(PJRT_DeviceDescription_Kind, device_kind_size)

// Long, for logs.
struct PJRT_DeviceDescription_DebugString_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  const char *debug_string; size_t debug_string_size;  // out
};
PJRT_FN(PJRT_DeviceDescription_DebugString, debug_string_size)

// Short, for people.
struct PJRT_DeviceDescription_ToString_Args {
  PJRT_ARGS_HEAD;
  PJRT_DeviceDescription *device_description;
  const char *to_string; size_t to_string_size;  // out
};
PJRT_FN(PJRT_DeviceDescription_ToString, to_string_size)

// ---- Devices ----------------------------------------------------------------------------------------------------

struct PJRT_Device_GetDescription_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  PJRT_DeviceDescription *device_description;  // out
};
PJRT_FN(PJRT_Device_GetDescription, device_description)

struct PJRT_Device_IsAddressable_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  bool is_addressable;  // out
};
PJRT_FN(PJRT_Device_IsAddressable, is_addressable)

// Such as CUDA's device number; -1 when there is none.
struct PJRT_Device_LocalHardwareId_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  int local_hardware_id;  // out
};
PJRT_FN(PJRT_Device_LocalHardwareId, local_hardware_id)

struct PJRT_Device_AddressableMemories_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  PJRT_Memory *const *memories; size_t num_memories;  // out
};
PJRT_FN(PJRT_Device_AddressableMemories, num_memories)

// Where the device's data goes unless a memory is named.
struct PJRT_Device_DefaultMemory_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  PJRT_Memory *memory;  // out
};
PJRT_FN(PJRT_Device_DefaultMemory, memory)

// The allocator's numbers, in bytes but for num_allocs. Only bytes_in_use is always there.
struct PJRT_Device_MemoryStats_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  int64_t bytes_in_use;  // out
  int64_t peak_bytes_in_use; bool peak_bytes_in_use_is_set;  // out
  int64_t num_allocs; bool num_allocs_is_set;  // out
  int64_t largest_alloc_size; bool largest_alloc_size_is_set;  // out
  int64_t bytes_limit; bool bytes_limit_is_set;  // out
  int64_t bytes_reserved; bool bytes_reserved_is_set;  // out
  int64_t peak_bytes_reserved; bool peak_bytes_reserved_is_set;  // out
  int64_t bytes_reservable_limit; bool bytes_reservable_limit_is_set;  // out
  int64_t largest_free_block_bytes; bool largest_free_block_bytes_is_set;  // out
  int64_t pool_bytes; bool pool_bytes_is_set;  // out: what the allocator holds, in use or not
  int64_t peak_pool_bytes; bool peak_pool_bytes_is_set;  // out
  int64_t peak_allocated_bytes; bool peak_allocated_bytes_is_set;  // [0.113] out
};
PJRT_FN_GREW(PJRT_Device_MemoryStats, peak_pool_bytes_is_set, peak_allocated_bytes_is_set)

// [0.106] Starts the peaks anew.
struct PJRT_Device_ClearMemoryStats_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
};
PJRT_FN(PJRT_Device_ClearMemoryStats, device)

// [0.85] Makes the results of the execution with this launch_id errors, if it is not done yet.
struct PJRT_Device_PoisonExecution_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  int32_t launch_id;
  PJRT_Error_Code error_code;
  const char *error_message; size_t error_message_size;
  bool poisoned;  // out: false when it was done, or unknown
  const PJRT_NamedValue *payload; size_t num_payload;  // [0.100]
};
PJRT_FN_GREW(PJRT_Device_PoisonExecution, poisoned, num_payload)

typedef struct PJRT_Device_Attributes PJRT_Device_Attributes;
// [0.92] The caller owns what comes back and ends it with the deleter.
struct PJRT_Device_GetAttributes_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  const PJRT_NamedValue *attributes; size_t num_attributes;  // out
  PJRT_Device_Attributes *device_attributes;  // out
  void (*attributes_deleter)(PJRT_Device_Attributes *device_attributes);  // out
};
PJRT_FN(PJRT_Device_GetAttributes, attributes_deleter)

typedef struct PJRT_AsyncTrackingEvent PJRT_AsyncTrackingEvent;
// [0.86] A named span of asynchronous work, for tracing; the caller destroys it.
struct PJRT_Device_CreateAsyncTrackingEvent_Args {
  PJRT_ARGS_HEAD;
  PJRT_Device *device;
  const char *description; size_t description_size;
  PJRT_AsyncTrackingEvent *event;  // out
};
PJRT_FN(PJRT_Device_CreateAsyncTrackingEvent, event)

// [0.86]
struct PJRT_AsyncTrackingEvent_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_AsyncTrackingEvent *event;
};
PJRT_FN(PJRT_AsyncTrackingEvent_Destroy, event)

// ---- Memories: a device's own, and the host's as the device sees it ---------------------------------------------

// [0.105] Lets a caller hang its own data on a memory, found by key.
struct PJRT_Memory_FunctionTable {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  size_t instance_struct_size;  // PJRT_Memory_STRUCT_SIZE
  void *(*get_user_data)(struct PJRT_Memory *memory, const void *key);
  void (*set_user_data)(struct PJRT_Memory *memory, const void *key, void *data, void (*dtor)(void *));
};
PJRT_STRUCT(PJRT_Memory_FunctionTable, set_user_data)

// Since 0.105 a memory starts with its table; before, its contents were the plugin's own business.
struct PJRT_Memory {
  const struct PJRT_Memory_FunctionTable *vtable;
};
PJRT_STRUCT(PJRT_Memory, vtable)

struct PJRT_Memory_Id_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  int id;  // out
};
PJRT_FN(PJRT_Memory_Id, id)

// Such as "device", "pinned_host", "unpinned_host".
struct PJRT_Memory_Kind_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  const char *kind; size_t kind_size;  // out
};
PJRT_FN(PJRT_Memory_Kind, kind_size)

// A number for the kind.
struct PJRT_Memory_Kind_Id_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  int kind_id;  // out
};
PJRT_FN(PJRT_Memory_Kind_Id, kind_id)

// Long, for logs.
struct PJRT_Memory_DebugString_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  const char *debug_string; size_t debug_string_size;  // out
};
PJRT_FN(PJRT_Memory_DebugString, debug_string_size)

// Short, for people.
struct PJRT_Memory_ToString_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  const char *to_string; size_t to_string_size;  // out
};
PJRT_FN(PJRT_Memory_ToString, to_string_size)

struct PJRT_Memory_AddressableByDevices_Args {
  PJRT_ARGS_HEAD;
  PJRT_Memory *memory;
  PJRT_Device *const *devices; size_t num_devices;  // out
};
PJRT_FN(PJRT_Memory_AddressableByDevices, num_devices)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_CLIENT_H
