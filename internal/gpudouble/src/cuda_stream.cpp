// The double's streams, events, graphs and kernels. Each stream has a thread that runs its operations in order; a
// capturing stream records them instead. The thread runs every block of a kernel itself (kernel_abi.h).
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "cuda.h"
#include "kernel_abi.h"

using namespace ddpstep;
using Clock = std::chrono::steady_clock;

namespace {

struct Graph {
  std::vector<Op> ops;
  struct Stream *origin = nullptr;
};

struct Stream {
  int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Op> queue;
  bool running = false, closing = false;
  Graph *capture = nullptr;  // being recorded
  uint64_t captured = 0;     // how often it was added to
  bool loose = false;        // no event leads from there back yet

  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closing || !queue.empty(); });
      if (queue.empty()) return;
      Op op = std::move(queue.front());
      queue.pop_front();
      running = true;
      lock.unlock();
      op();
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }
  bool idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return queue.empty() && !running;
  }
  void finish() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !running; });
  }
  void push(const Op &op) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(op);
    changed.notify_all();
  }
};

struct Event {
  bool timing;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
  Clock::time_point at;
  Graph *captured = nullptr;
  std::shared_ptr<Stream> from;  // where it was captured, and at what count
  uint64_t place = 0;
};

// Handles are addresses; the objects live on when they are destroyed, so that work under way may end, but are unknown.
std::mutex mutex;
auto &streams = *new std::map<uintptr_t, std::shared_ptr<Stream>>;
auto &retired = *new std::vector<std::shared_ptr<Stream>>;  // destroyed, perhaps with work left
auto &events = *new std::map<uintptr_t, std::shared_ptr<Event>>;
auto &graphs = *new std::set<uintptr_t>;
auto &execs = *new std::map<uintptr_t, std::shared_ptr<std::vector<Op>>>;

template <class T>
std::shared_ptr<T> find(std::map<uintptr_t, std::shared_ptr<T>> &in, uintptr_t handle) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = in.find(handle);
  return it == in.end() ? nullptr : it->second;
}

// Runs, records or, for a fault, never finishes an operation.
int enqueue(uintptr_t handle, const Op &op, const Fault &fault = {}) {
  if (fault.todo == "code") return fault.value;
  if (!current) return invalid_context;
  auto s = find(streams, handle);
  if (!s || s->device != current->device) return invalid_handle;
  Op what = fault.todo == "hang" ? Op([] { forever(); }) : op;
  if (s->capture) {
    s->capture->ops.push_back(what);
    s->captured++;
    s->loose = true;
  } else {
    s->push(what);
  }
  return ok;
}

}  // namespace

void finish_all_streams() {
  std::vector<std::shared_ptr<Stream>> list;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto &s : streams) list.push_back(s.second);
    for (auto &s : retired) list.push_back(s);
    retired.clear();
  }
  for (auto &s : list) s->finish();
}

EXPORT int ddpstep_double_enqueue(uintptr_t stream, const Op *op) { return enqueue(stream, *op); }

EXPORT int ddpstep_double_capturing(uintptr_t stream) {
  auto s = find(streams, stream);
  return s && s->capture;
}

EXPORT int cuStreamCreate(uintptr_t *stream, unsigned) {
  if (int c = refused("cuStreamCreate")) return c;
  if (!current) return invalid_context;
  auto s = std::make_shared<Stream>();
  s->device = current->device;
  std::thread([s, context = current] {
    current = context;
    s->loop();
  }).detach();
  std::lock_guard<std::mutex> lock(mutex);
  streams[*stream = (uintptr_t)s.get()] = s;
  return ok;
}

EXPORT int cuStreamDestroy_v2(uintptr_t stream) {
  if (int c = refused("cuStreamDestroy_v2")) return c;
  auto s = find(streams, stream);
  if (!s) return invalid_handle;
  {
    std::lock_guard<std::mutex> lock(s->mutex);
    s->closing = true;
    s->changed.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex);
  streams.erase(stream);
  if (!s->idle()) retired.push_back(s);
  return ok;
}

