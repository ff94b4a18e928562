// barrier: every process's stream has come this far, and what it wrote is seen. One block.
//
// It stands around work on peers' memory that has no barrier of its own: copies, and folds of what they brought.
#include "peers.cuh"

DEVICE void alone(const Peers &p) {
  const u32 epoch = p.epochs[0] + 1;
  if (meet(p, kAlone, epoch) && thread() == 0) p.epochs[0] = epoch;
}

KERNEL(barrier, Peers, alone)
