// oneshot: the all-reduce of small messages between processes that share memory, with no barrier at all.
//
// Each process stores its addends into a slot of every peer, each 4 bytes beside a flag in the same 8, then polls its
// own slots and adds what arrived in ascending rank order. It costs twice the bytes and one trip over the link.
//
// The flag is the epoch: how often this block has taken part. Slots are double-buffered by its parity. A slot of
// epoch e is written again in epoch e+2, which a peer begins only once it has finished e+1, for which it needed what
// this block sent after it had finished reading in e. This holds block by block, so a block owns its lines for good
// (kBlockLines of them) and a block without a line takes no part; grids may change from call to call, as long as
// all processes agree. A block waits for the block of the same index elsewhere and for none of its own grid.
#include "sum.cuh"

struct OneShotArgs {
  const void *addend[kWorld];  // this process's own buffers, ascending
  U4 *slots[kProcs];           // of each process: [2][world][lines], zeros at first
  void *result;
  u32 *epochs;  // this process's own: [kBlocks], zeros at first
  Control *control;
  double scale;
  u64 count;    // elements of each buffer
  u32 pre;
  u32 world;
  u32 first;    // this process's first logical rank
  u32 addends;  // its logical ranks
  u32 procs;
  u32 self;
  u32 lines;    // lines of 8 bytes of data that a slot holds; count must fit
  u32 unused;
};

// The 8 bytes of elements [at, at+n) of a buffer. Missing ones are 0 and are not stored.
template <class Bits>
DEVICE u64 load_eight(const Bits *p, u64 at, u64 count) {
  const u64 n = 8 / sizeof(Bits);
  u64 all = 0;
  if ((u64)(p + at) % 8 == 0 && at + n <= count) {
    load_if(true, p + at, all);
    return all;
  }
  UNROLL for (u64 j = 0; j < n; j++) {
    Bits b = 0;
    load_if(at + j < count, p + at + j, b);
    all |= at + j < count ? (u64)b << 8 * sizeof(Bits) * j : 0;
  }
  return all;
}

template <class Bits>
DEVICE void store_eight(Bits *p, u64 at, u64 count, u64 all) {
  const u64 n = 8 / sizeof(Bits);
  if ((u64)(p + at) % 8 == 0 && at + n <= count) {
    store_if(true, p + at, all);
    return;
  }
  UNROLL for (u64 j = 0; j < n; j++) store_if(at + j < count, p + at + j, (Bits)(all >> 8 * sizeof(Bits) * j));
}

// gather fills x with what ranks r .. r+G-1 hold at a line: own ranks from their buffers, the others once their flags
// stand. All are asked for at once.
template <class Bits, int G>
DEVICE bool gather(const OneShotArgs &a, const U4 *slot, u64 line, u64 at, u32 epoch, u32 r, u64 (&x)[G]) {
  bool own[G];
  UNROLL for (int g = 0; g < G; g++) {
    own[g] = r + g - a.first < a.addends;
    if (own[g]) x[g] = load_eight((const Bits *)a.addend[r + g - a.first], at, a.count);
  }
  u32 missing = r;
  return spin_until(a.control, kOneShot, missing, [&] {
    bool all = true;
    U4 v[G] = {};
    UNROLL for (int g = 0; g < G; g++)
      if (!own[g]) v[g] = load_line_sys(slot + (u64)(r + g) * a.lines + line);
    UNROLL for (int g = 0; g < G; g++)
      if (!own[g]) {
        x[g] = pair(v[g].x, v[g].z);
        if (v[g].y != epoch || v[g].w != epoch) {
          all = false;
          missing = r + g;
        }
      }
    return all;
  });
}

// add_ranks gathers and adds ranks r .. r+G-1 while that many are left. It is false when the host gave up.
template <class T, int G>
DEVICE bool add_ranks(const OneShotArgs &a, const U4 *slot, u64 line, u32 epoch, bool pre, typename T::Acc scale, u32 &r,
                      typename T::Acc (&acc)[8 / sizeof(typename T::Bits)]) {
  const int n = 8 / sizeof(typename T::Bits);
  for (; r + G <= a.world; r += G) {
    u64 x[G] = {};
    if (!gather<typename T::Bits>(a, slot, line, line * n, epoch, r, x)) return false;
    UNROLL for (int g = 0; g < G; g++)
      UNROLL for (int j = 0; j < n; j++)
        acc[j] = add(acc[j], term<T>((typename T::Bits)(x[g] >> 64 / n * j), pre, scale));
  }
  return true;
}

template <class T>
DEVICE void oneshot(const OneShotArgs &a) {
  typedef typename T::Bits Bits;
  const int n = 8 / sizeof(Bits);
  const bool pre = a.pre != 0;
  const typename T::Acc scale = (typename T::Acc)a.scale;
  const u64 lines = (a.count + n - 1) / n, begin = (u64)block() * kBlockLines;
  if (begin >= lines) return;
  const u64 end = lines < begin + kBlockLines ? lines : begin + kBlockLines;

  u32 epoch = a.epochs[block()] + 1;
  if (epoch == 0) epoch = 2;  // after 2^32 calls: a slot that was never written must not match
  const u64 half = (u64)(epoch & 1) * a.world * a.lines;

  for (u64 i = begin + thread(); i < end; i += threads())
    for (u32 k = 0; k < a.addends; k++) {
      const u64 x = load_eight((const Bits *)a.addend[k], i * n, a.count);
      const U4 line = {(u32)x, epoch, (u32)(x >> 32), epoch};
      for (u32 q = a.self + 1; q < a.self + a.procs; q++)
        store_line_sys(a.slots[q < a.procs ? q : q - a.procs] + half + (u64)(a.first + k) * a.lines + i, line);
    }
  sync_block();  // all threads have read the epoch
  if (thread() == 0) a.epochs[block()] = epoch;

  const U4 *slot = a.slots[a.self] + half;
  for (u64 i = begin + thread(); i < end; i += threads()) {
    typename T::Acc acc[n];
    UNROLL for (int j = 0; j < n; j++) acc[j] = kNothing;
    u32 r = 0;
    if (!add_ranks<T, 4>(a, slot, i, epoch, pre, scale, r, acc)) return;
    if (!add_ranks<T, 2>(a, slot, i, epoch, pre, scale, r, acc)) return;
    if (!add_ranks<T, 1>(a, slot, i, epoch, pre, scale, r, acc)) return;
    u64 out = 0;
    UNROLL for (int j = 0; j < n; j++) out |= (u64)finish<T>(acc[j], pre, scale) << 64 / n * j;
    store_eight((Bits *)a.result, i * n, a.count, out);
  }
}

KERNEL(oneshot_float16, OneShotArgs, oneshot<Float16>)
KERNEL(oneshot_bfloat16, OneShotArgs, oneshot<BFloat16>)
KERNEL(oneshot_float32, OneShotArgs, oneshot<Float32>)
KERNEL(oneshot_float64, OneShotArgs, oneshot<Float64>)
