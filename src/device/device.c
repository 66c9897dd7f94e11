/* Choosing a backend by its name, checking arguments, passing calls on. */
#include "device/device.h"

#include <string.h>

#include "base/fatal.h"
#include "base/str.h"
#include "device/backend.h"

/* What this program was built with, best first. */
static const Backend *const backends[] = {
#ifdef DM_CUDA
    &backend_cuda,
#endif
    &backend_cpu,
};
#define BACKENDS ((int)(sizeof backends / sizeof backends[0]))

/* ---- the device ---- */

static const Backend *find_backend(const char *name) {
    for (int i = 0; i < BACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

const char *device_backends(void) {
    static char names[64];
    names[0] = '\0';
    for (int i = BACKENDS - 1; i >= 0; i--) {
        const size_t used = strlen(names);
        str_format(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", backends[i]->name);
    }
    return names;
}

static Status not_built(const char *name) {
    return STATUS_FAIL(STATUS_DEVICE, "device: %s is not built into this program, which has: %s%s", name,
                       device_backends(), strcmp(name, "cuda") == 0 ? " (`make CUDA=1` adds cuda)" : "");
}

/* The first that has something to run on; the reasons against those before it. */
static Status choose_any(DeviceChoice *choice, int local_rank) {
    char against[sizeof choice->why] = "nothing else is built in";
    for (int i = 0; i < BACKENDS; i++) {
        choice->backend = backends[i]->name;
        if (backends[i]->find(choice, local_rank) == STATUS_OK) {
            str_format(choice->why, sizeof choice->why, "%s", i > 0 || BACKENDS == 1 ? against : "a GPU is there");
            return STATUS_OK;
        }
        str_format(against, sizeof against, "%.200s", status_trail());
        against[strcspn(against, "\n")] = '\0';
        status_trail_clear();
    }
    return not_built("auto");
}

Status device_choose(DeviceChoice *choice, const char *name, int local_rank) {
    *choice = (DeviceChoice){0};
    if (strcmp(name, "auto") == 0)
        return choose_any(choice, local_rank);
    const Backend *backend = find_backend(name);
    if (backend == NULL)
        return not_built(name);
    choice->backend = backend->name;
    str_format(choice->why, sizeof choice->why, "asked for");
    return backend->find(choice, local_rank);
}

Status device_create(Device **device, const DeviceOptions *options) {
    DM_ASSERT(options->name != NULL && options->threads >= 1 && options->delay_max_us >= 0);
    const Backend *backend = find_backend(options->name);
    if (backend == NULL)
        return not_built(options->name);
    return backend->create(device, options);
}

void device_destroy(Device *device) {
    if (device != NULL)
        device->backend->destroy(device);
}

const char *device_name(const Device *device) {
    return device->name;
}

bool device_host_reads_memory(const Device *device) {
    return device->backend->host_reads_memory;
}

void device_memory(Device *device, size_t *available, size_t *total) {
    device->backend->memory(device, available, total);
}

double device_listed_flops(Device *device) {
    return device->backend->listed_flops(device);
}

double device_take_wait_us(Device *device) {
    const double wait_us = device->wait_us;
    device->wait_us = 0.0;
    return wait_us;
}

/* ---- streams ---- */

const char *stream_name(StreamKind kind) {
    static const char *const name[STREAM_COUNT] = {[STREAM_COMPUTE] = "compute",
                                                   [STREAM_GATHER] = "gather",
                                                   [STREAM_REDUCE] = "reduce",
                                                   [STREAM_PUBLISH] = "publish"};
    DM_ASSERT(kind >= 0 && kind < STREAM_COUNT);
    return name[kind];
}

Stream *device_stream(Device *device, StreamKind kind) {
    DM_ASSERT(kind >= 0 && kind < STREAM_COUNT);
    return device->stream[kind];
}

StreamKind stream_kind(const Stream *stream) {
    return stream->kind;
}

Device *stream_device(Stream *stream) {
    return stream->device;
}

static const Backend *backend_of(const Stream *stream) {
    return stream->device->backend;
}

void stream_launch(Stream *stream, KernelId id, const void *args, size_t nbytes) {
    DM_ASSERT(id >= 0 && id < KERNEL_COUNT && nbytes <= STREAM_ARG_BYTES);
    backend_of(stream)->launch(stream, id, args, nbytes);
}

void stream_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes) {
    DM_ASSERT(nbytes <= STREAM_ARG_BYTES);
    backend_of(stream)->call(stream, fn, arg, nbytes);
}

void stream_sync(Stream *stream) {
    backend_of(stream)->sync(stream);
}

/* ---- events ---- */

Event *event_create(Device *device) {
    return device->backend->event_create(device);
}

void event_destroy(Event *event) {
    if (event != NULL)
        event->backend->event_destroy(event);
}

void event_record(Event *event, Stream *stream) {
    event->backend->event_record(event, stream);
}

void event_wait(Stream *stream, Event *event) {
    event->backend->event_wait(stream, event);
}

double event_sync(Event *event) {
    return event->backend->event_sync(event);
}

bool event_passed(Event *event) {
    return event->backend->event_passed(event);
}

Stopwatch *stopwatch_create(Device *device) {
    return device->backend->stopwatch_create(device);
}

void stopwatch_destroy(Stopwatch *watch) {
    if (watch != NULL)
        watch->backend->stopwatch_destroy(watch);
}

void stopwatch_mark(Stopwatch *watch, int mark) {
    DM_ASSERT(mark >= 0 && mark < STOPWATCH_MARKS);
    watch->backend->stopwatch_mark(watch, mark);
}

bool stopwatch_ms(Stopwatch *watch, int from, int to, double *ms) {
    return watch->backend->stopwatch_ms(watch, from, to, ms);
}

/* ---- what comes again ---- */

Repeat *repeat_create(Device *device) {
    return device->backend->repeat_create != NULL ? device->backend->repeat_create(device) : NULL;
}

void repeat_destroy(Repeat *repeat) {
    if (repeat != NULL)
        repeat->backend->repeat_destroy(repeat);
}

bool repeat_begin(Repeat *repeat, const void *key, size_t nbytes) {
    return repeat != NULL && repeat->backend->repeat_begin(repeat, key, nbytes);
}

void repeat_end(Repeat *repeat) {
    if (repeat != NULL)
        repeat->backend->repeat_end(repeat);
}

/* ---- memory ---- */

Status device_arena_init(Device *device, Arena *arena, size_t nbytes, const char *what) {
    return device->backend->arena_init(device, arena, nbytes, what);
}

void device_arena_deinit(Device *device, Arena *arena) {
    device->backend->arena_deinit(device, arena);
}

void *device_alloc(Stream *stream, size_t nbytes) {
    return backend_of(stream)->alloc(stream, nbytes);
}

void device_free(Stream *stream, void *block) {
    if (block != NULL)
        backend_of(stream)->free(stream, block);
}

void device_copy(Stream *stream, void *dst, const void *src, size_t nbytes) {
    backend_of(stream)->copy(stream, dst, src, nbytes);
}

void device_copy_to_host(Stream *stream, void *host, const void *src, size_t nbytes) {
    DM_ASSERT(stream->kind == STREAM_COMPUTE);
    backend_of(stream)->copy_to_host(stream, host, src, nbytes);
}

void device_copy_from_host(Stream *stream, void *dst, const void *host, size_t nbytes) {
    backend_of(stream)->copy_from_host(stream, dst, host, nbytes);
}

/* ---- for transports ---- */

void *stream_pinned(Stream *stream, size_t nbytes) {
    return backend_of(stream)->pinned(stream, nbytes);
}

void stream_read(Stream *stream, void *pinned, const void *src, size_t nbytes) {
    backend_of(stream)->read(stream, pinned, src, nbytes);
}

void stream_write(Stream *stream, void *dst, const void *pinned, size_t nbytes) {
    backend_of(stream)->write(stream, dst, pinned, nbytes);
}

void *stream_native(Stream *stream) {
    return backend_of(stream)->native(stream);
}

void device_set_pause(Device *device, void (*pause)(void *arg, int tries), void *arg) {
    if (device->backend->set_pause != NULL)
        device->backend->set_pause(device, pause, arg);
}
