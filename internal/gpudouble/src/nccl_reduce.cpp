// The arithmetic of the double's reductions, in every type.
#include <cmath>
#include <limits>

#include "nccl.h"

namespace {

// A floating-point format of E exponent and M mantissa bits; e4m3 has no infinity and saturates.
template <class Bits, int E, int M, bool infinite>
struct Small {
  Bits bits;
  static constexpr int bias = (1 << (E - 1)) - 1;
  static constexpr unsigned sign = 1u << (E + M), top = (1u << (E + M)) - 1;

  operator float() const {
    int e = (bits >> M) & ((1 << E) - 1), m = bits & ((1 << M) - 1);
    float v;
    if (e == (1 << E) - 1 && (infinite || m == (1 << M) - 1)) {
      v = m ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    } else if (e == 0) {
      v = std::ldexp((float)m, 1 - bias - M);
    } else {
      v = std::ldexp((float)(m + (1 << M)), e - bias - M);
    }
    return bits & sign ? -v : v;
  }
  Small() = default;
  Small(float f) {
    unsigned s = std::signbit(f) ? sign : 0, infinity = ((1u << E) - 1) << M;
    double a = std::fabs((double)f);
    if (std::isnan(f)) {
      bits = infinite ? infinity | 1u << (M - 1) : top;
      return;
    }
    unsigned largest = infinite ? infinity : top - 1, b = largest;
    if (!std::isinf(f)) {
      int e = a == 0 ? 1 - bias : std::max(std::ilogb(a), 1 - bias);
      double q = std::nearbyint(std::ldexp(a, M - e));
      double wide = q < (1 << M) ? q : (double)((e + bias) * (1 << M)) + q - (1 << M);
      b = wide < largest ? (unsigned)wide : largest;
    }
    bits = (Bits)(s | b);
  }
};

using Half = Small<uint16_t, 5, 10, true>;
using BFloat = Small<uint16_t, 8, 7, true>;
using E4M3 = Small<uint8_t, 4, 3, false>;
using E5M2 = Small<uint8_t, 5, 2, true>;

// W is the type to calculate in; the result of every step is rounded to T.
template <class T, class W, bool integer>
void reduce_as(int op, const char *const *in, int n, size_t count, char *out) {
  for (size_t i = 0; i < count; i++) {
    auto at = [&](int r) {
      T v = ((const T *)in[r])[i];
      return op == 4 && !integer ? T((W)v * (W)(1 / (W)n)) : v;
    };
    T sum = at(0);
    for (int r = 1; r < n; r++) {
      W a = (W)sum, b = (W)at(r);
      switch (op) {
        case 1: sum = (T)(W)(a * b); break;
        case 2: sum = (T)(a < b || b != b ? b : a); break;
        case 3: sum = (T)(b < a || b != b ? b : a); break;
        default: sum = (T)(W)(a + b);
      }
    }
    ((T *)out)[i] = op == 4 && integer ? (T)((W)sum / (W)n) : sum;
  }
}

}  // namespace

size_t nccl::size_of(int type) {
  constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? sizes[type] : 0;
}

void nccl::reduce(int type, int op, const char *const *in, int n, size_t count, char *out) {
  switch (type) {
    case 0: return reduce_as<int8_t, int, true>(op, in, n, count, out);
    case 1: return reduce_as<uint8_t, unsigned, true>(op, in, n, count, out);
    case 2: return reduce_as<int32_t, int64_t, true>(op, in, n, count, out);
    case 3: return reduce_as<uint32_t, uint64_t, true>(op, in, n, count, out);
    case 4: return reduce_as<int64_t, __int128, true>(op, in, n, count, out);
    case 5: return reduce_as<uint64_t, unsigned __int128, true>(op, in, n, count, out);
    case 6: return reduce_as<Half, float, false>(op, in, n, count, out);
    case 7: return reduce_as<float, float, false>(op, in, n, count, out);
    case 8: return reduce_as<double, double, false>(op, in, n, count, out);
    case 9: return reduce_as<BFloat, float, false>(op, in, n, count, out);
    case 10: return reduce_as<E4M3, float, false>(op, in, n, count, out);
    case 11: return reduce_as<E5M2, float, false>(op, in, n, count, out);
  }
}
