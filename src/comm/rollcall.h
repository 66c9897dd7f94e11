/* Who is it that does not answer? A rank may wait for one that itself waits for a third. Before its time is up it asks
 * those it waits for, and then those they wait for; a rank that waits answers from inside its wait. */
#ifndef DMUON_COMM_ROLLCALL_H
#define DMUON_COMM_ROLLCALL_H

#include <stddef.h>
#include <stdint.h>

#include "comm/watchdog.h"

/* Collective over the world. */
void rollcall_open(int size);
void rollcall_close(void);

/* From inside a wait, by any thread: answers who asked, and takes in answers. Cheap when there is nothing. */
void rollcall_serve(void);
/* Starts to ask. */
void rollcall_ask(const WatchPeers *peers);
/* Returns after `wait_us`, unless another rank says by then that it is about to speak: then this one is silent and
 * waits for the end that the other brings. */
void rollcall_take_turn(int64_t wait_us);
/* What came of it, for the end of an error line: "rank 3 (host) does not answer: ...". */
void rollcall_result(char *text, size_t capacity);

#endif
