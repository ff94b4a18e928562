// Kernels for the tests of this package. probe.ptx is made from it by
//   clang-19 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-feature=+ptx63 -nocudainc -nocudalib \
//     -std=c++17 -O3 -ffp-contract=off -S probe.cu -o probe.ptx
#ifdef DDPSTEP_HOST
#include <sched.h>

#include "kernel_abi.h"
#define KERNEL static void
#define INDEX (ddpstep_host_where.blockIdx.x * ddpstep_host_where.blockDim.x + ddpstep_host_where.threadIdx.x)
#define STRIDE (ddpstep_host_where.gridDim.x * ddpstep_host_where.blockDim.x)
#define PAUSE() sched_yield()
#else
#define KERNEL extern "C" __attribute__((global)) void
#define INDEX (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define STRIDE (__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
#define PAUSE()
#endif

typedef unsigned long long u64;

struct Scale {
  float by;
  unsigned pad;
  u64 n;
};

// x[i] = x[i] * s.by + i for the first s.n elements.
KERNEL probe_scale(float *x, Scale s) {
  for (u64 i = INDEX; i < s.n; i += STRIDE) x[i] = x[i] * s.by + (float)i;
}

// Adds one, so that runs can be counted. One block of one thread.
KERNEL probe_count(unsigned *counter) { *counter += 1; }

// Waits until *word is not zero, and stores it. One block of one thread.
KERNEL probe_spin(const volatile unsigned *word, unsigned *seen) {
  while (*word == 0) PAUSE();
  *seen = *word;
}

#ifdef DDPSTEP_HOST
DDPSTEP_HOST_KERNEL(probe_scale)
DDPSTEP_HOST_KERNEL(probe_count)
DDPSTEP_HOST_KERNEL(probe_spin)
#endif
