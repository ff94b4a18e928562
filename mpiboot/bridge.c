//go:build mpi || mpich

#include "bridge.h"

#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "halves.h"

const char *bridge_failed_call = "";

static MPI_Comm collective = MPI_COMM_NULL; // everything but Send and Recv
static MPI_Comm direct = MPI_COMM_NULL;     // Send and Recv, with the caller's tags
static MPI_Comm roll = MPI_COMM_NULL;       // roll calls, which must work after a failure
static MPI_Comm local = MPI_COMM_NULL;
static MPI_Op sum_float16, sum_bfloat16;
static int world_rank, world_size, thread_level;

static __thread int owner; // 1 on the thread that called bridge_init

#define TRY(call)                                                              \
	do {                                                                   \
		int code_ = (call);                                            \
		if (code_ != MPI_SUCCESS) {                                    \
			bridge_failed_call = #call;                            \
			return code_;                                          \
		}                                                              \
	} while (0)

#define OWN_THREAD()                                                           \
	do {                                                                   \
		if (!owner)                                                    \
			return BRIDGE_THREAD;                                  \
	} while (0)

// ---- start and end

// MPICH puts a handler of its own for SIGUSR1 over Go's, without SA_ONSTACK, and
// calls Go's from there without the context that it needs: the process would die
// of the signal. So the handlers that were there before come back.
static struct sigaction handlers[NSIG];

static void keep_handlers(void)
{
	for (int s = 1; s < NSIG; s++)
		sigaction(s, NULL, &handlers[s]); // fails for libc's own, which stay SIG_DFL here
}

static void restore_handlers(void)
{
	for (int s = 1; s < NSIG; s++) {
		struct sigaction now;
		if (handlers[s].sa_handler == SIG_DFL || sigaction(s, NULL, &now) != 0)
			continue;
		if (now.sa_handler != handlers[s].sa_handler)
			sigaction(s, &handlers[s], NULL);
	}
}

int bridge_init(int *rank, int *size, int *level)
{
	owner = 1;
	keep_handlers();
	int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &thread_level);
	restore_handlers();
	if (code != MPI_SUCCESS) {
		bridge_failed_call = "MPI_Init_thread";
		return code;
	}
	TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	TRY(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
	TRY(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
	TRY(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
	*rank = world_rank;
	*size = world_size;
	*level = thread_level;
	return 0;
}

const char *bridge_level_name(int level)
{
	if (level == MPI_THREAD_MULTIPLE)
		return "MPI_THREAD_MULTIPLE";
	if (level == MPI_THREAD_SERIALIZED)
		return "MPI_THREAD_SERIALIZED";
	return NULL;
}

static int duplicate(MPI_Comm *to)
{
	TRY(MPI_Comm_dup(MPI_COMM_WORLD, to));
	TRY(MPI_Comm_set_errhandler(*to, MPI_ERRORS_RETURN));
	return 0;
}

int bridge_join(int *local_size)
{
	MPI_Comm *dups[] = {&collective, &direct, &roll};
	for (int i = 0; i < 3; i++) {
		int code = duplicate(dups[i]);
		if (code != 0)
			return code;
	}
	TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &local));
	TRY(MPI_Comm_set_errhandler(local, MPI_ERRORS_RETURN));
	TRY(MPI_Comm_size(local, local_size));
	TRY(MPI_Op_create(add_float16, 1, &sum_float16));
	TRY(MPI_Op_create(add_bfloat16, 1, &sum_bfloat16));
	return 0;
}

int bridge_local_ranks(int *ranks)
{
	TRY(MPI_Allgather(&world_rank, 1, MPI_INT, ranks, 1, MPI_INT, local));
	TRY(MPI_Comm_free(&local));
	return 0;
}

void bridge_library(char *text, int bytes)
{
	char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	int n;
	MPI_Get_library_version(version, &n);
	strncat(text, version, bytes - 1);
}

void bridge_error(int code, int *class, char *text, int bytes)
{
	char message[MPI_MAX_ERROR_STRING] = "";
	int n;
	*class = 0;
	MPI_Error_class(code, class);
	MPI_Error_string(code, message, &n);
	strncat(text, message, bytes - 1);
}

