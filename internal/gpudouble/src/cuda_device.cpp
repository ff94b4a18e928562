// The double's devices and contexts.
//
// DDPSTEP_DOUBLE_DEVICES (2) devices of DDPSTEP_DOUBLE_MEMORY bytes (1 GiB, counted per process) and
// DDPSTEP_DOUBLE_SMS (4) multiprocessors; CUDA_VISIBLE_DEVICES chooses among them, by number or UUID.
// DDPSTEP_DOUBLE_HOST, any text, gives the devices of another machine other UUIDs. DDPSTEP_DOUBLE_PEERS=0 takes peer
// access away. DDPSTEP_DOUBLE_DRIVER_VERSION (13000) is the CUDA version.
#include <array>
#include <atomic>
#include <set>

#include "cuda.h"

using namespace ddpstep;

thread_local Context *current;

namespace {

std::atomic<bool> ready{false};
constexpr int most = 64;

std::array<unsigned char, 16> uuid_of(int device) {
  uint64_t h = 1469598103934665603u;
  const char *host = getenv("DDPSTEP_DOUBLE_HOST");
  for (const char *s = host ? host : ""; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
  std::array<unsigned char, 16> u{0xdd, 0x57, 0xe9};
  for (int i = 0; i < 8; i++) u[4 + i] = (unsigned char)(h >> (8 * i));
  u[15] = (unsigned char)device;
  return u;
}

std::string uuid_text(int device) {
  auto u = uuid_of(device);
  std::string s = "GPU-";
  for (int i = 0; i < 16; i++) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", u[i]);
    s += hex;
    if (i == 3 || i == 5 || i == 7 || i == 9) s += '-';
  }
  return s;
}

// The machine's numbers of the visible devices; as with CUDA, the list ends at the first entry that is none.
const std::vector<int> &visible() {
  static const std::vector<int> *list = [] {
    auto *v = new std::vector<int>;
    int n = std::min(env_int("DDPSTEP_DOUBLE_DEVICES", 2), most);
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (!chosen) {
      for (int i = 0; i < n; i++) v->push_back(i);
      return v;
    }
    std::stringstream text(chosen);
    for (std::string item; std::getline(text, item, ',');) {
      int found = -1;
      for (int i = 0; i < n; i++) {
        if (item == std::to_string(i) || (item.rfind("GPU-", 0) == 0 && uuid_text(i).rfind(item, 0) == 0)) found = i;
      }
      if (found < 0) break;
      v->push_back(found);
    }
    return v;
  }();
  return *list;
}

Context *context_of(int device) {
  static Context *all = [] {
    auto *c = new Context[most];
    for (int i = 0; i < most; i++) c[i].device = i;
    return c;
  }();
  return &all[device];
}

std::mutex peer_mutex;
std::set<std::pair<int, int>> peers;

// Checks what every call on a device needs.
int device_call(const char *name, int device) {
  if (int c = refused(name)) return c;
  if (!ready) return not_initialized;
  return device >= 0 && device < (int)visible().size() ? ok : invalid_device;
}

}  // namespace

bool initialized() { return ready; }
int current_device() { return current ? current->device : -1; }
bool reaches(int from, int to) { return from == to || env_int("DDPSTEP_DOUBLE_PEERS", 1); }
size_t memory_of_device() {
  const char *s = getenv("DDPSTEP_DOUBLE_MEMORY");
  return s ? strtoull(s, nullptr, 10) : size_t(1) << 30;
}

EXPORT int ddpstep_double_device() { return current_device(); }

EXPORT int cuInit(unsigned) {
  if (int c = refused("cuInit")) return c;
  if (visible().empty()) return no_device;
  ready = true;
  return ok;
}

EXPORT int cuDriverGetVersion(int *version) {
  if (int c = refused("cuDriverGetVersion")) return c;
  *version = env_int("DDPSTEP_DOUBLE_DRIVER_VERSION", 13000);
  return ok;
}

EXPORT int cuDeviceGetCount(int *count) {
  if (int c = refused("cuDeviceGetCount")) return c;
  if (!ready) return not_initialized;
  *count = (int)visible().size();
  return ok;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
  if (int c = device_call("cuDeviceGet", ordinal)) return c;
  *device = ordinal;
  return ok;
}

EXPORT int cuDeviceGetName(char *name, int n, int device) {
  if (int c = device_call("cuDeviceGetName", device)) return c;
  snprintf(name, n, "ddpstep test double");
  return ok;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  if (int c = device_call("cuDeviceGetUuid_v2", device)) return c;
  memcpy(uuid, uuid_of(visible()[device]).data(), 16);
  return ok;
}

EXPORT int cuDeviceGetPCIBusId(char *id, int n, int device) {
  if (int c = device_call("cuDeviceGetPCIBusId", device)) return c;
  snprintf(id, n, "0000:%02x:00.0", visible()[device] + 1);
  return ok;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (int c = device_call("cuDeviceGetAttribute", device)) return c;
  switch (attribute) {
    case 1: *value = 1024; return ok;                              // threads in a block
    case 16: *value = env_int("DDPSTEP_DOUBLE_SMS", 4); return ok;  // multiprocessors
    case 75: *value = 9; return ok;                                // compute capability 9.0
    case 76: *value = 0; return ok;
  }
  return invalid_value;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  if (int c = device_call("cuDeviceTotalMem_v2", device)) return c;
  *bytes = memory_of_device();
  return ok;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  if (int c = device_call("cuDeviceCanAccessPeer", device)) return c;
  if (int c = device_call("", peer)) return c;
  *can = visible()[device] != visible()[peer] && reaches(visible()[device], visible()[peer]);
  return ok;
}

EXPORT int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) {
  if (int c = device_call("cuDevicePrimaryCtxRetain", device)) return c;
  *context = (uintptr_t)context_of(visible()[device]);
  return ok;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { return device_call("cuDevicePrimaryCtxRelease_v2", device); }

EXPORT int cuCtxSetCurrent(uintptr_t context) {
  if (int c = refused("cuCtxSetCurrent")) return c;
  current = (Context *)context;
  return ok;
}

EXPORT int cuCtxEnablePeerAccess(uintptr_t peer, unsigned flags) {
  if (int c = refused("cuCtxEnablePeerAccess")) return c;
  if (!current || !peer) return invalid_context;
  int to = ((Context *)peer)->device;
  if (flags != 0 || to == current->device) return invalid_device;
  if (!reaches(current->device, to)) return peer_unsupported;
  std::lock_guard<std::mutex> lock(peer_mutex);
  return peers.insert({current->device, to}).second ? ok : peer_enabled;
}

namespace {
const struct {
  int code;
  const char *name, *text;
} codes[] = {
    {ok, "CUDA_SUCCESS", "no error"},
    {invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {peer_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {invalid_ptx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {peer_enabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {captured_event, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
};
}  // namespace

EXPORT int cuGetErrorName(int code, const char **s) {
  for (auto &c : codes) {
    if (c.code == code) return *s = c.name, ok;
  }
  return *s = nullptr, invalid_value;
}

EXPORT int cuGetErrorString(int code, const char **s) {
  for (auto &c : codes) {
    if (c.code == code) return *s = c.text, ok;
  }
  return *s = nullptr, invalid_value;
}
