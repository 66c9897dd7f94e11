/* The runtime's calls about devices and errors. Where code asks for numbers it gets those of an A100. */
#include <stdio.h>

#include "cudart.h"
#include "mem.h"

namespace standin {

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t keep_error(cudaError_t error, const char *api) {
    last_error = error;
    note_error(api);
    return error;
}

cudaError_t answer(cudaError_t code) {
    last_error = code;
    return code;
}

} // namespace standin

using namespace standin;

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static thread_local int thread_device;

int standin::current_device() {
    return thread_device;
}

STANDIN_API cudaError_t cudaGetDeviceCount(int *n) {
    API_CALL(cudaErrorUnknown);
    *n = settings().devices;
    return settings().devices != 0 ? cudaSuccess : answer(cudaErrorNoDevice);
}

STANDIN_API cudaError_t cudaSetDevice(int device) {
    API_CALL(cudaErrorUnknown);
    if (device < 0 || device >= settings().devices)
        return keep_error(cudaErrorInvalidDevice, __func__);
    thread_device = device;
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaGetDevice(int *device) {
    API_CALL(cudaErrorUnknown);
    *device = thread_device;
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    API_CALL(cudaErrorUnknown);
    if (device < 0 || device >= settings().devices)
        return keep_error(cudaErrorInvalidDevice, __func__);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "CUDA stand-in");
    properties->totalGlobalMem = settings().memory;
    properties->major = 8;
    properties->multiProcessorCount = 108;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 163 << 10;
    properties->pciBusID = device + 1;
    properties->uuid.bytes[0] = (char)(device + 1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    API_CALL(cudaErrorUnknown);
    if (device < 0 || device >= settings().devices)
        return keep_error(cudaErrorInvalidDevice, __func__);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 8;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 108;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 163 << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
    default:
        fault("cudaDeviceGetAttribute: the stand-in knows nothing of attribute %d", (int)attribute);
    }
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaDeviceGetPCIBusId(char *text, int capacity, int device) {
    API_CALL(cudaErrorUnknown);
    if (device < 0 || device >= settings().devices)
        return keep_error(cudaErrorInvalidDevice, __func__);
    snprintf(text, (size_t)capacity, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    API_CALL(cudaErrorUnknown);
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    API_CALL(cudaErrorUnknown);
    *total = settings().memory;
    *available = settings().memory - memory_used();
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaDriverGetVersion(int *version) {
    API_CALL(cudaErrorUnknown);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaRuntimeGetVersion(int *version) {
    API_CALL(cudaErrorUnknown);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

STANDIN_API cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

STANDIN_API cudaError_t cudaPeekAtLastError() {
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

STANDIN_API const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &entry : error_texts) {
        if (entry.error == error)
            return entry.name;
    }
    return "unrecognized error code";
}

STANDIN_API const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &entry : error_texts) {
        if (entry.error == error)
            return entry.text;
    }
    return "unrecognized error code";
}
