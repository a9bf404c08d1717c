/* driver: the CUDA driver as we use it: our own declarations, opened at run time, one table of function pointers.
 *
 * So one binary runs with and without a GPU, and a test puts a table of its own in its place (tests/lib/cuda_mock.h).
 * Types, values and signatures are the driver's ABI (CUDA driver API reference); names follow its functions. Any thread. */
#pragma once
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct err;

typedef int cu_result; // CUresult; 0 is success
typedef int cu_device;
typedef uint64_t cu_ptr; // CUdeviceptr
typedef struct cu_ctx_st *cu_ctx;
typedef struct cu_module_st *cu_module;
typedef struct cu_function_st *cu_function;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;
typedef struct cu_graph_st *cu_graph;
typedef struct cu_graph_exec_st *cu_graph_exec;

struct cu_uuid {
    unsigned char bytes[16];
};

struct cu_launch_attribute { // CUlaunchAttribute
    int id;
    char pad[4];
    union {
        uint64_t whole[8];
        int flag;
    } value;
};

struct cu_launch_config { // CUlaunchConfig
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    cu_stream stream;
    const struct cu_launch_attribute *attributes;
    unsigned attributes_count;
};

struct cu_graph_update { // CUgraphExecUpdateResultInfo
    int result;
    const void *node, *from;
};

static_assert(sizeof(struct cu_launch_attribute) == 72, "as in cuda.h");
static_assert(offsetof(struct cu_launch_config, stream) == 32, "as in cuda.h");
static_assert(sizeof(struct cu_launch_config) == 56, "as in cuda.h");

enum {
    CU_SUCCESS = 0,
    CU_ERROR_INVALID_VALUE = 1,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_INVALID_HANDLE = 400,
    CU_ERROR_NOT_FOUND = 500,
    CU_ERROR_LAUNCH_FAILED = 719,
    CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

enum { // CUdevice_attribute
    CU_ATTR_MULTIPROCESSOR_COUNT = 16,
    CU_ATTR_INTEGRATED = 18,
    CU_ATTR_CC_MAJOR = 75,
    CU_ATTR_CC_MINOR = 76,
    CU_ATTR_SHARED_PER_BLOCK_OPTIN = 97,
};

enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_RECORD_EXTERNAL = 1, // in a capture: becomes part of the graph
    CU_HOST_ALLOC_PORTABLE = 1,
    CU_HOST_ALLOC_DEVICEMAP = 2,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_FUNC_SHARED_STATIC = 1, // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    CU_FUNC_PTX_VERSION = 5,   // CU_FUNC_ATTRIBUTE_PTX_VERSION: 80 for what was compiled for sm_80
    CU_FUNC_SHARED_MAX = 8,    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    CU_LAUNCH_OVERLAP = 6,     // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
};

