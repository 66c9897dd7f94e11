/* What the programs under mpirun share: a world with a device, and checks that end the job. Included by one .c each. */
#ifndef DMUON_TESTS_DIST_H
#define DMUON_TESTS_DIST_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fatal.h"
#include "base/hash.h"
#include "comm/world.h"
#include "device/device.h"

#define CHECK(cond, ...) ((cond) ? (void)0 : fatal(__VA_ARGS__))

static World world;
static Device *device;

/* delay_seed 0: no shaken delays. */
static void dist_begin(int *argc, char ***argv, double timeout_s, uint64_t delay_seed) {
    const bool ready = world_init(&world, argc, argv) == STATUS_OK;
    CHECK(ready, "%s", status_trail());
    world_set_options(&world, &(CommOptions){.timeout_s = timeout_s});
    const uint64_t seed = delay_seed == 0 ? 0 : delay_seed * 1000 + (uint64_t)world.rank + 1;
    const DeviceOptions options = {.name = "cpu", .threads = 1, .delay_seed = seed, .delay_max_us = 300};
    const bool opened = device_create(&device, &options) == STATUS_OK;
    CHECK(opened, "%s", status_trail());
}

static int dist_end(void) {
    device_destroy(device);
    world_finalize(&world);
    return 0;
}

static inline CommTag tag_of(const char *what) {
    return (CommTag){.what = what, .unit = -1};
}

#endif
