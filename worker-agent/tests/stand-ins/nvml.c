// A stand-in for NVML without an NVIDIA driver: a whole V100, and an A100 partitioned into MIG instances, of which the second has been
// destroyed. Signatures, sizes and codes are those of nvml.h of driver 570; the values are those of such GPUs.

#include <stdio.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { V100, A100, THREE_SLICES, ONE_SLICE, ALL };
enum { SM_CLOCK = 1, MEMORY_CLOCK = 2 };

typedef const struct gpu {
    const char *name, *uuid;
    unsigned long long memory, used;
    unsigned multiprocessors, slices;
} *device_t;

static const struct gpu gpus[ALL] = {
    [V100] = {"Tesla V100-SXM2-16GB", "GPU-5d1bd0b0-0e4b-4a4d-a0ea-000000000001", 17179869184ull, 3221225472ull, 80, 0},
    [A100] = {"NVIDIA A100-SXM4-40GB", "GPU-5d1bd0b0-0e4b-4a4d-a0ea-000000000002", 42949672960ull, 0, 108, 0},
    [THREE_SLICES] = {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-5d1bd0b0-0e4b-4a4d-a0ea-000000000003", 20937965568ull, 1048576, 42, 3},
    // Older drivers return the name of the GPU for an instance.
    [ONE_SLICE] = {"NVIDIA A100-SXM4-40GB", "MIG-5d1bd0b0-0e4b-4a4d-a0ea-000000000004", 5100273664ull, 1048576, 14, 1},
};

static int is_instance(device_t gpu) { return gpu >= &gpus[THREE_SLICES]; }

static int text(const char *from, char *to, unsigned size) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { return text("570.86.15", version, size); }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *gpu) {
    if (index > A100) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *gpu) {
    for (int i = 0; i < ALL; i++) {
        if (strcmp(gpus[i].uuid, uuid) == 0) {
            *gpu = &gpus[i];
            return OK;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(device_t gpu, char *name, unsigned size) { return text(gpu->name, name, size); }
int nvmlDeviceGetUUID(device_t gpu, char *uuid, unsigned size) { return text(gpu->uuid, uuid, size); }

int nvmlDeviceGetMigMode(device_t gpu, unsigned *current, unsigned *pending) {
    if (gpu != &gpus[A100]) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t gpu, unsigned *count) {
    *count = gpu == &gpus[A100] ? 7 : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t gpu, unsigned index, device_t *instance) {
    if (gpu != &gpus[A100]) return NOT_SUPPORTED;
    if (index != 0 && index != 2) return NOT_FOUND;
    *instance = &gpus[index == 0 ? THREE_SLICES : ONE_SLICE];
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t instance, device_t *gpu) {
    if (!is_instance(instance)) return INVALID_ARGUMENT;
    *gpu = &gpus[A100];
    return OK;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mb;
};

int nvmlDeviceGetAttributes_v2(device_t gpu, struct attributes *attributes) {
    if (!is_instance(gpu)) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = gpu->multiprocessors;
    attributes->gpu_slices = attributes->compute_slices = gpu->slices;
    attributes->memory_mb = gpu->memory >> 20;
    return OK;
}

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(device_t gpu, struct memory *memory) {
    if (memory->version != (sizeof *memory | 2 << 24)) return INVALID_ARGUMENT;
    memory->total = gpu->memory;
    memory->reserved = 0;
    memory->used = gpu->used;
    memory->free = gpu->memory - gpu->used;
    return OK;
}

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(device_t gpu, struct utilization *rates) {
    if (is_instance(gpu)) return NOT_SUPPORTED;
    rates->gpu = 83;
    rates->memory = 41;
    return OK;
}

int nvmlDeviceGetPowerUsage(device_t gpu, unsigned *milliwatts) {
    if (is_instance(gpu)) return NOT_SUPPORTED;
    *milliwatts = 187250;
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(device_t gpu, unsigned *milliwatts) {
    if (is_instance(gpu)) return NOT_SUPPORTED;
    *milliwatts = 300000;
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(device_t gpu, unsigned long long *millijoules) {
    if (is_instance(gpu)) return NOT_SUPPORTED;
    *millijoules = 123456789;
    return OK;
}

int nvmlDeviceGetTemperature(device_t gpu, int sensor, unsigned *celsius) {
    if (is_instance(gpu) || sensor != 0) return NOT_SUPPORTED;
    *celsius = 61;
    return OK;
}

int nvmlDeviceGetClockInfo(device_t gpu, int clock, unsigned *mhz) {
    if (is_instance(gpu) || (clock != SM_CLOCK && clock != MEMORY_CLOCK)) return NOT_SUPPORTED;
    *mhz = clock == SM_CLOCK ? 1380 : 877;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t gpu, unsigned long long *reasons) {
    if (is_instance(gpu)) return NOT_SUPPORTED;
    *reasons = 0x4; // the power cap
    return OK;
}

int nvmlDeviceGetTotalEccErrors(device_t gpu, int kind, int counter, unsigned long long *errors) {
    if (is_instance(gpu) || counter != 0) return NOT_SUPPORTED;
    *errors = kind == 0 ? 3 : 0;
    return OK;
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

// As in NVML, a call without room returns the required size.
int nvmlDeviceGetComputeRunningProcesses_v3(device_t gpu, unsigned *count, struct process *processes) {
    unsigned room = *count;
    *count = gpu == &gpus[V100];
    if (room < *count) return INSUFFICIENT_SIZE;
    if (*count) processes[0] = (struct process){4711, 1073741824ull, ~0u, ~0u};
    return OK;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t gpu, unsigned *count, struct process *processes) {
    (void)gpu, (void)processes;
    *count = 0;
    return OK;
}
