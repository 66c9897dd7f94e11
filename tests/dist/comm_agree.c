/* Arguments: the ranks that fail. Every rank must leave with the outcome of the lowest of them, and with its words.
 * Prints the trail on rank 0. */
#include "dist.h"

static Status phase(bool fails) {
    if (fails)
        return STATUS_FAIL(world.rank % 2 == 0 ? STATUS_DATA : STATUS_CHECKPOINT, "shard-%d.bin: no such file",
                           world.rank);
    return STATUS_OK;
}

static Status setup(bool fails) {
    TRY(comm_agree(world.comm, phase(fails)));
    return STATUS_OK;
}

int main(int argc, char **argv) {
    dist_begin(&argc, &argv, 20.0, 0);
    int lowest = -1;
    bool fails = false;
    for (int i = argc - 1; i >= 1; i--) {
        const int rank = atoi(argv[i]);
        lowest = lowest < 0 || rank < lowest ? rank : lowest;
        fails = fails || rank == world.rank;
    }
    for (int round = 0; round < 3; round++) {
        status_trail_clear();
        const Status status = setup(fails);
        const Status want = lowest < 0 ? STATUS_OK : lowest % 2 == 0 ? STATUS_DATA : STATUS_CHECKPOINT;
        CHECK(status == want, "status %s, not %s", status_name(status), status_name(want));
        if (want == STATUS_OK)
            continue;
        char words[64], prefix[256];
        snprintf(words, sizeof words, "shard-%d.bin: no such file", lowest);
        snprintf(prefix, sizeof prefix, "rank %d (%s): %s", lowest, world.host, words);
        const char *expected = world.rank == lowest ? words : prefix;
        CHECK(strncmp(status_trail(), expected, strlen(expected)) == 0, "trail '%s' does not begin '%s'",
              status_trail(), expected);
        CHECK(strstr(status_trail(), "comm_agree") != NULL, "the local frame is missing: %s", status_trail());
    }
    if (world.rank == 0)
        printf("%s\n", status_trail());
    return dist_end();
}
