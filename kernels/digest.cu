// digest: the two lanes of gradsync/digest, added to what stands in sums.
//
// Additions of integers commute, so threads add as they finish. The multiplications are 32 bits wide, their 64-bit
// results are added up by the same instruction, and the index key costs one addition an element: that keeps the mix
// below the time that reading takes.
#include "ddpstep.cuh"

// An index is lo + 2^32 * hi, and all elements of one launch share hi (the launcher splits).
struct DigestArgs {
  const void *data;
  u64 count;  // elements
  u64 *sums;  // lanes A and B
  u32 lo;     // index of the first element
  u32 hi;
};

struct Lanes {
  u64 a, b;
};

// x is the index times 0x9e3779b1, with the key's constants added.
DEVICE void mix(Lanes &sum, u32 x, u32 lo, u32 hi) {
  const u32 j = (x ^ x >> 15) * 0x85ebca6bu;
  const u32 k = j ^ j >> 13;
  sum.a += (u64)(lo ^ k) * (lo * 0xc2b2ae3du + hi * 0x27d4eb2fu + j);
  sum.b += (u64)(lo ^ (j + k)) * (lo * 0x9e3779b1u + hi * 0x85ebca77u + k);
}

enum { kIndexStep = 0x9e3779b1u };

// Two sums in turn, so that no addition waits for the one before it.
template <class Bits>
DEVICE void mix_wide(Lanes (&sum)[2], u32 x, const U4 &v) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  const int n = 16 / sizeof(Bits);
  UNROLL for (int j = 0; j < n; j++) {
    const u32 xj = x + (u32)j * kIndexStep;
    if (sizeof(Bits) == 8) mix(sum[j % 2], xj, w[2 * j % 4], w[(2 * j + 1) % 4]);
    if (sizeof(Bits) == 4) mix(sum[j % 2], xj, w[j % 4], 0);
    if (sizeof(Bits) == 2) mix(sum[j % 2], xj, w[j / 2 % 4] >> 16 * (j % 2) & 0xffff, 0);
  }
}

// add_lanes adds the whole block's lanes: warp by warp where the block is made of whole warps.
DEVICE void add_lanes(u64 *sums, Lanes s) {
#if !defined(DDPSTEP_HOST)
  if (threads() % 32 == 0) {
    UNROLL for (int d = 16; d > 0; d /= 2) {
      s.a += shuffle_down(s.a, d);
      s.b += shuffle_down(s.b, d);
    }
    if (thread() % 32 != 0) return;
  }
#endif
  add_to(sums, s.a);
  add_to(sums + 1, s.b);
}

template <class Bits>
DEVICE void digest(const DigestArgs &a) {
  const int n = 16 / sizeof(Bits), U = 4;
  const Bits *data = (const Bits *)a.data;
  const u64 stride = grid_threads();
  const u32 key = a.lo * kIndexStep + a.hi * 0x85ebca77u + 0x165667b1u;
  u64 head = (0 - (u64)data / sizeof(Bits)) % n;
  if (head > a.count) head = a.count;
  const u64 wide = (a.count - head) / n;
  Lanes sum[2] = {{0, 0}, {0, 0}};

  const char *at = (const char *)(data + head);
  const u32 base = key + (u32)head * kIndexStep;
  u64 i = grid_thread();
  for (; i + (U - 1) * stride < wide; i += U * stride) {
    U4 v[U];
    UNROLL for (int k = 0; k < U; k++) load_if(true, at + (i + k * stride) * 16, v[k]);
    UNROLL for (int k = 0; k < U; k++) mix_wide<Bits>(sum, base + (u32)(i + k * stride) * (n * kIndexStep), v[k]);
  }
  for (; i < wide; i += stride) {
    U4 v;
    load_if(true, at + i * 16, v);
    mix_wide<Bits>(sum, base + (u32)i * (n * kIndexStep), v);
  }
  for (u64 s = stride - 1 - grid_thread(); s < a.count - wide * n; s += stride) {
    const u64 e = s < head ? s : s + wide * n;
    Bits b;
    load_if(true, data + e, b);
    mix(sum[0], key + (u32)e * kIndexStep, (u32)b, (u32)((u64)b >> 32));
  }
  add_lanes(a.sums, Lanes{sum[0].a + sum[1].a, sum[0].b + sum[1].b});
}

KERNEL(digest_2, DigestArgs, digest<u16>)
KERNEL(digest_4, DigestArgs, digest<u32>)
KERNEL(digest_8, DigestArgs, digest<u64>)
