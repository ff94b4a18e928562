// What the double's operations do when their turn on the stream comes.
#include <sched.h>

#include "nccl.h"

namespace nccl {

void Comm::wait(const std::function<bool()> &done) {
  for (int i = 0; !done(); i++) {
    if (aborted) throw Aborted{};
    if (i < 100) {
      sched_yield();
    } else {
      usleep(50);
    }
  }
}

void Comm::barrier() {
  uint64_t n = ++barriers;
  world->ranks[rank].arrived = n;
  for (int r = 0; r < size; r++) {
    wait([&] { return world->ranks[r].arrived >= n; });
  }
}

namespace {

// Ranks that do different things never get past here.
void agree(Comm &c, const Call &x) {
  uint64_t mine = 1469598103934665603u;
  for (uint64_t v : {(uint64_t)x.kind, (uint64_t)x.count, (uint64_t)x.type, (uint64_t)x.op, (uint64_t)x.peer}) mine = (mine ^ v) * 1099511628211u;
  c.world->ranks[c.rank].signature = mine;
  c.barrier();
  for (int r = 0; r < c.size; r++) {
    if (c.world->ranks[r].signature != mine) {
      ddpstep::note("rank=%d mismatch with rank %d", c.rank, r);
      c.wait([] { return false; });
    }
  }
  c.barrier();
}

// Puts n bytes of every rank side by side, each call to use seeing all of them, until all is through.
template <class Put, class Use>
void in_pieces(Comm &c, size_t bytes, Put put, Use use) {
  for (size_t off = 0; off < bytes; off += stage_bytes) {
    size_t n = std::min(stage_bytes, bytes - off);
    put(off, n);
    c.barrier();
    use(off, n);
    c.barrier();
  }
}

// Reduces [off, off+n) of the staged bytes, whose first element belongs to part p of the ring.
void reduce_part(Comm &c, const Call &x, int part, size_t off, size_t n, char *out) {
  const char *in[most_ranks];
  for (int i = 0; i < c.size; i++) in[i] = c.world->ranks[(part + 1 + i) % c.size].stage + off;
  reduce(x.type, x.op, in, c.size, n / size_of(x.type), out);
}

void collective(Comm &c, const Call &x) {
  agree(c, x);
  size_t width = size_of(x.type), bytes = x.count * width;
  char *send = (char *)x.send, *recv = (char *)x.recv;
  auto stage = [&](int r) { return c.world->ranks[r].stage; };
  auto put = [&](size_t off, size_t n) { memcpy(stage(c.rank), send + off, n); };
  switch (x.kind) {
    case Kind::all_reduce:
      in_pieces(c, bytes, put, [&](size_t off, size_t n) {
        for (size_t at = 0; at < n;) {  // the elements of one part of the ring at a time
          size_t i = (off + at) / width;
          int part = (int)((unsigned __int128)i * c.size / x.count);
          size_t end = (size_t)(((unsigned __int128)(part + 1) * x.count + c.size - 1) / c.size) * width;
          size_t m = std::min(n - at, end - (off + at));
          reduce_part(c, x, part, at, m, recv + off + at);
          at += m;
        }
      });
      break;
    case Kind::reduce_scatter:
      for (int to = 0; to < c.size; to++) {
        in_pieces(c, bytes, [&](size_t off, size_t n) { memcpy(stage(c.rank), send + to * bytes + off, n); },
                  [&](size_t off, size_t n) {
                    if (to == c.rank) reduce_part(c, x, to, 0, n, recv + off);
                  });
      }
      break;
    case Kind::broadcast:
      in_pieces(c, bytes, [&](size_t off, size_t n) { if (c.rank == x.peer) put(off, n); },
                [&](size_t off, size_t n) { memcpy(recv + off, stage(x.peer), n); });
      break;
    default:
      in_pieces(c, bytes, put, [&](size_t off, size_t n) {
        for (int r = 0; r < c.size; r++) memcpy(recv + r * bytes + off, stage(r), n);
      });
  }
}

// All sends and receives of a group make progress together. Those of one pair match in order.
void exchange(Comm &c, const std::vector<Call> &calls) {
  std::vector<size_t> done(calls.size());
  auto finished = [&](size_t i) { return done[i] == calls[i].count * size_of(calls[i].type); };
  auto step = [&] {
    bool all = true;
    for (size_t i = 0; i < calls.size(); i++) {
      const Call &x = calls[i];
      if (finished(i)) continue;
      all = false;
      bool first = true;
      for (size_t j = 0; j < i; j++) first = first && (finished(j) || calls[j].kind != x.kind || calls[j].peer != x.peer);
      if (!first) continue;
      size_t left = x.count * size_of(x.type) - done[i];
      if (x.kind == Kind::send) {
        Mailbox &m = c.world->mail[c.rank][x.peer];
        if (m.full != 0) continue;
        size_t n = std::min(left, mail_bytes);
        memcpy(m.data, (char *)x.send + done[i], n);
        done[i] += n;
        m.full = n;
      } else {
        Mailbox &m = c.world->mail[x.peer][c.rank];
        size_t n = m.full;
        if (n == 0) continue;
        if (n > left) c.wait([] { return false; });  // more than was asked for
        memcpy((char *)x.recv + done[i], m.data, n);
        done[i] += n;
        m.full = 0;
      }
    }
    return all;
  };
  c.wait(step);
  // As a kernel's end does: what was sent has arrived.
  c.wait([&] {
    for (const Call &x : calls) {
      if (x.kind == Kind::send && c.world->mail[c.rank][x.peer].full != 0) return false;
    }
    return true;
  });
}

}  // namespace

void run(Comm &c, const std::vector<Call> &calls) {
  std::lock_guard<std::mutex> lock(c.running);
  if (c.dead || c.aborted) return;
  try {
    for (const Call &x : calls) {
      if (x.fault.todo == "async") c.state = x.fault.value;
      if (x.fault.todo == "hang" || x.fault.todo == "async") c.wait([] { return false; });
    }
    if (calls[0].kind == Kind::send || calls[0].kind == Kind::recv) {
      exchange(c, calls);
    } else {
      collective(c, calls[0]);
    }
    for (const Call &x : calls) {
      if (x.fault.todo == "lie" && x.count > 0) *(char *)x.recv ^= 1;
    }
  } catch (Aborted) {
  }
}

}  // namespace nccl
