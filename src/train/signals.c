/* Signal handlers: one flag. */
#include "train/signals.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "comm/flight.h"
#include "comm/lost.h"

static volatile sig_atomic_t pending;

static void on_signal(int number) {
    if (number == SIGINT && pending == SIGINT) {
        flight_failed();
        _exit(130);
    }
    pending = number;
    if (number == SIGTERM) /* the launcher's, when it has lost a rank */
        lost_look();
}

void signals_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader of the console that goes away does not end the run */
}

int signals_pending(void) {
    return (int)pending;
}
