/* Feeds the files named on the command line to a fuzz target, without a fuzzer: the kept corpus as a test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *data;
        size_t nbytes;
        if (file_read(argv[i], 0, STATUS_DATA, &data, &nbytes) != STATUS_OK) {
            fprintf(stderr, "%s\n", status_trail());
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)data, nbytes);
        heap_free(data);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
