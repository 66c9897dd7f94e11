/* The outcome of a call that can fail because of the world outside: a file, the configuration, memory, a peer.
 * One Status says whose failure it is; the sentence and the path it took live in a per-thread trail, so that
 * nobody prints on the way and `main` prints once. */
#ifndef DMUON_BASE_STATUS_H
#define DMUON_BASE_STATUS_H

#include <stddef.h>

#define DM_NODISCARD __attribute__((warn_unused_result))
#define DM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Whose failure it is. The exit code of the process is a function of it: status_exit_code. */
typedef enum Status {
    STATUS_OK,
    STATUS_CONFIG,     /* usage, configuration, launch, run directory          exit 2   */
    STATUS_NO_MEMORY,  /* host or device memory                                exit 2   */
    STATUS_DEVICE,     /* a device that is missing or fails                    exit 2   */
    STATUS_DATA,       /* text, token shards                                   exit 3   */
    STATUS_CHECKPOINT, /* a checkpoint, the lock, a foreign run, a failed save exit 4   */
    STATUS_NUMERIC,    /* non-finite loss or norm                              exit 5   */
    STATUS_COMM,       /* communication, a lost rank                           exit 6   */
    STATUS_STOPPED     /* a signal or the wall-time budget, state saved        exit 75  */
} Status;

/* The only macro in the tree that returns: passes a failure on and adds one frame to the trail. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const Status try_status_ = (call);                                                                             \
        if (try_status_ != STATUS_OK)                                                                                  \
            return status_frame(try_status_, __FILE__, __LINE__, #call);                                               \
    } while (0)

/* Starts a new trail with one sentence (printf style, no trailing newline) and gives back `status`. */
#define STATUS_FAIL(status, ...) status_fail((status), __FILE__, __LINE__, __VA_ARGS__)

Status status_fail(Status status, const char *file, int line, const char *fmt, ...) DM_PRINTF(4, 5);

/* Adds "at file:line: call" to the calling thread's trail; gives back `status`. */
Status status_frame(Status status, const char *file, int line, const char *call);

/* The calling thread's trail: the sentence, then one line per frame, joined by newlines. Empty when nothing failed.
 * Borrowed; valid until the next failure in this thread. */
const char *status_trail(void);
/* How many bytes of the trail are the sentence, which may have several lines: "%.*s" prints it without the frames. */
int status_sentence(void);

/* Replaces the trail, for a failure that came from another rank or thread. */
void status_trail_set(const char *text);
void status_trail_clear(void);

/* 0, 2, 3, 4, 5, 6 or 75; the table above. */
int status_exit_code(Status status);
const char *status_name(Status status);

#endif
