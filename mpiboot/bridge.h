//go:build mpi || mpich

// The C side of mpiboot. Functions return 0, an MPI error code with
// bridge_failed_call naming the call, or BRIDGE_THREAD. State is static, as
// MPI's is. Only one operation is under way at a time.

#ifndef MPIBOOT_BRIDGE_H
#define MPIBOOT_BRIDGE_H

#include <stdint.h>

enum { BRIDGE_THREAD = -1, BRIDGE_SIZE = -2 };

typedef struct {
	uintptr_t buf;
	int64_t len;
	int32_t peer;
	int32_t is_send;
} bridge_message;

typedef struct {
	int64_t got, want;
	int peer;
} bridge_mismatch;

extern const char *bridge_failed_call;

int bridge_init(int *rank, int *size, int *level);
const char *bridge_level_name(int level); // NULL when it is too low
int bridge_join(int *local_size);
int bridge_local_ranks(int *ranks); // frees the local communicator
void bridge_library(char *text, int bytes);
void bridge_error(int code, int *class, char *text, int bytes);

int bridge_barrier(void);
int bridge_bcast(uintptr_t buf, int64_t len, int root, int64_t piece);
int bridge_allgather(uintptr_t send, uintptr_t recv, int len);
int bridge_exchange(const bridge_message *m, int n, int direct, int tag, int64_t piece);
int bridge_poll(int64_t ns, int *done, bridge_mismatch *wrong);
int bridge_probe(int peer, int tag, int64_t ns, int *found);
int bridge_allreduce(uintptr_t buf, int64_t count, int elem, int64_t piece);

int bridge_here(void);
int bridge_heard(uint8_t *heard);
int bridge_may_abort(void);
void bridge_abort(int code);
int bridge_finalize(void);

#endif
