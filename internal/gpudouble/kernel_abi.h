// How a kernel that was compiled for the host meets the test double of libcuda.so.1.
//
// A kernels/*.cu file compiled as host C++17 (-x c++ -DDDPSTEP_HOST) includes this header and, for each
// kernel, says once at the end of the file, outside any namespace:
//
//     DDPSTEP_HOST_KERNEL(name)      // name: a function void name(P...) of trivially copyable parameters
//
// which exports the object ddpstep_host_name. All such files are linked into one shared object, and the double
// loads the one that DDPSTEP_DOUBLE_KERNELS names. A module finds the kernel NAME when its PTX has ".entry NAME".
//
// A launch copies the arguments (their sizes are in the object), and later, on the stream's own thread, calls
// the kernel once per block, in ascending order of blockIdx.x (then y, then z), always with a block of one thread:
// whatever block size was asked for, blockDim is (1,1,1) and threadIdx is (0,0,0). gridDim is the one asked for.
// So a kernel may wait for the same block of another rank, or for a lower block of its own rank, but never for a
// higher one; __syncthreads() is nothing, and a __shared__ variable may be a thread_local static.
// Device pointers are plain addresses, valid in every process that allocated or IPC-opened the memory; the
// memory behind them is shared between processes, so std::atomic and the __atomic builtins work across ranks.
// A kernel that spins should call sched_yield() now and then: ranks share few cores.
#ifndef DDPSTEP_KERNEL_ABI_H
#define DDPSTEP_KERNEL_ABI_H

#include <cstddef>
#include <type_traits>
#include <utility>

struct ddpstep_host_dim3 {
  unsigned x, y, z;
};

// Where the calling thread is; a kernel file may say "#define blockIdx ddpstep_host_where.blockIdx" and so on.
struct ddpstep_host_thread {
  ddpstep_host_dim3 gridDim, blockIdx, blockDim, threadIdx;
};

inline thread_local ddpstep_host_thread ddpstep_host_where;

// What the double finds under the symbol ddpstep_host_NAME.
struct ddpstep_host_entry {
  void (*run)(void **args, const ddpstep_host_thread *where);  // args[i] points to parameter i, as cuLaunchKernel's
  unsigned params;                                             // how many parameters
  const size_t *sizes;                                         // bytes of each
};

template <class... P>
struct ddpstep_host_params {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are copied as bytes");
  static constexpr size_t sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};

  template <void (*kernel)(P...), size_t... I>
  static void call(void **args, std::index_sequence<I...>) {
    (void)args;
    kernel(*static_cast<P *>(args[I])...);
  }
  template <void (*kernel)(P...)>
  static void run(void **args, const ddpstep_host_thread *where) {
    ddpstep_host_where = *where;
    call<kernel>(args, std::index_sequence_for<P...>{});
  }
};

template <class... P>
constexpr ddpstep_host_params<P...> ddpstep_host_params_of(void (*)(P...)) {
  return {};
}

#define DDPSTEP_HOST_KERNEL(name)                                                             \
  extern "C" __attribute__((visibility("default"))) const ddpstep_host_entry ddpstep_host_##name = { \
      &decltype(ddpstep_host_params_of(&name))::template run<&name>,                          \
      sizeof(decltype(ddpstep_host_params_of(&name))::sizes) / sizeof(size_t) - 1,            \
      decltype(ddpstep_host_params_of(&name))::sizes};

#endif
