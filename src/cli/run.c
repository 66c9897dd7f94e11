/* A session for one command. */
#include "cli/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "data/prompt.h"
#include "train/eval.h"
#include "train/loop.h"
#include "train/sample.h"
#include "train/signals.h"

/* Seconds since 1970 at which the job began: DMUON_JOB_START, or now. */
static Status job_start(double *seconds) {
    const char *text = getenv("DMUON_JOB_START");
    *seconds = clock_wall_s();
    if (text && text[0] != '\0' && !str_parse_double(text, seconds))
        return STATUS_FAIL(STATUS_CONFIG,
                           "DMUON_JOB_START=%s: must be seconds since 1970, as `date +%%s` prints them; without it "
                           "train.max_wall_time counts from the start of the process",
                           text);
    return STATUS_OK;
}

/* What was asked for must have reached its reader. */
static Status flush_stdout(void) {
    if (fflush(stdout) != 0)
        return STATUS_FAIL(STATUS_CONFIG, "standard output cannot be written: %s", strerror(errno));
    return STATUS_OK;
}

static Status run_eval(Session *s) {
    EvalResult r;
    eval_run(s, &r);
    if (r.stop)
        return STATUS_FAIL(STATUS_STOPPED, "the evaluation was stopped by a signal");
    if (s->world->rank == 0)
        printf("step %lld  loss %.6f  tokens %lld  (%s)\n", (long long)s->progress.step, (double)r.loss,
               (long long)r.tokens, s->start.set);
    return STATUS_OK;
}

static Status run_sample(Session *s, const char *prompt) {
    Str text = {0};
    prompt = prompt ? prompt : s->config.train.sample_prompt;
    const Status status = sample_run(s, prompt, &text);
    if (status == STATUS_OK && s->world->rank == 0)
        printf("%s%s%s\n", prompt, s->shape.vocab == PROMPT_BYTES ? "" : " ", text.text);
    str_deinit(&text);
    return comm_agree(s->world->comm, status == STATUS_OK ? flush_stdout() : status);
}

static Status run_command(Session *s, const Args *args, double start_s) {
    switch (args->command) {
    case COMMAND_EVAL:
        return run_eval(s);
    case COMMAND_SAMPLE:
        return run_sample(s, args->prompt);
    default:
        return loop_run(s, start_s);
    }
}

/* A stop on request is no failure: its sentence without the path it took. */
static void report(const World *world, Status status) {
    const char *trail = status_trail();
    const int length = status == STATUS_STOPPED ? status_sentence() : (int)strlen(trail);
    if (world->rank == 0)
        fprintf(stderr, "dmuon-train: %.*s\n", length, trail);
}

bool run_refuse(int *argc, char ***argv) {
    World world;
    if (getenv("PMIX_RANK") == NULL || world_init(&world, argc, argv) != STATUS_OK)
        return false;
    report(&world, STATUS_CONFIG);
    world_finalize(&world);
    return true;
}

static Status run_session(World *world, const Args *args, double start_s) {
    Session session;
    const SessionOptions options = {.config_path = args->config,
                                    .overrides = args->overrides,
                                    .override_count = args->override_count,
                                    .purpose = args->command == COMMAND_EVAL     ? PURPOSE_EVAL
                                               : args->command == COMMAND_SAMPLE ? PURPOSE_SAMPLE
                                                                                 : PURPOSE_TRAIN,
                                    .set = args->set};
    Status status = session_open(&session, world, &options);
    if (status == STATUS_OK)
        status = run_command(&session, args, start_s);
    session_close(&session);
    return status;
}

Status run_ranks(const Args *args, int *argc, char ***argv, bool *reported) {
    double start_s;
    Status status = job_start(&start_s);
    World world;
    TRY(world_init(&world, argc, argv));
    status = comm_agree(world.comm, status);
    if (status == STATUS_OK)
        status = run_session(&world, args, start_s);
    *reported = status != STATUS_OK;
    if (*reported)
        report(&world, status);
    world_finalize(&world);
    return status;
}
