#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/str.h"

/* The failure of a system call on `path`, in the words of errno. */
#define FAIL_ERRNO(whose, path) STATUS_FAIL((whose), "%s: %s", (path), strerror(errno))

/* Reads until the end, since files in /proc and pipes have no size. */
static Status read_all(int fd, const char *path, size_t limit, Status whose, Str *text) {
    static const size_t first_piece = 4096;
    static const size_t largest_piece = (size_t)1 << 30;
    struct stat info;
    if (fstat(fd, &info) != 0)
        return FAIL_ERRNO(whose, path);
    size_t piece = info.st_size > 0 ? (size_t)info.st_size + 1 : first_piece;
    for (;;) {
        if (limit > 0 && text->len > limit)
            return STATUS_FAIL(whose, "%s: longer than the limit of %zu bytes", path, limit);
        if (limit > 0 && piece > limit - text->len + 1)
            piece = limit - text->len + 1;
        if (piece > largest_piece)
            piece = largest_piece;
        if (text->capacity < text->len + piece + 1) {
            text->capacity = text->len + piece + 1;
            text->text = heap_realloc(text->text, text->capacity);
        }
        const ssize_t n = read(fd, text->text + text->len, piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL_ERRNO(whose, path);
        text->len += (size_t)n;
        text->text[text->len] = '\0';
        if (n == 0)
            return STATUS_OK;
        if (text->len > piece)
            piece = text->len;
    }
}

Status file_read(const char *path, size_t limit, Status whose, char **data, size_t *nbytes) {
    *data = NULL;
    *nbytes = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_ERRNO(whose, path);
    Str text = {0};
    const Status status = read_all(fd, path, limit, whose, &text);
    (void)close(fd);
    if (status != STATUS_OK) {
        str_deinit(&text);
        return status_frame(status, __FILE__, __LINE__, "read_all(fd, path, limit, whose, &text)");
    }
    *data = text.text;
    *nbytes = text.len;
    return STATUS_OK;
}

Status file_pwrite(int fd, const void *data, size_t nbytes, int64_t offset, const char *path, Status whose) {
    size_t done = 0;
    while (done < nbytes) {
        const ssize_t n = pwrite(fd, (const char *)data + done, nbytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL_ERRNO(whose, path);
        if (n == 0)
            return STATUS_FAIL(whose, "%s: only %zu of %zu bytes were written at offset %lld", path, done, nbytes,
                               (long long)offset);
        done += (size_t)n;
    }
    return STATUS_OK;
}

Status file_pread(int fd, void *data, size_t nbytes, int64_t offset, const char *path, Status whose) {
    size_t done = 0;
    while (done < nbytes) {
        const ssize_t n = pread(fd, (char *)data + done, nbytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL_ERRNO(whose, path);
        if (n == 0)
            return STATUS_FAIL(whose, "%s: ends at byte %lld, %zu bytes were expected at offset %lld", path,
                               (long long)offset + (long long)done, nbytes, (long long)offset);
        done += (size_t)n;
    }
    return STATUS_OK;
}

/* The directory that holds `path`, owned by the caller (heap_free). */
static char *parent_of(const char *path) {
    const char *name = str_base_name(path);
    if (name == path)
        return heap_strdup(".");
    char *parent = heap_strdup(path);
    const size_t len = (size_t)(name - path);
    parent[len > 1 ? len - 1 : 1] = '\0';
    return parent;
}

Status file_sync_dir(const char *path, Status whose) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES) /* write permission alone lets us make files there, and no more */
        return STATUS_OK;
    if (fd < 0)
        return FAIL_ERRNO(whose, path);
    const int rc = fsync(fd);
    const int reason = errno;
    (void)close(fd);
    /* EINVAL: this file system cannot sync a directory, so there is nothing to wait for. */
    if (rc != 0 && reason != EINVAL)
        return STATUS_FAIL(whose, "%s: %s", path, strerror(reason));
    return STATUS_OK;
}

static Status sync_parent(const char *path, Status whose) {
    char *parent = parent_of(path);
    const Status status = file_sync_dir(parent, whose);
    heap_free(parent);
    return status;
}

static Status write_and_sync(const char *path, const void *data, size_t nbytes, Status whose) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL_ERRNO(whose, path);
    Status status = file_pwrite(fd, data, nbytes, 0, path, whose);
    if (status == STATUS_OK && fsync(fd) != 0)
        status = FAIL_ERRNO(whose, path);
    if (close(fd) != 0 && status == STATUS_OK)
        status = FAIL_ERRNO(whose, path);
    return status;
}

