// The NCCL functions that this package calls, declared by hand. Each CALL line is one function with arguments; the two
// without stand apart, since a macro cannot forward an empty list.
#ifndef DDPSTEP_NCCL_API_H
#define DDPSTEP_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef int nccl_result;
typedef uintptr_t nccl_comm;    // ncclComm_t
typedef uintptr_t nccl_stream;  // cudaStream_t, which is the driver's CUstream
typedef uint64_t nccl_ptr;      // device memory
typedef struct { char bytes[128]; } nccl_id;

// ncclConfig_t as it was in 2.26. Newer libraries read as many bytes as size says, and take their defaults for what
// came after version.
typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char *net_name;
  int split_share;
  int traffic_class;
} nccl_config;

#define NCCL_CONFIG_OF_2_26(blocking, split_share) \
  { sizeof(nccl_config), 0xcafebeef, 22600, blocking, INT_MIN, INT_MIN, INT_MIN, NULL, split_share, INT_MIN }

#define DDPSTEP_NCCL_CALLS(CALL)                                                                                       \
  CALL(ncclGetVersion, (int *version), (version))                                                                      \
  CALL(ncclGetUniqueId, (nccl_id * id), (id))                                                                          \
  CALL(ncclCommInitRankConfig, (nccl_comm * comm, int world, nccl_id id, int rank, nccl_config *config),               \
       (comm, world, id, rank, config))                                                                                \
  CALL(ncclCommSplit, (nccl_comm comm, int color, int key, nccl_comm *child, nccl_config *config),                     \
       (comm, color, key, child, config))                                                                              \
  CALL(ncclCommGetAsyncError, (nccl_comm comm, nccl_result * state), (comm, state))                                    \
  CALL(ncclCommFinalize, (nccl_comm comm), (comm))                                                                     \
  CALL(ncclCommDestroy, (nccl_comm comm), (comm))                                                                      \
  CALL(ncclCommAbort, (nccl_comm comm), (comm))                                                                        \
  CALL(ncclAllReduce, (nccl_ptr send, nccl_ptr recv, size_t n, int type, int op, nccl_comm comm, nccl_stream stream),  \
       (send, recv, n, type, op, comm, stream))                                                                        \
  CALL(ncclBroadcast, (nccl_ptr send, nccl_ptr recv, size_t n, int type, int root, nccl_comm comm, nccl_stream stream), \
       (send, recv, n, type, root, comm, stream))                                                                      \
  CALL(ncclAllGather, (nccl_ptr send, nccl_ptr recv, size_t n, int type, nccl_comm comm, nccl_stream stream),          \
       (send, recv, n, type, comm, stream))                                                                            \
  CALL(ncclReduceScatter, (nccl_ptr send, nccl_ptr recv, size_t n, int type, int op, nccl_comm comm, nccl_stream stream), \
       (send, recv, n, type, op, comm, stream))                                                                        \
  CALL(ncclSend, (nccl_ptr send, size_t n, int type, int peer, nccl_comm comm, nccl_stream stream),                    \
       (send, n, type, peer, comm, stream))                                                                            \
  CALL(ncclRecv, (nccl_ptr recv, size_t n, int type, int peer, nccl_comm comm, nccl_stream stream),                    \
       (recv, n, type, peer, comm, stream))

#endif
