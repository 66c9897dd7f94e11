/* A neighbour that is gone without having said or written why was killed. */
#include "comm/lost.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/str.h"
#include "comm/flight.h"

#define LOOKS 25
#define LOOK_US 20000

typedef struct Neighbour {
    int32_t rank, pid;
    char host[128];
} Neighbour;

static struct {
    pthread_t thread;
    sem_t wake;
    int rank, count;
    Neighbour *neighbour; /* [count] owned; of this node, in rank order */
    char dir[1024];
} lost;
static _Atomic bool running;

static bool is_gone(const Neighbour *n) {
    return kill((pid_t)n->pid, 0) != 0 && errno == ESRCH;
}

static void tell(const Neighbour *n, const char *last) {
    char line[768];
    str_format(line, sizeof line, "dmuon-train: rank %d (%s): killed or crashed (process %d); its last operation: %s\n",
               n->rank, n->host, n->pid, last);
    const ssize_t written = write(STDERR_FILENO, line, strlen(line)); /* one write: lines of several ranks do not mix */
    (void)written;
}

/* Says who was lost, unless a lower rank lives to say it. */
static bool look(void) {
    bool told = false;
    for (int i = 0; i < lost.count && !told && (lost.neighbour[i].rank >= lost.rank || is_gone(&lost.neighbour[i]));
         i++)
        if (lost.neighbour[i].rank == lost.rank)
            for (int k = 0; k < lost.count; k++) {
                char path[1200], last[400];
                flight_path(path, sizeof path, lost.dir, lost.neighbour[k].rank);
                if (!is_gone(&lost.neighbour[k]) || flight_last(path, last, sizeof last) != FLIGHT_RUNNING)
                    continue;
                tell(&lost.neighbour[k], last);
                told = true;
            }
    return told;
}

static void *watch(void *unused) {
    (void)unused;
    for (;;) {
        while (sem_wait(&lost.wake) != 0)
            ;
        for (int i = 0; i < LOOKS && running && !look(); i++)
            clock_sleep_us(LOOK_US);
        if (!running)
            return NULL;
    }
}

/* Those whose processes can be seen from here: containers may hide them. */
static void find_neighbours(const World *world) {
    Neighbour mine = {.rank = world->rank, .pid = (int32_t)getpid()};
    Neighbour *all = HEAP_ALLOC(Neighbour, world->size);
    memcpy(mine.host, world->host, sizeof mine.host);
    host_all_gather(world->comm, &mine, all, sizeof mine);
    lost.count = 0;
    for (int r = 0; r < world->size; r++)
        if (strcmp(all[r].host, mine.host) == 0 && !is_gone(&all[r]))
            all[lost.count++] = all[r];
    lost.neighbour = all;
    lost.rank = world->rank;
}

Status lost_start(const World *world, const char *flight_dir) {
    if (world->size == 1)
        return STATUS_OK;
    find_neighbours(world);
    str_format(lost.dir, sizeof lost.dir, "%s", flight_dir);
    sem_init(&lost.wake, 0, 0);
    running = true;
    if (pthread_create(&lost.thread, NULL, watch, NULL) == 0)
        return STATUS_OK;
    running = false;
    sem_destroy(&lost.wake);
    heap_free(lost.neighbour);
    return STATUS_FAIL(
        STATUS_CONFIG,
        "no thread can be created that watches the neighbours: raise the limit on processes (ulimit -u)");
}

void lost_look(void) {
    if (running)
        sem_post(&lost.wake);
}

void lost_stop(void) {
    if (!running)
        return;
    running = false;
    sem_post(&lost.wake);
    pthread_join(lost.thread, NULL);
    sem_destroy(&lost.wake);
    heap_free(lost.neighbour);
}
