// The driver functions that this package calls, declared by hand: the names are those the library exports, opaque
// handles are uintptr_t, and each CALL line is one function. A table of them is filled by name at run time.
#ifndef DDPSTEP_CUDA_API_H
#define DDPSTEP_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uintptr_t cu_handle;        // CUcontext, CUstream, CUevent, CUmodule, CUfunction, CUgraph, CUgraphExec
typedef unsigned long long cu_ptr;  // CUdeviceptr
typedef struct { unsigned char bytes[16]; } cu_uuid;
typedef struct { char bytes[64]; } cu_ipc;

#define DDPSTEP_CUDA_CALLS(CALL)                                                                                  \
  CALL(cuInit, (unsigned flags), (flags))                                                                         \
  CALL(cuDriverGetVersion, (int *version), (version))                                                             \
  CALL(cuGetErrorName, (cu_result code, const char **s), (code, s))                                               \
  CALL(cuGetErrorString, (cu_result code, const char **s), (code, s))                                             \
  CALL(cuDeviceGetCount, (int *count), (count))                                                                   \
  CALL(cuDeviceGet, (cu_device * device, int ordinal), (device, ordinal))                                         \
  CALL(cuDeviceGetName, (char *name, int n, cu_device device), (name, n, device))                                 \
  CALL(cuDeviceGetUuid_v2, (cu_uuid * uuid, cu_device device), (uuid, device))                                    \
  CALL(cuDeviceGetPCIBusId, (char *id, int n, cu_device device), (id, n, device))                                 \
  CALL(cuDeviceGetAttribute, (int *value, int attribute, cu_device device), (value, attribute, device))           \
  CALL(cuDeviceTotalMem_v2, (size_t * bytes, cu_device device), (bytes, device))                                  \
  CALL(cuDeviceCanAccessPeer, (int *can, cu_device device, cu_device peer), (can, device, peer))                  \
  CALL(cuDevicePrimaryCtxRetain, (cu_handle * context, cu_device device), (context, device))                      \
  CALL(cuDevicePrimaryCtxRelease_v2, (cu_device device), (device))                                                \
  CALL(cuCtxSetCurrent, (cu_handle context), (context))                                                           \
  CALL(cuCtxEnablePeerAccess, (cu_handle peer, unsigned flags), (peer, flags))                                    \
  CALL(cuMemGetInfo_v2, (size_t * free, size_t *total), (free, total))                                            \
  CALL(cuMemAlloc_v2, (cu_ptr * p, size_t n), (p, n))                                                             \
  CALL(cuMemFree_v2, (cu_ptr p), (p))                                                                             \
  CALL(cuMemHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))                                       \
  CALL(cuMemFreeHost, (void *p), (p))                                                                             \
  CALL(cuMemHostGetDevicePointer_v2, (cu_ptr * p, void *host, unsigned flags), (p, host, flags))                  \
  CALL(cuMemcpyHtoDAsync_v2, (cu_ptr to, const void *from, size_t n, cu_handle stream), (to, from, n, stream))    \
  CALL(cuMemcpyDtoHAsync_v2, (void *to, cu_ptr from, size_t n, cu_handle stream), (to, from, n, stream))          \
  CALL(cuMemcpyAsync, (cu_ptr to, cu_ptr from, size_t n, cu_handle stream), (to, from, n, stream))                \
  CALL(cuMemsetD8Async, (cu_ptr p, unsigned char value, size_t n, cu_handle stream), (p, value, n, stream))       \
  CALL(cuIpcGetMemHandle, (cu_ipc * handle, cu_ptr p), (handle, p))                                               \
  CALL(cuIpcOpenMemHandle_v2, (cu_ptr * p, cu_ipc handle, unsigned flags), (p, handle, flags))                    \
  CALL(cuIpcCloseMemHandle, (cu_ptr p), (p))                                                                      \
  CALL(cuStreamCreate, (cu_handle * stream, unsigned flags), (stream, flags))                                     \
  CALL(cuStreamDestroy_v2, (cu_handle stream), (stream))                                                          \
  CALL(cuStreamQuery, (cu_handle stream), (stream))                                                               \
  CALL(cuStreamSynchronize, (cu_handle stream), (stream))                                                         \
  CALL(cuStreamWaitEvent, (cu_handle stream, cu_handle event, unsigned flags), (stream, event, flags))            \
  CALL(cuStreamBeginCapture_v2, (cu_handle stream, int mode), (stream, mode))                                     \
  CALL(cuStreamEndCapture, (cu_handle stream, cu_handle *graph), (stream, graph))                                 \
  CALL(cuEventCreate, (cu_handle * event, unsigned flags), (event, flags))                                        \
  CALL(cuEventDestroy_v2, (cu_handle event), (event))                                                             \
  CALL(cuEventRecord, (cu_handle event, cu_handle stream), (event, stream))                                       \
  CALL(cuEventQuery, (cu_handle event), (event))                                                                  \
  CALL(cuEventSynchronize, (cu_handle event), (event))                                                            \
  CALL(cuEventElapsedTime, (float *ms, cu_handle start, cu_handle end), (ms, start, end))                         \
  CALL(cuModuleLoadDataEx, (cu_handle * module, const void *image, unsigned n, int *options, void **values),      \
       (module, image, n, options, values))                                                                       \
  CALL(cuModuleUnload, (cu_handle module), (module))                                                              \
  CALL(cuModuleGetFunction, (cu_handle * function, cu_handle module, const char *name), (function, module, name)) \
  CALL(cuLaunchKernel,                                                                                            \
       (cu_handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
        unsigned shared, cu_handle stream, void **params, void **extra),                                          \
       (function, gx, gy, gz, bx, by, bz, shared, stream, params, extra))                                         \
  CALL(cuGraphInstantiateWithFlags, (cu_handle * exec, cu_handle graph, unsigned long long flags),                \
       (exec, graph, flags))                                                                                      \
  CALL(cuGraphLaunch, (cu_handle exec, cu_handle stream), (exec, stream))                                         \
  CALL(cuGraphExecDestroy, (cu_handle exec), (exec))                                                              \
  CALL(cuGraphDestroy, (cu_handle graph), (graph))

#endif
