// The functions that the double of libnccl.so.2 exports.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdarg>
#include <set>

#include "nccl.h"

using namespace nccl;
using ddpstep::enter;
using ddpstep::Fault;
using ddpstep::note;

namespace {

char last[1024];
std::mutex mutex;
auto &comms = *new std::set<Comm *>;  // all there ever were; they are never freed

struct IdBytes {
  char bytes[128];
};
struct Id {
  uint32_t magic, pid;
  int32_t fd;
  uint64_t inode;
};
constexpr uint32_t id_magic = 0xdd95cc1d;

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

struct Group {
  int depth = 0;
  std::vector<std::pair<Comm *, Call>> calls;
  int failed = success;
};
thread_local Group group;

World *open_world(const Id &id) {
  std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.fd);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat st;
  void *p = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == id.inode) p = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  return p == MAP_FAILED ? nullptr : (World *)p;
}

// Notes calls that must not be, and answers what every call on a communicator needs.
class Entered {
 public:
  Entered(Comm *c, const char *call) : comm(c) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      known = comms.count(c);
    }
    if (!known) {
      result = invalid_argument;
      return;
    }
    if (c->inside++ > 0) note("rank=%d call=%s race", c->rank, call);
    if (c->dead) {
      note("rank=%d call=%s use after free", c->rank, call);
      result = invalid_argument;
    }
  }
  ~Entered() {
    if (known) comm->inside--;
  }
  int result = success;

 private:
  Comm *comm;
  bool known;
};

// Puts what was accepted on its streams: sends and receives of one group together, collectives one by one.
void flush(Comm &c) {
  std::vector<std::vector<Call>> units;
  std::vector<Call> pairs;
  for (const Call &x : c.deferred) {
    if (x.kind == Kind::send || x.kind == Kind::recv) {
      pairs.push_back(x);
    } else {
      units.push_back({x});
    }
  }
  if (!pairs.empty()) units.push_back(pairs);
  c.deferred.clear();
  for (auto &calls : units) {
    bool recorded = ddpstep_double_capturing(calls[0].stream);
    if (!recorded) c.queued++;
    Op op = [&c, calls, recorded] {
      c.active++;
      run(c, calls);
      c.active--;
      if (!recorded) c.queued--;
    };
    if (ddpstep_double_enqueue(calls[0].stream, &op) != 0) {
      last_error("cannot enqueue on the stream");
      c.state = cuda_error;
    }
  }
}

int accept(Comm &c, const std::vector<Call> &calls) {
  c.deferred.insert(c.deferred.end(), calls.begin(), calls.end());
  if (c.blocking) {
    flush(c);
    return c.state;
  }
  c.state = in_progress;
  c.polls = 2;
  return in_progress;
}

int fail(Comm &c, int code) {
  c.state = code;
  return code;
}

int submit(const char *name, Comm *c, Call x) {
  Entered in(c, name);
  if (in.result) return in.result;
  x.fault = enter(name, c->rank);
  if (x.fault.todo == "code") {
    last_error("%s was told to fail", name);
    if (group.depth) group.failed = x.fault.value;
    return c->blocking ? x.fault.value : fail(*c, x.fault.value);
  }
  if (c->state != success) {
    last_error("Attempt to use communicator before the previous operation returned ncclSuccess");
    return invalid_argument;
  }
  size_t bytes = x.count * size_of(x.type);
  size_t sent = x.kind == Kind::reduce_scatter ? bytes * c->size : bytes, received = x.kind == Kind::all_gather ? bytes * c->size : bytes;
  bool reads = x.kind != Kind::recv && (x.kind != Kind::broadcast || c->rank == x.peer), writes = x.kind != Kind::send;
  if (size_of(x.type) == 0 || x.op < 0 || x.op > 4 || x.peer < 0 || x.peer >= c->size || ddpstep_double_device() != c->device ||
      (reads && !ddpstep_double_memory(x.send, sent)) || (writes && !ddpstep_double_memory(x.recv, received))) {
    last_error("%s : invalid argument", name);
    if (group.depth) group.failed = invalid_argument;
    return fail(*c, invalid_argument);
  }
  if (group.depth) {
    group.calls.push_back({c, x});
    return success;
  }
  return accept(*c, {x});
}

void initialise(Comm &c, World *world) {
  try {
    if (!world) c.wait([] { return false; });  // its maker is gone: NCCL would go on trying, too
    c.world = world;
    int none = 0;
    if (!world->size.compare_exchange_strong(none, c.size) && world->size != c.size) c.wait([] { return false; });
    Rank &me = world->ranks[c.rank];
    const char *host = getenv("DDPSTEP_DOUBLE_HOST");
    me.host = std::hash<std::string>{}(host ? host : "");
    me.device = c.device;
    if (me.attached.exchange(1)) c.wait([] { return false; });  // an ID serves once
    for (int r = 0; r < c.size; r++) c.wait([&] { return world->ranks[r].attached != 0; });
    for (int r = 0; r < c.size; r++) {
      Rank &other = world->ranks[r];
      if (r != c.rank && other.device == me.device && other.host == me.host) {
        last_error("Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", c.rank, r, c.device);
        c.state = invalid_usage;
        return;
      }
    }
    c.barrier();
    c.state = success;
  } catch (Aborted) {
    c.state = internal_error;
  }
}

}  // namespace