EXPORT int cuStreamQuery(uintptr_t stream) {
  if (int c = refused("cuStreamQuery")) return c;
  auto s = find(streams, stream);
  if (!s) return invalid_handle;
  return s->capture ? capture_unsupported : s->idle() ? ok : not_ready;
}

EXPORT int cuStreamSynchronize(uintptr_t stream) {
  if (int c = refused("cuStreamSynchronize")) return c;
  auto s = find(streams, stream);
  if (!s) return invalid_handle;
  if (s->capture) return capture_unsupported;
  s->finish();
  return ok;
}

EXPORT int cuEventCreate(uintptr_t *event, unsigned flags) {
  if (int c = refused("cuEventCreate")) return c;
  if (!current) return invalid_context;
  auto e = std::make_shared<Event>();
  e->timing = !(flags & 2);
  std::lock_guard<std::mutex> lock(mutex);
  events[*event = (uintptr_t)e.get()] = e;
  return ok;
}

EXPORT int cuEventDestroy_v2(uintptr_t event) {
  if (int c = refused("cuEventDestroy_v2")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  return events.erase(event) ? ok : invalid_handle;
}

EXPORT int cuEventRecord(uintptr_t event, uintptr_t stream) {
  Fault f = enter("cuEventRecord");
  auto e = find(events, event);
  auto s = find(streams, stream);
  if (!e || !s) return invalid_handle;
  e->captured = s->capture;
  e->from = s->capture ? s : nullptr;
  e->place = s->captured;
  if (s->capture) return ok;
  uint64_t n;
  {
    std::lock_guard<std::mutex> lock(e->mutex);
    n = ++e->recorded;
  }
  return enqueue(stream, [e, n] {
    std::lock_guard<std::mutex> lock(e->mutex);
    e->completed = n;
    e->at = Clock::now();
    e->changed.notify_all();
  }, f);
}

EXPORT int cuEventQuery(uintptr_t event) {
  if (int c = refused("cuEventQuery")) return c;
  auto e = find(events, event);
  if (!e) return invalid_handle;
  if (e->captured) return captured_event;
  std::lock_guard<std::mutex> lock(e->mutex);
  return e->completed == e->recorded ? ok : not_ready;
}

EXPORT int cuEventSynchronize(uintptr_t event) {
  if (int c = refused("cuEventSynchronize")) return c;
  auto e = find(events, event);
  if (!e) return invalid_handle;
  std::unique_lock<std::mutex> lock(e->mutex);
  e->changed.wait(lock, [&] { return e->completed == e->recorded; });
  return ok;
}

EXPORT int cuEventElapsedTime(float *ms, uintptr_t start, uintptr_t end) {
  if (int c = refused("cuEventElapsedTime")) return c;
  auto a = find(events, start), b = find(events, end);
  if (!a || !b || !a->timing || !b->timing || !a->recorded || !b->recorded) return invalid_handle;
  std::scoped_lock lock(a->mutex, b->mutex);
  if (a->completed != a->recorded || b->completed != b->recorded) return not_ready;
  *ms = std::chrono::duration<float, std::milli>(b->at - a->at).count();
  return ok;
}

// A wait for an event of a capture joins that capture; its operations are recorded, and replayed, in one order.
EXPORT int cuStreamWaitEvent(uintptr_t stream, uintptr_t event, unsigned) {
  Fault f = enter("cuStreamWaitEvent");
  auto e = find(events, event);
  auto s = find(streams, stream);
  if (!e || !s) return invalid_handle;
  if (e->captured) {
    if (s->capture && s->capture != e->captured) return capture_unsupported;
    if (s == e->from) return ok;
    s->capture = e->captured;
    s->loose = true;
    if (e->place == e->from->captured) e->from->loose = false;
    return ok;
  }
  if (s->capture) return ok;  // what was recorded before the capture began is no part of it
  uint64_t n = e->recorded;
  return enqueue(stream, [e, n] {
    std::unique_lock<std::mutex> lock(e->mutex);
    e->changed.wait(lock, [&] { return e->completed >= n; });
  }, f);
}

EXPORT int cuMemcpyHtoDAsync_v2(Ptr to, const void *from, size_t n, uintptr_t stream) {
  Fault f = enter("cuMemcpyHtoDAsync_v2");
  if (!on_device(to, n)) return invalid_value;
  return enqueue(stream, [=] { memcpy((void *)to, from, n); }, f);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, Ptr from, size_t n, uintptr_t stream) {
  Fault f = enter("cuMemcpyDtoHAsync_v2");
  if (!on_device(from, n)) return invalid_value;
  return enqueue(stream, [=] { memcpy(to, (void *)from, n); }, f);
}

EXPORT int cuMemcpyAsync(Ptr to, Ptr from, size_t n, uintptr_t stream) {
  Fault f = enter("cuMemcpyAsync");
  if (!addressable(to, n) || !addressable(from, n)) return invalid_value;
  return enqueue(stream, [=] { memcpy((void *)to, (void *)from, n); }, f);
}

EXPORT int cuMemsetD8Async(Ptr p, unsigned char value, size_t n, uintptr_t stream) {
  Fault f = enter("cuMemsetD8Async");
  if (!on_device(p, n)) return invalid_value;
  return enqueue(stream, [=] { memset((void *)p, value, n); }, f);
}

EXPORT int cuStreamBeginCapture_v2(uintptr_t stream, int) {
  if (int c = refused("cuStreamBeginCapture_v2")) return c;
  auto s = find(streams, stream);
  if (!s) return invalid_handle;
  if (s->capture) return capture_unsupported;
  s->capture = new Graph;
  s->capture->origin = s.get();
  return ok;
}

EXPORT int cuStreamEndCapture(uintptr_t stream, uintptr_t *graph) {
  if (int c = refused("cuStreamEndCapture")) return c;
  auto s = find(streams, stream);
  if (!s || !s->capture || s->capture->origin != s.get()) return invalid_value;
  Graph *g = s->capture;
  bool unjoined = false;
  std::lock_guard<std::mutex> lock(mutex);
  for (auto &other : streams) {
    if (other.second->capture != g) continue;
    unjoined = unjoined || (other.second != s && other.second->loose);
    other.second->capture = nullptr;
  }
  *graph = 0;
  if (unjoined) return capture_unjoined;
  graphs.insert(*graph = (uintptr_t)g);
  return ok;
}

EXPORT int cuGraphInstantiateWithFlags(uintptr_t *exec, uintptr_t graph, unsigned long long) {
  if (int c = refused("cuGraphInstantiateWithFlags")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  if (!graphs.count(graph)) return invalid_value;
  auto e = std::make_shared<std::vector<Op>>(((Graph *)graph)->ops);
  execs[*exec = (uintptr_t)e.get()] = e;
  return ok;
}

EXPORT int cuGraphDestroy(uintptr_t graph) {
  if (int c = refused("cuGraphDestroy")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  return graphs.erase(graph) ? ok : invalid_value;
}

EXPORT int cuGraphExecDestroy(uintptr_t exec) {
  if (int c = refused("cuGraphExecDestroy")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  return execs.erase(exec) ? ok : invalid_value;
}

EXPORT int cuGraphLaunch(uintptr_t exec, uintptr_t stream) {
  Fault f = enter("cuGraphLaunch");
  auto e = find(execs, exec);
  if (!e) return invalid_value;
  return enqueue(stream, [e] {
    for (auto &op : *e) op();
  }, f);
}

namespace {

struct Module {
  std::vector<std::string> names;
};
struct Function {
  const ddpstep_host_entry *entry;
};
auto &modules = *new std::map<uintptr_t, std::shared_ptr<Module>>;

// The names behind each ".entry" of PTX text.
std::vector<std::string> entries(const std::string &ptx) {
  std::vector<std::string> names;
  for (size_t at = 0; (at = ptx.find(".entry", at)) != std::string::npos;) {
    size_t from = ptx.find_first_not_of(" \t", at += 6);
    size_t to = ptx.find_first_of("( \t\r\n", from);
    if (from != std::string::npos) names.push_back(ptx.substr(from, to - from));
  }
  return names;
}

const ddpstep_host_entry *host_kernel(const std::string &name) {
  static void *library = [] {
    const char *path = getenv("DDPSTEP_DOUBLE_KERNELS");
    void *l = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!l) fprintf(stderr, "the double of libcuda has no kernels: DDPSTEP_DOUBLE_KERNELS=%s: %s\n", path ? path : "", path ? dlerror() : "not set");
    return l;
  }();
  return library ? (const ddpstep_host_entry *)dlsym(library, ("ddpstep_host_" + name).c_str()) : nullptr;
}

}  // namespace

EXPORT int cuModuleLoadDataEx(uintptr_t *module, const void *image, unsigned n, int *options, void **values) {
  if (int c = refused("cuModuleLoadDataEx")) return c;
  if (!current) return invalid_context;
  std::string ptx = (const char *)image;
  auto refuse = [&](int code, const char *log) {
    for (unsigned i = 0; i + 1 < n; i++) {
      if (options[i] == 5) snprintf((char *)values[i], (size_t)values[i + 1], "%s", log);
    }
    return code;
  };
  if (ptx.find(".version") == std::string::npos) return refuse(invalid_image, "error   : Binary format for key='0', ident='' is not recognized\n");
  if (std::count(ptx.begin(), ptx.end(), '{') != std::count(ptx.begin(), ptx.end(), '}')) {
    return refuse(invalid_ptx, "ptxas application ptx input, line 1; fatal   : Parsing error near '': syntax error\n"
                               "ptxas fatal   : Ptx assembly aborted due to errors\n");
  }
  auto m = std::make_shared<Module>(Module{entries(ptx)});
  std::lock_guard<std::mutex> lock(mutex);
  modules[*module = (uintptr_t)m.get()] = m;
  return ok;
}

EXPORT int cuModuleUnload(uintptr_t module) {
  if (int c = refused("cuModuleUnload")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  return modules.erase(module) ? ok : invalid_handle;
}

EXPORT int cuModuleGetFunction(uintptr_t *function, uintptr_t module, const char *name) {
  if (int c = refused("cuModuleGetFunction")) return c;
  auto m = find(modules, module);
  if (!m) return invalid_handle;
  for (auto &have : m->names) {
    if (have != name) continue;
    if (const ddpstep_host_entry *e = host_kernel(name)) {
      *function = (uintptr_t) new Function{e};  // functions are few and live as long as their module could
      return ok;
    }
  }
  return not_found;
}

EXPORT int cuLaunchKernel(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned, uintptr_t stream, void **params, void **) {
  Fault f = enter("cuLaunchKernel");
  if (!function || !gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) return invalid_value;
  const ddpstep_host_entry *e = ((Function *)function)->entry;
  auto values = std::make_shared<std::vector<std::vector<char>>>();
  for (unsigned i = 0; i < e->params; i++) {
    values->emplace_back((char *)params[i], (char *)params[i] + e->sizes[i]);
  }
  return enqueue(stream, [=] {
    std::vector<void *> args;
    for (auto &v : *values) args.push_back(v.data());
    ddpstep_host_thread where{{gx, gy, gz}, {0, 0, 0}, {1, 1, 1}, {0, 0, 0}};
    for (where.blockIdx.z = 0; where.blockIdx.z < gz; where.blockIdx.z++) {
      for (where.blockIdx.y = 0; where.blockIdx.y < gy; where.blockIdx.y++) {
        for (where.blockIdx.x = 0; where.blockIdx.x < gx; where.blockIdx.x++) e->run(args.data(), &where);
      }
    }
  }, f);
}