// X(field, symbol of the driver, arguments). All return cu_result.
#define CUDA_DRIVER_FUNCTIONS(X)                                                                   \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *ret))                                            \
    X(error_name, "cuGetErrorName", (cu_result r, const char **ret))                               \
    X(error_string, "cuGetErrorString", (cu_result r, const char **ret))                           \
    X(device_count, "cuDeviceGetCount", (int *ret))                                                \
    X(device_get, "cuDeviceGet", (cu_device * ret, int ordinal))                                   \
    X(device_name, "cuDeviceGetName", (char *ret, int bytes, cu_device d))                         \
    X(device_uuid, "cuDeviceGetUuid_v2", (struct cu_uuid * ret, cu_device d))                      \
    X(device_pci, "cuDeviceGetPCIBusId", (char *ret, int bytes, cu_device d))                      \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * ret, cu_device d))                           \
    X(device_attribute, "cuDeviceGetAttribute", (int *ret, int attribute, cu_device d))            \
    X(ctx_retain, "cuDevicePrimaryCtxRetain", (cu_ctx * ret, cu_device d))                         \
    X(ctx_release, "cuDevicePrimaryCtxRelease_v2", (cu_device d))                                  \
    X(ctx_set, "cuCtxSetCurrent", (cu_ctx c))                                                      \
    X(module_load, "cuModuleLoadData", (cu_module * ret, const void *image))                       \
    X(module_unload, "cuModuleUnload", (cu_module m))                                              \
    X(module_function, "cuModuleGetFunction", (cu_function * ret, cu_module m, const char *name))  \
    X(func_set, "cuFuncSetAttribute", (cu_function f, int attribute, int value))                   \
    X(func_get, "cuFuncGetAttribute", (int *ret, int attribute, cu_function f))                    \
    X(launch, "cuLaunchKernelEx",                                                                  \
      (const struct cu_launch_config *c, cu_function f, void **params, void **extra))              \
    X(mem_alloc, "cuMemAlloc_v2", (cu_ptr * ret, size_t bytes))                                    \
    X(mem_free, "cuMemFree_v2", (cu_ptr p))                                                        \
    X(mem_info, "cuMemGetInfo_v2", (size_t * ret_free, size_t * ret_total))                        \
    X(host_alloc, "cuMemHostAlloc", (void **ret, size_t bytes, unsigned flags))                    \
    X(host_free, "cuMemFreeHost", (void *p))                                                       \
    X(host_device_ptr, "cuMemHostGetDevicePointer_v2", (cu_ptr * ret, void *p, unsigned flags))    \
    X(copy_to_device, "cuMemcpyHtoDAsync_v2",                                                      \
      (cu_ptr dst, const void *src, size_t bytes, cu_stream s))                                    \
    X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void *dst, cu_ptr src, size_t bytes, cu_stream s))    \
    X(copy_on_device, "cuMemcpyDtoDAsync_v2", (cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s)) \
    X(set_bytes, "cuMemsetD8Async", (cu_ptr dst, unsigned char v, size_t count, cu_stream s))      \
    X(set_words, "cuMemsetD32Async", (cu_ptr dst, unsigned v, size_t count, cu_stream s))          \
    X(stream_new, "cuStreamCreate", (cu_stream * ret, unsigned flags))                             \
    X(stream_free, "cuStreamDestroy_v2", (cu_stream s))                                            \
    X(stream_sync, "cuStreamSynchronize", (cu_stream s))                                           \
    X(stream_wait, "cuStreamWaitEvent", (cu_stream s, cu_event e, unsigned flags))                 \
    X(event_new, "cuEventCreate", (cu_event * ret, unsigned flags))                                \
    X(event_free, "cuEventDestroy_v2", (cu_event e))                                               \
    X(event_record, "cuEventRecord", (cu_event e, cu_stream s))                                    \
    X(event_record_flags, "cuEventRecordWithFlags", (cu_event e, cu_stream s, unsigned flags))     \
    X(event_sync, "cuEventSynchronize", (cu_event e))                                              \
    X(event_ms, "cuEventElapsedTime", (float *ret, cu_event from, cu_event to))                    \
    X(capture_begin, "cuStreamBeginCapture_v2", (cu_stream s, int mode))                           \
    X(capture_end, "cuStreamEndCapture", (cu_stream s, cu_graph * ret))                            \
    X(graph_free, "cuGraphDestroy", (cu_graph g))                                                  \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (cu_graph_exec * ret, cu_graph g, unsigned long long flags))                                 \
    X(graph_upload, "cuGraphUpload", (cu_graph_exec g, cu_stream s))                               \
    X(graph_update, "cuGraphExecUpdate_v2",                                                        \
      (cu_graph_exec g, cu_graph from, struct cu_graph_update * ret))                              \
    X(graph_launch, "cuGraphLaunch", (cu_graph_exec g, cu_stream s))                               \
    X(graph_exec_free, "cuGraphExecDestroy", (cu_graph_exec g))

struct cuda_driver {
#define CUDA_DRIVER_FIELD(field_, symbol_, args_) cu_result(*field_) args_;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
};

// Opens libcuda.so.1 and fills the table; the library stays for the life of the process. Modules are loaded whole, not
// at a kernel's first launch, so that no launch takes memory. ST_UNSUPPORTED names what is missing: the library, one of its
// functions, a device.
int cuda_driver_open(struct cuda_driver *ret, struct err *e);
// r's name and text into e, behind `what`: ST_NOMEM when memory is out, else ST_DEVICE. Returns that.
int cuda_driver_error(const struct cuda_driver *d, cu_result r, const char *what, struct err *e);