void nccl::last_error(const char *format, ...) {
  std::lock_guard<std::mutex> lock(mutex);
  va_list args;
  va_start(args, format);
  vsnprintf(last, sizeof last, format, args);
  va_end(args);
}

EXPORT int ncclGetVersion(int *version) {
  *version = ddpstep::env_int("DDPSTEP_DOUBLE_NCCL_VERSION", 22803);
  return success;
}

EXPORT const char *ncclGetErrorString(int code) {
  const char *texts[] = {"no error",      "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                         "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
  return code >= 0 && code <= in_progress ? texts[code] : "unknown result code";
}

EXPORT const char *ncclGetLastError(Comm *) { return last; }

EXPORT int ncclGetUniqueId(IdBytes *out) {
  if (int code = ddpstep::refused("ncclGetUniqueId")) return code;
  int fd = memfd_create("ddpstep-double-nccl", MFD_CLOEXEC);
  struct stat st;
  if (fd < 0 || ftruncate(fd, sizeof(World)) != 0 || fstat(fd, &st) != 0) return system_error;
  Id id{id_magic, (uint32_t)getpid(), fd, st.st_ino};
  memset(out, 0, sizeof *out);
  memcpy(out, &id, sizeof id);
  return success;
}

EXPORT int ncclCommInitRankConfig(Comm **out, int size, IdBytes bytes, int rank, const Config *config) {
  Fault f = enter("ncclCommInitRankConfig", rank);
  *out = nullptr;
  Id id;
  memcpy(&id, &bytes, sizeof id);
  if (f.todo == "code") return f.value;
  if (config->magic != 0xcafebeef || config->size < 24 || config->version < 21400) {
    last_error("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    return invalid_argument;
  }
  if (id.magic != id_magic || config->blocking != 0 || size < 1 || size > most_ranks || rank < 0 || rank >= size) {
    last_error("Invalid rank requested : %d/%d", rank, size);
    return invalid_argument;
  }
  if (ddpstep_double_device() < 0) {
    last_error("Cuda failure 201 'invalid device context'");
    return cuda_error;
  }
  Comm *c = new Comm;
  c->rank = rank;
  c->size = size;
  c->device = ddpstep_double_device();
  {
    std::lock_guard<std::mutex> lock(mutex);
    comms.insert(c);
  }
  note("rank=%d call=ncclCommInitRankConfig", rank);
  c->worker = std::thread([c, id, f] {
    try {
      if (f.todo == "hang") c->wait([] { return false; });
    } catch (Aborted) {
      return;
    }
    if (f.todo == "async") {
      c->state = f.value;
      return;
    }
    initialise(*c, open_world(id));
  });
  *out = c;
  return in_progress;
}

// Blocks, like everything on its communicator: what programs call that this module is measured beside.
EXPORT int ncclCommInitRank(Comm **out, int size, IdBytes id, int rank) {
  Config config{sizeof config, 0xcafebeef, 22600, 0};
  if (int code = ncclCommInitRankConfig(out, size, id, rank, &config); code != in_progress) return code;
  (*out)->worker.join();
  (*out)->worker = std::thread([] {});
  (*out)->blocking = true;
  return (*out)->state;
}

EXPORT int ncclCommGetAsyncError(Comm *c, int *state) {
  Entered in(c, "ncclCommGetAsyncError");
  if (in.result) return in.result;
  if (int code = ddpstep::refused("ncclCommGetAsyncError", c->rank)) return code;
  if (c->state == in_progress && !c->deferred.empty() && --c->polls <= 0) {
    c->state = success;
    flush(*c);
  }
  *state = c->state;
  return success;
}

// Only of all ranks in their order, into a blocking communicator that goes on where its parent stopped.
EXPORT int ncclCommSplit(Comm *c, int color, int key, Comm **out, const Config *config) {
  Entered in(c, "ncclCommSplit");
  if (in.result) return in.result;
  Fault f = enter("ncclCommSplit", c->rank);
  if (f.todo == "code") return fail(*c, f.value);
  if (color != 0 || key != c->rank || config->magic != 0xcafebeef || config->blocking != 1 || c->state != success || c->child) return fail(*c, invalid_argument);
  c->state = in_progress;
  c->worker.join();
  c->worker = std::thread([c, out, f] {
    try {
      if (f.todo == "hang") c->wait([] { return false; });
      c->barrier();
    } catch (Aborted) {
      return;
    }
    Comm *child = new Comm;
    child->world = c->world;
    child->rank = c->rank;
    child->size = c->size;
    child->device = c->device;
    child->blocking = true;
    child->barriers = c->barriers.load();
    child->state = success;
    child->worker = std::thread([] {});
    {
      std::lock_guard<std::mutex> lock(mutex);
      comms.insert(child);
    }
    c->child = *out = child;
    c->state = success;
  });
  return in_progress;
}

EXPORT int ncclCommFinalize(Comm *c) {
  Entered in(c, "ncclCommFinalize");
  if (in.result) return in.result;
  Fault f = enter("ncclCommFinalize", c->rank);
  if (f.todo == "code") return fail(*c, f.value);
  if (c->state != success || c->finalizing.exchange(true)) return invalid_argument;
  note("rank=%d call=ncclCommFinalize", c->rank);
  c->state = in_progress;
  c->worker.join();
  c->worker = std::thread([c, f] {
    try {
      if (f.todo == "hang") c->wait([] { return false; });
      c->wait([&] { return c->queued == 0 && c->active == 0; });
      c->world->ranks[c->rank].finalized = 1;
      for (int r = 0; r < c->size; r++) c->wait([&] { return c->world->ranks[r].finalized != 0; });
      c->state = f.todo == "async" ? f.value : (int)success;
    } catch (Aborted) {
    }
  });
  return in_progress;
}

EXPORT int ncclCommDestroy(Comm *c) {
  Entered in(c, "ncclCommDestroy");
  if (in.result) return in.result;
  if (int code = ddpstep::refused("ncclCommDestroy", c->rank)) return code;
  note("rank=%d call=ncclCommDestroy", c->rank);
  if (c->child && !c->child->dead) note("rank=%d call=ncclCommDestroy use after free by its child", c->rank);
  c->worker.join();
  c->dead = true;
  return success;
}

EXPORT int ncclCommAbort(Comm *c) {
  Entered in(c, "ncclCommAbort");
  if (in.result) return in.result;
  if (int code = ddpstep::refused("ncclCommAbort", c->rank)) return code;
  note("rank=%d call=ncclCommAbort", c->rank);
  if (c->child && !c->child->dead) note("rank=%d call=ncclCommAbort use after free by its child", c->rank);
  c->aborted = true;
  c->worker.join();
  while (c->active != 0) usleep(50);
  c->dead = true;
  return success;
}

EXPORT int ncclAllReduce(Ptr send, Ptr recv, size_t n, int type, int op, Comm *c, uintptr_t stream) {
  return submit("ncclAllReduce", c, {Kind::all_reduce, send, recv, n, type, op, 0, stream, {}});
}

EXPORT int ncclBroadcast(Ptr send, Ptr recv, size_t n, int type, int root, Comm *c, uintptr_t stream) {
  return submit("ncclBroadcast", c, {Kind::broadcast, send, recv, n, type, 0, root, stream, {}});
}

EXPORT int ncclAllGather(Ptr send, Ptr recv, size_t n, int type, Comm *c, uintptr_t stream) {
  return submit("ncclAllGather", c, {Kind::all_gather, send, recv, n, type, 0, 0, stream, {}});
}

EXPORT int ncclReduceScatter(Ptr send, Ptr recv, size_t n, int type, int op, Comm *c, uintptr_t stream) {
  return submit("ncclReduceScatter", c, {Kind::reduce_scatter, send, recv, n, type, op, 0, stream, {}});
}

EXPORT int ncclSend(Ptr send, size_t n, int type, int peer, Comm *c, uintptr_t stream) {
  return submit("ncclSend", c, {Kind::send, send, 0, n, type, 0, peer, stream, {}});
}

EXPORT int ncclRecv(Ptr recv, size_t n, int type, int peer, Comm *c, uintptr_t stream) {
  return submit("ncclRecv", c, {Kind::recv, 0, recv, n, type, 0, peer, stream, {}});
}

EXPORT int ncclGroupStart() {
  if (int code = ddpstep::refused("ncclGroupStart")) return code;
  if (group.depth++ > 0) return success;
  group.calls.clear();
  group.failed = success;
  return success;
}

EXPORT int ncclGroupEnd() {
  int code = ddpstep::refused("ncclGroupEnd");
  if (group.depth == 0) return invalid_usage;
  if (--group.depth > 0) return code;
  if (code == success) code = group.failed;
  std::map<Comm *, std::vector<Call>> calls;
  for (auto &x : group.calls) calls[x.first].push_back(x.second);
  group.calls.clear();
  for (auto &x : calls) {
    Entered in(x.first, "ncclGroupEnd");
    if (in.result) return in.result;
    int r = code == success ? accept(*x.first, x.second) : fail(*x.first, code);
    if (r != success) code = r;
  }
  return code;
}
