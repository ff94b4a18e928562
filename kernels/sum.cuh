// The contract's arithmetic (gradsync/contract), for every kernel that adds, and the loop that fold and two-shot
// share: load 16 bytes of some ranks, add in ascending order in registers, average, round, store.
#ifndef DDPSTEP_SUM_CUH
#define DDPSTEP_SUM_CUH

#include "ddpstep.cuh"

// A dtype: its bit patterns, its accumulator, and the two conversions. Widening is exact; narrowing rounds to nearest
// even, gives infinity on overflow, and one NaN. The 16-bit conversions are integer arithmetic plus float32
// operations that are exact or round as IEEE says, so they are the same everywhere.
struct Float32 {
  typedef u32 Bits;
  typedef float Acc;
  MEMBER float widen(u32 b) { return float_of(b); }
  MEMBER u32 narrow(float f) { return f != f ? 0x7fc00000u : bits_of(f); }
};

struct Float64 {
  typedef u64 Bits;
  typedef double Acc;
  MEMBER double widen(u64 b) { return double_of(b); }
  MEMBER u64 narrow(double f) { return f != f ? 0x7ff8000000000000ull : bits_of(f); }
};

struct BFloat16 {
  typedef u16 Bits;
  typedef float Acc;
  MEMBER float widen(u16 b) { return float_of((u32)b << 16); }
  MEMBER u16 narrow(float f) {
    u32 b = bits_of(f);
    return (u16)(f != f ? 0x7fc0u : (b + 0x7fffu + (b >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  typedef u16 Bits;
  typedef float Acc;
  // A float16 shifted to float32's place is 2^-112 times its value, subnormals included; the product is exact.
  MEMBER float widen(u16 h) {
    u32 abs = (u32)(h & 0x7fff) << 13;
    u32 b = abs >= 0x7c00u << 13 ? abs | 0x7f800000u : bits_of(mul(float_of(abs), 0x1p112f));
    return float_of(b | (u32)(h & 0x8000) << 16);
  }
  MEMBER u16 narrow(float f) {
    u32 b = bits_of(f), abs = b & 0x7fffffffu;
    u32 h = (abs - (112u << 23) + 0xfff + (abs >> 13 & 1)) >> 13;                // normal: drop 13 bits
    if (abs < 0x38800000u) h = bits_of(add(float_of(abs), 0.5f)) - 0x3f000000u;  // 0.5's last bit is 2^-24
    if (abs >= 0x477ff000u) h = 0x7c00;                                          // 65520 and above
    return (u16)(f != f ? 0x7e00u : h | (b >> 16 & 0x8000u));
  }
};

// term is a rank's addend: widened and, when pre asks for it, scaled and rounded to the dtype. The float32 product of
// two 16-bit values is exact for every scale 1/W with W up to kWorld, so that the rounding is the only one.
template <class T>
DEVICE typename T::Acc term(typename T::Bits b, bool pre, typename T::Acc scale) {
  typename T::Acc v = T::widen(b);
  return pre ? T::widen(T::narrow(mul(v, scale))) : v;
}

// finish averages and rounds. Where there is no mean to take the scale is 1, and the product exact.
template <class T>
DEVICE typename T::Bits finish(typename T::Acc s, bool pre, typename T::Acc scale) {
  return T::narrow(pre ? s : mul(s, scale));
}

// What a chain starts from: -0 + x is x for every x, -0 included, so that this is the chain that starts from rank 0.
// (+0 would turn -0 into +0.)
#define kNothing -0.0f

// Elements of 16 bytes, and one element alone, under one interface.
DEVICE u64 pair(u32 lo, u32 hi) { return (u64)hi << 32 | lo; }
DEVICE u32 word(const U4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE void set_word(U4 &v, int i, u32 b) { (i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w) = b; }

template <class Bits>
struct Wide {
  enum { n = 16 / sizeof(Bits) };
  U4 raw;
  DEVICE_MEMBER Bits get(int j) const {
    if (sizeof(Bits) == 8) return (Bits)pair(word(raw, 2 * j), word(raw, 2 * j + 1));
    if (sizeof(Bits) == 4) return (Bits)word(raw, j);
    return (Bits)(word(raw, j / 2) >> 16 * (j & 1));
  }
  DEVICE_MEMBER void set(int j, Bits b) {
    if (sizeof(Bits) == 8) {
      set_word(raw, 2 * j, (u32)b);
      set_word(raw, 2 * j + 1, (u32)((u64)b >> 32));
    } else if (sizeof(Bits) == 4) {
      set_word(raw, j, (u32)b);
    } else {
      set_word(raw, j / 2, j & 1 ? word(raw, j / 2) | (u32)b << 16 : (u32)b);
    }
  }
};

template <class Bits>
struct Single {
  enum { n = 1 };
  Bits raw;
  DEVICE_MEMBER Bits get(int) const { return raw; }
  DEVICE_MEMBER void set(int, Bits b) { raw = b; }
};

// Sum says what to add, and where the result goes. Pointers are aligned to the element; a result may be one of the
// addends, but must not overlap one otherwise.
struct Sum {
  const void *addend[kWorld];
  void *result[kProcs];
  double scale;  // A(1/W) for the mean, T(1/W) for pre, else 1
  u32 pre;
  u32 world;    // addends
  u32 results;
  u32 first;    // the result that is stored first: each process its own, so that all links are busy
};

// Part is a run of elements of every buffer, split by the widths at which they can be reached: `wide` accesses of 16
// bytes in the middle, where all buffers lie alike within 16 bytes, and single elements around them, `head` of them
// in front.
struct Part {
  u64 begin, count, head, wide;
};

template <class Bits>
DEVICE Part part_of(const Sum &s, u64 begin, u64 count) {
  const u64 n = 16 / sizeof(Bits);
  u64 at = (u64)s.addend[0], differ = 0;
  for (u32 r = 1; r < s.world; r++) differ |= at ^ (u64)s.addend[r];
  for (u32 d = 0; d < s.results; d++) differ |= at ^ (u64)s.result[d];
  u64 head = (0 - (at / sizeof(Bits) + begin)) % n;
  if (differ % 16 != 0 || head > count) head = count;
  return Part{begin, count, head, (count - head) / n};
}

// The element at which access i of a Part begins.
template <class Bits>
DEVICE u64 place(const Part &p, u64 i, Wide<Bits> *) { return p.begin + p.head + i * Wide<Bits>::n; }
template <class Bits>
DEVICE u64 place(const Part &p, u64 i, Single<Bits> *) {
  return p.begin + (i < p.head ? i : i + p.wide * Wide<Bits>::n);
}

// step adds ranks r .. r+G-1 to U accumulators, all G*U loads in flight before the first addition.
template <class T, class V, int U, int G>
DEVICE void step(const Sum &s, bool pre, typename T::Acc scale, u32 r, const u64 (&at)[U], const bool (&ok)[U],
                 typename T::Acc (&acc)[U][V::n]) {
  V x[G][U];
  UNROLL for (int g = 0; g < G; g++)
    UNROLL for (int k = 0; k < U; k++) load_if(ok[k], (const char *)s.addend[r + g] + at[k], x[g][k].raw);
  UNROLL for (int g = 0; g < G; g++)
    UNROLL for (int k = 0; k < U; k++)
      UNROLL for (int j = 0; j < V::n; j++)
        acc[k][j] = add(acc[k][j], term<T>(x[g][k].get(j), pre, scale));
}

// sum_loop adds `accesses` accesses of kind V, of which this thread takes every stride-th from i on. Where G is 4 the
// world is a multiple of it.
template <class T, class V, int U, int G>
DEVICE void sum_loop(const Sum &s, bool pre, const Part &p, u64 accesses, u64 i, u64 stride) {
  const typename T::Acc scale = (typename T::Acc)s.scale;
  for (; i < accesses; i += U * stride) {
    u64 at[U];
    bool ok[U];
    UNROLL for (int k = 0; k < U; k++) {
      at[k] = place(p, i + k * stride, (V *)0) * sizeof(typename T::Bits);
      ok[k] = i + k * stride < accesses;
    }
    typename T::Acc acc[U][V::n];
    UNROLL for (int k = 0; k < U; k++)
      UNROLL for (int j = 0; j < V::n; j++) acc[k][j] = kNothing;
    u32 r = 0;
    for (; r + G <= s.world; r += G) step<T, V, U, G>(s, pre, scale, r, at, ok, acc);
    for (; G < 4 && r < s.world; r++) step<T, V, U, 1>(s, pre, scale, r, at, ok, acc);
    V out[U];
    UNROLL for (int k = 0; k < U; k++)
      UNROLL for (int j = 0; j < V::n; j++) out[k].set(j, finish<T>(acc[k][j], pre, scale));
    for (u32 d = 0, to = s.first; d < s.results; d++, to = to + 1 == s.results ? 0 : to + 1)
      UNROLL for (int k = 0; k < U; k++) store_if(ok[k], (char *)s.result[to] + at[k], out[k].raw);
  }
}

// sum_part adds the elements [begin, begin+count) of the addends, the whole grid together. Eight loads of 16 bytes
// are in flight a thread, of 4 ranks where the world divides so, else of 2; `pre` and single elements, which are for
// comparison and for odd ends, make do with fewer. The single elements fall to the last threads of the grid, which
// have the least else to do.
template <class T>
DEVICE void sum_part(const Sum &s, u64 begin, u64 count) {
  typedef Wide<typename T::Bits> W;
  typedef Single<typename T::Bits> S;
  const Part p = part_of<typename T::Bits>(s, begin, count);
  const u64 stride = grid_threads(), i = grid_thread();
  if (s.pre != 0) {
    sum_loop<T, W, 2, 1>(s, true, p, p.wide, i, stride);
  } else if (s.world % 4 == 0) {
    sum_loop<T, W, 2, 4>(s, false, p, p.wide, i, stride);
  } else {
    sum_loop<T, W, 4, 2>(s, false, p, p.wide, i, stride);
  }
  sum_loop<T, S, 2, 2>(s, s.pre != 0, p, count - p.wide * W::n, stride - 1 - i, stride);
}

#endif
