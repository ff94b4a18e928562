/*
 * A double of libnvidia-ml.so.1: two GPUs on one NVSwitch, as one host of two
 * H200. FAKE_NVML is a list of what goes wrong. Built with -DWITHOUT_..., it
 * lacks functions, as older drivers do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999 };

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};

static int devices[2]; /* a handle is an address in here */

static int index_of(void *device) { return (int *)device - devices; }

static int told(const char *what)
{
	const char *list = getenv("FAKE_NVML");
	return list && strstr(list, what);
}

int nvmlInit_v2(void)
{
	if (told("crash"))
		abort();
	return told("no-driver") ? DRIVER_NOT_LOADED : OK;
}

int nvmlShutdown(void) { return OK; }

#ifndef WITHOUT_ERROR_STRING
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "Driver Not Loaded"; }
#endif

#ifndef WITHOUT_COUNT
int nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = 2;
	return OK;
}
#endif

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
	if (i == 1 && told("lost"))
		return GPU_IS_LOST;
	*device = &devices[i];
	return OK;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned length)
{
	snprintf(to, length, "GPU-00000000-0000-0000-0000-00000000000%d", index_of(device));
	return OK;
}

#ifndef WITHOUT_MOST
int nvmlSystemGetDriverVersion(char *to, unsigned length)
{
	snprintf(to, length, "570.124.06");
	return OK;
}

int nvmlSystemGetNVMLVersion(char *to, unsigned length)
{
	snprintf(to, length, "12.570.124.06");
	return OK;
}

int nvmlDeviceGetName(void *device, char *to, unsigned length)
{
	(void)device;
	snprintf(to, length, "NVIDIA H200");
	return OK;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *p)
{
	memset(p, 0, sizeof *p);
	p->bus = index_of(device) ? 0xCB : 0x0F;
	snprintf(p->address, sizeof p->address, "00000000:%02X:00.0", p->bus);
	return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	*current = *pending = index_of(device);
	return OK;
}

/* Four links, the third of which is down; told so, it has none. */
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *state)
{
	(void)device;
	if (told("pcie"))
		return NOT_SUPPORTED;
	if (told("nvlink-error"))
		return UNKNOWN;
	if (link >= 4)
		return INVALID_ARGUMENT;
	*state = link != 2;
	return OK;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *n)
{
	if (told("pcie"))
		return NOT_SUPPORTED;
	*n = 1000 * index_of(device) + 10 * counter + type;
	return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits)
{
	*bits = index_of(device) ? 0x4 | 0x40 : 0x1; /* power cap, hot; idle */
	return OK;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status)
{
	(void)a, (void)b;
	*status = what == 2 && told("pcie") ? 5 : 0;
	return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level)
{
	(void)a, (void)b;
	*level = 50;
	return OK;
}
#endif