static Status write_and_rename(const char *temporary, const char *path, const void *data, size_t nbytes, Status whose) {
    TRY(write_and_sync(temporary, data, nbytes, whose));
    if (rename(temporary, path) != 0)
        return FAIL_ERRNO(whose, path);
    return STATUS_OK;
}

Status file_write_atomic(const char *path, const void *data, size_t nbytes, Status whose) {
    Str temporary = {0};
    str_printf(&temporary, "%s.tmp", path);
    Status status = write_and_rename(temporary.text, path, data, nbytes, whose);
    if (status != STATUS_OK)
        (void)unlink(temporary.text);
    else
        status = sync_parent(path, whose);
    str_deinit(&temporary);
    return status;
}

static Status make_one_dir(const char *path, Status whose) {
    if (mkdir(path, 0777) == 0)
        return sync_parent(path, whose);
    const int reason = errno;
    struct stat info;
    if (reason == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return STATUS_OK;
    return STATUS_FAIL(whose, "%s: %s", path, strerror(reason == EEXIST ? ENOTDIR : reason));
}

Status file_make_dirs(const char *path, Status whose) {
    char *prefix = heap_strdup(path);
    Status status = STATUS_OK;
    for (size_t i = 1; status == STATUS_OK && path[0] != '\0' && path[i] != '\0'; i++) {
        if (path[i] != '/')
            continue;
        prefix[i] = '\0';
        if (!file_exists(prefix)) /* an ancestor need not be ours to create, nor even to write in */
            status = make_one_dir(prefix, whose);
        prefix[i] = '/';
    }
    heap_free(prefix);
    if (status == STATUS_OK)
        status = make_one_dir(path, whose);
    return status;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

Status file_list(const char *dir, Status whose, char ***names, int *count) {
    *names = NULL;
    *count = 0;
    DIR *stream = opendir(dir);
    if (stream == NULL)
        return FAIL_ERRNO(whose, dir);
    int capacity = 16;
    char **list = HEAP_ALLOC(char *, capacity);
    int n = 0;
    struct dirent *entry;
    while (errno = 0, (entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (n == capacity) {
            capacity *= 2;
            list = heap_realloc(list, (size_t)capacity * sizeof *list);
        }
        list[n++] = heap_strdup(entry->d_name);
    }
    const int reason = errno;
    (void)closedir(stream);
    if (reason != 0) {
        file_list_free(list, n);
        return STATUS_FAIL(whose, "%s: %s", dir, strerror(reason));
    }
    qsort(list, (size_t)n, sizeof *list, compare_names);
    *names = list;
    *count = n;
    return STATUS_OK;
}

void file_list_free(char **names, int count) {
    for (int i = 0; i < count; i++)
        heap_free(names[i]);
    heap_free(names);
}

Status file_remove_dir(const char *path, Status whose) {
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return STATUS_OK;
    char **names = NULL;
    int count = 0;
    TRY(file_list(path, whose, &names, &count));
    Str child = {0};
    Status status = STATUS_OK;
    for (int i = 0; status == STATUS_OK && i < count; i++) {
        str_clear(&child);
        str_printf(&child, "%s/%s", path, names[i]);
        if (unlink(child.text) == 0)
            continue;
        status = errno == EISDIR || errno == EPERM ? file_remove_dir(child.text, whose) : FAIL_ERRNO(whose, child.text);
    }
    str_deinit(&child);
    file_list_free(names, count);
    if (status == STATUS_OK && rmdir(path) != 0)
        status = FAIL_ERRNO(whose, path);
    return status;
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

int64_t file_size(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}
