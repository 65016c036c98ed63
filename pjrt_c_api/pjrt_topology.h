// PJRT C ABI, part 3: topologies: what devices there are, for compiling without them.
#ifndef PJRT_ARENA_PJRT_TOPOLOGY_H
#define PJRT_ARENA_PJRT_TOPOLOGY_H

#include "pjrt_client.h"

#ifdef __cplusplus
extern "C" {
#endif

// Makes a topology by name; the caller destroys it.
struct PJRT_TopologyDescription_Create_Args {
  PJRT_ARGS_HEAD;
  const char *topology_name; size_t topology_name_size;
  const PJRT_NamedValue *create_options; size_t num_options;
  PJRT_TopologyDescription *topology;  // out
};
PJRT_FN(PJRT_TopologyDescription_Create, topology)

// Not for a client's own topology; NULL is allowed.
struct PJRT_TopologyDescription_Destroy_Args {
  PJRT_ARGS_HEAD;
  PJRT_TopologyDescription *topology;
};
PJRT_FN(PJRT_TopologyDescription_Destroy, topology)

struct PJRT_TopologyDescription_PlatformVersion_Args {
  PJRT_ARGS_HEAD;
  PJRT_TopologyDescription *topology;
  const char *platform_version; size_t platform_version_size;  // out
};
PJRT_FN(PJRT_TopologyDescription_PlatformVersion, platform_version_size)

struct PJRT_TopologyDescription_PlatformName_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  const char *platform_name; size_t platform_name_size;  // out
};
PJRT_FN(PJRT_TopologyDescription_PlatformName, platform_name_size)

// In the same order each time.
struct PJRT_TopologyDescription_GetDeviceDescriptions_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  PJRT_DeviceDescription *const *descriptions; size_t num_descriptions;  // out
};
PJRT_FN(PJRT_TopologyDescription_GetDeviceDescriptions, num_descriptions)

typedef struct PJRT_SerializedTopology PJRT_SerializedTopology;
// The bytes live until the deleter is called on their holder.
struct PJRT_TopologyDescription_Serialize_Args {
  PJRT_ARGS_HEAD;
  PJRT_TopologyDescription *topology;
  const char *serialized_bytes; size_t serialized_bytes_size;  // out
  PJRT_SerializedTopology *serialized_topology;  // out
  void (*serialized_topology_deleter)(PJRT_SerializedTopology *serialized_topology);  // out
};
PJRT_FN(PJRT_TopologyDescription_Serialize, serialized_topology_deleter)

// [0.75] The caller destroys the topology.
struct PJRT_TopologyDescription_Deserialize_Args {
  PJRT_ARGS_HEAD;
  const char *serialized_topology; size_t serialized_topology_size;
  PJRT_TopologyDescription *topology;  // out
};
PJRT_FN(PJRT_TopologyDescription_Deserialize, topology)

struct PJRT_TopologyDescription_Attributes_Args {
  PJRT_ARGS_HEAD;
  PJRT_TopologyDescription *topology;
  const PJRT_NamedValue *attributes; size_t num_attributes;  // out
};
PJRT_FN(PJRT_TopologyDescription_Attributes, num_attributes)

// [0.101]
struct PJRT_TopologyDescription_Fingerprint_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  uint64_t fingerprint;  // out
};
PJRT_FN(PJRT_TopologyDescription_Fingerprint, fingerprint)

// [0.109] Gives a serialized ShapeProto with the memory's layout.
struct PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  int memory_space_kind_id;
  const int64_t *dims; size_t num_dims;
  PJRT_Buffer_Type element_type;
  const PJRT_Buffer_MemoryLayout *layout;  // may be NULL
  const char *serialized_shape; size_t serialized_shape_size;  // out
  void (*serialized_shape_deleter)(const char *);  // out
};
PJRT_FN(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace, serialized_shape_deleter)

// [0.110]
struct PJRT_TopologyDescription_GetMemorySpaceKindIds_Args {
  PJRT_ARGS_HEAD;
  const PJRT_TopologyDescription *topology;
  const int *memory_space_kind_ids; size_t num_memory_space_kind_ids;  // out
};
PJRT_FN(PJRT_TopologyDescription_GetMemorySpaceKindIds, num_memory_space_kind_ids)

#ifdef __cplusplus
}
#endif

#endif  // PJRT_ARENA_PJRT_TOPOLOGY_H
