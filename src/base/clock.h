/* Time. */
#ifndef DMUON_BASE_CLOCK_H
#define DMUON_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void); /* monotonic */
double clock_ms_since(int64_t start_ns);
double clock_wall_s(void);       /* seconds since 1970 */
void clock_sleep_us(int64_t us); /* sleeps, never spins */

#endif