int bridge_may_abort(void) { return owner || thread_level == MPI_THREAD_MULTIPLE; }

void bridge_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

int bridge_finalize(void)
{
	OWN_THREAD();
	if (collective != MPI_COMM_NULL) {
		TRY(MPI_Op_free(&sum_float16));
		TRY(MPI_Op_free(&sum_bfloat16));
		TRY(MPI_Comm_free(&collective));
		TRY(MPI_Comm_free(&direct));
		TRY(MPI_Comm_free(&roll));
	}
	TRY(MPI_Finalize());
	return 0;
}

// ---- the operation under way

static MPI_Request *request;
static MPI_Status *status;
static bridge_message *piece_of; // what each request carries
static int requests, room;
static int64_t polls, begun, patience;

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// begin makes room for n requests that carry the given number of bytes.
static void begin(int64_t n, int64_t bytes)
{
	if (n > room) {
		room = (int)n;
		request = realloc(request, room * sizeof *request);
		status = realloc(status, room * sizeof *status);
		piece_of = realloc(piece_of, room * sizeof *piece_of);
		if (!request || !status || !piece_of)
			abort();
	}
	requests = 0;
	polls = 0;
	begun = 0;
	// Naps starve a transfer that only advances when polled, so they wait
	// until even 100 MB/s would have been enough.
	patience = INT64_C(50000000) + 10 * bytes;
}

static MPI_Request *next(uintptr_t buf, int64_t len, int peer, int is_send)
{
	bridge_message m = {buf, len, peer, is_send};
	piece_of[requests] = m;
	return &request[requests++];
}

static int64_t pieces(int64_t len, int64_t piece) { return len > piece ? (len + piece - 1) / piece : 1; }

int bridge_barrier(void)
{
	OWN_THREAD();
	begin(1, 0);
	TRY(MPI_Ibarrier(collective, next(0, 0, 0, 1)));
	return 0;
}

int bridge_bcast(uintptr_t buf, int64_t len, int root, int64_t piece)
{
	OWN_THREAD();
	begin(pieces(len, piece), len);
	for (int64_t at = 0; at < len; at += piece) {
		int n = (int)(len - at < piece ? len - at : piece);
		TRY(MPI_Ibcast((char *)buf + at, n, MPI_BYTE, root, collective, next(0, 0, 0, 1)));
	}
	return 0;
}

int bridge_allgather(uintptr_t send, uintptr_t recv, int len)
{
	OWN_THREAD();
	begin(1, (int64_t)len * world_size);
	TRY(MPI_Iallgather((void *)send, len, MPI_BYTE, (void *)recv, len, MPI_BYTE, collective, next(0, 0, 0, 1)));
	return 0;
}

// post starts the pieces of one message. An empty message is one empty piece,
// so that it too must be met by its counterpart.
static int post(const bridge_message *m, MPI_Comm comm, int tag, int64_t piece)
{
	int64_t at = 0;
	do {
		int n = (int)(m->len - at < piece ? m->len - at : piece);
		char *p = (char *)m->buf + at;
		MPI_Request *r = next(m->buf + at, n, m->peer, m->is_send);
		if (m->is_send)
			TRY(MPI_Isend(p, n, MPI_BYTE, m->peer, tag, comm, r));
		else
			TRY(MPI_Irecv(p, n, MPI_BYTE, m->peer, tag, comm, r));
		at += n;
	} while (at < m->len);
	return 0;
}

int bridge_exchange(const bridge_message *m, int n, int is_direct, int tag, int64_t piece)
{
	OWN_THREAD();
	int64_t total = 0, bytes = 0;
	for (int i = 0; i < n; i++) {
		total += pieces(m[i].len, piece);
		bytes += m[i].len;
	}
	begin(total, bytes);
	for (int i = 0; i < n; i++) {
		int code = post(&m[i], is_direct ? direct : collective, tag, piece);
		if (code != 0)
			return code;
	}
	return 0;
}

