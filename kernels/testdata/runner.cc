// Runs host-compiled kernels for the Go tests, as one process of several: maps a file that all of them share, then obeys
// lines of "KERNEL GRID HEX", where HEX is the bytes of the kernel's one parameter, and answers each with "ok".
//
//   runner KERNELS.so FILE BYTES
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../../internal/gpudouble/kernel_abi.h"

static void *const kBase = reinterpret_cast<void *>(0x600000000000);

int main(int, char **argv) {
  void *lib = dlopen(argv[1], RTLD_NOW);
  if (lib == nullptr) return fprintf(stderr, "%s\n", dlerror()), 1;
  int fd = open(argv[2], O_RDWR);
  if (mmap(kBase, strtoull(argv[3], nullptr, 10), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != kBase)
    return perror("mmap"), 1;

  static char line[1 << 16], name[256], hex[1 << 15];
  unsigned grid;
  while (fgets(line, sizeof line, stdin) != nullptr) {
    if (sscanf(line, "%255s %u %32767s", name, &grid, hex) != 3) return fprintf(stderr, "what is %s", line), 1;
    auto *entry = static_cast<const ddpstep_host_entry *>(dlsym(lib, (std::string("ddpstep_host_") + name).c_str()));
    if (entry == nullptr) return fprintf(stderr, "%s\n", dlerror()), 1;
    alignas(16) unsigned char arg[1 << 14];
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
      unsigned b;
      sscanf(hex + 2 * i, "%2x", &b);
      arg[i] = static_cast<unsigned char>(b);
    }
    if (entry->params != 1 || entry->sizes[0] != n)
      return fprintf(stderr, "%s takes %zu bytes and was given %zu\n", name, entry->sizes[0], n), 1;
    void *args[] = {arg};
    for (unsigned b = 0; b < grid; b++) {
      ddpstep_host_thread where = {{grid, 1, 1}, {b, 0, 0}, {1, 1, 1}, {0, 0, 0}};
      entry->run(args, &where);
    }
    puts("ok");
    fflush(stdout);
  }
}
