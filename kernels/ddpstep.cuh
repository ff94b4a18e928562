// What every kernel here needs: one source for three compilers, memory accesses of stated width and order, and a
// spin that can be told to give up.
//
//   clang++ -x cuda    makes the committed PTX and has no CUDA toolkit, so nothing of CUDA's headers is used;
//   nvcc               makes native code of the same source;
//   g++ -DDDPSTEP_HOST makes functions that the test double calls, with blocks of one thread.
//
// All arithmetic is spelled so that no compiler may fuse or reorder it, and all three give the same bits.
#ifndef DDPSTEP_CUH
#define DDPSTEP_CUH

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(DDPSTEP_HOST)
#include <sched.h>
#include <string.h>

#include "kernel_abi.h"
#define DEVICE static inline
#define MEMBER static inline
#define DEVICE_MEMBER inline
#define UNROLL
#define KERNEL(name, Args, body)        \
  static void name(Args a) { body(a); } \
  DDPSTEP_HOST_KERNEL(name)
#else
#if !defined(__NVCC__)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define __grid_constant__
#endif
#define DEVICE __device__ static inline __attribute__((always_inline))
#define MEMBER __device__ static inline __attribute__((always_inline))
#define DEVICE_MEMBER __device__ inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
// At most 512 threads a block leave each thread 128 registers.
#define KERNEL(name, Args, body) \
  extern "C" __global__ void __launch_bounds__(512) name(const __grid_constant__ Args a) { body(a); }
#endif

enum {
  kWorld = 64,         // most logical ranks
  kProcs = 16,         // most processes that share memory
  kBlocks = 256,       // most blocks of a kernel that waits for its peers
  kBlockLines = 512,   // lines of the one-shot kernel that belong to one block
  kSpinsPerPoll = 1024 // spins between two looks at the abort word, which lies across PCIe
};

// Control is in mapped host memory: the host sets abort, the kernel answers in status.
struct Control {
  u32 abort;
  u32 status;  // 0, or (phase + 1) << 16 | the peer that was waited for
};

enum Phase { kStart = 0, kEnd = 1, kAlone = 2, kPhases = 3, kOneShot = 3 };

struct alignas(16) U4 {
  u32 x, y, z, w;
};

// Where this thread is. All grids are one-dimensional.
#if defined(DDPSTEP_HOST)
DEVICE u32 thread() { return ddpstep_host_where.threadIdx.x; }
DEVICE u32 threads() { return ddpstep_host_where.blockDim.x; }
DEVICE u32 block() { return ddpstep_host_where.blockIdx.x; }
DEVICE u32 blocks() { return ddpstep_host_where.gridDim.x; }
DEVICE void sync_block() {}
DEVICE bool sync_block_and(bool ok) { return ok; }
#elif !defined(__NVCC__)
DEVICE u32 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
DEVICE u32 threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEVICE u32 block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEVICE u32 blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE bool sync_block_and(bool ok) { return __nvvm_bar0_and(ok) != 0; }
#else
DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
DEVICE u32 block() { return blockIdx.x; }
DEVICE u32 blocks() { return gridDim.x; }
DEVICE void sync_block() { __syncthreads(); }
DEVICE bool sync_block_and(bool ok) { return __syncthreads_and(ok) != 0; }
#endif

#if !defined(DDPSTEP_HOST)
// shuffle_down is v of the thread d places up in the same warp, all 32 of which call it.
DEVICE u64 shuffle_down(u64 v, int d) {
  u32 lo, hi;
  asm volatile("{ .reg .b32 a, b; mov.b64 {a, b}, %2; shfl.sync.down.b32 %0, a, %3, 31, -1;"
               " shfl.sync.down.b32 %1, b, %3, 31, -1; }" : "=&r"(lo), "=&r"(hi) : "l"(v), "r"(d));
  return (u64)hi << 32 | lo;
}
#endif

// Position and size of the grid as one row of threads.
DEVICE u64 grid_thread() { return (u64)block() * threads() + thread(); }
DEVICE u64 grid_threads() { return (u64)blocks() * threads(); }

// One rounded addition or multiplication each, never fused.
#if defined(DDPSTEP_HOST)
DEVICE float add(float a, float b) { return a + b; }
DEVICE float mul(float a, float b) { return a * b; }
DEVICE double add(double a, double b) { return a + b; }
DEVICE double mul(double a, double b) { return a * b; }
DEVICE u32 bits_of(float f) { u32 b; memcpy(&b, &f, 4); return b; }
DEVICE float float_of(u32 b) { float f; memcpy(&f, &b, 4); return f; }
DEVICE u64 bits_of(double f) { u64 b; memcpy(&b, &f, 8); return b; }
DEVICE double double_of(u64 b) { double f; memcpy(&f, &b, 8); return f; }
#elif !defined(__NVCC__)
DEVICE float add(float a, float b) { return __nvvm_add_rn_f(a, b); }
DEVICE float mul(float a, float b) { return __nvvm_mul_rn_f(a, b); }
DEVICE double add(double a, double b) { return __nvvm_add_rn_d(a, b); }
DEVICE double mul(double a, double b) { return __nvvm_mul_rn_d(a, b); }
DEVICE u32 bits_of(float f) { return __builtin_bit_cast(u32, f); }
DEVICE float float_of(u32 b) { return __builtin_bit_cast(float, b); }
DEVICE u64 bits_of(double f) { return __builtin_bit_cast(u64, f); }
DEVICE double double_of(u64 b) { return __builtin_bit_cast(double, b); }
#else
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
DEVICE double mul(double a, double b) { return __dmul_rn(a, b); }
DEVICE u32 bits_of(float f) { return __float_as_uint(f); }
DEVICE float float_of(u32 b) { return __uint_as_float(b); }
DEVICE u64 bits_of(double f) { return (u64)__double_as_longlong(f); }
DEVICE double double_of(u64 b) { return __longlong_as_double((long long)b); }
#endif