// ---- waiting

enum { HOT_POLLS = 512, CLOCK_POLLS = 16 };

// idle passes the time between polls and reports whether ns have gone by.
static int idle(int64_t *stop, int64_t ns)
{
	if (++polls < HOT_POLLS)
		return 0;
	if (polls % CLOCK_POLLS == 0 || *stop == 0) {
		int64_t t = now();
		if (begun == 0)
			begun = t;
		if (*stop == 0)
			*stop = t + ns;
		if (t >= *stop)
			return 1;
		if (t - begun > patience) {
			struct timespec nap = {0, 50000};
			nanosleep(&nap, NULL);
			return 0;
		}
	}
	sched_yield();
	return 0;
}

// arrived compares what came with what was expected.
static int arrived(bridge_mismatch *wrong)
{
	for (int i = 0; i < requests; i++) {
		if (piece_of[i].is_send)
			continue;
		int got;
		TRY(MPI_Get_count(&status[i], MPI_BYTE, &got));
		if (got != piece_of[i].len) {
			wrong->got = got;
			wrong->want = piece_of[i].len;
			wrong->peer = piece_of[i].peer;
			return BRIDGE_SIZE;
		}
	}
	return 0;
}

int bridge_poll(int64_t ns, int *done, bridge_mismatch *wrong)
{
	OWN_THREAD();
	int64_t stop = 0;
	*done = 0;
	for (;;) {
		int code = MPI_Testall(requests, request, done, status);
		if (code != MPI_SUCCESS) {
			bridge_failed_call = "MPI_Testall";
			for (int i = 0; code == MPI_ERR_IN_STATUS && i < requests; i++)
				if (status[i].MPI_ERROR != MPI_SUCCESS && status[i].MPI_ERROR != MPI_ERR_PENDING)
					return status[i].MPI_ERROR;
			return code;
		}
		if (*done)
			return arrived(wrong);
		if (idle(&stop, ns))
			return 0;
	}
}

int bridge_probe(int peer, int tag, int64_t ns, int *found)
{
	OWN_THREAD();
	int64_t stop = 0;
	begin(0, 0);
	do {
		TRY(MPI_Iprobe(peer, tag, direct, found, MPI_STATUS_IGNORE));
	} while (!*found && !idle(&stop, ns));
	return 0;
}

int bridge_allreduce(uintptr_t buf, int64_t count, int elem, int64_t piece)
{
	OWN_THREAD();
	const int bytes[] = {2, 2, 4, 8};
	MPI_Datatype type[] = {MPI_UINT16_T, MPI_UINT16_T, MPI_FLOAT, MPI_DOUBLE};
	MPI_Op op[] = {sum_float16, sum_bfloat16, MPI_SUM, MPI_SUM};
	for (int64_t at = 0; at < count; at += piece) {
		int n = (int)(count - at < piece ? count - at : piece);
		TRY(MPI_Allreduce(MPI_IN_PLACE, (char *)buf + at * bytes[elem], n, type[elem], op[elem], collective));
	}
	return 0;
}

// ---- the roll call: an empty message from each rank to each other

int bridge_here(void)
{
	static int said;
	OWN_THREAD();
	if (said)
		return 0;
	said = 1;
	for (int r = 0; r < world_size; r++) {
		MPI_Request sent;
		if (r != world_rank && MPI_Isend(NULL, 0, MPI_BYTE, r, 0, roll, &sent) == MPI_SUCCESS)
			MPI_Request_free(&sent);
	}
	return 0;
}

int bridge_heard(uint8_t *heard)
{
	MPI_Status from;
	int found = 0;
	OWN_THREAD();
	// Errors are what a roll call expects: who is not heard is missing.
	while (MPI_Iprobe(MPI_ANY_SOURCE, 0, roll, &found, &from) == MPI_SUCCESS && found) {
		if (MPI_Recv(NULL, 0, MPI_BYTE, from.MPI_SOURCE, 0, roll, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			break;
		heard[from.MPI_SOURCE] = 1;
	}
	return 0;
}
