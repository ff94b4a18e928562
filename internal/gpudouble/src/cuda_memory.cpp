// The double's memory. Device memory is an anonymous file in shared memory (memfd), which another process opens through
// /proc/PID/fd: nothing has a name that could outlive a killed process. A page without access follows each allocation,
// and the bytes between its end and that page hold a pattern that is checked when it is freed, so that a kernel that
// writes past its buffer is found. Fresh memory is filled with garbage.
#include <sys/mman.h>
#include <sys/stat.h>

#include "cuda.h"

using namespace ddpstep;

namespace {

constexpr size_t page = 4096, slack = 64, dirty = size_t(16) << 20;
constexpr unsigned char garbage = 0xcb, guard = 0xa5;

struct Memory {
  size_t size, mapped;
  int fd;      // -1 for memory of another process
  int device;  // -1 for pinned host memory
  uint64_t shared = 0;  // the file's inode when it is shared between processes; uses of it are noted
};

std::mutex mutex;
auto &all = *new std::map<Ptr, Memory>;
size_t used[64];

struct Handle {  // 64 bytes with the rest
  uint32_t magic, pid;
  int32_t fd, device;
  uint64_t size, mapped, inode;
};
constexpr uint32_t handle_magic = 0xdd95e93d;

// Maps n bytes of fd with a page behind them that nobody may touch; fd -1 is private memory.
char *map_guarded(size_t n, int fd) {
  char *base = (char *)mmap(nullptr, n + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  if (mmap(base, n, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
    munmap(base, n + page);
    return nullptr;
  }
  return base;
}

int allocate(Ptr *p, size_t n, int device) {
  if (n == 0) return invalid_value;
  Memory m{n, (n + slack + page - 1) / page * page, -1, device};
  if (device >= 0) {
    std::lock_guard<std::mutex> lock(mutex);
    if (used[device] + n > memory_of_device()) return out_of_memory;
    used[device] += n;
    m.fd = memfd_create("ddpstep-double", MFD_CLOEXEC);
    if (m.fd < 0 || ftruncate(m.fd, m.mapped) != 0) return out_of_memory;
  }
  char *base = map_guarded(m.mapped, m.fd);
  if (!base) return out_of_memory;
  memset(base, garbage, std::min(n, dirty));
  memset(base + n, guard, m.mapped - n);
  std::lock_guard<std::mutex> lock(mutex);
  all[(Ptr)base] = m;
  *p = (Ptr)base;
  return ok;
}

int release(Ptr p, bool host) {
  finish_all_streams();
  std::lock_guard<std::mutex> lock(mutex);
  auto it = all.find(p);
  if (it == all.end() || (it->second.device < 0) != host) return invalid_value;
  Memory m = it->second;
  all.erase(it);
  bool intact = true;
  for (size_t i = m.size; i < m.mapped; i++) intact = intact && ((unsigned char *)p)[i] == guard;
  munmap((void *)p, m.mapped + page);
  if (m.shared) note("call=%s shared=%llu", m.fd >= 0 ? "cuMemFree_v2" : "cuIpcCloseMemHandle", (unsigned long long)m.shared);
  if (m.fd >= 0) {
    close(m.fd);
    used[m.device] -= m.size;
  }
  if (!intact) note("guard: the bytes behind an allocation of %zu were written", m.size);
  return intact ? ok : illegal_address;
}

// The allocation that holds [p, p+n), or null. The mutex is held.
const Memory *holding(Ptr p, size_t n) {
  auto it = all.upper_bound(p);
  if (it == all.begin()) return nullptr;
  --it;
  Ptr off = p - it->first;
  return off <= it->second.size && n <= it->second.size - off ? &it->second : nullptr;
}

}  // namespace

bool on_device(Ptr p, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  const Memory *m = holding(p, n);
  return m && m->device >= 0;
}

bool addressable(Ptr p, size_t n) {
  std::lock_guard<std::mutex> lock(mutex);
  return holding(p, n) != nullptr;
}

EXPORT int ddpstep_double_memory(Ptr p, size_t n) { return on_device(p, n); }

EXPORT int cuMemAlloc_v2(Ptr *p, size_t n) {
  if (int c = refused("cuMemAlloc_v2")) return c;
  if (!current) return invalid_context;
  return allocate(p, n, current->device);
}

EXPORT int cuMemFree_v2(Ptr p) {
  if (int c = refused("cuMemFree_v2")) return c;
  return current ? release(p, false) : invalid_context;
}

EXPORT int cuMemHostAlloc(void **p, size_t n, unsigned) {
  if (int c = refused("cuMemHostAlloc")) return c;
  if (!current) return invalid_context;
  return allocate((Ptr *)p, n, -1);
}

EXPORT int cuMemFreeHost(void *p) {
  if (int c = refused("cuMemFreeHost")) return c;
  return current ? release((Ptr)p, true) : invalid_context;
}

EXPORT int cuMemHostGetDevicePointer_v2(Ptr *p, void *host, unsigned) {
  if (int c = refused("cuMemHostGetDevicePointer_v2")) return c;
  if (!addressable((Ptr)host, 1)) return invalid_value;
  *p = (Ptr)host;
  return ok;
}

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
  if (int c = refused("cuMemGetInfo_v2")) return c;
  if (!current) return invalid_context;
  std::lock_guard<std::mutex> lock(mutex);
  *total = memory_of_device();
  *free = *total - used[current->device];
  return ok;
}

struct IpcBytes {
  char bytes[64];
};

EXPORT int cuIpcGetMemHandle(IpcBytes *out, Ptr p) {
  if (int c = refused("cuIpcGetMemHandle")) return c;
  std::lock_guard<std::mutex> lock(mutex);
  auto it = all.find(p);
  if (it == all.end() || it->second.fd < 0) return invalid_value;
  struct stat st;
  if (fstat(it->second.fd, &st) != 0) return invalid_value;
  it->second.shared = st.st_ino;
  Handle h{handle_magic, (uint32_t)getpid(), it->second.fd, it->second.device, it->second.size, it->second.mapped, st.st_ino};
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return ok;
}

EXPORT int cuIpcOpenMemHandle_v2(Ptr *p, IpcBytes in, unsigned flags) {
  if (int c = refused("cuIpcOpenMemHandle_v2")) return c;
  Handle h;
  memcpy(&h, &in, sizeof h);
  if (!current || h.pid == (uint32_t)getpid()) return invalid_context;
  if (h.magic != handle_magic || flags != 1) return invalid_value;
  if (!reaches(current->device, h.device)) return peer_unsupported;
  std::string path = "/proc/" + std::to_string(h.pid) + "/fd/" + std::to_string(h.fd);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != h.inode) {
    if (fd >= 0) close(fd);
    return invalid_handle;
  }
  char *base = map_guarded(h.mapped, fd);
  close(fd);
  if (!base) return out_of_memory;
  std::lock_guard<std::mutex> lock(mutex);
  all[(Ptr)base] = Memory{h.size, h.mapped, -1, h.device, h.inode};
  *p = (Ptr)base;
  return ok;
}

EXPORT int cuIpcCloseMemHandle(Ptr p) {
  if (int c = refused("cuIpcCloseMemHandle")) return c;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto it = all.find(p);
    if (it == all.end() || it->second.fd >= 0) return invalid_value;
  }
  return release(p, false);
}
