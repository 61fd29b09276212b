/* A program in C that uses the engine: client VERB ... Prints what it was told; ends with the
 * status of what failed, whose text goes to standard error. capi_test.cpp runs it. */
#include <locale.h>
#include <meshwright/meshwright.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(void) {
  fputs(meshwright_error_text(), stderr);
  return 1;
}

/* What the callback asks for, and after which step; only on this rank, unless it is -1. */
struct request {
  int64_t rank, here, after;
  int asks, dies;
};

static int told(const meshwright_step* step, void* user) {
  const struct request* request = user;
  if (step->size < sizeof *step) abort();
  if (request->here == 0)
    printf("step %ld loss %.17g norm %.17g lr %.17g tokens %ld\n", (long)step->step, step->loss,
           step->grad_norm, step->lr, (long)step->tokens);
  if (step->step_ms <= 0 || step->memory_bytes <= 0) abort();
  if ((request->rank >= 0 && request->rank != request->here) || step->step != request->after)
    return MESHWRIGHT_GO_ON;
  if (request->dies) raise(SIGTERM);
  return request->asks;
}

static void said(const char* line, void* user) { fprintf(user, "said: %s\n", line); }

static void token(int64_t id, const char* text, void* user) {
  fprintf(user, "%ld ", (long)id);
  fputs(text, user);
  fputs("\n", user);
}

static int open_run(const char* file, int count, char** overrides, meshwright_run** run) {
  meshwright_job* job = NULL;
  meshwright_run_options options = {sizeof options, said, NULL, 0};
  int status;
  options.user = stderr;
  status = meshwright_job_open(file, (const char* const*)overrides, (size_t)count, &job);
  if (status == 0) status = meshwright_run_open(job, &options, run);
  /* The error is still that of the call that failed. */
  if (status != 0) failed();
  meshwright_job_close(job);
  return status;
}

static void write_on(meshwright_run* run) {
  meshwright_request request;
  meshwright_request_init(&request, sizeof request);
  request.text = "static int ";
  request.max_new = 24;
  if (meshwright_run_generate(run, &request, token, stdout) != 0) failed();
}

/* train FILE RANK AFTER ASKS [key=value...]: trains; asks once, goes on to the end after a stop if
 * ASKS is "again". */
static int train(int argc, char** argv) {
  meshwright_run* run = NULL;
  struct request request = {-1, 0, -1, 0, 0};
  double loss = 0;
  int status, again = argc > 5 && strcmp(argv[5], "again") == 0;
  if (argc < 6) return 100;
  request.rank = atol(argv[3]);
  request.after = atol(argv[4]);
  request.dies = strcmp(argv[5], "die") == 0;
  request.asks = (strstr(argv[5], "stop") || again ? MESHWRIGHT_STOP : 0) |
              (strstr(argv[5], "save") ? MESHWRIGHT_SAVE : 0);
  status = open_run(argv[2], argc - 6, argv + 6, &run);
  if (status != 0) return status;
  request.here = meshwright_run_rank(run);
  status = meshwright_run_train(run, 0, told, &request);
  if (status == 0 && again) {
    if (request.here == 0) printf("stopped after %ld\n", (long)meshwright_run_steps_done(run));
    status = meshwright_run_train(run, 0, told, &request);
  }
  if (status == 0) status = meshwright_run_evaluate(run, &loss);
  if (status != 0) failed();
  if (status == 0 && request.here == 0) {
    printf("steps %ld of %ld, validation %.17g, ranks %ld\n", (long)meshwright_run_steps_done(run),
           (long)meshwright_run_max_steps(run), loss, (long)meshwright_run_world_size(run));
    printf("folder %s\n", meshwright_run_folder(run));
  }
  if (status == 0 && request.here == 0 && meshwright_run_world_size(run) == 1) write_on(run);
  if (status == 0) status = meshwright_run_finish(run);
  meshwright_run_close(run);
  return status;
}

/* save FILE [key=value...]: trains two steps, saves, and leaves without finishing. */
static int save(int argc, char** argv) {
  meshwright_run* run = NULL;
  struct request request = {-1, 0, -1, 0, 0};
  int status;
  if (argc < 3) return 100;
  status = open_run(argv[2], argc - 3, argv + 3, &run);
  if (status != 0) return status;
  status = meshwright_run_train(run, 2, told, &request);
  if (status == 0) status = meshwright_run_save(run);
  if (status == 0) status = meshwright_run_save(run); /* nothing is new */
  if (status != 0) failed();
  meshwright_run_close(run);
  return status;
}

/* plan FILE WORLD RANK [key=value...] */
static int plan(int argc, char** argv) {
  meshwright_job* job = NULL;
  const char* json = NULL;
  int status;
  if (argc < 5) return 100;
  status = meshwright_job_open(argv[2], (const char* const*)(argv + 5), (size_t)(argc - 5), &job);
  if (status == 0) status = meshwright_job_plan(job, atol(argv[3]), atol(argv[4]), &json);
  if (status != 0)
    failed();
  else
    fputs(json, stdout);
  meshwright_job_close(job);
  return status;
}

/* generate FOLDER TEXT|- TOKENS MAX TEMPERATURE: "-": no text, but TOKENS. */
static int generate(int argc, char** argv) {
  meshwright_request request;
  int64_t tokens[64];
  size_t count = 0;
  int status;
  char* at;
  if (argc < 7) return 100;
  meshwright_request_init(&request, sizeof request);
  if (strcmp(argv[3], "-") != 0) request.text = argv[3];
  for (at = strtok(argv[4], ","); at != NULL && count < 64; at = strtok(NULL, ","))
    tokens[count++] = atol(at);
  if (request.text == NULL) {
    request.tokens = tokens;
    request.token_count = count;
  }
  request.max_new = atol(argv[5]);
  request.temperature = atof(argv[6]);
  status = meshwright_generate(argv[2], NULL, 0, &request, NULL, token, stdout);
  if (status != 0) failed();
  return status;
}

int main(int argc, char** argv) {
  const char* verb = argc > 1 ? argv[1] : "";
  setlocale(LC_ALL, ""); /* as programs do that speak their user's language */
  if (strcmp(verb, "train") == 0) return train(argc, argv);
  if (strcmp(verb, "save") == 0) return save(argc, argv);
  if (strcmp(verb, "plan") == 0) return plan(argc, argv);
  if (strcmp(verb, "generate") == 0) return generate(argc, argv);
  return 100;
}
