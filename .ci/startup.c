// startup: what a job must do before its first all-reduce is done, and nothing else: MPI_Init, cuInit, a context,
// ncclCommInitRank, ncclAllReduce. gpu-run measures ddpstep's start beside it. It prints when the all-reduce was done.
//
//   mpicc -o startup startup.c -ldl && mpirun -n 2 ./startup [LIBNCCL]
//
// The libraries are found at run time, as ddpstep finds them, so that no header of theirs is needed.
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct { char bytes[128]; } nccl_id;

static void *load(const char *path) {
	void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!l) fprintf(stderr, "%s\n", dlerror()), exit(6);
	return l;
}

static void *find(void *library, const char *name) {
	void *f = dlsym(library, name);
	if (!f) fprintf(stderr, "%s\n", dlerror()), exit(6);
	return f;
}

#define DO(library, name, types, ...) \
	do { \
		int code = ((int (*) types)find(library, #name))(__VA_ARGS__); \
		if (code) fprintf(stderr, "%s: %d\n", #name, code), MPI_Abort(MPI_COMM_WORLD, 1); \
	} while (0)

int main(int argc, char **argv) {
	int rank, size, device;
	void *context, *stream, *comm;
	uint64_t memory;
	nccl_id id;
	struct timespec now;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	void *cuda = load("libcuda.so.1"), *nccl = load(argc > 1 ? argv[1] : "libnccl.so.2");
	DO(cuda, cuInit, (unsigned), 0);
	DO(cuda, cuDeviceGet, (int *, int), &device, rank);
	DO(cuda, cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	DO(cuda, cuCtxSetCurrent, (void *), context);
	DO(cuda, cuStreamCreate, (void **, unsigned), &stream, 1);
	DO(cuda, cuMemAlloc_v2, (uint64_t *, size_t), &memory, 4096);
	DO(cuda, cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *), memory, 0, 4096, stream);
	if (rank == 0) DO(nccl, ncclGetUniqueId, (nccl_id *), &id);
	MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
	DO(nccl, ncclCommInitRank, (void **, int, nccl_id, int), &comm, size, id, rank);
	DO(nccl, ncclAllReduce, (uint64_t, uint64_t, size_t, int, int, void *, void *), memory, memory, 1024, 7, 0, comm, stream);
	DO(cuda, cuStreamSynchronize, (void *), stream);
	clock_gettime(CLOCK_REALTIME, &now);
	if (rank == 0) printf("%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
	DO(nccl, ncclCommDestroy, (void *), comm);
	MPI_Finalize();
	return 0;
}
