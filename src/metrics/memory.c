/* Reads /proc/self/status. */
#include "metrics/memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"

/* Of a line "VmRSS:     1234 kB". */
static size_t status_nbytes(const char *key) {
    char *text;
    size_t nbytes, result = 0;
    if (file_read("/proc/self/status", 0, STATUS_NO_MEMORY, &text, &nbytes) != STATUS_OK) {
        status_trail_clear();
        return 0;
    }
    const char *line = strstr(text, key);
    if (line != NULL)
        result = (size_t)strtoull(line + strlen(key), NULL, 10) * 1024;
    heap_free(text);
    return result;
}

size_t memory_rss_nbytes(void) {
    return status_nbytes("\nVmRSS:");
}

size_t memory_peak_rss_nbytes(void) {
    return status_nbytes("\nVmHWM:");
}
