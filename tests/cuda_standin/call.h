/* Calls of the API: counted, made to fail on demand, and what must not be left at exit. */
#ifndef CUDA_STANDIN_CALL_H
#define CUDA_STANDIN_CALL_H

#include "standin.h"

namespace standin {

/* A host polls as often as time allows: of such calls only the first from each place has a number, so that a number
 * means the same call in every run. */
enum class Numbered { ALWAYS, FIRST };

/* One call of the API that can fail: takes the lock, counts, and says whether this call is to fail. */
class ApiCall {
    Lock lock_;

  public:
    ApiCall(const char *api, const void *site, Numbered numbered = Numbered::ALWAYS);
    ~ApiCall();
    const bool fails;
};
/* An error was handed out: the program must not end as if nothing had been. */
void note_error(const char *api);
bool failure_injected();
/* For the report at exit: `name` among `group` ("calls", "kernels", "bytes", ...) gains `n`. */
void count(const char *group, const char *name, int64_t n);
/* A launch of `name`: also counted among those since the newest record of an event with timing. */
void count_launch(const char *name);
void count_from_here(); /* such a record */
void counts_write();
void check_unnoticed_errors(); /* at exit with status 0 */
void check_leaks();            /* the same */
double last_call_s();          /* when the host last made a call */

/* Handles that the program must have given back by exit: how many of a kind are alive. */
void leak_count(const char *kind, int change);

} // namespace standin

#endif
