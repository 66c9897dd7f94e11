/* The run directory: who may use it, which run it holds, where its log stands. All of it is called by one rank (0),
 * between agreements. */
#ifndef DMUON_CHECKPOINT_RUN_H
#define DMUON_CHECKPOINT_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "checkpoint/set.h"

#define RUN_ID 33 /* 32 lower-case hex digits and the NUL */

typedef struct RunDir {
    int fd; /* -1: not held */
    char dir[1024];
    bool created_lock; /* by this start, for run_lock_abandon */
    bool restore;      /* the lock file was there, for run_lock_abandon */
    char holder_before[256];
    int created_dirs; /* innermost directories of the path made by this start */
} RunDir;

/* Makes the directory if it is absent and takes the flock on <dir>/lock, which the kernel gives back when the process
 * ends, however it ends. Writes "pid P on host H" into it. A directory that cannot be made or written: STATUS_CONFIG; a
 * live lock: STATUS_CHECKPOINT with directory and holder. */
DM_NODISCARD Status run_lock(RunDir *run, const char *dir, const char *host);
/* Gives the lock back; the file stays. */
void run_unlock(RunDir *run);
/* The same for a start that was refused: what it created (lock file, empty directories) is removed again. */
void run_lock_abandon(RunDir *run);

/* 32 hex digits from the kernel's random numbers. */
DM_NODISCARD Status run_draw_id(char run_id[RUN_ID]);

/* What a start is to do. */
typedef struct RunStart {
    bool resume;
    char run_id[RUN_ID];
    char set[SET_PATH]; /* path of the set to load; empty when !resume */
    int64_t step;       /* of the set; 0 when !resume                   */
    bool keep_log;      /* log.jsonl is this run's: to be cut to `step`. Otherwise an existing one is to be moved
                           (run_move_log) */
} RunStart;

/* Judges `resume` (auto, none or a path) against what the directory holds, and changes nothing.
 *
 * - none: a new run.
 * - auto: the newest valid set of the run that log.jsonl names (or, without a log, of any); a new run in a directory
 *   without log and sets. Damaged sets that were passed over are named in `warnings`, one line each.
 * - a path: that set.
 *
 * STATUS_CHECKPOINT, naming run.dir= and checkpoint.resume=none: log.jsonl but no usable set, or the log of another run
 * than the set's; and a path that is no readable set. */
DM_NODISCARD Status run_decide(RunStart *start, const char *dir, const char *resume, Str *warnings);

/* log.jsonl -> log.jsonl.N, N the first free number from 1. Nothing if there is none. */
DM_NODISCARD Status run_move_log(const char *dir);
/* Leaves the lines of log.jsonl up to the first whose "step" is greater than `step`, without lines that are no JSON
 * object (a write cut off by a crash). Atomic: the old file or the new one, never part of it. Nothing if there is no
 * log or nothing to cut. */
DM_NODISCARD Status run_cut_log(const char *dir, int64_t step);

#endif
