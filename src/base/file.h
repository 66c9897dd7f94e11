/* Files: read whole, write atomically, list in sorted order. Every write is checked; short writes are errors. */
#ifndef DMUON_BASE_FILE_H
#define DMUON_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reads the whole file; *data is owned by the caller (heap_free), NUL-terminated beyond *nbytes.
 * Fails with `whose` and the reason ("path: No such file or directory"). `limit` 0 = no limit. */
DM_NODISCARD Status file_read(const char *path, size_t limit, Status whose, char **data, size_t *nbytes);

/* Writes to "<path>.tmp", fsyncs, renames over `path`, fsyncs the directory. */
DM_NODISCARD Status file_write_atomic(const char *path, const void *data, size_t nbytes, Status whose);

/* Writes all bytes at an offset, or says why not. */
DM_NODISCARD Status file_pwrite(int fd, const void *data, size_t nbytes, int64_t offset, const char *path,
                                Status whose);
DM_NODISCARD Status file_pread(int fd, void *data, size_t nbytes, int64_t offset, const char *path, Status whose);

/* mkdir -p; what is made stays after a power failure, too. */
DM_NODISCARD Status file_make_dirs(const char *path, Status whose);
DM_NODISCARD Status file_sync_dir(const char *path, Status whose);
/* Removes a directory with all that is in it (links are removed, not followed), or nothing if it is absent. */
DM_NODISCARD Status file_remove_dir(const char *path, Status whose);

/* Names (not paths) in a directory in byte order, without "." and "..". Owned by the caller: file_list_free. */
DM_NODISCARD Status file_list(const char *dir, Status whose, char ***names, int *count);
void file_list_free(char **names, int count);

bool file_exists(const char *path);
/* -1 when it does not exist. */
int64_t file_size(const char *path);

#endif
