/* Starting a thread the way this process wants its helpers: named, deaf to signals. */
#ifndef DMUON_DEVICE_THREAD_H
#define DMUON_DEVICE_THREAD_H

#include <pthread.h>

#include "base/status.h"

/* Signals meant for the process stay with the thread that installed the handlers. `name` at most 15 characters. */
DM_NODISCARD Status thread_start(pthread_t *thread, const char *name, void *(*body)(void *), void *arg);

/* Adds to the calling thread's nice value (Linux keeps it per thread); without permission nothing happens. */
void thread_add_nice(int add);

/* Lets short sleeps of the calling thread end on time instead of up to 50 us late. */
void thread_sharpen_sleep(void);

#endif
