// The inside of the double of libcuda.so.1: what its files share, and what the double of NCCL asks of it.
#ifndef DDPSTEP_DOUBLE_CUDA_H
#define DDPSTEP_DOUBLE_CUDA_H

#include <cstddef>
#include <cstdint>
#include <algorithm>
#include <functional>

#include "fault.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using Ptr = unsigned long long;  // CUdeviceptr
using Op = std::function<void()>;

enum Code {
  ok = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  peer_unsupported = 217,
  invalid_image = 200,
  invalid_ptx = 218,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  peer_enabled = 704,
  capture_unsupported = 900,
  capture_unjoined = 904,
  captured_event = 907,
};

struct Context {
  int device;  // the machine's own number of it
};

extern thread_local Context *current;  // of the calling thread

bool initialized();
int current_device();              // the machine's own number, -1 without a context
bool reaches(int from, int to);    // may device from address memory of device to
size_t memory_of_device();         // bytes
void finish_all_streams();         // as freeing memory does
bool on_device(Ptr p, size_t n);   // a range of live device memory
bool addressable(Ptr p, size_t n); // the same, or pinned host memory

// For the double of NCCL. An operation that is enqueued on a capturing stream is recorded, and may run many times.
EXPORT int ddpstep_double_enqueue(uintptr_t stream, const Op *op);
EXPORT int ddpstep_double_capturing(uintptr_t stream);
EXPORT int ddpstep_double_device();
EXPORT int ddpstep_double_memory(Ptr p, size_t n);

#endif
