// fill: the generated values of gradsync/values, made on the device, bit for bit the same.
#include "ddpstep.cuh"

enum Set { kWide, kExact, kCancel, kSubnormal, kZero, kHuge, kInf, kNaN };

// An index is lo + 2^32 * hi, and all elements of one launch share hi (the launcher splits).
struct FillArgs {
  void *data;
  u64 count;  // elements
  u32 lo;     // index of the first element
  u32 hi;
  u32 param;  // the five parts of a values.Key
  u32 pair;
  u32 rank;
  u32 odd;
  u32 first;
  u32 set;
};

// The word that holds sign, exponent and leading mantissa, as gradsync/values describes it.
template <u32 Mantissa, u32 Bias, u32 Base, u32 Spread, u32 Top, u32 Sign>
struct Format {
  enum : u32 { mantissa = Mantissa, bias = Bias, base = Base, spread = Spread, top = Top };
  static constexpr u32 mask = (1u << Mantissa) - 1;
  static constexpr u32 tail = Mantissa > 13 ? (1u << (Mantissa - 13)) - 1 : 0;
  MEMBER u32 word(u32 sign, u32 exp, u32 man) { return sign << Sign | exp << Mantissa | man; }
};

struct Half : Format<10, 15, 2, 3, 30, 15> { typedef u16 Bits; };
struct Brain : Format<7, 127, 87, 63, 254, 15> { typedef u16 Bits; };
struct Single : Format<23, 127, 87, 63, 254, 31> { typedef u32 Bits; };
struct Double : Format<20, 1023, 983, 63, 2046, 31> { typedef u64 Bits; };  // its upper word

template <class F>
DEVICE u32 pattern(u32 set, const FillArgs &k, u32 a, u32 c, u32 d) {
  const u32 own = d >> (23 - F::mantissa) & F::mask, shared = c >> (32 - F::mantissa);
  const u32 exp = F::base + (a >> 26 & F::spread);
  switch (set) {
    case kExact: {
      const u32 n = d >> 27 & 15, e = n >= 8 ? 3 : n >= 4 ? 2 : n >= 2 ? 1 : 0;
      return n == 0 ? 0 : F::word(d >> 31, F::bias + e, n << (F::mantissa - e) & F::mask);
    }
    case kCancel: return F::word(k.odd, exp, shared);
    case kSubnormal: return F::word(d >> 31, 0, own);
    case kZero: return F::word(d >> 28 != 0, 0, 0);
    case kHuge: return F::word(d >> 31, F::top, own);
  }
  const bool special = (d >> 3 & 63) == 0;
  if (special && set == kInf) return F::word(d >> 31, F::top + 1, 0);
  if (special && set == kNaN) return F::word(d >> 31, F::top + 1, own | 1u << (F::mantissa - 1));
  const u32 large = F::word(k.odd, exp + 23, (shared & ~F::tail) | (d >> 4 & F::tail));
  const u32 small = F::word(d >> 31, exp + (d >> 29 & 3), own);
  return ((c & 3) == 0) != (k.first == 1) ? large : small;
}

// value is the element whose index, multiplied and keyed, is x.
template <class F>
DEVICE u64 value(u32 set, const FillArgs &k, u32 x) {
  u32 a = (x ^ x >> 16) * 0x7feb352du;
  a = (a ^ a >> 15) * 0x846ca68bu;
  a ^= a >> 16;
  u32 c = (a ^ k.pair) * 0xcc9e2d51u;
  c ^= c >> 15;
  u32 d = (c ^ k.rank) * 0xcc9e2d51u;
  d ^= d >> 15;
  const u32 hi = pattern<F>(set, k, a, c, d);
  if (sizeof(typename F::Bits) < 8) return hi;
  u32 lo = d * 0x85ebca6bu ^ c;
  if (set == kExact || set == kZero || (set == kInf && hi << 1 == 0xffe00000u)) lo = 0;
  if (set == kCancel) lo = c * 0x85ebca6bu ^ a;
  return (u64)hi << 32 | lo;
}

enum : u32 { kIndexStep = 0x9e3779b1u };

template <class F>
DEVICE U4 wide(u32 set, const FillArgs &k, u32 x) {
  const int size = sizeof(typename F::Bits);
  u32 w[4] = {0, 0, 0, 0};
  UNROLL for (int j = 0; j < 16 / size; j++) {
    const u64 v = value<F>(set, k, x + (u32)j * kIndexStep);
    if (size == 8) {
      w[2 * j % 4] = (u32)v;
      w[(2 * j + 1) % 4] = (u32)(v >> 32);
    } else {
      w[j * size / 4] |= (u32)v << 8 * (j * size % 4);
    }
  }
  return U4{w[0], w[1], w[2], w[3]};
}

template <class F>
DEVICE void fill_set(u32 set, const FillArgs &k) {
  typedef typename F::Bits Bits;
  const int n = 16 / sizeof(Bits);
  Bits *data = (Bits *)k.data;
  const u64 stride = grid_threads();
  const u32 key = k.lo * kIndexStep + k.hi * 0x85ebca77u + k.param;
  u64 head = (0 - (u64)data / sizeof(Bits)) % n;
  if (head > k.count) head = k.count;
  const u64 vectors = (k.count - head) / n;

  char *at = (char *)(data + head);
  const u32 base = key + (u32)head * kIndexStep;
  for (u64 i = grid_thread(); i < vectors; i += stride)
    store_if(true, at + i * 16, wide<F>(set, k, base + (u32)i * (n * kIndexStep)));
  for (u64 s = stride - 1 - grid_thread(); s < k.count - vectors * n; s += stride) {
    const u64 e = s < head ? s : s + vectors * n;
    store_if(true, data + e, (Bits)value<F>(set, k, key + (u32)e * kIndexStep));
  }
}

// The default set has a loop of its own, in which the other sets cost nothing.
template <class F>
DEVICE void fill(const FillArgs &k) {
  if (k.set == kWide) {
    fill_set<F>(kWide, k);
  } else {
    fill_set<F>(k.set, k);
  }
}

KERNEL(fill_float16, FillArgs, fill<Half>)
KERNEL(fill_bfloat16, FillArgs, fill<Brain>)
KERNEL(fill_float32, FillArgs, fill<Single>)
KERNEL(fill_float64, FillArgs, fill<Double>)
