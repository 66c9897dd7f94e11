/* Where two configurations differ, and whether a resume may bear it. */
#include <string.h>

#include "config/value.h"

/* Classes that depend on more than the key. */
static KeyClass effective_class(const KeySpec *spec, const Config *a, const Config *b) {
    const bool constant =
        a->optimizer.schedule.kind == SCHEDULE_CONSTANT && b->optimizer.schedule.kind == SCHEDULE_CONSTANT;
    if (strcmp(spec->path, "train.steps") == 0 && constant)
        return CLASS_FREE; /* no factor depends on where the run ends */
    if (strcmp(spec->path, "numerics.segments") == 0 && config_lowered_segments(a) == config_lowered_segments(b))
        return CLASS_FREE; /* only the lowered number enters the arithmetic */
    if (strcmp(spec->path, "device") == 0 && (a->numerics.fast || b->numerics.fast))
        return CLASS_IDENTITY;
    return spec->identity;
}

void config_diff(const Config *a, const Config *b,
                 void (*fn)(void *arg, const char *key, const char *va, const char *vb, int identity), void *arg) {
    Str va = {0}, vb = {0};
    for (int i = 0; i < schema_count(); i++) {
        const KeySpec *spec = schema_key(i);
        if (spec->type == KEY_MODEL)
            continue; /* the same model may stand in another file */
        str_clear(&va);
        str_clear(&vb);
        value_print(spec, a, &va);
        value_print(spec, b, &vb);
        if (strcmp(va.text, vb.text) != 0)
            fn(arg, spec->path, va.text, vb.text, (int)effective_class(spec, a, b));
    }
    str_deinit(&va);
    str_deinit(&vb);
}
