// twoshot: the all-reduce of large messages between processes that map each other's buffers, in place.
//
// Process p adds slice p of every logical rank's buffer and stores the result to every process. Each byte crosses a
// link once to be read and once to be written, and no scratch memory is used. A barrier before tells that every
// buffer is filled; one after, that every result is stored and no buffer is still being read.
//
// The grid is the same on all processes (they agree on it from the message's size), at most kBlocks; a block waits for
// the block of the same index elsewhere and for none of its own grid.
#include "peers.cuh"
#include "sum.cuh"

struct TwoShotArgs {
  Sum sum;  // result[p] belongs to process p: its first logical rank's buffer
  Peers peers;
  u64 count;  // elements of each buffer
  u64 slice;  // elements of a slice, the same everywhere; slices from 0 on that lie beyond count are cut or empty
};

template <class T>
DEVICE void twoshot(const TwoShotArgs &a) {
  const u32 epoch = a.peers.epochs[block()] + 1;
  const u64 begin = a.slice * a.peers.self, left = begin < a.count ? a.count - begin : 0;
  if (!meet(a.peers, kStart, epoch)) return;
  sum_part<T>(a.sum, begin, left < a.slice ? left : a.slice);
  if (!meet(a.peers, kEnd, epoch)) return;
  if (thread() == 0) a.peers.epochs[block()] = epoch;
}

KERNEL(twoshot_float16, TwoShotArgs, twoshot<Float16>)
KERNEL(twoshot_bfloat16, TwoShotArgs, twoshot<BFloat16>)
KERNEL(twoshot_float32, TwoShotArgs, twoshot<Float32>)
KERNEL(twoshot_float64, TwoShotArgs, twoshot<Float64>)
