/* Questions and answers travel on a communicator of their own, in messages small enough that no send waits for its
 * receiver. */
#include "comm/rollcall.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

#include "base/clock.h"
#include "base/str.h"

#define TAG_QUESTION 1
#define TAG_ANSWER 2
#define TAG_SPEAKS 3 /* the sender is about to end the job with a line */
#define MAX_KNOWN 64
#define MAX_SENDS 64
#define TURN_STEP_US 10000
#define SILENT_S 10
#define EXIT_SILENT 6
#define SERVE_NS 20000000 /* between two looks for messages */
#define ROUND_NS INT64_C(5000000000)

typedef struct Answer {
    int32_t round; /* of the question */
    int32_t nwaits, count;
    int32_t peer[WATCH_PEERS];
    char text[WATCH_TEXT];
} Answer;

typedef struct Known {
    int rank;
    bool answered;
    Answer answer;
} Known;

static MPI_Comm comm = MPI_COMM_NULL;
static int own_rank, world_size;
static atomic_flag busy = ATOMIC_FLAG_INIT; /* guards all below */
static _Atomic int64_t served_ns;
static int32_t round_number;
static int64_t round_ns;
static Known known[MAX_KNOWN];
static int known_count;
static bool other_speaks;
static struct {
    MPI_Request request;
    Answer buf;
} sends[MAX_SENDS];

void rollcall_open(int size) {
    if (size == 1)
        return;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &own_rank);
    world_size = size;
    for (int i = 0; i < MAX_SENDS; i++)
        sends[i].request = MPI_REQUEST_NULL;
}

void rollcall_close(void) {
    if (comm == MPI_COMM_NULL)
        return;
    for (int i = 0; i < MAX_SENDS; i++)
        if (sends[i].request != MPI_REQUEST_NULL)
            MPI_Request_free(&sends[i].request);
    MPI_Comm_free(&comm);
}

/* Without a free slot the message is not sent: whoever asked will say that we did not answer. */
static void send_message(int to, int tag, const Answer *message, size_t nbytes) {
    for (int i = 0; i < MAX_SENDS; i++) {
        int done = 1;
        if (sends[i].request != MPI_REQUEST_NULL)
            MPI_Test(&sends[i].request, &done, MPI_STATUS_IGNORE);
        if (!done)
            continue;
        memcpy(&sends[i].buf, message, nbytes);
        MPI_Isend(&sends[i].buf, (int)nbytes, MPI_BYTE, to, tag, comm, &sends[i].request);
        return;
    }
}

static void ask(int rank) {
    if (rank == own_rank || known_count == MAX_KNOWN)
        return;
    for (int i = 0; i < known_count; i++)
        if (known[i].rank == rank)
            return;
    known[known_count++] = (Known){.rank = rank};
    send_message(rank, TAG_QUESTION, &(Answer){.round = round_number}, sizeof(int32_t));
}

static void answer(int to) {
    int32_t asked;
    MPI_Recv(&asked, (int)sizeof asked, MPI_BYTE, to, TAG_QUESTION, comm, MPI_STATUS_IGNORE);
    Answer mine = {.round = asked};
    WatchPeers peers;
    mine.nwaits = watch_long_wait(&peers, mine.text, sizeof mine.text);
    mine.count = peers.count;
    for (int i = 0; i < peers.count; i++)
        mine.peer[i] = peers.in_world[i];
    send_message(to, TAG_ANSWER, &mine, sizeof mine);
}

static void take_answer(int from) {
    Answer theirs;
    MPI_Recv(&theirs, (int)sizeof theirs, MPI_BYTE, from, TAG_ANSWER, comm, MPI_STATUS_IGNORE);
    if (theirs.round != round_number)
        return;
    for (int i = 0; i < known_count; i++)
        if (known[i].rank == from) {
            known[i].answered = true;
            known[i].answer = theirs;
        }
    for (int i = 0; i < theirs.count; i++)
        ask(theirs.peer[i]);
}

static void hear(int from) {
    MPI_Recv(NULL, 0, MPI_BYTE, from, TAG_SPEAKS, comm, MPI_STATUS_IGNORE);
    other_speaks = true;
}

static void serve(void) {
    int found = 1;
    MPI_Status status;
    while (found) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &status);
        if (found && status.MPI_TAG == TAG_QUESTION)
            answer(status.MPI_SOURCE);
        else if (found && status.MPI_TAG == TAG_SPEAKS)
            hear(status.MPI_SOURCE);
        else if (found)
            take_answer(status.MPI_SOURCE);
    }
}

void rollcall_serve(void) {
    const int64_t now = clock_ns();
    if (comm == MPI_COMM_NULL || now - served_ns < SERVE_NS || atomic_flag_test_and_set(&busy))
        return;
    served_ns = now;
    serve();
    atomic_flag_clear(&busy);
}

static void enter(void) {
    while (atomic_flag_test_and_set(&busy))
        clock_sleep_us(100);
}

void rollcall_ask(const WatchPeers *peers) {
    if (comm == MPI_COMM_NULL)
        return;
    enter();
    if (clock_ns() - round_ns > ROUND_NS) { /* not the round of another thread of ours */
        round_ns = clock_ns();
        round_number++;
        known_count = 0;
    }
    for (int i = 0; i < peers->count; i++)
        ask(peers->in_world[i]);
    atomic_flag_clear(&busy);
}

static void announce(void) {
    for (int i = 1; i < world_size; i++) {
        MPI_Request request;
        MPI_Isend(NULL, 0, MPI_BYTE, (own_rank + i) % world_size, TAG_SPEAKS, comm, &request);
        MPI_Request_free(&request);
    }
}

void rollcall_take_turn(int64_t wait_us) {
    if (comm == MPI_COMM_NULL)
        return;
    bool silent = false;
    for (int64_t us = 0; !silent; us += TURN_STEP_US) {
        enter();
        serve();
        silent = other_speaks;
        if (!silent && us >= wait_us)
            announce();
        atomic_flag_clear(&busy);
        if (!silent && us >= wait_us)
            return;
        clock_sleep_us(TURN_STEP_US);
    }
    clock_sleep_us(SILENT_S * INT64_C(1000000));
    _exit(EXIT_SILENT);
}

void rollcall_result(char *text, size_t capacity) {
    size_t used = 0;
    int silent = 0;
    enter();
    for (int i = 0; i < known_count && used < capacity; i++)
        if (!known[i].answered)
            used += (size_t)snprintf(text + used, capacity - used, "%srank %d (%s)", silent++ > 0 ? ", " : "",
                                     known[i].rank, comm_host(known[i].rank));
    if (silent > 0 && used < capacity)
        snprintf(text + used, capacity - used, " %s not answer: stopped, lost, or busy outside collectives",
                 silent == 1 ? "does" : "do");
    else if (known_count > 0)
        snprintf(text, capacity, "every rank asked is waiting itself, rank %d (%s) in %s", known[0].rank,
                 comm_host(known[0].rank), known[0].answer.nwaits > 0 ? known[0].answer.text : "nothing that is long");
    else
        snprintf(text, capacity, "nobody could be asked");
    atomic_flag_clear(&busy);
}