// Memory. Loads and stores of data are weak; where the predicate is false nothing is touched and a load's value is
// undefined. The "_sys" accesses are atomic and seen by every GPU and the host. A line is 16 bytes: two values, each
// beside a flag in the same 8 bytes, so that whoever sees the flag sees the value, whatever the order of arrival.
#if defined(DDPSTEP_HOST)
// As strict as a GPU: an access that is not aligned to its width ends the process.
DEVICE void check_aligned(const void *p, size_t n) {
  if ((size_t)p % n != 0) __builtin_trap();
}
template <class V>
DEVICE void load_if(bool ok, const void *p, V &v) {
  v = V{};
  if (!ok) return;
  check_aligned(p, sizeof v);
  memcpy(&v, p, sizeof v);
}
template <class V>
DEVICE void store_if(bool ok, void *p, const V &v) {
  if (!ok) return;
  check_aligned(p, sizeof v);
  memcpy(p, &v, sizeof v);
}

DEVICE u32 load_sys(const u32 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
DEVICE void store_sys(u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
DEVICE u32 load_acquire_sys(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
DEVICE void store_release_sys(u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
DEVICE void store_line_sys(U4 *p, const U4 &v) {
  u64 *half = (u64 *)p;
  __atomic_store_n(half, (u64)v.y << 32 | v.x, __ATOMIC_RELAXED);
  __atomic_store_n(half + 1, (u64)v.w << 32 | v.z, __ATOMIC_RELAXED);
}
DEVICE U4 load_line_sys(const U4 *p) {
  const u64 *half = (const u64 *)p;
  u64 a = __atomic_load_n(half, __ATOMIC_RELAXED), b = __atomic_load_n(half + 1, __ATOMIC_RELAXED);
  return U4{(u32)a, (u32)(a >> 32), (u32)b, (u32)(b >> 32)};
}
DEVICE void add_to(u64 *p, u64 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE void pause_spin() { sched_yield(); }
#else
#define PREDICATED(op) "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p " op " }"
DEVICE void load_if(bool ok, const void *p, U4 &v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%5]; }"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)ok), "l"(p));
}
DEVICE void load_if(bool ok, const void *p, u64 &v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u64 %0, [%2]; }" : "=l"(v) : "r"((u32)ok), "l"(p));
}
DEVICE void load_if(bool ok, const void *p, u32 &v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u32 %0, [%2]; }" : "=r"(v) : "r"((u32)ok), "l"(p));
}
DEVICE void load_if(bool ok, const void *p, u16 &v) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.global.u16 %0, [%2]; }" : "=h"(v) : "r"((u32)ok), "l"(p));
}
DEVICE void store_if(bool ok, void *p, const U4 &v) {
  asm volatile(PREDICATED("st.global.v4.u32 [%1], {%2, %3, %4, %5};")
               :: "r"((u32)ok), "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void store_if(bool ok, void *p, u64 v) {
  asm volatile(PREDICATED("st.global.u64 [%1], %2;") :: "r"((u32)ok), "l"(p), "l"(v) : "memory");
}
DEVICE void store_if(bool ok, void *p, u32 v) {
  asm volatile(PREDICATED("st.global.u32 [%1], %2;") :: "r"((u32)ok), "l"(p), "r"(v) : "memory");
}
DEVICE void store_if(bool ok, void *p, u16 v) {
  asm volatile(PREDICATED("st.global.u16 [%1], %2;") :: "r"((u32)ok), "l"(p), "h"(v) : "memory");
}

DEVICE u32 load_sys(const u32 *p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void store_sys(u32 *p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEVICE u32 load_acquire_sys(const u32 *p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void store_release_sys(u32 *p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEVICE void store_line_sys(U4 *p, const U4 &v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE U4 load_line_sys(const U4 *p) {
  U4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE void add_to(u64 *p, u64 v) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" :: "l"(p), "l"(v) : "memory");
}
DEVICE void pause_spin() {}
#endif

// spin_until calls ready until it answers true, and is true then; it is false, with status set, once the host asks
// to give up; ready may change peer, which is whom it lacks. After that the memory shared with the peers is in no known state: the world has to be made anew.
template <class Ready>
DEVICE bool spin_until(Control *control, u32 phase, const u32 &peer, Ready ready) {
  for (u32 spins = 1; !ready(); spins++) {
    if (spins % kSpinsPerPoll == 0 && load_sys(&control->abort) != 0) {
      store_sys(&control->status, (phase + 1) << 16 | peer);
      return false;
    }
    pause_spin();
  }
  return true;
}

#endif
