// The inside of the double of libnccl.so.2.
//
// A unique ID names an anonymous file in shared memory that its maker holds open; the ranks of a communicator meet in
// it. Every rank's data passes through it in pieces: there is a staging area for each rank, for the collectives, and a
// mailbox for each ordered pair of ranks, for sends and receives. A rank that waits for another ends only when the
// other comes or its own communicator is aborted: as with NCCL on one host, no peer's death is ever reported.
//
// All-reduce and reduce-scatter add in the order of a ring: the elements are cut into as many parts as there are ranks,
// and part p starts with rank p+1, goes round, and ends with rank p. Small types are rounded after every addition, and
// an average scales floating-point addends first and divides integer sums last. All ranks get the same bits.
//
// What NCCL would let pass or punish by a crash is told in the log (fault.h): a call on a communicator that was
// destroyed or aborted ("use after free"), two threads in calls on one communicator at once ("race"). A call while the
// last one is in progress is an error, as in NCCL; and only the poll that finds it done puts the work on the stream, so
// an event that was recorded too early is noticed. Ranks whose calls do not match wait for ever.
//
// One communicator's operations run one after the other, on whatever streams they are; they must be enqueued on
// streams that keep the order. DDPSTEP_DOUBLE_NCCL_VERSION (22803) is the version. At most 16 ranks.
#ifndef DDPSTEP_DOUBLE_NCCL_H
#define DDPSTEP_DOUBLE_NCCL_H

#include <atomic>
#include <memory>
#include <thread>

#include "cuda.h"

namespace nccl {

enum Result { success, cuda_error, system_error, internal_error, invalid_argument, invalid_usage, remote_error, in_progress };

constexpr int most_ranks = 16;
constexpr size_t stage_bytes = 256 << 10, mail_bytes = 64 << 10;

struct Mailbox {
  std::atomic<size_t> full;  // bytes waiting, 0 when the receiver took them
  char data[mail_bytes];
};

struct Rank {
  std::atomic<int> attached, device;
  std::atomic<uint64_t> host;                                    // which machine it says it is on
  std::atomic<uint64_t> arrived, finalized, signature;           // barriers passed, end reached, what it is doing
  alignas(16) char stage[stage_bytes];
};

struct World {
  std::atomic<int> size;
  Rank ranks[most_ranks];
  Mailbox mail[most_ranks][most_ranks];  // from, to
};

struct Aborted {};

enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, send, recv };

struct Call {
  Kind kind;
  Ptr send, recv;
  size_t count;
  int type, op, peer;
  uintptr_t stream;
  ddpstep::Fault fault;
};

struct Comm {
  World *world = nullptr;
  Comm *child = nullptr;
  int rank = 0, size = 0, device = -1;
  bool blocking = false;
  std::atomic<bool> dead{false}, aborted{false}, finalizing{false};
  std::atomic<int> state{in_progress}, inside{0};
  std::atomic<int> queued{0}, active{0};  // operations that a stream still has to run, and that run
  std::atomic<uint64_t> barriers{0};
  std::vector<Call> deferred;  // accepted, not yet on the stream
  int polls = 0;               // until they are
  std::thread worker;          // of initialisation or the end
  std::mutex running;          // held by the operation that runs

  void wait(const std::function<bool()> &done);  // throws Aborted
  void barrier();
};

size_t size_of(int type);  // bytes, 0 for no type

// Combines one element of each rank; in[i] is the address of the i-th addend.
void reduce(int type, int op, const char *const *in, int n, size_t count, char *out);

// Runs calls that start together, on the stream's thread.
void run(Comm &c, const std::vector<Call> &calls);

void last_error(const char *format, ...);

}  // namespace nccl

#endif
