/* libFuzzer entry: a configuration of arbitrary bytes. What is accepted must survive its own dump. */
#include <stdint.h>
#include <string.h>

#include "base/fatal.h"
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static Config config, again;
    if (config_load_text(&config, (const char *)data, nbytes, "fuzz.yaml") != STATUS_OK) {
        DM_ASSERT(status_trail()[0] != '\0');
        return 0;
    }
    Str dump = {0}, second = {0};
    config_dump_yaml(&config, &dump);
    DM_ASSERT(config_load_text(&again, dump.text, dump.len, "dump.yaml") == STATUS_OK);
    config_dump_yaml(&again, &second);
    DM_ASSERT(dump.len == second.len && memcmp(dump.text, second.text, dump.len) == 0);
    str_deinit(&dump);
    str_deinit(&second);
    return 0;
}
