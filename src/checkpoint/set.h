/* Where the sets of a run lie and which of them are kept: <run.dir>/checkpoints/step-00000100/ and, while one is
 * written, .tmp-step-00000100/ beside it. What begins with a dot is not a set. Called by one rank. */
#ifndef DMUON_CHECKPOINT_SET_H
#define DMUON_CHECKPOINT_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

#define SET_PATH 1200 /* bytes of a path to a set; run.dir has at most 1023 */

/* "<run_dir>/checkpoints", ".../step-00000100", ".../.tmp-step-00000100" into buf [SET_PATH]. */
void set_root(char *buf, const char *run_dir);
void set_path(char *buf, const char *run_dir, int64_t step);
void set_temporary_path(char *buf, const char *run_dir, int64_t step);
/* "step-" and at least eight digits, without a superfluous zero. */
bool set_parse_name(const char *name, int64_t *step);

typedef struct SetList {
    int64_t *step; /* owned; ascending */
    int count;
} SetList;

/* All sets, valid or not. No checkpoints directory: an empty list. */
DM_NODISCARD Status set_list(const char *run_dir, SetList *list);
void set_list_deinit(SetList *list);

/* The newest set of this run whose every byte is as its trainer.json says; *step = -1 when there is none. run_id NULL
 * or "": of any run. Each newer one that was passed over is named in `warnings` (one line each; NULL: nobody asks).
 * Reads everything: as slow as the disk. */
DM_NODISCARD Status set_newest_valid(const char *run_dir, const char *run_id, int64_t *step, Str *warnings);

/* An empty temporary directory for a new set, old remains removed. */
DM_NODISCARD Status set_begin(const char *run_dir, int64_t step);
/* Makes the temporary directory the set: directory fsynced, one rename, parent fsynced. An older set of that step is
 * exchanged in the same rename where the file system can, and then removed. */
DM_NODISCARD Status set_commit(const char *run_dir, int64_t step);
/* Removes what killed jobs left: every .tmp-* under checkpoints/. At start only, under the run's lock. */
DM_NODISCARD Status set_remove_stale(const char *run_dir);

/* Run `run_id` goes on from an earlier set: its newer ones are renamed to checkpoints/rewound-00000100 (.1, .2 ... when
 * that is taken), so that no later start continues what was left. run_id NULL, step -1: a new run begins, and all sets
 * go, whose ever they are. One line each in `warnings`. */
DM_NODISCARD Status set_put_aside(const char *run_dir, const char *run_id, int64_t step, Str *warnings);

/* Removes sets of this run, oldest first, until `keep` are left; keep 0 = all stay. Never the newest valid one, nor
 * `known_valid` (the set just committed; -1: none), which also spares reading it again. Sets of other runs and
 * unreadable ones are not this run's to remove. */
DM_NODISCARD Status set_prune(const char *run_dir, const char *run_id, int64_t keep, int64_t known_valid);

/* `nbytes` more fit on the file system of `path` (or of its nearest existing ancestor); else STATUS_CHECKPOINT with
 * both numbers. */
DM_NODISCARD Status set_check_space(const char *path, int64_t nbytes);

#endif
