// Processes that share memory, and their barrier.
#ifndef DDPSTEP_PEERS_CUH
#define DDPSTEP_PEERS_CUH

#include "ddpstep.cuh"

// Each process owns flags[kPhases][kBlocks][kProcs], which its peers write and it alone reads, and epochs[kBlocks],
// which no other process touches. All start as zeros and only grow (and wrap: differences are what counts). They
// live in device memory and kernels advance them, so that a captured graph replays.
struct Peers {
  u32 *flags[kProcs];
  u32 *epochs;
  Control *control;
  u32 procs;
  u32 self;
};

// meet waits until this block of every peer has come to the same phase of the same epoch. What a peer wrote before
// is seen after. It is false when the host gave up. Blocks do not wait for one another, only for their own likes, so
// the grids must be equal.
DEVICE bool meet(const Peers &p, Phase phase, u32 epoch) {
  const u32 row = (phase * kBlocks + block()) * kProcs;
  sync_block();
  for (u32 q = thread(); q < p.procs; q += threads())
    if (q != p.self) store_release_sys(p.flags[q] + row + p.self, epoch);
  bool ok = true;
  for (u32 q = thread(); q < p.procs && ok; q += threads()) {
    if (q == p.self) continue;
    const u32 *flag = p.flags[p.self] + row + q;
    ok = spin_until(p.control, phase, q, [=] { return (int)(load_acquire_sys(flag) - epoch) >= 0; });
  }
  return sync_block_and(ok);
}

#endif
