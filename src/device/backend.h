/* What a backend is, for the files of this room: one table of functions, and the heads of its objects. A backend
 * embeds the heads as first members of its own structs. device.c checks arguments and passes calls on. */
#ifndef DMUON_DEVICE_BACKEND_H
#define DMUON_DEVICE_BACKEND_H

#include "device/products.h"

#define STREAM_ARG_BYTES 512 /* of a launch or a call */

typedef struct Backend {
    const char *name; /* as in `device:` */
    bool host_reads_memory;

    DM_NODISCARD Status (*find)(DeviceChoice *choice, int local_rank); /* is there one to run on? */
    DM_NODISCARD Status (*create)(Device **device, const DeviceOptions *options);
    void (*destroy)(Device *device);
    void (*memory)(Device *device, size_t *available, size_t *total); /* bytes */
    double (*listed_flops)(Device *device);

    /* NULL where all products are exact. */
    size_t (*choice_nbytes)(const Device *device, int count); /* 0: exact on this device */
    DM_NODISCARD Status (*choose_products)(Device *device, const ProductList *list, void *choices);
    DM_NODISCARD Status (*pin_products)(Device *device, const ProductList *list, const void *choices);

    void (*launch)(Stream *stream, KernelId id, const void *args, size_t nbytes);
    void (*call)(Stream *stream, void (*fn)(void *arg), const void *arg, size_t nbytes);
    void (*sync)(Stream *stream);
    void (*copy)(Stream *stream, void *dst, const void *src, size_t nbytes);
    void (*copy_to_host)(Stream *stream, void *host, const void *src, size_t nbytes);
    void (*copy_from_host)(Stream *stream, void *dst, const void *host, size_t nbytes);

    Event *(*event_create)(Device *device);
    void (*event_destroy)(Event *event);
    void (*event_record)(Event *event, Stream *stream);
    void (*event_wait)(Stream *stream, Event *event);
    double (*event_sync)(Event *event);
    bool (*event_passed)(Event *event);

    Stopwatch *(*stopwatch_create)(Device *device);
    void (*stopwatch_destroy)(Stopwatch *watch);
    void (*stopwatch_mark)(Stopwatch *watch, int mark);
    bool (*stopwatch_ms)(Stopwatch *watch, int from, int to, double *ms);

    Repeat *(*repeat_create)(Device *device); /* NULL: nothing is replayed */
    void (*repeat_destroy)(Repeat *repeat);
    bool (*repeat_begin)(Repeat *repeat, const void *key, size_t nbytes);
    void (*repeat_end)(Repeat *repeat);

    DM_NODISCARD Status (*arena_init)(Device *device, Arena *arena, size_t nbytes, const char *what);
    void (*arena_deinit)(Device *device, Arena *arena);
    void *(*alloc)(Stream *stream, size_t nbytes);
    void (*free)(Stream *stream, void *block);

    /* For transports. NULL where host_reads_memory. */
    void *(*pinned)(Stream *stream, size_t nbytes);
    void (*read)(Stream *stream, void *pinned, const void *src, size_t nbytes);
    void (*write)(Stream *stream, void *dst, const void *pinned, size_t nbytes);
    void *(*native)(Stream *stream);
    void (*set_pause)(Device *device, void (*pause)(void *arg, int tries), void *arg);
} Backend;

struct Device {
    const Backend *backend;
    char name[96];
    char products[96];            /* what was pinned, "": nothing */
    Stream *stream[STREAM_COUNT]; /* owned by the backend        */
    double wait_us;               /* of the compute stream in event_wait */
};

struct Stream {
    Device *device;
    StreamKind kind;
};

struct Event {
    const Backend *backend;
};

struct Stopwatch {
    const Backend *backend;
};

struct Repeat {
    const Backend *backend;
};

extern const Backend backend_cpu;
extern const Backend backend_cuda; /* where it is built in */

#endif
