/* Choosing a backend by its name, and the names of streams. */
#include "device/device.h"

#include <string.h>

#include "base/fatal.h"
#include "device/cpu.h"

Status device_create(Device **device, const DeviceOptions *options) {
    DM_ASSERT(options->name != NULL && options->threads >= 1 && options->delay_max_us >= 0);
    if (strcmp(options->name, "cpu") == 0)
        return cpu_create(device, options);
    return STATUS_FAIL(STATUS_DEVICE, "device: %s is not built into this program, which has: cpu", options->name);
}

const char *stream_name(StreamKind kind) {
    static const char *const name[STREAM_COUNT] = {[STREAM_COMPUTE] = "compute",
                                                   [STREAM_GATHER] = "gather",
                                                   [STREAM_REDUCE] = "reduce",
                                                   [STREAM_PUBLISH] = "publish"};
    DM_ASSERT(kind >= 0 && kind < STREAM_COUNT);
    return name[kind];
}
